"""The results of `make dist`: a wheel that works in an empty environment, an sdist with all
sources.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import socket, struct
from kbroker.testing import Broker
with Broker() as broker, socket.create_connection((broker.host, broker.port), timeout=5) as client:
    client.sendall(struct.pack(">ihhih", 10, 18, 0, 7, -1))
    print(struct.unpack(">iih", client.recv(10))[1:])
"""


def run(*command: str | Path, **options: object) -> str:
    # With a checkout on the path pip would find kbroker installed, and do nothing.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=300, env=env,
        **options,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_wheel_in_an_empty_environment_gives_a_working_broker(tmp_path: Path) -> None:
    # The build tree from before a module was renamed: it has both.
    tree = ROOT / "build" / f"lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    handlers = tree / "kbroker" / "handlers"
    handlers.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "kbroker" / "handlers" / "metadata.py", handlers / "renamed_since.py")

    setup = ("setup.py", "--quiet", "bdist_wheel", "-b", tmp_path / "tree", "-d", tmp_path)
    run(sys.executable, *setup, cwd=ROOT)
    (wheel,) = tmp_path.glob("kbroker-*.whl")
    assert "kbroker/console/assets/index.html" in zipfile.ZipFile(wheel).namelist()
    venv.create(tmp_path / "env")
    binaries = tmp_path / "env" / "bin"

    pip = (sys.executable, "-m", "pip", "--python", binaries / "python")
    run(*pip, "install", "--quiet", "--disable-pip-version-check", wheel)
    samples = tmp_path / "env" / "share" / "kbroker" / "config"
    assert {path.name for path in samples.iterdir()} == {
        "server.properties",
        "zookeeper.properties",
    }

    assert run(binaries / "kbroker-supervisor", "--version", cwd=tmp_path).startswith("kbroker ")
    assert "-c" in run(binaries / "kbroker-supervisor", "--help", cwd=tmp_path)
    response = run(binaries / "python", "-c", PROGRAM, cwd=tmp_path)
    assert response.strip() == "(7, 0)"


def test_sdist_holds_every_source(tmp_path: Path) -> None:
    run(sys.executable, "setup.py", "--quiet", "sdist", "-d", tmp_path, cwd=ROOT)
    (archive,) = tmp_path.glob("kbroker-*.tar.gz")

    with tarfile.open(archive) as packed:
        found = {name.partition("/")[2] for name in packed.getnames()}

    wanted = {
        str(path.relative_to(ROOT))
        for folder in ("kbroker", "ext", "pyspark_kbroker")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".pyi", ".pyx", ".pxd", ".h"}
    }
    assert wanted - found == set()
    assert {"setup.py", "pyproject.toml", "README.md"} <= found
