"""The cells of the comparison: what each loads, its figures and the bars they must clear.

A cell's ``measure`` loads one broker once, on a fresh topic, and returns figures. Any record
refused, lost or left over raises: a broker that refuses is fast.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perf import consumer_perf, coordination, old_logs, producer_perf, saturate
from perf.brokers import Broker
from perf.raw_client import wait_until_writable
from perf.start import measure_start
from perf.topics import create_topic, delete_topic, fresh_name

GIGABYTE = 1_000_000_000
MEGABYTE = 1_000_000
PERF = Path(__file__).resolve().parent
# Reading is measured after writing has ended: kbroker syncs records within a second.
SETTLE_S = 3.0

Figures = dict[str, float]


class CellFailed(RuntimeError):
    """A broker failed a cell; the figures of that run are invalid."""


@dataclass(frozen=True, slots=True)
class Bar:
    """kbroker's median compared with Kafka's: at least or at most ``ratio`` times it, and
    ``limit``.
    """

    figure: str
    text: str
    ratio: float
    at_least: bool = False
    limit: float | None = None

    def passes(self, kbroker: float, kafka: float) -> bool:
        if self.at_least:
            return kbroker >= self.ratio * kafka
        return kbroker <= self.ratio * kafka and (self.limit is None or kbroker <= self.limit)

    def describe(self) -> str:
        words = f"{'>=' if self.at_least else '<='} {self.ratio:g}x"
        return words if self.limit is None else f"{words}, <= {self.limit:g}"


def at_least(figure: str, text: str, ratio: float) -> Bar:
    return Bar(figure, text, ratio, at_least=True)


@dataclass(frozen=True, slots=True)
class Size:
    """The amount of load: full size for figures to quote, quick size to check that everything
    runs.
    """

    seconds: float = 5.0
    warmup_s: float = 1.0
    records_100: int = 4_000_000
    records_1k: int = 1_000_000
    latency_s: float = 10.0
    idle_s: float = 2.0


QUICK = Size(0.5, 0.2, 100_000, 20_000, 1.0, 0.5)

Measure = Callable[[Broker, dict[str, Any], Size], Figures]


@dataclass(frozen=True, slots=True)
class Cell:
    """One row group of the table; ``parameters`` go to ``measure`` and into the result file."""

    name: str
    title: str
    measure: Measure
    bars: tuple[Bar, ...]
    parameters: dict[str, Any] = field(default_factory=dict)
    informative: tuple[tuple[str, str], ...] = ()


def cpu_figures(cpu_s: float, size_bytes: float, requests: float | None = None) -> Figures:
    """Broker CPU per GB, and per request where requests are counted."""
    figures = {"cpu_s": cpu_s, "cpu_s_per_gb": cpu_s / size_bytes * GIGABYTE}
    if requests:
        figures["cpu_us_per_request"] = cpu_s / requests * 1e6
    return figures


def measure_saturated(broker: Broker, parameters: dict[str, Any], size: Size) -> Figures:
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in parameters.items()]
    arguments += [f"--seconds={size.seconds}", f"--warmup={size.warmup_s}"]
    options = saturate.parse_arguments(["--bootstrap", broker.bootstrap, *arguments])
    topic = fresh_name("saturate")
    leaders = create_topic(broker.bootstrap, topic, options.partitions)
    try:
        wait_until_writable(leaders, topic)
        marks: list[float] = []
        found = saturate.saturate(
            options, topic, leaders, lambda: marks.append(broker.cpu_seconds())
        )
        cpu_s = marks[1] - marks[0]
    finally:
        delete_topic(broker.bootstrap, topic)
    if found["errors"]:
        raise CellFailed(f"{broker.name} answered with errors: {found['error_codes']}")
    wanted = ("requests_per_s", "mb_per_s", "p50_us", "p99_us", "p999_us", "max_us")
    size_bytes = found["requests"] * found["request_bytes"]
    return {name: found[name] for name in wanted} | cpu_figures(
        cpu_s, size_bytes, found["requests"]
    )


def producer_options(
    broker: Broker, topic: str, parameters: dict[str, Any], size: Size
) -> argparse.Namespace:
    count = size.records_100 if parameters["record_size"] <= 100 else size.records_1k
    settings = [f"bootstrap.servers={broker.bootstrap}", *parameters["settings"]]
    return producer_perf.parse_arguments(
        [
            *("--topic", topic, "--num-records", str(count), "--throughput=-1"),
            *("--record-size", str(parameters["record_size"])),
            *("--values", parameters.get("values", "letters"), "--producer-props", *settings),
        ]
    )


def silent(_: str) -> None:
    """Suppresses the tools' progress lines; the comparison prints its own."""


