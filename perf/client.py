#!/usr/bin/env python3
"""kbroker's clients for Python beside confluent-kafka and kafka-python, on one broker.

    python perf/client.py                     every cell, medians of five
    python perf/client.py --cells produce100 --runs 3
    python perf/client.py --cells mirror      mirror makers (perf/mirror.py), only if named
    python perf/client.py --output perf/results/client/DATE-COMMIT.json
    python perf/client.py --quick             toy size, to see that it all runs
    python perf/client.py --bootstrap HOST:PORT   a broker that runs already
    python perf/client.py --before 0153d3d9   our clients of now beside those of another build

Each run is a process of its own. A producer sends values that exist already as bytes, with the same
settings for all (batch.size, linger.ms, acks=all, no idempotence, 64 MiB of memory): from the first
call until everything is acknowledged. A consumer reads partitions from their beginning, with its
defaults and without commits, as often as its number of records needs. Libraries take turns.
``topic_list`` is the time that ``kbroker topic list`` takes, from exec to exit.

What is before is a revision, which is built in ``.cache/builds`` once, or a checkout.
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from perf.arguments import Arguments
from perf.bars import OURS, Bar, Cell, Figures
from perf.brokers import KbrokerBroker
from perf.checkouts import BUILD_HELP, checkout_of, python_of
from perf.machine import touch_free_memory
from perf.runner import Report, tell
from perf.topics import create_topic, delete_topic, fresh_name

PARTITIONS = 4
BUFFER_BYTES = 64 << 20
DISTINCT = 1000
# More than what a run writes, which stays in memory for a while.
TOUCHED_BYTES = 4 << 30
WAIT_S = 120.0
TOPIC_LISTS = 20
BEFORE = ", before"


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
        _read_rounds(options, lambda: read(consumer), consumer.seek_to_beginning)


def _read_rounds(options: Options, read: Callable[[], int], rewind: Callable[[], object]) -> None:
    """From the beginning, as often as the number of records needs."""
    left = options.records
    while left > 0:
        due = min(left, options.filled)
        left -= due
        while due > 0:
            due -= read()
        if left:
            rewind()


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
    parts = [TopicPartition(options.topic, n, OFFSET_BEGINNING) for n in range(PARTITIONS)]

    def read() -> int:
        messages = consumer.consume(500, WAIT_S)
        assert messages[-1].error() is None, messages[-1].error()
        return len(messages)

    yield_start()
    consumer.assign(parts)
    _read_rounds(options, read, lambda: consumer.assign(parts))
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
    _read_rounds(
        options,
        lambda: sum(map(len, consumer.poll(1000 * WAIT_S).values())),
        consumer.seek_to_beginning,
    )
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


def fill_topic(options: Options, bootstrap: str, cell: Cell) -> tuple[str, int]:
    """A topic to read from, and how many of its records are to be read in a row.

    It has half as many more: a fetch at its end would wait for others, and with it whoever reads it
    again.
    """
    from kbroker.client import KafkaProducer

    topic = new_topic(bootstrap)
    records = 2 * DISTINCT if options.quick else cell.parameters["filled"]
    values = [os.urandom(cell.parameters["value_bytes"]) for _ in range(DISTINCT)]
    with KafkaProducer(
        bootstrap_servers=bootstrap, batch_size=options.batch_size, buffer_memory=BUFFER_BYTES
    ) as producer:
        for n in range(records // DISTINCT * 3 // 2):
            producer.send_many(topic, values, partition=n % PARTITIONS)
        producer.flush(WAIT_S)
    return topic, records


def new_topic(bootstrap: str) -> str:
    topic = fresh_name("perf")
    create_topic(bootstrap, topic, PARTITIONS)
    return topic


def measure(
    options: Options,
    bootstrap: str,
    cell: Cell,
    library: str,
    filled: tuple[str, int] | None,
    checkout: Path | None = None,
) -> Figures:
    """One run in a process of its own. filled: the topic to read. checkout: of another build.
    Raises CalledProcessError.
    """
    topic, present = filled or (new_topic(bootstrap), 0)
    records = 2 * DISTINCT if options.quick else cell.parameters["records"][library]
    given = {
        "one": library,
        "bootstrap": bootstrap,
        "topic": topic,
        "records": records,
        "value-bytes": cell.parameters["value_bytes"],
        "filled": present,
        "batch-size": options.batch_size,
        "linger-ms": options.linger_ms,
    }
    if filled is None and not options.quick:
        touch_free_memory(TOUCHED_BYTES)
    words = [f"--{name}={value}" for name, value in given.items()]
    if checkout is None:
        command = [sys.executable, __file__, *words]
    else:
        command = [python_of(checkout), str(checkout / "perf" / "client.py"), *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, timeout=600)
    if filled is None:
        delete_topic(bootstrap, topic)
    run = Run(*json.loads(done.stdout.splitlines()[-1]))
    return {
        "records_per_s": run.records / run.seconds,
        "cpu_us_per_record": run.cpu_seconds / run.records * 1e6,
    }


def measure_topic_list(bootstrap: str) -> Figures:
    """The command of this interpreter's environment."""
    program = str(Path(sys.executable).with_name("kbroker"))
    began = time.perf_counter()
    subprocess.run([program, "topic", "list", "-b", bootstrap], check=True, capture_output=True)
    return {"wall_ms": (time.perf_counter() - began) * 1000}


def beside(ours: str, other: str, rule: str) -> Bar:
    return Bar("records_per_s", rule, ours=ours, other=other)


