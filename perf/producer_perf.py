"""Kafka's kafka-producer-perf-test.sh over librdkafka: the same options, the same lines.

    python perf/producer_perf.py --topic t --num-records 5000000 --record-size 100 \\
        --throughput -1 --producer-props bootstrap.servers=127.0.0.1:9092 acks=1

--client librdkafka (the default) hands over ready-made records by the thousand, --client confluent
goes through confluent-kafka's Python producer, which then is the limit. Either way a record counts
as sent when its delivery report came without error, and one with an error ends the run: where a
broker goes away, after delivery.timeout.ms (120000).
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from perf.arguments import Arguments
from perf.client_config import for_librdkafka, is_plaintext, parse_pairs, read_properties
from perf.frames import random_values, text_values
from perf.percentiles import Histogram, histogram_percentile
from perf.raw_client import require_broker

MEBIBYTE = 1 << 20
REPORT_SECONDS = 5.0
DISTINCT_VALUES = 10_000
BATCH_RECORDS = 1_000
HISTOGRAM_BUCKETS = 4_000
# Reports arrive within the client's own timeout. After this margin the client hangs.
HANG_S = 30.0
# As large as the client's memory allows, so that it waits for the broker and not for its own queue.
DEFAULTS = {
    "queue.buffering.max.messages": "1000000",
    "queue.buffering.max.kbytes": "1048576",
    "linger.ms": "5",
    "delivery.timeout.ms": "120000",  # as in Java; librdkafka has 300000
}


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = Arguments(__doc__)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--num-records", type=int, required=True)
    payload = parser.add_mutually_exclusive_group(required=True)
    payload.add_argument("--record-size", type=int, help="bytes of one value")
    payload.add_argument("--payload-file", help="values to send, picked in turn")
    parser.add_argument("--payload-delimiter", default="\\n")
    parser.add_argument(
        "--throughput", type=float, required=True, help="records/s, -1 for no limit"
    )
    parser.add_argument("--producer-props", nargs="+", default=[], metavar="NAME=VALUE")
    parser.add_argument("--producer.config", dest="producer_config", metavar="FILE")
    parser.add_argument("--print-metrics", action="store_true", help="librdkafka's statistics")
    parser.add_argument("--client", choices=["librdkafka", "confluent"], default="librdkafka")
    parser.add_argument("--partition", type=int, default=-1, help="-1: the client's partitioner")
    parser.add_argument(
        "--values", choices=["letters", "text"], default="letters", help="text can be compressed"
    )
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args(arguments)
    if chosen.num_records < 1 or (chosen.record_size is not None and chosen.record_size < 1):
        parser.error("--num-records and --record-size must be at least 1")
    try:
        settings = read_properties(chosen.producer_config) if chosen.producer_config else {}
        settings.update(parse_pairs(chosen.producer_props))
    except (OSError, ValueError) as error:
        parser.error(str(error))
    if "bootstrap.servers" not in settings:
        parser.error("bootstrap.servers must be given by --producer-props or --producer.config")
    chosen.settings = DEFAULTS | for_librdkafka(settings)
    if chosen.print_metrics:
        chosen.settings.setdefault("statistics.interval.ms", "1000")
    return chosen


def load_values(options: argparse.Namespace) -> list[bytes]:
    """The values to send in turn. Raises ValueError for a payload file without any."""
    if options.payload_file is None:
        count = min(DISTINCT_VALUES, options.num_records, max(1, (64 << 20) // options.record_size))
        make = text_values if options.values == "text" else random_values
        return make(count, options.record_size, options.seed)
    delimiter = options.payload_delimiter.encode().decode("unicode_escape").encode()
    raw = Path(options.payload_file).read_bytes()
    values = [value for value in raw.split(delimiter) if value]
    if not values:
        raise ValueError(f"{options.payload_file} holds no value")
    return values


def window_line(count: int, seconds: float, size: int, sum_ms: float, max_ms: float) -> str:
    """The line every five seconds; ``size`` is the mean record's in bytes."""
    rate = count / seconds
    average = sum_ms / count if count else 0.0
    return (
        f"{count} records sent, {rate:.1f} records/sec ({rate * size / MEBIBYTE:.2f} MB/sec),"
        f" {average:.1f} ms avg latency, {max_ms:.1f} ms max latency."
    )