def measure_produce(broker: Broker, parameters: dict[str, Any], size: Size) -> Figures:
    topic = fresh_name("produce")
    leaders = create_topic(broker.bootstrap, topic, parameters["partitions"])
    try:
        wait_until_writable(leaders, topic)
        before = broker.cpu_seconds()
        found = producer_perf.run(producer_options(broker, topic, parameters, size), silent)
        cpu_s = broker.cpu_seconds() - before
    finally:
        delete_topic(broker.bootstrap, topic)
    wanted = ("records_per_s", "p50_ms", "p99_ms", "max_ms")
    mb_per_s = found["bytes"] / found["seconds"] / MEGABYTE
    figures = {name: found[name] for name in wanted} | {"mb_per_s": mb_per_s}
    return figures | cpu_figures(cpu_s, found["bytes"])


def measure_consume(broker: Broker, parameters: dict[str, Any], size: Size) -> Figures:
    """Fill a topic as measure_produce does, then read it back, from the page cache."""
    topic = fresh_name("consume")
    leaders = create_topic(broker.bootstrap, topic, parameters["partitions"])
    try:
        wait_until_writable(leaders, topic)
        filled = producer_perf.run(producer_options(broker, topic, parameters, size), silent)
        # Every partition also has the small record that showed it to be writable.
        expected = filled["records"] + len(leaders)
        options = consumer_perf.parse_arguments(
            ["--bootstrap-server", broker.bootstrap, "--topic", topic, "--messages", str(expected)]
        )
        options.settings |= parameters.get("consumer", {})
        time.sleep(SETTLE_S)
        before = broker.cpu_seconds()
        found = consumer_perf.run(options)
        cpu_s = broker.cpu_seconds() - before
    finally:
        delete_topic(broker.bootstrap, topic)
    if not found["complete"]:
        raise CellFailed(f"{broker.name} served {found['records']} of {expected} records")
    if found["bytes"] != filled["bytes"] + len(leaders):
        raise CellFailed(f"{broker.name} served {found['bytes']} bytes, not {filled['bytes']}")
    figures = {"records_per_s": found["records_per_s"]}
    figures["mb_per_s"] = found["bytes"] / found["seconds"] / MEGABYTE
    return figures | cpu_figures(cpu_s, found["bytes"])


def measure_end_to_end(broker: Broker, parameters: dict[str, Any], size: Size) -> Figures:
    """latency.py in its own process, because it forks."""
    command = [sys.executable, str(PERF / "latency.py"), "--json", "--bootstrap", broker.bootstrap]
    command += [f"--rate={parameters['rate']}", f"--seconds={size.latency_s}"]
    before, began = broker.cpu_seconds(), time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True)
    cpu_s, seconds = broker.cpu_seconds() - before, time.monotonic() - began
    if done.returncode != 0:
        raise CellFailed(f"{broker.name}: {done.stderr.strip()}")
    found = json.loads(done.stdout)
    wanted = ("p50_ms", "p99_ms", "p999_ms", "max_ms", "sender_late_ms")
    return {name: found[name] for name in wanted} | {"cpu_percent": 100 * cpu_s / seconds}


def measure_fresh_start(broker: Broker, parameters: dict[str, Any], size: Size) -> Figures:
    """Another broker of the same kind, next to the idle one."""
    return measure_start(type(broker)(broker.home.parent), size.idle_s)


def measure_commits(broker: Broker, parameters: dict[str, Any], size: Size) -> Figures:
    marks: list[float] = []
    found = coordination.measure_commits(
        broker.bootstrap,
        parameters["sockets"],
        size.seconds,
        size.warmup_s,
        lambda: marks.append(broker.cpu_seconds()),
    )
    cpu_us = (marks[1] - marks[0]) / found.pop("requests") * 1e6
    return found | {"cpu_us_per_request": cpu_us}


def measure_transactions(broker: Broker, parameters: dict[str, Any], size: Size) -> Figures:
    marks: list[float] = []
    found = coordination.measure_transactions(
        broker.bootstrap,
        parameters["producers"],
        size.seconds,
        mark=lambda: marks.append(broker.cpu_seconds()),
    )
    cpu_ms = (marks[1] - marks[0]) / found.pop("transactions") * 1e3
    return found | {"cpu_ms_per_transaction": cpu_ms}


def measure_group(broker: Broker, parameters: dict[str, Any], size: Size) -> Figures:
    members = parameters["members"] if size.seconds >= 1 else 20
    before = broker.cpu_seconds()
    found = coordination.measure_group(broker.bootstrap, members)
    return found | {"cpu_s": broker.cpu_seconds() - before}


