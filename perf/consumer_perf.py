"""Kafka's kafka-consumer-perf-test.sh over confluent-kafka: the same options, the same lines.

    python perf/consumer_perf.py --bootstrap-server 127.0.0.1:9092 --topic t --messages 5000000

Without --group it reads all partitions from their beginning and asks for no group coordinator;
its rebalance time is 0 then. With --group it joins that group as Kafka's tool does.
"""

import argparse
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaException,
    Message,
    TopicPartition,
)

from perf.arguments import Arguments
from perf.client_config import for_librdkafka, is_plaintext, read_properties
from perf.raw_client import require_broker

MEBIBYTE = 1 << 20
BATCH_RECORDS = 10_000
HEADER = (
    "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec,"
    " rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec"
)
DETAILED_HEADER = HEADER.replace("start.time, end.time", "time, threadId")
# librdkafka stops fetching for up to a second when 100,000 records are queued; that would be the
# limit.
DEFAULTS = {
    "queued.min.messages": "1000000",
    "queued.max.messages.kbytes": "1048576",
    "fetch.queue.backoff.ms": "5",
    "enable.auto.commit": "false",
    "auto.offset.reset": "earliest",
    "group.id": "perf-consumer",
}


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = Arguments(__doc__)
    parser.add_argument(
        "--bootstrap-server", "--broker-list", dest="bootstrap_server", required=True
    )
    parser.add_argument("--topic", required=True)
    parser.add_argument("--messages", type=int, required=True, help="records to read")
    parser.add_argument("--fetch-size", type=int, default=1 << 20, help="of one partition, bytes")
    parser.add_argument("--socket-buffer-size", type=int, default=2 << 20)
    parser.add_argument("--group", help="join this group; the broker must have groups")
    parser.add_argument(
        "--no-group", action="store_true", help="read all partitions without a group (the default)"
    )
    parser.add_argument("--from-latest", action="store_true", help="begin at the end of the log")
    parser.add_argument("--consumer.config", dest="consumer_config", metavar="FILE")
    parser.add_argument("--timeout", type=int, default=10_000, help="ms without a record")
    parser.add_argument("--reporting-interval", type=int, default=5_000, help="ms")
    parser.add_argument("--show-detailed-stats", action="store_true")
    parser.add_argument("--hide-header", action="store_true")
    chosen = parser.parse_args(arguments)
    if chosen.messages < 1:
        parser.error("--messages must be at least 1")
    if chosen.group and chosen.no_group:
        parser.error("--group and --no-group exclude each other")
    try:
        own = read_properties(chosen.consumer_config) if chosen.consumer_config else {}
    except OSError as error:
        parser.error(str(error))
    chosen.settings = {
        **DEFAULTS,
        "bootstrap.servers": chosen.bootstrap_server,
        "max.partition.fetch.bytes": str(chosen.fetch_size),
        "socket.receive.buffer.bytes": str(chosen.socket_buffer_size),
        **for_librdkafka(own),
    }
    if chosen.group:
        chosen.settings["group.id"] = chosen.group
    if chosen.from_latest:
        chosen.settings["auto.offset.reset"] = "latest"
    return chosen


def clock_text(seconds: float) -> str:
    """Wall time as Kafka's tool prints it: 2026-01-31 23:59:59:123."""
    moment = datetime.fromtimestamp(seconds)
    return f"{moment:%Y-%m-%d %H:%M:%S}:{moment.microsecond // 1000:03d}"


def columns(
    totals: tuple[int, int], part: tuple[int, int], seconds: float, rebalance_ms: int
) -> str:
    """The columns after the first two. MB is MiB.

    totals: bytes and records since the start. part: those of the ``seconds`` the rates are of.
    """
    size, count = part
    fetch_ms = round(seconds * 1e3) - rebalance_ms
    fetch_s = max(fetch_ms, 1) / 1e3
    return (
        f"{totals[0] / MEBIBYTE:.4f}, {size / MEBIBYTE / seconds:.4f}, {totals[1]},"
        f" {count / seconds:.4f}, {rebalance_ms}, {fetch_ms},"
        f" {size / MEBIBYTE / fetch_s:.4f}, {count / fetch_s:.4f}"
    )


def total_line(figures: dict[str, Any]) -> str:
    start, end = clock_text(figures["start_time"]), clock_text(figures["end_time"])
    read = (figures["bytes"], figures["records"])
    return f"{start}, {end}, {columns(read, read, figures['seconds'], figures['rebalance_ms'])}"


