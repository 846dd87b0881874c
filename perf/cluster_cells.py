"""The cells of ``perf/cluster.py``: topics with three replicas, acks=all, min.insync.replicas=2.

A cell loads or disturbs one cluster once and leaves it as it was. A record that is rejected or
lost raises: a cluster that rejects records is fast. Every figure is compared with the better of
the two Kafkas.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from kbroker.testing.metadata import are_in_sync
from perf import saturate
from perf.brokers import Broker, KbrokerBroker
from perf.cells import MEGABYTE, PERF, CellFailed, Figures, cpu_figures
from perf.clusters import Cluster
from perf.frames import random_values, record_batch
from perf.prober import Prober
from perf.process_tree import descendants
from perf.raw_client import RawClient, parse_address, wait_for_leaders, wait_until_writable
from perf.topics import count_records, create_topic, delete_topic, fresh_name

REPLICAS = 3
# Of a topic: Kafka 3.9.1 rejects a CreateTopics for which its controller would write more than
# 10,000 records.
TOPIC_PARTITIONS_MAX = 2500
RECORD = record_batch(random_values(1, 100, seed=1))
# For thousands of partitions whose logs a Kafka recovers after a kill.
WAIT_S = 600.0
# Each look connects to every broker, which is counted as their CPU.
IN_SYNC_PAUSE_S = 0.1
# What brokers have to do after thousands of partitions were deleted or created, a file here and
# there, is over when each of them takes no more than this share of a core.
SETTLED_SHARE, SETTLED_MAX_S = 0.03, 120.0


@dataclass(frozen=True, slots=True)
class Size:
    """How much load; the quick size only shows that everything runs."""

    seconds: float = 5.0
    warmup_s: float = 1.0
    latency_s: float = 10.0
    catch_up_gib: float = 10.0
    led_partitions: int = 1000
    idle_partitions: int = 10_000
    idle_s: float = 20.0


QUICK = Size(1.0, 0.2, 1.0, 0.1, 10, 100, 1.0)


@dataclass(frozen=True, slots=True)
class Condition:
    """kbroker's figure against the better Kafka's: a ratio, a limit of its own, or both."""

    figure: str
    text: str
    ratio: float | None = None
    aim: float | None = None
    limit: float | None = None
    at_least: bool = False

    def better(self, values: Sequence[float]) -> float:
        return max(values) if self.at_least else min(values)

    def passes(self, kbroker: float, kafka: float | None) -> bool | None:
        """None if there is nothing to compare with."""
        if self.limit is not None and kbroker > self.limit:
            return False
        if self.ratio is None:
            return True if self.limit is not None else None
        if kafka is None:
            return None
        allowed = self.ratio * kafka
        return kbroker >= allowed if self.at_least else kbroker <= allowed

    def describe(self) -> str:
        sign = ">=" if self.at_least else "<="
        parts = [] if self.ratio is None else [f"{sign} {self.ratio:g}x"]
        parts += [] if self.aim is None else [f"aim {self.aim:g}x"]
        parts += [] if self.limit is None else [f"<= {self.limit:g}"]
        return ", ".join(parts)


Measure = Callable[[Cluster, Size, dict[str, Any]], Figures]


@dataclass(frozen=True, slots=True)
class ClusterCell:
    """A row group of the table."""

    name: str
    title: str
    measure: Measure
    conditions: tuple[Condition, ...]
    parameters: dict[str, Any]
    # Gigabytes are written, so that memory's first use would be measured.
    fills_memory: bool = False


@contextmanager
def topic_of(cluster: Cluster, partitions: int, prefix: str) -> Iterator[str]:
    """A topic with a replica on each broker, once all partitions accept records."""
    name = fresh_name(prefix)
    leaders = create_topic(
        cluster.bootstrap, name, partitions, replication_factor=REPLICAS, timeout=WAIT_S
    )
    try:
        wait_until_writable(leaders, name, WAIT_S)
        # By then a follower that is late has left the ISR, or its log is open.
        wait_until_in_sync(cluster, name, REPLICAS)
        yield name
    finally:
        delete_topic(cluster.bootstrap, name, WAIT_S)


@contextmanager
def topics_of(cluster: Cluster, partitions: int, prefix: str) -> Iterator[list[str]]:
    """As ``topic_of``, with so many partitions in all."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(topic_of(cluster, some, prefix)) for some in parts_of(partitions)
        ]


