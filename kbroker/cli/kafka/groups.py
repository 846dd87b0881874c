"""``kafka-groups``: the groups of a cluster, of all types."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.cli.kafka.options import Given, Option, WrongUse, flag, valued
from kbroker.cli.kafka.running import Tool, ToolFailed, connected

if TYPE_CHECKING:
    from kbroker.client.admin.groups import ListedGroup

_TYPES = {"classic": "Classic", "consumer": "Consumer", "share": "Share", "streams": "Streams"}
_KINDS = ("consumer", "share", "streams")
# The narrowest that a column is.
_WIDTH = 20
_TITLE = "This tool lists groups of all types."

OPTIONS: tuple[Option, ...] = (
    valued("bootstrap-server", "server to connect to", "Brokers to connect to; required.",
           required=True),
    valued("command-config", "command config property file", "A file with settings of a client."),
    flag("list", "List the groups."),
    valued("group-type", "type", "Only groups of this type: classic, consumer, share or streams."),
    valued("protocol", "protocol", "Only groups of this protocol type, such as consumer."),
    flag("consumer", "Only groups of consumers."),
    flag("share", "Only share groups."),
    flag("streams", "Only streams groups."),
)  # fmt: skip


def _run(given: Given) -> int:
    if "list" not in given:
        raise WrongUse("Command must include exactly one action: --list.")
    kind = given.one("group-type")
    if kind is not None and kind.lower() not in _TYPES:
        raise ToolFailed("--group-type must be a valid group type.")
    for name in _KINDS:
        others = [other for other in _KINDS if other != name]
        given.exclude(name, sorted(["group-type", "protocol", *others]))
    from kbroker.cli.kafka.java_words import hash_order, java_message, string_hash
    from kbroker.client.admin.groups import list_groups
    from kbroker.client.errors import ClientError

    try:
        with connected(given.one("bootstrap-server"), given.one("command-config")) as cluster:
            known = {row.group: row for row in list_groups(cluster)}
    except ClientError as error:
        print(f"Error while executing groups command : {java_message(error)}")
        return 1
    rows = [known[name] for name in hash_order(known, string_hash)]
    _print([row for row in rows if _is_meant(row, given)])
    return 0


def _is_meant(row: ListedGroup, given: Given) -> bool:
    kind, protocol = given.one("group-type"), given.one("protocol")
    if kind is not None:
        return row.kind.lower() == kind.lower() and protocol in (None, row.protocol)
    if protocol is not None:
        return bool(row.protocol == protocol)
    if "consumer" in given:
        return row.protocol in ("consumer", "") or row.kind.lower() == "consumer"
    return all(name not in given or row.kind.lower() == name for name in ("share", "streams"))


def _print(rows: list[ListedGroup]) -> None:
    texts = [(row.group, _TYPES.get(row.kind.lower(), row.kind), row.protocol) for row in rows]
    width = max([_WIDTH, *(len(text) for row in texts for text in row)])
    print(" ".join(f"{text:<{width}}" for text in ("GROUP", "TYPE", "PROTOCOL")))
    for row in texts:
        print("".join(f"{text:<{width}} " for text in row))


TOOL = Tool(_TITLE, OPTIONS, _run)
