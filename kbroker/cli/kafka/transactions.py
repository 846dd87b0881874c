"""``kafka-transactions``: transactions and producers of a cluster, and those that hang."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterable
from typing import TYPE_CHECKING

from kbroker.cli.kafka.parsers import INT, LONG, SHORT, ParsedTool, ToolParser, table
from kbroker.cli.kafka.running import ToolFailed, connected

if TYPE_CHECKING:
    from kbroker.client.admin.transactions import ActiveProducer
    from kbroker.client.batches.offsets import TopicPartition
    from kbroker.client.connections.cluster import Cluster
    from kbroker.client.errors import ClientError

_PRODUCERS = (
    "ProducerId", "ProducerEpoch", "LatestCoordinatorEpoch", "LastSequence", "LastTimestamp",
    "CurrentTransactionStartOffset",
)  # fmt: skip
_TRANSACTION = (
    "CoordinatorId", "TransactionalId", "ProducerId", "ProducerEpoch", "TransactionState",
    "TransactionTimeoutMs", "CurrentTransactionStartTimeMs", "TransactionDurationMs",
    "TopicPartitions",
)  # fmt: skip
_LISTED = ("TransactionalId", "Coordinator", "ProducerId", "TransactionState")
_HANGING = (
    "Topic", "Partition", "ProducerId", "ProducerEpoch", "CoordinatorEpoch", "StartOffset",
    "LastTimestamp", "Duration(min)",
)  # fmt: skip
_MINUTE_MS = 60_000


def _build() -> ToolParser:
    parser = ToolParser(
        prog="kafka-transactions.sh",
        description="Transactions and producers of a cluster, and those that hang.",
    )
    parser.add_argument("--command-config", metavar="FILE", help="a file with client settings")
    parser.add_argument("--bootstrap-server", metavar="host:port", required=True, help="brokers")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    listing = commands.add_parser("list", help="list transactions")
    listing.add_argument("--duration-filter", type=LONG, help="only those open for longer, in ms")
    listing.add_argument("--transactional-id-pattern", help="a regular expression for ids")
    describe = commands.add_parser("describe", help="describe the state of a transactional id")
    describe.add_argument("--transactional-id", required=True, help="the id")
    producers = commands.add_parser("describe-producers", help="describe producers of a partition")
    producers.add_argument("--broker-id", type=INT, help="as this replica knows them")
    producers.add_argument("--topic", required=True, help="the topic")
    producers.add_argument("--partition", type=INT, required=True, help="the partition")
    abort = commands.add_parser("abort", help="abort a transaction that hangs in a partition")
    abort.add_argument("--topic", required=True, help="the topic")
    abort.add_argument("--partition", type=INT, required=True, help="the partition")
    abort.add_argument("--start-offset", type=LONG, help="of the transaction; from Kafka 3.0")
    abort.add_argument("--producer-id", type=LONG, help="before Kafka 3.0")
    abort.add_argument("--producer-epoch", type=SHORT, help="before Kafka 3.0")
    abort.add_argument("--coordinator-epoch", type=INT, help="before Kafka 3.0")
    force = commands.add_parser(
        "forceTerminateTransaction", help="abort the transaction of a transactional id"
    )
    force.add_argument("--transactionalId", required=True, help="the id")
    hanging = commands.add_parser("find-hanging", help="find transactions that hang")
    hanging.add_argument("--broker-id", type=INT, help="only on this broker")
    hanging.add_argument(
        "--max-transaction-timeout",
        type=INT,
        default=15,
        help="only those open for longer, in minutes (default: 15)",
    )
    hanging.add_argument("--topic", help="only in this topic")
    hanging.add_argument("--partition", type=INT, help="only in this partition of it")
    return parser


def _run(given: Namespace) -> None:
    with connected(given.bootstrap_server, given.command_config) as cluster:
        _COMMANDS[given.command](given, cluster)


def _failed(said: str, error: ClientError) -> ToolFailed:
    from kbroker.cli.kafka.java_words import java_message

    return ToolFailed(f"{said}: {java_message(error)}")


def _list(given: Namespace, cluster: Cluster) -> None:
    from kbroker.client.admin.transactions import list_transactions
    from kbroker.client.errors import ClientError

    longer = -1 if given.duration_filter is None else given.duration_filter
    try:
        transactions = list_transactions(
            cluster, longer_than_ms=longer, pattern=given.transactional_id_pattern
        )
    except ClientError as error:
        raise _failed("Failed to list transactions", error) from error
    rows = [
        (row.transactional_id, str(row.coordinator), str(row.producer_id), row.state)
        for row in transactions
    ]
    print(table(_LISTED, rows))


def _describe(given: Namespace, cluster: Cluster) -> None:
    from kbroker.client.admin.transactions import describe_transaction
    from kbroker.client.errors import ClientError

    try:
        row = describe_transaction(cluster, given.transactional_id)
    except ClientError as error:
        said = (
            f"Failed to describe transaction state of transactional-id `{given.transactional_id}`"
        )
        raise _failed(said, error) from error
    started = duration = "None"
    if row.started_ms is not None:
        started, duration = str(row.started_ms), str(_now_ms() - row.started_ms)
    cells = (row.coordinator, row.transactional_id, row.producer_id, row.producer_epoch, row.state,
             row.timeout_ms, started, duration, _joined(row.partitions))  # fmt: skip
    print(table(_TRANSACTION, [tuple(map(str, cells))]))


def _joined(partitions: Iterable[TopicPartition]) -> str:
    from kbroker.cli.kafka.java_words import hash_order, partition_hash

    return ",".join(f"{topic}-{n}" for topic, n in hash_order(partitions, partition_hash))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _describe_producers(given: Namespace, cluster: Cluster) -> None:
    from kbroker.client.admin.transactions import describe_producers
    from kbroker.client.errors import ClientError

    key = given.topic, given.partition
    try:
        producers = describe_producers(cluster, [key], given.broker_id)[key]
    except ClientError as error:
        where = "leader" if given.broker_id is None else f"broker {given.broker_id}"
        said = f"Failed to describe producers for partition {key[0]}-{key[1]} on {where}"
        raise _failed(said, error) from error
    rows = []
    for row in producers:
        cells = (row.producer_id, row.producer_epoch, row.coordinator_epoch, row.last_sequence,
                 row.last_timestamp, row.open_from)  # fmt: skip
        rows.append(tuple(map(str, cells)))
    print(table(_PRODUCERS, rows))


# -- those that hang


def _abort(given: Namespace, cluster: Cluster) -> None:
    from kbroker.client.admin.transactions import abort_in_partition
    from kbroker.client.errors import ClientError

    key = given.topic, given.partition
    if given.start_offset is None:
        if given.producer_id is None:
            raise ToolFailed(
                "The transaction to abort must be identified either with --start-offset (for "
                "brokers on 3.0 or above) or with --producer-id, --producer-epoch, and "
                "--coordinator-epoch (for older brokers)"
            )
        for name in ("producer-epoch", "coordinator-epoch"):
            if getattr(given, name.replace("-", "_")) is None:
                raise ToolFailed(f"Missing required argument --{name}")
        who = given.producer_id, given.producer_epoch, max(given.coordinator_epoch, 0)
    else:
        row = _open_at(cluster, key, given.start_offset)
        who = row.producer_id, row.producer_epoch, max(row.coordinator_epoch, 0)
    try:
        abort_in_partition(cluster, key, *who)
    except ClientError as error:
        said = (
            f"Failed to abort transaction AbortTransactionSpec(topicPartition={key[0]}-{key[1]}, "
            f"producerId={who[0]}, producerEpoch={who[1]}, coordinatorEpoch={who[2]})"
        )
        raise _failed(said, error) from error


def _open_at(cluster: Cluster, key: TopicPartition, offset: int) -> ActiveProducer:
    from kbroker.client.admin.transactions import describe_producers
    from kbroker.client.errors import ClientError

    name = f"{key[0]}-{key[1]}"
    try:
        producers = describe_producers(cluster, [key])[key]
    except ClientError as error:
        raise _failed(f"Failed to validate producer state for partition {name}", error) from error
    for row in producers:
        if row.open_from == offset:
            return row
    raise ToolFailed(
        f"Could not find any open transactions starting at offset {offset} on partition {name}"
    )


def _force(given: Namespace, cluster: Cluster) -> None:
    from kbroker.client.admin.transactions import force_terminate
    from kbroker.client.errors import ClientError

    try:
        force_terminate(cluster, given.transactionalId)
    except ClientError as error:
        said = f"Force abort an ongoing transaction on transactionalId {given.transactionalId}"
        raise _failed(said, error) from error


def _find_hanging(given: Namespace, cluster: Cluster) -> None:
    from kbroker.client.admin.transactions import hanging_transactions
    from kbroker.client.errors import ClientError

    if given.topic is None and given.broker_id is None:
        raise ToolFailed(
            "The `find-hanging` command requires either --topic or --broker-id to limit the scope "
            "of the search"
        )
    if given.partition is not None and given.topic is None:
        raise ToolFailed("The --partition argument requires --topic to be provided")
    try:
        latest_ms = _now_ms() - given.max_transaction_timeout * _MINUTE_MS
        partitions = _partitions(given, cluster)
        hanging = hanging_transactions(cluster, partitions, latest_ms, given.broker_id)
    except ClientError as error:
        raise _failed("Failed to find hanging transactions", error) from error
    rows = []
    for (topic, number), row in hanging:
        minutes = (_now_ms() - row.last_timestamp) // _MINUTE_MS
        cells = (topic, number, row.producer_id, row.producer_epoch, row.coordinator_epoch,
                 row.open_from, row.last_timestamp, minutes)  # fmt: skip
        rows.append(tuple(map(str, cells)))
    print(table(_HANGING, rows))


def _partitions(given: Namespace, cluster: Cluster) -> list[TopicPartition] | None:
    """Where to search; None: everywhere."""
    from kbroker.client.admin.topics import describe_topics

    if given.topic is None:
        return None
    if given.partition is not None:
        return [(given.topic, given.partition)]
    (topic,) = describe_topics(cluster, [given.topic])
    return [
        (topic.name, row.partition)
        for row in topic.partitions
        if given.broker_id is None or given.broker_id in row.replicas
    ]


_COMMANDS = {
    "list": _list,
    "describe": _describe,
    "describe-producers": _describe_producers,
    "abort": _abort,
    "forceTerminateTransaction": _force,
    "find-hanging": _find_hanging,
}
TOOL = ParsedTool(_build, _run, help_code=1)
