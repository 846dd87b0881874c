"""Simulated brokers with logs: they follow, lead, change the in-sync replicas, and serve clients.

Everything that decides is the broker's own: roles (``replication.partition``), truncation
(``replication.following``), the high watermark (``_ext.log.replica_set``), who is in sync
(``workers.io.in_sync``, ``hosting.isr_changes``) and the controller. Disks, links and clients are
models. After each step is checked, by the names of the design:

- I1 a record acknowledged with acks=all is in the log of every later leader, at its offset;
- I2 what was below a high watermark stays what it was, and so is what consumers have seen;
- I3 in one leader epoch one broker appends;
- I4 a follower's log is a prefix of its leader's whenever its fetch is counted;
- I5 the high watermark of a leader does not fall within its leader epoch;
- I6 a log whose deletion a broker has acknowledged is not on its disk.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from support.replication.follower_entries import ATTACHED, PROGRESS, entry
from support.simulation.simulated_cluster import Broker, SimulatedCluster
from support.simulation.simulated_failover import drop_follower
from support.simulation.simulated_power import begin_repair, repair

from kbroker._ext.shared import session_times
from kbroker._ext.shared.session_times import SessionTimes
from kbroker.cluster.control_requests import (
    ControlRequest,
    ControlResponse,
    LedPartition,
    PartitionKey,
    StopReplica,
)
from kbroker.controller.store import persistence
from kbroker.errors import ErrorCode, WireError
from kbroker.hosting.image import Changes
from kbroker.hosting.isr_changes import IsrChanges
from kbroker.hosting.isr_reports import IsrReports
from kbroker.ipc import calls
from kbroker.ipc.calls import IsrResult, IsrState, StoppedReplica, WantedIsr
from kbroker.ipc.pending import Pending, TooLate, run, within
from kbroker.ipc.process_table import Address, ProcessKind
from kbroker.metastore import paths
from kbroker.metastore.settled import Fenced, SettledStore
from kbroker.metastore.simulated import Faults
from kbroker.metastore.store import StoreError, StoreFailed
from kbroker.replication.following import (
    LATEST,
    EpochQuestion,
    FollowedPartition,
    OffsetQuestion,
    Question,
)
from kbroker.replication.partition import Change, Partition, Role
from kbroker.replication.tail_repair import TailRepair
from kbroker.replication.truncation import EpochEnd
from kbroker.storage.segments.leader_epochs import LeaderEpochs
from kbroker.workers.controller.stored_isr import StoredIsr
from kbroker.workers.io.in_sync import InSync

MIN_IN_SYNC = 2
LAG_MS = 3_000
BACKOFF_MS = 300
TURN_MS = 300
FETCH_WAIT_MS = 500  # of a fetch that finds nothing
FETCHED_MAX = 4
CONTROLLER_PATIENCE_MS = 4_000
IO_WORKER = Address(ProcessKind.IO_WORKER, 0)

Record = tuple[int, str]  # leader epoch, value
PartitionId = tuple[bytes, int]  # topic id, partition


class MemoryEpochs(LeaderEpochs):
    """Epochs that are on the same disk as the records."""

    def __init__(self) -> None:
        self._entries = []

    def write(self) -> None:
        """They are in memory."""


class DiskLog:
    """A replica on a disk, which outlives its broker. Stands for its appender, too."""

    def __init__(self, number: int, key: PartitionKey) -> None:
        self.key = key
        self.name = f"{key[0]}-{key[1]} on {number}"
        self.entries: list[Record] = []
        self.epochs = MemoryEpochs()
        self.high_watermark = 0
        self.log_start_offset = 0
        # What outlives a power failure, and whether there was one.
        self.synced = 0
        self.is_suspect = False
        # As an appender, and as what waits for it to be committed.
        self.appender = self.committed = self
        self.replicas: Any = None
        self.is_under_min_isr = self.is_maximal_under_min_isr = False

    @property
    def log_end_offset(self) -> int:
        return len(self.entries)

    def append(self, record: Record) -> int:
        """The offset after it."""
        self.epochs.assign(record[0], len(self.entries))
        self.entries.append(record)
        return len(self.entries)

    def truncate_to(self, offset: int) -> int:
        del self.entries[offset:]
        self.epochs.truncate_from_end(offset)
        self.high_watermark = min(self.high_watermark, len(self.entries))
        return len(self.entries)

    def restart_at(self, offset: int) -> None:
        assert offset == 0, "records are never deleted here"
        self.truncate_to(0)


class Waiting(NamedTuple):
    """A produce request with acks=all."""

    end: int
    record: Record


class Replica:
    """A replica of a process: its log with a role."""

    def __init__(
        self, broker_id: int, place: tuple[int, int], id_: PartitionId, log: DiskLog
    ) -> None:
        self.place = place
        self.id = id_
        self.log = log
        self.partition = Partition(broker_id, MIN_IN_SYNC)
        self.followed = FollowedPartition(log.name, log, BACKOFF_MS)  # type: ignore[arg-type]
        self.waiting: list[Waiting] = []
        self.partition.is_suspect = log.is_suspect
        self.repair: TailRepair | None = None
        self.is_asking = False
        self.waits_until_ms = 0


class Told(NamedTuple):
    """What the controller process tells the io worker of a replica."""

    place: tuple[int, int]
    id: PartitionId
    partition: LedPartition


class IoWorker:
    """The io worker of a broker, with all its partitions; what InSync needs of it and its loop."""

    def __init__(self, broker: ReplicatedBroker) -> None:
        self.broker = broker
        self.cluster = broker.replicated
        self.rpc: Any = self
        self.image: Any = self
        self.config: Any = {"replica.lag.time.max.ms": LAG_MS, "replica.fetch.wait.max.ms": 500}
        self.isr_to_check: set[int] = set()
        self.replicas: dict[tuple[int, int], Replica] = {}
        self.stopped: set[tuple[int, int]] = set()
        # By broker: the cell of a follower's session is its id.
        self.times = times = SessionTimes(mmap.mmap(-1, session_times.region_size(1)), 0)
        loop: Any = self
        self.in_sync = InSync(self, loop, times, broker_id=broker.number)
        # Calls to the controller process without a reply.
        self._asked: list[Pending[list[IsrResult]]] = []
        self.cluster.after(TURN_MS, self._turn)

    @property
    def brokers(self) -> Any:
        return self.broker.hosting.metadata.brokers

    def show_in_sync(self, slot: int, log: Any, partition: Any) -> None:
        log.is_under_min_isr = partition.is_under_min_isr
        log.is_maximal_under_min_isr = partition.is_maximal_under_min_isr

    # -- as the RPC and the loop of InSync --

    def call(self, to: Any, operation: Any, request: Any) -> Pending[list[IsrResult]]:
        assert operation is calls.ALTER_ISR
        answer: Pending[list[IsrResult]] = Pending()
        self._asked.append(answer)

        def answered(outcome: Pending[list[IsrResult]]) -> None:
            if answer in self._asked:
                self._asked.remove(answer)
                answer.resolve(outcome.value, outcome.error)

        run(self.broker.isr_changes.serve_alter(IO_WORKER, request)).then(answered)
        return answer

    def on_restart(self, broker: ReplicatedBroker) -> None:
        """The controller process is another one: calls to the last one fail."""
        self.broker = broker
        asked, self._asked = self._asked, []
        for answer in asked:
            answer.resolve(error=WireError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "it restarts"))

    @property
    def is_alive(self) -> bool:
        return self.broker.is_alive and self.broker.io is self

    def sleep(self, delay_ms: int) -> Pending[None]:
        return self.cluster.sleep(delay_ms)

    def show_followers(self, slot: int, replicas: Any) -> None:
        """No consumers read here."""

    def admit_followers(self, slot: int) -> None:
        """Followers are admitted by their next fetch."""

    def touch(self, log: DiskLog) -> None:
        """The high watermark may have risen."""
        if not self.is_alive:
            return
        replica = next(one for one in self.replicas.values() if one.log is log)
        partition, end = replica.partition, log.log_end_offset
        if not partition.leads:
            return
        found = end
        if not partition.is_alone:
            found = log.replicas.high_watermark(end, log.high_watermark, self.cluster.now_ms)
        self.cluster.note_high_watermark(replica, found)
        log.high_watermark = found
        still = []
        for waiting in replica.waiting:
            if waiting.end > found:
                still.append(waiting)
            elif not partition.is_maximal_under_min_isr:
                self.cluster.note_acknowledged(replica, waiting)
        replica.waiting = still

    # -- roles --

    def take(self, told: Sequence[Told]) -> None:
        places = {one.place for one in told}
        self.stopped &= places
        for gone in self.replicas.keys() - places:
            self._forget(gone)
        for one in told:
            if one.place in self.stopped:
                continue
            replica = self.replicas.get(one.place)
            if replica is None:
                log = self._open(one)
                replica = Replica(self.broker.number, one.place, one.id, log)
                self.replicas[one.place] = replica
            self._take_role(replica, one.partition)
        self.in_sync.end_turn()

    def _open(self, told: Told) -> DiskLog:
        """As in ``workers.io.hosted``: a log that must be there and is not was lost."""
        partition, number = told.partition, self.broker.number
        is_there = (number, told.id) in self.cluster.disks
        log = self.cluster.disk(number, told.id, partition.key)
        is_counted = number in partition.isr and len(partition.replicas) > 1
        if not is_there and is_counted and not partition.is_new:
            log.is_suspect = True
        return log

    def stop(self, place: tuple[int, int]) -> Replica | None:
        """As in ``workers.io.hosted``: what was told before it was stopped opens it no more."""
        self.stopped.add(place)
        replica = self.replicas.get(place)
        if replica is not None:
            self._forget(place)
        return replica

    def _forget(self, place: tuple[int, int]) -> None:
        self.in_sync.stop(place[0])
        del self.replicas[place]

    def _take_role(self, replica: Replica, told: Any) -> None:
        partition = replica.partition
        change = partition.take(told)
        if change is None:
            return
        if change.lost:
            replica.waiting.clear()
        self._take_effect(replica, change)

    def _take_effect(self, replica: Replica, change: Change) -> None:
        partition, log = replica.partition, replica.log
        log.is_suspect = partition.is_suspect
        if change.began:
            self.cluster.note_leader(replica, self.broker.number)
            log.epochs.assign(partition.leader_epoch, log.log_end_offset)
        self.show_in_sync(replica.place[0], log, partition)
        self.in_sync.take_role(replica.place[0], partition, log)  # type: ignore[arg-type]
        followed = replica.followed
        if partition.role is not Role.REPAIRING:
            replica.repair = None
        elif replica.repair is None or replica.repair.leader_epoch != partition.leader_epoch:
            replica.repair = begin_repair(replica)
        if partition.role is Role.FOLLOWER and partition.leader >= 0:
            if partition.leader_epoch > followed.leader_epoch:
                followed.follow(partition.leader, partition.leader_epoch)
        elif partition.leads:
            self.touch(log)

    # -- turns --

    def _turn(self) -> None:
        if not self.is_alive:
            return
        now = self.cluster.now_ms
        for replica in list(self.replicas.values()):
            self._follow(replica, now)
        self.in_sync.tick(now)
        self.in_sync.end_turn()
        self.cluster.after(self.cluster.random.randint(1, TURN_MS), self._turn)

    def _follow(self, replica: Replica, now: int) -> None:
        followed, partition = replica.followed, replica.partition
        if partition.leads or partition.leader < 0 or replica.is_asking:
            return
        if replica.repair is not None:
            repair(self, replica, replica.repair)
            if replica.repair.is_done:
                replica.repair = None
                change = partition.lead_repaired()
                assert change is not None
                self._take_effect(replica, change)
            return
        followed.resume(now)
        if followed.asks and followed.question is not None:
            self._ask(replica, followed.question)
        elif followed.is_fetching and now >= replica.waits_until_ms:
            self._fetch(replica)

    def _send(
        self,
        replica: Replica,
        serve: Callable[[IoWorker], Any],
        then: Callable[[Any], None],
    ) -> None:
        """Have the leader serve something, and take its response if it still matters."""
        cluster, epoch = self.cluster, replica.followed.leader_epoch
        leader = cluster.brokers[replica.followed.leader].io
        replica.is_asking = True

        def arrive() -> None:
            lost = not leader.is_alive or cluster.random.random() < cluster.responses_lost
            response = serve(leader) if leader.is_alive else None
            cluster.after(cluster.delay_ms(), lambda: ended(None if lost else response))

        def ended(response: Any) -> None:
            replica.is_asking = False
            if not self.is_alive or self.replicas.get(replica.place) is not replica:
                return
            if replica.partition.leads or replica.followed.leader_epoch != epoch:
                return
            if response is None:
                replica.followed.pause(cluster.now_ms, "the connection was lost")
            else:
                then(response)

        cluster.after(cluster.delay_ms(), arrive)

    def _ask(self, replica: Replica, question: Question) -> None:
        followed, epoch = replica.followed, replica.followed.leader_epoch

        def then(response: tuple[int, Any]) -> None:
            error, found = response
            if isinstance(question, EpochQuestion):
                followed.on_epoch_end(error, found, self.cluster.now_ms)
            else:
                followed.on_offset(error, found, self.cluster.now_ms)

        self._send(replica, lambda leader: leader.serve_question(replica.id, epoch, question), then)

    def _fetch(self, replica: Replica) -> None:
        log, epoch = replica.log, replica.followed.leader_epoch
        offset, before = log.log_end_offset, list(log.entries)
        me = self.broker.number

        def then(response: tuple[int, list[Record], int]) -> None:
            error, records, high_watermark = response
            if error:
                replica.followed.on_fetch_error(error, self.cluster.now_ms)
            elif replica.followed.is_fetching and log.log_end_offset == offset:
                for record in records:
                    log.append(record)
                log.high_watermark = min(high_watermark, log.log_end_offset)
                if log.log_end_offset >= high_watermark:
                    replica.partition.is_suspect = log.is_suspect = False
                if records:
                    self._fetch(replica)
                else:
                    wait_ms = self.cluster.random.randint(0, FETCH_WAIT_MS)
                    replica.waits_until_ms = self.cluster.now_ms + wait_ms

        self._send(
            replica, lambda leader: leader.serve_fetch(replica.id, me, epoch, offset, before), then
        )

    # -- as a leader --

    def _led(self, id_: PartitionId, leader_epoch: int) -> tuple[Replica | None, int]:
        """A replica that leads in that epoch, or an error code."""
        found = next((one for one in self.replicas.values() if one.id == id_), None)
        if found is None:
            return None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if not found.partition.leads:
            return None, ErrorCode.NOT_LEADER_OR_FOLLOWER
        if leader_epoch != found.partition.leader_epoch:
            is_old = leader_epoch < found.partition.leader_epoch
            old, new = ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH
            return None, old if is_old else new
        return found, 0

    def serve_question(
        self, id_: PartitionId, leader_epoch: int, question: Question
    ) -> tuple[int, Any]:
        led, error = self._led(id_, leader_epoch)
        if led is None:
            return error, EpochEnd(-1, -1) if isinstance(question, EpochQuestion) else -1
        end = led.log.log_end_offset
        if isinstance(question, OffsetQuestion):
            return 0, end if question.timestamp == LATEST else 0
        return 0, EpochEnd(*(led.log.epochs.end_offset_for(question.epoch, end) or (-1, -1)))

    def serve_fetch(
        self, id_: PartitionId, replica_id: int, leader_epoch: int, offset: int, log: list[Record]
    ) -> tuple[int, list[Record], int]:
        """log: the follower's when it sent this."""
        led, error = self._led(id_, leader_epoch)
        if led is None:
            return error, [], -1
        end = led.log.log_end_offset
        if offset > end:
            return ErrorCode.OFFSET_OUT_OF_RANGE, [], -1
        now = self.cluster.now_ms
        self.times.note_request(replica_id, now)
        said = entry(
            replica_id, offset, seen=end, at_ms=now, leader_epoch=leader_epoch,
            flags=ATTACHED | PROGRESS, cell=replica_id,
        )  # fmt: skip
        self.cluster.after(
            self.cluster.random.randint(0, 20), lambda: self._count(led, leader_epoch, log, said)
        )
        return 0, led.log.entries[offset : offset + FETCHED_MAX], led.log.high_watermark

    def _count(self, led: Replica, leader_epoch: int, log: list[Record], said: bytes) -> None:
        """The progress has come from the network process."""
        partition, now = led.partition, self.cluster.now_ms
        if not self.is_alive or not partition.leads or led.log.replicas is None:
            return
        if self.replicas.get(led.place) is not led:
            return
        if partition.leader_epoch == leader_epoch:
            assert led.log.entries[: len(log)] == log, "I4: the follower's log is no prefix"
        has_moved, is_to_check = led.log.replicas.note_entry(said, 0, led.log.high_watermark, now)
        if has_moved:
            self.touch(led.log)
        if is_to_check:
            self.isr_to_check.add(led.place[0])
            self.in_sync.end_turn()

    def produce(self, replica: Replica, value: str) -> None:
        """A client writes with acks=all."""
        partition = replica.partition
        if partition.is_under_min_isr:
            return
        record = partition.leader_epoch, value
        self.cluster.note_append(replica, self.broker.number)
        replica.waiting.append(Waiting(replica.log.append(record), record))
        self.touch(replica.log)


