"""A shard in memory: runs a coordinator's machine with a clock that only tests advance.

Operations run at once, one after the other; their records go through the real record formats into
``log`` and from there into ``replay``. What is kept of a machine over ``reload`` is that log alone.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from support.network.network_process import IO_WORKERS, FakeRpc, topic_document

from kbroker.clock import ManualClock
from kbroker.cluster.image import ClusterImage
from kbroker.config.loader import BrokerConfig
from kbroker.coordinator.machine import NO_PRODUCER, Call, CoordinatorOperation
from kbroker.coordinator.partitioner import OFFSETS_TOPIC
from kbroker.coordinator.responses import in_version
from kbroker.coordinator.shard import REFUSED_TIMER_MS, Refused
from kbroker.coordinator.timers import Timers
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.process_table import Address, ProcessKind
from kbroker.ipc.rpc import Pending, run
from kbroker.metrics.catalog import MetricRow
from kbroker.protocol import codec
from kbroker.protocol.api import response_class
from kbroker.protocol.message import Message
from kbroker.security.access import Access, AccessTable
from kbroker.security.authorizer import AllowAll
from kbroker.security.principal import ANONYMOUS, KafkaPrincipal

WALL_MS = 1_700_000_000_000


class Entry(NamedTuple):
    """The content of one offset of the log: a record, or a marker (``commit`` is not None)."""

    producer_id: int
    epoch: int
    key: bytes
    value: bytes | None
    commit: bool | None = None


class CoordinatorHost:
    """``kbroker.coordinator.machine.Host`` for one machine.

    make_machine: builds the machine from its host, as a shard does at every load.
    fail_with: while set, records cannot be written. is_refusing: while true, too few replicas are
    in sync, and no operation may try to write. is_holding: while true, what is written is replayed
    but not yet committed; ``commit`` ends that.
    """

    def __init__(
        self,
        make_machine: Callable[[Any], Any],
        *,
        topic: str = OFFSETS_TOPIC,
        partition: int = 0,
        **settings: str,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.leader_epoch = 0
        self.clock = ManualClock(WALL_MS)
        self.rpc: Any = FakeRpc()
        self.timers = Timers()
        self.configure(**settings)
        self.image = ClusterImage()
        self.image.apply({"snapshot": True, "version": 1, "cluster_id": "c", "topics": {}})
        self.accesses = AccessTable(AllowAll())
        self.counted: Counter[str] = Counter()
        self.log: list[Entry] = []
        self.written: list[list[tuple[Message, Message | None]]] = []  # records of each batch
        self.fail_with: WireError | None = None
        self.is_refusing = False
        self.is_holding = False
        self.verdict: int | None = 0
        self.questions: list[tuple[str, int, int, bool, Pending]] = []
        self.loads = 0
        self._make_machine = make_machine
        self._queue: deque[Callable[[], None]] = deque()
        self._is_running = False
        # For each operation: its end, and its outcome and responses in case of failure.
        self._uncommitted: list[tuple[Callable[[], None], list[Pending]]] = []
        self._waiting: set[Pending] = set()
        self.machine: Any = None
        self.load()

    # -- Host --------------------------------------------------------------------------------

    def now_ms(self) -> int:
        return self.clock.monotonic_ms()

    def wall_ms(self) -> int:
        return self.clock.now_ms()

    def execute(self, function: Callable[..., Any], *args: Any) -> Pending:
        outcome = Pending()
        self._queue.append(lambda: self._run(function, args, outcome))
        self._drain()
        return outcome

    def set_timer(self, name: Any, delay_ms: int, function: Callable[..., Any], *args: Any) -> None:
        def fire() -> None:
            outcome = self.execute(function, *args)
            if isinstance(outcome.error, Refused) and name not in self.timers:
                self.set_timer(name, REFUSED_TIMER_MS, function, *args)
            if isinstance(outcome.error, Exception) and not isinstance(outcome.error, WireError):
                raise outcome.error

        self.timers.set(name, self.now_ms() + delay_ms, fire)

    def cancel_timer(self, name: Any) -> None:
        self.timers.cancel(name)

    def start(self, task: Coroutine[Pending, None, Any]) -> None:
        run(task).then(_raise_failure)

    def io_worker(self, slot: int) -> Address:
        return Address(ProcessKind.IO_WORKER, slot % IO_WORKERS)

    def access(self, principal: KafkaPrincipal, host: str) -> Access:
        return self.accesses.of(principal, host)

    def count(self, metric: MetricRow, amount: int = 1) -> None:
        self.counted[metric.name] += amount

    def has_transaction(self, producer_id: int, epoch: int) -> bool:
        open_epoch = None
        for entry in self.log:
            if entry.producer_id == producer_id:
                open_epoch = None if entry.commit is not None else entry.epoch
        return open_epoch == epoch

    def verify(self, transactional_id: str, producer_id: int, epoch: int, add: bool) -> Pending:
        """Resolved at once with ``verdict``, or by the test through ``questions``."""
        pending = Pending()
        self.questions.append((transactional_id, producer_id, epoch, add, pending))
        if self.verdict is not None:
            pending.resolve(self.verdict)
        return pending

    # -- what a test does --------------------------------------------------------------------

    def send(
        self,
        request: Message,
        version: int,
        *,
        client_id: str = "client",
        client_host: str = "/127.0.0.1",
        principal: KafkaPrincipal = ANONYMOUS,
    ) -> Pending:
        """Serve a request, encoded and decoded in this version; so is the response."""
        key = request.API_KEY
        assert key is not None
        coded = codec.encode(request, version)
        decoded = codec.decode_exact(type(request), version, coded)
        call = Call(key, version, decoded, client_id, client_host, principal)
        handler = self.machine.handlers.get(key)
        outcome = Pending()
        if handler is not None:
            inner = self.execute(handler, call)
        else:
            inner = run(self.machine.tasks[key](call))
        self._waiting.add(outcome)

        def finish(done: Pending) -> None:
            self._waiting.discard(outcome)
            if done.error is not None:
                outcome.resolve(error=done.error)
                return
            body = codec.encode(in_version(done.value, version), version)
            outcome.resolve(codec.decode_exact(response_class(key), version, body))

        inner.then(finish)
        return outcome

    def ask(self, request: Message, version: int, **options: Any) -> Any:
        """The response, which must be there at once. Raises its error."""
        return value_of(self.send(request, version, **options))

    def advance(self, delay_ms: int) -> None:
        """Let time pass; timers fire in order, each at its own time."""
        end = self.now_ms() + delay_ms
        while True:
            deadline = self.timers.next_deadline_ms()
            if deadline is None or deadline > end:
                break
            self.clock.advance(max(deadline - self.now_ms(), 0))
            for _, function, args in self.timers.due(self.now_ms()):
                function(*args)
        self.clock.advance(end - self.now_ms())

    def commit(self) -> None:
        """Commit what was written while ``is_holding``; sends the responses."""
        self.is_holding = False
        held, self._uncommitted = self._uncommitted, []
        for finish, _ in held:
            finish()

    def reload(self) -> None:
        """Close and reload the shard, as after a crash of its process."""
        self._drop(WireError(ErrorCode.NOT_COORDINATOR))
        assert not self._waiting, "the machine was closed and left somebody waiting"
        self.load()

    def load(self) -> None:
        """Create a new machine from the log."""
        self.timers = Timers()
        self.machine = self._make_machine(self)
        self.loads += 1
        for offset, entry in enumerate(self.log):
            self._replay(offset, entry)
        self.execute(self.machine.loaded)

    def compact(self) -> None:
        """Keep only the last record of each key, as the log cleaner does eventually.

        For a log without transactional records; offsets change.
        """
        last = {entry.key: offset for offset, entry in enumerate(self.log)}
        self.log = [entry for offset, entry in enumerate(self.log) if last[entry.key] == offset]

    def append_marker(self, producer_id: int, epoch: int, commit: bool) -> None:
        """End a transaction that wrote to this partition."""
        entry = Entry(producer_id, epoch, b"", None, commit)
        self.log.append(entry)
        self._replay(len(self.log) - 1, entry)

    def append(
        self,
        key: Message,
        value: Message | None,
        *,
        version: int | None = None,
        producer: tuple[int, int] = NO_PRODUCER,
    ) -> None:
        """Write a record that another broker could have written, and replay it."""
        coded = self.machine.records.encode(key, value, version)
        entry = Entry(*producer, *coded)
        self.log.append(entry)
        self._replay(len(self.log) - 1, entry)

    def set_topics(self, **topics: dict[str, Any] | None) -> None:
        """Create topics, change them (a document of ``topic_document``) or delete them (None)."""
        delta = {"version": self.image.version + 1, "topics": topics}
        changed = self.image.apply(delta)
        self.execute(self.machine.on_image, changed)

    def add_topic(self, name: str, partitions: int, topic_id: bytes = b"") -> None:
        """Create a topic; its id is derived from its name unless given."""
        found = topic_id or name.encode().ljust(16, b"-")[:16]
        self.set_topics(**{name: topic_document(found, list(range(partitions)))})

    def set_brokers(self, rack: str | None) -> None:
        """The only broker, which has all replicas, is in this rack."""
        brokers = {"0": {"endpoints": [], "rack": rack}}
        changed = self.image.apply({"version": self.image.version + 1, "brokers": brokers})
        self.execute(self.machine.on_image, changed)

    def configure(self, **settings: str) -> None:
        """The current configs. By default, targets of groups do not wait for each other."""
        named = {k.replace("_", "."): v for k, v in settings.items()}
        self.config = BrokerConfig({"group.consumer.assignment.interval.ms": "0", **named})

    # -- inside ------------------------------------------------------------------------------

    def _drain(self) -> None:
        if self._is_running:
            return
        self._is_running = True
        try:
            while self._queue:
                self._queue.popleft()()
        finally:
            self._is_running = False

    def _run(self, function: Callable[..., Any], args: tuple[Any, ...], outcome: Pending) -> None:
        op = CoordinatorOperation(Refused() if self.is_refusing else None)
        try:
            result = function(op, *args)
        except WireError as error:
            assert not op.records and not op.touched, f"{error} raised after a change"
            outcome.resolve(error=error)
            return
        except Exception as error:
            outcome.resolve(error=error)
            raise
        assert not (op.records and op.refusal), "it touches soft state before it may write"
        if op.records and self.fail_with is not None:
            self._fail(op, result, outcome, self.fail_with)
            return
        if op.records:
            self._write(op)

        def finish() -> None:
            for pending, response in op.responses:
                _settle(pending, response)
            for callback in op.callbacks:
                callback()
            if isinstance(result, Pending):
                result.then(lambda done: outcome.resolve(done.value, done.error))
            else:
                outcome.resolve(result)

        if self._uncommitted or (op.records and self.is_holding):
            answers = [pending for pending, _ in op.responses]
            self._uncommitted.append((finish, [outcome, *answers]))
        else:
            finish()

    def _fail(
        self, op: CoordinatorOperation, result: Any, outcome: Pending, error: WireError
    ) -> None:
        """The records of an operation could not be written."""
        for pending, _ in op.responses:
            pending.resolve(error=error)
        outcome.resolve(error=error)
        if op.touched:
            self._drop(error)
            self.load()

    def _drop(self, error: WireError) -> None:
        """Drop the machine, with everything that waits in it or for a commit."""
        dropped, self._uncommitted = self._uncommitted, []
        for _, pendings in dropped:
            for pending in pendings:
                pending.resolve(error=error)
        self.machine.close(error)

    def _write(self, op: CoordinatorOperation) -> None:
        self.written.append(list(op.records))
        for key, value in op.records:
            coded = self.machine.records.encode(key, value)
            entry = Entry(*op.producer, *coded)
            self.log.append(entry)
            if type(key) is bytes:  # CoordinatorOperation.append_encoded
                self.machine.replay(len(self.log) - 1, entry.producer_id, key, value)
            else:
                self._replay(len(self.log) - 1, entry)

    def _replay(self, offset: int, entry: Entry) -> None:
        if entry.commit is not None:
            self.machine.replay_marker(offset, entry.producer_id, entry.epoch, entry.commit)
            return
        key, value = self.machine.records.decode(entry.key, entry.value)
        self.machine.replay(offset, entry.producer_id, key, value)


def value_of(pending: Pending) -> Any:
    """The value of a Pending that must be resolved; raises its error."""
    assert pending.done, "it waits"
    if pending.error is not None:
        raise pending.error
    return pending.value


def _settle(pending: Pending, response: Any) -> None:
    if isinstance(response, WireError):
        pending.resolve(error=response)
    else:
        pending.resolve(response)


def _raise_failure(done: Pending) -> None:
    if done.error is not None:
        raise done.error
