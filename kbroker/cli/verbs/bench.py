"""``kbroker bench``: how fast the brokers take and give records, seen from here."""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from kbroker.cli.arguments import Action, CommandFailed, Usage, add_format, printed
from kbroker.cli.connecting import add_connection, client_settings, connected

if TYPE_CHECKING:
    from kbroker.client import KafkaConsumer, KafkaProducer
    from kbroker.client.batches.offsets import TopicPartition
    from kbroker.client.connections.cluster import Cluster

_PARTITIONS = 6
# BOUND: records whose time until the acknowledgement is measured.
_SAMPLES_MAX = 20_000
# Payloads begin at random places of one text, so that none has to be made for each record.
_POOL_BYTES = 1 << 16
_READ_AT_ONCE = 100_000
_COLUMNS = {
    "step": "STEP",
    "records": "RECORDS",
    "seconds": "SECONDS",
    "records_per_second": "RECORDS/S",
    "mb_per_second": "MB/S",
    "p50_ms": "P50 MS",
    "p99_ms": "P99 MS",
    "p99_9_ms": "P99.9 MS",
}
_EPILOG = """\
Without --topic it creates a topic and deletes it at the end. The steps are: write all records, read
them, and send single records that are read at once. Milliseconds are those from the call until the
acknowledgement (write) or until the record was read (round trip). MB are millions of bytes of
values. One process writes and reads: several together may reach more.

examples:
  kbroker bench
  kbroker bench -n 100000 -s 1000 -z lz4 -X linger.ms=5
  kbroker bench --acks 1 -p 1 --round-trips 0 -o json"""


def _describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-t", "--topic", metavar="TOPIC", help="an existing topic to write to")
    parser.add_argument(
        "-p", "--partitions", type=_count, metavar="N",
        help=f"of the topic that is created ({_PARTITIONS})",
    )  # fmt: skip
    parser.add_argument(
        "-r", "--replication-factor", type=_count, metavar="N",
        help="of the topic that is created (that of the brokers)",
    )  # fmt: skip
    parser.add_argument(
        "-n", "--records", type=_count, default=1_000_000, metavar="N", help="to write (1000000)"
    )
    parser.add_argument(
        "-s", "--size", type=_count, default=100, metavar="BYTES", help="of each value (100)"
    )
    parser.add_argument(
        "--acks", choices=("all", "1", "0"), default="all", help="acknowledgements (all)"
    )
    parser.add_argument(
        "-z",
        "--compression",
        choices=("none", "gzip", "snappy", "lz4", "zstd"),
        help="(compression.type of the client's settings, or none)",
    )
    parser.add_argument(
        "--round-trips", type=_number, default=1000, metavar="N", help="single records (1000)"
    )
    parser.add_argument(
        "-X",
        "--property",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of producer or consumer, such as linger.ms=5; may be repeated",
    )
    add_format(parser)
    add_connection(parser)


def _number(text: str) -> int:
    # BOUND: what a test may ask for by mistake.
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number")
    return int(text)


def _count(text: str) -> int:
    if _number(text) == 0:
        raise argparse.ArgumentTypeError("0 is not allowed: at least 1")
    return int(text)


def _bench(options: argparse.Namespace) -> None:
    if options.topic and (options.partitions or options.replication_factor):
        raise Usage("--partitions and --replication-factor are for a topic that is created")
    writes, reads = _settings(options)
    from kbroker.client import KafkaConsumer, KafkaProducer

    with connected(options) as cluster, _topic(cluster, options) as topic:
        with KafkaConsumer(reads) as consumer:
            partitions = [(topic, number) for number in consumer.partitions_for(topic)]
            consumer.assign(partitions)
            consumer.seek_to_end(*partitions)
            first = {key: consumer.position(key) for key in partitions}
            with KafkaProducer(writes) as producer:
                rows = [_write(producer, topic, options)]
            rows.append(_read(consumer, first, options))
            if options.round_trips:
                quick = {**writes, "linger.ms": "0"}
                with KafkaProducer(quick) as producer:
                    rows.append(_round_trips(producer, consumer, topic, options))
    printed(options.output, _COLUMNS, rows)