class Controllers:
    """The way of one broker to whoever is the controller."""

    def __init__(self, broker: ReplicatedBroker) -> None:
        self._broker = broker
        self._cluster = broker.replicated

    def alter_isr(self, wanted: Sequence[WantedIsr]) -> Pending[list[IsrResult]]:
        return run(self._alter(wanted))

    async def _alter(self, wanted: Sequence[WantedIsr]) -> list[IsrResult]:
        cluster, me = self._cluster, self._broker
        await self._pass(cluster.random.random() < cluster.responses_lost)
        candidacy = cluster.term_began()
        if candidacy is None or candidacy.background is None or not me.is_alive:
            raise WireError(ErrorCode.NOT_CONTROLLER, "nobody is the controller")
        asked = candidacy.background.in_sync.alter(me.number, me.hosting.broker_epoch, wanted)
        try:
            answers = await within(asked, me.sleep(CONTROLLER_PATIENCE_MS))
        except (TooLate, Fenced, StoreError, StoreFailed) as error:
            raise WireError(ErrorCode.NETWORK_EXCEPTION, "no response") from error
        await self._pass(cluster.random.random() < cluster.responses_lost)
        return answers

    async def _pass(self, is_lost: bool) -> None:
        """A request or a response is on its way; a lost one is waited for. Raises WireError."""
        await self._broker.sleep(CONTROLLER_PATIENCE_MS if is_lost else self._cluster.delay_ms())
        if is_lost:
            raise WireError(ErrorCode.NETWORK_EXCEPTION, "no response")

    def read_isr(self, keys: Sequence[PartitionKey]) -> Pending[list[IsrState | None]]:
        return run(self._read(keys))

    async def _read(self, keys: Sequence[PartitionKey]) -> list[IsrState | None]:
        await self._broker.sleep(self._cluster.delay_ms())
        found: list[IsrState | None] = []
        for key in keys:
            path = paths.partition_state(*key)
            if self._cluster.tree.exists(path) is None:
                found.append(None)
                continue
            node = self._cluster.tree.get(path)
            found.append(IsrState(*paths.decode_partition_state(node.data), node.stat.version))
        return found


