"""The contract between a coordinator's state machine and the shard that runs it.

A machine holds the state of one partition of an internal topic: its groups, or its transactional
ids. It changes *hard* state (what must survive a crash) only in ``replay``; an operation reads the
state and returns records and responses. The shard writes the records, replays them, and sends the
responses once the records are committed. *Soft* state (timers, members that wait in a join)
belongs to the machine, which may change it at any time after ``op.touch()``.

If the records of an operation cannot be written, its responses become an error. If the operation
had touched soft state, the shard is also dropped and reloaded from its log, and clients with
pending requests get a retriable error. A machine therefore needs no way to undo anything.

While fewer replicas than min.insync.replicas are in sync, the log takes no records, and that may
last for hours. It is known before an operation begins (``CoordinatorOperation.refusal``), so no
shard is reloaded for it: what would write asks with ``ensure_writable`` before it touches
anything, and is rejected with nothing changed. A timer's function that is rejected runs again a
little later.

Everything runs on the one thread of the io worker; an operation never awaits. What takes time (a
call to another process) is an ``async def`` outside of operations, whose result comes back through
``Host.execute``.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from kbroker.ipc.rpc import Pending
from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message
from kbroker.security.principal import ANONYMOUS, KafkaPrincipal
from kbroker.types import Offset, SlotId

if TYPE_CHECKING:
    from kbroker.cluster.changes import ImageChanges
    from kbroker.cluster.image import ClusterImage
    from kbroker.config.loader import BrokerConfig
    from kbroker.coordinator.records.codec import RecordTypes
    from kbroker.coordinator.timers import Timers
    from kbroker.errors import WireError
    from kbroker.ipc.process_table import Address
    from kbroker.ipc.rpc import Rpc
    from kbroker.metrics.catalog import MetricRow
    from kbroker.security.access import Access

NO_PRODUCER = (-1, -1)


class Call:
    """One request to a coordinator, as its client sent it."""

    __slots__ = ("api_key", "client_host", "client_id", "principal", "request", "version")

    def __init__(
        self,
        api_key: ApiKey,
        version: int,
        request: Any,
        client_id: str = "",
        client_host: str = "/127.0.0.1",
        principal: KafkaPrincipal = ANONYMOUS,
    ) -> None:
        self.api_key = api_key
        self.version = version
        self.request = request
        self.client_id = client_id
        self.client_host = client_host  # as Kafka shows it: a slash, then the address
        self.principal = principal  # the principal that was authorized for this request


class CoordinatorOperation:
    """The records, responses and callbacks requested by one run of a machine's function.

    refusal: why the log takes no records now, None if it does.
    """

    __slots__ = ("callbacks", "producer", "records", "refusal", "responses", "touched")

    def __init__(self, refusal: WireError | None = None) -> None:
        self.refusal = refusal
        # Key and value: messages, or both in encoded form (``append_encoded``).
        self.records: list[tuple[Any, Any]] = []
        self.responses: list[tuple[Pending[Any], Any]] = []
        self.callbacks: list[Callable[[], None]] = []
        self.producer = NO_PRODUCER
        self.touched = False

    def append(self, key: Message, value: Message | None) -> None:
        """Write a record; a None value deletes the key.

        All records of an operation are written in one batch, or none is. Raises the refusal of a
        log that takes none, unless soft state was touched before.
        """
        if not self.touched:
            self.ensure_writable()
        self.records.append((key, value))

    def append_encoded(self, key: bytes, value: bytes | None) -> None:
        """Like ``append``, for a record that the machine has encoded itself.

        When it has been written, ``Machine.replay`` is given these bytes; at load it is decoded as
        any other.
        """
        if not self.touched:
            self.ensure_writable()
        self.records.append((key, value))

    def respond(self, pending: Pending[Any], response: Any) -> None:
        """Resolve ``pending`` with the response (or a WireError) once the records are committed."""
        self.responses.append((pending, response))

    def then(self, callback: Callable[[], None]) -> None:
        """Call back once the records are committed; not when they cannot be written."""
        self.callbacks.append(callback)

    def ensure_writable(self) -> None:
        """Raise the refusal of a log that takes no records now: before ``touch``, where records
        follow.
        """
        if self.refusal is not None:
            raise self.refusal

    def touch(self) -> None:
        """Soft state is about to change: call before the first such change."""
        self.touched = True


class Host(Protocol):
    """The services of the shard for its machine. Everything is up to date, including image and
    configs.
    """

    topic: str
    partition: int
    rpc: Rpc
    timers: Timers  # names are the machine's; set them through ``set_timer``

    @property
    def config(self) -> BrokerConfig: ...

    @property
    def image(self) -> ClusterImage: ...

    @property
    def leader_epoch(self) -> int:
        """The leader epoch of the partition on this broker, which is the coordinator epoch."""
        ...

    def now_ms(self) -> int:
        """Monotonic, for timers and timeouts."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970, for timestamps in records."""
        ...

    def execute(self, function: Callable[..., Any], *args: Any) -> Pending[Any]:
        """Run ``function(op, *args)`` as an operation, as ``Machine.handlers`` are.

        Resolves to what the function returned, or what the Pending it returned resolves to, once
        the records are committed; to a WireError if it raised one or they cannot be written.
        """
        ...

    def set_timer(self, name: Any, delay_ms: int, function: Callable[..., Any], *args: Any) -> None:
        """Run ``function(op, *args)`` as an operation after ``delay_ms``; see ``Timers``."""
        ...

    def cancel_timer(self, name: Any) -> None: ...

    def start(self, task: Coroutine[Pending[Any], None, Any]) -> None:
        """Run an async function in the background; its exception is logged."""
        ...

    def has_transaction(self, producer_id: int, epoch: int) -> bool:
        """Whether the producer has an open transaction in this partition."""
        ...

    def verify(
        self, transactional_id: str, producer_id: int, epoch: int, add: bool
    ) -> Pending[Any]:
        """Ask the transaction coordinator whether this partition is part of the transaction, or,
        with ``add``, make it so. Resolves to an error code, 0 if it is.
        """
        ...

    def io_worker(self, slot: SlotId) -> Address:
        """The process of this broker that owns a slot."""
        ...

    def access(self, principal: KafkaPrincipal, host: str) -> Access:
        """What a client may do. host: its address."""
        ...

    def count(self, metric: MetricRow, amount: int = 1) -> None:
        """Add to a counter of ``metrics.catalog``."""
        ...


