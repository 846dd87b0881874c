"""The results of `make dist`: a wheel that works in an empty environment, an sdist with all
sources.
"""

from __future__ import annotations

import os
import re
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
# What pip installs with kbroker: a new one is a choice.
NEEDED = {
    *("pyzmq", "zstandard", "python-snappy", "lz4", "setproctitle", "google-re2", "numpy", "kazoo"),
    *("cryptography", "posix_ipc", "zlib-ng"),
}
CONSOLE = {"starlette", "uvicorn", "h11"}
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
    sample = run(binaries / "kbroker", "sample", "server.properties", cwd=tmp_path)
    assert sample == (ROOT / "config" / "server.properties").read_text(encoding="utf-8")
    assert run(binaries / "kbroker-supervisor", "--version", cwd=tmp_path).startswith("kbroker ")
    assert "-c" in run(binaries / "kbroker-supervisor", "--help", cwd=tmp_path)
    response = run(binaries / "python", "-c", PROGRAM, cwd=tmp_path)
    assert response.strip() == "(7, 0)"


def test_wheel_holds_modules_samples_and_commands_and_has_the_tag_it_is_told(
    tmp_path: Path,
) -> None:
    """Without extensions, which take a minute; tools/wheels.py looks for each of them."""
    tag = "cp312-cp312-manylinux_2_28_aarch64"
    environment = {**os.environ, "KBROKER_SKIP_EXTENSIONS": "1", "KBROKER_WHEEL_TAG": tag}
    command = [sys.executable, "setup.py", "--quiet", "build", "--build-base", tmp_path / "build"]
    command += ["bdist_wheel", "-b", tmp_path / "tree", "-d", tmp_path]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)

    (wheel,) = tmp_path.glob("kbroker-*.whl")
    assert wheel.name.endswith(f"-{tag}.whl")
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
        (metadata,) = [name for name in names if name.endswith("dist-info/METADATA")]
        requires = re.findall(r"^Requires-Dist: (.*)$", packed.read(metadata).decode(), re.M)
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "kbroker").rglob("*.py")}
    samples = {f"kbroker/samples/{path.name}" for path in (ROOT / "config").iterdir()}
    assert (modules | samples | {"pyspark_kbroker/__init__.py"}) - names == set()
    assert not [name for name in names if name.startswith(("tests/", "perf/", "tools/", "ext/"))]
    plain = {re.split(r"[^\w-]", text)[0] for text in requires if "extra ==" not in text}
    assert plain - CONSOLE == NEEDED


def assert_every_source_is_in(found: set[str]) -> None:
    wanted = {
        str(path.relative_to(ROOT))
        for folder in ("kbroker", "ext", "pyspark_kbroker")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".pyi", ".pyx", ".pxd", ".h"}
    }
    assert wanted - found == set()
    assert {"setup.py", "pyproject.toml", "README.md"} <= found


def test_every_source_is_listed_for_the_sdist(tmp_path: Path) -> None:
    """An sdist packs the files of this list; without extensions those are named in MANIFEST.in."""
    environment = {**os.environ, "KBROKER_SKIP_EXTENSIONS": "1"}
    command = [sys.executable, "setup.py", "--quiet", "egg_info", "--egg-base", tmp_path]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)

    (sources,) = tmp_path.glob("*.egg-info/SOURCES.txt")
    assert_every_source_is_in({*map(os.path.normpath, sources.read_text().splitlines())})


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "setup.py", "--quiet", "sdist", "-d", place, cwd=ROOT)
    (archive,) = place.glob("kbroker-*.tar.gz")
    return archive


@pytest.mark.slow
def test_sdist_holds_every_source(sdist: Path) -> None:
    with tarfile.open(sdist) as packed:
        assert_every_source_is_in({name.partition("/")[2] for name in packed.getnames()})


@pytest.mark.slow
def test_sdist_builds_without_a_network(sdist: Path, tmp_path: Path) -> None:
    """Once setuptools, wheel and Cython are there. Without the extensions, for time."""
    environment = {**os.environ, "KBROKER_SKIP_EXTENSIONS": "1", "http_proxy": "http://127.0.0.1:9"}
    environment["https_proxy"] = environment["http_proxy"]
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    pip += ["--no-index", "--no-build-isolation", "--no-deps", "-w", tmp_path, sdist]

    done = subprocess.run(pip, capture_output=True, text=True, env=environment)

    assert done.returncode == 0, done.stdout + done.stderr
    assert len([*tmp_path.glob("kbroker-*.whl")]) == 1
