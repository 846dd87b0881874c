"""A power failure while a whole broker works: everything acknowledged is there when it starts
again.

As ``test_power_cuts``, with every process of a broker behind the shim, its metadata store included,
and ``log.flush.interval.messages=1``, so that acknowledged means synced. Topics come and go, a
compacted one is cleaned all along, a group commits, transactions over two partitions end, segments
roll and are deleted, replicas move between the log directories.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fault.write_log import JOURNAL, STRICT, Change, Disk, Marker, marks, read_log
from support.clients.log_dir_moves import alter, replicas
from support.clients.wire_client import LATEST, WireClient, batch_of, produce_request
from support.faults.history import COMMITTED, entries_of
from support.faults.shim import broker_command, shimmed

from kbroker.errors import ErrorCode
from kbroker.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from kbroker.protocol.messages.delete_records import DeleteRecordsRequest
from kbroker.protocol.messages.delete_topics import DeleteTopicsRequest
from kbroker.protocol.messages.end_txn import EndTxnRequest
from kbroker.protocol.messages.find_coordinator import FindCoordinatorRequest
from kbroker.protocol.messages.init_producer_id import InitProducerIdRequest
from kbroker.protocol.messages.offset_commit import OffsetCommitRequest
from kbroker.record.builder import BatchBuilder
from kbroker.testing import Broker
from kbroker.testing.waiting import wait_until

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]

CUTS = 8
# Changes of the disk in which a transaction is decided and its markers are written.
ENDING = 16
ROUNDS = 60
KEYS = 6
KEPT, SPARSE = "kept", "sparse"
GROUP = "g"
PAID, PAYER, PARTITIONS = "paid", "payer", (0, 1)
SETTINGS = {
    "log.flush.interval.messages": 1,
    "log.segment.bytes": 4000,
    "log.index.size.max.bytes": 4096,
    "log.segment.delete.delay.ms": 50,
    "log.retention.check.interval.ms": 200,
    "log.initial.task.delay.ms": 100,
    "log.cleaner.backoff.ms": 20,
    "log.cleaner.dedupe.buffer.size": 4 << 20,
    "log.flush.offset.checkpoint.interval.ms": 200,
    "log.flush.start.offset.checkpoint.interval.ms": 200,
    "replica.high.watermark.checkpoint.interval.ms": 200,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
}


@pytest.fixture
def work() -> Iterator[Path]:
    """A directory in memory if there is one."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as path:
        yield Path(path)


def dirs_of(root: Path) -> list[str]:
    return [str(root / name) for name in ("a", "b")]


def settings_for(root: Path) -> dict[str, object]:
    return {**SETTINGS, "log.dirs": ",".join(dirs_of(root))}


