"""The cells of ``perf/cluster.py``: topics with three replicas, acks=all, min.insync.replicas=2.

A cell loads or disturbs one cluster once and leaves it as it was. A record that is rejected or
lost raises: a cluster that rejects records is fast. Every figure is compared with the better of
the two Kafkas.
"""

import os
import signal
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from perf import saturate
from perf.bars import Bar, Cell, CellFailed, Figures, bars
from perf.brokers import Broker, KbrokerBroker
from perf.cells import MEGABYTE, Size, cpu_figures, measure_end_to_end, measure_saturated
from perf.clusters import Cluster
from perf.frames import random_values, record_batch
from perf.prober import Prober
from perf.process_tree import Meter
from perf.raw_client import RawClient, parse_address, wait_for_leaders
from perf.topics import delete_topic, fresh_name, topic_of
from perf.waiting import wait_until

# Of a topic: Kafka 3.9.1 rejects a CreateTopics for which its controller would write more than
# 10,000 records.
TOPIC_PARTITIONS_MAX = 2500
RECORD = record_batch(random_values(1, 100, seed=1))
# For thousands of partitions whose logs a Kafka recovers after a kill.
WAIT_S = 600.0
# What brokers have to do after thousands of partitions were deleted or created, a file here and
# there, is over when each of them takes no more than this share of a core.
SETTLED_SHARE, SETTLED_MAX_S = 0.03, 120.0


@dataclass(frozen=True, slots=True)
class ClusterSize(Size):
    """How much load; the quick size only shows that everything runs."""

    idle_s: float = 20.0
    catch_up_gib: float = 10.0
    led_partitions: int = 1000
    idle_partitions: int = 10_000


QUICK = ClusterSize(
    seconds=1.0, warmup_s=0.2, latency_s=1.0, idle_s=1.0,
    catch_up_gib=0.1, led_partitions=10, idle_partitions=100,
)  # fmt: skip


