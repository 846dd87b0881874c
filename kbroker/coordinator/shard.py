"""Runs one coordinator machine on one partition of an internal topic.

The records of an operation become one batch, which is appended to the log at once. The responses
wait in the log's queue until that is committed (``_ext.committed_queue``). The life of a shard:
loading, active, closed. ``docs/decisions/0005-coordinators.md`` says why there is no undo.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Coroutine
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Protocol

from kbroker._ext.log.committed_queue import CallSink
from kbroker._ext.record.plain_batch import build_batch
from kbroker.cluster.changes import ImageChanges
from kbroker.coordinator.loader import Loader
from kbroker.coordinator.machine import NO_PRODUCER, Call, CoordinatorOperation, Machine
from kbroker.coordinator.partitioner import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from kbroker.coordinator.timers import Timers
from kbroker.errors import ErrorCode, ShortageError, StorageError, WireError
from kbroker.ipc.pending import Pending, pass_on, run
from kbroker.metrics.catalog import COORDINATOR_LOAD_TIME, COORDINATOR_LOADS
from kbroker.record.builder import BatchBuilder
from kbroker.record.compression import NONE
from kbroker.types import Offset, with_offsets

if TYPE_CHECKING:
    from kbroker._ext.coordinator.commit_path import ShardCommits
    from kbroker.clock import Clock
    from kbroker.cluster.image import ClusterImage
    from kbroker.config.loader import BrokerConfig
    from kbroker.ipc.process_table import Address
    from kbroker.ipc.rpc import Rpc
    from kbroker.metrics.catalog import MetricRow
    from kbroker.security.access import Access
    from kbroker.security.principal import KafkaPrincipal
    from kbroker.storage.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)

LOADING, ACTIVE, CLOSED = "loading", "active", "closed"
# A load yields to the rest of its process this often.
LOAD_STEP_MS = 10
# The delay before a shard that could not write is reloaded.
RELOAD_DELAY_MS = 1_000

# The delay before a timer's function runs again that the log has refused records.
REFUSED_TIMER_MS = 500
# How often it is checked whether what was committed with too few replicas in sync is safe by now.
CONFIRM_MS = 500
HELD_TIMER = "held by the shard"

# How long records may wait for the replicas before clients get a retriable error.
COMMIT_TIMEOUTS = {
    OFFSETS_TOPIC: "offsets.commit.timeout.ms",
    TRANSACTIONS_TOPIC: "request.timeout.ms",
}
NEVER_MS = 1 << 62

# The error for clients when the log rejects a batch, as in Kafka's coordinators.
APPEND_ERRORS = {
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


class Refused(WireError):
    """The log takes no records, as too few replicas are in sync."""

    def __init__(self) -> None:
        text = "fewer replicas are in sync than min.insync.replicas"
        super().__init__(ErrorCode.COORDINATOR_NOT_AVAILABLE, text)


# A load that waits until everything it has read is committed, however long that takes.
LOADED = CallSink(
    lambda pending: pending.resolve(), lambda pending, error: pending.resolve(error=error)
)


class ShardProcess(Protocol):
    """What a shard needs from its io worker."""

    rpc: Rpc
    image: ClusterImage

    @property
    def config(self) -> BrokerConfig: ...

    @property
    def clock(self) -> Clock: ...

    def appended(self, log: PartitionLog, records: int, size: int) -> None:
        """Something was appended: sync and publish at the end of the turn. size: in bytes."""

    def storage_failed(self, slot: int) -> None:
        """A write failed: the log directory goes offline, and every shard in it is closed."""

    def verify_partition(
        self,
        topic: str,
        partition: int,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        add: bool,
    ) -> Pending[Any]:
        """Ask a transaction coordinator; resolves to an error code."""

    def timer_set(self, deadline_ms: int) -> None:
        """A timer was set for this time, when ``run_timers`` has something to do."""

    def io_worker(self, slot: int) -> Address:
        """The process that owns a slot."""

    def access(self, principal: KafkaPrincipal, host: str) -> Access:
        """What a client may do."""

    def count(self, metric: MetricRow, amount: int) -> None:
        """Add to a counter."""


class Shard:
    """One partition's coordinator. Implements ``machine.Host`` for its machine."""

    def __init__(
        self,
        process: ShardProcess,
        log: PartitionLog,
        make_machine: Callable[[Shard], Machine],
        codec: int,
        load_bytes: int,
    ) -> None:
        """codec: compression of the batches, ``record.compression``'s number. load_bytes: read
        at a time while loading.
        """
        self.topic = log.topic
        self.partition = log.partition
        self.slot = log.slot
        self.rpc = process.rpc
        self.image = process.image
        self.state = LOADING
        self.timers = Timers()
        self._process = process
        self.machine = make_machine(self)
        self._log = log
        self._codec = codec
        self._load_bytes = load_bytes
        self._make_machine = make_machine
        # Operations wait there until the records that they have written or seen are committed.
        self._committed = log.appender.committed
        self._sink = CallSink(
            finish, self._fail, self._expire, lambda: self.wait_max_ms, self._hold
        )
        # Committed while too few replicas were in sync: their consequences wait until enough are.
        self._held: list[CoordinatorOperation] = []
        self._is_refusing = False
        # Operations requested while another one runs; each is complete before the next one starts.
        self._queue: deque[tuple[Pending[Any], Callable[..., Any], tuple[Any, ...]]] = deque()
        self._is_running = False
        # Offset commits on the fast path; their responses wait there.
        self.commits: ShardCommits | None = None
        self.read: Pending[None] = Pending()
        self._is_read = False  # all of the log; while it is loaded, that may not be committed yet
        self._changed_at_load = ImageChanges()  # what images have changed while this was loading

    # -- Host ------------------------------------------------------------------------------------

    @property
    def config(self) -> BrokerConfig:
        return self._process.config

    @property
    def leader_epoch(self) -> int:
        return self._log.appender.leader_epoch

    def now_ms(self) -> int:
        return self._process.clock.monotonic_ms()

    def wall_ms(self) -> int:
        return self._process.clock.now_ms()

    def has_transaction(self, producer_id: int, epoch: int) -> bool:
        entry = self._log.appender.producers.entries.get(producer_id)
        return (
            entry is not None
            and entry.producer_epoch == epoch
            and entry.current_txn_first_offset >= 0
        )

    def verify(
        self, transactional_id: str, producer_id: int, epoch: int, add: bool
    ) -> Pending[Any]:
        return self._process.verify_partition(
            self.topic, self.partition, transactional_id, producer_id, epoch, add
        )

    def io_worker(self, slot: int) -> Address:
        return self._process.io_worker(slot)

    def access(self, principal: KafkaPrincipal, host: str) -> Access:
        return self._process.access(principal, host)

    def count(self, metric: MetricRow, amount: int = 1) -> None:
        self._process.count(metric, amount)

    def execute(self, function: Callable[..., Any], *args: Any) -> Pending[Any]:
        outcome: Pending[Any] = Pending()
        error = self.rejection()
        if error is not None:
            outcome.resolve(error=error)
        else:
            self._run(outcome, function, args)
        return outcome

    def set_timer(self, name: Any, delay_ms: int, function: Callable[..., Any], *args: Any) -> None:
        deadline_ms = self.now_ms() + delay_ms
        self.timers.set(name, deadline_ms, function, *args)
        self._process.timer_set(deadline_ms)

    def cancel_timer(self, name: Any) -> None:
        self.timers.cancel(name)

    def start(self, task: Coroutine[Pending[Any], None, Any]) -> None:
        run(task).then(self._log_failure)

    def _log_failure(self, outcome: Pending[Any]) -> None:
        if isinstance(outcome.error, WireError):
            logger.info("%s: giving up: %s", self._log.name, outcome.error)
        elif outcome.error is not None:
            logger.error("%s: a task failed", self._log.name, exc_info=outcome.error)

    # -- life ------------------------------------------------------------------------------------

    def rejection(self) -> WireError | None:
        """The error if the shard cannot serve requests now, else None."""
        if self.state == ACTIVE:
            return None
        if self.state == LOADING:
            return WireError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return WireError(ErrorCode.NOT_COORDINATOR)

    async def load(self, delay_ms: int = 0) -> None:
        """Replay the log, then serve once all of it is committed. Raises OSError, WireError.

        ``read`` is done when the log is replayed; the commit may take as long as a replica is away.
        """
        read = self.read = Pending()
        machine = self.machine
        if delay_ms:
            await self.rpc.sleep(delay_ms)
        try:
            is_read = await self._replay(machine)
        finally:
            read.resolve()
        if not is_read or not await self._is_committed(machine):
            return
        self.state = ACTIVE
        self._run(Pending(), lambda op: machine.loaded(op), ())
        changes, self._changed_at_load = self._changed_at_load, ImageChanges()
        if changes.topics:
            self.on_image(changes)

    async def _replay(self, machine: Machine) -> bool:
        """Replay the log. False if it failed, or the shard was closed or reloaded meanwhile."""
        if self.machine is not machine or self.state != LOADING:
            return False
        self._is_read = False
        started_ns, step_ms = monotonic_ns(), self.now_ms()
        loader = Loader(machine, self._log, self._load_bytes)
        for _ in loader.load():
            if self.now_ms() - step_ms >= LOAD_STEP_MS:
                await self.rpc.sleep(0)
                if self.machine is not machine or self.state != LOADING:
                    return False
                step_ms = self.now_ms()
        self._is_read = True
        took_us = (monotonic_ns() - started_ns) // 1000
        self.count(COORDINATOR_LOADS)
        self.count(COORDINATOR_LOAD_TIME, took_us)
        level = logging.INFO if loader.records else logging.DEBUG
        took_ms = took_us // 1000
        logger.log(level, "%s: loaded %d records in %d ms", self._log.name, loader.records, took_ms)
        return True

    async def _is_committed(self, machine: Machine) -> bool:
        """Wait until all that was loaded is committed: before that, another leader may not have it.
        Whether this load is still wanted then. WireError if the log will not commit it.
        """
        if self._log.high_watermark < self._log.log_end_offset:
            committed: Pending[None] = Pending()
            self._committed.wait(self._log.log_end_offset, LOADED, committed)
            try:
                await committed
            except WireError:
                if self.state != CLOSED:
                    raise
        return self.machine is machine and self.state == LOADING

    def close(self, error: WireError | None = None) -> None:
        """Stop serving; pending requests get the error."""
        error = error or WireError(ErrorCode.NOT_COORDINATOR)
        self.state = CLOSED
        self._drop(error)

    def _drop(self, error: WireError) -> None:
        self._committed.fail(error, self._sink)
        if self.commits is not None:
            self._committed.fail(error, self.commits)
        self.machine.close(error)
        self.timers = Timers()
        self._held.clear()

    def _reload(self, error: WireError, answer: WireError | None = None) -> None:
        """Soft state has changed but its records were not written: reload from the log.

        told: what those hear who wait for something else.
        """
        if self.state == CLOSED:
            return  # the log directory went offline with the write
        logger.error("%s: cannot continue (%s); reloading", self._log.name, error)
        self.state = LOADING
        self._drop(answer or error)
        self.machine = self._make_machine(self)
        run(self.load(RELOAD_DELAY_MS)).then(self.on_loaded)

    def on_loaded(self, outcome: Pending[Any]) -> None:
        """Take the result of ``load``; a partition that cannot be read has no coordinator."""
        if isinstance(outcome.error, ShortageError):
            self._reload(WireError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, str(outcome.error)))
        elif outcome.error is not None:
            logger.error("%s: cannot be loaded: %s", self._log.name, outcome.error)
            self.close()

    # -- operations ------------------------------------------------------------------------------

    def handle(self, call: Call) -> Pending[Any]:
        """Serve a request; resolves to the response, or to a WireError."""
        error = self.rejection()
        if error is None:
            handler = self.machine.handlers.get(call.api_key)
            if handler is not None:
                outcome: Pending[Any] = Pending()
                self._run(outcome, handler, (call,))
                return outcome
            task = self.machine.tasks.get(call.api_key)
            if task is not None:
                return run(task(call))
            error = WireError(ErrorCode.UNSUPPORTED_VERSION)
        rejected: Pending[Any] = Pending()
        rejected.resolve(error=error)
        return rejected

    def on_image(self, changes: ImageChanges) -> None:
        """Notify the machine, after the load if need be, as a topic may be deleted during it."""
        if self.state == ACTIVE:
            self._run(Pending(), self.machine.on_image, (changes,))
        elif self.state == LOADING:
            self._changed_at_load = self._changed_at_load.then(changes)

    def on_marker(self, offset: Offset, producer_id: int, epoch: int, commit: bool) -> None:
        """A marker was appended to this partition. While the log is read, the loader finds it."""
        if self.state == ACTIVE or (self.state == LOADING and self._is_read):
            self.machine.replay_marker(offset, producer_id, epoch, commit)

    @property
    def next_deadline_ms(self) -> int:
        """When ``run_timers`` has something to do."""
        return self.timers.next_deadline_ms() or NEVER_MS

    def run_timers(self) -> None:
        """Run the timers that are due."""
        for name, function, args in self.timers.due(self.now_ms()):
            if self.state != ACTIVE:
                continue
            outcome: Pending[Any] = Pending()
            self._run(outcome, function, args)
            if isinstance(outcome.error, Refused) and name not in self.timers:
                self.set_timer(name, REFUSED_TIMER_MS, function, *args)

    def _run(
        self, outcome: Pending[Any], function: Callable[..., Any], args: tuple[Any, ...]
    ) -> None:
        self._queue.append((outcome, function, args))
        if self._is_running:
            return
        self._is_running = True
        try:
            while self._queue:
                self._operate(*self._queue.popleft())
        finally:
            self._is_running = False

    def _operate(
        self, outcome: Pending[Any], function: Callable[..., Any], args: tuple[Any, ...]
    ) -> None:
        rejected = self.rejection()  # a shard that was dropped by the operation before
        if rejected is not None:
            outcome.resolve(error=rejected)
            return
        op = CoordinatorOperation(self._refusal())
        try:
            result = function(op, *args)
        except WireError as error:
            if not op.records and not op.touched:
                outcome.resolve(error=error)
                return
            self._broken(op, outcome, error)
            return
        except Exception as error:
            self._broken(op, outcome, error)
            return
        if isinstance(result, Pending):
            pass_on(result, outcome)
        else:
            op.responses.append((outcome, result))
        try:
            failure = self._append(op) if op.records else None
        except Exception as error:  # names of clients are in records: one may not fit
            logger.error("%s: cannot write a record", self._log.name, exc_info=error)
            failure = WireError(ErrorCode.UNKNOWN_SERVER_ERROR)
        if failure is None:
            self._settle(op)
            return
        fail(op, failure)
        outcome.resolve(error=failure)
        if op.touched:
            # The other clients are not at fault and should retry.
            self._reload(failure, WireError(ErrorCode.COORDINATOR_NOT_AVAILABLE))

    def _broken(self, op: CoordinatorOperation, outcome: Pending[Any], error: Exception) -> None:
        """An operation raised an exception: its changes of soft state cannot be trusted."""
        logger.error("%s: an operation failed", self._log.name, exc_info=error)
        failure = WireError(ErrorCode.UNKNOWN_SERVER_ERROR)
        outcome.resolve(error=failure)
        if op.touched:
            self._reload(WireError(ErrorCode.COORDINATOR_NOT_AVAILABLE))

    def _refusal(self) -> WireError | None:
        """Why the log takes no records now: what it has is not safe with so few replicas."""
        if not self._committed.is_under_min_isr:
            if self._is_refusing:
                self._is_refusing = False
                logger.info("%s: enough replicas are in sync again; serving all requests",
                            self._log.name)  # fmt: skip
            return None
        if not self._is_refusing:
            self._is_refusing = True
            logger.warning(
                "%s: fewer replicas are in sync than min.insync.replicas; requests that write are "
                "rejected with COORDINATOR_NOT_AVAILABLE until enough are",
                self._log.name,
            )
        return Refused()

    def _append(self, op: CoordinatorOperation) -> WireError | None:
        """Write the records and replay them; the error if they could not be written."""
        if op.refusal is not None:
            return op.refusal
        now_ms = self.wall_ms()
        producer_id, epoch = op.producer
        encode = self.machine.records.encode
        records = [record if type(record[0]) is bytes else encode(*record) for record in op.records]
        if self._codec == NONE:
            batch = build_batch(records, now_ms, producer_id, epoch)
        else:
            builder = BatchBuilder(
                self._codec,
                producer_id=producer_id,
                producer_epoch=epoch,
                transactional=op.producer != NO_PRODUCER,
            )
            for key, value in records:
                builder.append(value, key, now_ms)
            batch = builder.build()
        try:
            code, base_offset, *_ = self._log.appender.append_batch(batch, now_ms)
        except StorageError:
            self._process.storage_failed(self.slot)
            return WireError(ErrorCode.NOT_COORDINATOR)
        if code:
            text = self._log.appender.error_text
            logger.error("%s: cannot write %d records: %s", self._log.name, len(op.records), text)
            error = ErrorCode(code)
            return WireError(APPEND_ERRORS.get(error, error), text or "")
        self._process.appended(self._log, len(records), len(batch))
        replay = self.machine.replay
        try:
            for offset, (key, value) in with_offsets(base_offset, op.records):
                replay(offset, producer_id, key, value)
        except Exception as error:
            logger.error("%s: a record could not be replayed", self._log.name, exc_info=error)
            op.touch()  # what is written is loaded again
            return WireError(ErrorCode.UNKNOWN_SERVER_ERROR)
        return None

    def replay_failed(self, error: Exception) -> None:
        """The records of a commit on the fast path could not be replayed."""
        logger.error("%s: a record could not be replayed", self._log.name, exc_info=error)
        self._reload(WireError(ErrorCode.UNKNOWN_SERVER_ERROR))

    def _settle(self, op: CoordinatorOperation) -> None:
        """Respond once everything that the operation has written or seen is committed."""
        if not op.responses and not op.callbacks:
            return
        end = self._log.log_end_offset
        if end <= self._committed.offset:
            finish(op)
        else:
            self._committed.wait(end, self._sink, op, self.now_ms())

    # -- records that are not committed ----------------------------------------------------------

    @property
    def wait_max_ms(self) -> int:
        """The longest time that records may wait for replicas."""
        limit_ms: int = self.config[COMMIT_TIMEOUTS[self.topic]]
        return limit_ms

    def failure(self, error: WireError) -> WireError:
        """The error for a client when the log will not commit its records."""
        return WireError(APPEND_ERRORS.get(error.code, error.code), error.message)

    def expiry_error(self) -> WireError:
        """The error for a client whose records were not committed in time."""
        text = f"no commit within {self.wait_max_ms} ms"
        return WireError(ErrorCode.COORDINATOR_NOT_AVAILABLE, text)

    def _fail(self, op: CoordinatorOperation, error: WireError) -> None:
        fail(op, self.failure(error))

    def _hold(self, op: CoordinatorOperation) -> None:
        """The records are committed, but fewer replicas have them than min.insync.replicas."""
        fail(op, self.failure(WireError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)))
        op.responses.clear()
        if op.callbacks:
            self._held.append(op)
            self.set_timer(HELD_TIMER, CONFIRM_MS, self._confirm)

    def _confirm(self, _: CoordinatorOperation) -> None:
        """Let the consequences follow of what enough replicas have by now: all that are in sync."""
        if self._committed.is_maximal_under_min_isr:
            self.set_timer(HELD_TIMER, CONFIRM_MS, self._confirm)
            return
        held, self._held = self._held, []
        for op in held:
            finish(op)

    def _expire(self, op: CoordinatorOperation) -> None:
        """Fail operations that have waited too long. The records stay, and if they are committed
        after all, their consequences still follow.
        """
        fail(op, self.expiry_error())
        op.responses.clear()


def finish(op: CoordinatorOperation) -> None:
    """The records are committed: send the responses and call back."""
    for pending, response in op.responses:
        if isinstance(response, WireError):
            pending.resolve(error=response)
        else:
            pending.resolve(response)
    for callback in op.callbacks:
        callback()


def fail(op: CoordinatorOperation, error: WireError) -> None:
    """The records will not be committed: every response becomes the error."""
    for pending, _ in op.responses:
        pending.resolve(error=error)
