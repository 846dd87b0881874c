"""Sends encoded batches to the leaders of their partitions, with several requests in flight.

Driven by the caller: ``send`` and ``flush`` do all the work, there is no thread. Batches of a
partition arrive in the order they were sent, and once each if the producer is idempotent: a batch
that failed is sent again with its sequence numbers, and the batches that were in flight after it
wait for it. A face of the engine that ``KafkaProducer`` has, too: ``driven_sender``.
"""

from __future__ import annotations

import os
from collections import defaultdict, deque
from collections.abc import Mapping
from typing import ClassVar

from kbroker._ext.client.appender import Appender
from kbroker._ext.client.send_loop import SendLoop
from kbroker._ext.client.sent_batch import SentBatch
from kbroker.client.batches import transactions
from kbroker.client.batches.driven_sender import DrivenSender, DrivenSettings
from kbroker.client.batches.flushed import FlushedAtEnd
from kbroker.client.batches.offsets import TopicPartition
from kbroker.client.batches.transactions import ProducerIdentity
from kbroker.client.connections.cluster import Cluster
from kbroker.client.errors import ClientClosed, ClientError, RejectedError, SettingRefused
from kbroker.errors import ErrorCode

# BOUND: a broker remembers the last five batches of a producer, so it recognises at most five
# duplicates.
IN_FLIGHT_MAX = 5
_NOBODY = ProducerIdentity(None, -1, -1)
# The pool takes what it is given: ``send`` has a limit of its own.
_NO_LIMIT_BYTES = 1 << 62
# How long a turn may last: another one begins until what is waited for has happened.
_TURN_S = 1.0


