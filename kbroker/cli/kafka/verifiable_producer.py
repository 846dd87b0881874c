"""``kafka-verifiable-producer``: sends rising numbers, and prints what became of each as JSON."""

from __future__ import annotations

import time
from argparse import Namespace
from functools import partial
from typing import TYPE_CHECKING, Any

from kbroker.cli.kafka.events import Events, Stopped, StopSignals
from kbroker.cli.kafka.parsers import INT, LONG, ParsedTool, ToolParser
from kbroker.cli.kafka.performance import Pace, say_deprecated
from kbroker.cli.kafka.running import ToolFailed, properties_of

if TYPE_CHECKING:
    from kbroker.client.producer.kafka_producer import KafkaProducer


def _build() -> ToolParser:
    parser = ToolParser(
        prog="verifiable-producer",
        description="Sends rising numbers, and prints as JSON which of them were acknowledged.",
    )
    parser.add_argument("--topic", required=True, help="the topic")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--bootstrap-server", metavar="HOST1:PORT1,...", help="brokers")
    where.add_argument("--broker-list", metavar="HOST1:PORT1,...", help="the same, before Kafka 4")
    parser.add_argument("--max-messages", type=INT, default=-1, help="how many; -1: without end")
    parser.add_argument("--throughput", type=INT, default=-1, help="records a second; -1: all")
    parser.add_argument("--acks", type=INT, choices=(0, 1, -1), default=-1, help="as of a producer")
    parser.add_argument("--producer.config", dest="producer_config", metavar="CONFIG_FILE",
                        help="the same as --command-config, before Kafka 4.2")  # fmt: skip
    parser.add_argument("--command-config", metavar="CONFIG_FILE", help="a file with settings")
    parser.add_argument("--message-create-time", type=LONG, default=-1, help="of the first, in ms")
    parser.add_argument("--value-prefix", type=INT, help="a number and a dot before each value")
    parser.add_argument("--repeating-keys", type=INT, help="keys from 0 to this, again and again")
    return parser


def _run(given: Namespace) -> int:
    if given.producer_config and given.command_config:
        raise ToolFailed("--producer.config and --command-config cannot be specified together.")
    say_deprecated(bool(given.producer_config), "producer.config", "command-config")
    path = given.command_config or given.producer_config
    settings = {"acks": str(given.acks), "retries": "0"}
    settings |= properties_of(path) if path else {}
    settings["bootstrap.servers"] = given.bootstrap_server or given.broker_list
    if settings["acks"] in ("0", "1"):
        settings.setdefault("enable.idempotence", "false")
    from kbroker.cli.kafka.client_options import known_only, log_to_stderr
    from kbroker.client.errors import ClientError, SettingRefused
    from kbroker.client.producer.kafka_producer import KafkaProducer
    from kbroker.client.producer.producer_settings import SETTINGS

    log_to_stderr()
    sending = _Sending(given)
    try:
        with KafkaProducer(known_only(settings, SETTINGS)) as producer:
            try:
                sending.run(producer)
            except Stopped:
                pass
    except (SettingRefused, ClientError) as error:
        raise ToolFailed(str(error)) from error
    sending.end()
    return 0


class _Sending:
    def __init__(self, given: Namespace) -> None:
        self._given = given
        self._say = Events()
        self._signals = StopSignals()
        self._sent = self._acked = 0
        self._began_ms = _now_ms()

    def run(self, producer: KafkaProducer) -> None:
        given = self._given
        self._say("startup_complete")
        pace = Pace(given.throughput)
        created = given.message_create_time
        number = 0
        while given.max_messages < 0 or number < given.max_messages:
            key = None if not given.repeating_keys else str(number % given.repeating_keys)
            value = str(number)
            if given.value_prefix is not None:
                value = f"{given.value_prefix}.{number}"
            number += 1
            time_ms = None if created < 0 else created + _now_ms() - self._began_ms
            with self._signals:
                self._send(producer, key, value, time_ms)
                self._sent = number
            pace.wait(number)

    def _send(
        self, producer: KafkaProducer, key: str | None, value: str, time_ms: int | None
    ) -> None:
        from kbroker.client.errors import ClientError

        coded = None if key is None else key.encode()
        topic = self._given.topic
        try:
            future = producer.send(topic, value.encode(), key=coded, timestamp_ms=time_ms)
        except ClientError as error:
            self._fail(key, value, error)
        else:
            future.add_done_callback(partial(self._done, key, value))

    def _done(self, key: str | None, value: str, future: Any) -> None:
        error = future.exception()
        if error is not None:
            self._fail(key, value, error)
            return
        self._acked += 1
        metadata = future.result()
        self._say(
            "producer_send_success",
            key=key,
            value=value,
            offset=metadata.offset,
            partition=metadata.partition,
            topic=metadata.topic,
        )

    def _fail(self, key: str | None, value: str, error: Exception) -> None:
        from kbroker.cli.kafka.java_words import java_class, java_message
        from kbroker.client.errors import ClientError

        name, message = type(error).__name__, str(error)
        if isinstance(error, ClientError) and error.code is not None:
            name, message = java_class(error.code), java_message(error)
        self._say(
            "producer_send_error",
            key=key,
            value=value,
            topic=self._given.topic,
            exception=f"class {name}",
            message=message,
        )

    def end(self) -> None:
        self._say("shutdown_complete")
        elapsed_ms = max(_now_ms() - self._began_ms, 1)
        self._say(
            "tool_data",
            sent=self._sent,
            acked=self._acked,
            target_throughput=self._given.throughput,
            avg_throughput=1000 * self._acked / elapsed_ms,
        )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


TOOL = ParsedTool(_build, _run, alone=0, help_code=1)
