"""``kafka-simple-consumer-shell`` of Kafka 0.8: the records of one replica of a partition."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kbroker.cli.kafka.options import Given, flag, valued
from kbroker.cli.kafka.running import Tool, ToolFailed, check_bootstrap, connected, pairs

if TYPE_CHECKING:
    from kbroker._ext.client.consumer_record import ConsumerRecord
    from kbroker.cli.kafka.formatters import Formatter
    from kbroker.client.connections.cluster import Cluster

_LEADER = -1
_EARLIEST = -2
_FORMATTER = "kafka.tools.DefaultMessageFormatter"
_INT_MAX = (1 << 31) - 1

OPTIONS = (
    valued("broker-list", "hostname:port,...,hostname:port", "Brokers to connect to; required."),
    valued("topic", "topic", "The topic; required."),
    valued("partition", "partition", "The partition.", kind=int, default="0"),
    valued("replica", "replica id", "The broker to read from, -1: the leader.", kind=int,
           default=str(_LEADER)),
    valued("offset", "consume offset", "Where to begin, -2: at the first record, -1: at the end.",
           kind=int, long=True, default=str(_EARLIEST)),
    valued("clientId", "clientId", "The client's id.", default="SimpleConsumerShell"),
    valued("fetchsize", "fetchsize", "Bytes of a response.", kind=int, default=str(1 << 20)),
    valued("formatter", "class", "What prints a record.", default=_FORMATTER),
    valued("property", "prop", "A setting of the formatter; may be repeated."),
    flag("print-offsets", "Print the offset behind each record."),
    valued("max-wait-ms", "ms", "How long a request waits for records.", kind=int, default="1000"),
    valued("max-messages", "max-messages", "How many records.", kind=int, default=str(_INT_MAX)),
    flag("skip-message-on-error", "Go on after a record that cannot be printed."),
    flag("no-wait-at-logend", "End where the log does."),
    valued("command-config", "config file", "A file with settings of a client."),
)  # fmt: skip


def _run(given: Given) -> int:
    from kbroker.cli.kafka.formatters import formatter

    given.require("broker-list", "topic")
    check_bootstrap(given.one("broker-list"))
    try:
        shown = formatter(given.one("formatter"), pairs(given.all("property")))
    except KeyError:
        raise ToolFailed(f"there is no formatter {given.one('formatter')} here") from None
    bootstrap, config = given.one("broker-list"), given.one("command-config")
    with connected(bootstrap, config, client_id=given.one("clientId")) as cluster:
        node = _replica(given, cluster)
        _print(given, _read(given, cluster, node, _offset(given, cluster)), shown)
    return 0


def _replica(given: Given, cluster: Cluster) -> int:
    """The broker to read from. Raises ToolFailed."""
    from kbroker.client.admin.topics import describe_topics

    topic, number, node = given.one("topic"), given.one("partition"), given.one("replica")
    rows = {row.partition: row for row in describe_topics(cluster, [topic])[0].partitions}
    if number not in rows:
        raise ToolFailed(f"Error: partition {number} does not exist for topic {topic}")
    if node == _LEADER:
        leader = rows[number].leader
        if leader is None:
            raise ToolFailed(
                f"Error: user specifies to fetch from leader for partition ({topic}, {number}) "
                "which has not been elected yet"
            )
        return leader
    if node not in rows[number].replicas:
        raise ToolFailed(f"Error: replica {node} does not exist for partition ({topic}, {number})")
    return int(node)


def _offset(given: Given, cluster: Cluster) -> int:
    """Raises ToolFailed."""
    from kbroker.client.batches.offsets import list_offsets

    offset: int = given.one("offset")
    if offset < _EARLIEST:
        raise ToolFailed(f"Invalid starting offset: {offset}")
    if offset >= 0:
        return offset
    key = given.one("topic"), given.one("partition")
    return list_offsets(cluster, {key: offset})[key].offset


def _read(given: Given, cluster: Cluster, node: int, offset: int) -> Iterator[ConsumerRecord]:
    """The records from an offset on; without end, unless ``--no-wait-at-logend``."""
    from kbroker._ext.client.consumer_record import ConsumerRecord
    from kbroker.client.admin.replica_reads import batch_sums, fetch_replicas
    from kbroker.client.batches.fetch import RecordSet
    from kbroker.client.batches.topic_reader import records_of

    key = given.one("topic"), given.one("partition")
    wait_ms = given.one("max-wait-ms")
    while True:
        contents = fetch_replicas(cluster, node, {key: offset}, given.one("fetchsize"), wait_ms)
        high_watermark, data = contents[key]
        if not data and "no-wait-at-logend" in given:
            print(
                f"Terminating. Reached the end of partition ({key[0]}, {key[1]}) at offset {offset}"
            )
            return
        ends = [batch.last_offset + 1 for batch in batch_sums(data, offset)]
        rows: Any = RecordSet(memoryview(data), [], offset, offset, high_watermark, -1, -1)
        for row in records_of(key, rows):
            if row.offset >= offset:
                offset = row.offset + 1
                yield ConsumerRecord(
                    *key, row.offset, row.value, row.key, timestamp=row.timestamp, timestamp_type=0
                )
        # Markers of transactions are no records.
        offset = max([offset, *ends])


def _print(given: Given, records: Iterator[ConsumerRecord], shown: Formatter) -> None:
    left = given.one("max-messages")
    output: Any = sys.stdout.buffer
    for record in records if left > 0 else ():
        if "print-offsets" in given:
            output.write(b"next offset = %d\n" % (record.offset + 1))
        try:
            output.write(shown(record))
        except ValueError as error:
            if "skip-message-on-error" not in given:
                raise ToolFailed(str(error)) from error
            print(f"ERROR {error}; skipping this message", file=sys.stderr)
            continue
        output.flush()
        left -= 1
        if not left:
            return


TOOL = Tool("A low-level tool for fetching data directly from a particular replica.", OPTIONS, _run)
