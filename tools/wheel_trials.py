"""Whether wheels do what README says: in a fresh Debian without a compiler, for root, and with
other interpreters on this machine. ``tools/wheels.py`` calls it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from tools.bare import RELEASES, Failed, Machine
from tools.cpython_headers import interpreter_of

ROOT = Path(__file__).resolve().parent.parent
SMOKE = ROOT / "tools" / "wheel_smoke.py"
# Debian's release -> the version of its Python.
DEBIAN_PYTHONS = {"bookworm": "3.11", "trixie": "3.13"}
# Python for people, kcat to speak to the broker, and how pip reaches an index.
PACKAGES = ["python3", "python3-venv", "kcat", "ca-certificates"]
_SIZES = "{python}: installed in {install_s} s ({install_cpu_s} s of CPU), {installed_mb} MB "
_SIZES += "({of_it_kbroker_mb} MB kbroker, {packages} packages); broker serves after {start_s} s, "
_SIZES += "stops in {stop_s} s; "
_SIZES += "import kbroker.client and kbroker --help, s and s of CPU: {import_client_s}, {help_s}"


def announce(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def described(found: Mapping[str, object]) -> str:
    return "CPython " + _SIZES.format_map(found)


def try_all(wheels: Mapping[str, Path]) -> dict[str, dict[str, object]]:
    """Try each wheel of this kind of machine; returns what was measured, by where. Raises Failed.

    wheels: by version of CPython.
    """
    found: dict[str, dict[str, object]] = {}
    tried = set()
    if os.geteuid() == 0 and shutil.which("debootstrap"):
        for release, version in DEBIAN_PYTHONS.items():
            if version in wheels:
                found[RELEASES[release]] = in_debian(release, wheels[version])
                announce(f"{RELEASES[release]}, {described(found[RELEASES[release]])}")
                tried.add(version)
    else:
        announce("no fresh Debian: that needs root and debootstrap")
    for version, wheel in wheels.items():
        if version in tried:
            continue
        try:
            python = interpreter_of(version)
        except (OSError, RuntimeError) as error:
            announce(f"CPython {version}: not tried, no interpreter ({error})")
            continue
        found[f"this machine, {version}"] = here(python, wheel)
        announce(f"this machine, {described(found[f'this machine, {version}'])}")
    return found


def in_debian(release: str, wheel: Path) -> dict[str, object]:
    """In a new chroot, as a user. Raises Failed."""
    machine = Machine(release)
    machine.build(with_tree=False)
    machine.install(["--no-install-recommends", *PACKAGES])
    home = machine.place / "home" / "user"
    (home / "wheels").mkdir()
    shutil.copy2(wheel, home / "wheels")
    shutil.copy2(SMOKE, home)
    command = ["python3", "/home/user/wheel_smoke.py", "/home/user/wheels", "/home/user/env"]
    said = machine.call("user", command)
    found = measured(said)
    if found["compilers"]:
        raise Failed(f"{machine.place} has a compiler: {found['compilers']}")
    shutil.rmtree(machine.place)
    return found


def here(python: Path, wheel: Path) -> dict[str, object]:
    """By an interpreter of this machine. Raises Failed."""
    with tempfile.TemporaryDirectory(prefix="kbroker-wheel-") as place:
        wheels = Path(place) / "wheels"
        wheels.mkdir()
        shutil.copy2(wheel, wheels)
        environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(
            [str(python), str(SMOKE), str(wheels), f"{place}/env"],
            capture_output=True, text=True, env=environment, cwd=place,
        )  # fmt: skip
        if done.returncode:
            raise Failed(f"{python}, {wheel.name}: {done.stdout[-4000:]}{done.stderr[-4000:]}")
        return measured(done.stdout)


def measured(said: str) -> dict[str, object]:
    """The last line of ``wheel_smoke.py``."""
    found = json.loads(said.strip().splitlines()[-1])
    if not isinstance(found, dict):
        raise Failed(f"wheel_smoke.py said {found!r}")
    return found


if __name__ == "__main__":
    sys.exit("run tools/wheels.py")