def measure_stored_offsets(broker: Broker, parameters: dict[str, Any], size: Size) -> Figures:
    """Another broker of the same kind: filled, stopped, started again, asked."""
    groups = parameters["groups"] if size.seconds >= 1 else 200
    partitions = parameters["partitions"]
    own = type(broker)(broker.home.parent)
    try:
        own.start()
        coordination.await_coordinator(own.bootstrap, "perf-stored-0")
        empty_bytes = own.pss_bytes()
        topic = coordination.fill(own.bootstrap, groups, partitions)
        full_bytes = own.pss_bytes()
        own.halt()
        own.launch()
        first_at = own.wait_until(
            lambda client: coordination.stored_offset(client, "perf-stored-0", topic) is not None
        )
        # Groups are spread over all partitions of the offsets topic.
        for number in range(min(groups, 300)):
            group = f"perf-stored-{number}"
            own.wait_until(
                lambda client, group=group, number=number: (
                    coordination.stored_offset(client, group, topic) == number
                )
            )
        all_at = time.monotonic()
        started_at = own.exec_at
        loaded_bytes = own.pss_bytes()
    finally:
        own.stop()
    count = groups * partitions
    return {
        "first_s": first_at - started_at,
        "all_s": all_at - started_at,
        "bytes_per_offset": (full_bytes - empty_bytes) / count,
        "loaded_bytes_per_offset": (loaded_bytes - empty_bytes) / count,
    }


def measure_old_fetch(broker: Broker, parameters: dict[str, Any], size: Size) -> Figures:
    """Fill a topic as measure_produce does, then read it with Fetch 2."""
    topic = fresh_name("oldfetch")
    leaders = create_topic(broker.bootstrap, topic, parameters["partitions"])
    try:
        wait_until_writable(leaders, topic)
        filled = producer_perf.run(producer_options(broker, topic, parameters, size), silent)
        before = broker.cpu_seconds()
        found = old_logs.read_all(leaders, topic)
        cpu_s = broker.cpu_seconds() - before
    finally:
        delete_topic(broker.bootstrap, topic)
    if found["offsets"] != filled["records"] + len(leaders):
        raise CellFailed(f"{broker.name} served {found['offsets']} offsets, not {filled}")
    figures = {"mb_per_s": filled["bytes"] / found["seconds"] / MEGABYTE}
    return figures | cpu_figures(cpu_s, filled["bytes"])


def measure_compaction(broker: Broker, parameters: dict[str, Any], size: Size) -> Figures:
    """Another broker of the same kind, with one cleaner thread: filled, then told to compact."""
    keys = parameters["keys"] if size.seconds >= 1 else 50_000
    own = type(broker)(broker.home.parent, old_logs.CLEANER_SETTINGS)
    try:
        own.start()
        found = old_logs.measure_compaction(own, keys, parameters["value_bytes"])
    finally:
        own.stop()
    return {
        "mb_per_s": found["bytes"] / found["seconds"] / MEGABYTE,
        "left_share": found["left_bytes"] / found["bytes"],
    } | cpu_figures(found["cpu_s"], found["bytes"])


CPU_ROWS = (("cpu_s_per_gb", "CPU s/GB"), ("cpu_us_per_request", "CPU us/request"))
SATURATED = {"sockets": 8, "partitions": 8, "in_flight": 5, "record_size": 100, "acks": 1}
SMALL = {"in_flight": 1, "record_size": 100, "records_per_request": 1, "acks": 1}
RATE_ROWS = (("mb_per_s", "MB/s"), ("p50_us", "p50 us"), ("p99_us", "p99 us"))

