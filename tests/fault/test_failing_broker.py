"""One of two disks of a whole broker fails at a random call, permanently (exam E5).

The other directory goes on, nothing is acknowledged that is not there later, no process dies, no
request hangs, and what clients and operators read says what happened.
"""

from __future__ import annotations

import errno
import random
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.brokers.all_processes import all_pids
from support.clients.wire_client import WireClient
from support.faults.shim import SYNCS, FailingCall, broker_command, shimmed

from kbroker.errors import ErrorCode
from kbroker.protocol.messages.delete_records import DeleteRecordsRequest
from kbroker.record.builder import BatchBuilder
from kbroker.testing import Broker, wait_until

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]

POINTS = 2
PARTITIONS = 4
ROUNDS = 40
TOPIC = "disks"
REJECTIONS = {ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER}
SETTINGS = {
    "log.segment.bytes": 20_000,
    "log.index.size.max.bytes": 4096,
    "log.flush.interval.ms": 50,
    "log.flush.offset.checkpoint.interval.ms": 200,
    "log.segment.delete.delay.ms": 20,
    "log.cleaner.backoff.ms": 50,
    "log.cleaner.dedupe.buffer.size": 4 << 20,
}


class Workload:
    """Appends to every partition; records the acknowledged batches by partition and offset."""

    def __init__(self, client: WireClient, chance: random.Random) -> None:
        self.client = client
        self.chance = chance
        self.acked: dict[int, dict[int, tuple[bytes, bytes]]] = {p: {} for p in range(PARTITIONS)}
        self.rejected: set[int] = set()
        self.deleted_up_to = 0

    def run(self) -> None:
        for number in range(ROUNDS):
            self.produce(number)
            if number == ROUNDS // 2:
                self.delete_records()

    def produce(self, number: int) -> None:
        records = [(b"key-%d" % self.chance.randrange(9), b"%d" % number * 300) for _ in range(5)]
        builder = BatchBuilder()
        for key, value in records:
            builder.append(value, key, 1_700_000_000_000, ())
        batch = builder.build()
        for partition, response in self.client.produce(
            TOPIC, dict.fromkeys(range(PARTITIONS), batch), acks=-1
        ).items():
            if response.error_code:
                assert ErrorCode(response.error_code) in REJECTIONS, response
                self.rejected.add(partition)
                continue
            assert partition not in self.rejected, "it takes records again without a restart"
            self.acked[partition].update(enumerate(records, response.base_offset))

    def delete_records(self) -> None:
        cls = DeleteRecordsRequest
        parts = [
            cls.DeleteRecordsPartition(partition_index=p, offset=10) for p in range(PARTITIONS)
        ]
        topic = cls.DeleteRecordsTopic(name=TOPIC, partitions=parts)
        self.client.call(cls(topics=[topic], timeout_ms=5000), 1)
        self.deleted_up_to = 10

    def check(self, client: WireClient, partition: int) -> None:
        """The last record of each key is there, and only records that were written."""
        (records,) = wait_until(lambda: (client.read_all(TOPIC, partition),), 10, "read")
        found = {record.offset: (record.key, record.value) for record in records}
        acked = self.acked[partition]
        wrong = {at: one for at, one in found.items() if at in acked and one != acked[at]}
        assert not wrong, f"partition {partition}: {wrong}"
        last = {key: offset for offset, (key, _) in acked.items() if offset >= self.deleted_up_to}
        newest = {key: offset for offset, (key, _) in sorted(found.items())}
        lost = {key: at for key, at in last.items() if newest.get(key, -1) < at}
        assert not lost, f"partition {partition}: acknowledged and gone: {lost}"