PRODUCE_BARS = (
    beside("kbroker send", "kafka-python", ">= 5x"),
    beside("kbroker send", "confluent-kafka", ">= 0.7x, aim 1.2x"),
    beside("kbroker send_many", "confluent-kafka", ">= 2x, aim 4x"),
)
CONSUME_BARS = (
    beside("kbroker poll", "kafka-python poll", ">= 3x"),
    beside("kbroker poll", "confluent consume", ">= 1x, aim 2x"),
    beside("kbroker poll_columns", "confluent consume", ">= 5x, aim 10x"),
    beside("kbroker poll_arrow", "confluent consume", ">= 5x, aim 10x"),
)
PRODUCERS = tuple(LIBRARIES)[:5]
CONSUMERS = (
    "kbroker poll",
    "kbroker poll_columns",
    "kbroker poll_columns, arrays",
    "kbroker poll_arrow",
    "confluent consume",
    "kafka-python poll",
)


def client_cell(
    name: str, bars: tuple[Bar, ...], libraries: Sequence[str], *records: int, filled: int = 0
) -> Cell:
    """records: of each run, by library; it lasts some seconds. filled: records in the topic that is
    read, 0: it is written to.
    """
    value_bytes, size = (1024, "1 KiB") if name.endswith("1k") else (100, "100 B")
    title = f"{'consume' if filled else 'produce'} values of {size}"
    by_library = dict(zip(libraries, records, strict=True))
    parameters = {"value_bytes": value_bytes, "records": by_library, "filled": filled}
    return Cell(name, title, measure, bars, parameters)


CELLS = (
    client_cell(
        "produce100", PRODUCE_BARS, PRODUCERS,
        2_000_000, 6_000_000, 6_000_000, 2_000_000, 50_000,
    ),
    client_cell(
        "produce1k", PRODUCE_BARS, PRODUCERS,
        1_000_000, 1_500_000, 1_500_000, 1_000_000, 20_000,
    ),
    client_cell(
        "consume100", CONSUME_BARS, CONSUMERS,
        8_000_000, 16_000_000, 16_000_000, 24_000_000, 2_000_000, 60_000, filled=1_000_000,
    ),
    client_cell(
        "consume1k", CONSUME_BARS, CONSUMERS,
        1_500_000, 2_000_000, 2_000_000, 2_000_000, 750_000, 40_000, filled=250_000,
    ),
)  # fmt: skip
TOPIC_LIST = Cell(
    "topic_list",
    "kbroker topic list",
    measure_topic_list,
    (Bar("wall_ms", "<= 150, aim 100", "wall, ms"),),
)


def compare(options: Options, bootstrap: str, say: Callable[[str], None] = tell) -> Report:
    """All cells. The result file, if there is one, is written after each of them."""
    report = Report(options, say=say)
    for cell in CELLS:
        if cell.name not in options.cells:
            continue
        libraries = [name for name in cell.parameters["records"] if name in options.libraries]
        filled = fill_topic(options, bootstrap, cell) if cell.parameters["filled"] else None
        take = partial(_taken, options, bootstrap, filled)
        parts = beside_before(cell, libraries) if options.before else [(cell, libraries)]
        for part, names in parts:
            report.measure([part], names, options.runs, take)
        if filled is not None:
            delete_topic(bootstrap, filled[0])
    if TOPIC_LIST.name in options.cells and not options.before:
        measure_topic_list(bootstrap)  # is not counted
        report.measure(
            [TOPIC_LIST], [OURS], TOPIC_LISTS, lambda _cell, _name: measure_topic_list(bootstrap)
        )
    return report


def _taken(
    options: Options, bootstrap: str, filled: tuple[str, int] | None, cell: Cell, library: str
) -> Figures:
    checkout = options.before if library.endswith(BEFORE) else None
    return measure(options, bootstrap, cell, library.removesuffix(BEFORE), filled, checkout)


def beside_before(cell: Cell, libraries: Sequence[str]) -> Iterator[tuple[Cell, list[str]]]:
    """A cell for each of our own libraries, which takes turns with that of the build before."""
    for name in libraries:
        if name.startswith(OURS):
            bars = (
                Bar("records_per_s", ">= 0.97x", ours=name, other=name + BEFORE),
                Bar("cpu_us_per_record", "<= 1.03x", ours=name, other=name + BEFORE),
            )
            part = replace(cell, name=f"{cell.name}, {name.removeprefix(OURS).strip()}", bars=bars)
            yield part, [name, name + BEFORE]


def parse_arguments(arguments: Sequence[str] | None = None) -> Options:
    options = Arguments(__doc__)
    cells = [cell.name for cell in (*CELLS, TOPIC_LIST)]
    options.add_names("--cells", cells, hidden=["mirror"], about="mirror alone, or some")
    options.add_names("--libraries", LIBRARIES)
    options.add_sizes(("--runs", 5, 1, ""))
    options.add_quick()
    options.add_argument("--bootstrap", help="of a broker that runs; without it one is started")
    options.add_argument("--before", help=BUILD_HELP)
    options.add_argument("--batch-size", type=int, default=131_072)
    options.add_argument("--linger-ms", type=int, default=5)
    options.add_place()
    options.add_output()
    options.add_argument("--one", choices=LIBRARIES, help=argparse.SUPPRESS)
    options.add_argument("--topic", help=argparse.SUPPRESS)
    for name in ("records", "value-bytes", "filled"):
        options.add_argument(f"--{name}", type=int, default=0, help=argparse.SUPPRESS)
    parsed = options.parse(arguments)
    if parsed.before:
        parsed.before = checkout_of(parsed.before, options.error)
    return parsed


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
    if options.cells == ["mirror"]:
        return mirror_cell(options)
    if options.bootstrap:
        return compare(options, options.bootstrap).end()
    with KbrokerBroker(tempfile.mkdtemp(dir=options.place)) as broker:
        return compare(options, broker.bootstrap).end()


if __name__ == "__main__":
    sys.exit(main())
