"""The coordinators of one io worker: a shard for each partition of an internal topic it leads."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Protocol

from kbroker._ext.coordinator.commit_path import CommitPath
from kbroker._ext.shared.lane import Lane
from kbroker.cluster.changes import ImageChanges
from kbroker.cluster.image import TopicImage
from kbroker.coordinator.machine import Call, Machine
from kbroker.coordinator.partitioner import (
    OFFSETS_TOPIC,
    TRANSACTIONS_TOPIC,
    coordinator_partition,
)
from kbroker.coordinator.producer_ids import ProducerIds
from kbroker.coordinator.responses import in_version
from kbroker.coordinator.shard import ACTIVE, LOAD_STEP_MS, LOADING, NEVER_MS, Shard
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc import calls
from kbroker.ipc.lane_calls import (
    MSG_RESPONSE,
    REPEATED,
    Assembler,
    LaneRequest,
    Response,
    UnreadableRequest,
    error_text,
    response_parts,
    send_all,
    unpack,
)
from kbroker.ipc.pending import Pending, pass_on, run
from kbroker.ipc.process_table import Address, ProcessKind
from kbroker.protocol import codec
from kbroker.protocol.api import ApiKey, request_class, response_class, title
from kbroker.record.compression import NONE
from kbroker.types import Offset
from kbroker.workers.io.transaction_calls import MarkerCalls, verification_code

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kbroker._ext.io.io_loop import IoLoop
    from kbroker.clock import Clock
    from kbroker.cluster.image import ClusterImage
    from kbroker.config.loader import BrokerConfig
    from kbroker.coordinator.transaction.state import Partition
    from kbroker.ipc.rpc import Rpc
    from kbroker.metrics.catalog import MetricRow
    from kbroker.peers.security import PeerSecurity
    from kbroker.security.access import Access
    from kbroker.security.principal import KafkaPrincipal
    from kbroker.storage.log.partition_log import PartitionLog
    from kbroker.storage.manager.log_manager import LogManager
    from kbroker.workers.io.broker_links import BrokerLinks
    from kbroker.workers.io.remote_markers import RemoteMarkers
    from kbroker.workers.io.remote_verifications import RemoteVerifications

logger = logging.getLogger(__name__)

COMMITS = (ApiKey.OFFSET_COMMIT, ApiKey.TXN_OFFSET_COMMIT)
LISTS = (ApiKey.LIST_GROUPS, ApiKey.LIST_TRANSACTIONS)
LOAD_BUFFERS = {
    OFFSETS_TOPIC: "offsets.load.buffer.size",
    TRANSACTIONS_TOPIC: "transaction.state.log.load.buffer.size",
}
# How long a request waits for its coordinator to load before the client gets a retriable error;
# well below the time after which a network process gives up.
EARLY_WAIT_MS = 5_000
# BOUND: requests that wait so.
EARLY_MAX = 10_000
# Version 12 of Produce adds its partitions to the transaction implicitly (KIP-890).
FIRST_PRODUCE_THAT_ADDS = 12


class CoordinatingProcess(Protocol):
    """What coordinators need from their io worker, besides logs, loop and lanes.

    has_joined: its logs are open, as far as they can be. worker_count: num.io.threads.
    """

    broker_id: int
    rpc: Rpc
    clock: Clock
    image: ClusterImage
    address: Address
    worker_count: int
    has_joined: bool

    @property
    def config(self) -> BrokerConfig: ...

    def add_reader(self, fd: int, callback: Callable[[], None]) -> None: ...
    def remove_reader(self, fd: int) -> None: ...
    def watch_writable(self, fd: int, wanted: bool) -> None: ...

    def led_log(self, slot: int) -> PartitionLog | None:
        """The log of a partition, if it is open and led here."""

    def write_markers(self, markers: Iterable[calls.SlotMarker]) -> Pending[list[int]]:
        """Append markers to logs of this io worker; resolves to their error codes."""

    def on_storage_failure(self, slot: int) -> None:
        """A write failed: the log directory goes offline, and every shard in it is closed."""

    def access(self, principal: KafkaPrincipal, host: str) -> Access:
        """What a client may do."""

    def count(self, metric: MetricRow, amount: int) -> None:
        """Add to a counter."""

    def count_own(self, slot: int, records: int, size: int) -> None:
        """This process has appended a batch that no client has sent. size: in bytes."""


class Coordinators:
    """Made by the io worker, which calls it at each step of its turn.

    commits, commit_ns: commits completed, and the time from taking them to their responses.
    commit_path: the fast path of most commits, with counters of its own; only requests that it
    cannot handle come to ``on_request``.
    """

    def __init__(
        self,
        process: CoordinatingProcess,
        logs: LogManager,
        loop: IoLoop,
        lanes: list[Lane],
        security: PeerSecurity | None = None,
    ) -> None:
        """security: of connections to other brokers."""
        self._process = process
        self._security = security
        self._logs = logs
        self._loop = loop
        self._lanes = lanes
        self._assemblers = [Assembler() for _ in lanes]
        self._outboxes: list[deque[bytes]] = [deque() for _ in lanes]
        self._peers = [lane.peer for lane in lanes]
        self._shards: dict[int, Shard] = {}
        self._to_load: deque[Shard] = deque()
        self._is_loading = False
        self._first_loads: set[Shard] = set()
        self._next_timer_ms = NEVER_MS
        # Delayed requests for a coordinator that is loading: slot -> (deadline, request, outcome)
        # in order.
        self._early: dict[int, deque[tuple[int, LaneRequest, Pending[Any]]]] = {}
        self._early_count = 0
        self.commits = 0
        self.commit_ns = 0
        self.rpc = process.rpc
        self.clock = process.clock
        self.image = process.image
        self._machines = {
            OFFSETS_TOPIC: make_group_machine,
            TRANSACTIONS_TOPIC: self._make_transaction_machine,
        }
        self._producer_ids = ProducerIds(process.rpc)
        self._links: BrokerLinks | None = None
        self._remote_markers: RemoteMarkers | None = None
        self._remote_verifications: RemoteVerifications | None = None
        self.commit_path = CommitPath(process, lanes, ACTIVE, error_text)
        loop.commit_path = self.commit_path
        loop.on_request = self.on_request
        process.rpc.serve(calls.VERIFY_TRANSACTION, self.serve_verify_transaction)

    def _make_transaction_machine(self, shard: Shard) -> Machine:
        from kbroker.coordinator.transaction.machine import TransactionMachine
        from kbroker.coordinator.transaction.markers import MarkerWriter

        if self._remote_markers is None:
            from kbroker.workers.io.remote_markers import RemoteMarkers

            self._remote_markers = RemoteMarkers(self._broker_links())
        writer = MarkerWriter(
            MarkerCalls(self._process).write,
            lambda: self.image,
            self.io_worker,
            self._remote_markers,
        )
        return TransactionMachine(shard, self._producer_ids, writer)

    def _broker_links(self) -> BrokerLinks:
        if self._links is None:
            from kbroker.workers.io.broker_links import BrokerLinks

            self._links = BrokerLinks(self._process, self._process.broker_id, self._security)
        return self._links

    # -- what shards need (shard.ShardProcess) --

    @property
    def config(self) -> BrokerConfig:
        return self._process.config

    def appended(self, log: PartitionLog, records: int, size: int) -> None:
        self._loop.touch(log.appender)
        self._process.count_own(log.appender.slot, records, size)

    def storage_failed(self, slot: int) -> None:
        self._process.on_storage_failure(slot)

    def io_worker(self, slot: int) -> Address:
        return Address(ProcessKind.IO_WORKER, slot % self._process.worker_count)

    def timer_set(self, deadline_ms: int) -> None:
        if deadline_ms < self._next_timer_ms:
            self._next_timer_ms = deadline_ms
            self.commit_path.timer_set = True

    def access(self, principal: KafkaPrincipal, host: str) -> Access:
        return self._process.access(principal, host)

    def count(self, metric: MetricRow, amount: int) -> None:
        self._process.count(metric, amount)

    # -- shards come and go --

    def on_image(self, changes: ImageChanges) -> None:
        """Called when the logs of an image are open: start, end and inform shards."""
        for name in self._machines:
            topic = self.image.topics.get(name)
            if name in changes.topics and topic is not None:
                self._open(topic)
        for shard in list(self._shards.values()):
            shard.on_image(changes)
        if self._process.has_joined:
            for slot in [slot for slot in self._early if slot not in self._shards]:
                self._admit(slot)  # its log could not be opened, or there is none

    def _open(self, topic: TopicImage) -> None:
        for partition in topic.partitions:
            log = self._process.led_log(partition.slot)
            if log is None or partition.slot in self._shards:
                continue
            shard = Shard(
                self,
                log,
                self._machines[topic.name],
                self._codec(topic.name),
                self.config[LOAD_BUFFERS[topic.name]],
            )
            self._shards[partition.slot] = shard
            if topic.name == OFFSETS_TOPIC and self._codec(topic.name) == NONE:
                shard.commits = self.commit_path.open(shard, log.appender)
            self._to_load.append(shard)
            self._first_loads.add(shard)
        if not self._is_loading:
            run(self._load_all())

    def _codec(self, topic: str) -> int:
        """Kafka numbers codecs alike in this setting and in a batch."""
        number: int = self.config["offsets.topic.compression.codec"]
        return number if topic == OFFSETS_TOPIC else 0

    async def _load_all(self) -> None:
        """Load one shard after the other: the process serves its clients in between, and the first
        shards serve while the last ones wait.
        """
        self._is_loading = True
        step_ms = self.clock.monotonic_ms()
        while self._to_load:
            shard = self._to_load.popleft()
            loaded = run(shard.load())
            # The next one does not wait for the replicas of this one.
            await shard.read
            loaded.then(partial(self._on_loaded, shard))
            if self.clock.monotonic_ms() - step_ms >= LOAD_STEP_MS:
                await self.rpc.sleep(0)
                step_ms = self.clock.monotonic_ms()
        self._is_loading = False

    def _on_loaded(self, shard: Shard, outcome: Pending[None]) -> None:
        shard.on_loaded(outcome)
        self._first_loads.discard(shard)
        if self._shards.get(shard.slot) in (shard, None):
            self._admit(shard.slot)

    def close(self, slot: int) -> None:
        """The log of a slot is removed, offline, or no longer led here."""
        shard = self._shards.pop(slot, None)
        if shard is not None:
            shard.close()
            self.commit_path.close(slot)
            self._first_loads.discard(shard)
            self._admit(slot)

    def is_loading(self, slot: int) -> bool:
        """Whether a shard is loading this log, whose files must not change."""
        shard = self._shards.get(slot)
        return shard is not None and shard.state == LOADING

    def on_marker(
        self, slot: int, offset: Offset, producer_id: int, epoch: int, commit: bool
    ) -> None:
        """A transaction marker was appended to a slot."""
        shard = self._shards.get(slot)
        if shard is not None:
            shard.on_marker(offset, producer_id, epoch, commit)

    # -- transactions of the logs of this process --

    def verify(
        self,
        slot: int,
        producer_id: int,
        epoch: int,
        transactional_id: str | None,
        api_version: int,
        token: int,
    ) -> None:
        """The io loop asks whether a batch belongs to a transaction (KIP-890)."""
        log = self._logs.log(slot)
        if log is None or not transactional_id:
            self._loop.verified(token, int(ErrorCode.INVALID_TXN_STATE))
            return
        add = api_version >= FIRST_PRODUCE_THAT_ADDS

        def done(outcome: Pending[Any]) -> None:
            self._loop.verified(token, verification_code(outcome))

        self.verify_partition(
            log.topic, log.partition, transactional_id, producer_id, epoch, add
        ).then(done)

    def verify_partition(
        self,
        topic: str,
        partition: int,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        add: bool,
    ) -> Pending[Any]:
        """Ask the coordinator of a transaction, wherever it is; resolves to an error code."""
        known = self.image.topics.get(TRANSACTIONS_TOPIC)
        if known is None:
            return failed(ErrorCode.NOT_COORDINATOR)
        image = known.partitions[coordinator_partition(transactional_id, len(known.partitions))]
        slot = image.slot
        if image.leader >= 0 and image.leader != self._process.broker_id:
            return self._verify_elsewhere(
                image.leader, (transactional_id, producer_id, epoch, add), (topic, partition)
            )
        if slot < 0:
            return failed(ErrorCode.NOT_COORDINATOR)
        request = calls.VerifyTransaction(
            slot, transactional_id, producer_id, epoch, topic, partition, add
        )
        owner = self.io_worker(slot)
        if owner == self._process.address:
            return self._verify_here(request)
        return self.rpc.call(owner, calls.VERIFY_TRANSACTION, request)

    def _verify_elsewhere(
        self, broker_id: int, producer: tuple[str, int, int, bool], partition: Partition
    ) -> Pending[Any]:
        from kbroker.workers.io.remote_verifications import RemoteVerifications, TransactionProducer

        if self._remote_verifications is None:
            links, sleep = self._broker_links(), self.rpc.sleep
            self._remote_verifications = RemoteVerifications(links, sleep, self.clock.monotonic_ms)
        return self._remote_verifications.verify(
            broker_id, TransactionProducer(*producer), partition
        )

    def _verify_here(self, asked: calls.VerifyTransaction) -> Pending[Any]:
        shard = self._shards.get(asked.slot)
        if shard is None:
            return failed(ErrorCode.NOT_COORDINATOR)
        machine: Any = shard.machine
        return shard.execute(
            machine.verify,
            asked.transactional_id,
            asked.producer_id,
            asked.producer_epoch,
            asked.topic,
            asked.partition,
            asked.add,
        )

    async def serve_verify_transaction(
        self, sender: Address, asked: calls.VerifyTransaction
    ) -> int:
        """Like ``verify``, for a log of another io worker."""
        code: int = await self._verify_here(asked)
        return code

    # -- requests --

    def on_request(self, network: int, message: bytes) -> None:
        """Take a MSG_REQUEST of a network process.

        Nothing in it may end this process, as clients have named what is in it: what cannot be
        read is answered with an error.
        """
        assembler = self._assemblers[network]
        try:
            for part in unpack(message):
                try:
                    request = assembler.request(part)
                except UnreadableRequest as error:
                    self._reject(network, error)
                    continue
                if request is not None:
                    self._take(network, request)
        except ValueError as error:
            logger.error("network process %d sent a message that is damaged: %s", network, error)

    def _take(self, network: int, request: LaneRequest) -> None:
        respond = partial(self._on_done, network, self._lanes[network].peer, request)
        if request.api_key in COMMITS:
            respond = partial(self._on_commit, monotonic_ns(), respond)
        try:
            outcome = self._handle(request)
        except Exception as error:
            outcome = Pending()
            outcome.resolve(error=error)
        outcome.then(respond)

    def _reject(self, network: int, error: UnreadableRequest) -> None:
        """Answer a request of which perhaps only the token could be read."""
        logger.error("network process %d sent a request that is damaged: %s", network, error)
        if error.token is not None:
            code = int(ErrorCode.UNKNOWN_SERVER_ERROR)
            response = Response(error.token, code, error_text(str(error)))
            self._outboxes[network].extend(response_parts(response))

    def _on_commit(
        self, started_ns: int, respond: Callable[[Pending[Any]], None], outcome: Pending[Any]
    ) -> None:
        self.commits += 1
        self.commit_ns += monotonic_ns() - started_ns
        respond(outcome)

    def _on_done(
        self, network: int, peer: int, request: LaneRequest, outcome: Pending[Any]
    ) -> None:
        if self._lanes[network].peer == peer:  # otherwise the caller is gone
            self._respond(network, request, outcome)

    def _handle(self, request: LaneRequest) -> Pending[Any]:
        shard = self._shards.get(request.slot)
        key = ApiKey(request.api_key)
        if key in LISTS and self._logs.offline_reason(request.slot) is not None:
            # COMPAT: lists leave out groups in a failed log directory, until the restart.
            return completed(response_class(key)())
        if request.api_key in REPEATED and self._is_early(shard) and self._early_count < EARLY_MAX:
            return self._wait_for_load(request)
        return self._serve(shard, key, request)

    def _is_early(self, shard: Shard | None) -> bool:
        """Whether the coordinator may still be about to load: this process has just started."""
        return not self._process.has_joined if shard is None else shard in self._first_loads

    def _wait_for_load(self, request: LaneRequest) -> Pending[Any]:
        pending: Pending[Any] = Pending()
        deadline_ms = self.clock.monotonic_ms() + EARLY_WAIT_MS
        waiting = self._early.setdefault(request.slot, deque())
        waiting.append((deadline_ms, request, pending))
        self._early_count += 1
        self.timer_set(deadline_ms)
        return pending

    def _admit(self, slot: int, until_ms: int = NEVER_MS) -> None:
        """Serve requests that have waited for a coordinator, if their deadline has not passed."""
        waiting = self._early.get(slot, ())
        while waiting and waiting[0][0] <= until_ms:
            _, request, pending = waiting.popleft()
            self._early_count -= 1
            outcome = self._serve(self._shards.get(slot), ApiKey(request.api_key), request)
            pass_on(outcome, pending)
        if not waiting:
            self._early.pop(slot, None)

    def _serve(self, shard: Shard | None, key: ApiKey, request: LaneRequest) -> Pending[Any]:
        if shard is None or self._incarnation(shard) != request.slot_incarnation:
            return failed(ErrorCode.NOT_COORDINATOR)
        try:
            body, _ = codec.decode(request_class(key), request.version, request.body)
        except codec.DecodeError as error:
            return failed(ErrorCode.INVALID_REQUEST, str(error))
        host = "/" + request.client_host
        call = Call(key, request.version, body, request.client_id, host, request.principal)
        return shard.handle(call)

    def _incarnation(self, shard: Shard) -> int | None:
        topic = self.image.topics.get(shard.topic)
        if topic is None or shard.partition >= len(topic.partitions):
            return None
        incarnation: int = topic.partitions[shard.partition].slot_incarnation
        return incarnation

    def _respond(self, network: int, request: LaneRequest, outcome: Pending[Any]) -> None:
        error = outcome.error
        body = b""
        if error is None:
            try:
                body = codec.encode(in_version(outcome.value, request.version), request.version)
            except Exception as failure:
                error = failure
        if error is not None and not isinstance(error, WireError):
            logger.error("%s failed", title(request.api_key), exc_info=error)
            error = WireError(ErrorCode.UNKNOWN_SERVER_ERROR)
        if error is not None:
            response = Response(request.token, int(error.code), error_text(error.message))
        else:
            response = Response(request.token, 0, body)
        self._outboxes[network].extend(response_parts(response))

    # -- the turn --

    def run_timers(self) -> None:
        """Run the timers that are due. Called before the logs of the turn are published."""
        if self.clock.monotonic_ms() >= self._next_timer_ms:
            self._run_timers()

    def end_turn(self) -> bool:
        """Send responses whose records are published. True: a lane is full."""
        held_back = False
        for index, lane in enumerate(self._lanes):
            outbox = self._outboxes[index]
            if lane.peer != self._peers[index]:
                self._peers[index] = lane.peer
                outbox.clear()  # the one who asked is gone
            if not send_all(outbox, partial(lane.send_message, MSG_RESPONSE)):
                held_back = True
        return held_back

    def tick(self, now: int) -> None:
        """Give up requests to other brokers that take too long."""
        if self._links is not None:
            self._links.tick(now)

    def close_links(self) -> None:
        """The process ends: close the connections to other brokers."""
        if self._links is not None:
            self._links.close()

    def _run_timers(self) -> None:
        self._next_timer_ms = NEVER_MS
        for slot, waiting in list(self._early.items()):
            self._admit(slot, self.clock.monotonic_ms())
            if waiting:
                self.timer_set(waiting[0][0])
        for shard in list(self._shards.values()):
            shard.run_timers()
            self.timer_set(shard.next_deadline_ms)

    def shards(self) -> list[Shard]:
        """All of them, whatever they are doing."""
        return list(self._shards.values())

    @property
    def loading(self) -> int:
        """Shards that do not serve yet."""
        return sum(shard.state == LOADING for shard in self._shards.values())

    @property
    def next_deadline_ms(self) -> int:
        """When ``end_turn`` has something to do: at once if it has new work since the last one."""
        if self.commit_path.has_errors or any(self._outboxes):
            return 0
        return self._next_timer_ms


def make_group_machine(shard: Shard) -> Machine:
    """Groups and their offsets. Imported when a broker first has an offsets topic."""
    from kbroker.coordinator.group.classic.classic_protocol import ClassicProtocol
    from kbroker.coordinator.group.consumer.consumer import ConsumerProtocol
    from kbroker.coordinator.group.machine import GroupMachine
    from kbroker.coordinator.offsets.offsets import Offsets

    machine = GroupMachine(shard)
    machine.add(Offsets(machine))
    machine.add(ClassicProtocol(machine))
    machine.add(ConsumerProtocol(machine))
    return machine


def failed(code: ErrorCode, text: str = "") -> Pending[Any]:
    """An error that is known at once."""
    pending: Pending[Any] = Pending()
    pending.resolve(error=WireError(code, text))
    return pending


def completed(response: Any) -> Pending[Any]:
    """A response that is already known."""
    pending: Pending[Any] = Pending()
    pending.resolve(response)
    return pending