class Recording:
    """A broker under load behind the shim; marks in the log say what was promised when."""

    def __init__(self, work: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.log = work / "changes"
        self.root = work / "recorded" / "data"
        self.root.mkdir(parents=True)
        self.mark = Marker(self.log)
        self.topics = 0
        self.made: list[str] = []
        self.commits = 0
        self.payments = 0
        self.payer = (-1, -1)

    def run(self) -> list[Change]:
        command = broker_command(shimmed(self.root, log=self.log))
        settings = settings_for(self.root)
        with Broker(settings, directory=self.root.parent, command=command) as broker:
            with WireClient((broker.host, broker.port)) as self.client:
                self.client.create_topic(KEPT)
                self.client.create_topic(
                    SPARSE, cleanup_policy="compact", min_cleanable_dirty_ratio=0.01
                )
                self.mark(created=KEPT)
                self.mark(created=SPARSE)
                self.start_payer()
                actions = [self.produce] * 12 + [self.delete_records, self.create, self.delete]
                actions += [self.commit] * 2 + [self.pay] * 3 + [self.move]
                for _ in range(ROUNDS):
                    self.random.choice(actions)()
                wait_until(lambda: "compacted offsets" in broker.log_text, 10, "compacted")
                for _ in range(ROUNDS // 4):
                    self.random.choice(actions)()
            broker.stop()
            self.mark(stopped=True)
        return read_log(self.log)

    def produce(self) -> None:
        topic = self.random.choice([KEPT, SPARSE, SPARSE])
        builder = BatchBuilder(self.random.choice([0, 0, 1]))
        written = []
        for _ in range(self.random.randint(1, 8)):
            key, value = b"%d" % self.random.randrange(KEYS), self.random.randbytes(40).hex()
            builder.append(value.encode(), key, int(time.time() * 1000), ())
            written.append([key.decode(), value])
        base = self.client.offset(topic, 0, LATEST)
        self.mark(writing=topic, base=base, records=written)
        response = self.client.produce(topic, {0: builder.build()}, acks=-1)[0]
        assert (response.error_code, response.base_offset) == (0, base)
        self.mark(acked=topic, end=base + len(written))

    def delete_records(self) -> None:
        end = self.client.offset(KEPT, 0, LATEST)
        start = self.random.randint(0, end)
        self.mark(deleting=KEPT, start=start)
        cls = DeleteRecordsRequest
        part = cls.DeleteRecordsPartition(partition_index=0, offset=start)
        topic = cls.DeleteRecordsTopic(name=KEPT, partitions=[part])
        self.client.call(cls(topics=[topic], timeout_ms=5000), 1)

    def move(self) -> None:
        """Move a replica to the other directory, or cancel its move."""
        places = replicas(self.client)
        topic, partition = self.random.choice(
            sorted(key for key in places if not key[0].startswith("__"))
        )
        where = self.random.choice(dirs_of(self.root))
        assert alter(self.client, {where: {topic: [partition]}}) == {(topic, partition): 0}

    def create(self) -> None:
        self.topics += 1
        name = f"d{self.topics}"
        self.client.create_topic(name, self.random.randint(1, 3))
        self.made.append(name)
        self.mark(created=name)

    def delete(self) -> None:
        if self.made:
            name = self.made.pop()
            self.mark(deleting_topic=name)
            response = self.client.call(DeleteTopicsRequest(topic_names=[name], timeout_ms=5000), 4)
            assert response.responses[0].error_code == 0
            self.mark(deleted_topic=name)

    def commit(self) -> None:
        self.commits += 1
        self.mark(committing=self.commits)
        cls = OffsetCommitRequest
        part = cls.OffsetCommitRequestPartition(partition_index=0, committed_offset=self.commits)
        topic = cls.OffsetCommitRequestTopic(name=KEPT, partitions=[part])
        request = cls(group_id=GROUP, generation_id_or_member_epoch=-1, topics=[topic])

        def is_committed() -> bool:  # the offsets topic is made when its coordinator is looked for
            if self.commits == 1:
                self.client.call(FindCoordinatorRequest(key=GROUP), 1)
            response = self.client.call(request, 7).topics[0].partitions[0].error_code
            return bool(response == 0)

        wait_until(is_committed, 10, "committed")
        self.mark(committed=self.commits)

    def start_payer(self) -> None:
        self.client.create_topic(PAID, len(PARTITIONS))
        self.mark(created=PAID)
        self.client.call(FindCoordinatorRequest(key=PAYER, key_type=1), 1)
        request = InitProducerIdRequest(transactional_id=PAYER, transaction_timeout_ms=60_000)

        def is_started() -> bool:
            response = self.client.call(request, 2)
            self.payer = (response.producer_id, response.producer_epoch)
            return bool(response.error_code == 0)

        wait_until(is_started, 10, "a producer id")

    def pay(self) -> None:
        """A transaction with one record in each partition; one in three is aborted."""
        number, (producer_id, epoch) = self.payments, self.payer
        self.payments += 1
        topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(
            name=PAID, partitions=list(PARTITIONS)
        )
        added = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=PAYER,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[topic],
        )

        def is_added() -> bool:  # not while the last transaction is still being ended
            (response,) = self.client.call(added, 3).results_by_topic_v3_and_below
            return not any(part.partition_error_code for part in response.results_by_partition)

        wait_until(is_added, 10, "the transaction begins")
        batch = batch_of(
            [b"%d" % number],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=number,
            transactional=True,
        )
        request = produce_request(PAID, dict.fromkeys(PARTITIONS, batch), acks=-1)
        request.transactional_id = PAYER
        answers = self.client.call(request, 8).responses[0].partition_responses
        assert [response.error_code for response in answers] == [0, 0], answers
        commit = number % 3 != 2
        self.mark(paying=number, commit=commit)
        end = EndTxnRequest(
            transactional_id=PAYER,
            producer_id=producer_id,
            producer_epoch=epoch,
            committed=commit,
        )
        assert self.client.call(end, 2).error_code == 0
        self.mark(paid=number, commit=commit)


class Promises:
    """What must hold after a power failure, given the marks before it."""

    def __init__(self, facts: list[dict[str, Any]]) -> None:
        self.topics: set[str] = set()
        self.gone: set[str] = set()
        self.in_doubt: set[str] = set()
        self.written: dict[str, dict[int, tuple[str, str]]] = {KEPT: {}, SPARSE: {}}
        self.ends = {KEPT: 0, SPARSE: 0}
        self.deleted_up_to = 0
        self.committed = self.committing = 0
        self.paid: set[int] = set()
        self.paying: set[int] = set()
        for fact in facts:
            if "created" in fact:
                self.topics.add(fact["created"])
            elif "deleting_topic" in fact:
                self.topics.discard(fact["deleting_topic"])
            elif "deleted_topic" in fact:
                self.gone.add(fact["deleted_topic"])
            elif "writing" in fact:
                places = enumerate(fact["records"], fact["base"])
                self.written[fact["writing"]].update((at, (k, v)) for at, (k, v) in places)
            elif "acked" in fact:
                self.ends[fact["acked"]] = fact["end"]
            elif "deleting" in fact:
                self.deleted_up_to = max(self.deleted_up_to, fact["start"])
            elif fact.get("commit"):
                self.paying.update({fact["paying"]} if "paying" in fact else ())
                self.paid.update({fact["paid"]} if "paid" in fact else ())
            self.committing = fact.get("committing", self.committing)
            self.committed = fact.get("committed", self.committed)

    def check(self, client: WireClient) -> None:
        names = {topic.name for topic in client.metadata(*self.topics, *self.gone).topics
                 if topic.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}  # fmt: skip
        assert self.topics <= names, f"{self.topics - names} were acknowledged and are gone"
        assert not names & self.gone, f"{names & self.gone} were deleted and are back"
        for topic in (KEPT, SPARSE):
            if topic in self.topics:
                self.check_records(client, topic)
        if self.committed:
            found = wait_until(lambda: client.committed(GROUP, KEPT, 1), 10, "offsets")
            assert self.committed <= found[0] <= self.committing
        if PAID in self.topics:
            self.check_payments(client)

    def check_payments(self, client: WireClient) -> None:
        """Decided transactions are completed soon after the start, in every partition."""

        def agreed() -> tuple[set[int]] | None:
            one, other = (
                {
                    int(entry.value)
                    for entry in entries_of(client.read_batches(PAID, partition))
                    if entry.fate == COMMITTED and entry.value is not None
                }
                for partition in PARTITIONS
            )
            return (one,) if one == other and self.paid <= one else None

        (found,) = wait_until(agreed, 10, f"{sorted(self.paid)} are committed everywhere")
        assert found <= self.paying, f"{found - self.paying} were not to be committed"

    def check_records(self, client: WireClient, topic: str) -> None:
        written, end = self.written[topic], self.ends[topic]
        # While the cleaner swaps segments, a fetch that does not wait returns nothing.
        (records,) = wait_until(lambda: (client.read_all(topic, 0),), 10, "read")
        found = {r.offset: (str(r.key, "ascii"), str(r.value, "ascii"))
                 for r in records if r.key and r.value}  # fmt: skip
        assert client.offset(topic, 0, LATEST) >= end, topic
        wrong = {offset: pair for offset, pair in found.items() if written.get(offset) != pair}
        assert not wrong, wrong
        if topic == KEPT:
            missing = set(range(self.deleted_up_to, end)) - found.keys()
            assert not missing, f"acknowledged and gone: {sorted(missing)}"
            return
        newest = {pair[0]: offset for offset, pair in sorted(found.items())}
        last = {pair[0]: offset for offset, pair in sorted(written.items()) if offset < end}
        for key, offset in last.items():
            assert newest.get(key, -1) >= offset, f"key {key}: {offset} is gone"


def first_mark(change: Change) -> dict[str, Any]:
    """The content of the first change that is a mark."""
    return next(iter(marks([change])), {})


@pytest.mark.slow
def test_power_failure_of_a_broker_loses_nothing_acknowledged(
    work: Path, seed: int, scale: int
) -> None:
    recording = Recording(work, seed)
    changes = recording.run()
    shutil.rmtree(recording.root)
    chance = random.Random(seed)
    endings = [at for at, change in enumerate(changes) if "paying" in first_mark(change)]
    for number in range(CUTS * scale):
        cut = chance.randrange(1, len(changes) + 1)
        if number % 2 and endings:
            cut = min(chance.choice(endings) + chance.randrange(1, ENDING), len(changes))
        promises = Promises(marks(changes[:cut]))
        disk = Disk(recording.root, changes[:cut])
        directory = work / "cut"
        disk.write(directory / "data", chance, chance.choice([JOURNAL, STRICT]))
        context = f"cut {number} after change {cut} of {len(changes)}"
        settings = settings_for(directory / "data")
        with Broker(settings, directory=directory, start_timeout=60) as broker:
            try:
                wait_until(lambda b=broker: "processes are ready" in b.log_text, 10, "all ready")
                with WireClient((broker.host, broker.port)) as client:
                    promises.check(client)
            except AssertionError as error:
                raise AssertionError(f"{context}: {error}\n{broker.log_text[-3000:]}") from error
            assert "Traceback" not in broker.log_text, f"{context}\n{broker.log_text[-4000:]}"
        shutil.rmtree(directory)
