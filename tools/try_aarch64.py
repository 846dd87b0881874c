#!/usr/bin/env python3
"""Tests by the wheel for AArch64 on another machine, with qemu's emulation of a process.

    tools/try_aarch64.py                                 dist's wheel for CPython 3.11
    tools/try_aarch64.py tests/wire/test_record_crc32c.py    other tests than the usual ones

Python and the C library are Debian 12's for arm64, which debootstrap downloads and nothing runs but
qemu; pip brings what kbroker and the tests need for that machine. Both are kept in .cache/aarch64.
Only what needs no second process can run: a program that the tests start is started by the kernel,
which knows no AArch64. Needs root, debootstrap and qemu-user-static.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.bare import tracked_files

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / ".cache" / "aarch64"
QEMU = "qemu-aarch64-static"
RELEASE, VERSION = "bookworm", "3.11"
TAGS = ("manylinux_2_34", "manylinux_2_28", "manylinux_2_17", "manylinux2014")
TEST_PACKAGES = ("pytest", "pytest-timeout", "hypothesis", "psutil")
# Batches, varints, checksums and indexes: what is C.
TESTS = [
    "tests/wire/test_record_crc32c.py",
    "tests/wire/test_record_primitives.py",
    "tests/wire/test_record_batches.py",
    "tests/unit/protocol/test_primitives.py",
    "tests/unit/record",
    "tests/unit/storage/log/test_log_lookup.py",
    "tests/unit/storage/test_damaged_time_index.py",
    "tests/unit/storage/test_storage_formats.py",
    "tests/property/test_lz4_regular_blocks.py",
]
# They start a Python of their own.
NOT_THESE = [
    "tests/unit/record/test_codecs.py::"
    "test_batch_is_not_taken_for_a_damaged_one_while_there_are_no_codecs",
    "tests/wire/test_record_batches.py::test_pure_switch_selects_the_twins",
]
CHECKSUM = "from kbroker._ext.base import crc32c; print(crc32c.IMPLEMENTATION)"


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--wheel", type=Path, help="instead of dist's for CPython 3.11")
    parser.add_argument("tests", nargs="*", default=TESTS)
    options = parser.parse_args()
    missing = [name for name in ("debootstrap", QEMU) if shutil.which(name) is None]
    if missing or os.geteuid():
        print("left out: needs root, debootstrap and qemu-user-static", file=sys.stderr)
        return 1
    tag = f"cp{VERSION.replace('.', '')}"
    wheels = sorted((ROOT / "dist").glob(f"kbroker-*-{tag}-*aarch64.whl"))
    wheel = options.wheel or (wheels[-1] if wheels else None)
    if wheel is None:
        print("no wheel: make wheels ARGS='--versions 3.11 --machines aarch64'", file=sys.stderr)
        return 1
    python = [QEMU, "-L", str(system()), str(system() / "usr" / "bin" / f"python{VERSION}")]
    where = checkout()
    environment = {**os.environ, "PYTHONPATH": str(packages(wheel))}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    said = subprocess.run(
        [*python, "-c", CHECKSUM], cwd=where, env=environment, check=True, capture_output=True,
        text=True,
    ).stdout  # fmt: skip
    print(f"{wheel.name}: checksums by {said.strip()}", flush=True)
    command = [*python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "timeout=600"]
    command += ["-m", "not slow", *(f"--deselect={name}" for name in NOT_THESE), *options.tests]
    return subprocess.run(command, cwd=where, env=environment, check=False).returncode


def system() -> Path:
    """The folder of a Debian for arm64: minimal packages and Python, unpacked and not set up."""
    place = PLACE / "root"
    if place.exists():
        return place
    PLACE.mkdir(parents=True, exist_ok=True)
    download, partial = PLACE / "debian", PLACE / "root.partial"
    command = ["unshare", "--mount", "debootstrap", "--download-only", "--arch=arm64"]
    command += ["--variant=minbase", "--include=python3", RELEASE, str(download)]
    mirror = os.environ.get("KBROKER_DEBIAN_MIRROR")
    subprocess.run([*command, *([mirror] if mirror else [])], check=True)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    (partial / "usr" / "lib").mkdir(parents=True)
    (partial / "lib").symlink_to("usr/lib")
    for package in sorted((download / "var" / "cache" / "apt" / "archives").glob("*.deb")):
        unpacked = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE)
        tar = ["tar", "-x", "--keep-directory-symlink", "-C", str(partial), "-f", "-"]
        subprocess.run(tar, stdin=unpacked.stdout, check=True)
        if unpacked.wait():
            raise RuntimeError(f"{package} is damaged")
    shutil.rmtree(download)
    partial.rename(place)
    return place


def packages(wheel: Path) -> Path:
    """The folder of kbroker and what it and the tests need, for that machine."""
    place = PLACE / "site"
    shutil.rmtree(place, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--only-binary", ":all:", "--implementation", "cp", "--python-version", VERSION]
    for tag in TAGS:
        command += ["--platform", f"{tag}_aarch64"]
    subprocess.run([*command, "--target", str(place), str(wheel), *TEST_PACKAGES], check=True)
    return place


def checkout() -> Path:
    """A copy of the work tree without kbroker itself, which is to come from the wheel."""
    place = PLACE / "tree"
    shutil.rmtree(place, ignore_errors=True)
    for name in tracked_files():
        if not name.startswith("kbroker/"):
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, place / name)
    return place


if __name__ == "__main__":
    sys.exit(main())
