"""Three brokers as a producer of the client sees them, in simulated time: they take batches, check
sequence numbers, and coordinate transactions.

What a leader has appended is acknowledged once the others have it; until then another leader may
lack it. A broker that has not heard of another leader appends to a log that nobody will have.
"""

from __future__ import annotations

import itertools
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Any

from support.simulation.simulated_brokers import FOREVER, Broker, Brokers, Key, Reply, World
from support.simulation.simulated_produced_log import Produced, ProducedLog, StrictLog

from kbroker.errors import ErrorCode
from kbroker.protocol import codec
from kbroker.protocol.api import ApiKey
from kbroker.protocol.header import decode_request_header, encode_response_header
from kbroker.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnResponse
from kbroker.protocol.messages.end_txn import EndTxnResponse
from kbroker.protocol.messages.init_producer_id import InitProducerIdResponse
from kbroker.protocol.messages.produce import ProduceRequest, ProduceResponse
from kbroker.record.batch import RecordBatch

Row = ProduceResponse.PartitionProduceResponse
Done = Callable[[int, int], None]
NOT_APPENDED = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)
APPENDED = (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
_FIRST_HINTS = 10  # version of Produce, KIP-951
_SIZE = struct.Struct(">i")


class Transaction:
    """Of a transactional id. last: how the one before ended."""

    def __init__(self, producer: int) -> None:
        self.producer = producer
        self.epoch = 0
        self.keys: dict[Key, None] = {}
        self.is_open = False
        self.last: bool | None = None


class ProduceBrokers(Brokers):
    """poisoned: records that no broker takes. too_large: batches of so many records are. gaps: the
    partitions in which a batch was last out of order, and whether for the leader: one that does not
    know of its successors lacks what these have acknowledged. is_strict: see ``ProducedLog``.
    """

    def __init__(self, world: World, is_strict: bool = False) -> None:
        self.log_type = StrictLog if is_strict else ProducedLog
        super().__init__(world)
        self.poisoned: set[int] = set()
        self.too_large = 1 << 30
        self.implicit = False  # the second protocol of transactions
        self.transactions: dict[str, Transaction] = {}
        self.appends = 0
        self.gaps: dict[Key, bool] = {}
        self._producers = itertools.count(70)

    def move(self, key: Key, cut: int = 0) -> None:
        """Another leader, with all that is acknowledged, and some of what is not."""
        log: Any = self.leads[key].log
        super().move(key, self.world.random.randint(0, log.unsure))

    # -- batches

    def produce(self, broker: Broker, request: Any, reply: Reply, hints: bool) -> None:
        """reply: called with the response, or never if the broker falls silent for ever. hints:
        the version has fields for leaders.
        """
        rows: dict[Key, Any] = {}
        wanted = [
            ((topic.name, row.index), bytes(row.records))
            for topic in request.topic_data
            for row in topic.partition_data
        ]

        def done(key: Key, error: int, base: int) -> None:
            rows[key] = self._row(broker, key, error, base, hints)
            if len(rows) == len(wanted):
                reply(_response(rows))

        for key, data in wanted:
            self._take(broker, key, data, lambda error, base, key=key: done(key, error, base))

    def _row(self, broker: Broker, key: Key, error: int, base: int, hints: bool) -> Any:
        made = Row(index=key[1], error_code=error, base_offset=base)
        is_moved = error == ErrorCode.NOT_LEADER_OR_FOLLOWER
        if is_moved and hints and key in broker.views and self.world.random.random() < 0.3:
            view = broker.views[key]
            made.current_leader = ProduceResponse.LeaderIdAndEpoch(
                leader_id=view.leader, leader_epoch=view.epoch
            )
        return made

    def _take(self, broker: Broker, key: Key, data: bytes, done: Done) -> None:
        view, chance = broker.views.get(key), self.world.random
        if view is None:
            done(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
            return
        log: Any = view.log
        is_wrong = broker.errors > 0
        broker.errors -= is_wrong
        if view.leader != broker.number:
            done(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
            return
        if is_wrong and chance.random() < 0.6:
            done(chance.choice(NOT_APPENDED), -1)
            return
        batch = RecordBatch(data)
        header = batch.header
        made = Produced(
            0,
            tuple(int(record.value or b"-1") for record in batch.records()),
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            bool(header.attributes & 0x10),
        )
        error = self._refusal(made) or self._not_in_transaction(key, made)
        before = None
        if not error:
            error, before = log.check(made)
        if error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            self.gaps[key] = log is self.leads[key].log
        if error:
            done(error, -1)
            return
        kept = before or log.append(made)
        self.appends += before is None
        if is_wrong:
            done(chance.choice(APPENDED), -1)
            return
        self.world.after(
            chance.choice((0.001, 0.01, 0.1)),
            lambda: self._replicated(broker, key, log, kept, done),
        )

    def _refusal(self, batch: Produced) -> int:
        if len(batch.uids) >= self.too_large:
            return ErrorCode.MESSAGE_TOO_LARGE
        if self.poisoned.intersection(batch.uids):
            return ErrorCode.INVALID_RECORD
        return 0

    def _not_in_transaction(self, key: Key, batch: Produced) -> int:
        """KIP-890: the leader asks the coordinator, or else a batch that is late, when its
        transaction has ended and its producer has another epoch, would belong to the next one.
        """
        if not batch.transactional:
            return 0
        known = next(one for one in self.transactions.values() if one.producer == batch.producer)
        if batch.epoch != known.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        return 0 if key in known.keys else ErrorCode.INVALID_TXN_STATE

    def _replicated(
        self, broker: Broker, key: Key, log: ProducedLog, batch: Produced, done: Done
    ) -> None:
        lead: Any = self.leads[key]
        if broker.is_dead or broker.silent_until == FOREVER:
            return
        if broker.silent_until > self.world.now:
            left = broker.silent_until - self.world.now + 0.001
            self.world.after(left, lambda: self._replicated(broker, key, log, batch, done))
        elif lead.log is log:
            log.acknowledged = max(log.acknowledged, batch.end)
            done(0, batch.base)
        else:
            done(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)

    # -- producer ids and transactions

    def handle(self, broker: Broker, request: Any, reply: Reply) -> None:
        """See ``Brokers``."""
        name = type(request).__name__.removesuffix("Request")
        handler = {
            "InitProducerId": self._init_producer,
            "AddPartitionsToTxn": self._add_partitions,
            "EndTxn": self._end_transaction,
        }.get(name)
        if handler is None:
            super().handle(broker, request, reply)
            return
        is_wrong = broker.errors > 0
        broker.errors -= is_wrong
        error = 0
        if name != "InitProducerId" or request.transactional_id is not None:
            if broker.number != self.coordinator:
                error = ErrorCode.NOT_COORDINATOR
        if not error and is_wrong:
            error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        reply(handler(request, error))

    def _init_producer(self, request: Any, error: int) -> Any:
        if error:
            return InitProducerIdResponse(error_code=error)
        name = request.transactional_id
        if name is None:
            return InitProducerIdResponse(producer_id=next(self._producers), producer_epoch=0)
        known = self.transactions.get(name)
        if known is None:
            known = self.transactions[name] = Transaction(next(self._producers))
        else:
            known.epoch += 1
            if known.is_open:
                self._end(known, False)
        known.last = None
        return InitProducerIdResponse(producer_id=known.producer, producer_epoch=known.epoch)

    def _known(self, name: str, producer: int, epoch: int) -> tuple[Transaction | None, int]:
        known = self.transactions.get(name)
        if known is None or known.producer != producer:
            return None, ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if epoch != known.epoch:
            return None, ErrorCode.PRODUCER_FENCED
        return known, 0

    def _add_partitions(self, request: Any, error: int) -> Any:
        known, fenced = self._known(
            request.v3_and_below_transactional_id,
            request.v3_and_below_producer_id,
            request.v3_and_below_producer_epoch,
        )
        error = error or fenced
        topics = []
        for topic in request.v3_and_below_topics:
            rows = []
            for index in topic.partitions:
                if known is not None and not error:
                    known.is_open = True
                    known.keys[topic.name, index] = None
                rows.append(
                    AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult(
                        partition_index=index, partition_error_code=error
                    )
                )
            topics.append(
                AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(
                    name=topic.name, results_by_partition=rows
                )
            )
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics)

    def _end_transaction(self, request: Any, error: int) -> Any:
        known, fenced = self._known(
            request.transactional_id, request.producer_id, request.producer_epoch
        )
        error = error or fenced
        if not error and known is not None:
            if known.is_open:
                self._end(known, request.committed)
            elif known.last != request.committed:
                error = ErrorCode.INVALID_TXN_STATE
        return EndTxnResponse(error_code=error)

    def _end(self, known: Transaction, commits: bool) -> None:
        for key in known.keys:
            log: Any = self.leads[key].log
            log.mark(known.producer, known.epoch, commits)
        known.keys.clear()
        known.is_open, known.last = False, commits


def _response(rows: dict[Key, Any]) -> Any:
    return ProduceResponse(
        responses=[
            ProduceResponse.TopicProduceResponse(
                name=name, partition_responses=[row for key, row in rows.items() if key[0] == name]
            )
            for name in dict.fromkeys(key[0] for key in rows)
        ]
    )


class ProduceLink:
    """The broker's end of a connection: requests are handled and answered in their order. Those
    that a client has written before it closes its end are handled, perhaps later than it thinks.
    """

    def __init__(
        self, brokers: ProduceBrokers, broker: Broker, on_change: Callable[[], None]
    ) -> None:
        self._brokers, self._broker, self._on_change = brokers, broker, on_change
        self.ours, self._theirs = socket.socketpair()
        self._theirs.setblocking(False)
        self._data = b""
        self._frames: deque[bytes] = deque()
        self._answers: deque[list[bytes]] = deque()  # each with a response, once there is one
        self._is_reading = self._is_writing = False
        self.is_closed = False
        self._is_left = False  # it was the client who closed it
        broker.waiting[id(self)] = self.close

    def close(self) -> None:
        """The connection is cut."""
        self._is_left = False
        self._broker.waiting.pop(id(self), None)
        if not self.is_closed:
            self.is_closed = True
            self._theirs.close()
            self._on_change()

    def _leave(self) -> None:
        self.close()
        self._is_left = True
        self._broker.waiting[id(self)] = self.close  # until then the rest is on its way

    def drain(self) -> None:
        """Take what the client has written."""
        while not self.is_closed:
            try:
                found = self._theirs.recv(1 << 20)
            except BlockingIOError:
                break
            except ConnectionError:
                found = b""
            if not found:
                self._leave()
            self._data += found
        while len(self._data) >= 4 and len(self._data) - 4 >= _SIZE.unpack_from(self._data)[0]:
            end = 4 + _SIZE.unpack_from(self._data)[0]
            self._frames.append(self._data[4:end])
            self._data = self._data[end:]
        self._read_next()

    def _wait(self, then: Callable[[], None]) -> None:
        world, broker = self._brokers.world, self._broker
        wait = self._brokers.delay(broker)
        if broker.silent_until == FOREVER:
            return
        world.after(max(wait, broker.silent_until - world.now), then)

    def _read_next(self) -> None:
        if self._frames and not self._is_reading:
            self._is_reading = True
            self._wait(self._arrived)

    def _arrived(self) -> None:
        self._is_reading = False
        if self.is_closed and not self._is_left:
            return
        if self._broker.silent_until > self._brokers.world.now:
            self._read_next()
        elif self._brokers.is_lost():
            self.close()
        else:
            self._handle(self._frames.popleft())
            self._read_next()

    def _handle(self, frame: bytes) -> None:
        header = decode_request_header(frame)
        version = header.api_version
        request = codec.decode_exact(ProduceRequest, version, frame, header.end_offset)
        slot: list[bytes] = []
        self._answers.append(slot)
        self._brokers.requests += 1

        def reply(response: Any) -> None:
            body = encode_response_header(header.correlation_id, ApiKey.PRODUCE, version)
            body += codec.encode(response, version)
            slot.append(_SIZE.pack(len(body)) + body)
            self._write_next()

        self._brokers.produce(self._broker, request, reply, version >= _FIRST_HINTS)

    def _write_next(self) -> None:
        if self._answers and self._answers[0] and not self._is_writing:
            self._is_writing = True
            self._wait(self._written)

    def _written(self) -> None:
        self._is_writing = False
        if self.is_closed:
            return
        if self._broker.silent_until > self._brokers.world.now:
            self._write_next()
        elif self._brokers.is_lost():
            self.close()
        else:
            try:
                self._theirs.send(self._answers.popleft()[0])
            except ConnectionError:
                self.close()  # the client has left
                return
            self._on_change()
            self._write_next()
