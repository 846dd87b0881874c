#!/usr/bin/env python3
"""Wheels for people without a compiler: ``make wheels``.

    tools/wheels.py                                CPython 3.11 to 3.14, x86-64 and AArch64
    tools/wheels.py --versions 3.12 --machines x86_64 --no-try

One compiler builds all of them: Zig's, from PyPI, which compiles C for either machine against the
symbols of glibc 2.28 (manylinux_2_28: Debian 10, RHEL 8, Ubuntu 20.04 and what came after). It
needs the headers of each CPython, and no interpreter of it (``cpython_headers``). Those that are
missing are named, and their wheels left out. Cython translates the sources once for all.

Each wheel is checked: every extension is there and for the right machine, and auditwheel finds no
symbol above glibc 2.28. Then those for this machine are tried: in a fresh Debian 12 and 13 without
a compiler (root only), and by the interpreters of other versions that ``cpython_headers`` finds.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.bare import Failed
from tools.cpython_headers import CLASSIFIERS, RELEASES, Headers, Missing, headers_of
from tools.wheel_trials import announce, try_all

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / ".cache" / "wheels"
GLIBC = "2.28"
# e_machine in the header of an ELF file.
ELF_MACHINES = {"x86_64": 62, "aarch64": 183}
# Those of setup.py come behind. -w: the warnings are gcc's business, in `make build`.
FLAGS = ["-fno-strict-overflow", "-DNDEBUG", "-O2", "-w"]
JOBS = int(os.environ.get("KBROKER_BUILD_JOBS", "0")) or len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Target:
    """What one wheel is for."""

    version: str
    machine: str

    @property
    def python(self) -> str:
        return "cp" + self.version.replace(".", "")

    @property
    def tag(self) -> str:
        platform = f"manylinux_{GLIBC.replace('.', '_')}_{self.machine}"
        return f"{self.python}-{self.python}-{platform}"

    @property
    def suffix(self) -> str:
        """That of an extension's file, by which CPython finds it."""
        return f".cpython-{self.python[2:]}-{self.machine}-linux-gnu.so"


def environment_of(target: Target, headers: Headers, compiler: str) -> dict[str, str]:
    """What setup.py needs to build for another CPython and another machine than its own."""
    cc = f"{compiler} cc -target {target.machine}-linux-gnu.{GLIBC}"
    return {
        "CC": cc,
        "LDSHARED": f"{cc} -shared -s",
        "CFLAGS": " ".join([f"-I{headers.folder}", *FLAGS]),
        "SETUPTOOLS_EXT_SUFFIX": target.suffix,
        "KBROKER_WHEEL_TAG": target.tag,
        "KBROKER_BUILD_JOBS": str(JOBS),
    }


def zig() -> str:
    """The compiler's program. Raises Failed."""
    try:
        import ziglang
    except ImportError as error:
        raise Failed("the compiler is missing: pip install ziglang auditwheel") from error
    return str(Path(ziglang.__file__).parent / "zig")


def build(target: Target, headers: Headers, into: Path) -> Path:
    """Build a wheel; what has not changed since the last build of it is kept. Raises Failed."""
    work = PLACE / f"{target.python}-{target.machine}"
    shutil.rmtree(work / "tree", ignore_errors=True)
    work.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "setup.py", "--quiet", "build", "--build-base", str(work)]
    command += ["--build-lib", str(work / "lib"), "--build-temp", str(work / "temp")]
    command += ["bdist_wheel", "-b", str(work / "tree"), "-d", str(into)]
    environment = os.environ | environment_of(target, headers, zig())
    log = work / "build.log"
    with log.open("w") as output:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
    if done.returncode:
        said = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
        raise Failed(f"{target.tag} cannot be built: {log}\n{said}")
    (wheel,) = into.glob(f"kbroker-*-{target.tag}.whl")
    return wheel


def check(wheel: Path, target: Target) -> str:
    """Check the contents of a wheel; returns what was found in a few words. Raises Failed."""
    found = problems(wheel, target)
    if found:
        raise Failed(f"{wheel.name}: {'; '.join(found)}")
    done = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", str(wheel)], capture_output=True, text=True
    )
    if done.returncode:
        raise Failed(f"{wheel.name}: auditwheel: {done.stdout}{done.stderr}")
    oldest = oldest_platform(done.stdout)
    if oldest is None or oldest > (2, 28):
        raise Failed(f"{wheel.name} needs a newer glibc: {done.stdout}")
    return f"needs glibc {oldest[0]}.{oldest[1]}"