class Reports(IsrReports):
    """Sent some time after each change."""

    def __init__(self, broker: ReplicatedBroker, store: SettledStore) -> None:
        self._broker = broker
        self._store = store

    def note(self, keys: Iterable[PartitionKey]) -> None:
        changed = list(keys)
        if changed:
            delay_ms = self._broker.cluster.random.randint(0, 7_500)
            self._broker.after(delay_ms, lambda: self._send_all(changed))

    def _send_all(self, changed: list[PartitionKey]) -> None:
        def reported(outcome: Pending[None]) -> None:
            if outcome.error is not None:
                self.note(changed)

        run(persistence.report_isr_changes(self._store, changed)).then(reported)


class Stored(StoredIsr):
    """Tells the cluster what was written past the controller."""

    def __init__(self, broker: ReplicatedBroker) -> None:
        store = SettledStore(broker.store)
        super().__init__(broker.number, broker.hosting.replicas, store, Reports(broker, store))
        self._broker = broker

    async def _write(self, one: WantedIsr) -> IsrResult:
        result = await super()._write(one)
        if result.state is not None:
            epoch = result.state.partition_epoch
            self._broker.cluster.note_written(self._broker, one.key, epoch)
        return result


class ReplicatedBroker(Broker):
    """A broker with an io worker."""

    found: Any

    def __init__(
        self, cluster: ReplicatedCluster, number: int, last: ReplicatedBroker | None = None
    ) -> None:
        self.replicated = cluster
        self._last_told_ms = 0 if last is None else last._last_told_ms
        super().__init__(cluster, number, last)
        self.isr_changes = IsrChanges(
            number, self.hosting, Controllers(self), self.sleep, self.journal, Stored(self)
        )
        if self.found is not None:
            self.isr_changes.ask_again(self.found.asked.values())
        if last is not None:
            self.io = last.io
            self.io.on_restart(self)
        else:
            self.io = IoWorker(self)

    def drop_follower(self, broker_id: int, closed_ms: int) -> Pending[int]:
        return drop_follower(self, broker_id, closed_ms)

    def restart_io_worker(self) -> None:
        """It gets everything once there is an image."""
        for replica in self.io.replicas.values():
            replica.log.replicas = None
        self.io = IoWorker(self)
        self.io.in_sync.take_asked_before(self.isr_changes.pending())
        if self.is_told:
            self._tell()

    def told(self) -> None:
        if not self.is_told:
            super().told()
            self._tell()

    def publish(self, changes: Changes = Changes()) -> Pending[dict[str, int]]:
        """The io worker hears of it later, in order."""
        super().publish(changes)
        return self._tell()

    def _tell(self) -> Pending[dict[str, int]]:
        cluster, told, io = self.replicated, self._told(), self.io
        outcome: Pending[dict[str, int]] = Pending()
        self._last_told_ms = max(self._last_told_ms, cluster.now_ms + cluster.delay_ms())

        def arrive() -> None:
            if io.is_alive:
                io.take(told)
            if self.is_alive:
                outcome.resolve({})

        if self.is_told:
            cluster.after(self._last_told_ms - cluster.now_ms, arrive)
        else:
            outcome.resolve({})
        return outcome

    def _told(self) -> list[Told]:
        found = []
        for replica in self.hosting.replicas:
            topic = self.hosting.replicas.topic(replica.told.topic)
            assert topic is not None
            id_ = topic.topic_id, replica.told.partition
            found.append(Told((replica.slot, replica.slot_incarnation), id_, replica.told))
        return found

    async def stop_replicas(self, replicas: Sequence[StoppedReplica]) -> None:
        """As ``workers.io.hosted``: what is not open is looked for on disk."""
        await super().stop_replicas(replicas)
        for one in replicas:
            gone = self.io.stop((one.slot, one.slot_incarnation))
            if gone is not None:
                self._remove(gone.id, one.topic)
                continue
            key = one.topic, one.partition
            for where, id_ in list(self.replicated.disks):
                if where == self.number and self.replicated.disks[where, id_].key == key:
                    self._remove(id_, one.topic)

    def _remove(self, id_: PartitionId, name: str) -> None:
        self.replicated.disks.pop((self.number, id_), None)
        self.replicated.note_removed(id_, name)

    def take(self, request: ControlRequest) -> Pending[ControlResponse]:
        """I6: no log is on disk of which this broker says that it is deleted."""
        answer = super().take(request)
        return run(self._checked(request, answer)) if isinstance(request, StopReplica) else answer

    async def _checked(
        self, request: StopReplica, answer: Pending[ControlResponse]
    ) -> ControlResponse:
        response = await answer
        if response.error is ErrorCode.NONE and self.is_alive:
            ordered = {row.key for row in request.partitions if row.delete}
            hosted = {replica.told.key for replica in self.hosting.replicas}
            for key in ordered - response.partitions.keys() - hosted:
                left = [
                    id_
                    for (number, id_), log in self.replicated.disks.items()
                    if number == self.number and log.key == key
                ]
                assert not left, f"I6: broker {self.number} says that {key} is deleted"
        return response

    async def before_hosting(self, session_id: int) -> None:
        """As ``workers.strays``, which looks at the disks of a broker that starts."""
        if self._is_first and not self.is_told:
            self.replicated.set_strays_aside(self.number)


