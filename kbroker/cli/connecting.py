"""How the verbs of ``kbroker`` reach a cluster. Imports the client only when it connects."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kbroker.cli.arguments import CommandFailed, Usage, from_environment, seconds_from

if TYPE_CHECKING:
    from kbroker.client.connections.cluster import Cluster

BOOTSTRAP = "localhost:9092"
TIMEOUT_S = 10.0
timeout_seconds = seconds_from(0.001, 999_999)
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
        default="",
        metavar="HOST:PORT[,...]",
        help="brokers to connect to (KBROKER_BOOTSTRAP_SERVER, or bootstrap.servers of "
        f"--command-config, or {BOOTSTRAP})",
    )
    parser.add_argument(
        "--command-config",
        default="",
        metavar="FILE",
        help="a properties file with settings of a client, such as security.protocol "
        "(KBROKER_COMMAND_CONFIG, or ~/.config/kbroker/client.properties if there is one)",
    )
    parser.add_argument(
        "--profile",
        default="",
        metavar="PROFILE",
        help="instead, the settings of a profile of kbroker profile (KBROKER_PROFILE, or the one "
        "in use)",
    )
    parser.add_argument(
        "--timeout",
        type=timeout_seconds,
        default=from_environment("--timeout", timeout_seconds, TIMEOUT_S),
        metavar="SECONDS",
        help=f"how long to wait for the brokers (KBROKER_TIMEOUT, or {TIMEOUT_S:g})",
    )


@contextmanager
def connected(arguments: argparse.Namespace) -> Iterator[Cluster]:
    """The cluster; what its brokers reject, and that there are none, is raised as CommandFailed."""
    from kbroker.client.connections.cluster import Cluster
    from kbroker.client.errors import ClientError, SettingRefused
    from kbroker.protocol.primitives import EncodeError

    options = client_settings(arguments)
    addresses = options["bootstrap.servers"].count(",") + 1
    try:
        cluster = Cluster.from_options(
            options,
            # One address that does not respond leaves time for the others.
            request_timeout=arguments.timeout / addresses,
            deadline=arguments.timeout,
        )
        with cluster:
            yield cluster
    except SettingRefused as error:
        raise Usage(str(error)) from error
    except ClientError as error:
        raise CommandFailed(str(error)) from error
    except EncodeError as error:
        raise CommandFailed(f"the brokers are too old for this: {error}") from error


def client_settings(arguments: argparse.Namespace) -> dict[str, str]:
    """The settings of file or profile, and the addresses of the brokers. Raises Usage."""
    options = _settings(arguments)
    said = options.get("bootstrap.servers", "")
    options["bootstrap.servers"] = (
        arguments.bootstrap_server
        or (said if arguments.profile else "")
        or os.environ.get("KBROKER_BOOTSTRAP_SERVER", "")
        or said
        or BOOTSTRAP
    )
    return options


def _settings(options: argparse.Namespace) -> dict[str, str]:
    """Options come before variables, and these before what a user has chosen for all commands."""
    if options.command_config and options.profile:
        raise Usage("--command-config or --profile, not both")
    if options.command_config:
        return read_settings(options.command_config, f"--command-config {options.command_config}")
    if options.profile:
        return _of_profile(options.profile)
    if path := os.environ.get("KBROKER_COMMAND_CONFIG", ""):
        return read_settings(path, f"--command-config {path}")
    if name := os.environ.get("KBROKER_PROFILE", ""):
        return _of_profile(name)
    # Whoever has no profiles does not wait for their module.
    if os.path.exists(os.path.join(os.path.dirname(own_file()), "profile")):
        from kbroker.cli import profiles

        if name := profiles.current() or "":
            return _of_profile(name)
    path = own_file()
    return read_settings(path, path) if os.path.exists(path) else {}


def _of_profile(name: str) -> dict[str, str]:
    from kbroker.cli import profiles

    settings = profiles.read(name)
    for setting in settings:
        check_name(f"profile {name}", setting)
    return settings


def read_settings(path: str, said: str) -> dict[str, str]:
    """The client's settings in a file. said: what the file is called. Raises Usage."""
    from kbroker.properties import PropertiesError, read_properties

    try:
        settings = dict(read_properties(path))
    except OSError as error:
        raise Usage(f"{said}: {error.strerror}") from error
    except PropertiesError as error:
        raise Usage(f"{said}: {error}") from error
    for name in settings:
        check_name(said, name)
    return settings


def own_file() -> str:
    """Where a user's own settings are; there may be no such file."""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.join(home, "kbroker", "client.properties")


def check_name(said: str, name: str) -> None:
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
