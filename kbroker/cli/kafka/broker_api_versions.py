"""``kafka-broker-api-versions``: the versions of requests that brokers take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.cli.kafka.options import Given, valued
from kbroker.cli.kafka.running import BOOTSTRAP, Tool, connected

if TYPE_CHECKING:
    from kbroker.client.connections.connection import Connection

OPTIONS = (
    BOOTSTRAP._replace(argument="server(s) to use for bootstrapping"),
    valued("command-config", "command config property file", "A file with settings of a client."),
)
# What Java's clients do not send, and therefore do not name where a broker has it not.
# COMPAT: of Kafka 4's client, which has left them out or has others of them; no client sends them.
_OF_KAFKA_4 = {4: (0, -1), 5: (0, -1), 6: (0, -1), 7: (0, -1), 56: (2, 3)}
_BETWEEN_BROKERS = frozenset({4, 5, 6, 7, 52, 53, 54, 55, 56, 58, 59, 62, 63, 64, 67, 70, 73, 82})


def _run(given: Given) -> int:
    given.require("bootstrap-server")
    with connected(given.one("bootstrap-server"), given.one("command-config")) as cluster:
        from kbroker.client.admin.cluster import summarize_cluster
        from kbroker.client.errors import ClientError

        for row in summarize_cluster(cluster).brokers:
            rack = "null" if row.rack is None else row.rack
            said = f"{row.host}:{row.port} (id: {row.node} rack: {rack} isFenced: false) -> "
            try:
                connection = cluster.connection(row.node, cluster.retry("versions"))
                print(said + _versions(connection))
            except ClientError as error:
                print(f"{said}ERROR: {error}")
    return 0


def _versions(connection: Connection) -> str:
    from kbroker.protocol.api import ApiKey

    known = {int(key): key for key in ApiKey}
    lines = []
    for number in sorted({*known, *connection.versions}):
        name = _name(known[number]) if number in known else "UNKNOWN"
        if number not in connection.versions:
            if number not in _BETWEEN_BROKERS:
                lines.append(f"{name}({number}): UNSUPPORTED")
            continue
        first, last = connection.versions[number]
        shown = f"{first} to {last}" if first < last else f"{first}"
        lines.append(f"{name}({number}): {shown}{_usable(known.get(number), first, last)}")
    joined = ",\n\t".join(lines)
    return f"(\n\t{joined}\n)"


def _usable(key: object, first: int, last: int) -> str:
    from kbroker.protocol.api import ApiKey

    if not isinstance(key, ApiKey):
        return ""
    ours_first, ours_last = _OF_KAFKA_4.get(key, key.versions)
    if last < ours_first:
        return " [unusable: node too old]"
    if first > ours_last:
        return " [unusable: node too new]"
    return f" [usable: {min(last, ours_last)}]"


def _name(key: object) -> str:
    from kbroker.protocol.api import ApiKey

    assert isinstance(key, ApiKey)
    return "".join(part.capitalize() for part in key.name.split("_"))


TOOL = Tool("This tool helps to retrieve broker version information.", OPTIONS, _run)
