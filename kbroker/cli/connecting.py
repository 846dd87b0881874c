"""How the verbs of ``kbroker`` reach a cluster. Imports the client only when it connects."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kbroker.cli.arguments import Failed, Usage

if TYPE_CHECKING:
    from kbroker.client.cluster import Cluster

BOOTSTRAP = "localhost:9092"
TIMEOUT_S = 10.0


def add_connection(parser: argparse.ArgumentParser) -> None:
    """The arguments that say which cluster, and how to log in there."""
    parser.add_argument(
        "--bootstrap-server",
        metavar="HOST:PORT[,...]",
        help=f"brokers to connect to (bootstrap.servers of --command-config, or {BOOTSTRAP})",
    )
    parser.add_argument(
        "--command-config",
        metavar="FILE",
        help="a properties file with settings of a client, such as security.protocol",
    )
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=TIMEOUT_S,
        metavar="SECONDS",
        help=f"how long to wait for the brokers ({TIMEOUT_S:g})",
    )


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return number


@contextmanager
def connected(found: argparse.Namespace) -> Iterator[Cluster]:
    """The cluster; what its brokers reject, and that there are none, is raised as Failed."""
    from kbroker.client.cluster import Cluster
    from kbroker.client.errors import ClientError, SettingRefused

    options = _settings(found.command_config)
    options["bootstrap.servers"] = (
        found.bootstrap_server or options.get("bootstrap.servers") or BOOTSTRAP
    )
    addresses = options["bootstrap.servers"].count(",") + 1
    try:
        cluster = Cluster.from_options(
            options,
            # One address that does not respond leaves time for the others.
            request_timeout=found.timeout / addresses,
            deadline=found.timeout,
        )
        with cluster:
            yield cluster
    except SettingRefused as error:
        raise Usage(str(error)) from error
    except ClientError as error:
        raise Failed(str(error)) from error


def _settings(path: str | None) -> dict[str, str]:
    if path is None:
        return {}
    from kbroker.properties import PropertiesError, read_properties

    try:
        return dict(read_properties(path))
    except OSError as error:
        raise Usage(f"--command-config {path}: {error.strerror}") from error
    except PropertiesError as error:
        raise Usage(f"--command-config {path}: {error}") from error