def parts_of(partitions: int) -> list[int]:
    """How many partitions each topic gets."""
    whole, rest = divmod(partitions, TOPIC_PARTITIONS_MAX)
    return [TOPIC_PARTITIONS_MAX] * whole + [rest] * bool(rest)


def leaders_of(cluster: Cluster, topic: str) -> dict[int, tuple[str, int] | None]:
    with RawClient(parse_address(cluster.bootstrap)) as client:
        return client.metadata(topic).leaders


def wait_until_in_sync(
    cluster: Cluster, topic: str, replicas: int, timeout: float = WAIT_S
) -> float:
    """Wait until every partition has this many replicas in the ISR; returns the time.monotonic() of
    that.
    """

    def all_in_sync() -> bool:
        return are_in_sync(cluster.bootstrap.split(","), topic, replicas)

    what = f"{replicas} replicas of {topic} in sync"
    return cluster.wait(all_in_sync, what, timeout, IN_SYNC_PAUSE_S)


def measure_saturated(cluster: Cluster, size: Size, parameters: dict[str, Any]) -> Figures:
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in parameters.items()]
    arguments += [f"--seconds={size.seconds}", f"--warmup={size.warmup_s}", "--acks=-1"]
    options = saturate.parse_arguments(["--bootstrap", cluster.bootstrap, *arguments])
    with topic_of(cluster, options.partitions, "saturate") as topic:
        leaders = {p: at for p, at in leaders_of(cluster, topic).items() if at is not None}
        # The records that made the partitions writable must be counted before the load, not with
        # it.
        ends = partial(count_records, cluster.bootstrap, topic, leaders)
        cluster.wait(lambda: ends() == len(leaders), f"the first records of {topic} committed")
        marks: list[float] = []
        found = saturate.saturate(
            options, topic, leaders, lambda: marks.append(cluster.cpu_seconds())
        )
    if found["errors"]:
        raise CellFailed(f"{cluster.name} rejected requests: {found['error_codes']}")
    wanted = ("requests_per_s", "mb_per_s", "p50_us", "p99_us", "max_us")
    size_bytes = found["requests"] * found["request_bytes"]
    cpu_s = marks[1] - marks[0]
    return {name: found[name] for name in wanted} | cpu_figures(
        cpu_s, size_bytes, found["requests"]
    )


def measure_end_to_end(cluster: Cluster, size: Size, parameters: dict[str, Any]) -> Figures:
    """latency.py, which forks, in a process of its own."""
    command = [sys.executable, str(PERF / "latency.py"), "--json", "--acks=all"]
    command += [f"--bootstrap={cluster.bootstrap}", f"--seconds={size.latency_s}"]
    topic = fresh_name("latency")
    create_topic(cluster.bootstrap, topic, 1, replication_factor=REPLICAS)
    try:
        wait_until_in_sync(cluster, topic, REPLICAS)
        before, began = cluster.cpu_seconds(), time.monotonic()
        command += [f"--rate={parameters['rate']}", f"--topic={topic}"]
        done = subprocess.run(command, capture_output=True, text=True)
        cpu_s, seconds = cluster.cpu_seconds() - before, time.monotonic() - began
    finally:
        delete_topic(cluster.bootstrap, topic)
    if done.returncode != 0:
        raise CellFailed(f"{cluster.name}: {done.stderr.strip()}")
    found = json.loads(done.stdout)
    wanted = ("p50_ms", "p99_ms", "p999_ms", "max_ms")
    return {name: found[name] for name in wanted} | {"cpu_percent": 100 * cpu_s / seconds}