def total_line(figures: dict[str, Any]) -> str:
    """The last line."""
    return (
        f"{figures['records']} records sent, {figures['records_per_s']:f} records/sec"
        f" ({figures['mebibytes_per_s']:.2f} MB/sec), {figures['mean_ms']:.2f} ms avg latency,"
        f" {figures['max_ms']:.2f} ms max latency, {figures['p50_ms']:.0f} ms 50th,"
        f" {figures['p95_ms']:.0f} ms 95th, {figures['p99_ms']:.0f} ms 99th,"
        f" {figures['p999_ms']:.0f} ms 99.9th."
    )


class ConfluentProducer:
    """confluent-kafka's producer behind the interface of BatchProducer and its counter."""

    def __init__(self, settings: dict[str, str], topic: str, values: list[bytes]) -> None:
        from confluent_kafka import Producer

        if not hasattr(Producer, "produce_batch"):
            raise RuntimeError("this confluent-kafka has no produce_batch; use --client librdkafka")
        self.last_stats = self.last_error_text = ""
        calls = {"stats_cb": self._keep_stats, "error_cb": self._keep_error}
        self.producer = Producer({**settings, "log_level": 0, **calls})
        self.topic, self.values, self._next = topic, values, 0
        self.delivered = self.failed = 0
        self.last_error = 0
        self.sum_us = self.max_us = self.sampled = 0
        self.histogram = Histogram(HISTOGRAM_BUCKETS)
        self._window = (0, 0, 0)
        self.counter = self

    def __enter__(self) -> "ConfluentProducer":
        return self

    def __exit__(self, *_: object) -> None:
        self.producer.purge()
        self.producer.close()

    def _keep_stats(self, text: str) -> None:
        self.last_stats = text

    def _keep_error(self, error: Any) -> None:
        self.last_error_text = str(error.str())

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failed, self.last_error = self.failed + 1, error.code()
            return
        self.delivered += 1
        latency_us = int(message.latency() * 1e6)
        self.sum_us += latency_us
        self.max_us = max(self.max_us, latency_us)
        self.histogram.add(latency_us * 1000)
        count, total, longest = self._window
        self._window = (count + 1, total + latency_us, max(longest, latency_us))

    def produce(self, count: int, partition: int = -1) -> int:
        batch = self.values[self._next : self._next + count]
        records = [{"value": value} for value in batch]
        where = {"partition": partition} if partition >= 0 else {}
        queued = self.producer.produce_batch(
            self.topic, records, on_delivery=self._delivered, **where
        )
        self._next = (self._next + queued) % len(self.values)
        return int(queued)

    def poll(self, timeout_ms: int) -> None:
        self.producer.poll(timeout_ms / 1000)

    def pending(self) -> int:
        return len(self.producer)

    def error_text(self, code: int) -> str:
        from confluent_kafka import KafkaError

        return str(KafkaError(code).str())

    def take_window(self) -> tuple[int, int, int]:
        taken, self._window = self._window, (0, 0, 0)
        return taken

    def totals(self) -> tuple[int, int, int, int, int, Any]:
        counted = (self.delivered, self.failed, self.last_error)
        return (*counted, self.sum_us, self.max_us, self.histogram.settle())


def make_producer(options: argparse.Namespace, values: list[bytes]) -> Any:
    if options.client == "confluent":
        return ConfluentProducer(options.settings, options.topic, values)
    from perf.librdkafka import BatchProducer

    return BatchProducer(options.settings, options.topic, values)


def delivery_timeout_s(settings: dict[str, str]) -> float:
    """How long a record may take, from configs that the client has accepted."""
    given = settings.get("message.timeout.ms", settings["delivery.timeout.ms"])
    return int(given) / 1000 or float("inf")