def test_failing_call_in_a_directory_takes_only_that_offline(
    tmp_path: Path, seed: int, scale: int
) -> None:
    chance = random.Random(seed)
    calls = 280
    for number in range(POINTS * scale):
        at = chance.randint(1, calls)
        directory = tmp_path / f"{number}"
        good, bad = directory / "good", directory / "bad"
        directory.mkdir()
        control = FailingCall(directory / "control")
        command = broker_command(shimmed(bad, control=control))
        settings = {**SETTINGS, "log.dirs": f"{good},{bad}"}
        with Broker(settings, directory=directory, command=command) as broker:
            pids = all_pids(broker)
            with WireClient((broker.host, broker.port)) as client:
                client.create_topic(
                    TOPIC, PARTITIONS, cleanup_policy="compact", min_cleanable_dirty_ratio=0.01
                )
                work = Workload(client, chance)
                control.arm(at, errno.EIO, lasting=True)
                work.run()
                what = f"call {at} of {control.calls}: {control.what}"
                print(what, sorted(work.rejected))
                in_bad = {p for p in range(PARTITIONS) if (bad / f"{TOPIC}-{p}").is_dir()}
                assert work.rejected <= in_bad and len(in_bad) < PARTITIONS, what
                assert broker.pids == pids, f"{what}\n{broker.log_text[-2000:]}"
                for partition in set(range(PARTITIONS)) - in_bad:
                    work.check(client, partition)
                if work.rejected:
                    assert str(bad) in broker.log_text, what
                assert "Traceback" not in broker.log_text, f"{what}\n{broker.log_text[-4000:]}"
            control.disarm()
            broker.restart()
            with WireClient((broker.host, broker.port)) as client:
                for partition in range(PARTITIONS):
                    work.check(client, partition)
                work.client = client
                work.rejected.clear()
                work.produce(ROUNDS)
                assert not work.rejected, what


def test_directory_stays_offline_when_its_io_workers_are_restarted(
    tmp_path: Path, seed: int
) -> None:
    """One sync fails; later ones would succeed, for data that is lost."""
    good, bad = tmp_path / "good", tmp_path / "bad"
    control = FailingCall(tmp_path / "control")
    command = broker_command(shimmed(bad, control=control))
    settings = {**SETTINGS, "log.dirs": f"{good},{bad}", "num.io.threads": 2}
    with (
        Broker(settings, directory=tmp_path, command=command) as broker,
        WireClient((broker.host, broker.port)) as client,
        ExitStack() as stack,
    ):
        client.create_topic(TOPIC, PARTITIONS)
        work = Workload(client, random.Random(seed))
        work.produce(0)
        in_bad = {p for p in range(PARTITIONS) if (bad / f"{TOPIC}-{p}").is_dir()}
        assert 0 < len(in_bad) < PARTITIONS
        control.arm(1, errno.EIO, classes=SYNCS, lasting=False)

        def rejected() -> bool:
            work.produce(1)
            return work.rejected == in_bad

        # Including those of the other io worker: the directory is offline for the whole broker.
        wait_until(rejected, 20, "all partitions of the directory are refused")
        pids = all_pids(broker)
        for index in range(2):
            broker.kill("io", index)

        def serves_again() -> bool:
            batch = BatchBuilder()
            batch.append(b"v", b"k", 1_700_000_000_000, ())
            fine = set(range(PARTITIONS)) - in_bad
            # A connection whose batches without a producer id died with an io worker is closed.
            try:
                with WireClient((broker.host, broker.port)) as fresh:
                    answers = fresh.produce(TOPIC, dict.fromkeys(fine, batch.build()), acks=-1)
            except ConnectionError:
                return False
            return all(not response.error_code for _, response in answers.items())

        wait_until(serves_again, 20, "the other directory is served again")
        assert len(set(pids.values()) - set(broker.pids.values())) == 2
        work.client = stack.enter_context(WireClient((broker.host, broker.port)))
        work.produce(2)
        assert work.rejected == in_bad
        assert broker.log_text.count("failed and stays offline until a restart") == 1
        broker.stop()
        assert not (bad / ".kafka_cleanshutdown").exists()
        assert (good / ".kafka_cleanshutdown").exists()
        assert f"log directory {bad} failed; the next start recovers its logs" in broker.log_text
        assert "no clean-shutdown marker" not in broker.log_text
