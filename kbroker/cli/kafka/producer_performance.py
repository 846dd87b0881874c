"""``kafka-producer-perf-test``: how many records a producer sends a second, and how long each
takes.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
import uuid
from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from kbroker.cli.kafka.parsers import INT, LONG, ParsedTool, ToolParser
from kbroker.cli.kafka.performance import Pace, pairs_of, print_metrics
from kbroker.cli.kafka.running import ToolFailed, properties_of

if TYPE_CHECKING:
    from kbroker.client.producer.kafka_producer import KafkaProducer

_MIB = 1 << 20
_SAMPLES_MAX = 500_000
_TRANSACTION_MS = 3000
# Random payloads begin at random places of one text, so that none has to be made for each record.
_POOL_BYTES = 1 << 16


def _build() -> ToolParser:
    parser = ToolParser(
        prog="producer-performance",
        description="Measure a producer. A transactional id or --transaction-duration-ms makes it "
        "use transactions.",
    )
    payload = parser.add_mutually_exclusive_group(required=True)
    parser.add_argument("--bootstrap-server", metavar="BOOTSTRAP-SERVERS", help="brokers")
    parser.add_argument("--topic", required=True, metavar="TOPIC", help="the topic")
    parser.add_argument("--num-records", required=True, type=LONG, help="how many records")
    payload.add_argument("--record-size", type=INT, help="bytes of each record")
    payload.add_argument("--payload-file", help="a file of records, which are chosen at random")
    payload.add_argument("--payload-monotonic", action="store_true", help="numbers that rise by 1")
    parser.add_argument(
        "--payload-delimiter", default="\\n", help="between records of the file (default: \\n)"
    )
    parser.add_argument(
        "--throughput", required=True, type=float, help="records a second, -1 for all it can"
    )
    parser.add_argument(
        "--command-property", nargs="+", metavar="NAME=VALUE", help="settings of the producer"
    )
    parser.add_argument(
        "--producer-props", nargs="+", metavar="NAME=VALUE", help="the same, before Kafka 4.2"
    )
    parser.add_argument("--command-config", metavar="FILE", help="a file with settings")
    parser.add_argument("--producer.config", dest="producer_config", metavar="FILE",
                        help="the same, before Kafka 4.2")  # fmt: skip
    parser.add_argument("--print-metrics", action="store_true", help="print metrics at the end")
    parser.add_argument("--transactional-id", help="the transactional id")
    parser.add_argument("--transaction-duration-ms", type=LONG, help="of each (default: 3000)")
    parser.add_argument("--warmup-records", type=LONG, default=0, help="left out of a second line")
    parser.add_argument("--reporting-interval", type=LONG, default=5000, help="ms between lines")
    return parser


def _check(given: Namespace) -> None:
    """Raises ToolFailed."""
    from kbroker.cli.kafka.performance import say_deprecated

    props, config = given.producer_props, given.producer_config
    if given.num_records <= 0:
        raise ToolFailed("--num-records should be greater than zero.")
    if given.warmup_records >= given.num_records:
        raise ToolFailed(
            "The value for --warmup-records must be strictly fewer than the number of records in "
            "the test, --num-records."
        )
    if given.record_size is not None and given.record_size <= 0:
        raise ToolFailed("--record-size should be greater than zero.")
    if not any(
        (given.bootstrap_server, given.command_property, given.command_config, props, config)
    ):
        raise ToolFailed(
            "At least one of --bootstrap-server, --command-property, --producer-props, "
            "--producer.config or --command-config must be specified."
        )
    if given.command_property and props:
        raise ToolFailed("--command-property and --producer-props cannot be specified together.")
    if given.command_config and config:
        raise ToolFailed("--command-config and --producer.config cannot be specified together.")
    if given.transaction_duration_ms is not None and given.transaction_duration_ms <= 0:
        raise ToolFailed("--transaction-duration-ms should be greater than zero.")
    if given.reporting_interval <= 0:
        raise ToolFailed("--reporting-interval should be greater than zero.")
    say_deprecated(bool(props), "producer-props", "command-property")
    say_deprecated(bool(config), "producer.config", "command-config")


def _run(given: Namespace) -> int:
    _check(given)
    payloads = _payloads(given)
    settings, transactional = _settings(given)
    from kbroker.cli.kafka.client_options import known_only, log_to_stderr
    from kbroker.client.errors import ClientError, SettingRefused
    from kbroker.client.producer.kafka_producer import KafkaProducer
    from kbroker.client.producer.producer_settings import SETTINGS

    log_to_stderr()
    try:
        with KafkaProducer(known_only(settings, SETTINGS)) as producer:
            stats = _send(producer, given, payloads, transactional)
            producer.flush()
            stats.print_total()
            if given.print_metrics:
                print_metrics(producer.metrics())
    except (SettingRefused, ClientError) as error:
        raise ToolFailed(str(error)) from error
    return 0


def _settings(given: Namespace) -> tuple[dict[str, str], int | None]:
    """Those of the producer, and how long a transaction takes in ms, None without any."""
    path = given.command_config or given.producer_config
    settings = properties_of(path) if path else {}
    settings |= pairs_of(given.command_property or given.producer_props or ())
    if given.bootstrap_server:
        settings["bootstrap.servers"] = given.bootstrap_server
    settings.setdefault("client.id", "perf-producer-client")
    duration = given.transaction_duration_ms
    named = given.transactional_id or settings.get("transactional.id")
    if named is None and duration is None:
        return settings, None
    settings["transactional.id"] = named or f"performance-producer-{uuid.uuid4()}"
    return settings, _TRANSACTION_MS if duration is None else duration


# -- what is sent


def _payloads(given: Namespace) -> Iterator[bytes]:
    """Without end."""
    if given.payload_file is not None:
        return _of_file(given.payload_file, given.payload_delimiter)
    if given.payload_monotonic:
        return (str(number).encode() for number in range(given.num_records))
    return _random(given.record_size)


def _of_file(path: str, delimiter: str) -> Iterator[bytes]:
    print(f"Reading payloads from: {os.path.abspath(path)}")
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError):
        text = ""
    if not text:
        raise ToolFailed("File does not exist or empty file provided.")
    payloads = text.split("\n" if delimiter == "\\n" else delimiter)
    while len(payloads) > 1 and not payloads[-1]:
        payloads.pop()
    print(f"Number of records read: {len(payloads)}")
    rows = [row.encode() for row in payloads]
    chosen = random.Random(0)

    def forever() -> Iterator[bytes]:
        while True:
            yield chosen.choice(rows)

    return forever()


def _random(size: int) -> Iterator[bytes]:
    chosen = random.Random(0)
    letters = bytes(65 + number % 26 for number in range(256))
    pool = chosen.randbytes(size + _POOL_BYTES).translate(letters)
    while True:
        at = chosen.randrange(_POOL_BYTES)
        yield pool[at : at + size]


def _send(
    producer: KafkaProducer, given: Namespace, payloads: Iterator[bytes], duration_ms: int | None
) -> Stats:
    """duration_ms: of transactions, None without any."""
    if duration_ms is not None:
        producer.init_transactions()
    if given.warmup_records > 0:
        print(
            f"Warmup first {given.warmup_records} records. Steady state results will print after "
            "the complete test summary."
        )
    stats = Stats(given.num_records, given.warmup_records, given.reporting_interval)
    pace = Pace(given.throughput)
    began: float | None = None
    for number in range(given.num_records):
        payload = next(payloads)
        now = time.monotonic()
        if duration_ms is not None and began is None:
            producer.begin_transaction()
            began = now
        future = producer.send(given.topic, payload)
        future.add_done_callback(partial(stats.done, now, len(payload)))
        if duration_ms is not None and began is not None and now - began >= duration_ms / 1000:
            producer.commit_transaction()
            began = None
        pace.wait(number + 1)
    if began is not None:
        producer.commit_transaction()
    return stats


# -- what is measured


class Stats:
    """Times of acknowledged records. ``done`` is called in the producer's thread.

    records: how many there will be. warmup: of these the first, which a second summary leaves out.
    interval_ms: between lines.
    """

    def __init__(self, records: int, warmup: int, interval_ms: int) -> None:
        self._lock = threading.Lock()
        self._interval_s = interval_ms / 1000
        self._every = -(-records // min(records, _SAMPLES_MAX))
        self._warmup = warmup
        self._total = _Part()
        self._steady: _Part | None = None
        self._window = _Part()
        self._said = False

    def done(self, began: float, size: int, future: Any) -> None:
        """A record was acknowledged, or has failed, which is printed and not counted."""
        error = future.exception()
        if error is not None:
            print(error, file=sys.stderr)
            return
        now = time.monotonic()
        latency = int((now - began) * 1000)
        with self._lock:
            if self._steady is None and 0 < self._warmup <= self._total.count:
                self._steady = _Part()
            sampled = self._total.count % self._every == 0
            for part in (self._total, self._steady):
                if part is not None:
                    part.add(latency, size, sampled)
            self._window.add(latency, size, sampled=False)
            if now - self._window.began >= self._interval_s:
                if self._steady is not None and not self._said:
                    self._said = True
                    print("In steady state.")
                self._window.print_window()
                self._window = _Part()

    def print_total(self) -> None:
        """The summary."""
        with self._lock:
            self._total.print_total("")
            if self._steady is not None:
                self._steady.print_total(" steady state")


class _Part:
    def __init__(self) -> None:
        self.began = time.monotonic()
        self.count = self._bytes = self._latency = self._latest = 0
        self._samples: list[int] = []

    def add(self, latency: int, size: int, sampled: bool) -> None:
        self.count += 1
        self._bytes += size
        self._latency += latency
        self._latest = max(self._latest, latency)
        if sampled:
            self._samples.append(latency)

    def _rates(self) -> tuple[float, float]:
        elapsed = max(time.monotonic() - self.began, 0.001)
        return self.count / elapsed, self._bytes / elapsed / _MIB

    def print_window(self) -> None:
        records, mib = self._rates()
        print(
            f"{self.count} records sent, {records:.1f} records/sec ({mib:.2f} MB/sec), "
            f"{self._latency / self.count:.1f} ms avg latency, {self._latest:.1f} ms max latency."
        )

    def print_total(self, which: str) -> None:
        records, mib = self._rates()
        samples = sorted(self._samples) or [0]
        at = [samples[min(int(part * len(samples)), len(samples) - 1)]
              for part in (0.5, 0.95, 0.99, 0.999)]  # fmt: skip
        print(
            f"{self.count}{which} records sent, {records:f} records/sec ({mib:.2f} MB/sec), "
            f"{self._latency / max(self.count, 1):.2f} ms avg latency, {self._latest:.2f} ms max "
            f"latency, {at[0]} ms 50th, {at[1]} ms 95th, {at[2]} ms 99th, {at[3]} ms 99.9th."
        )


TOOL = ParsedTool(_build, _run, alone=0, help_code=1)
