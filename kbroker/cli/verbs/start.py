"""``kbroker start``, and ``kbroker`` alone: a broker for this machine, with its data in the user's
data directory.
"""

from __future__ import annotations

import argparse
import os
import sys

from kbroker.cli import environment
from kbroker.cli.arguments import Action, CommandFailed, Exit, Usage

LISTENER = "PLAINTEXT://localhost:9092"
_EPILOG = """\
Without a configuration file, only programs on this machine can connect (localhost:9092), and the
data is in ~/.local/share/kbroker; the first member of a group does not wait for others
(group.initial.rebalance.delay.ms=0). kbroker-supervisor runs a broker with nothing but what its
configuration file says.

With --environment, settings are what the variables KAFKA_* say, as in a container of the image
apache/kafka: KAFKA_LISTENERS is listeners; _ stands for a dot, __ for _ and ___ for a hyphen."""


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
    parser.add_argument(
        "--environment", action="store_true",
        help="take the settings from variables named as those of the image apache/kafka",
    )  # fmt: skip


def data_directory(given: str | None = None) -> str:
    """Where a user's broker keeps its data."""
    if given or (given := os.environ.get("KBROKER_DATA")):
        return os.path.abspath(given)
    home = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return os.path.join(home, "kbroker")


def arguments(options: argparse.Namespace) -> list[str]:
    """Those of ``kbroker-supervisor``. Creates the data directory. Raises CommandFailed, Usage."""
    if options.environment:
        return _of_environment(options)
    words = []
    if options.config:
        words += ["--config", options.config]
    if not options.config or options.data:
        place = data_directory(options.data)
        try:
            os.makedirs(place, mode=0o700, exist_ok=True)
        except OSError as error:
            raise CommandFailed(f"cannot create {place}: {error.strerror}") from error
        words += ["--override", f"log.dirs={place}"]
    if not options.config:
        words += ["--override", f"listeners={LISTENER}"]
        # As in config/server.properties: whoever reads alone does not wait for others.
        words += ["--override", "group.initial.rebalance.delay.ms=0"]
    for text in options.override:
        words += ["--override", text]
    return words


def _of_environment(options: argparse.Namespace) -> list[str]:
    """Those of a container. Raises Usage."""
    if options.config:
        raise Usage("--environment and --config exclude each other: mount the file at "
                    f"{environment.MOUNTED_FILE}")  # fmt: skip
    words = environment.arguments(os.environ, options.data and os.path.abspath(options.data))
    for text in options.override:
        words += ["--override", text]
    environment.give_cluster_id(os.environ, words)
    for line in environment.ready_lines(environment.settings_of(os.environ)):
        words += ["--ready-line", line]
    return words


def _start(options: argparse.Namespace) -> None:
    words = arguments(options)
    from kbroker.cli import start

    sys.stdout.flush()
    raise Exit(start.main(words))


ACTION = Action("run a broker with its data in your data directory", _describe, _start, _EPILOG)
