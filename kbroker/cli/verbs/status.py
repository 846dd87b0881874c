"""``kbroker status``: the brokers of a cluster, and what they have."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from kbroker.cli.arguments import Action, CommandFailed, add_format, printed_document, table_text
from kbroker.cli.cluster_text import missing_lines, unreachable_lines
from kbroker.cli.connecting import add_connection, connected
from kbroker.cli.verbs.top import add_choice, one_board
from kbroker.wording import counted

# The time of which ``--local`` shows rates.
LOCAL_S = 1.0
_COLUMNS = {
    "broker": "BROKER",
    "address": "ADDRESS",
    "rack": "RACK",
    "leads": "LEADS",
    "replicas": "REPLICAS",
    "controller": "CONTROLLER",
}
_EPILOG = """\
Exit code 1 while a broker is missing that has replicas, or does not answer, there is no controller,
or partitions have no leader; with --local, while this broker is not well."""


def _describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--local", action="store_true",
        help="show the processes, topics, clients and groups of the broker on this machine "
        "instead, as kbroker top does; works while it is stuck",
    )  # fmt: skip
    add_choice(parser)
    add_format(parser)
    add_connection(parser)


def _status(options: argparse.Namespace) -> None:
    if options.local or options.pid is not None or options.address is not None:
        _show_local(options)
        return
    with connected(options) as cluster:
        from kbroker.client.admin.cluster import summarize_cluster
        from kbroker.diagnosis.examination import missing_facts, unreachable

        state = summarize_cluster(cluster)
        missing = missing_facts(state)
        away = unreachable(cluster, state)
    document = {
        "cluster_id": state.cluster_id,
        "controller": state.controller,
        "topics": state.topics,
        "partitions": state.partitions,
        "offline_partitions": len(state.offline),
        "under_replicated_partitions": len(state.under_replicated),
        "brokers": [
            {
                "broker": row.node,
                "address": f"{row.host}:{row.port}",
                "rack": row.rack,
                "leads": row.leads,
                "replicas": row.replicas,
                "controller": row.node == state.controller,
            }
            for row in state.brokers
        ],
        "unreachable_brokers": [{"address": one.address, "why": one.why} for one in away],
        "missing_brokers": [
            {
                "broker": one.node,
                "address": one.address,
                "since_ms": one.since_ms,
                "offline_partitions": one.offline,
                "under_replicated_partitions": one.under_replicated,
            }
            for one in missing
        ],
    }
    if options.output == "table":
        print(_text(document))
    else:
        printed_document(options.output, document)
    said = missing_lines(missing) + unreachable_lines(away)
    if state.controller is None:
        said.append("no broker is the controller")
    if state.offline:
        has = "has" if len(state.offline) == 1 else "have"
        said.append(f"{counted(len(state.offline), 'partition')} {has} no leader")
    if said:
        raise CommandFailed("\n".join([*said, "kbroker doctor says what to do"]))


def _show_local(options: argparse.Namespace) -> None:
    document = one_board(options, LOCAL_S)
    bad = [row for row in document["findings"] if row["severity"] == "critical"]
    if options.output == "table":
        from kbroker.cli.local.tables import board_text

        print(board_text(document))
    else:
        printed_document(options.output, document)
    if bad:
        raise CommandFailed("; ".join(f"{row['subject']}: {row['what']}" for row in bad))


def _text(document: Mapping[str, Any]) -> str:
    rows = [
        {**row, "controller": "yes" if row["controller"] else None} for row in document["brokers"]
    ]
    topics = counted(document["topics"], "topic")
    partitions = counted(document["partitions"], "partition")
    return (
        f"cluster {document['cluster_id'] or '-'}: {topics}, "
        f"{partitions}, {document['offline_partitions']} offline, "
        f"{document['under_replicated_partitions']} under-replicated\n{table_text(_COLUMNS, rows)}"
    )


ACTION = Action("show the brokers and what they have", _describe, _status, _EPILOG)
