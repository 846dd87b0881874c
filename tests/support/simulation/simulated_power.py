"""Power failures of simulated brokers, and how they take back what they have lost."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from support.replication.scripted_leader import at
from support.storage.log_store import batch

from kbroker.controller.state import reassignments
from kbroker.controller.store.topic_nodes import stored_topics
from kbroker.errors import ErrorCode
from kbroker.metastore import paths
from kbroker.record.batch import iterate_batches
from kbroker.replication.fetched_run import Appended, Fault
from kbroker.replication.partition import Role
from kbroker.replication.tail_repair import Answer, TailQuestion, TailRepair
from kbroker.replication.truncation import EpochEnd

if TYPE_CHECKING:
    from support.simulation.simulated_replicas import (
        DiskLog,
        IoWorker,
        PartitionId,
        Record,
        Replica,
        ReplicatedCluster,
    )

ANSWERED_MAX = 3


class RepairedDisk:
    """A log as ``replication.tail_repair`` sees it; its records are batches of one."""

    def __init__(self, log: DiskLog) -> None:
        self._log = log
        self.epochs = log.epochs
        self.truncate_to = log.truncate_to

    @property
    def log_end_offset(self) -> int:
        return self._log.log_end_offset

    def append(self, records: bytes | memoryview, epoch_max: int) -> Appended:
        for one in iterate_batches(records):
            assert one.base_offset == self.log_end_offset
            epoch = one.header.partition_leader_epoch
            assert (self.epochs.latest or 0) <= epoch <= epoch_max
            self._log.append((epoch, (one.records()[0].value or b"").decode()))
        return Appended(Fault.NONE, len(records), 0, -1, 0, 0, 0)


def answer(log: DiskLog, question: TailQuestion) -> Answer:
    """A replica answers up to its log end."""
    end = log.log_end_offset
    if question.last_epoch >= 0:
        known = log.epochs.end_offset_for(question.last_epoch, end)  # type: ignore[arg-type]
        if known is None:
            return Answer(ErrorCode.OFFSET_OUT_OF_RANGE)
        if known[0] < question.last_epoch or known[1] < question.offset:
            return Answer(0, EpochEnd(*known))
    if question.offset > end:
        return Answer(ErrorCode.OFFSET_OUT_OF_RANGE)
    some = log.entries[question.offset : question.offset + ANSWERED_MAX]
    data = [
        at(offset, batch([value.encode()]), epoch)
        for offset, (epoch, value) in enumerate(some, question.offset)
    ]
    return Answer(0, records=memoryview(b"".join(data)))


def serve_any(io: IoWorker, id_: Any, leader_epoch: int, question: TailQuestion) -> Answer:
    """A fetch with replica id -3."""
    found = next((one for one in io.replicas.values() if one.id == id_), None)
    if found is None:
        return Answer(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if found.partition.role not in (Role.LEADER, Role.FOLLOWER):
        return Answer(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    known = found.partition.leader_epoch
    if leader_epoch != known:
        is_old = leader_epoch < known
        return Answer(ErrorCode.FENCED_LEADER_EPOCH if is_old else ErrorCode.UNKNOWN_LEADER_EPOCH)
    return answer(found.log, question)


def begin_repair(replica: Replica) -> TailRepair:
    partition = replica.partition
    others = [broker for broker in partition.replicas if broker != partition.leader]
    log: Any = RepairedDisk(replica.log)
    last = replica.repair
    return TailRepair(log, partition.leader_epoch, others, by_epoch=True, continues=last)


def repair(io: IoWorker, replica: Replica, machine: TailRepair) -> None:
    """One step: ask somebody. The answer comes later, or never."""
    cluster = io.cluster
    asked = machine.next_question(cluster.now_ms)
    if asked is None:
        return
    broker, question = asked
    other = cluster.brokers[broker].io
    replica.is_asking = True

    def arrive() -> None:
        lost = not other.is_alive or cluster.random.random() < cluster.responses_lost
        said = None if lost else serve_any(other, replica.id, machine.leader_epoch, question)
        cluster.after(cluster.delay_ms(), lambda: ended(said))

    def ended(said: Answer | None) -> None:
        replica.is_asking = False
        if not io.is_alive or replica.repair is not machine:
            return
        if said is None:
            machine.on_failure(broker, "the connection was lost", cluster.now_ms)
        else:
            machine.on_answer(broker, question, said, cluster.now_ms)

    cluster.after(cluster.delay_ms(), arrive)


def lose_power(cluster: ReplicatedCluster, number: int) -> None:
    """A machine stops and starts: its logs lose some of what was not synced. What others have got
    by then is on their disks before the next machine fails.
    """
    synced = {id_: log.synced for (where, id_), log in cluster.disks.items() if where == number}
    if not may_fail(cluster, number, synced):
        return
    cluster.brokers[number].crash()
    for (where, id_), log in cluster.disks.items():
        end = log.log_end_offset
        if where != number:
            log.synced = end
            continue
        log.truncate_to(cluster.random.randint(min(log.synced, end), end))
        log.synced = log.log_end_offset
        log.is_suspect = True
        # What only this machine had is gone, whoever has read it.
        seen = cluster.seen.get(id_, [])
        left = [one.entries for (_, other), one in cluster.disks.items() if other == id_]
        del seen[max(same(seen, entries) for entries in left) :]
    cluster.brokers[number] = cluster.start(number)


def may_fail(
    cluster: ReplicatedCluster, number: int, kept: Mapping[PartitionId, int] = MappingProxyType({})
) -> bool:
    """Whether another machine has each acknowledged record that this one does not keep.

    Two in sync survive one failed machine: a second one does not fail before the first has its
    records back. A replica that is being removed does not count. It is deleted when the others are
    in sync, and one that has failed, and is back before its session has ended, still is.
    """
    staying = {
        (topic.topic_id, partition): reassignments.target(state)
        for topic in stored_topics(cluster.tree.subtree(paths.BROKER_TOPICS))
        for partition, state in enumerate(topic.partitions())
    }
    for id_, records in cluster.acknowledged.items():
        if id_ not in staying:
            continue
        others = [cluster.disks.get((other, id_)) for other in staying[id_] if other != number]
        for offset, record in records.items():
            if offset >= kept.get(id_, 0) and not any(
                log is not None and log.entries[offset : offset + 1] == [record] for log in others
            ):
                return False
    return True


def lose_disk(cluster: ReplicatedCluster, number: int, older: bool = False) -> None:
    """A machine stops, and starts with an empty disk or a restored one, which look as if they had
    been closed in order. What the start finds by ``storage.dirs.incarnations`` is suspect.
    """
    if not may_fail(cluster, number):
        return
    cluster.disks_lost += 1
    cluster.brokers[number].crash()
    for (where, id_), log in list(cluster.disks.items()):
        if where != number:
            log.synced = log.log_end_offset
            continue
        if older:
            log.truncate_to(cluster.random.randint(0, log.log_end_offset))
            log.synced = log.log_end_offset
            log.is_suspect = True
        else:
            del cluster.disks[where, id_]
        seen = cluster.seen.get(id_, [])
        left = [one.entries for (_, other), one in cluster.disks.items() if other == id_]
        del seen[max((same(seen, entries) for entries in left), default=0) :]
    cluster.brokers[number] = cluster.start(number)


def same(a: list[Record], b: list[Record]) -> int:
    """How many records two logs have in common."""
    both = min(len(a), len(b))
    return next((i for i in range(both) if a[i] != b[i]), both)