def measure_catch_up(cluster: Cluster, size: Size, parameters: dict[str, Any]) -> Figures:
    """Broker 3 loses its data while it is stopped, and copies a topic that broker 1 leads."""
    leader, _, empty = cluster.brokers
    topic = fresh_name("catchup")
    partitions = parameters["partitions"]
    admin = AdminClient({"bootstrap.servers": leader.bootstrap, "log_level": 3})
    settings = {"min.insync.replicas": "1", "unclean.leader.election.enable": "false"}
    assignment = [[1, 3]] * partitions
    new = NewTopic(topic, partitions, replica_assignment=assignment, config=settings)
    admin.create_topics([new])[topic].result(timeout=30)
    try:
        wait_until_in_sync(cluster, topic, 2)
        empty.halt()
        wait_until_in_sync(cluster, topic, 1)
        written = fill(leader, topic, partitions, int(size.catch_up_gib * (1 << 30)))
        cluster.lose_data(empty)
        before = leader.cpu_seconds()
        empty.launch()
        empty.wait_until(lambda client: client.metadata(topic).error_code >= 0)
        began = time.monotonic()
        ended = wait_until_in_sync(cluster, topic, 2, 1800)
        cpu_s = leader.cpu_seconds() - before + empty.cpu_seconds()
    finally:
        delete_topic(leader.bootstrap, topic)
        if empty.process is None:
            empty.launch()
        cluster.wait_until_all_know(len(cluster.brokers))
    return {"mb_per_s": written / (ended - began) / MEGABYTE, "bytes": float(written)} | (
        cpu_figures(cpu_s, written)
    )


def fill(leader: Broker, topic: str, partitions: int, size_bytes: int) -> int:
    """Write so many bytes with acks=1; returns the bytes written."""
    written = 0
    while written < size_bytes:
        arguments = [
            "--acks=1",
            "--records-per-request=150",
            "--record-size=1000",
            "--api-version=7",
        ]
        arguments += [f"--partitions={partitions}", f"--sockets={partitions}"]
        options = saturate.parse_arguments(
            ["--bootstrap", leader.bootstrap, *arguments, "--seconds=1", "--warmup=0"]
        )
        found = saturate.saturate(options, topic, dict.fromkeys(range(partitions), leader.address))
        written += int(found["requests"] * found["request_bytes"])
    return written


@contextmanager
def probed(cluster: Cluster, topic: str, partitions: Collection[int]) -> Iterator[Prober]:
    prober = Prober(cluster, topic, partitions, RECORD)
    prober.start()
    try:
        prober.wait_for_all(time.monotonic(), WAIT_S)
        prober.forget_gaps()
        yield prober
    finally:
        prober.end()


def settle(cluster: Cluster) -> None:
    """Wait until the brokers are idle, or as idle as they will be."""
    deadline = time.monotonic() + SETTLED_MAX_S
    allowed_s = SETTLED_SHARE * len(cluster.brokers)
    while time.monotonic() < deadline:
        before = cluster.cpu_seconds()
        time.sleep(1.0)
        if cluster.cpu_seconds() - before <= allowed_s:
            return


def led_by(cluster: Cluster, topic: str, broker: Broker) -> list[int]:
    leaders = leaders_of(cluster, topic)
    return [p for p, at in leaders.items() if at is not None and at[1] == broker.port]


def restart(cluster: Cluster, broker: Broker, topics: Sequence[str]) -> None:
    """Restart a stopped broker, and wait until its replicas are in sync."""
    if broker.process is None:
        broker.launch()
    cluster.wait_until_all_know(len(cluster.brokers))
    for topic in topics:
        wait_until_in_sync(cluster, topic, REPLICAS)