def produce_all(
    options: argparse.Namespace,
    producer: Any,
    size: int,
    say: Callable[[str], None],
    warn: Callable[[str], None],
) -> float:
    """Send every record and wait for every report; returns the seconds from the first call to the
    last report.

    Ends before that when a record has failed. Raises TimeoutError when reports stop coming.
    """
    rate = options.throughput
    timeout_s = delivery_timeout_s(options.settings)
    batch = BATCH_RECORDS if rate <= 0 else max(1, min(BATCH_RECORDS, int(rate / 100)))
    started_at = window_at = moved_at = time.monotonic()
    warned_at = -REPORT_SECONDS
    queued, left = 0, 0
    while queued < options.num_records or left > 0:
        allowed = options.num_records - queued
        if rate > 0:
            allowed = min(allowed, int((time.monotonic() - started_at) * rate) + 1 - queued)
        want = min(batch, allowed)
        got = producer.produce(want, options.partition) if want > 0 else 0
        queued += got
        # The queue is full or there is nothing to do: wait for reports, or until the next record is
        # due.
        producer.poll(0 if got > 0 and rate <= 0 else 2)
        before, left = left, producer.pending()
        now = time.monotonic()
        if got > 0 or left != before:
            moved_at = now
        elif now - moved_at > timeout_s + HANG_S:
            raise TimeoutError(f"{left} records without delivery report")
        if producer.last_error_text and now - warned_at >= REPORT_SECONDS:
            text = f"{left} records wait, none longer than {timeout_s:g} s"
            warn(f"{producer.last_error_text}; {text}")
            producer.last_error_text, warned_at = "", now
        if now - window_at >= REPORT_SECONDS:
            count, sum_us, max_us = producer.counter.take_window()
            say(window_line(count, now - window_at, size, sum_us / 1e3, max_us / 1e3))
            window_at = now
            if producer.counter.totals()[1]:
                break
    return time.monotonic() - started_at


def tell(line: str) -> None:
    """A line next to the figures."""
    print(f"producer_perf: {line}", file=sys.stderr, flush=True)


def run(
    options: argparse.Namespace,
    say: Callable[[str], None] = print,
    warn: Callable[[str], None] = tell,
) -> dict[str, Any]:
    """Send all records; returns the figures of the last line. RuntimeError if one was not
    delivered.
    """
    values = load_values(options)
    size = sum(map(len, values)) / len(values)
    with make_producer(options, values) as producer:
        seconds = produce_all(options, producer, round(size), say, warn)
        delivered, failed, code, sum_us, max_us, counts = producer.counter.totals()
        if failed or delivered != options.num_records:
            raise RuntimeError(
                f"{failed} records failed, {delivered} of {options.num_records} were delivered;"
                f" last error: {producer.error_text(code)}"
            )
        if options.print_metrics:
            # Later statistics cover the whole run; earlier ones a part of it.
            producer.last_stats = ""
            deadline = time.monotonic() + 10
            while not producer.last_stats and time.monotonic() < deadline:
                producer.poll(100)
            say(producer.last_stats)
    return {
        "records": delivered,
        "seconds": seconds,
        "records_per_s": delivered / seconds,
        "mebibytes_per_s": delivered * size / seconds / MEBIBYTE,
        "bytes": round(delivered * size),
        "mean_ms": sum_us / delivered / 1e3,
        "max_ms": max_us / 1e3,
        "p50_ms": histogram_percentile(counts, 0.50) / 1e6,
        "p95_ms": histogram_percentile(counts, 0.95) / 1e6,
        "p99_ms": histogram_percentile(counts, 0.99) / 1e6,
        "p999_ms": histogram_percentile(counts, 0.999) / 1e6,
    }


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    require_broker(
        "producer_perf",
        options.settings["bootstrap.servers"],
        plaintext=is_plaintext(options.settings),
    )
    try:
        print(total_line(run(options)))
    except (RuntimeError, ValueError, TimeoutError) as error:
        tell(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
