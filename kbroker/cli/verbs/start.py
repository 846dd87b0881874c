"""``kbroker start``, and ``kbroker`` alone: a broker for this machine, with its data in the user's
data directory.
"""

from __future__ import annotations

import argparse
import os
import sys

from kbroker.cli.arguments import Action, Exit, Failed

LISTENER = "PLAINTEXT://localhost:9092"
_EPILOG = """\
Without a configuration file, only programs on this machine can connect (localhost:9092), and the
data is in ~/.local/share/kbroker; the first member of a group does not wait for others
(group.initial.rebalance.delay.ms=0). kbroker-supervisor runs a broker with nothing but what its
configuration file says."""


def _describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-c", "--config", metavar="FILE", help="a server.properties file, instead of the defaults"
    )
    parser.add_argument(
        "-d",
        "--data",
        metavar="DIR",
        help="where the data is (KBROKER_DATA, or ~/.local/share/kbroker)",
    )
    parser.add_argument(
        "--override",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of the broker; may be repeated",
    )


def data_directory(given: str | None = None) -> str:
    """Where a user's broker keeps its data."""
    if given or (given := os.environ.get("KBROKER_DATA")):
        return os.path.abspath(given)
    home = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return os.path.join(home, "kbroker")


def arguments(found: argparse.Namespace) -> list[str]:
    """Those of ``kbroker-supervisor``. Creates the data directory. Raises Failed."""
    words = []
    if found.config:
        words += ["--config", found.config]
    if not found.config or found.data:
        place = data_directory(found.data)
        try:
            os.makedirs(place, mode=0o700, exist_ok=True)
        except OSError as error:
            raise Failed(f"cannot create {place}: {error.strerror}") from error
        words += ["--override", f"log.dirs={place}"]
    if not found.config:
        words += ["--override", f"listeners={LISTENER}"]
        # As in config/server.properties: whoever reads alone does not wait for others.
        words += ["--override", "group.initial.rebalance.delay.ms=0"]
    for text in found.override:
        words += ["--override", text]
    return words


def _start(found: argparse.Namespace) -> None:
    words = arguments(found)
    from kbroker.cli import start

    sys.stdout.flush()
    raise Exit(start.main(words))


ACTION = Action("run a broker with its data in your data directory", _describe, _start, _EPILOG)
