"""The state machine of one partition of ``__transaction_state``: its transactional ids.

A transaction ends in three steps: a PREPARE record (the decision; now the client is answered), the
markers in its partitions, a COMPLETE record. After a crash it continues from the last step that was
written. Until the end its producer begins nothing new: such a request waits a moment, then gets
CONCURRENT_TRANSACTIONS.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from kbroker._ext.record.keyed_records import latest_records
from kbroker.cluster.features import FLEXIBLE_RECORDS, TRANSACTION_VERSION
from kbroker.coordinator.machine import Call, CoordinatorOperation, Handler, Host, Task
from kbroker.coordinator.partitioner import OFFSETS_TOPIC, coordinator_partition
from kbroker.coordinator.producer_ids import ProducerIds
from kbroker.coordinator.records.codec import RecordTypes, UnknownRecordError
from kbroker.coordinator.records.transaction_topic import (
    CLUSTER_RECORDS,
    RECORDS,
    TransactionLogKey,
    TransactionLogValue,
)
from kbroker.coordinator.transaction import listing, requests, rules, state
from kbroker.coordinator.transaction.ending import Endings
from kbroker.coordinator.transaction.expiry import TransactionExpiry
from kbroker.coordinator.transaction.markers import MarkerWriter
from kbroker.coordinator.transaction.state import Partition, Transaction, TransactionStatus
from kbroker.coordinator.transaction.waiting import WaitingRoom
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.pending import Pending, pass_on
from kbroker.metrics.catalog import (
    TRANSACTIONS_ABORTED,
    TRANSACTIONS_COMMITTED,
    TRANSACTIONS_OPEN,
)
from kbroker.protocol.api import ApiKey
from kbroker.protocol.codec import DecodeError
from kbroker.protocol.message import Message
from kbroker.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnResponse
from kbroker.protocol.messages.end_txn import EndTxnResponse
from kbroker.protocol.messages.init_producer_id import InitProducerIdResponse
from kbroker.types import Offset

if TYPE_CHECKING:
    from kbroker.cluster.changes import ImageChanges

logger = logging.getLogger(__name__)

# As many of the last records of an id as are needed to know the epoch before a bumped one: the
# transaction, its end decided, and complete.
RECORDS_KEPT = 3


class TransactionMachine:
    """See ``kbroker.coordinator.machine.Machine``.

    producer_ids: of the process, shared by its machines. ongoing: those of ``transactions`` that
    may run into their timeout.
    """

    def __init__(self, host: Host, producer_ids: ProducerIds, markers: MarkerWriter) -> None:
        self.host = host
        self.transactions: dict[str, Transaction] = {}
        self.ongoing: dict[str, Transaction] = {}
        self.is_closed = False
        self.is_loaded = False
        self.waiting = WaitingRoom(host)
        self.endings = Endings(self, markers)
        self.expiry = TransactionExpiry(self)
        self._producer_ids = producer_ids
        self._waits_for_id: set[Pending[int]] = set()
        self._damaged_chunk: bytes | None = None
        self.handlers: Mapping[ApiKey, Handler] = {
            ApiKey.ADD_PARTITIONS_TO_TXN: self._add_partitions_to_txn,
            ApiKey.ADD_OFFSETS_TO_TXN: self._add_offsets_to_txn,
            ApiKey.DESCRIBE_TRANSACTIONS: self._describe,
            ApiKey.LIST_TRANSACTIONS: self._list,
        }
        self.tasks: Mapping[ApiKey, Task] = {
            ApiKey.INIT_PRODUCER_ID: self._init_producer_id,
            ApiKey.END_TXN: self._end_txn,
        }

    @property
    def records(self) -> RecordTypes:
        """How records are written; they are read in all versions."""
        level = self.host.image.features.level(TRANSACTION_VERSION)
        return RECORDS if level >= FLEXIBLE_RECORDS else CLUSTER_RECORDS

    # -- records -----------------------------------------------------------------------------

    def replay(self, offset: Offset, producer_id: int, key: Message, value: Any) -> None:
        assert isinstance(key, TransactionLogKey)
        transactional_id = key.transactional_id
        txn = self.transactions.get(transactional_id)
        was_open = txn is not None and txn.state in state.OPEN
        if value is None:
            self.transactions.pop(transactional_id, None)
            self.ongoing.pop(transactional_id, None)
            is_open = False
        else:
            if txn is None:
                txn = self.transactions[transactional_id] = Transaction(transactional_id)
            began_ms = txn.start_ms
            txn.apply(value)
            self._follow(txn, is_same=txn.start_ms == began_ms)
            is_open = txn.state in state.OPEN
        if is_open != was_open:
            self.host.count(TRANSACTIONS_OPEN, 1 if is_open else -1)

    def _follow(self, txn: Transaction, *, is_same: bool) -> None:
        """Update everything that depends on the state of a transaction that a record has just
        changed.

        is_same: it began when the one before it in that place did.
        """
        if txn.state != TransactionStatus.ONGOING or txn.timeout_ms == state.NO_TIMEOUT_MS:
            self.ongoing.pop(txn.transactional_id, None)
        elif not is_same or txn.transactional_id not in self.ongoing:
            self.ongoing[txn.transactional_id] = txn
            left_ms = txn.timeout_ms
            if not self.is_loaded:
                left_ms -= max(self.host.wall_ms() - txn.start_ms, 0)
            txn.deadline_ms = self.host.now_ms() + left_ms
        if self.is_loaded and txn.state in state.COMPLETE:
            is_commit = txn.state == TransactionStatus.COMPLETE_COMMIT
            self.host.count(TRANSACTIONS_COMMITTED if is_commit else TRANSACTIONS_ABORTED)

    def replay_chunk(self, data: bytes, position: int) -> tuple[int, int, int]:
        """A record replaces earlier ones, so only the last one of each id is decoded."""
        if data is self._damaged_chunk:
            return position, 0, -1
        stop, taken, next_offset, latest = latest_records(data, position, RECORDS_KEPT)
        decode = self.records.decode
        try:
            rows = [
                (offset, *decode(key, value))
                for key, last in latest.items()
                for offset, value in last
            ]
        except (UnknownRecordError, DecodeError, ValueError):
            # The loader reports which record it is, and skips it.
            self._damaged_chunk = data
            return position, 0, -1
        for offset, key, value in rows:
            self.replay(offset, state.NO_PRODUCER_ID, key, value)
        return stop, taken, next_offset

    def replay_marker(self, offset: Offset, producer_id: int, epoch: int, commit: bool) -> None:
        """Never called: no transaction writes to this topic."""

    def loaded(self, op: CoordinatorOperation) -> None:
        self.is_loaded = True
        self._damaged_chunk = None
        op.touch()
        self.expiry.start()
        for txn in self.transactions.values():
            txn.last_epoch = state.NO_EPOCH  # COMPAT: the log does not tell who raised the epoch
            if txn.state in state.PREPARED:
                op.then(self.endings.starter(txn))

    def on_image(self, op: CoordinatorOperation, changes: ImageChanges) -> None:
        """Markers use the current image each time they are sent."""
        self.endings.on_image(changes)

    def close(self, error: Exception) -> None:
        self.is_closed = True
        open_count = sum(txn.state in state.OPEN for txn in self.transactions.values())
        self.host.count(TRANSACTIONS_OPEN, -open_count)
        self.endings.close()
        self.waiting.close(error)
        for pending in list(self._waits_for_id):
            pending.resolve(error=error)

    def append(
        self, op: CoordinatorOperation, txn: Transaction, value: TransactionLogValue | None
    ) -> None:
        """Write the next record of a transactional id; None removes it."""
        op.append(TransactionLogKey(transactional_id=txn.transactional_id), value)

    # -- InitProducerId ----------------------------------------------------------------------

    async def new_producer_id(self) -> int:
        """A new producer id. WireError if there is none now or the machine is closed."""
        pending: Pending[int] = Pending()
        self._waits_for_id.add(pending)
        pass_on(self._producer_ids.take(), pending)
        try:
            return await pending
        finally:
            self._waits_for_id.discard(pending)

    async def with_producer_id(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run ``function(op, *args, None)``; if it returns None, again with a producer id.

        Until then it must not have written anything.
        """
        new_id: int | None = None
        while True:
            if self.is_closed:
                raise WireError(ErrorCode.NOT_COORDINATOR)
            outcome = await self.host.execute(function, *args, new_id)
            if outcome is not None:
                return outcome
            new_id = await self.new_producer_id()

    async def _init_producer_id(self, call: Call) -> InitProducerIdResponse:
        code = requests.check_init(call.request, self.host.config)
        if code:
            return requests.init_failed(code, call.version)
        response: InitProducerIdResponse = await self.with_producer_id(self._init, call)
        return response

    def _init(self, op: CoordinatorOperation, call: Call, new_id: int | None) -> Any:
        """None: it takes a new producer id."""
        request = call.request
        txn = self.transactions.get(request.transactional_id)
        if txn is None:
            if new_id is None:
                return None
            txn = Transaction(request.transactional_id)
            return self._start(op, txn, request, new_id, 0)
        code = rules.judge_init(txn, request.producer_id, request.producer_epoch)
        if code == ErrorCode.CONCURRENT_TRANSACTIONS:
            rejection = requests.init_failed(code, call.version)
            return self.waiting.enter(op, txn, rejection, self._init, call, new_id)
        if code:
            log_fenced(txn, request.producer_id, request.producer_epoch, code)
            return requests.init_failed(code, call.version)
        if txn.state == TransactionStatus.ONGOING:
            if txn.is_exhausted and new_id is None:
                return None
            # COMPAT: Kafka makes the client retry, which takes librdkafka half a second.
            rejection = requests.init_failed(ErrorCode.CONCURRENT_TRANSACTIONS, call.version)
            waits = self.waiting.enter_once_written(op, txn, rejection, self._init, call, None)
            self.fence(op, txn, new_id, "another producer starts")
            return waits
        if rules.is_init_retry(txn, request.producer_id, request.producer_epoch):
            return self._start(op, txn, request, txn.producer_id, txn.epoch)
        if not txn.is_exhausted:
            return self._start(op, txn, request, txn.producer_id, txn.epoch + 1)
        if new_id is None:
            return None
        return self._start(op, txn, request, new_id, 0)

    def _start(
        self, op: CoordinatorOperation, txn: Transaction, request: Any, producer_id: int, epoch: int
    ) -> InitProducerIdResponse:
        """A producer starts with this id and epoch, which fences its predecessors."""
        now_ms = self.host.wall_ms()
        timeout_ms = requests.timeout_of(request)
        self.append(op, txn, state.initialized(txn, producer_id, epoch, timeout_ms, now_ms))
        before = txn.producer_id, txn.epoch, txn.last_epoch
        is_same = before[:2] == (producer_id, epoch)
        is_recovery = request.producer_id != state.NO_PRODUCER_ID

        def written() -> None:
            new = self.transactions.get(txn.transactional_id)
            if new is not None and (new.producer_id, new.epoch) == (producer_id, epoch):
                # A member that reports its partitions asks again if this response is lost.
                new.last_epoch = before[2] if is_same else before[1] if is_recovery else -1
            if before[0] == state.NO_PRODUCER_ID:
                logger.info(
                    "transactional id %s: new, producer %d", txn.transactional_id, producer_id
                )
            elif not is_same:
                logger.info("transactional id %s: producer %d starts with epoch %d and fences "
                            "producer %d with epoch %d",
                            txn.transactional_id, producer_id, epoch, *before[:2])  # fmt: skip

        op.then(written)
        return InitProducerIdResponse(producer_id=producer_id, producer_epoch=epoch)

    def fence(
        self, op: CoordinatorOperation, txn: Transaction, new_id: int | None, why: str
    ) -> bool:
        """Abort an ongoing transaction from this side, with an epoch its producer does not have.

        False: it takes a new producer id, nothing is done.
        """
        if txn.is_exhausted and new_id is None:
            return False
        op.ensure_writable()
        logger.info("transactional id %s: transaction of producer %d with epoch %d is aborted: %s",
                    txn.transactional_id, txn.producer_id, txn.epoch, why)  # fmt: skip
        self.endings.prepare(op, txn, False, state.VERSION_2, new_id)
        return True

    # -- partitions --------------------------------------------------------------------------

    def _add_partitions_to_txn(self, op: CoordinatorOperation, call: Call) -> Any:
        request, version = call.request, call.version
        if version >= 4:
            results = [self._add_batched(op, each, version) for each in request.transactions]
            return requests.partitions_added(results)
        partitions = requests.partitions_of(request.v3_and_below_topics)
        codes = self._missing(partitions)
        if codes:
            return requests.partitions_added_v3(codes)
        code = self._add(
            op,
            request.v3_and_below_transactional_id,
            request.v3_and_below_producer_id,
            request.v3_and_below_producer_epoch,
            partitions,
            state.VERSION_1,
        )
        code = rules.for_version(code, "add_partitions", version)
        response = requests.partitions_added_v3(dict.fromkeys(partitions, code))
        if code != ErrorCode.CONCURRENT_TRANSACTIONS:
            return response
        txn = self.transactions[request.v3_and_below_transactional_id]
        return self.waiting.enter(op, txn, response, self._add_partitions_to_txn, call)

    def _add_batched(self, op: CoordinatorOperation, each: Any, version: int) -> Any:
        """Add one transaction of another broker's request; that broker retries."""
        partitions = requests.partitions_of(each.topics)
        codes = self._missing(partitions)
        who = each.transactional_id, each.producer_id, each.producer_epoch
        if not codes and each.verify_only:
            codes = {p: self._verify(*who, p) for p in partitions}
            if version < 5:
                old = {ErrorCode.TRANSACTION_ABORTABLE: ErrorCode.INVALID_TXN_STATE}
                codes = {p: old.get(code, code) for p, code in codes.items()}
        elif not codes:
            codes = dict.fromkeys(partitions, self._add(op, *who, partitions, state.VERSION_2))
        return requests.transaction_result(each.transactional_id, codes)

    def _add_offsets_to_txn(self, op: CoordinatorOperation, call: Call) -> Any:
        request = call.request
        topic = self.host.image.topics.get(OFFSETS_TOPIC)
        # A producer may send a request before the topic exists.
        count = len(topic.partitions) if topic else self.host.config["offsets.topic.num.partitions"]
        code = self._add(
            op,
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            [(OFFSETS_TOPIC, coordinator_partition(request.group_id, count))],
            state.VERSION_1,
        )
        code = rules.for_version(code, "add_offsets", call.version)
        response = AddOffsetsToTxnResponse(error_code=int(code))
        if code != ErrorCode.CONCURRENT_TRANSACTIONS:
            return response
        txn = self.transactions[request.transactional_id]
        return self.waiting.enter(op, txn, response, self._add_offsets_to_txn, call)

    def _missing(self, partitions: Collection[Partition]) -> dict[Partition, ErrorCode]:
        """The error codes of all partitions if some do not exist; then none is added."""
        topics = self.host.image.topics

        def exists(partition: Partition) -> bool:
            topic = topics.get(partition[0])
            return topic is not None and 0 <= partition[1] < len(topic.partitions)

        presence = {partition: exists(partition) for partition in partitions}
        if all(presence.values()):
            return {}
        codes = {True: ErrorCode.OPERATION_NOT_ATTEMPTED,
                 False: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}  # fmt: skip
        return {partition: codes[here] for partition, here in presence.items()}

    def _add(
        self,
        op: CoordinatorOperation,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Collection[Partition],
        version: int,
    ) -> ErrorCode:
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        txn = self.transactions.get(transactional_id)
        code = rules.judge_producer(txn, producer_id, epoch)
        if code or txn is None:
            log_fenced(txn, producer_id, epoch, code)
            return code
        if txn.state != TransactionStatus.ONGOING or not txn.partitions.issuperset(partitions):
            now_ms = self.host.wall_ms()
            self.append(op, txn, state.with_partitions(txn, partitions, version, now_ms))
        return ErrorCode.NONE

    def _verify(
        self, transactional_id: str, producer_id: int, epoch: int, partition: Partition
    ) -> ErrorCode:
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        txn = self.transactions.get(transactional_id)
        code = rules.judge_write(txn, producer_id, epoch, partition)
        log_fenced(txn, producer_id, epoch, code)
        return code

    def verify(
        self,
        op: CoordinatorOperation,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        topic: str,
        partition: int,
        add: bool,
    ) -> int | Pending[Any]:
        """Whether the producer may write to this partition now (KIP-890): an error code, 0 if so.

        add: it speaks the second protocol, the partition joins its transaction by this. The code
        is the coordinator's; ``txn_verification`` makes it one that the producer understands.
        """
        where = (topic, partition)
        if add:
            code = self._add(
                op, transactional_id, producer_id, producer_epoch, [where], state.VERSION_2
            )
        else:
            code = self._verify(transactional_id, producer_id, producer_epoch, where)
        if code != ErrorCode.CONCURRENT_TRANSACTIONS:
            return int(code)
        again = transactional_id, producer_id, producer_epoch, topic, partition, add
        txn = self.transactions[transactional_id]
        waits: int | Pending[Any] = self.waiting.enter(op, txn, int(code), self.verify, *again)
        return waits

    # -- EndTxn ------------------------------------------------------------------------------

    async def _end_txn(self, call: Call) -> EndTxnResponse:
        response: EndTxnResponse = await self.with_producer_id(self._end, call)
        return response

    def _end(self, op: CoordinatorOperation, call: Call, new_id: int | None) -> Any:
        """None: it takes a new producer id."""
        request = call.request
        if not request.transactional_id:
            return EndTxnResponse(error_code=int(ErrorCode.INVALID_REQUEST))
        version = state.VERSION_2 if call.version >= 5 else state.VERSION_1
        txn = self.transactions.get(request.transactional_id)
        code = rules.judge_end(
            txn, request.producer_id, request.producer_epoch, request.committed, version
        )
        if code is not None:
            log_fenced(txn, request.producer_id, request.producer_epoch, code)
            shown = rules.for_version(code, "end", call.version)
            response = EndTxnResponse(error_code=int(shown))
            if code == ErrorCode.CONCURRENT_TRANSACTIONS and txn is not None:
                return self.waiting.enter(op, txn, response, self._end, call, new_id)
            if code == ErrorCode.NONE and txn is not None and version >= state.VERSION_2:
                response.producer_id, response.producer_epoch = txn.identity
            return response
        assert txn is not None
        response = EndTxnResponse()
        if version >= state.VERSION_2:
            if txn.is_exhausted and new_id is None:
                return None
            if txn.is_exhausted and new_id is not None:
                response.producer_id, response.producer_epoch = new_id, 0
            else:
                response.producer_id, response.producer_epoch = txn.producer_id, txn.epoch + 1
        self.endings.prepare(op, txn, request.committed, version, new_id)
        return response

    # -- admin -------------------------------------------------------------------------------

    def _describe(self, op: CoordinatorOperation, call: Call) -> Any:
        return listing.describe(self.transactions, call.request)

    def _list(self, op: CoordinatorOperation, call: Call) -> Any:
        now_ms = self.host.wall_ms()
        return listing.list_matching(self.transactions.values(), call.request, now_ms)


def log_fenced(txn: Transaction | None, producer_id: int, epoch: int, code: ErrorCode) -> None:
    """Log that a producer is fenced, if ``code`` says so."""
    if code == ErrorCode.PRODUCER_FENCED and txn is not None:
        logger.info("transactional id %s: producer %d with epoch %d is fenced by producer %d with "
                    "epoch %d",
                 txn.transactional_id, producer_id, epoch, txn.producer_id, txn.epoch)  # fmt: skip