class Progress:
    """Counts records and bytes, and prints the detailed line every interval."""

    def __init__(self, interval_s: float, say: Callable[[str], None] | None) -> None:
        self.records = self.bytes = 0
        self.rebalance_ms = 0
        self._interval_s, self._say = interval_s, say
        self._since, self._records, self._bytes = time.monotonic(), 0, 0
        self._rebalance_ms = 0

    def add(self, messages: list[Message]) -> None:
        """Raises KafkaException if the broker rejected a fetch."""
        failed = next(filter(None, map(Message.error, messages)), None)
        if failed is not None:
            raise KafkaException(failed)
        self.records += len(messages)
        self.bytes += sum(map(len, messages))
        # Kafka's tool counts keys too; checking each record takes time, so one stands for its
        # batch.
        if messages and messages[0].key() is not None:
            self.bytes += sum(len(message.key() or b"") for message in messages)
        now = time.monotonic()
        if self._say is not None and now - self._since >= self._interval_s:
            self._report(self._say, now)

    def _report(self, say: Callable[[str], None], now: float) -> None:
        part = (self.bytes - self._bytes, self.records - self._records)
        rebalance_ms = self.rebalance_ms - self._rebalance_ms
        text = columns((self.bytes, self.records), part, now - self._since, rebalance_ms)
        say(f"{clock_text(time.time())}, 0, {text}")
        self._since, self._records, self._bytes = now, self.records, self.bytes
        self._rebalance_ms = self.rebalance_ms


def attach(consumer: Consumer, options: argparse.Namespace, progress: Progress) -> None:
    """Assign all partitions, or subscribe with --group. Raises ValueError for an unknown topic."""
    if options.group:
        began = time.monotonic()

        def assigned(*_: object) -> None:
            progress.rebalance_ms += round((time.monotonic() - began) * 1e3)

        consumer.subscribe([options.topic], on_assign=assigned)
        return
    found = consumer.list_topics(options.topic, timeout=10).topics[options.topic]
    if found.error is not None or not found.partitions:
        raise ValueError(f"topic {options.topic}: {found.error or 'no partitions'}")
    first = OFFSET_END if options.from_latest else OFFSET_BEGINNING
    consumer.assign([TopicPartition(options.topic, p, first) for p in sorted(found.partitions)])


def run(options: argparse.Namespace, say: Callable[[str], None] | None = None) -> dict[str, Any]:
    """Read --messages records; "complete" is false if --timeout ms passed without one before."""
    start_time, began = time.time(), time.monotonic()
    detailed = say if options.show_detailed_stats else None
    progress = Progress(options.reporting_interval / 1e3, detailed)
    consumer = Consumer({**options.settings, "log_level": 3})
    try:
        attach(consumer, options, progress)
        while progress.records < options.messages:
            want = min(BATCH_RECORDS, options.messages - progress.records)
            messages = consumer.consume(want, timeout=0.1)
            if not messages:
                messages = consumer.consume(1, timeout=options.timeout / 1e3)
            if not messages:
                break
            progress.add(messages)
        seconds = time.monotonic() - began
    finally:
        consumer.close()
    return {
        "start_time": start_time,
        "end_time": start_time + seconds,
        "seconds": seconds,
        "records": progress.records,
        "bytes": progress.bytes,
        "records_per_s": progress.records / seconds,
        "mebibytes_per_s": progress.bytes / seconds / MEBIBYTE,
        "rebalance_ms": progress.rebalance_ms,
        "complete": progress.records >= options.messages,
    }


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    require_broker(
        "consumer_perf",
        options.settings["bootstrap.servers"],
        plaintext=is_plaintext(options.settings),
    )
    if not options.hide_header:
        print(DETAILED_HEADER if options.show_detailed_stats else HEADER)
    try:
        figures = run(options, print)
    except (KafkaException, ValueError) as error:
        print(f"consumer_perf: {error}", file=sys.stderr)
        return 1
    if not figures["complete"]:
        print(
            "WARNING: Exiting before consuming the expected number of messages:"
            f" timeout ({options.timeout} ms) exceeded. You can use the --timeout option to"
            " increase the timeout."
        )
    if not options.show_detailed_stats:
        print(total_line(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