def measure_failover(cluster: Cluster, size: Size, parameters: dict[str, Any]) -> Figures:
    """kill -9 of a broker's whole tree; of kbroker's supervisor alone; of an io worker."""
    figures: Figures = {}
    victim = cluster.brokers[1]
    for what in ("tree", "supervisor", "io_worker"):
        if what != "tree" and not isinstance(victim, KbrokerBroker):
            continue
        with topic_of(cluster, parameters["partitions"], "failover") as topic:
            led = led_by(cluster, topic, victim)
            if not led:
                raise CellFailed(f"{cluster.name}: broker 2 leads nothing")
            with probed(cluster, topic, led) as prober:
                KILLS[what](cluster, victim)
                # What was acknowledged before this is no response of a new leader.
                figures[f"{what}_s"] = prober.wait_for_all(time.monotonic(), WAIT_S)
            restart(cluster, victim, [topic])
    return figures


def kill_supervisor(cluster: Cluster, victim: Broker) -> None:
    assert victim.process is not None
    victim.process.kill()
    victim.process.wait()
    victim.process = None


def kill_io_worker(cluster: Cluster, victim: Broker) -> None:
    assert victim.process is not None
    for pid in descendants(victim.process.pid):
        title = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        if "io-0" in title:
            os.kill(pid, signal.SIGKILL)
            return
    raise CellFailed("there is no io worker to kill")


KILLS: dict[str, Callable[[Cluster, Broker], None]] = {
    "tree": lambda cluster, victim: cluster.kill(victim),
    "supervisor": kill_supervisor,
    "io_worker": kill_io_worker,
}


