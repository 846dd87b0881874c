#!/usr/bin/env python3
"""kbroker's clients for Python beside confluent-kafka and kafka-python, on one broker.

    python perf/client.py                     every cell, medians of five
    python perf/client.py --cells produce100 --runs 3
    python perf/client.py --cells mirror      mirror makers (perf/mirror.py), only if named
    python perf/client.py --output perf/results/client/DATE-COMMIT.json
    python perf/client.py --quick             toy size, to see that it all runs
    python perf/client.py --bootstrap HOST:PORT   a broker that runs already

Each run is a process of its own. A producer sends values that exist already as bytes, with the same
settings for all (batch.size, linger.ms, acks=all, no idempotence, 64 MiB of memory): from the first
call until everything is acknowledged. A consumer reads partitions from their beginning, with its
defaults and without commits, as often as its number of records needs. Libraries take turns.
``topic_list`` is the time that ``kbroker topic list`` takes, from exec to exit.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from perf.brokers import KbrokerBroker
from perf.machine import commit_text, machine, touch_free_memory

PARTITIONS = 4
BUFFER_BYTES = 64 << 20
DISTINCT = 1000
# More than what a run writes, which stays in memory for a while.
TOUCHED_BYTES = 4 << 30
WAIT_S = 120.0


class Bar(NamedTuple):
    """ours must reach `least` times the other library; `aim` is what we want."""

    ours: str
    other: str
    least: float
    aim: float


class Cell(NamedTuple):
    """value_bytes: size of a value. records: of each run, by library; it lasts some seconds.
    filled: records in the topic that is read, 0: it is written to.
    """

    name: str
    title: str
    value_bytes: int
    records: dict[str, int]
    bars: tuple[Bar, ...]
    filled: int = 0


BARS = (
    Bar("kbroker send", "kafka-python", 5.0, 5.0),
    Bar("kbroker send", "confluent-kafka", 0.7, 1.2),
    Bar("kbroker send_many", "confluent-kafka", 2.0, 4.0),
)
CONSUME_BARS = (
    Bar("kbroker poll", "kafka-python poll", 3.0, 3.0),
    Bar("kbroker poll", "confluent consume", 1.0, 2.0),
    Bar("kbroker poll_columns", "confluent consume", 5.0, 10.0),
    Bar("kbroker poll_arrow", "confluent consume", 5.0, 10.0),
)
CELLS = (
    Cell(
        "produce100",
        "produce values of 100 B",
        100,
        {
            "kbroker send": 2_000_000,
            "kbroker send_many": 6_000_000,
            "kbroker send_many, arrays": 6_000_000,
            "confluent-kafka": 2_000_000,
            "kafka-python": 50_000,
        },
        BARS,
    ),
    Cell(
        "produce1k",
        "produce values of 1 KiB",
        1024,
        {
            "kbroker send": 1_000_000,
            "kbroker send_many": 1_500_000,
            "kbroker send_many, arrays": 1_500_000,
            "confluent-kafka": 1_000_000,
            "kafka-python": 20_000,
        },
        BARS,
    ),
    Cell(
        "consume100",
        "consume values of 100 B",
        100,
        {
            "kbroker poll": 8_000_000,
            "kbroker poll_columns": 16_000_000,
            "kbroker poll_columns, arrays": 16_000_000,
            "kbroker poll_arrow": 24_000_000,
            "confluent consume": 2_000_000,
            "kafka-python poll": 60_000,
        },
        CONSUME_BARS,
        1_000_000,
    ),
    Cell(
        "consume1k",
        "consume values of 1 KiB",
        1024,
        {
            "kbroker poll": 1_500_000,
            "kbroker poll_columns": 2_000_000,
            "kbroker poll_columns, arrays": 2_000_000,
            "kbroker poll_arrow": 2_000_000,
            "confluent consume": 750_000,
            "kafka-python poll": 40_000,
        },
        CONSUME_BARS,
        250_000,
    ),
)


TOPIC_LIST = "topic_list"
TOPIC_LIST_MS, TOPIC_LIST_AIM_MS = 150, 100
TOPIC_LISTS = 20


class Run(NamedTuple):
    """What the process that sends prints."""

    records: int
    seconds: float
    cpu_seconds: float


# -- one library each

Options = argparse.Namespace


def send_ours(options: Options, values: list[bytes]) -> None:
    from kbroker.client import KafkaProducer

    with KafkaProducer(**_settings(options), buffer_memory=BUFFER_BYTES) as producer:
        _warm(lambda: producer.send(options.topic, b"warm"), producer.flush)
        yield_start()
        send, topic = producer.send, options.topic
        for _ in range(options.records // DISTINCT):
            for value in values:
                future = send(topic, value)
        producer.flush(WAIT_S)
        future.result(0)
        failed = producer.metrics()["record-error-total"]
        assert not failed, f"{failed} records failed"


def send_many_ours(options: Options, values: Any) -> None:
    from kbroker.client import KafkaProducer

    with KafkaProducer(**_settings(options), buffer_memory=BUFFER_BYTES) as producer:
        _warm(lambda: producer.send(options.topic, b"warm"), producer.flush)
        yield_start()
        for _ in range(options.records // DISTINCT):
            producer.send_many(options.topic, values)
        producer.flush(WAIT_S)
        assert not producer.metrics()["record-error-total"]


def send_arrays_ours(options: Options, values: list[bytes]) -> None:
    send_many_ours(options, import_module("kbroker.client.batches.record_arrays").Fields.of(values))


def send_confluent(options: Options, values: list[bytes]) -> None:
    from confluent_kafka import Producer

    failed: list[Any] = []
    producer = Producer(
        {
            "bootstrap.servers": options.bootstrap,
            "acks": "all",
            "linger.ms": options.linger_ms,
            "batch.size": options.batch_size,
            "queue.buffering.max.kbytes": BUFFER_BYTES >> 10,
            "queue.buffering.max.messages": 1_000_000,
            "error_cb": failed.append,
        }
    )
    _warm(lambda: producer.produce(options.topic, b"warm"), producer.flush)
    yield_start()
    produce, poll, topic = producer.produce, producer.poll, options.topic
    for _ in range(options.records // DISTINCT):
        for value in values:
            try:
                produce(topic, value)
            except BufferError:
                while True:
                    poll(0.01)
                    try:
                        produce(topic, value)
                        break
                    except BufferError:
                        continue
        poll(0)
    left = producer.flush(WAIT_S)
    assert not left and not failed, f"{left} records are left: {failed}"


def send_kafka_python(options: Options, values: list[bytes]) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=options.bootstrap,
        acks="all",
        linger_ms=options.linger_ms,
        batch_size=options.batch_size,
        enable_idempotence=False,  # its memory has no limit
    )
    _warm(lambda: producer.send(options.topic, b"warm"), producer.flush)
    yield_start()
    for _ in range(options.records // DISTINCT):
        for value in values:
            future = producer.send(options.topic, value)
    producer.flush(WAIT_S)
    future.get(1)
    producer.close()


def poll_ours(options: Options, values: list[bytes]) -> None:
    """With max.poll.records as it is, 500."""
    _read_ours(options, lambda consumer: len(consumer.poll(WAIT_S)))


def poll_columns_ours(options: Options, values: list[bytes], **how: bool) -> None:
    _read_ours(options, lambda consumer: sum(map(len, consumer.poll_columns(WAIT_S, **how))))


def poll_arrow_ours(options: Options, values: list[bytes]) -> None:
    """Keys, values, offsets, timestamps."""
    columns = ("key", "value", "offset", "timestamp")
    _read_ours(
        options,
        lambda consumer: sum(batch.num_rows for batch in consumer.poll_arrow(WAIT_S, 1, columns)),
    )


def _read_ours(options: Options, read: Callable[[Any], int]) -> None:
    from kbroker.client import KafkaConsumer

    with KafkaConsumer(
        bootstrap_servers=options.bootstrap, auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign([(options.topic, n) for n in range(PARTITIONS)])
        for n in range(PARTITIONS):
            consumer.position((options.topic, n))
        yield_start()
        left = options.records
        while left > 0:
            due = min(left, options.filled)
            left -= due
            while due > 0:
                due -= read(consumer)
            if left:
                consumer.seek_to_beginning()


def consume_confluent(options: Options, values: list[bytes]) -> None:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": options.bootstrap,
            "group.id": "perf",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "earliest",
            # By default it rests for a second whenever its queue was full, and is slower still.
            "fetch.queue.backoff.ms": 5,
        }
    )
    consumer.list_topics(options.topic, timeout=WAIT_S)
    left = options.records
    yield_start()
    while left > 0:
        consumer.assign(
            [TopicPartition(options.topic, n, OFFSET_BEGINNING) for n in range(PARTITIONS)]
        )
        due = min(left, options.filled)
        left -= due
        while due > 0:
            found = consumer.consume(500, WAIT_S)
            due -= len(found)
        assert found[-1].error() is None, found[-1].error()
    consumer.close()


def poll_kafka_python(options: Options, values: list[bytes]) -> None:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=options.bootstrap, auto_offset_reset="earliest", enable_auto_commit=False
    )
    parts = [TopicPartition(options.topic, n) for n in range(PARTITIONS)]
    consumer.assign(parts)
    for part in parts:
        consumer.position(part)
    yield_start()
    left = options.records
    while left > 0:
        due = min(left, options.filled)
        left -= due
        while due > 0:
            due -= sum(map(len, consumer.poll(1000 * WAIT_S).values()))
        consumer.seek_to_beginning()
    consumer.close()


LIBRARIES: dict[str, Callable[[Options, list[bytes]], None]] = {
    "kbroker send": send_ours,
    "kbroker send_many": send_many_ours,
    "kbroker send_many, arrays": send_arrays_ours,
    "confluent-kafka": send_confluent,
    "kafka-python": send_kafka_python,
    "kbroker poll": poll_ours,
    "kbroker poll_columns": poll_columns_ours,
    "kbroker poll_columns, arrays": partial(poll_columns_ours, arrays=True),
    "kbroker poll_arrow": poll_arrow_ours,
    "confluent consume": consume_confluent,
    "kafka-python poll": poll_kafka_python,
}


def _settings(options: Options) -> dict[str, Any]:
    return {
        "bootstrap_servers": options.bootstrap,
        "acks": "all",
        "linger_ms": options.linger_ms,
        "batch_size": options.batch_size,
        "enable_idempotence": False,
    }


def _warm(send: Callable[[], Any], flush: Callable[[], Any]) -> None:
    """Connections and metadata are not what is measured."""
    for _ in range(4 * PARTITIONS):
        send()
        flush()


_started: list[tuple[float, float]] = []


def yield_start() -> None:
    """The measurement begins here."""
    _started.append((time.perf_counter(), _cpu()))


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def run_here(options: Options) -> Run:
    """One run in this process."""
    values = [os.urandom(options.value_bytes) for _ in range(DISTINCT)]
    LIBRARIES[options.one](options, values)
    (begun, cpu) = _started[-1]
    count = options.records
    if not options.filled:
        count = count // DISTINCT * DISTINCT
    return Run(count, time.perf_counter() - begun, _cpu() - cpu)


# -- the comparison


def create_topic(bootstrap: str, name: str = "") -> str:
    """A new topic with some partitions."""
    from confluent_kafka.admin import AdminClient, NewTopic

    name = name or f"perf-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(name, PARTITIONS, 1)]).values():
        future.result(30)
    return name


def delete_topic(bootstrap: str, name: str) -> None:
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_topics([name]).values():
        future.result(30)


def fill_topic(options: Options, bootstrap: str, cell: Cell) -> tuple[str, int]:
    """A topic to read from, and how many of its records are to be read in a row.

    It has half as many more: a fetch at its end would wait for others, and with it whoever reads it
    again.
    """
    from kbroker.client import KafkaProducer

    topic = create_topic(bootstrap)
    records = 2 * DISTINCT if options.quick else cell.filled
    values = [os.urandom(cell.value_bytes) for _ in range(DISTINCT)]
    with KafkaProducer(
        bootstrap_servers=bootstrap, batch_size=options.batch_size, buffer_memory=BUFFER_BYTES
    ) as producer:
        for n in range(records // DISTINCT * 3 // 2):
            producer.send_many(topic, values, partition=n % PARTITIONS)
        producer.flush(WAIT_S)
    return topic, records


def measure(
    options: Options, bootstrap: str, cell: Cell, library: str, filled: tuple[str, int] | None
) -> Run:
    """One run in a process of its own. filled: the topic to read. Raises CalledProcessError."""
    topic, present = filled or (create_topic(bootstrap), 0)
    records = 2 * DISTINCT if options.quick else cell.records[library]
    command = [sys.executable, __file__, "--one", library, "--bootstrap", bootstrap]
    command += ["--topic", topic, "--records", str(records)]
    command += ["--value-bytes", str(cell.value_bytes), "--filled", str(present)]
    command += ["--batch-size", str(options.batch_size), "--linger-ms", str(options.linger_ms)]
    if filled is None and not options.quick:
        touch_free_memory(TOUCHED_BYTES)
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, timeout=600)
    if filled is None:
        delete_topic(bootstrap, topic)
    return Run(*json.loads(done.stdout.splitlines()[-1]))


def compare(options: Options, bootstrap: str, say: Callable[[str], None] = print) -> dict[str, Any]:
    """All cells, by name. The result file, if there is one, is written after each of them."""
    found: dict[str, Any] = {}
    for cell in CELLS:
        if cell.name not in options.cells.split(","):
            continue
        chosen = options.libraries.split(",")
        libraries = [name for name in LIBRARIES if name in cell.records and name in chosen]
        filled = fill_topic(options, bootstrap, cell) if cell.filled else None
        runs: dict[str, list[Run]] = {name: [] for name in libraries}
        for turn in range(options.runs):
            for name in libraries[turn % len(libraries) :] + libraries[: turn % len(libraries)]:
                runs[name].append(measure(options, bootstrap, cell, name, filled))
        if filled is not None:
            delete_topic(bootstrap, filled[0])
        rates = {name: [one.records / one.seconds for one in some] for name, some in runs.items()}
        say(f"{cell.name}: values of {cell.value_bytes} bytes")
        for name, some in runs.items():
            cpu = median(one.cpu_seconds / one.records * 1e6 for one in some)
            low, high = min(rates[name]), max(rates[name])
            say(
                f"  {name:20} {median(rates[name]):>12,.0f} records/s ({low:,.0f} to {high:,.0f}), "
                f"{cpu:.2f} µs CPU a record"
            )
        conditions = [
            judge(bar, "records/s", rates)
            for bar in cell.bars
            if {bar.ours, bar.other} <= set(rates)
        ]
        for one in conditions:
            say(condition_text(one))
        found[cell.name] = {"title": cell.title, "rates": rates, "conditions": conditions}
        if options.output:
            write_result(options.output, found)
    if TOPIC_LIST in options.cells.split(","):
        found[TOPIC_LIST] = topic_list_cell(bootstrap, say)
    if options.output:
        write_result(options.output, found)
    return found


def judge(
    bar: Bar, figure: str, values: dict[str, list[float]], higher_is_better: bool = True
) -> dict[str, Any]:
    """A condition of a result file, as perf/results_table.py reads it."""
    ours, other = median(values[bar.ours]), median(values[bar.other])
    ratio = ours / other
    sign = ">=" if higher_is_better else "<="
    aim = f", aim {bar.aim:g}x" if bar.aim != bar.least else ""
    return {
        "text": f"{bar.ours}, {figure}",
        "condition": f"{sign} {bar.least:g}x{aim}",
        "kbroker": ours,
        "other": other,
        "other_name": bar.other,
        "ratio": ratio,
        "met": ratio >= bar.least if higher_is_better else ratio <= bar.least,
    }


def condition_text(one: dict[str, Any]) -> str:
    verdict = "reached" if one["met"] else "MISSED"
    beside = f" / {one['other_name']}: {one['ratio']:.2f}x" if one["other_name"] else ""
    return f"  {one['text']}{beside}, {one['condition']} ({verdict})"


def topic_list_cell(bootstrap: str, say: Callable[[str], None]) -> dict[str, Any]:
    """The command of this interpreter's environment. The first run is not counted."""
    program = str(Path(sys.executable).with_name("kbroker"))
    times = []
    for _ in range(TOPIC_LISTS + 1):
        begun = time.perf_counter()
        subprocess.run([program, "topic", "list", "-b", bootstrap], check=True, capture_output=True)
        times.append((time.perf_counter() - begun) * 1000)
    wall = median(times[1:])
    say(f"kbroker topic list: {wall:.0f} ms ({min(times[1:]):.0f} to {max(times[1:]):.0f})")
    one = {
        "text": "wall, ms",
        "condition": f"<= {TOPIC_LIST_MS}, aim {TOPIC_LIST_AIM_MS}",
        "kbroker": wall,
        "other": None,
        "other_name": "",
        "ratio": None,
        "met": wall <= TOPIC_LIST_MS,
    }
    say(condition_text(one))
    return {"title": "kbroker topic list", "times_ms": times[1:], "conditions": [one]}