class ReplicatedCluster(SimulatedCluster):
    """Brokers with disks, and what has been promised to clients."""

    brokers: list[Any]

    def __init__(self, seed: int, faults: Faults, responses_lost: float = 0.05) -> None:
        self.disks: dict[tuple[int, PartitionId], DiskLog] = {}
        self.appenders: dict[tuple[PartitionId, int], int] = {}
        self.high_watermarks: dict[tuple[PartitionId, int, int], int] = {}
        self.seen: dict[PartitionId, list[Record]] = {}
        self.acknowledged: dict[PartitionId, dict[int, Record]] = {}
        self.deleted: set[PartitionId] = set()
        self.written = self.disks_lost = 0
        super().__init__(seed, faults, responses_lost)

    def start(self, number: int, last: Any = None) -> Broker:
        """Of what a disk has, the high watermark is older than the rest."""
        if last is not None:
            broker = ReplicatedBroker(self, number, last)
            if self.random.random() < 0.3:
                broker.restart_io_worker()
            return broker
        for (where, _), log in self.disks.items():
            if where == number:
                log.high_watermark = self.random.randint(0, log.high_watermark)
                log.replicas = None
        return ReplicatedBroker(self, number)

    def disk(self, number: int, id_: PartitionId, key: PartitionKey) -> DiskLog:
        return self.disks.setdefault((number, id_), DiskLog(number, key))

    def set_strays_aside(self, number: int) -> None:
        """A broker finds replicas on its disk that are not assigned to it."""
        for where, id_ in list(self.disks):
            name = self.disks[where, id_].key[0]
            if where == number and number not in self._assigned(id_, name):
                del self.disks[where, id_]

    def _assigned(self, id_: PartitionId, name: str) -> list[int]:
        if self.tree.exists(paths.topic(name)) is None:
            return []
        topic_id, replicas = paths.decode_topic(self.tree.get(paths.topic(name)).data)
        return [int(one) for one in replicas.get(id_[1], ())] if topic_id == id_[0] else []

    # -- clients --

    def produce(self) -> None:
        """Write to some partition that some broker believes to lead."""
        led = [
            (broker.io, replica)
            for broker in self.brokers
            for replica in broker.io.replicas.values()
            if replica.partition.leads
        ]
        if led:
            io, replica = self.random.choice(led)
            self.written += 1
            io.produce(replica, f"v{self.written}")

    # -- checks --

    def note_removed(self, id_: PartitionId, name: str) -> None:
        """A replica is gone: nothing is promised any more if its topic is deleted, and everything
        if it was moved."""
        is_marked = self.tree.exists(paths.delete_topic(name)) is not None
        if is_marked or not self._assigned(id_, name):
            self.acknowledged.pop(id_, None)
            self.deleted.add(id_)
        for (_, other), log in self.disks.items():
            if other == id_:  # as after a power failure: synced before the next machine fails
                log.synced = log.log_end_offset

    def note_leader(self, replica: Replica, number: int) -> None:
        log = replica.log
        for offset, record in self.acknowledged.get(replica.id, {}).items():
            if record[0] > replica.partition.leader_epoch:
                continue  # it leads in an earlier epoch still, as its io worker was restarted
            assert log.entries[offset : offset + 1] == [record], (
                f"I1: {record} at {offset} was acknowledged; broker {number} leads "
                f"{log.name} in epoch {replica.partition.leader_epoch} without it"
            )

    def note_append(self, replica: Replica, number: int) -> None:
        place = replica.id, replica.partition.leader_epoch
        assert self.appenders.setdefault(place, number) == number, f"I3: {place}"

    def note_high_watermark(self, replica: Replica, offset: int) -> None:
        log = replica.log
        place = *replica.id, replica.partition.leader_epoch
        assert offset >= self.high_watermarks.get((replica.id, place[2], id(replica)), 0), "I5"
        self.high_watermarks[replica.id, place[2], id(replica)] = offset
        if replica.id in self.deleted:
            return
        seen = self.seen.setdefault(replica.id, [])
        both = min(len(seen), offset)
        assert seen[:both] == log.entries[:both], f"I2: {log.name} has other records below {both}"
        seen.extend(log.entries[len(seen) : offset])

    def note_acknowledged(self, replica: Replica, waiting: Waiting) -> None:
        if replica.id not in self.deleted:
            self.acknowledged.setdefault(replica.id, {})[waiting.end - 1] = waiting.record

    def unfinished(self) -> list[str]:
        """Partitions whose replicas are not all in sync with the same records, all committed."""
        found = []
        for broker in self.brokers:
            for replica in broker.io.replicas.values():
                partition, log = replica.partition, replica.log
                if not partition.leads:
                    continue
                others = [self.disks.get((b, replica.id)) for b in partition.replicas]
                if (
                    len(partition.isr) != len(partition.replicas)
                    or log.high_watermark != log.log_end_offset
                    or any(one is None or one.entries != log.entries for one in others)
                ):
                    found.append(f"{log.name}: {partition.isr} of {partition.replicas}")
        return found
