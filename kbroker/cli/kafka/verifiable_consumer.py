"""``kafka-verifiable-consumer``: reads a topic in a group, and prints what happens as JSON."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING, Any

from kbroker.cli.kafka.events import Events, Stopped, StopSignals
from kbroker.cli.kafka.parsers import INT, ParsedTool, ToolParser
from kbroker.cli.kafka.performance import say_deprecated
from kbroker.cli.kafka.running import ToolFailed, properties_of

if TYPE_CHECKING:
    from kbroker.client.batches.offsets import TopicPartition
    from kbroker.client.consumer.kafka_consumer import KafkaConsumer

_POLL_S = 1.0
_RANGE = "org.apache.kafka.clients.consumer.RangeAssignor"


def _build() -> ToolParser:
    parser = ToolParser(
        prog="verifiable-consumer",
        description="Reads a topic in a group, and prints rebalances, records and commits as JSON.",
    )
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--bootstrap-server", metavar="HOST1:PORT1,...", help="brokers")
    where.add_argument("--broker-list", metavar="HOST1:PORT1,...", help="the same, before Kafka 4")
    parser.add_argument("--topic", required=True, help="the topic")
    parser.add_argument("--group-protocol", default="classic", help="classic or consumer")
    parser.add_argument("--group-remote-assignor", help="of the protocol consumer")
    parser.add_argument("--group-id", required=True, help="the group")
    parser.add_argument("--group-instance-id", help="of a static member")
    parser.add_argument("--max-messages", type=INT, default=-1, help="how many; -1: without end")
    parser.add_argument("--session-timeout", type=INT, default=30_000, help="in ms")
    parser.add_argument("--verbose", action="store_true", help="print each record")
    parser.add_argument("--enable-autocommit", action="store_true", help="commit in intervals")
    parser.add_argument("--reset-policy", default="earliest", help="earliest, latest or none")
    parser.add_argument("--assignment-strategy", default=_RANGE, help="of the protocol classic")
    parser.add_argument("--consumer.config", dest="consumer_config", metavar="CONFIG_FILE",
                        help="the same as --command-config, before Kafka 4.2")  # fmt: skip
    parser.add_argument("--command-config", metavar="CONFIG_FILE", help="a file with settings")
    return parser


def _run(given: Namespace) -> int:
    if given.consumer_config and given.command_config:
        raise ToolFailed("--consumer.config and --command-config cannot be specified together.")
    say_deprecated(bool(given.consumer_config), "consumer.config", "command-config")
    from kbroker.cli.kafka.client_options import known_only, log_to_stderr
    from kbroker.client.consumer.consumer_settings import SETTINGS
    from kbroker.client.consumer.kafka_consumer import KafkaConsumer
    from kbroker.client.errors import ClientError, SettingRefused

    log_to_stderr()
    reading = _GroupReading(given)
    try:
        with KafkaConsumer(known_only(_settings(given), SETTINGS)) as consumer:
            try:
                reading.run(consumer)
            except Stopped:
                reading.request_end()
    except (SettingRefused, ClientError) as error:
        raise ToolFailed(str(error)) from error
    finally:
        reading.say("shutdown_complete")
        # COMPAT: Kafka's prints it also when it ends by itself, then last.
        reading.request_end()
    return 0


def _settings(given: Namespace) -> dict[str, str]:
    path = given.command_config or given.consumer_config
    settings = properties_of(path) if path else {}
    if given.group_protocol.lower() == "consumer":
        settings["group.protocol"] = "consumer"
        if given.group_remote_assignor is not None:
            settings["group.remote.assignor"] = given.group_remote_assignor
    else:
        settings["partition.assignment.strategy"] = given.assignment_strategy
        settings["session.timeout.ms"] = str(given.session_timeout)
    if given.group_instance_id is not None:
        settings["group.instance.id"] = given.group_instance_id
    return settings | {
        "group.id": given.group_id,
        "bootstrap.servers": given.bootstrap_server or given.broker_list,
        "enable.auto.commit": str(given.enable_autocommit).lower(),
        "auto.offset.reset": given.reset_policy,
    }


class _GroupReading:
    def __init__(self, given: Namespace) -> None:
        self._given = given
        self.say = Events()
        self._signals = StopSignals()
        self._ending = False
        self._left = given.max_messages if given.max_messages >= 0 else None

    def request_end(self) -> None:
        """Say it, once."""
        if not self._ending:
            self._ending = True
            self.say("shutdown_requested")

    def run(self, consumer: KafkaConsumer) -> None:
        self.say("startup_complete")
        listener: Any = self
        consumer.subscribe([self._given.topic], listener=listener)
        while self._left is None or self._left > 0:
            records = consumer.poll(_POLL_S)
            if not records:
                continue
            with self._signals:
                offsets = self._take(records)
                if not self._given.enable_autocommit:
                    self._commit(consumer, offsets)

    def _take(self, records: list[Any]) -> dict[TopicPartition, int]:
        """Print what was read; where to go on."""
        parts: dict[TopicPartition, list[Any]] = {}
        for record in records:
            parts.setdefault((record.topic, record.partition), []).append(record)
        offsets, summaries = {}, []
        for (topic, number), rows in parts.items():
            taken = rows if self._left is None else rows[: self._left]
            if not taken:
                break
            first, last = taken[0].offset, taken[-1].offset
            offsets[topic, number] = last + 1
            summaries.append(
                {
                    "topic": topic,
                    "partition": number,
                    "count": len(taken),
                    "minOffset": first,
                    "maxOffset": last,
                }
            )
            for record in taken if self._given.verbose else ():
                self.say(
                    "record_data",
                    key=_text(record.key),
                    value=_text(record.value),
                    topic=topic,
                    partition=number,
                    offset=record.offset,
                )
            if self._left is not None:
                self._left -= len(taken)
        self.say("records_consumed", count=len(records), partitions=summaries)
        return offsets

    def _commit(self, consumer: KafkaConsumer, offsets: dict[TopicPartition, int]) -> None:
        from kbroker.cli.kafka.java_words import java_message
        from kbroker.client.errors import ClientError

        rows = [
            {"topic": topic, "partition": number, "offset": offset}
            for (topic, number), offset in offsets.items()
        ]
        try:
            consumer.commit_sync(offsets)
        except ClientError as error:
            self.say("offsets_committed", offsets=rows, error=java_message(error), success=False)
        else:
            self.say("offsets_committed", offsets=rows, success=True)

    # -- told by the consumer

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        """These were added."""
        self.say("partitions_assigned", partitions=_listed(partitions))

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        """These are given up."""
        self.say("partitions_revoked", partitions=_listed(partitions))

    on_partitions_lost = on_partitions_revoked


def _listed(partitions: list[TopicPartition]) -> list[dict[str, Any]]:
    return [{"topic": topic, "partition": number} for topic, number in partitions]


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="replace")


TOOL = ParsedTool(_build, _run, alone=0, help_code=1)
