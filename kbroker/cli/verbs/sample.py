"""``kbroker sample``: configuration files, a unit for systemd and a Containerfile to begin with.

A wheel has them in ``kbroker/samples``; in a checkout they are in ``config``.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from pathlib import Path

import kbroker
from kbroker.cli.arguments import Action, CommandFailed, Usage, nearest

# File -> what it is.
SAMPLES = {
    "server.properties": "the settings of a broker that matter most, explained",
    "dev.properties": "settings for development and tests: small and quick",
    "zookeeper.properties": "a ZooKeeper for a cluster on this machine",
    "kbroker.service": "a unit for systemd",
    "Containerfile": "an image for podman and docker",
    "container-run": "the program that the image starts",
    "compose.yaml": "the same for docker compose",
}
_PROGRAMS = ("container-run",)
_EPILOG = """\
examples:
  kbroker sample                                 what there is
  kbroker sample server.properties               print one
  kbroker sample server.properties --to .        copy it
  kbroker sample --to config                     copy all"""


def _describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="a file; without one, all")
    parser.add_argument(
        "--to", metavar="DIR", help="copy to this directory instead of printing; replaces nothing"
    )


def place() -> Path:
    """Where the samples of this installation are."""
    package = Path(kbroker.__file__).parent
    installed = package / "samples"
    return installed if installed.is_dir() else package.parent / "config"


def read(name: str) -> bytes:
    """The contents of a sample. Raises CommandFailed."""
    path = place() / name
    try:
        return path.read_bytes()
    except OSError as error:
        raise CommandFailed(f"cannot read {path}: {error.strerror}") from error


def _sample(options: argparse.Namespace) -> None:
    for name in options.names:
        if name not in SAMPLES:
            meant = nearest(name, SAMPLES)
            more = f": did you mean {meant!r}?" if meant else f": there are {', '.join(SAMPLES)}"
            raise Usage(f"no sample {name!r}{more}")
    if options.to is not None:
        for path in copy(options.names or SAMPLES, Path(options.to)):
            print(path)
    elif not options.names:
        width = max(map(len, SAMPLES)) + 2
        for name, text in SAMPLES.items():
            print(f"{name:<{width}}{text}")
    else:
        sys.stdout.flush()
        for name in options.names:
            sys.stdout.buffer.write(read(name))


def copy(names: Iterable[str], directory: Path) -> list[Path]:
    """Copy samples; returns the files. Raises CommandFailed before anything is written
    if one exists.
    """
    paths = {directory / name: read(name) for name in names}
    for path in paths:
        if path.exists():
            raise CommandFailed(f"{path} exists already")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for path, contents in paths.items():
            with path.open("xb") as file:
                file.write(contents)
            if path.name in _PROGRAMS:
                os.chmod(path, 0o755)
    except OSError as error:
        raise CommandFailed(f"cannot write to {directory}: {error.strerror}") from error
    return list(paths)


ACTION = Action("print or copy configuration files to begin with", _describe, _sample, _EPILOG)