def _settings(options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of the producer and of the consumer. Raises Usage."""
    from kbroker.client.connections.security import SETTINGS as OF_SECURITY
    from kbroker.client.consumer.consumer_settings import SETTINGS as OF_CONSUMERS
    from kbroker.client.producer.producer_settings import SETTINGS as OF_PRODUCERS

    given: dict[str, Any] = dict(client_settings(options))
    for text in options.property:
        name, equals, value = text.partition("=")
        if not equals:
            raise Usage(f"--property {text!r}: write NAME=VALUE")
        if not (name in OF_PRODUCERS or name in OF_CONSUMERS or name in OF_SECURITY):
            raise Usage(f"--property {text!r}: neither producers nor consumers have {name}")
        given[name] = value
    writes = {key: value for key, value in given.items() if key in {*OF_PRODUCERS, *OF_SECURITY}}
    reads = {key: value for key, value in given.items() if key in {*OF_CONSUMERS, *OF_SECURITY}}
    writes |= {"acks": options.acks, "max.block.ms": int(options.timeout * 1000)}
    if options.acks != "all":
        writes.setdefault("enable.idempotence", "false")
    if options.compression:
        writes["compression.type"] = options.compression
    reads |= {"enable.auto.commit": "false", "auto.offset.reset": "latest", "group.id": None}
    return writes, reads


@contextmanager
def _topic(cluster: Cluster, options: argparse.Namespace) -> Iterator[str]:
    """The topic to write to; one that is created is deleted."""
    if options.topic:
        cluster.topic_to_write(options.topic)
        yield options.topic
        return
    from kbroker.client.admin.topics import BROKER_DEFAULT, NewTopic, create_topics, delete_topics

    name = f"kbroker-bench-{time.time_ns() // 1_000_000}"
    factor = options.replication_factor or BROKER_DEFAULT
    topic = NewTopic(name, options.partitions or _PARTITIONS, factor)
    made = create_topics(cluster, [topic])[name]
    if isinstance(made, Exception):
        raise made
    try:
        yield name
    finally:
        error = delete_topics(cluster, [name])[name]
        if error is not None:
            raise CommandFailed(f"cannot delete topic {name}: {error}")


# -- steps


def _write(producer: KafkaProducer, topic: str, options: argparse.Namespace) -> dict[str, Any]:
    pool = _pool(options.size)
    last = len(pool) - options.size
    chosen = random.Random(0)
    at = [chosen.randrange(last + 1) for _ in range(1024)]
    every = -(-options.records // _SAMPLES_MAX)
    times: list[float] = []
    errors: list[Exception] = []

    def done(sent_at: float, future: Any) -> None:
        error = future.exception()
        if error is not None:
            errors.append(error)
        times.append(time.perf_counter() - sent_at)

    began = time.perf_counter()
    for number in range(options.records):
        start = at[number & 1023]
        future = producer.send(topic, pool[start : start + options.size])
        if number % every == 0 or number == options.records - 1:
            future.add_done_callback(partial(done, time.perf_counter()))
            if errors:
                break
    producer.flush()
    took = time.perf_counter() - began
    if errors or producer.metrics()["record-error-total"]:
        raise CommandFailed(
            f"records were not written: {errors[0] if errors else producer.trouble()}"
        )
    return _row("write", options.records, took, options.size, times)


def _read(
    consumer: KafkaConsumer, first: dict[TopicPartition, int], options: argparse.Namespace
) -> dict[str, Any]:
    """All that was written; records of others in between, too."""
    for key, offset in first.items():
        consumer.seek(key, offset)
    left = options.records
    heard = began = time.perf_counter()
    while left > 0:
        count = sum(len(part.values) for part in consumer.poll_columns(1.0, _READ_AT_ONCE))
        now = time.perf_counter()
        if count:
            left -= count
            heard = now
        elif now - heard > options.timeout:
            raise CommandFailed(f"{left} of {options.records} records were not read")
    took = time.perf_counter() - began
    return _row("read", options.records - left, took, options.size, [])


def _round_trips(
    producer: KafkaProducer, consumer: KafkaConsumer, topic: str, options: argparse.Namespace
) -> dict[str, Any]:
    """One record after the other, each of which is read before the next is sent."""
    consumer.seek_to_end(*consumer.assignment())
    for key in consumer.assignment():
        consumer.position(key)
    pool = _pool(options.size)
    times: list[float] = []
    began = time.perf_counter()
    for number in range(options.round_trips):
        value = b"%016x" % number + pool[16 : options.size]
        sent_at = time.perf_counter()
        future = producer.send(topic, value)
        while not any(value in part.values for part in consumer.poll_columns(0.1, 1000)):
            if (error := future.exception(0) if future.done() else None) is not None:
                raise CommandFailed(f"a record was not written: {error}")
            if time.perf_counter() - sent_at > options.timeout:
                raise CommandFailed(f"record {number} was not read within {options.timeout:g} s")
        times.append(time.perf_counter() - sent_at)
    took = time.perf_counter() - began
    return _row("round trip", options.round_trips, took, max(options.size, 16), times)


def _pool(size: int) -> bytes:
    letters = bytes(65 + number % 26 for number in range(256))
    return random.Random(0).randbytes(size + _POOL_BYTES).translate(letters)


def _row(step: str, records: int, took: float, size: int, times: list[float]) -> dict[str, Any]:
    """times: of some records, in seconds."""
    ordered = sorted(times)

    def at(part: float) -> float | None:
        if not ordered:
            return None
        return round(ordered[min(int(part * len(ordered)), len(ordered) - 1)] * 1000, 3)

    rate = records / max(took, 1e-9)
    return {
        "step": step,
        "records": records,
        "seconds": round(took, 3),
        "records_per_second": round(rate),
        "mb_per_second": round(rate * size / 1e6, 1),
        "p50_ms": at(0.5),
        "p99_ms": at(0.99),
        "p99_9_ms": at(0.999),
    }


ACTION = Action("measure how fast records are written and read", _describe, _bench, _EPILOG)