Handler = Callable[[CoordinatorOperation, Call], Any]
Task = Callable[[Call], Coroutine[Pending[Any], None, Any]]


class Machine(Protocol):
    """One coordinator's state for one partition.

    handlers: what serves a request, run as an operation. It returns the response, or a Pending for
    it (made with ``Pending()``, answered through ``op.respond`` by this or a later operation), or
    raises WireError, which it must not do after ``op.append`` or ``op.touch``.
    tasks: requests served by an async function instead; it changes state through ``Host.execute``.
    records: the record types of the topic.
    """

    @property
    def handlers(self) -> Mapping[ApiKey, Handler]: ...

    @property
    def tasks(self) -> Mapping[ApiKey, Task]: ...

    @property
    def records(self) -> RecordTypes: ...

    def replay(self, offset: Offset, producer_id: int, key: Message, value: Message | None) -> None:
        """Apply one record to the state; live or while loading.

        producer_id: of a transactional record, which counts once its marker comes; else -1. Must
        not fail for any record that decodes: what does not fit the state replaces it.
        """
        ...

    def replay_chunk(self, data: bytes, position: int) -> tuple[int, int, int]:
        """While loading, apply whole batches of ``data`` from ``position`` on in a faster way.

        Returns (where it stopped, records taken, offset after the last of them or -1). It stops at
        the first batch that is damaged, cut short, a control batch, or that holds anything the
        faster path does not handle. The loader continues from there.
        """
        ...

    def replay_marker(self, offset: Offset, producer_id: int, epoch: int, commit: bool) -> None:
        """A transaction that wrote to this partition has ended; live or while loading."""
        ...

    def loaded(self, op: CoordinatorOperation) -> None:
        """Everything has been replayed: start timers, finish what a crash interrupted."""
        ...

    def on_image(self, op: CoordinatorOperation, changes: ImageChanges) -> None:
        """Topics were created, changed or deleted: name -> (old, new)."""
        ...

    def close(self, error: Exception) -> None:
        """The shard is closed: resolve every Pending that waits with ``error``."""
        ...
