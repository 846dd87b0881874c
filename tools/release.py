#!/usr/bin/env python3
"""Everything that an index or a download page gets, in one command: ``make release``.

    tools/release.py            sdist, wheels and their trials, downloads, checksums
    tools/release.py --dirty    also from a work tree with changes, to see whether it would work

Makes ``dist/`` anew: the sdist, the wheels of ``tools/wheels.py``, SHA256SUMS, and RELEASE.txt,
which says from which commit and with what results. Uploads nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import kbroker
from tools import wheels
from tools.bare import Failed
from tools.cpython_headers import CLASSIFIERS, RELEASES
from tools.wheel_trials import announce, described, try_all
from tools.wheels import Target

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"


def output_of(*command: str, **environment: str) -> str:
    """Of a command that must succeed. Raises Failed."""
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env=os.environ | environment
    )
    if done.returncode:
        raise Failed(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return done.stdout


def commit_of(is_dirty_allowed: bool) -> str:
    """What the release is made from. Raises Failed."""
    changed = output_of("git", "status", "--porcelain").splitlines()
    commit = output_of("git", "rev-parse", "--short=12", "HEAD").strip()
    if not changed:
        return commit
    if not is_dirty_allowed:
        raise Failed(f"the work tree has changes ({changed[0].strip()}): commit them, or --dirty")
    return f"{commit} with {len(changed)} changed files"


def check_changelog(text: str, version: str) -> str:
    """How the changelog names this release. Raises Failed."""
    headings = [line[3:].strip() for line in text.splitlines() if line.startswith("## ")]
    if not headings or not (headings[0] == "Unreleased" or headings[0].startswith(version)):
        raise Failed(f"CHANGELOG.md begins with {headings[:1]}, not with {version} or Unreleased")
    return headings[0]


def make_sdist(into: Path) -> Path:
    """The source distribution. Raises Failed."""
    output_of(sys.executable, "setup.py", "--quiet", "sdist", "-d", str(into),
              KBROKER_SKIP_EXTENSIONS="1")  # fmt: skip
    (archive,) = into.glob("kbroker-*.tar.gz")
    with tarfile.open(archive) as packed:
        names = packed.getnames()
    if any(name.endswith((".so", ".c")) and not name.endswith("perf/bare.c")
           and "/tests/" not in name for name in names):  # fmt: skip
        raise Failed(f"{archive.name} has compiled or generated files")
    return archive


def check_download(target: Target, wheel: Path, dist: Path) -> None:
    """pip takes that wheel from ``dist``, for that machine and Python. Raises Failed."""
    with tempfile.TemporaryDirectory() as place:
        output_of(
            sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
            "--no-index", "--find-links", str(dist), "--no-deps", "--only-binary", ":all:",
            "--python-version", target.version, "--implementation", "cp",
            "--platform", target.tag.rpartition("-")[2], "-d", place, "kbroker",
        )  # fmt: skip
        if [path.name for path in Path(place).iterdir()] != [wheel.name]:
            raise Failed(f"pip does not download {wheel.name} for {target}")


def write_sums(dist: Path) -> list[str]:
    """SHA256SUMS of what is in ``dist``, for sha256sum -c."""
    files = sorted([*dist.glob("*.whl"), *dist.glob("*.tar.gz")])
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" for path in files]
    (dist / "SHA256SUMS").write_text("".join(f"{line}\n" for line in lines))
    return lines


def release(options: argparse.Namespace) -> list[str]:
    """Make everything; returns what was done, line by line. Raises Failed."""
    commit = commit_of(options.dirty)
    heading = check_changelog((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"),
                              kbroker.__version__)  # fmt: skip
    said = [f"kbroker {kbroker.__version__} of commit {commit}; changelog: {heading}"]
    if not options.keep:
        shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir(exist_ok=True)
    archive = make_sdist(DIST)
    said.append(f"{archive.name}: {archive.stat().st_size / 1e6:.1f} MB")
    made, missing = wheels.make_all(options.versions, options.machines, (), DIST)
    for target, wheel in made.items():
        check_download(target, wheel, DIST)
        size = wheel.stat().st_size / 1e6
        said.append(f"{wheel.name}: {size:.1f} MB, {wheels.check(wheel, target)}")
    said += [f"CPython {version}: no wheel ({why})" for version, why in missing.items()]
    if not options.no_try:
        own = {target.version: wheel for target, wheel in made.items() if wheels.is_own(target)}
        said += [f"tried in {where}: {described(found)}" for where, found in try_all(own).items()]
    said += write_sums(DIST)
    said.append(f"nothing was uploaded: twine upload {DIST}/*.whl {archive} would do that")
    return said


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dirty", action="store_true", help="a work tree with changes will do")
    parser.add_argument("--keep", action="store_true", help="keep wheels of other versions in dist")
    parser.add_argument("--versions", nargs="+", choices=RELEASES, default=[*RELEASES])
    parser.add_argument("--machines", nargs="+", choices=CLASSIFIERS, default=[*CLASSIFIERS])
    parser.add_argument("--no-try", action="store_true", help="build and check, install none")
    try:
        said = release(parser.parse_args(arguments))
    except Failed as failed:
        announce(f"failed: {failed}")
        return 1
    (DIST / "RELEASE.txt").write_text("".join(f"{line}\n" for line in said))
    print("\n".join(said))
    return 0


if __name__ == "__main__":
    sys.exit(main())
