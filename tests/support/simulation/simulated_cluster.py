"""Brokers on a simulated store, with links between them: session, hosting and controller of each.

What is checked after each step:

- two brokers never take the leadership of one partition in one leader epoch;
- the leader epoch that a broker has for a replica never goes back;
- a log is deleted by a StopReplica(delete) that the broker has taken, and by nothing else; one is
  set aside only if its replica is not in sync;
- what a broker publishes is what some controller has sent;
- a controller process that is restarted knows at least what the last one has published.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from support.controller.controllers import EndlessRoom
from support.simulation.simulated_failover import SimulatedPeers, Walls

from kbroker.cluster.control_requests import (
    NO_LEADER,
    ControlRequest,
    ControlResponse,
    LeaderAndIsr,
    PartitionKey,
    StopReplica,
)
from kbroker.cluster.image import ClusterImage, PartitionImage
from kbroker.controller.configs.stored_configs import ConfiguredHosting, StoredConfigs
from kbroker.controller.election.active_controller import ActiveController
from kbroker.controller.election.failover import Failover, FailoverCounts
from kbroker.controller.election.membership import Elected, Registration
from kbroker.controller.election.session import BrokerSession
from kbroker.controller.replicas.background import Background
from kbroker.controller.state.state import ClusterState
from kbroker.controller.state.state import RegisteredBroker as Registered
from kbroker.controller.store import persistence
from kbroker.controller.store.creations import Creations, OwnHosting
from kbroker.controller.topics.topic_admin import TopicAdmin
from kbroker.controller.topics.topic_requests import TopicRequests
from kbroker.errors import ErrorCode, WireError
from kbroker.hosting.hosting import Hosting
from kbroker.hosting.image import Changes
from kbroker.hosting.journal import Journal
from kbroker.hosting.slots import Slot, SlotAllocator
from kbroker.ipc.calls import StoppedReplica
from kbroker.ipc.pending import Pending, run
from kbroker.metastore import paths
from kbroker.metastore.settled import Fenced, SettledStore
from kbroker.metastore.simulated import Faults, SimulatedEnsemble
from kbroker.metastore.store import StoreError, StoreOperation
from kbroker.peers.evidence import Attempt
from kbroker.types import BrokerId
from kbroker.workers.controller.forgotten import ForgottenReplicas

SETTINGS = {
    "num.partitions": 2,
    "default.replication.factor": 2,
    "delete.topic.enable": True,
    "unclean.leader.election.enable": False,
    "auto.leader.rebalance.enable": True,
    "cluster.features.enable": True,
    "inter.broker.protocol.version": "2.7-IV2",
    "leader.imbalance.check.interval.seconds": 300,
    "leader.imbalance.per.broker.percentage": 10,
}
SLOTS = 10_000
HEARING_MS = 500
TICK_MS = 5_000
SETTLE_CHECK_MS = 1_000


class MemorySlots:
    """Slots of one run of a broker."""

    def __init__(self) -> None:
        self._allocator = SlotAllocator(SLOTS, 2)
        self._topics: dict[str, dict[int, Slot]] = {}

    def assign(self, topic: str, partitions: list[int]) -> dict[int, Slot]:
        have = self._topics.setdefault(topic, {})
        missing = [partition for partition in partitions if partition not in have]
        have.update(zip(missing, self._allocator.take(len(missing)), strict=True))
        return {partition: have[partition] for partition in partitions}

    def release(self, topic: str, partitions: Iterable[int] | None = None) -> None:
        have = self._topics.get(topic, {})
        for partition in list(have if partitions is None else partitions):
            if partition in have:
                self._allocator.release(have.pop(partition)[0])

    def slot(self, key: PartitionKey) -> Slot | None:
        return self._topics.get(key[0], {}).get(key[1])

    def topics(self) -> dict[str, list[int]]:
        return {topic: list(have) for topic, have in self._topics.items()}


class MemoryFile:
    """A journal of one run of a broker."""

    def __init__(self) -> None:
        self.content: bytes | None = None

    def read(self) -> bytes | None:
        return self.content

    def replace(self, content: bytes) -> None:
        self.content = content

    def append(self, line: bytes) -> None:
        assert self.content is not None
        self.content += line

    def remove(self) -> None:
        self.content = None


class Sent(NamedTuple):
    broker_id: int
    request: ControlRequest
    answer: Pending[ControlResponse]


class Broker:
    """A controller process: it lives until it crashes.

    last: the process that it replaces in the same run of the broker.
    """

    def __init__(self, cluster: SimulatedCluster, number: int, last: Broker | None = None) -> None:
        self.cluster = cluster
        self.number = number
        self.is_alive = True
        self.failures: list[BaseException] = []
        self.store = cluster.connect(last.store.session_id if last is not None else 0)
        self.slots = MemorySlots() if last is None else last.slots
        self.file = MemoryFile() if last is None else last.file
        self.hosting = Hosting(BrokerId(number), "c", self.slots)
        self.hosting.publish_to(self)
        self.epochs: dict[tuple[PartitionKey, int, int], int] = {}
        self.deletable: set[PartitionKey] = set()
        # Epochs that io workers know.
        self.published: dict[tuple[str, PartitionKey], tuple[int, int]] = {}
        if last is not None:
            self.epochs, self.deletable = last.epochs, last.deletable
            self.published = last.published
        self._is_first = last is None
        # As the processes of this broker have it: io workers, and others.
        self.images = {True: ClusterImage(), False: ClusterImage()}
        self.is_told = self._awaits_controller = self._is_hearing = False
        self._serving: list[tuple[Broker, deque[Sent], Sent]] = []
        self.journal = Journal(self.file, self.hosting)
        self.found = self.journal.restore(self.slots)
        if self.found is not None:
            self.hosting.restore(self.found)
            self.hosting.release_unused(self.slots.topics())
            self._check_restored()
        self.hosting.note_in(self.journal)
        self.controller: ActiveController | None = None
        self.topics: TopicAdmin | None = None
        self.background: Background | None = None
        self._links: dict[int, deque[Sent]] = {}
        settled = SettledStore(self.store)
        self.stored = StoredConfigs(
            self.store, settled, self.hosting, self.sleep, lambda: cluster.now_ms
        )
        creations = Creations(settled, self.hosting, self.sleep)
        self.recipient = ConfiguredHosting(self.hosting, self.stored, creations, self.sleep)
        self.own = OwnHosting(self.hosting, creations)
        endpoints = [["PLAINTEXT", f"host-{number}", 9092, "PLAINTEXT"]]
        resumes = self.hosting.broker_epoch
        me = Registration(BrokerId(number), endpoints, None, "c", resumes=resumes, failover=True)
        self.session = BrokerSession(self.store, me, self)
        self.peers = SimulatedPeers(self)
        self.failover = Failover(number, settled, self.peers, self, lambda: True)
        self.failover.counts = cluster.early
        self.forgotten = ForgottenReplicas(number, self.hosting, settled, "c")
        self.after(TICK_MS, self._tick)
        self.stored.start().then(self._settings_read)

    @property
    def controller_epoch(self) -> int:
        return self.hosting.controller_epoch

    def _settings_read(self, outcome: Pending[None]) -> None:
        if outcome.error is not None:
            self.failures.append(outcome.error)
            return
        if self.found is not None:
            self.told()
            self._report_led()
        self.session.start()

    def _tick(self) -> None:
        if self.is_told:
            self.forgotten.tick(self.cluster.now_ms)
        self.after(TICK_MS, self._tick)

    def _report_led(self) -> None:
        """The last process may have written in-sync replicas without reporting them."""
        led = [r.told.key for r in self.hosting.replicas if r.told.leader == self.number]

        def reported(outcome: Pending[None]) -> None:
            if outcome.error is not None:
                self.after(1_000, self._report_led)

        if led:
            run(persistence.report_isr_changes(SettledStore(self.store), led)).then(reported)

    def crash(self) -> None:
        self.is_alive = False
        self.store.crash()
        self.cluster.dead_sessions.add(self.store.session_id)
        for sender, link, sent in self._serving:
            sender.repeat(link, sent)

    def after(self, delay_ms: int, callback: Callable[[], None]) -> None:
        """Call back, if this process still lives."""
        self.cluster.after(delay_ms, lambda: callback() if self.is_alive else None)

    def told(self) -> None:
        """The other processes get the image."""
        if self.is_told:
            return
        self.is_told = True
        if self.found is None:
            self.journal.begin()
        self.published.clear()  # io workers drop what the image lacks
        for for_io_worker in (True, False):
            document = self.hosting.image.snapshot(for_io_worker)
            self.images[for_io_worker].apply(document)
            for name, topic in document["topics"].items():
                self._check_published(name, topic, for_io_worker)

    @property
    def is_serving(self) -> bool:
        return self.is_told or self._awaits_controller or self._is_hearing

    # -- as the host of a session --

    def now_ms(self) -> int:
        return self.cluster.now_ms

    def sleep(self, delay_ms: int) -> Pending[None]:
        pending: Pending[None] = Pending()
        self.after(delay_ms, pending.resolve)
        return pending

    def registered(self, broker_epoch: int, controller_epoch: int) -> None:
        self.hosting.registered(broker_epoch, controller_epoch)

    async def before_hosting(self, session_id: int) -> None:
        pass

    async def end_last_session(self, session_id: int) -> bool:
        """What its data directory has of its last run's session may be damaged, or a copy."""
        cluster = self.cluster
        if session_id not in cluster.dead_sessions or cluster.random.random() < 0.3:
            return False
        await self.sleep(cluster.delay_ms())
        cluster.end_session(session_id)
        return True

    def drop_follower(self, broker_id: int, closed_ms: int) -> Pending[int]:
        """As the host of its failover: it has no io worker."""
        told: Pending[int] = Pending()
        told.resolve(0)
        return told

    def connected(self, is_connected: bool) -> None:
        if is_connected:
            self.failover.look()
        if is_connected and self.background is not None:
            self.background.connected()

    async def begin_term(self, elected: Elected, store: SettledStore) -> None:
        state = ClusterState(self.number, elected.epoch, configs=self.stored.configs)
        await persistence.load(store, state)
        await self.stored.complete(topic.name for topic in state.topics())
        if store.is_stopped:
            raise Fenced
        self.failover.leave_out(state)
        self.controller = ActiveController(state, store, self, self.stored)
        requests = TopicRequests(
            state,
            SETTINGS.__getitem__,
            lambda config: None,
            lambda: False,
            choose=self.cluster.random.randrange,
        )
        self.topics = TopicAdmin(self.controller, requests, EndlessRoom, self.sleep, lambda: True)
        self.background = Background(
            self.controller,
            SETTINGS.__getitem__,
            self.sleep,
            self.topics.finish_deletions,
        )
        self.background.start()
        self.topics.resume_deletions()
        self.told()
        self.failover.elected()

    def resign(self) -> None:
        if self.background is not None:
            self.background.stop()
        self.controller = self.topics = self.background = None

    def not_elected(self) -> None:
        """The elected controller will send everything, if the process is not continued."""
        if self._is_first:
            self.told()
        elif not self.is_told:
            self._awaits_controller = True
            self._listen()

    def _listen(self) -> None:
        """The elected controller has begun to say what there is."""
        if self._awaits_controller and self.hosting.metadata.brokers:
            self._awaits_controller = False
            self._is_hearing = True
            self.after(HEARING_MS, self.told)

    def failed(self, error: BaseException) -> None:
        self.failures.append(error)

    # -- as the way of its controller to the brokers: one request under way to each, in order --

    def send(self, broker_id: int, request: ControlRequest) -> Pending[ControlResponse]:
        self.cluster.note_sent(request)
        self._may_die_before(request)
        sent = Sent(broker_id, request, Pending())
        link = self._links.setdefault(broker_id, deque())
        link.append(sent)
        if len(link) == 1:
            self._deliver(link, sent)
        return sent.answer

    def _may_die_before(self, request: ControlRequest) -> None:
        """A controller that removes a replica may die before its broker hears of that."""
        cluster = self.cluster
        is_removal = isinstance(request, StopReplica) and any(
            one.delete and cluster.tree.exists(paths.delete_topic(one.topic)) is None
            for one in request.partitions
        )
        if is_removal:
            cluster.removals += 1
            if cluster.random.random() < cluster.dies_removing:
                self.after(0, lambda: cluster.restart(self.number))

    def _deliver(self, link: deque[Sent], sent: Sent) -> None:
        self.cluster.after(self.cluster.delay_ms(), lambda: self._arrive(link, sent))

    def _arrive(self, link: deque[Sent], sent: Sent) -> None:
        if not self.is_alive or not link or link[0] is not sent:
            return
        target = self.cluster.brokers[sent.broker_id]
        if not target.is_alive or not target.is_serving:
            self.repeat(link, sent)
            return
        target.serve(self, link, sent)

    def repeat(self, link: deque[Sent], sent: Sent) -> None:
        """The connection to the broker was lost, or it does not listen yet."""
        self.after(self.cluster.random.randint(1, 300), lambda: self._arrive(link, sent))

    def serve(self, sender: Broker, link: deque[Sent], sent: Sent) -> None:
        """Take a request, and answer if this process lives that long."""
        entry = sender, link, sent
        self._serving.append(entry)

        def arrive(outcome: Pending[ControlResponse]) -> None:
            self._serving.remove(entry)
            sender._answered(link, sent, outcome)

        def answer(outcome: Pending[ControlResponse]) -> None:
            self._listen()
            self.after(self.cluster.delay_ms(), lambda: arrive(outcome))

        self.take(sent.request).then(answer)

    def _answered(self, link: deque[Sent], sent: Sent, outcome: Pending[ControlResponse]) -> None:
        if not self.is_alive or not link or link[0] is not sent:
            return
        if self.cluster.random.random() < self.cluster.responses_lost:
            self._deliver(link, sent)  # the connection was lost: retry
            return
        link.popleft()
        if link:
            self._deliver(link, link[0])
        if outcome.error is not None:
            self.failures.append(outcome.error)
        sent.answer.resolve(outcome.value, outcome.error)

    def set_live(self, brokers: Mapping[int, Registered]) -> None:
        """Nothing is sent to a registration that has ended."""
        for broker_id, link in self._links.items():
            epoch = brokers[broker_id].epoch if broker_id in brokers else None
            closed = [one for one in link if one.request.sender.broker_epoch != epoch]
            first = link[0] if link else None
            for one in closed:
                link.remove(one)
            if link and link[0] is not first:
                self._deliver(link, link[0])
            for one in closed:
                one.answer.resolve(ControlResponse(ErrorCode.STALE_BROKER_EPOCH))

    # -- as a recipient --

    def take(self, request: ControlRequest) -> Pending[ControlResponse]:
        before = self.hosting.controller_epoch
        if isinstance(request, StopReplica) and self._is_fresh(request):
            self.deletable |= {one.key for one in request.partitions if one.delete}
        taken = self.recipient if request.sender.controller_id != self.number else self.own
        answer = taken.take(request)
        assert self.hosting.controller_epoch >= before
        self.check()
        return answer

    def _is_fresh(self, request: StopReplica) -> bool:
        sender = request.sender
        return (
            sender.controller_epoch >= self.hosting.controller_epoch
            and sender.broker_epoch >= self.hosting.broker_epoch
        )

    def check(self) -> None:
        """The epochs of this broker's replicas, and their leaders."""
        for replica in self.hosting.replicas:
            told = replica.told
            place = told.key, replica.slot, replica.slot_incarnation
            assert told.leader_epoch >= self.epochs.get(place, -1)
            self.epochs[place] = told.leader_epoch
            if told.leader == self.number:
                topic = self.hosting.replicas.topic(told.topic)
                assert topic is not None
                led = topic.topic_id, told.partition, told.leader_epoch
                assert self.cluster.leaders.setdefault(led, self.number) == self.number

    # -- as the processes of the broker --

    def publish(self, changes: Changes = Changes()) -> Pending[dict[str, int]]:
        for for_io_worker in (True, False):
            delta = self.hosting.image.delta(changes, for_io_worker)
            if delta is None:
                continue
            for name, document in delta.get("topics", {}).items():
                self._check_published(name, document, for_io_worker)
            if self.is_told:
                self.images[for_io_worker].apply(delta)
                self._check_image(for_io_worker)
        told: Pending[dict[str, int]] = Pending()
        self.after(self.cluster.delay_ms(), lambda: told.resolve({}))
        return told

    def _check_image(self, for_io_worker: bool) -> None:
        """Whoever had every delta has what a process gets that starts now."""
        fresh = ClusterImage()
        fresh.apply(self.hosting.image.snapshot(for_io_worker))
        had = self.images[for_io_worker].topics
        assert had.keys() == fresh.topics.keys()
        for name, topic in fresh.topics.items():
            assert had[name].topic_id == topic.topic_id
            for one, other in zip(had[name].partitions, topic.partitions, strict=True):
                # Results of ISR changes go to the leader alone.
                assert one._replace(isr=other.isr, partition_epoch=other.partition_epoch) == other

    def _check_restored(self) -> None:
        for (topic_id, key), epochs in self.published.items():
            topic, replica = self.hosting.replicas.topic(key[0]), self.hosting.replicas.replica(key)
            assert topic is not None and topic.topic_id.hex() == topic_id
            assert replica is not None
            assert (replica.told.leader_epoch, replica.told.partition_epoch) >= epochs

    def _check_published(
        self, name: str, document: dict[str, Any] | None, for_io_worker: bool
    ) -> None:
        is_whole = document is None or "changed" not in document
        rows: dict[int, Any] = {}
        if document is not None:
            rows = dict(enumerate(document["partitions"]) if is_whole else document["changed"])
        if for_io_worker:
            for place in list(self.published):
                if place[1][0] == name and (is_whole or place[1][1] in rows):
                    del self.published[place]
        for number, fields in rows.items():
            assert document is not None
            row = PartitionImage(*fields)
            epochs = row.leader_epoch, row.partition_epoch
            if for_io_worker and row.slot >= 0:
                self.published[document["id"], (name, number)] = epochs
            key = document["id"], number, *epochs
            if row.leader != NO_LEADER:  # stopped, without an elected controller, or unknown
                assert self.cluster.sent_leaders[key] == row.leader, (name, row)

    async def stop_replicas(self, replicas: Sequence[StoppedReplica]) -> None:
        for one in replicas:
            key = one.topic, one.partition
            if one.is_kept:
                assert not self.cluster.is_in_sync(self, key), key
                self.cluster.set_aside += 1
            else:
                assert key in self.deletable
        await self.sleep(self.cluster.random.randint(0, 200))