@contextmanager
def topics_of(cluster: Cluster, partitions: int, prefix: str) -> Iterator[list[str]]:
    """As ``topic_of``, with so many partitions in all."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(topic_of(cluster, some, prefix))[0] for some in parts_of(partitions)
        ]


def parts_of(partitions: int) -> list[int]:
    """How many partitions each topic gets."""
    whole, rest = divmod(partitions, TOPIC_PARTITIONS_MAX)
    return [TOPIC_PARTITIONS_MAX] * whole + [rest] * bool(rest)


def leaders_of(cluster: Cluster, topic: str) -> dict[int, tuple[str, int] | None]:
    with RawClient(parse_address(cluster.bootstrap)) as client:
        return client.metadata(topic).leaders


def measure_catch_up(cluster: Cluster, parameters: dict[str, Any], size: ClusterSize) -> Figures:
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
        cluster.wait_until_in_sync(topic, 2)
        empty.halt()
        cluster.wait_until_in_sync(topic, 1)
        written = fill(leader, topic, partitions, int(size.catch_up_gib * (1 << 30)))
        cluster.lose_data(empty)
        with Meter(leader.cpu_seconds) as used:
            empty.launch()
            empty.wait_until(lambda client: client.metadata(topic).error_code >= 0)
            began = time.monotonic()
            ended = cluster.wait_until_in_sync(topic, 2, 1800)
        cpu_s = used.cpu_s + empty.cpu_seconds()
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
        options = saturate.parse_arguments(
            [
                *("--acks=1", "--records-per-request=150", "--record-size=1000", "--api-version=7"),
                *(f"--partitions={partitions}", f"--sockets={partitions}"),
                *("--bootstrap", leader.bootstrap, "--seconds=1", "--warmup=0"),
            ]
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

    def is_idle() -> bool:
        with Meter(cluster.cpu_seconds) as used:
            time.sleep(1.0)
        return used.percent <= 100 * SETTLED_SHARE * len(cluster.brokers)

    with suppress(TimeoutError):
        wait_until(is_idle, "the brokers are idle", SETTLED_MAX_S, 0.0)


def led_by(cluster: Cluster, topic: str, broker: Broker) -> list[int]:
    leaders = leaders_of(cluster, topic)
    return [p for p, at in leaders.items() if at is not None and at[1] == broker.port]


def restart(cluster: Cluster, broker: Broker, topics: Sequence[str]) -> None:
    """Restart a stopped broker, and wait until its replicas are in sync."""
    if broker.process is None:
        broker.launch()
    cluster.wait_until_all_know(len(cluster.brokers))
    for topic in topics:
        cluster.wait_until_in_sync(topic)


def measure_failover(cluster: Cluster, parameters: dict[str, Any], size: ClusterSize) -> Figures:
    """kill -9 of a broker's whole tree; of kbroker's supervisor alone; of an io worker."""
    figures: Figures = {}
    victim = cluster.brokers[1]
    for what in ("tree", "supervisor", "io_worker"):
        if what != "tree" and not isinstance(victim, KbrokerBroker):
            continue
        with topic_of(cluster, parameters["partitions"], "failover") as (topic, _):
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
    os.kill(victim.process_named("io-0"), signal.SIGKILL)


KILLS: dict[str, Callable[[Cluster, Broker], None]] = {
    "tree": lambda cluster, victim: cluster.kill(victim),
    "supervisor": kill_supervisor,
    "io_worker": kill_io_worker,
}


def measure_shutdown(cluster: Cluster, parameters: dict[str, Any], size: ClusterSize) -> Figures:
    """A controlled shutdown of a broker that leads a third of the partitions."""
    leaving = cluster.brokers[2]
    with topic_of(cluster, 3 * size.led_partitions, "shutdown") as (topic, _):
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
    cluster: Cluster, parameters: dict[str, Any], size: ClusterSize
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
    name, last = fresh_name("after"), ""

    def is_created() -> bool:
        nonlocal last
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        try:
            new = NewTopic(name, 2, 2)
            admin.create_topics([new], request_timeout=2)[name].result(timeout=3)
        except KafkaException as error:
            last = str(error)
            # Otherwise an earlier request timed out and was served anyway.
            return bool(error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS)
        return True

    wait_until(is_created, lambda: f"{cluster.name}: no topic can be created: {last}", timeout)
    wait_for_leaders(parse_address(cluster.bootstrap), name, auto_create=False)
    delete_topic(cluster.bootstrap, name)


def measure_idle(cluster: Cluster, parameters: dict[str, Any], size: ClusterSize) -> Figures:
    """CPU and memory of each broker with many idle replicated partitions."""
    with topics_of(cluster, size.idle_partitions, "idle"):
        time.sleep(size.idle_s / 2)
        with Meter(cluster.cpu_seconds) as used:
            time.sleep(size.idle_s)
        memory = [broker.pss_bytes() for broker in cluster.brokers]
    return {
        "cpu_percent": used.percent / len(cluster.brokers),
        "pss_mib": max(memory) / (1 << 20),
        "partitions": float(size.idle_partitions),
    }


# The latest version that Kafka 2.7 supports among the frames of saturate.py.
PRODUCE = {"api_version": 7, "acks": -1, "record_size": 100}
LOADED = {"sockets": 8, "partitions": 8, "in_flight": 5, **PRODUCE}
ONE = {"sockets": 1, "partitions": 1, "in_flight": 1, **PRODUCE}

CELLS = (
    Cell(
        "all16k",
        "acks=all, 16 KiB requests of 150 records, 8 sockets",
        measure_saturated,
        bars("requests_per_s >= 1.5x, aim 2x", "cpu_us_per_request <= 0.5x, aim 0.4x"),
        {**LOADED, "records_per_request": 150},
        fills_memory=True,
    ),
    Cell(
        "all160k",
        "acks=all, 160 KiB requests of 1,500 records, 8 sockets",
        measure_saturated,
        bars("mb_per_s >= 1.3x, aim 1.8x", "cpu_s_per_gb"),
        {**LOADED, "records_per_request": 1500},
    ),
    Cell(
        "all1",
        "acks=all, one record, one socket",
        measure_saturated,
        bars("p50_us <= 1x, aim 0.7x", "p99_us <= 1x, aim 0.7x", "cpu_us_per_request"),
        {**ONE, "records_per_request": 1},
    ),
    Cell(
        "latency",
        "end to end at 1,000 records/s, acks=all",
        measure_end_to_end,
        bars("p50_ms <= 1x, aim 0.7x", "p99_ms <= 0.8x, aim 0.5x"),
        {"rate": 1000, "acks": "all"},
    ),
    Cell(
        "catchup",
        "an empty follower copies a topic",
        measure_catch_up,
        (
            Bar("mb_per_s", ">= 1.3x, aim 2x"),
            Bar("cpu_s_per_gb", "<= 0.5x", "CPU s/GB, both sides"),
        ),
        {"partitions": 8},
        fills_memory=True,
    ),
    Cell(
        "failover",
        "kill -9 to the next record acknowledged by each partition",
        measure_failover,
        (
            Bar("tree_s", "<= 7", "whole tree, s"),
            Bar("supervisor_s", "<= 1", "supervisor, s"),
            Bar("io_worker_s", "<= 1", "io worker, s"),
        ),
        {"partitions": 30},
    ),
    Cell(
        "shutdown",
        "orderly stop of a leader of many partitions",
        measure_shutdown,
        (
            Bar("stop_s", "<= 3", "stop, s"),
            Bar("longest_gap_ms", "<= 300", "longest wait of a produce, ms"),
            Bar("led", text="partitions led"),
        ),
    ),
    Cell(
        "controller",
        "kill -9 of the controller to the next topic created",
        measure_controller_failover,
        (Bar("seconds", "<= 11", "s, with the session timeout"),),
    ),
    Cell(
        "idle",
        "many partitions with three replicas that nobody uses, each broker",
        measure_idle,
        (Bar("cpu_percent", "<= 2"), Bar("pss_mib", "<= 0.5x", "PSS MiB")),
    ),
)
