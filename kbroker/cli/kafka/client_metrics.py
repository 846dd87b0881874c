"""``kafka-client-metrics``: which metrics clients push to the brokers (KIP-714)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kbroker.cli.kafka.options import Given, Option, WrongUse, flag, valued
from kbroker.cli.kafka.running import Tool, ToolFailed, connected
from kbroker.uuids import new_uuid, uuid_text

if TYPE_CHECKING:
    from kbroker.client.connections.cluster import Cluster

_ACTIONS = ("list", "describe", "alter", "delete")
_TITLE = "This tool lists, describes, changes and deletes subscriptions to metrics of clients."
_OF_ALTER = ("interval", "match", "metrics")
_INTEGER = re.compile(r"[-+]?[0-9]+")

OPTIONS: tuple[Option, ...] = (
    valued("bootstrap-server", "server to connect to", "Brokers to connect to; required."),
    valued("command-config", "command config property file", "A file with settings of a client."),
    flag("list", "List the subscriptions."),
    flag("describe", "Print the settings of one, or of all."),
    flag("alter", "Create a subscription, or change it."),
    flag("delete", "Delete a subscription."),
    valued("name", "name", "Of the subscription."),
    flag("generate-name", "With --alter, a new name."),
    valued("interval", "push interval", "How often clients push, in ms; empty: the default."),
    valued("match", "k1=v1,k2=v2", "Which clients, as name=regular expression; empty: all.",
           separator=","),
    valued("metrics", "m1,m2", "Prefixes of the names of metrics; empty: none.", separator=","),
)  # fmt: skip


def _run(given: Given) -> int:
    actions = [name for name in _ACTIONS if name in given]
    if len(actions) != 1:
        raise WrongUse(
            "Command must include exactly one action: --alter, --delete, --describe or --list."
        )
    (action,) = actions
    _check(given, action)
    from kbroker.cli.kafka.java_words import java_message
    from kbroker.client.errors import ClientError

    try:
        with connected(given.one("bootstrap-server"), given.one("command-config")) as cluster:
            _DO[action](given, cluster)
    except ClientError as error:
        print(f"Error while executing client metrics command : {java_message(error)}")
        return 1
    return 0


def _check(given: Given, action: str) -> None:
    """Raises WrongUse, ToolFailed."""
    if "bootstrap-server" not in given:
        raise ToolFailed("--bootstrap-server must be specified.")
    if action != "alter":
        also = ("name",) if action == "list" else ()
        given.exclude(action, (*also, "generate-name", *_OF_ALTER))
    elif ("name" in given) == ("generate-name" in given):
        raise ToolFailed("One of --name or --generate-name must be specified with --alter.")
    interval = given.one("interval")
    if interval and not _INTEGER.fullmatch(interval):
        raise ToolFailed("Invalid interval value. Enter an integer, or leave empty to reset.")
    if action == "delete" and "name" not in given:
        raise ToolFailed("A client metrics resource name must be specified with --delete.")


def _list(given: Given, cluster: Cluster) -> None:
    print("\n".join(_names(cluster)))


def _describe(given: Given, cluster: Cluster) -> None:
    name = given.one("name")
    names = _names(cluster)
    if name is not None and name not in names:
        print(f"The client metric resource {name} doesn't exist and doesn't have dynamic config.")
        return
    for each in names if name is None else [name]:
        print(f"Client metrics configs for {each} are:")
        for key, value in _settings(cluster, each).items():
            print(f"  {key}={value}")


def _alter(given: Given, cluster: Cluster) -> None:
    from kbroker.client.admin.configs import CLIENT_METRICS, alter_configs

    name = given.one("name") or uuid_text(new_uuid())
    settings = {"interval": "interval.ms", "match": "match", "metrics": "metrics"}
    changes = {
        key: ",".join(given.all(word)) or None for word, key in settings.items() if word in given
    }
    alter_configs(cluster, CLIENT_METRICS, name, changes)
    print(f"Altered client metrics config for {name}.")


def _delete(given: Given, cluster: Cluster) -> None:
    from kbroker.client.admin.configs import CLIENT_METRICS, alter_configs

    name = given.one("name")
    changes: dict[str, str | None] = dict.fromkeys(_settings(cluster, name))
    alter_configs(cluster, CLIENT_METRICS, name, changes)
    print(f"Deleted client metrics config for {name}.")


def _names(cluster: Cluster) -> list[str]:
    from kbroker.client.admin.configs import CLIENT_METRICS, list_resources

    return list_resources(cluster, CLIENT_METRICS)


def _settings(cluster: Cluster, name: str) -> dict[str, str]:
    from kbroker.client.admin.configs import CLIENT_METRICS, describe_configs

    settings = describe_configs(cluster, CLIENT_METRICS, [name])[name]
    if isinstance(settings, Exception):
        raise settings
    return {row.name: row.value or "" for row in settings}


_DO = {"list": _list, "describe": _describe, "alter": _alter, "delete": _delete}

TOOL = Tool(_TITLE, OPTIONS, _run)