class SimulatedCluster(SimulatedEnsemble):
    """``brokers``: by number, those that are live."""

    def __init__(self, seed: int, faults: Faults, responses_lost: float = 0.05) -> None:
        super().__init__(seed, faults)
        self.responses_lost = responses_lost
        self.leaders: dict[tuple[bytes, int, int], int] = {}
        self.moved: set[str] = set()  # topics that were reassigned
        # Replicas that were removed, the probability that a controller dies meanwhile, and the logs
        # that were set aside therefore.
        self.removals, self.dies_removing, self.set_aside = 0, 0.3, 0
        # Brokers whose controller process has lost its journal, in this run of the broker.
        self.without_journal: set[int] = set()
        self.sent_leaders: dict[tuple[str, int, int, int], int] = {}
        session_id = self.begin_session()
        for path in paths.PERSISTENT_PATHS:
            self.apply([StoreOperation("create", path)], session_id)
        identity = paths.encode_cluster_id("c")
        self.apply([StoreOperation("create", paths.CLUSTER_ID, identity)], session_id)
        self.walls = Walls(self)
        self.early = FailoverCounts()  # of all brokers
        self.dead_sessions: set[int] = set()  # of brokers' controller processes
        self.brokers: list[Any] = []
        self.brokers += [self.start(number) for number in range(3)]

    def settle(self, is_settled: Callable[[], bool], within_ms: int) -> None:
        """Run events until it holds, asked now and then: it reads everything that is stored."""
        until_ms = self.now_ms + within_ms
        while not is_settled():
            assert self.now_ms <= until_ms, f"it has not settled by {self.now_ms} ms"
            waited = self.sleep(SETTLE_CHECK_MS)
            self.run_until(lambda waited=waited: waited.done)

    def note_sent(self, request: ControlRequest) -> None:
        if isinstance(request, StopReplica):
            return
        for row in request.partitions:
            topic_id = request.topic_ids[row.topic].hex()
            key = topic_id, row.partition, row.leader_epoch, row.partition_epoch
            if row.leader >= 0 or isinstance(request, LeaderAndIsr):
                assert self.sent_leaders.setdefault(key, row.leader) == row.leader

    def note_written(self, leader: Broker, key: PartitionKey, partition_epoch: int) -> None:
        """The leader has written the state itself, and goes by it."""
        topic = leader.hosting.replicas.topic(key[0])
        replica = leader.hosting.replicas.replica(key)
        if topic is not None and replica is not None:
            place = topic.topic_id.hex(), key[1], replica.told.leader_epoch, partition_epoch
            self.sent_leaders.setdefault(place, leader.number)

    def is_in_sync(self, broker: Broker, key: PartitionKey) -> bool:
        """Whether the store has the replica of this topic, not of another one, in sync."""
        hosted = broker.hosting.replicas.topic(key[0])
        if hosted is None or self.tree.exists(paths.topic(key[0])) is None:
            return False
        topic_id, _ = paths.decode_topic(self.tree.get(paths.topic(key[0])).data)
        if topic_id != hosted.topic_id or self.tree.exists(paths.partition_state(*key)) is None:
            return False
        state = self.tree.get(paths.partition_state(*key))
        return broker.number in paths.decode_partition_state(state.data)[2]

    def term_began(self) -> Broker | None:
        living = (broker for broker in self.brokers if broker.is_alive)
        return next((broker for broker in living if broker.topics is not None), None)

    def reach(self, one: int, other: int) -> Attempt:
        """How an attempt of one broker to reach another ends."""
        return self.walls.reach(one, other)

    def may_pass(self, one: int, other: int) -> bool:
        """Whether no firewall is between them."""
        return self.walls.may_pass(one, other)

    def start(self, number: int, last: Broker | None = None) -> Broker:
        return Broker(self, number, last)

    def restart(self, number: int) -> None:
        """The broker is killed and started again."""
        self.brokers[number].crash()
        self.walls.ended(number)
        self.without_journal.discard(number)
        self.brokers[number] = self.start(number)

    def restart_process(self, number: int) -> None:
        """The controller process is killed, and restarted in the same run of the broker."""
        last = self.brokers[number]
        last.crash()
        self.brokers[number] = self.start(number, last)

    def failures(self) -> list[BaseException]:
        return [error for broker in self.brokers for error in broker.failures]


def ignore_rejected(broker: Broker, work: Any) -> None:
    """Execute a client's request; a rejection is no failure."""

    def ended(outcome: Pending[Any]) -> None:
        if outcome.error is not None and not isinstance(
            outcome.error, (WireError, Fenced, StoreError)
        ):
            broker.failures.append(outcome.error)

    run(work).then(ended)
