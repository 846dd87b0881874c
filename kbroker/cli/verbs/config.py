"""``kbroker config``: the settings of topics, brokers, groups and client metrics."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from kbroker.cli.arguments import Action, CommandFailed, Usage, add_format, printed
from kbroker.cli.config_arguments import check_name, pairs
from kbroker.cli.connecting import add_connection, connected

if TYPE_CHECKING:
    from kbroker.client.connections.cluster import Cluster

KINDS = ("topic", "broker", "group", "client-metrics")
ALL_BROKERS = "default"
_HIDDEN = "(hidden)"
_COLUMNS = {"name": "NAME", "value": "VALUE", "source": "SOURCE"}
_EPILOG = f"""\
The name of a broker is its id, or {ALL_BROKERS!r} for what holds for all brokers.

examples:
  kbroker config get topic orders
  kbroker config get broker 0 log.retention.ms
  kbroker config set topic orders retention.ms=86400000 cleanup.policy=compact,delete
  kbroker config unset broker {ALL_BROKERS} log.retention.ms"""


def _describe_resource(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", choices=KINDS, metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("name", metavar="NAME", help="of the topic, the broker, ...")


def _resource(options: argparse.Namespace) -> tuple[int, str]:
    """The type and the name on the wire. Raises Usage."""
    from kbroker.client.admin.configs import KINDS as NUMBERS

    name: str = options.name
    if not name:
        raise Usage("the name is empty")
    if options.kind == "broker":
        name = "" if name == ALL_BROKERS else name
        if name and not (name.isascii() and name.isdigit() and len(name) < 10):
            raise Usage(f"broker {name!r}: write its id, or {ALL_BROKERS!r} for all brokers")
    return NUMBERS[options.kind], name


# -- get


def _describe_get(parser: argparse.ArgumentParser) -> None:
    _describe_resource(parser)
    parser.add_argument("setting", nargs="*", metavar="SETTING", help="only these")
    parser.add_argument(
        "-a", "--all", action="store_true", help="also settings that were not set for it"
    )
    add_format(parser)
    add_connection(parser)


def _get(options: argparse.Namespace) -> None:
    kind, name = _resource(options)
    for setting in options.setting:
        check_name(options.kind, setting)
    with connected(options) as cluster:
        from kbroker.client.admin.configs import describe_configs

        _check_broker(cluster, options.kind, name)
        described = describe_configs(cluster, kind, [name], options.setting or None)
    settings = described.get(name)
    if not isinstance(settings, list):
        raise CommandFailed(
            str(settings or f"the brokers know nothing of {options.kind} {options.name}")
        )
    rows: list[dict[str, Any]] = [
        {
            "name": row.name,
            "value": _HIDDEN if row.sensitive else row.value,
            "source": row.source,
            "read_only": row.read_only,
        }
        for row in settings
        if row.own or options.all or options.setting
    ]
    what = f"no settings of {options.kind} {options.name} were set; --all shows all"
    printed(options.output, _COLUMNS, rows, what)


def _check_broker(cluster: Cluster, kind: str, name: str) -> None:
    """Raises CommandFailed at once for a broker that is not there: a request would be retried."""
    if kind != "broker" or not name:
        return
    nodes = cluster.nodes()
    if int(name) not in nodes:
        raise CommandFailed(f"no broker {name}: there are {', '.join(map(str, nodes))}")


# -- set and unset


def _describe_set(parser: argparse.ArgumentParser) -> None:
    _describe_resource(parser)
    parser.add_argument("setting", nargs="+", metavar="SETTING=VALUE")
    parser.add_argument("--dry-run", action="store_true", help="only check whether it could")
    add_connection(parser)


def _set(options: argparse.Namespace) -> None:
    _change(options, {**pairs(options.kind, options.setting)})


def _describe_unset(parser: argparse.ArgumentParser) -> None:
    _describe_resource(parser)
    parser.add_argument("setting", nargs="+", metavar="SETTING")
    parser.add_argument("--dry-run", action="store_true", help="only check whether it could")
    add_connection(parser)


def _unset(options: argparse.Namespace) -> None:
    for name in options.setting:
        check_name(options.kind, name)
    _change(options, dict.fromkeys(options.setting))


def _change(options: argparse.Namespace, changes: dict[str, str | None]) -> None:
    kind, name = _resource(options)
    with connected(options) as cluster:
        from kbroker.client.admin.configs import alter_configs

        _check_broker(cluster, options.kind, name)
        alter_configs(cluster, kind, name, changes, validate_only=options.dry_run)
    what = "all brokers" if options.kind == "broker" and not name else f"{options.kind} {name}"
    word = "could change" if options.dry_run else "changed"
    print(f"{word} {what}: {', '.join(sorted(changes))}")


ACTIONS = {
    "get": Action("show settings", _describe_get, _get, _EPILOG),
    "set": Action("set settings; others stay", _describe_set, _set, _EPILOG),
    "unset": Action("let settings have their default again", _describe_unset, _unset, _EPILOG),
}