def write_result(path: str, cells: dict[str, Any]) -> None:
    result = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit_text(),
        "machine": machine(),
        "cells": cells,
    }
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(result, indent=1) + "\n")


def parse_arguments(arguments: Sequence[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--cells", default=",".join([cell.name for cell in CELLS] + [TOPIC_LIST]))
    parser.add_argument("--libraries", default=",".join(LIBRARIES))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="toy size; writes no result")
    parser.add_argument("--bootstrap", help="of a broker that runs; without it one is started")
    parser.add_argument("--batch-size", type=int, default=131_072)
    parser.add_argument("--linger-ms", type=int, default=5)
    parser.add_argument("--place", default="/tmp", help="where the broker's data goes")
    parser.add_argument("--output", help="a JSON file for the result")
    parser.add_argument("--one", choices=LIBRARIES, help=argparse.SUPPRESS)
    parser.add_argument("--topic", help=argparse.SUPPRESS)
    parser.add_argument("--records", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--value-bytes", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--filled", type=int, default=0, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def mirror_cell(options: Options) -> int:
    """Two brokers of its own, and processes that are no Python client."""
    from perf import mirror

    words = ["--runs", str(options.runs), "--place", options.place]
    words += ["--quick"] if options.quick else []
    return mirror.main([*words, *(["--output", options.output] if options.output else [])])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print; with --one, one run for the process that asked for it."""
    options = parse_arguments(arguments)
    if options.one:
        print(json.dumps(run_here(options)))
        return 0
    options.runs = 1 if options.quick else options.runs
    if options.cells == "mirror":
        return mirror_cell(options)
    if options.bootstrap:
        compare(options, options.bootstrap)
    else:
        with KbrokerBroker(tempfile.mkdtemp(dir=options.place)) as broker:
            compare(options, broker.bootstrap)
    return 0


if __name__ == "__main__":
    sys.exit(main())