def oldest_platform(said: str) -> tuple[int, int] | None:
    """The glibc of the platform tag that ``auditwheel show`` found a wheel consistent with."""
    text = " ".join(said.split())
    found = re.search(r'following platform tag: "manylinux_(\d+)_(\d+)_\w+"', text)
    return (int(found[1]), int(found[2])) if found else None


def problems(wheel: Path, target: Target) -> list[str]:
    """What is wrong with the files in a wheel."""
    sources = {path.relative_to("ext").with_suffix("") for path in relative_sources()}
    found = []
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        compiled = [name for name in names if name.endswith(".so")]
        missing = {f"{source}{target.suffix}" for source in sources} - set(compiled)
        if missing:
            found.append(f"lacks {', '.join(sorted(missing))}")
        for name in compiled:
            with packed.open(name) as member:
                header = member.read(20)
            if header[:4] != b"\x7fELF":
                found.append(f"{name} is no ELF file")
            elif int.from_bytes(header[18:20], "little") != ELF_MACHINES[target.machine]:
                found.append(f"{name} is for another machine")
    samples = {f"kbroker/samples/{path.name}" for path in (ROOT / "config").iterdir()}
    if samples - set(names):
        found.append(f"lacks {', '.join(sorted(samples - set(names)))}")
    unwanted = [name for name in names if name.endswith((".pyx", ".pxd", ".c", ".h"))]
    if unwanted:
        found.append(f"has sources: {', '.join(unwanted[:3])}")
    return found


def relative_sources() -> list[Path]:
    return sorted(path.relative_to(ROOT) for path in (ROOT / "ext" / "kbroker").rglob("*.pyx"))


def refuse_other_kinds() -> None:
    """The C sources of a build for debugging have checks in them. Raises Failed."""
    kind = ROOT / "build" / "kind"
    if kind.exists() and kind.read_text() == "debug":
        raise Failed("the extensions in place are for debugging: run make build first")


def make_all(
    versions: Sequence[str], machines: Sequence[str], folders: Sequence[Path], into: Path
) -> tuple[dict[Target, Path], dict[str, str]]:
    """Build and check the wheels; returns them, and why versions are missing. Raises Failed."""
    refuse_other_kinds()
    into.mkdir(parents=True, exist_ok=True)
    made: dict[Target, Path] = {}
    missing: dict[str, str] = {}
    for version in versions:
        try:
            headers = headers_of(version, folders)
        except Missing as error:
            missing[version] = str(error)
            announce(f"CPython {version}: no headers, so no wheel. Looked for: {error}")
            continue
        for machine in machines:
            target = Target(version, machine)
            announce(f"CPython {version}, {machine}: headers of {headers.source}")
            begun = time.monotonic()
            for old in into.glob(f"kbroker-*-{target.tag}.whl"):
                old.unlink()
            wheel = build(target, headers, into)
            said = check(wheel, target)
            size = wheel.stat().st_size / 1e6
            took = time.monotonic() - begun
            announce(f"  {wheel.name}: {size:.1f} MB, {said}, {took:.0f} s")
            made[target] = wheel
    return made, missing


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--versions", nargs="+", choices=RELEASES, default=[*RELEASES])
    parser.add_argument("--machines", nargs="+", choices=CLASSIFIERS, default=[*CLASSIFIERS])
    parser.add_argument(
        "--headers", nargs="+", type=Path, default=[], metavar="DIR", help="with a Python.h each"
    )
    parser.add_argument("--into", type=Path, default=ROOT / "dist", metavar="DIR")
    parser.add_argument("--no-try", action="store_true", help="build and check, install none")
    options = parser.parse_args(arguments)
    try:
        made, missing = make_all(
            options.versions, options.machines, options.headers, options.into.resolve()
        )
        if not options.no_try:
            try_all({target.version: wheel for target, wheel in made.items() if is_own(target)})
    except Failed as failed:
        announce(f"failed: {failed}")
        return 1
    for version, why in missing.items():
        announce(f"CPython {version}: left out, no headers ({why})")
    announce(f"{len(made)} wheels in {options.into}")
    return 0 if made else 1


def is_own(target: Target) -> bool:
    return sysconfig.get_platform() == f"linux-{target.machine}"


if __name__ == "__main__":
    sys.exit(main())
