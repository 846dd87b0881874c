"""A full disk, and one failing disk of two (exams E4 and E5)."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fault.disks import MIB, failing_disk, fill_up, small_disk
from support.brokers.all_processes import all_pids
from support.clients.wire_client import WireClient, batch_of
from support.faults.history import History
from support.faults.load import TOPIC, Load, assert_consistent
from support.running.pace import hold

from kbroker.errors import ErrorCode
from kbroker.protocol.messages.create_topics import CreateTopicsRequest
from kbroker.protocol.messages.delete_records import DeleteRecordsRequest
from kbroker.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from kbroker.record.batch import Record
from kbroker.testing import Broker, wait_until

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]

DISK_BYTES = 32 * MIB
REJECTED_WITHIN_S = 1.0
PARTITIONS = 4
SETTINGS = {
    "log.segment.bytes": 1 * MIB,
    "log.index.size.max.bytes": 20_000,
    "log.flush.interval.ms": 100,
    "log.flush.offset.checkpoint.interval.ms": 100,
    "log.segment.delete.delay.ms": 100,
}


def produce_until_rejected(client: WireClient, size: int = 100_000) -> tuple[int, str, float]:
    """Fill partition 0; (records accepted, error text, duration of the rejection in seconds)."""
    for count in range(10_000):
        began = time.monotonic()
        response = client.produce(TOPIC, {0: batch_of([b"%d" % count + b"f" * size])})[0]
        took = time.monotonic() - began
        if response.error_code:
            assert response.error_code == ErrorCode.KAFKA_STORAGE_ERROR, response
            return count, response.error_message, took
    raise AssertionError("the disk is never full")


def read(client: WireClient, partition: int) -> list[Record]:
    """All records, once the partition is served: a broker responds before it has opened its
    logs.
    """
    return wait_until(lambda: [client.read_all(TOPIC, partition)])[0]


def values_of(client: WireClient) -> list[bytes]:
    return [record.value.split(b"f")[0] for record in read(client, 0) if record.value]


def test_full_disk_rejects_serves_and_heals(tmp_path: Path) -> None:
    with (
        small_disk(tmp_path / "disk", DISK_BYTES) as disk,
        Broker(SETTINGS, log_dirs=disk / "data") as broker,
        WireClient((broker.host, broker.port)) as client,
    ):
        client.create_topic(TOPIC, 2)
        filler = fill_up(disk, leave=4 * MIB)
        pids = all_pids(broker)

        count, text, took = produce_until_rejected(client)

        assert count > 5
        assert str(disk) in text and "full" in text and "free" in text, text
        # Operators do not read the errors that producers get.
        assert (
            f"produce requests are rejected until there is room (1 time): {text}" in broker.log_text
        )
        expected = [b"%d" % number for number in range(count)]
        assert values_of(client) == expected
        assert client.metadata(TOPIC).topics[0].error_code == 0
        times = [took]
        for _ in range(20):  # it stays so, for every partition, and fast
            began = time.monotonic()
            response = client.produce(TOPIC, {1: batch_of([b"x" * 200_000])})[1]
            times.append(time.monotonic() - began)
            if response.error_code:
                assert response.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert sorted(times)[len(times) // 2] < REJECTED_WITHIN_S, times
        assert broker.pids == pids, broker.log_text[-2000:]

        filler.unlink()
        wait_until(
            lambda: client.produce(TOPIC, {0: batch_of([b"%df" % count])})[0].error_code == 0,
            what="it heals",
        )
        assert values_of(client) == [*expected, b"%d" % count]
        assert broker.pids == pids
        broker.restart()
        with WireClient((broker.host, broker.port)) as later:
            assert values_of(later) == [*expected, b"%d" % count]


@pytest.mark.parametrize("end", [Broker.stop, Broker.kill_all], ids=["stopped", "killed"])
def test_broker_starts_and_serves_on_a_full_disk(
    tmp_path: Path, end: Callable[[Broker], object]
) -> None:
    with (
        small_disk(tmp_path / "disk", DISK_BYTES) as disk,
        Broker(SETTINGS, log_dirs=disk / "data") as broker,
    ):
        with WireClient((broker.host, broker.port)) as client:
            client.create_topic(TOPIC, 2)
            count, _, _ = produce_until_rejected(client)
            filler = fill_up(disk)
        end(broker)
        broker.start()
        with WireClient((broker.host, broker.port)) as client:
            expected = [b"%d" % number for number in range(count)]
            wait_until(lambda: values_of(client) == expected, 10, "all is read")
            response = client.produce(TOPIC, {0: batch_of([b"x" * 500_000])})[0]
            assert response.error_code == ErrorCode.KAFKA_STORAGE_ERROR

            filler.unlink()
            # Now the log itself fills the disk: space can still be freed.
            cls = DeleteRecordsRequest
            part = cls.DeleteRecordsPartition(partition_index=0, offset=count)
            topic = cls.DeleteRecordsTopic(name=TOPIC, partitions=[part])
            client.call(cls(topics=[topic], timeout_ms=5000), 1)
            wait_until(
                lambda: client.produce(TOPIC, {0: batch_of([b"xf" * 50_000])})[0].error_code == 0,
                what="deleted records make room",
            )


@pytest.mark.slow
def test_disk_that_is_full_for_a_while_under_load_loses_nothing(tmp_path: Path, seed: int) -> None:
    history = History()
    with (
        small_disk(tmp_path / "disk", DISK_BYTES) as disk,
        Broker(SETTINGS, log_dirs=disk / "data") as broker,
    ):
        with WireClient((broker.host, broker.port)) as client:
            client.create_topic(TOPIC, PARTITIONS)
        pids = all_pids(broker)
        with Load(broker, history, PARTITIONS, seed) as load:
            for partition in range(PARTITIONS):
                load.raw_writer(partition)
                load.raw_writer(partition, idempotent=True)
                load.raw_reader(partition)
            load.librdkafka_writer("rd-idempotent", enable_idempotence=True)
            load.librdkafka_writer("rd-acks1", acks=1)
            for _ in range(2):
                hold(0.5)
                filler = fill_up(disk)
                wait_until(
                    lambda: any(log.failed for log in history.writers.values()), 10, "refusals"
                )
                hold(0.5)
                filler.unlink()
                before = {name: len(log.acked) for name, log in history.writers.items()}
                wait_until(
                    lambda b=before: all(
                        len(history.writers[name].acked) > count for name, count in b.items()
                    ),
                    15,
                    "every writer goes on",
                )
        assert broker.pids == pids
        assert_consistent(broker, history, PARTITIONS)


def test_topics_cannot_be_created_on_a_full_disk_but_later(tmp_path: Path) -> None:
    with (
        small_disk(tmp_path / "disk", DISK_BYTES) as disk,
        Broker(SETTINGS, log_dirs=disk / "data") as broker,
        WireClient((broker.host, broker.port)) as client,
    ):
        client.create_topic(TOPIC)
        pids = all_pids(broker)
        filler = fill_up(disk)
        cls = CreateTopicsRequest
        topic = cls.CreatableTopic(name="later", num_partitions=4, replication_factor=1)
        response = client.call(cls(topics=[topic], timeout_ms=3000), 5).topics[0]
        assert response.error_code != 0 and response.error_message

        assert client.metadata(TOPIC).topics[0].error_code == 0
        filler.unlink()
        wait_until(lambda: is_created(client, "later"), 10, "it is created later")
        assert {
            p: a.error_code for p, a in produce_to_all(client, "later", 4).items()
        } == dict.fromkeys(range(4), 0)
        assert broker.pids == pids


def is_created(client: WireClient, name: str) -> bool:
    cls = CreateTopicsRequest
    topic = cls.CreatableTopic(name=name, num_partitions=4, replication_factor=1)
    code = client.call(cls(topics=[topic], timeout_ms=3000), 5).topics[0].error_code
    return code in (0, ErrorCode.TOPIC_ALREADY_EXISTS)


def produce_to_all(client: WireClient, topic: str, partitions: int) -> dict[int, object]:
    return client.produce(topic, {p: batch_of([b"all"]) for p in range(partitions)})


def test_failed_directory_takes_only_its_partitions_offline(tmp_path: Path) -> None:
    with failing_disk(tmp_path / "bad") as disk:
        good_dir, bad_dir = tmp_path / "good", disk.path / "data"
        with Broker(SETTINGS, log_dirs=f"{good_dir},{bad_dir}") as broker:
            with WireClient((broker.host, broker.port)) as client:
                client.create_topic(TOPIC, PARTITIONS)
                client.await_open(TOPIC, range(PARTITIONS))
                good = {p for p in range(PARTITIONS) if (good_dir / f"{TOPIC}-{p}").is_dir()}
                bad = {p for p in range(PARTITIONS) if (bad_dir / f"{TOPIC}-{p}").is_dir()}
                assert good and bad and good | bad == set(range(PARTITIONS)), (good, bad)
                for number in range(20):
                    batches = {p: batch_of([b"%d" % number]) for p in range(PARTITIONS)}
                    assert not any(a.error_code for a in client.produce(TOPIC, batches).values())
                wait_until_synced(bad_dir, bad, 20)
                pids = all_pids(broker)

                disk.fail()
                answers = wait_until(
                    lambda: failed_responses(client, bad), 3, "the disk is noticed"
                )

                assert {answers[p].error_code for p in good} == {0}
                for partition in bad:
                    assert client.fetch(TOPIC, partition, 0).error_code == STORAGE_ERROR
                for partition in good:
                    assert read(client, partition)[19].value == b"19"
                assert broker.pids == pids
                assert str(bad_dir) in broker.log_text
                assert directory_errors(client) == {str(good_dir): 0, str(bad_dir): STORAGE_ERROR}

            broker.stop()
            assert not (bad_dir / ".kafka_cleanshutdown").exists()
            assert (good_dir / ".kafka_cleanshutdown").exists()
            broker.start()  # without it
            with WireClient((broker.host, broker.port)) as client:
                for partition in good:
                    assert read(client, partition)[19].value == b"19"
                answers = produce_to_all(client, TOPIC, PARTITIONS)
                assert {p for p in answers if answers[p].error_code == 0} == good
                assert not [p for p in bad if (good_dir / f"{TOPIC}-{p}").exists()]
            broker.stop()

            disk.repair()
            broker.start()
            with WireClient((broker.host, broker.port)) as client:
                for partition in range(PARTITIONS):
                    values = [record.value for record in read(client, partition)]
                    assert values[:20] == [b"%d" % number for number in range(20)]
                assert not any(
                    response.error_code
                    for response in produce_to_all(client, TOPIC, PARTITIONS).values()
                )


STORAGE_ERROR = int(ErrorCode.KAFKA_STORAGE_ERROR)


def wait_until_synced(directory: Path, partitions: set[int], end: int) -> None:
    """Wait until the records below ``end`` are on the disk, and the checkpoint says so."""

    def is_synced() -> bool:
        checkpoint = directory / "recovery-point-offset-checkpoint"
        lines = checkpoint.read_text().splitlines() if checkpoint.exists() else []
        assert {f"{TOPIC} {partition} {end}" for partition in partitions} <= set(lines), lines
        return True

    wait_until(is_synced, what="all is synced")


def failed_responses(client: WireClient, bad: set[int]) -> dict[int, object] | None:
    """The responses once all partitions of the bad disk are rejected."""
    answers = produce_to_all(client, TOPIC, PARTITIONS)
    rejected = {p for p in bad if answers[p].error_code == STORAGE_ERROR}
    return answers if rejected == bad else None


def directory_errors(client: WireClient) -> dict[str, int]:
    """Error code of each log directory, by DescribeLogDirs."""
    results = client.call(DescribeLogDirsRequest(topics=None), 1).results
    return {result.log_dir: result.error_code for result in results}


def test_broker_whose_only_directory_fails_says_so(tmp_path: Path) -> None:
    """Nothing hangs, nothing is acknowledged, and the broker starts again once the disk is back."""
    with (
        failing_disk(tmp_path / "bad") as disk,
        Broker(SETTINGS, log_dirs=disk.path / "data") as broker,
    ):
        with WireClient((broker.host, broker.port)) as client:
            client.create_topic(TOPIC, PARTITIONS)
            assert not any(a.error_code for a in produce_to_all(client, TOPIC, PARTITIONS).values())
            everything = set(range(PARTITIONS))
            wait_until_synced(disk.path / "data", everything, 1)
            disk.fail()
            try:
                wait_until(lambda: failed_responses(client, everything), 3, "the disk is noticed")
            except OSError:
                assert not broker.running  # stopping is acceptable, too
        assert str(disk.path) in broker.log_text
        if broker.running:
            broker.stop()
        disk.repair()
        broker.start()
        with WireClient((broker.host, broker.port)) as client:
            for partition in range(PARTITIONS):
                assert client.read_all(TOPIC, partition)[0].value == b"all"