def measure_shutdown(cluster: Cluster, size: Size, parameters: dict[str, Any]) -> Figures:
    """A controlled shutdown of a broker that leads a third of the partitions."""
    leaving = cluster.brokers[2]
    with topic_of(cluster, 3 * size.led_partitions, "shutdown") as topic:
        led = led_by(cluster, topic, leaving)
        sample = led[:: max(1, len(led) // 10)][:10]
        settle(cluster)
        with probed(cluster, topic, sample) as prober:
            since = time.monotonic()
            leaving.halt()
            seconds = time.monotonic() - since
            prober.wait_for_all(time.monotonic(), WAIT_S)
            gap = prober.longest_gap
        restart(cluster, leaving, [topic])
    return {"stop_s": seconds, "longest_gap_ms": 1000 * gap, "led": float(len(led))}


def measure_controller_failover(
    cluster: Cluster, size: Size, parameters: dict[str, Any]
) -> Figures:
    """kill -9 of the controller's tree, until a topic created after it has leaders."""
    with topics_of(cluster, size.idle_partitions, "many") as topics:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        found = admin.describe_cluster().result(timeout=30).controller
        victim = cluster.broker_of((found.host, found.port))
        if cluster.name == "kafka-3.9.1":
            # A KRaft broker names any broker as the controller; the kill hits the active controller
            # or not.
            victim = cluster.brokers[0]
        since = time.monotonic()
        cluster.kill(victim)
        create_when_possible(cluster, WAIT_S)
        seconds = time.monotonic() - since
        restart(cluster, victim, topics)
    return {"seconds": seconds, "partitions": float(size.idle_partitions)}


def create_when_possible(cluster: Cluster, timeout: float) -> None:
    """Create a topic through the current controller, and wait until it has leaders."""
    deadline = time.monotonic() + timeout
    name = fresh_name("after")
    while True:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        try:
            new = NewTopic(name, 2, 2)
            admin.create_topics([new], request_timeout=2)[name].result(timeout=3)
            break
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                break  # an earlier request timed out and was served anyway
            if time.monotonic() > deadline:
                raise CellFailed(f"{cluster.name}: no topic can be created: {error}") from error
            time.sleep(0.02)
    wait_for_leaders(parse_address(cluster.bootstrap), name, auto_create=False)
    delete_topic(cluster.bootstrap, name)


def measure_idle(cluster: Cluster, size: Size, parameters: dict[str, Any]) -> Figures:
    """CPU and memory of each broker with many idle replicated partitions."""
    with topics_of(cluster, size.idle_partitions, "idle"):
        time.sleep(size.idle_s / 2)
        before, began = cluster.cpu_seconds(), time.monotonic()
        time.sleep(size.idle_s)
        cpu_s, seconds = cluster.cpu_seconds() - before, time.monotonic() - began
        memory = [broker.pss_bytes() for broker in cluster.brokers]
    each = len(cluster.brokers)
    return {
        "cpu_percent": 100 * cpu_s / seconds / each,
        "pss_mib": max(memory) / (1 << 20),
        "partitions": float(size.idle_partitions),
    }


# The latest version that Kafka 2.7 supports among the frames of saturate.py.
PRODUCE = {"api_version": 7}
LOADED = {"sockets": 8, "partitions": 8, "in_flight": 5, "record_size": 100, **PRODUCE}
ONE = {"sockets": 1, "partitions": 1, "in_flight": 1, "record_size": 100, **PRODUCE}

CELLS = (
    ClusterCell(
        "all16k",
        "acks=all, 16 KiB requests of 150 records, 8 sockets",
        measure_saturated,
        (
            Condition("requests_per_s", "requests/s", 1.5, 2.0, at_least=True),
            Condition("cpu_us_per_request", "CPU us/request", 0.5, 0.4),
        ),
        {**LOADED, "records_per_request": 150},
        fills_memory=True,
    ),
    ClusterCell(
        "all160k",
        "acks=all, 160 KiB requests of 1,500 records, 8 sockets",
        measure_saturated,
        (
            Condition("mb_per_s", "MB/s", 1.3, 1.8, at_least=True),
            Condition("cpu_s_per_gb", "CPU s/GB"),
        ),
        {**LOADED, "records_per_request": 1500},
    ),
    ClusterCell(
        "all1",
        "acks=all, one record, one socket",
        measure_saturated,
        (
            Condition("p50_us", "p50 us", 1.0, 0.7),
            Condition("p99_us", "p99 us", 1.0, 0.7),
            Condition("cpu_us_per_request", "CPU us/request"),
        ),
        {**ONE, "records_per_request": 1},
    ),
    ClusterCell(
        "latency",
        "end to end at 1,000 records/s, acks=all",
        measure_end_to_end,
        (Condition("p50_ms", "p50 ms", 1.0, 0.7), Condition("p99_ms", "p99 ms", 0.8, 0.5)),
        {"rate": 1000},
    ),
    ClusterCell(
        "catchup",
        "an empty follower copies a topic",
        measure_catch_up,
        (
            Condition("mb_per_s", "MB/s", 1.3, 2.0, at_least=True),
            Condition("cpu_s_per_gb", "CPU s/GB, both sides", 0.5),
        ),
        {"partitions": 8},
        fills_memory=True,
    ),
    ClusterCell(
        "failover",
        "kill -9 to the next record acknowledged by each partition",
        measure_failover,
        (
            Condition("tree_s", "whole tree, s", limit=7.0),
            Condition("supervisor_s", "supervisor, s", limit=1.0),
            Condition("io_worker_s", "io worker, s", limit=1.0),
        ),
        {"partitions": 30},
    ),
    ClusterCell(
        "shutdown",
        "orderly stop of a leader of many partitions",
        measure_shutdown,
        (
            Condition("stop_s", "stop, s", limit=3.0),
            Condition("longest_gap_ms", "longest wait of a produce, ms", limit=300.0),
            Condition("led", "partitions led"),
        ),
        {},
    ),
    ClusterCell(
        "controller",
        "kill -9 of the controller to the next topic created",
        measure_controller_failover,
        (Condition("seconds", "s, with the session timeout", limit=11.0),),
        {},
    ),
    ClusterCell(
        "idle",
        "many partitions with three replicas that nobody uses, each broker",
        measure_idle,
        (
            Condition("cpu_percent", "CPU % of a core", limit=2.0),
            Condition("pss_mib", "PSS MiB", 0.5),
        ),
        {},
    ),
)
