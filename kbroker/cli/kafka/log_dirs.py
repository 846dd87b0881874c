"""``kafka-log-dirs``: the log directories of brokers, and the sizes of replicas in them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kbroker.cli.kafka.options import Given, flag, valued
from kbroker.cli.kafka.running import BOOTSTRAP, Tool, ToolFailed, connected

if TYPE_CHECKING:
    from kbroker.client.admin.partitions import LogDir

OPTIONS = (
    BOOTSTRAP._replace(argument="The server(s) to use for bootstrapping"),
    valued("command-config", "Admin client property file", "A file with settings of a client."),
    flag("describe", "Print the log directories; required."),
    valued("topic-list", "Topic list", "Topics with commas; all without it.", default=""),
    valued("broker-list", "Broker list", "Ids of brokers with commas; all without it.", default=""),
)


def _run(given: Given) -> int:
    given.require("bootstrap-server", "describe")
    topics = {name for name in given.one("topic-list").split(",") if name}
    wanted = _nodes(given.one("broker-list"))
    config = given.one("command-config")
    bootstrap = given.one("bootstrap-server")
    with connected(bootstrap, config, client_id="log-dirs-tool") as cluster:
        from kbroker.client.admin.partitions import log_dirs

        present = cluster.nodes()
        if missing := [node for node in wanted if node not in present]:
            raise ToolFailed(
                f"ERROR: The given brokers do not exist from --broker-list: {_listed(missing)}. "
                f"Current existent brokers: {_listed(present)}"
            )
        nodes = _ordered(wanted or present)
        print("Querying brokers for log directories information")
        dirs_by_node = log_dirs(cluster, nodes)
    print(f"Received log directory information from brokers {_listed(nodes)}")
    brokers = [
        {"broker": node, "logDirs": [_log_dir(row, topics) for row in _by_path(dirs_by_node[node])]}
        for node in nodes
    ]
    document = {"brokers": brokers, "version": 1}
    print(json.dumps(document, separators=(",", ":"), ensure_ascii=False))
    return 0


def _nodes(text: str) -> list[int]:
    """Raises ToolFailed."""
    ids = []
    for part in text.split(","):
        if part and not part.isdecimal():
            raise ToolFailed(f'For input string: "{part}"')
        if part:
            ids.append(int(part))
    return _ordered(ids)


def _ordered(nodes: list[int]) -> list[int]:
    from kbroker.cli.kafka.java_words import hash_order

    return hash_order(nodes, lambda node: node)


def _listed(nodes: list[int]) -> str:
    return ",".join(map(str, nodes))


def _by_path(dirs: list[LogDir]) -> list[LogDir]:
    """In Java's order."""
    from kbroker.cli.kafka.java_words import hash_order, string_hash

    known = {each.path: each for each in dirs}
    return [known[path] for path in hash_order(known, string_hash)]


def _log_dir(row: LogDir, topics: set[str]) -> dict[str, Any]:
    from kbroker.cli.kafka.java_words import hash_order, java_class, partition_hash

    keys = [key for key in row.replicas if not topics or key[0] in topics]
    partitions = [
        {
            "partition": f"{key[0]}-{key[1]}",
            "size": replica.size,
            "offsetLag": replica.lag,
            "isFuture": replica.future,
        }
        for key in hash_order(keys, partition_hash)
        for replica in row.replicas[key]
    ]
    error = None
    if row.error is not None and row.error.code is not None:
        error = java_class(row.error.code)
    return {"partitions": partitions, "error": error, "logDir": row.path}


TOOL = Tool("This tool helps to query log directory usage on the specified brokers.", OPTIONS, _run)
