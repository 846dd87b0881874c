"""Sends encoded batches to the leaders of their partitions, with several requests in flight.

Driven by the caller: ``send`` and ``flush`` do all the work, there is no thread. Batches of a
partition arrive in the order they were sent, and once each if the producer is idempotent: a batch
that failed is sent again with its sequence numbers, and the batches that were in flight after it
wait for it.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from kbroker._ext.record.batch_stamp import stamp_batch
from kbroker.client.batches import transactions
from kbroker.client.batches.flushed import FlushedAtEnd
from kbroker.client.batches.offsets import TopicPartition
from kbroker.client.batches.transactions import ProducerIdentity
from kbroker.client.connections.cluster import NO_TOPIC_ID, Cluster
from kbroker.client.connections.connection import Connection
from kbroker.client.connections.retry import Retry, pause_after
from kbroker.client.errors import (
    ClientClosed,
    ClientError,
    ConnectionLost,
    RejectedError,
    SettingRefused,
    Timeout,
)
from kbroker.errors import ErrorCode
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.record.compression import ZSTD
from kbroker.wire.stream import Pending

# BOUND: a broker remembers the last five batches of a producer, so it recognises at most five
# duplicates.
IN_FLIGHT_MAX = 5
# From these versions on a request names topics by id; adds a partition to the transaction without
# AddPartitionsToTxn.
_FIRST_BY_ID = 13
_FIRST_IMPLICIT = 12
# The first that may have zstd.
_FIRST_ZSTD = 7
# WIRE: the low byte of a batch's attributes, and its bits for the codec.
_ATTRIBUTES, _CODEC_MASK = 22, 7
_NOBODY = ProducerIdentity(None, -1, -1)
_SEQUENCES = 1 << 31


class _Batch:
    __slots__ = ("data", "deadline", "number", "records", "sent", "sequence")

    def __init__(
        self, number: int, data: bytearray, records: int, sequence: int, deadline: float
    ) -> None:
        self.number = number  # in the order of send
        self.data = data
        self.records = records
        self.sequence = sequence
        self.deadline = deadline
        self.sent = False  # at least once, so perhaps written


class _Partition:
    """waiting: to be sent, oldest first. in_flight: sent, without a response, oldest first."""

    __slots__ = (
        "added",
        "failures",
        "in_flight",
        "key",
        "known",
        "next_sequence",
        "not_before",
        "trouble",
        "waiting",
        "why",
    )

    def __init__(self, key: TopicPartition) -> None:
        self.key = key
        self.next_sequence = 0
        self.waiting: deque[_Batch] = deque()
        self.in_flight: deque[_Batch] = deque()
        self.added = False  # to the transaction
        # Whether the leader has a batch of this producer and epoch. COMPAT: Kafka accepts any
        # sequence number as the first, so a second batch that overtakes the first one would be
        # accepted.
        self.known = False
        self.not_before = 0.0
        self.failures = 0  # in a row
        self.trouble: ClientError | None = None  # passing; nothing is sent until in_flight is empty
        self.why = ""  # that in words, with who said so


class _ProduceInFlight:
    __slots__ = ("batches", "pending")

    def __init__(self, pending: Pending, batches: list[tuple[_Partition, _Batch]]) -> None:
        self.pending = pending
        self.batches = batches


class _ProduceNode:
    __slots__ = ("connection", "requests")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.requests: deque[_ProduceInFlight] = deque()


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
        self._max_in_flight = max_in_flight
        self._buffer_bytes = buffer_bytes
        self._request_bytes = request_bytes
        self._idempotent = idempotent or transactional_id is not None or identity is not None
        self._transactional_id = identity.transactional_id if identity else transactional_id
        self._transaction_timeout_ms = transaction_timeout_ms
        self._identity = identity
        self._pid = os.getpid()
        self._open = False  # a transaction
        self._told = False  # brokers may know of it
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._nodes: dict[int, _ProduceNode] = {}
        self._unacknowledged_bytes = 0
        self._sent = 0
        self._error: ClientError | None = None
        self._answered_by = ""  # the address whose response is looked at

    # -- transactions

    @property
    def identity(self) -> ProducerIdentity:
        """The identity, requested when it is first needed."""
        if not self._idempotent:
            return _NOBODY
        if self._identity is None:
            self._identity = transactions.init_producer(
                self.cluster,
                self._transactional_id,
                timeout_ms=self._transaction_timeout_ms,
            )
        return self._identity

    def begin(self) -> ProducerIdentity:
        """Begin a transaction; the returned identity lets any process end it.

        Brokers learn of it with the first batch that is sent or with ``commit_offsets``.
        """
        self._raise()
        assert self._transactional_id is not None, "not a transactional producer"
        assert not self._open, "the previous transaction has not ended"
        self._open = True
        self._told = False
        for state in self._partitions.values():
            state.added = False
        return self.identity

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        """Commit a group's offsets within the transaction; see ``transactions.commit_offsets``."""
        self._check_process()
        assert self._open, "there is no transaction"
        self._told = True
        transactions.commit_offsets(self.cluster, self.identity, group, offsets)

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
        if commit:
            self.flush()
            after = transactions.end_transaction(self.cluster, before, commit=True)
        else:
            after = self._abort(before, self._discard())
        self._open = False
        if after[:3] != before[:3]:
            for state in self._partitions.values():
                state.next_sequence = 0
                state.known = False
        self._identity = after

    def _abort(self, before: ProducerIdentity, sure: bool) -> ProducerIdentity:
        """sure: none of the sent records can still arrive. Otherwise, with the first protocol, the
        epoch is bumped, once it is certain that the id is still this producer's, because asking for
        an id fences every other producer.
        """
        try:
            after = transactions.end_transaction(self.cluster, before, commit=False)
            if sure or before.implicit:
                return after
        except RejectedError as error:
            # INVALID_TXN_STATE: no record has arrived yet.
            if sure or error.code != ErrorCode.INVALID_TXN_STATE:
                raise
        return transactions.init_producer(
            self.cluster, self._transactional_id, timeout_ms=self._transaction_timeout_ms
        )

    def _discard(self) -> bool:
        """Before an abort: drop unsent batches and wait for those in flight, so that none arrives
        after the end. False: it is unknown what was written.
        """
        for state in self._partitions.values():
            while state.waiting and not state.waiting[-1].sent:
                state.next_sequence = state.waiting.pop().sequence
        # The batches that still wait have failed before, and would otherwise be sent in the next
        # transaction.
        sure = self._error is None and not self._any_waiting()
        while sure and any(node.requests for node in self._nodes.values()):
            try:
                self._receive_oldest()
            except ClientError:
                sure = False
            sure = sure and not self._any_waiting()
        if not sure:
            self._drop_connections()
            self._partitions.clear()
        self._error = None
        self._unacknowledged_bytes = 0
        return sure

    def _any_waiting(self) -> bool:
        return any(state.waiting for state in self._partitions.values())

    # -- sending

    def send(self, topic: str, partition: int, batch: bytearray, records: int) -> None:
        """Queue one batch, which belongs to the producer from now on (its header is written to).

        Sends what can be sent; waits only when ``buffer_bytes`` are not acknowledged.
        """
        self._raise()
        if self._transactional_id is not None and not self._open:
            raise RejectedError(ErrorCode.INVALID_TXN_STATE, "send before begin")
        state = self._partitions.get((topic, partition))
        if state is None:
            state = self._partitions[topic, partition] = _Partition((topic, partition))
        try:
            identity = self.identity
        except ClientError as error:
            raise self._fail(error) from None
        sequence = state.next_sequence if self._idempotent else -1
        stamp_batch(
            batch,
            identity.producer_id,
            identity.producer_epoch,
            sequence,
            self._transactional_id is not None,
        )
        state.next_sequence = (state.next_sequence + records) % _SEQUENCES
        self._sent += 1
        self._told = True
        deadline = time.monotonic() + self.delivery_timeout
        state.waiting.append(_Batch(self._sent, batch, records, sequence, deadline))
        self._unacknowledged_bytes += len(batch)
        self._pump()
        while self._unacknowledged_bytes > self._buffer_bytes:
            self._advance()

    def flush(self) -> None:
        """Return when everything is acknowledged."""
        self._raise()
        self._pump()
        while any(state.waiting or state.in_flight for state in self._partitions.values()):
            self._advance()

    def close(self) -> None:
        """Close the connections; unacknowledged records are abandoned."""
        self._drop_connections()
        self._partitions.clear()
        self._unacknowledged_bytes = 0
        if self._error is None:
            self._error = ClientClosed("the producer is closed")

    def _drop_connections(self) -> None:
        for leader, node in self._nodes.items():
            if node.requests:
                node.connection.close()
            self.cluster.give_back(leader, node.connection)
        self._nodes.clear()

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise ClientClosed(
                "the producer belongs to the process that created it: create one after the fork"
            )

    def _raise(self) -> None:
        self._check_process()
        if self._error is not None:
            raise self._error

    def _fail(self, error: ClientError) -> ClientError:
        self._error = error
        return error

    # -- requests

    def _advance(self) -> None:
        """Wait for a response, or until the next attempt is due; then send what can be sent."""
        if any(node.requests for node in self._nodes.values()):
            self._receive_oldest()
        else:
            waiting = [state for state in self._partitions.values() if state.waiting]
            soonest = min((state.not_before for state in waiting), default=0.0)
            time.sleep(max(soonest - time.monotonic(), 0.0))
        self._expire()
        self._pump()

    def _expire(self) -> None:
        now = time.monotonic()
        for state in self._partitions.values():
            if state.waiting and now > state.waiting[0].deadline:
                topic, partition = state.key
                why = state.why if state.trouble else "it was not acknowledged"
                raise self._fail(
                    Timeout(f"the delivery to {topic}-{partition}", self.delivery_timeout, why)
                )

    def _pump(self) -> None:
        """Send each node its waiting batches, while it may have more requests in flight."""
        retry = Retry("produce", self.cluster.request_timeout)
        while True:
            by_leader: dict[int, list[_Partition]] = {}
            now = time.monotonic()
            for state in self._partitions.values():
                if not state.waiting or now < state.not_before:
                    continue
                if state.trouble is not None and state.in_flight:
                    continue
                leader = self._leader_of(state, retry)
                if leader is not None:
                    by_leader.setdefault(leader, []).append(state)
            if not any(self._send_to(leader, ready, retry) for leader, ready in by_leader.items()):
                return

    def _leader_of(self, state: _Partition, retry: Retry) -> int | None:
        try:
            return self.cluster.leader(*state.key, retry)[1]
        except ClientError as error:
            self._answered_by = self.cluster.asked
            self._put_off(state, error)
            return None

    def _put_off(self, state: _Partition, error: ClientError) -> None:
        """Retry a little later after a retriable error; raise any other."""
        if not error.retriable:
            raise self._fail(error)
        state.trouble = error
        by = f" (by {self._answered_by})" if isinstance(error, RejectedError) else ""
        state.why = f"{error}{by}"
        now = time.monotonic()
        if now >= state.not_before:  # one failure may put back several batches
            state.failures += 1
            state.not_before = now + pause_after(state.failures)

    def _send_to(self, leader: int, ready: list[_Partition], retry: Retry) -> bool:
        """Send one request; False if the node has its maximum in flight or cannot be reached."""
        node = self._nodes.get(leader)
        if node is not None and len(node.requests) >= self._max_in_flight:
            return False
        chosen: list[tuple[_Partition, _Batch]] = []
        size = 0
        # The longest wait goes first, so that no partition starves when requests are full.
        for state in sorted(ready, key=lambda one: one.waiting[0].deadline):
            batch = state.waiting[0]
            if chosen and size + len(batch.data) > self._request_bytes:
                continue
            if len(state.in_flight) < (self._max_in_flight if state.known else 1):
                chosen.append((state, batch))
                size += len(batch.data)
        if not chosen:
            return False
        try:
            self._add_to_transaction([state for state, _ in chosen])
            if node is None:
                node = self._nodes[leader] = _ProduceNode(self.cluster.borrow(leader, retry))
            pending = self._send_request(node.connection, chosen, retry)
        except ClientError as error:
            for state, _ in chosen:
                self.cluster.forget_topic(state.key[0])
                self._put_off(state, error)
            if isinstance(error, ConnectionLost | Timeout) and node is not None:
                self._lose(leader, error)
            return False
        for state, batch in chosen:
            state.waiting.popleft()
            batch.sent = True
            state.in_flight.append(batch)
        request = _ProduceInFlight(pending, chosen)
        if self.acks == 0:
            for state, batch in chosen:
                self._acknowledge(state, batch, -1)
        else:
            node.requests.append(request)
        return True

    def _send_request(
        self, connection: Connection, chosen: list[tuple[_Partition, _Batch]], retry: Retry
    ) -> Pending:
        by_topic: dict[str, list[Any]] = {}
        for state, batch in chosen:
            topic, partition = state.key
            row = ProduceRequest.PartitionProduceData(index=partition, records=batch.data)
            by_topic.setdefault(topic, []).append(row)
        request = ProduceRequest(
            transactional_id=self._transactional_id,
            acks=self.acks,
            timeout_ms=int(self.cluster.request_timeout * 1000),
            topic_data=[
                ProduceRequest.TopicProduceData(
                    name=name, topic_id=NO_TOPIC_ID, partition_data=rows
                )
                for name, rows in by_topic.items()
            ],
        )
        first_protocol = self._transactional_id is not None and not self.identity.implicit
        at_most = (_FIRST_IMPLICIT if first_protocol else _FIRST_BY_ID) - 1
        if connection.version_of(ApiKey.PRODUCE, at_most) < _FIRST_ZSTD:
            _reject_zstd(chosen)
        return connection.send(
            request,
            retry.step(self.cluster.request_timeout),
            at_most=at_most,
            expects_response=self.acks != 0,
        )

    def _add_to_transaction(self, states: list[_Partition]) -> None:
        if self._transactional_id is None or self.identity.implicit:
            return
        new = [state for state in states if not state.added]
        if not new:
            return
        transactions.add_partitions(self.cluster, self.identity, [state.key for state in new])
        for state in new:
            state.added = True

    # -- responses

    def _receive_oldest(self) -> None:
        leader, node = min(
            ((leader, node) for leader, node in self._nodes.items() if node.requests),
            key=lambda item: item[1].connection.used_at,
        )
        request = node.requests.popleft()
        try:
            # The broker itself waits for replicas until the request's timeout.
            deadline = time.monotonic() + 2 * self.cluster.request_timeout
            deadline = min(deadline, max(batch.deadline for _, batch in request.batches))
            response = node.connection.receive(request.pending, deadline)
        except (ConnectionLost, Timeout) as error:
            node.requests.appendleft(request)
            self._lose(leader, error)
            return
        rows = {
            (topic.name, row.index): row
            for topic in response.responses
            for row in topic.partition_responses
        }
        self._answered_by = node.connection.address
        for state, batch in request.batches:
            row = rows.get(state.key)
            if row is None:
                raise self._fail(RejectedError(-1, f"produce to {state.key[0]}-{state.key[1]}"))
            self._take_result(state, batch, row)

    def _take_result(self, state: _Partition, batch: _Batch, row: Any) -> None:
        code = row.error_code
        if code in (0, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            self._acknowledge(state, batch, row.base_offset)
            return
        topic, partition = state.key
        error = RejectedError(code, f"produce to {topic}-{partition}", told(row))
        # An older batch is still in flight to another leader, or waits to be sent again.
        behind = state.in_flight[0] is not batch or self._was_put_back(state)
        out_of_order = code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        error.retriable = error.retriable or (out_of_order and behind)
        if error.retriable:
            self.cluster.forget_topic(topic)
            self._put_back(state, batch, error)
            return
        raise self._fail(error)

    @staticmethod
    def _was_put_back(state: _Partition) -> bool:
        """Whether a batch of the partition has failed and waits to be sent again."""
        return bool(state.waiting and state.waiting[0].sent)

    def _acknowledge(self, state: _Partition, batch: _Batch, base_offset: int) -> None:
        state.in_flight.remove(batch)
        state.known = True
        state.failures = 0
        self._unacknowledged_bytes -= len(batch.data)
        self.acknowledged[state.key] = self.acknowledged.get(state.key, 0) + batch.records
        if base_offset >= 0:
            self.last_offsets[state.key] = base_offset
        if not state.in_flight and not self._was_put_back(state):
            state.trouble = None

    def _put_back(self, state: _Partition, batch: _Batch, error: ClientError) -> None:
        """Put the batch back to be sent again, in order: after older ones that were put back."""
        state.in_flight.remove(batch)
        older = 0
        while older < len(state.waiting) and state.waiting[older].number < batch.number:
            older += 1
        state.waiting.insert(older, batch)
        self._put_off(state, error)

    def _lose(self, leader: int, error: ClientError) -> None:
        """A connection failed: send everything that was in flight on it again."""
        node = self._nodes.pop(leader, None)
        if node is None:
            return
        node.connection.close()
        for request in node.requests:
            for state, batch in request.batches:
                self.cluster.forget_topic(state.key[0])
                self._put_back(state, batch, error)


def told(row: Any) -> str | None:
    """A broker's message about a rejected batch, with the first bad record if it names one: for
    example its timestamp and the range that the topic accepts.
    """
    told: str | None = row.error_message
    first = next((one.batch_index_error_message for one in row.record_errors or ()), None)
    return ": ".join(filter(None, [told, first])) if first and first not in (told or "") else told


def _reject_zstd(chosen: list[tuple[_Partition, _Batch]]) -> None:
    """Raise a clear error: such brokers would respond with an unexpected server error."""
    for state, batch in chosen:
        if batch.data[_ATTRIBUTES] & _CODEC_MASK == ZSTD:
            topic, partition = state.key
            what = f"produce to {topic}-{partition}"
            why = "Brokers before Kafka 2.1 do not support zstd; they support lz4, snappy and gzip."
            raise RejectedError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, what, why)
