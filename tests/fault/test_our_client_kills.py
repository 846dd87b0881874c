"""kbroker's own clients while brokers and members are killed: the consumer goes forwards, and loses
nothing; the producer writes each record once and in order, or says that it may not have.

Three brokers, acks=all; what was read is compared with the leaders' logs at the end.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fault.cluster_exam import BROKERS, PARTITIONS, SETTINGS, goes_on, mend
from fault.cluster_load import ClusterLoad, create_replicated, read_leaders
from fault.test_cluster_kills import HARM
from support.faults.history import History, ReaderLog, WriterLog, value_of
from support.faults.load import CLIENT_TIMEOUT_MS, TOPIC
from support.running.pace import hold

from kbroker._ext.client.record_futures import RecordFuture
from kbroker.client import KafkaConsumer, KafkaProducer, TopicPartition
from kbroker.client.errors import ClientError
from kbroker.testing import Cluster, wait_until

pytestmark = [pytest.mark.fault, pytest.mark.slow, pytest.mark.timeout(400)]

GROUP_SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1000,
    "group.consumer.session.timeout.ms": 6000,
    "group.consumer.min.session.timeout.ms": 1000,
    "group.consumer.heartbeat.interval.ms": 500,
    "group.consumer.min.heartbeat.interval.ms": 200,
    "offsets.topic.replication.factor": 3,
    "offsets.topic.num.partitions": 3,
}
MEMBERS = 3
TESTS = Path(__file__).resolve().parent.parent
CAUGHT_UP_S = 90.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("cluster")
    settings = {**SETTINGS, **GROUP_SETTINGS}
    with Cluster(BROKERS, settings, cuttable=True, directory=directory) as running:
        yield running


class OurLoad(ClusterLoad):
    """Read by kbroker's consumer, each partition from its start, in all of its ways; written by its
    producer, and by librdkafka's.
    """

    def begin(self) -> OurLoad:
        self.idempotent_writer()
        self.start("ours", self._write_ours, self.history.writer("ours", TOPIC, exact=True))
        for way in ("poll", "poll_columns"):
            self.start(way, self._read_ours, self.history.reader(way, TOPIC), way)
        return self

    def _write_ours(self, log: WriterLog) -> None:
        def ended(future: RecordFuture, partition: int, number: int) -> None:
            error = future.exception(0)
            if error is None:
                log.ack(partition, number, future.result(0).offset)
            else:
                log.fail(partition, number, str(error))

        with KafkaProducer(
            bootstrap_servers=self.bootstrap, delivery_timeout_ms=CLIENT_TIMEOUT_MS, linger_ms=2,
            request_timeout_ms=10_000,
        ) as producer:  # fmt: skip
            number = 0
            while self.running:
                partition = number % self.partitions
                value = value_of(log.name, partition, number)
                log.sent.append((partition, number))
                future = producer.send(TOPIC, value, b"%d" % number, partition=partition)
                future.add_done_callback(partial(ended, partition=partition, number=number))
                number += 1
                hold(0.005)
            producer.flush(CLIENT_TIMEOUT_MS / 1000 + 5)
        assert len(log.acked) + len(log.failed) == len(log.sent), log.name

    def _read_ours(self, log: ReaderLog, way: str) -> None:
        consumer = KafkaConsumer(bootstrap_servers=self.bootstrap, auto_offset_reset="none")
        keys = [TopicPartition(TOPIC, n) for n in range(self.partitions)]
        consumer.assign(keys)
        for key in keys:
            consumer.seek(key, 0)
        try:
            while self.running:
                try:
                    for one in getattr(consumer, way)(0.1):
                        if way == "poll":
                            log.poll(one.partition, one.offset, one.value)
                            continue
                        for offset, value in zip(one.offsets, one.values, strict=True):
                            log.poll(one.partition, offset, value)
                except ClientError as error:
                    assert error.retriable, error
        finally:
            consumer.close(5)


@pytest.mark.parametrize("name", ["io-worker", "network", "tree", "orderly-stop", "one-link"])
def test_reading_goes_forwards_over_harm(
    name: str, cluster: Cluster, seed: int, scale: int
) -> None:
    harm, times = HARM[name]
    history, chance = History(), random.Random(seed)
    cluster.heal()
    cluster.start()
    create_replicated(cluster, PARTITIONS)
    with OurLoad(cluster, history, PARTITIONS, seed).begin():
        wait_until(lambda: all(one.acked for one in history.writers.values()), 30, "all write")
        for _ in range(times * scale):
            harm(cluster, chance)
            goes_on(history)
        mend(cluster)
        goes_on(history)
        acked = {
            (partition, offset)
            for writer in history.writers.values()
            for _, partition, _, offset in list(writer.acked)
            if offset >= 0
        }

        def all_read() -> bool:
            for log in history.readers.values():
                read = {
                    (partition, offset)
                    for partition, rows in list(log.polled.items())
                    for _, offset, _ in list(rows)
                }
                assert acked <= read, f"{log.name} lacks {len(acked - read)} records"
            return True

        wait_until(all_read, CAUGHT_UP_S, "everything acknowledged is read")
    problems = history.check(read_leaders(cluster))
    assert not problems, "\n".join(problems[:10])


class Members:
    """Processes of a group; ``lines`` is what all of them have read."""

    def __init__(self, cluster: Cluster, directory: Path, *how: str) -> None:
        self._cluster, self._directory, self._how = cluster, directory, how
        self._group = f"killed-{os.getpid()}-{time.monotonic_ns()}"
        self.paths: list[Path] = []
        self.running: list[subprocess.Popen[Any]] = []

    def start(self) -> None:
        path = self._directory / f"{self._group}-{len(self.paths)}"
        path.touch()
        self.paths.append(path)
        command = [sys.executable, str(TESTS / "fault" / "our_member.py")]
        command += [self._cluster.bootstrap, self._group, *self._how, str(path)]
        environment = {**os.environ, "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent}"}
        self.running.append(
            subprocess.Popen(command, env=environment, stderr=open(f"{path}.errors", "wb"))
        )

    def kill(self, chance: random.Random) -> None:
        gone = self.running.pop(chance.randrange(len(self.running)))
        gone.send_signal(signal.SIGKILL)
        gone.wait()

    def lines(self) -> list[list[tuple[int, int, bytes]]]:
        found = []
        for path in self.paths:
            rows = path.read_bytes().split(b"\n")[:-1]  # the last one may be cut by a kill
            found.append([(int(p), int(o), v) for p, o, v in (row.split(b" ", 2) for row in rows)])
        return found

    def __enter__(self) -> Members:
        return self

    def __exit__(self, *_: object) -> None:
        while self.running:
            self.kill(random.Random(0))


@pytest.mark.parametrize(
    ("protocol", "assignor"),
    [("classic", "range"), ("classic", "cooperative-sticky"), ("consumer", "uniform")],
)
def test_a_group_loses_nothing_when_members_and_brokers_are_killed(
    protocol: str, assignor: str, cluster: Cluster, seed: int, scale: int, tmp_path: Path
) -> None:
    history, chance = History(), random.Random(seed)
    cluster.heal()
    cluster.start()
    create_replicated(cluster, PARTITIONS)
    with Members(cluster, tmp_path, protocol, assignor) as members:
        load = ClusterLoad(cluster, history, PARTITIONS, seed)
        with load:
            load.idempotent_writer()
            for _ in range(MEMBERS):
                members.start()
            wait_until(lambda: all(map(len, members.lines())), 60, "all members read")
            for turn in range(6 * scale):
                if turn % 3 == 2:
                    HARM[chance.choice(("io-worker", "network", "tree"))][0](cluster, chance)
                else:
                    members.kill(chance)
                    hold(1.0)
                    members.start()
                hold(1.0)
            mend(cluster)
            goes_on(history)
        (writer,) = history.writers.values()
        wanted = {(partition, offset) for _, partition, _, offset in writer.acked if offset >= 0}

        def all_read() -> bool:
            read = {(row[0], row[1]) for rows in members.lines() for row in rows}
            assert wanted <= read, f"{len(wanted - read)} of {len(wanted)} records are missing"
            return True

        wait_until(all_read, CAUGHT_UP_S, "everything acknowledged is read by some member")
    logs = read_leaders(cluster)
    problems = history.check(logs)
    assert not problems, "\n".join(problems[:10])
    there = {
        (partition, record.offset): record.value
        for (_, partition), records in logs.items()
        for record in records
    }
    for rows in members.lines():
        for partition, offset, value in rows:
            assert there[partition, offset] == value
