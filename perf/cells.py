"""The cells of the comparison: what each loads, its figures and the bars they must clear.

A cell's ``measure`` loads one broker once, on a fresh topic, and returns figures. Any record
refused, lost or left over raises: a broker that refuses is fast.
"""

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from perf import consumer_perf, coordination, old_logs, producer_perf, saturate
from perf.bars import Bar, Cell, CellFailed, Figures, bars
from perf.brokers import Broker
from perf.process_tree import Meter
from perf.start import measure_start
from perf.topics import Subject, count_records, topic_of
from perf.waiting import wait_until

GIGABYTE = 1_000_000_000
MEGABYTE = 1_000_000
PERF = Path(__file__).resolve().parent
# Reading is measured after writing has ended: kbroker syncs records within a second.
SETTLE_S = 3.0


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


def cpu_figures(cpu_s: float, size_bytes: float, requests: float | None = None) -> Figures:
    """Broker CPU per GB, and per request where requests are counted."""
    figures = {"cpu_s": cpu_s, "cpu_s_per_gb": cpu_s / size_bytes * GIGABYTE}
    if requests:
        figures["cpu_us_per_request"] = cpu_s / requests * 1e6
    return figures


def measure_saturated(subject: Subject, parameters: dict[str, Any], size: Size) -> Figures:
    """Of a broker or a cluster."""
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in parameters.items()]
    arguments += [f"--seconds={size.seconds}", f"--warmup={size.warmup_s}"]
    options = saturate.parse_arguments(["--bootstrap", subject.bootstrap, *arguments])
    used = Meter(subject.cpu_seconds)
    with topic_of(subject, options.partitions, "saturate") as (topic, leaders):
        # The records that made the partitions writable must be counted before the load, not with
        # it.
        ends = partial(count_records, subject.bootstrap, topic, leaders)
        wait_until(lambda: ends() == len(leaders), f"the first records of {topic} committed")
        result = saturate.saturate(options, topic, leaders, used.mark)
    if result["errors"]:
        raise CellFailed(f"{subject.name} answered with errors: {result['error_codes']}")
    wanted = ("requests_per_s", "mb_per_s", "p50_us", "p99_us", "p999_us", "max_us")
    size_bytes = result["requests"] * result["request_bytes"]
    return {name: result[name] for name in wanted} | cpu_figures(
        used.cpu_s, size_bytes, result["requests"]
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
    with topic_of(broker, parameters["partitions"], "produce") as (topic, _):
        with Meter(broker.cpu_seconds) as used:
            sent = producer_perf.run(producer_options(broker, topic, parameters, size), silent)
    wanted = ("records_per_s", "p50_ms", "p99_ms", "max_ms")
    mb_per_s = sent["bytes"] / sent["seconds"] / MEGABYTE
    figures = {name: sent[name] for name in wanted} | {"mb_per_s": mb_per_s}
    return figures | cpu_figures(used.cpu_s, sent["bytes"])


def measure_consume(broker: Broker, parameters: dict[str, Any], size: Size) -> Figures:
    """Fill a topic as measure_produce does, then read it back, from the page cache."""
    with topic_of(broker, parameters["partitions"], "consume") as (topic, leaders):
        filled = producer_perf.run(producer_options(broker, topic, parameters, size), silent)
        # Every partition also has the small record that showed it to be writable.
        expected = filled["records"] + len(leaders)
        options = consumer_perf.parse_arguments(
            ["--bootstrap-server", broker.bootstrap, "--topic", topic, "--messages", str(expected)]
        )
        options.settings |= parameters.get("consumer", {})
        time.sleep(SETTLE_S)
        with Meter(broker.cpu_seconds) as used:
            read = consumer_perf.run(options)
    if not read["complete"]:
        raise CellFailed(f"{broker.name} served {read['records']} of {expected} records")
    if read["bytes"] != filled["bytes"] + len(leaders):
        raise CellFailed(f"{broker.name} served {read['bytes']} bytes, not {filled['bytes']}")
    figures = {"records_per_s": read["records_per_s"]}
    figures["mb_per_s"] = read["bytes"] / read["seconds"] / MEGABYTE
    return figures | cpu_figures(used.cpu_s, read["bytes"])


def measure_end_to_end(subject: Subject, parameters: dict[str, Any], size: Size) -> Figures:
    """latency.py, which forks, in a process of its own; of a broker or a cluster."""
    command = [sys.executable, str(PERF / "latency.py"), "--json"]
    command += [f"--bootstrap={subject.bootstrap}", f"--seconds={size.latency_s}"]
    command += [f"--rate={parameters['rate']}", f"--acks={parameters.get('acks', '1')}"]
    with topic_of(subject, 1, "latency", is_written=False) as (topic, _):
        with Meter(subject.cpu_seconds) as used:
            done = subprocess.run([*command, f"--topic={topic}"], capture_output=True, text=True)
    if done.returncode != 0:
        raise CellFailed(f"{subject.name}: {done.stderr.strip()}")
    result = json.loads(done.stdout)
    wanted = ("p50_ms", "p99_ms", "p999_ms", "max_ms", "sender_late_ms")
    return {name: result[name] for name in wanted} | {"cpu_percent": used.percent}


def measure_fresh_start(broker: Broker, parameters: dict[str, Any], size: Size) -> Figures:
    """Another broker of the same kind, next to the idle one."""
    return measure_start(type(broker)(broker.home.parent), size.idle_s)


def measure_commits(broker: Broker, parameters: dict[str, Any], size: Size) -> Figures:
    used = Meter(broker.cpu_seconds)
    figures = coordination.measure_commits(
        broker.bootstrap, parameters["sockets"], size.seconds, size.warmup_s, used.mark
    )
    return figures | {"cpu_us_per_request": used.cpu_s / figures.pop("requests") * 1e6}


def measure_transactions(broker: Broker, parameters: dict[str, Any], size: Size) -> Figures:
    used = Meter(broker.cpu_seconds)
    figures = coordination.measure_transactions(
        broker.bootstrap, parameters["producers"], size.seconds, mark=used.mark
    )
    return figures | {"cpu_ms_per_transaction": used.cpu_s / figures.pop("transactions") * 1e3}


def measure_group(broker: Broker, parameters: dict[str, Any], size: Size) -> Figures:
    members = parameters["members"] if size.seconds >= 1 else 20
    with Meter(broker.cpu_seconds) as used:
        figures = coordination.measure_group(broker.bootstrap, members)
    return figures | {"cpu_s": used.cpu_s}


def measure_stored_offsets(broker: Broker, parameters: dict[str, Any], size: Size) -> Figures:
    """Another broker of the same kind: filled, stopped, started again, asked."""
    groups = parameters["groups"] if size.seconds >= 1 else 200
    partitions = parameters["partitions"]
    own = type(broker)(broker.home.parent)

    def known(number: int) -> float:
        """Wait until the offset of that group is known."""
        group = f"perf-stored-{number}"
        return own.wait_until(
            lambda client: coordination.stored_offset(client, group, topic) == number
        )

    try:
        own.start()
        coordination.await_coordinator(own.bootstrap, "perf-stored-0")
        empty_bytes = own.pss_bytes()
        topic = coordination.fill(own.bootstrap, groups, partitions)
        full_bytes = own.pss_bytes()
        own.halt()
        own.launch()
        first_at = known(0)
        # Groups are spread over all partitions of the offsets topic.
        for number in range(min(groups, 300)):
            known(number)
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
    with topic_of(broker, parameters["partitions"], "oldfetch") as (topic, leaders):
        filled = producer_perf.run(producer_options(broker, topic, parameters, size), silent)
        with Meter(broker.cpu_seconds) as used:
            read = old_logs.read_all(leaders, topic)
    if read["offsets"] != filled["records"] + len(leaders):
        raise CellFailed(f"{broker.name} served {read['offsets']} offsets, not {filled}")
    figures = {"mb_per_s": filled["bytes"] / read["seconds"] / MEGABYTE}
    return figures | cpu_figures(used.cpu_s, filled["bytes"])


def measure_compaction(broker: Broker, parameters: dict[str, Any], size: Size) -> Figures:
    """Another broker of the same kind, with one cleaner thread: filled, then told to compact."""
    keys = parameters["keys"] if size.seconds >= 1 else 50_000
    own = type(broker)(broker.home.parent, old_logs.CLEANER_SETTINGS)
    try:
        own.start()
        result = old_logs.measure_compaction(own, keys, parameters["value_bytes"])
    finally:
        own.stop()
    return {
        "mb_per_s": result["bytes"] / result["seconds"] / MEGABYTE,
        "left_share": result["left_bytes"] / result["bytes"],
    } | cpu_figures(result["cpu_s"], result["bytes"])


SATURATED = {"sockets": 8, "partitions": 8, "in_flight": 5, "record_size": 100, "acks": 1}
SMALL = {"in_flight": 1, "record_size": 100, "records_per_request": 1, "acks": 1}
PLAIN = {"record_size": 100, "partitions": 4, "settings": ["acks=1"]}
LZ4 = {
    "record_size": 1024,
    "values": "text",
    "partitions": 4,
    "settings": ["acks=1", "compression.type=lz4"],
}
CPU = ("cpu_s_per_gb", "cpu_us_per_request")
RATES = ("mb_per_s", "p50_us", "p99_us")

CELLS = (
    Cell(
        "sat16k",
        "16 KiB requests of 150 records, 8 sockets",
        measure_saturated,
        bars("requests_per_s >= 1.6x", "cpu_us_per_request <= 0.5x", "cpu_s_per_gb", *RATES),
        {**SATURATED, "records_per_request": 150},
    ),
    Cell(
        "sat160k",
        "160 KiB requests of 1,500 records, 8 sockets",
        measure_saturated,
        bars("mb_per_s >= 1.5x", "requests_per_s", *CPU, "p50_us", "p99_us"),
        {**SATURATED, "records_per_request": 1500},
    ),
    Cell(
        "one16",
        "1-record requests, 16 sockets with 1 in flight",
        measure_saturated,
        bars("requests_per_s >= 1.6x", "p99_us <= 0.5x", *CPU, "p50_us"),
        {**SMALL, "sockets": 16, "partitions": 16},
    ),
    Cell(
        "one1",
        "1-record requests, 1 socket",
        measure_saturated,
        bars("p50_us <= 1.5x", "p99_us <= 1.3x", "requests_per_s", *CPU),
        {**SMALL, "sockets": 1, "partitions": 1},
    ),
    Cell(
        "produce100",
        "produce 100 B, acks=1, librdkafka's batches",
        measure_produce,
        bars("records_per_s >= 1x", "cpu_s_per_gb <= 0.55x", "mb_per_s"),
        PLAIN,
    ),
    Cell(
        "produce1k_lz4",
        "produce 1 KiB, lz4",
        measure_produce,
        bars("records_per_s >= 1x", "cpu_s_per_gb <= 0.6x", "mb_per_s"),
        LZ4,
    ),
    Cell(
        "consume100",
        "consume 100 B from the page cache",
        measure_consume,
        bars("records_per_s >= 1x", "cpu_s_per_gb <= 0.4x", "mb_per_s"),
        PLAIN,
    ),
    Cell(
        "e2e1000",
        "end to end at 1,000 records/s",
        measure_end_to_end,
        bars("p50_ms <= 0.9x", "p99_ms <= 0.7x", "p999_ms", "cpu_percent"),
        {"rate": 1000},
    ),
    Cell(
        "start",
        "exec to first acknowledged record",
        measure_fresh_start,
        bars("start_s <= 0.15x, <= 0.6"),
    ),
    Cell(
        "memory",
        "memory of the idle tree (PSS)",
        measure_fresh_start,
        bars("pss_mib <= 0.35x, <= 120"),
    ),
    Cell(
        "commits",
        "offset commits, 16 sockets with 1 in flight",
        measure_commits,
        (
            Bar("requests_per_s", ">= 1.3x", "commits/s"),
            Bar("cpu_us_per_request", text="CPU µs/commit"),
            *bars("p50_us", "p99_us"),
        ),
        {"sockets": 16},
    ),
    Cell(
        "transactions",
        "transactions of ten 1 KiB records, 8 producers",
        measure_transactions,
        bars("transactions_per_s >= 1.2x", "cpu_ms_per_transaction"),
        {"producers": 8},
    ),
    Cell(
        "group300",
        "300 members from first join to all assigned",
        measure_group,
        bars("seconds <= 0.8x", "generations", "cpu_s"),
        {"members": 300},
    ),
    Cell(
        "stored1m",
        "start with 1,000,000 committed offsets",
        measure_stored_offsets,
        bars(
            "first_s <= 0.5x",
            "bytes_per_offset <= 1000x, <= 200",
            "all_s",
            "loaded_bytes_per_offset",
        ),
        {"groups": 10_000, "partitions": 100},
    ),
    Cell(
        "compact2g",
        "compaction of 2 GiB, 10 million keys twice, one cleaner thread",
        measure_compaction,
        bars("mb_per_s >= 1.2x", "cpu_s_per_gb <= 0.8x", "left_share"),
        {"keys": 10_000_000, "value_bytes": 84},
    ),
    Cell(
        "oldfetch_lz4",
        "fetch by an old client: lz4, down to format 1",
        measure_old_fetch,
        bars("mb_per_s >= 1x", "cpu_s_per_gb"),
        LZ4,
    ),
    *(
        Cell(
            f"sat16k_v{message_format}",
            f"16 KiB requests of 150 messages of format {message_format}, 8 sockets",
            measure_saturated,
            bars("requests_per_s >= 1x", *CPU, *RATES),
            {**SATURATED, "records_per_request": 150, "api_version": version},
        )
        for message_format, version in ((1, 2), (0, 0))
    ),
)