CELLS = (
    Cell(
        "sat16k",
        "16 KiB requests of 150 records, 8 sockets",
        measure_saturated,
        (
            at_least("requests_per_s", "requests/s", 1.6),
            Bar("cpu_us_per_request", "CPU us/request", 0.5),
        ),
        {**SATURATED, "records_per_request": 150},
        (("cpu_s_per_gb", "CPU s/GB"), *RATE_ROWS),
    ),
    Cell(
        "sat160k",
        "160 KiB requests of 1,500 records, 8 sockets",
        measure_saturated,
        (at_least("mb_per_s", "MB/s", 1.5),),
        {**SATURATED, "records_per_request": 1500},
        (("requests_per_s", "requests/s"), *CPU_ROWS, *RATE_ROWS[1:]),
    ),
    Cell(
        "one16",
        "1-record requests, 16 sockets with 1 in flight",
        measure_saturated,
        (
            at_least("requests_per_s", "requests/s", 1.6),
            Bar("p99_us", "p99 us", 0.5),
        ),
        {**SMALL, "sockets": 16, "partitions": 16},
        (*CPU_ROWS, ("p50_us", "p50 us")),
    ),
    Cell(
        "one1",
        "1-record requests, 1 socket",
        measure_saturated,
        (Bar("p50_us", "p50 us", 1.5), Bar("p99_us", "p99 us", 1.3)),
        {**SMALL, "sockets": 1, "partitions": 1},
        (("requests_per_s", "requests/s"), *CPU_ROWS),
    ),
    Cell(
        "produce100",
        "produce 100 B, acks=1, librdkafka's batches",
        measure_produce,
        (
            at_least("records_per_s", "records/s", 1.0),
            Bar("cpu_s_per_gb", "CPU s/GB", 0.55),
        ),
        {"record_size": 100, "partitions": 4, "settings": ["acks=1"]},
        (("mb_per_s", "MB/s"),),
    ),
    Cell(
        "produce1k_lz4",
        "produce 1 KiB, lz4",
        measure_produce,
        (
            at_least("records_per_s", "records/s", 1.0),
            Bar("cpu_s_per_gb", "CPU s/GB", 0.6),
        ),
        {
            "record_size": 1024,
            "values": "text",
            "partitions": 4,
            "settings": ["acks=1", "compression.type=lz4"],
        },
        (("mb_per_s", "MB/s"),),
    ),
    Cell(
        "consume100",
        "consume 100 B from the page cache",
        measure_consume,
        (
            at_least("records_per_s", "records/s", 1.0),
            Bar("cpu_s_per_gb", "CPU s/GB", 0.4),
        ),
        {"record_size": 100, "partitions": 4, "settings": ["acks=1"]},
        (("mb_per_s", "MB/s"),),
    ),
    Cell(
        "e2e1000",
        "end to end at 1,000 records/s",
        measure_end_to_end,
        (Bar("p50_ms", "p50 ms", 0.9), Bar("p99_ms", "p99 ms", 0.7)),
        {"rate": 1000},
        (("p999_ms", "p99.9 ms"), ("cpu_percent", "CPU % of a core")),
    ),
    Cell(
        "start",
        "exec to first acknowledged record",
        measure_fresh_start,
        (Bar("start_s", "s", 0.15, limit=0.6),),
    ),
    Cell(
        "memory",
        "memory of the idle tree (PSS)",
        measure_fresh_start,
        (Bar("pss_mib", "MiB", 0.35, limit=120),),
    ),
    Cell(
        "commits",
        "offset commits, 16 sockets with 1 in flight",
        measure_commits,
        (at_least("requests_per_s", "commits/s", 1.3),),
        {"sockets": 16},
        (("cpu_us_per_request", "CPU us/commit"), ("p50_us", "p50 us"), ("p99_us", "p99 us")),
    ),
    Cell(
        "transactions",
        "transactions of ten 1 KiB records, 8 producers",
        measure_transactions,
        (at_least("transactions_per_s", "transactions/s", 1.2),),
        {"producers": 8},
        (("cpu_ms_per_transaction", "CPU ms/transaction"),),
    ),
    Cell(
        "group300",
        "300 members from first join to all assigned",
        measure_group,
        (Bar("seconds", "s", 0.8),),
        {"members": 300},
        (("generations", "generations"), ("cpu_s", "CPU s")),
    ),
    Cell(
        "stored1m",
        "start with 1,000,000 committed offsets",
        measure_stored_offsets,
        (
            Bar("first_s", "s to the first", 0.5),
            Bar("bytes_per_offset", "bytes/offset", 1000.0, limit=200),
        ),
        {"groups": 10_000, "partitions": 100},
        (("all_s", "s to all"), ("loaded_bytes_per_offset", "bytes/offset loaded")),
    ),
    Cell(
        "compact2g",
        "compaction of 2 GiB, 10 million keys twice, one cleaner thread",
        measure_compaction,
        (at_least("mb_per_s", "MB/s", 1.2), Bar("cpu_s_per_gb", "CPU s/GB", 0.8)),
        {"keys": 10_000_000, "value_bytes": 84},
        (("left_share", "share left"),),
    ),
    Cell(
        "oldfetch_lz4",
        "fetch by an old client: lz4, down to format 1",
        measure_old_fetch,
        (at_least("mb_per_s", "MB/s", 1.0),),
        {
            "record_size": 1024,
            "values": "text",
            "partitions": 4,
            "settings": ["acks=1", "compression.type=lz4"],
        },
        (("cpu_s_per_gb", "CPU s/GB"),),
    ),
    Cell(
        "sat16k_v1",
        "16 KiB requests of 150 messages of format 1, 8 sockets",
        measure_saturated,
        (at_least("requests_per_s", "requests/s", 1.0),),
        {**SATURATED, "records_per_request": 150, "api_version": 2},
        (*CPU_ROWS, *RATE_ROWS),
    ),
    Cell(
        "sat16k_v0",
        "16 KiB requests of 150 messages of format 0, 8 sockets",
        measure_saturated,
        (at_least("requests_per_s", "requests/s", 1.0),),
        {**SATURATED, "records_per_request": 150, "api_version": 0},
        (*CPU_ROWS, *RATE_ROWS),
    ),
)
