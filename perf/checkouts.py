"""Builds of earlier revisions, each made once: for comparisons with them, and upgrades from them.

They are in ``.cache/builds/<commit>``, with a virtual environment of their own, into which pip
installs what that revision needs. Remove the folder to build one again.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from perf.kafka_distribution import ROOT

BUILDS = ROOT / ".cache" / "builds"
COMMIT_CHARS = 8
BUILD_HELP = "a revision, or a checkout that is built"
COMPLETE = ".complete"  # a file, written when everything else is there


class RevisionMissing(Exception):
    """The repository has no such revision: it may be a shallow clone."""


def built(revision: str) -> Path:
    """The checkout of that revision, with its extensions compiled; the first call takes minutes.

    Processes that ask at the same time wait for each other. Raises RevisionMissing, or
    CalledProcessError, whose output says why it cannot be built.
    """
    commit = _commit(revision)
    checkout = BUILDS / commit
    BUILDS.mkdir(parents=True, exist_ok=True)
    with (BUILDS / f"{commit}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (checkout / COMPLETE).exists():
            shutil.rmtree(checkout, ignore_errors=True)
            checkout.mkdir()
            _extract(commit, checkout)
            _build(checkout)
            (checkout / COMPLETE).touch()
    return checkout


def checkout_of(text: str, refuse: Callable[[str], NoReturn]) -> Path:
    """The folder of that name, or the build of that revision. refuse: ends the program, as there is
    neither.
    """
    if Path(text).is_dir():
        return Path(text).resolve()
    try:
        return built(text)
    except RevisionMissing as error:
        refuse(f"{text} is no checkout, and {error}")


def python_of(checkout: Path) -> str:
    """The interpreter of a checkout's environment; this one, if it has none."""
    own = checkout / ".venv" / "bin" / "python"
    return str(own) if own.exists() else sys.executable


def _commit(revision: str) -> str:
    command = ["git", "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise RevisionMissing(f"there is no revision {revision} in {ROOT}")
    return done.stdout.strip()[:COMMIT_CHARS]


def _extract(commit: str, checkout: Path) -> None:
    archive = subprocess.Popen(["git", "archive", commit], cwd=ROOT, stdout=subprocess.PIPE)
    try:
        subprocess.run(["tar", "-x"], cwd=checkout, stdin=archive.stdout, check=True)
    finally:
        archive.wait()
    if archive.returncode != 0:
        raise subprocess.CalledProcessError(archive.returncode, archive.args)


def _build(checkout: Path) -> None:
    """By the revision's own Makefile, whatever make or environment this process runs in."""
    inherited = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "PYTHONPATH", "VIRTUAL_ENV")
    environment = {name: text for name, text in os.environ.items() if name not in inherited}
    command = ["make", f"PYTHON={sys.executable}", "build"]
    subprocess.run(
        command, cwd=checkout, env=environment, check=True, capture_output=True, text=True
    )
