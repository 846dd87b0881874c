"""The producer id, and the transaction, of one producer: what its coordinators are asked."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from kbroker.client.batches import transactions
from kbroker.client.batches.offsets import GroupMetadata, TopicPartition
from kbroker.client.batches.sender import BatchSender
from kbroker.client.batches.transactions import ProducerIdentity
from kbroker.client.connections.cluster import Cluster
from kbroker.client.consumer.partitions import as_committed
from kbroker.client.errors import ClientError, Timeout, TransactionState
from kbroker.client.settings.client_settings import ClientSettings
from kbroker.errors import ErrorCode

Offsets = Mapping[TopicPartition, "int | tuple[int, str]"]

# States of a transactional producer.
NEW, READY, OPEN, BROKEN, FATAL = "new", "ready", "open", "broken", "fatal"
# BOUND: of one attempt in the background, after which there is another one.
_ASK_S = 10.0
_FENCED = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)


class ProducerSession:
    """cluster: for its own use, by one thread at a time, which has the lock."""

    def __init__(self, settings: ClientSettings, cluster: Cluster, sender: BatchSender) -> None:
        self._cluster = cluster
        self._sender = sender
        self._lock = threading.Lock()
        self._transactional_id: str | None = settings["transactional.id"]
        self._timeout_ms: int = settings["transaction.timeout.ms"]
        self._seconds: float = settings["max.block.ms"] / 1000
        self._identity: ProducerIdentity | None = None
        self._closed = False
        self.state = NEW
        self.error: ClientError | None = None  # why it is BROKEN or FATAL
        self.told = False  # the coordinator may know of the transaction
        # The transaction is aborted, and the next one needs another epoch. The coordinator may have
        # raised it, although nobody was told: asked to abort again, it would call us fenced.
        self._outdated = False

    # -- in any thread that may wait

    def ask(self, seconds: float | None = None) -> ProducerIdentity:
        """A producer id, a new epoch of the transactional id. seconds: None: of one attempt."""
        most = min(self._seconds, _ASK_S) if seconds is None else seconds
        with self._turn("a producer id", most) as left:
            return self._ask(left)

    @contextmanager
    def _turn(self, what: str, seconds: float) -> Iterator[float]:
        """Whoever is in the block may ask, alone; gets the seconds that are left. Raises Timeout if
        others take all of them.
        """
        left = seconds
        if not self._lock.acquire(blocking=False):
            until = time.monotonic() + seconds
            if not self._lock.acquire(timeout=max(0.0, seconds)):
                asked = f", asked of {self._cluster.asked}" if self._cluster.asked else ""
                raise Timeout(what, seconds, f"another request{asked} took all of it")
            left = until - time.monotonic()
        try:
            yield max(0.0, left)
        finally:
            self._lock.release()
            if self._closed:
                self._close_unused()

    def _close_unused(self) -> None:
        if self._lock.acquire(blocking=False):
            self._cluster.close()
            self._lock.release()

    def _ask(self, seconds: float) -> ProducerIdentity:
        self._identity = transactions.init_producer(
            self._cluster, self._transactional_id, timeout_ms=self._timeout_ms, deadline=seconds
        )
        return self._identity

    def add_partitions(self, parts: Iterable[TopicPartition]) -> None:
        """Add them to the transaction (first protocol)."""
        with self._turn("add partitions to the transaction", self._seconds) as left:
            assert self._identity is not None
            self.told = True
            transactions.add_partitions(self._cluster, self._identity, parts, deadline=left)

    def close(self) -> None:
        """Whoever asks at this moment is interrupted, and closes the cluster."""
        self._closed = True
        self._cluster.interrupt()
        self._close_unused()

    # -- in the thread of the user

    def init(self, seconds: float) -> None:
        """Fence former producers of the id, and abort what they have open."""
        self.expect("init_transactions", NEW, READY, BROKEN)
        self._use(self.ask(seconds))
        self.state = READY

    def _use(self, identity: ProducerIdentity) -> None:
        self._outdated = False
        self._sender.implicit = identity.implicit
        self._sender.set_producer(identity.producer_id, identity.producer_epoch)

    def expect(self, call: str, *states: str) -> None:
        """Raise unless the state is one of these."""
        if self._transactional_id is None:
            raise TransactionState(f"{call} needs transactional.id")
        if self.state in states:
            return
        if self.error is not None:
            raise self.error
        advice = {NEW: "call init_transactions first", READY: "call begin_transaction first"}
        raise TransactionState(f"{call}: {advice.get(self.state, 'a transaction is open')}")

    def fail(self, error: ClientError) -> None:
        """The open transaction can only be aborted; with a fenced producer, not even that."""
        fenced = error.code in _FENCED
        if self.state == OPEN or fenced:
            self.state = FATAL if fenced else BROKEN
            self.error = error

    def give_up(self) -> bool:
        """The open transaction can only be aborted from now on, also by a call that is repeated
        because it took too long. Returns whether that was so before.
        """
        was_broken = self.state == BROKEN
        if not was_broken:
            self.state = BROKEN
            self.error = TransactionState(
                "abort_transaction was called and did not end: call it again"
            )
        return was_broken

    def commit_offsets(self, group: str | GroupMetadata, offsets: Offsets) -> None:
        """Commit a group's offsets within the transaction."""
        self.expect("send_offsets_to_transaction", OPEN)
        rows = as_committed(offsets)
        if not isinstance(group, str | GroupMetadata):
            raise TypeError(f"the name of a group, or group_metadata(), not {group!r}")
        what = "commit offsets in the transaction"
        with self._turn(what, self._seconds) as left, self._remembered():
            assert self._identity is not None
            self.told = True
            transactions.commit_offsets(self._cluster, self._identity, group, rows, deadline=left)

    def commit(self, seconds: float) -> None:
        """Commit what was acknowledged. The caller has flushed."""
        with self._turn("commit the transaction", seconds) as left, self._remembered():
            if self.told:
                assert self._identity is not None
                after = transactions.end_transaction(
                    self._cluster, self._identity, commit=True, deadline=left
                )
                self._take(after)
        self.state = READY

    def abort(self, seconds: float, *, sure: bool) -> None:
        """sure: nothing that was sent can still arrive, and the sequence numbers have no gap; see
        ``transactions.abort_transaction``.
        """
        with self._turn("abort the transaction", seconds) as left, self._remembered():
            assert self._identity is not None
            deadline = time.monotonic() + left
            if not self._outdated and self.told:
                after = transactions.abort_transaction(
                    self._cluster, self._identity, sure=sure, deadline=left
                )
                self._outdated = after is None
                if after is not None:
                    self._take(after)
            elif not sure:
                self._outdated = not self._identity.implicit
            if self._outdated:
                self._use(self._ask(max(0.0, deadline - time.monotonic())))
        self.state = READY
        self.error = None

    def _take(self, after: ProducerIdentity) -> None:
        """The identity that the end of a transaction has left."""
        before, self._identity = self._identity, after
        if before is None or after[:3] != before[:3]:
            self._use(after)

    @contextmanager
    def _remembered(self) -> Iterator[None]:
        """Errors that stay decide the state; a call that timed out may be repeated."""
        try:
            yield
        except ClientError as error:
            if not error.retriable:
                self.fail(error)
            raise