class BatchProducer(FlushedAtEnd):
    """A producer, used by one thread.

    acks: -1 (all in-sync replicas), 1 or 0.
    idempotent: needs acks=-1.
    transactional_id: makes it transactional: call ``begin`` and ``end`` around what is sent.
    identity: use this one instead of asking for one (``transactions.init_producer``). The property
        of that name says which one is used, for callers that end its transaction elsewhere.
    delivery_timeout: seconds from ``send`` to the acknowledgement.
    buffer_bytes: BOUND: ``send`` waits while more than this is not acknowledged.
    request_bytes: the largest request.

    The first permanent error ends the producer: it is raised by the call that meets it and by every
    later one. What was not acknowledged by then may or may not have been written.
    """

    # Simulations have another one.
    _sender_of: ClassVar[type[DrivenSender]] = DrivenSender

    def __init__(
        self,
        cluster: Cluster,
        *,
        acks: int = -1,
        idempotent: bool = True,
        transactional_id: str | None = None,
        identity: ProducerIdentity | None = None,
        transaction_timeout_ms: int = 60_000,
        delivery_timeout: float = 120.0,
        max_in_flight: int = IN_FLIGHT_MAX,
        buffer_bytes: int = 32 << 20,
        request_bytes: int = 4 << 20,
    ) -> None:
        if acks not in (-1, 0, 1):
            raise SettingRefused("acks", f"{acks} is not -1 (all), 0 or 1")
        if (idempotent or transactional_id) and acks != -1:
            raise SettingRefused("acks", "an idempotent producer needs acks=-1 (all)")
        if not 1 <= max_in_flight <= IN_FLIGHT_MAX:
            raise SettingRefused("max.in.flight.requests.per.connection", f"1 to {IN_FLIGHT_MAX}")
        self.cluster = cluster
        self.acks = acks
        self.delivery_timeout = delivery_timeout
        self.acknowledged: dict[TopicPartition, int] = {}  # records
        self.last_offsets: dict[TopicPartition, int] = {}  # base offset of the last batch
        self._buffer_bytes = buffer_bytes
        self._idempotent = idempotent or transactional_id is not None or identity is not None
        self._transactional_id = identity.transactional_id if identity else transactional_id
        self._transaction_timeout_ms = transaction_timeout_ms
        self._identity: ProducerIdentity | None = None
        self._pid = os.getpid()
        self._open = False  # a transaction
        self._told = False  # brokers may know of it
        self._error: ClientError | None = None
        # Of each partition, in the order of ``send``, until they are counted.
        self._batches: defaultdict[TopicPartition, deque[SentBatch]] = defaultdict(deque)
        self._uncounted_bytes = 0
        self._settings = DrivenSettings(self._transactional_id)
        self._pool = self._made_pool(max_in_flight)
        self._sender = self._made_sender(max_in_flight, request_bytes)
        self._sender.add_partitions = self._add_partitions
        if identity is not None:
            self._use(identity)

    def _made_pool(self, max_in_flight: int) -> Appender:
        return Appender(
            None,
            tuple,
            batch_bytes=0,
            buffer_bytes=_NO_LIMIT_BYTES,
            record_bytes_max=0,
            linger_us=0,
            delivery_us=0,
            block_us=0,
            in_flight_max=max_in_flight,
            idempotent=self._idempotent,
            transactional=self._transactional_id is not None,
        )

    def _made_sender(self, max_in_flight: int, request_bytes: int) -> DrivenSender:
        request_s = self.cluster.request_timeout
        loop = SendLoop(
            self._pool,
            client_id=self.cluster.client_id,
            acks=self.acks,
            timeout_ms=int(request_s * 1000),
            # The broker itself waits for replicas until the request's timeout.
            request_us=int(2 * request_s * 1e6),
            request_bytes_max=request_bytes,
            in_flight_max=max_in_flight,
            transactional_id=self._transactional_id,
        )
        return self._sender_of(self._settings, self._pool, loop, self.cluster, self._fail)

    # -- transactions

    @property
    def identity(self) -> ProducerIdentity:
        """The identity, requested when it is first needed."""
        if not self._idempotent:
            return _NOBODY
        return self._identity if self._identity is not None else self._use(self._next_identity())

    def _next_identity(self) -> ProducerIdentity:
        return transactions.init_producer(
            self.cluster, self._transactional_id, timeout_ms=self._transaction_timeout_ms
        )

    def _use(self, identity: ProducerIdentity) -> ProducerIdentity:
        self._identity = identity
        self._sender.implicit = identity.implicit
        self._sender.set_producer(identity.producer_id, identity.producer_epoch)
        return identity

    def begin(self) -> ProducerIdentity:
        """Begin a transaction; the returned identity lets any process end it.

        Brokers learn of it with the first batch that is sent or with ``commit_offsets``.
        """
        self._raise()
        assert self._transactional_id is not None, "not a transactional producer"
        assert not self._open, "the previous transaction has not ended"
        self._open = True
        self._told = False
        self._sender.begin_transaction()
        return self.identity

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        """Commit a group's offsets within the transaction; see ``transactions.commit_offsets``."""
        self._check_process()
        assert self._open, "there is no transaction"
        self._told = True
        transactions.commit_offsets(self.cluster, self.identity, group, offsets)

    def _add_partitions(self, parts: list[TopicPartition]) -> None:
        transactions.add_partitions(self.cluster, self.identity, parts)

    def end(self, *, commit: bool) -> None:
        """Commit the records sent since ``begin``, once all are acknowledged, or abort them.

        Raises RejectedError, PRODUCER_FENCED, when somebody else has the id by now, whose
        transaction is left alone.
        """
        self._check_process()
        assert self._open, "there is no transaction"
        if not self._told and self._error is None:
            self._open = False  # the coordinator does not know it
            return
        before = self.identity
        after: ProducerIdentity | None
        if commit:
            self.flush()
            after = transactions.end_transaction(self.cluster, before, commit=True)
        else:
            sure = self._discard()
            after = transactions.abort_transaction(self.cluster, before, sure=sure)
            after = after or self._next_identity()
        self._open = False
        self._use(after)

    def _discard(self) -> bool:
        """Before an abort: drop unsent batches and wait for those in flight, so that none arrives
        after the end. False: it is unknown what was written.
        """
        sender = self._sender
        sender.aborting, sender.unsure = True, self._error is not None
        try:
            sender.give_up()
            while self._pool.used_bytes and not sender.unsure:
                sender.turn(_TURN_S, 0)
            if sender.unsure:
                sender.leave(ClientClosed("the transaction was aborted"))
        finally:
            sender.aborting = False
        self._count(everything=True)
        self._error = None
        return not sender.unsure

    # -- sending

    def send(self, topic: str, partition: int, batch: bytearray, records: int) -> None:
        """Queue one batch, which is copied. records: those that it has.

        Sends what can be sent; waits only when ``buffer_bytes`` are not acknowledged.
        """
        self._raise()
        if self._transactional_id is not None and not self._open:
            raise RejectedError(ErrorCode.INVALID_TXN_STATE, "send before begin")
        try:
            _ = self.identity
        except ClientError as error:
            self._fail(error)
            raise
        seconds = self.delivery_timeout
        sent = self._pool.append_batch(topic, partition, batch, records, seconds)
        self._settings["delivery.timeout.ms"] = seconds * 1000
        self._told = True
        self._batches[topic, partition].append(sent)
        self._uncounted_bytes += len(batch)
        self._sender.metadata.track(topic)
        while self._turn(0.0):
            pass
        while self._pool.used_bytes > self._buffer_bytes:
            self._turn(_TURN_S, self._buffer_bytes)

    def flush(self) -> None:
        """Return when everything is acknowledged."""
        self._raise()
        while self._pool.used_bytes:
            self._turn(_TURN_S, 0)

    def close(self) -> None:
        """Close the connections; unacknowledged records are abandoned."""
        closed = ClientClosed("the producer is closed")
        self._sender.leave(closed)
        self._batches.clear()
        if self._error is None:
            self._error = closed

    def _turn(self, seconds: float, enough_bytes: int = -1) -> int:
        events = self._sender.turn(seconds, enough_bytes)
        if self._pool.used_bytes != self._uncounted_bytes:
            self._count(everything=self._error is not None)
        if self._error is not None:
            raise self._error
        return events

    def _count(self, *, everything: bool) -> None:
        """Count what has been acknowledged. everything: also what is newer than a batch that waits;
        else that follows with it.
        """
        for key, batches in list(self._batches.items()):
            while batches and batches[0].ended:
                self._count_batch(key, batches.popleft())
            if everything:
                for batch in batches:
                    if batch.ended:
                        self._count_batch(key, batch)
                batches = deque(batch for batch in batches if not batch.ended)
                self._batches[key] = batches
            if not batches:
                del self._batches[key]
        self._uncounted_bytes = self._pool.used_bytes

    def _count_batch(self, key: TopicPartition, batch: SentBatch) -> None:
        if batch.failed:
            return
        self.acknowledged[key] = self.acknowledged.get(key, 0) + batch.records
        if batch.base_offset >= 0:
            self.last_offsets[key] = batch.base_offset

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise ClientClosed(
                "the producer belongs to the process that created it: create one after the fork"
            )

    def _raise(self) -> None:
        self._check_process()
        if self._error is not None:
            raise self._error

    def _fail(self, error: ClientError) -> None:
        self._error = self._error or error
