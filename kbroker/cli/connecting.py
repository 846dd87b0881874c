"""How the verbs of ``kbroker`` reach a cluster. Imports the client only when it connects."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kbroker.cli.arguments import Failed, Usage, from_environment

if TYPE_CHECKING:
    from kbroker.client.connections.cluster import Cluster

BOOTSTRAP = "localhost:9092"
TIMEOUT_S = 10.0
OWN_SETTINGS = frozenset(
    {"bootstrap.servers", "client.id", "request.timeout.ms", "default.api.timeout.ms"}
)
# How alike a setting must be for being a slip of the pen: ssl.key.location and ssl.ca.location are
# not.
_NEAR = 0.9


def add_connection(parser: argparse.ArgumentParser) -> None:
    """The arguments that say which cluster, and how to log in there."""
    parser.add_argument(
        "-b",
        "--bootstrap-server",
        default=from_environment("--bootstrap-server", str, ""),
        metavar="HOST:PORT[,...]",
        help="brokers to connect to (KBROKER_BOOTSTRAP_SERVER, or bootstrap.servers of "
        f"--command-config, or {BOOTSTRAP})",
    )
    parser.add_argument(
        "--command-config",
        default=from_environment("--command-config", str, ""),
        metavar="FILE",
        help="a properties file with settings of a client, such as security.protocol "
        "(KBROKER_COMMAND_CONFIG, or ~/.config/kbroker/client.properties if there is one)",
    )
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=from_environment("--timeout", seconds, TIMEOUT_S),
        metavar="SECONDS",
        help=f"how long to wait for the brokers (KBROKER_TIMEOUT, or {TIMEOUT_S:g})",
    )


def seconds(text: str) -> float:
    """Raises ArgumentTypeError."""
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
    from kbroker.client.connections.cluster import Cluster
    from kbroker.client.errors import ClientError, SettingRefused
    from kbroker.protocol.primitives import EncodeError

    options = client_settings(found)
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
    except EncodeError as error:
        raise Failed(f"the brokers are too old for this: {error}") from error


def client_settings(found: argparse.Namespace) -> dict[str, str]:
    """The settings of the file and the addresses of the brokers. Raises Usage."""
    options = _settings(found.command_config)
    options["bootstrap.servers"] = (
        found.bootstrap_server or options.get("bootstrap.servers") or BOOTSTRAP
    )
    return options


def _settings(path: str) -> dict[str, str]:
    """The client's settings in a file, or in the user's own if no path is given."""
    given, path = path, path or own_file()
    if not given and not os.path.exists(path):
        return {}
    from kbroker.properties import PropertiesError, read_properties

    said = f"--command-config {path}" if given else path
    try:
        settings = dict(read_properties(path))
    except OSError as error:
        raise Usage(f"{said}: {error.strerror}") from error
    except PropertiesError as error:
        raise Usage(f"{said}: {error}") from error
    for name in settings:
        _check_name(said, name)
    return settings


def own_file() -> str:
    """Where a user's own settings are; there may be no such file."""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.join(home, "kbroker", "client.properties")


def _check_name(said: str, name: str) -> None:
    """Raises Usage for a setting that is nearly one of this client. Others, which a file may have
    for other clients, have no effect.
    """
    from kbroker.client.connections.security import SETTINGS

    known = SETTINGS | OWN_SETTINGS
    if name in known:
        return
    import difflib

    if meant := difflib.get_close_matches(name, known, n=1, cutoff=_NEAR):
        raise Usage(f"{said}: no setting {name!r}; did you mean {meant[0]}?")
