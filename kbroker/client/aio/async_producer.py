"""``AsyncKafkaProducer``: the producer for programs of asyncio."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from kbroker._ext.client.forwarder import Forwarder
from kbroker._ext.client.record_futures import RecordFuture, RecordFutures
from kbroker.client.aio.futures import retrieved
from kbroker.client.batches.offsets import GroupMetadata
from kbroker.client.batches.record_arrays import Fields, Parts, slices_of, timestamps_of
from kbroker.client.errors import BufferExhausted, ClientClosed, ClientError
from kbroker.client.producer.identity import Offsets
from kbroker.client.producer.kafka_producer import KafkaProducer
from kbroker.client.producer.parts import refused
from kbroker.client.producer.records import Headers, ProducerRecord, RecordMetadata

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

Result = TypeVar("Result")
_Waiting = list[tuple["asyncio.Future[RecordMetadata]", RecordFuture]]

# BOUND: calls that wait for brokers at the same time; others wait for their turn.
_THREADS = 8
# BOUND: of a list, what is taken before other tasks have a turn: records and bytes.
_RECORDS_AT_ONCE = 2048
_BYTES_AT_ONCE = 1 << 20
# BOUND: bytes of a record that are neither key nor value nor headers, and of a header's lengths.
_RECORD_OVERHEAD = 40
_HEADER_OVERHEAD = 10


class SentRecords:
    """Records of ``AsyncKafkaProducer.send_many``, in their order. Await ``result`` or
    ``exceptions``, in the event loop of the producer.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._parts: list[RecordFutures] = []
        self._untaken = 0  # at the end of the list, because of the error
        self._error: Exception | None = None

    def add(self, part: RecordFutures) -> None:
        """The next ones."""
        self._parts.append(part)

    def refuse(self, count: int, error: Exception) -> None:
        """The last ones have failed."""
        self._untaken, self._error = count, error

    def __len__(self) -> int:
        return sum(len(part) for part in self._parts) + self._untaken

    def done(self) -> bool:
        """Whether every record was acknowledged or has failed."""
        return all(part.done() for part in self._parts)

    async def _ended(self) -> None:
        for part in self._parts:
            # Again, since batches that are split meanwhile have other futures afterwards.
            while not part.done():
                for future in part.of_batches():
                    ended = asyncio.Event()
                    future.add_done_callback(partial(_set, self._loop, ended))
                    await ended.wait()

    async def exceptions(self) -> dict[int, Exception]:
        """Why records have failed, by their places in the list."""
        await self._ended()
        errors: dict[int, Exception] = {}
        at = 0
        for part in self._parts:
            errors |= {at + place: error for place, error in part.exceptions(0).items()}
            at += len(part)
        if self._error is not None:
            errors |= dict.fromkeys(range(at, at + self._untaken), self._error)
        return errors

    async def result(self) -> list[tuple[str, int, int, int]]:
        """Where the records are: (topic, partition, offset of the first, count) for each run of
        them. Raises why the first one has failed that has.
        """
        failed = await self.exceptions()
        if failed:
            raise failed[min(failed)]
        return [run for part in self._parts for run in part.result(0)]


def _set(loop: asyncio.AbstractEventLoop, event: asyncio.Event, _: RecordFuture) -> None:
    with suppress(RuntimeError):  # the loop was closed: nobody waits
        loop.call_soon_threadsafe(event.set)


class _Core(KafkaProducer):
    """A producer whose ``append`` does not wait. Only the event loop's thread sends, so the room
    that it has seen is there.
    """

    _waits = False

    def append(self, record: ProducerRecord) -> RecordFuture | None:
        """The future of a record, None if it needs more than a place in a batch."""
        if not self._is_plain:
            return None
        topic, value, key, headers, partition, timestamp_ms = record
        try:
            return self._append(topic, key, value, headers, partition, timestamp_ms)
        except BufferExhausted:
            return None
        except (TypeError, ValueError, OverflowError) as error:
            return refused(error, topic)

    async def append_later(
        self, record: ProducerRecord, wait: Callable[[str | BufferExhausted], Any]
    ) -> RecordFuture:
        """The same for any record. wait: awaited with each need of ``sending``."""
        steps = self.sending(record)
        try:
            need = next(steps)
            while True:
                try:
                    await wait(need)
                except ClientError as error:
                    need = steps.throw(error)
                else:
                    need = next(steps)
        except StopIteration as end:
            made: RecordFuture = end.value
            return made

    def knows(self, topic: str) -> bool:
        """Whether the partitions of a topic are known."""
        return self._pool.partition_count(topic) > 0

    def wait_for_room(self, seconds: float) -> None:
        """Wait until memory was given back, for a moment at most; batches do not linger then."""
        Forwarder(self._pool).wait_for_room(seconds)

    def check_open(self) -> None:
        """Raises ClientClosed, TransactionState."""
        self._check_open()

    @property
    def buffer(self) -> int:
        """Bytes of records that may wait to be acknowledged."""
        return int(self._settings["buffer.memory"])

    @property
    def room(self) -> int:
        """How many more can be taken."""
        return self.buffer - self._pool.used_bytes

    @property
    def block_s(self) -> float:
        """How long a record waits for memory."""
        return float(self._block_s)

    @property
    def metadata_s(self) -> float:
        """How long a record waits for the partitions of its topic."""
        return float(self._metadata_s)


class _Queue:
    """Tasks that send to a topic, of which not all could at once."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.tasks = 0


class AsyncKafkaProducer:
    """``KafkaProducer`` (its settings, results and errors), with calls that are awaited.

        async with AsyncKafkaProducer(bootstrap_servers="localhost:9092") as producer:
            sent = await producer.send("topic", b"value", key=b"key")
            print((await sent).offset)

    ``send`` is awaited until there is a place for the record; what it returns is a future of the
    event loop that ends when the record is acknowledged. One event loop uses a producer. A call
    that is cancelled continues in the background; the next one of its kind begins after its end.
    Serializers, partitioners and interceptors run in the event loop and may not wait.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, **settings: Any) -> None:
        self._core = _Core(config, **settings)
        self._threads = ThreadPoolExecutor(_THREADS, f"{self._core.client_id}-aio")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turn = asyncio.Lock()  # of calls for transactions
        self._running: asyncio.Future[Any] | None = None  # the last call, cancelled or not
        self._undoing: asyncio.Future[Any] | None = None  # of a transaction whose block has failed
        self._queues: dict[str, _Queue] = {}  # of tasks that wait, by topic
        self._room: asyncio.Future[Any] | None = None
        # Records that have not ended, by their batches: one callback for all of a batch.
        self._sent: dict[int, _Waiting] = {}
        # Batches that have ended; the sender's thread adds to them.
        self._ended: deque[_Waiting] = deque()
        self._telling = False
        self._closed = False

    async def __aenter__(self) -> AsyncKafkaProducer:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close(None if error is None or isinstance(error, Exception) else 0.0)

    @property
    def client_id(self) -> str:
        """``client.id``, or the name that the producer has without it."""
        return self._core.client_id

    # -- records

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Send a record; the future ends with its ``RecordMetadata`` or why it was not written.

        Waits for the topic's metadata and for memory, up to ``max.block.ms``; then raises as
        ``KafkaProducer.send``. Records of a topic are sent in the order of the calls.
        """
        loop = self._of_loop()
        record = ProducerRecord(topic, value, key, headers, partition, timestamp_ms)
        future = self._core.append(record) if topic not in self._queues else None
        if future is None:
            async with self._queued(topic):
                future = await self._core.append_later(record, self._provide)
        made: asyncio.Future[RecordMetadata] = loop.create_future()
        number = future.batch_number
        waiting = self._sent.get(number)
        if waiting is None:
            waiting = self._sent[number] = [(made, future)]
            future.add_done_callback(partial(self._tell, waiting))
        else:
            waiting.append((made, future))
        return made

    async def send_and_wait(self, topic: str, *record: Any, **more: Any) -> RecordMetadata:
        """``send``, and wait until the record is acknowledged."""
        return await (await self.send(topic, *record, **more))

    async def send_many(
        self,
        topic: str,
        values: Sequence[Any] | Fields,
        keys: Sequence[Any] | Fields | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | ArrayLike | None = None,
    ) -> SentRecords:
        """Send a record for each value, in their order, with the key at the same place, as
        ``KafkaProducer.send_many``.
        """
        sent = SentRecords(self._of_loop())
        rows, names = self._core.encoded(topic, values, keys, partition)
        if not isinstance(rows, Parts):
            rows, names = list(rows), None if names is None else list(names)
        times = timestamps_of(timestamp_ms, len(rows))
        if names is not None and len(names) != len(rows):
            raise ValueError(f"{len(names)} keys for {len(rows)} values")
        pairs = None if headers is None else _pairs(headers)
        async with self._queued(topic):
            for at, after, size in _slices(rows, names, _bytes_of(pairs), self._core.buffer // 2):
                some = None if names is None else names[at:after]
                stamps = times[at:after] if hasattr(times, "__len__") else times
                row = topic, rows[at:after], some, pairs, partition, stamps
                try:
                    sent.add(await self._take_many(row, size))
                except ClientError as error:
                    if at == 0:
                        raise
                    sent.refuse(len(rows) - at, error)
                    break
                if after < len(rows):
                    await asyncio.sleep(0)
        return sent

    async def _take_many(self, row: tuple[Any, ...], size: int) -> RecordFutures:
        core = self._core
        until = time.monotonic() + core.block_s
        while True:
            while core.room < min(size, core.buffer):
                await self._wait_for_room(BufferExhausted(size, core.buffer, 0), until)
            core.check_open()
            taken = core.append_many(*row) if core.knows(row[0]) else None
            if taken is not None:
                return taken
            await self._provide(row[0])

    async def flush(self, timeout: float | None = None) -> None:
        """Return when all records that were sent before are acknowledged or have failed, and their
        futures have ended. Raises Timeout.
        """
        await self._outside(partial(self._core.flush, timeout))
        self._tell_ended()

    async def partitions_for(self, topic: str) -> set[int]:
        """As ``KafkaProducer.partitions_for``."""
        return await self._outside(partial(self._core.partitions_for, topic))

    def metrics(self) -> dict[str, float]:
        """As ``KafkaProducer.metrics``."""
        return self._core.metrics()

    def metrics_by_node(self) -> dict[int, dict[str, float]]:
        """As ``KafkaProducer.metrics_by_node``."""
        return self._core.metrics_by_node()

    def metrics_by_topic(self) -> dict[str, dict[str, float]]:
        """As ``KafkaProducer.metrics_by_topic``."""
        return self._core.metrics_by_topic()

    async def client_instance_id(self, timeout: float | None = None) -> str | None:
        """As ``KafkaProducer.client_instance_id``."""
        return await self._outside(partial(self._core.client_instance_id, timeout))

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """As ``KafkaProducer.metrics_address``."""
        return self._core.metrics_address

    async def close(self, timeout: float | None = None) -> None:
        """Send what is buffered, within ``timeout`` seconds, and end; what is left then fails.

        May be called again.
        """
        try:
            await self._outside(partial(self._core.close, timeout))
        finally:
            self._closed = True
            self._tell_ended()
            self._threads.shutdown(wait=False)  # after what is under way

    # -- waiting

    def _of_loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None:
                raise RuntimeError("an AsyncKafkaProducer belongs to one event loop")
            self._loop = loop
        return loop

    async def _outside(self, call: Callable[[], Result]) -> Result:
        """Run what may wait for a broker in another thread."""
        loop = self._of_loop()
        if self._closed:
            return call()  # which waits for nothing any more
        return await loop.run_in_executor(self._threads, call)

    @asynccontextmanager
    async def _queued(self, topic: str) -> AsyncIterator[None]:
        """One after the other, in the order in which they came."""
        queue = self._queues.setdefault(topic, _Queue())
        queue.tasks += 1
        try:
            async with queue.lock:
                yield
        finally:
            queue.tasks -= 1
            if queue.tasks == 0:
                del self._queues[topic]

    async def _provide(self, need: str | BufferExhausted) -> None:
        """Wait for what a record needs: a topic, or memory. Raises why it is not to be had."""
        if isinstance(need, str):
            await self._outside(partial(self._core.await_topic, need, self._core.metadata_s))
            return
        until = time.monotonic() + self._core.block_s
        while self._core.room < need.size:
            await self._wait_for_room(need, until)

    async def _wait_for_room(self, need: BufferExhausted, until: float) -> None:
        """Wait until memory was given back, for a moment at most. Raises BufferExhausted."""
        left = until - time.monotonic()
        if left <= 0:
            waited_ms = int(self._core.block_s * 1000)
            raise BufferExhausted(need.size, need.buffer_bytes, waited_ms)
        if self._room is None or self._room.done():
            call = partial(self._core.wait_for_room, left)
            self._room = self._of_loop().run_in_executor(self._threads, call)
        await asyncio.shield(self._room)

    # -- acknowledgements

    def _tell(self, waiting: _Waiting, _: RecordFuture) -> None:
        """In the sender's thread, or in the loop's: the first record of these has ended."""
        self._ended.append(waiting)
        if not self._telling:
            self._telling = True
            with suppress(RuntimeError):  # the loop was closed: nobody waits
                self._loop.call_soon_threadsafe(self._tell_ended)  # type: ignore[union-attr]

    def _tell_ended(self) -> None:
        # What is added from here on calls this again.
        self._telling = False
        while self._ended:
            waiting = self._ended.popleft()
            number = waiting[0][1].batch_number
            if self._sent.get(number) is waiting:
                del self._sent[number]
            for made, future in waiting:
                if not future.done():
                    # Its batch was split, and it is in another part than the first.
                    future.add_done_callback(partial(self._tell, [(made, future)]))
                elif not made.done():  # nor cancelled
                    _end(made, future)

    # -- transactions

    async def _run(self, call: Callable[[], Result], *, undo: bool = False) -> Result:
        """One call after the other, also after one that was cancelled, and after what undoes a
        transaction whose block was cancelled.
        """
        loop = self._of_loop()
        if self._undoing is not None and not undo and not self._undoing.done():
            await asyncio.wait([self._undoing])
        async with self._turn:
            if self._closed:
                raise ClientClosed("the producer is closed")
            if self._running is not None and not self._running.done():
                await asyncio.wait([self._running])
            work = self._running = loop.run_in_executor(self._threads, call)
            work.add_done_callback(retrieved)
            result: Result = await asyncio.shield(work)
            return result

    async def init_transactions(self, timeout: float | None = None) -> None:
        """As ``KafkaProducer.init_transactions``."""
        await self._run(partial(self._core.init_transactions, timeout))

    async def begin_transaction(self) -> None:
        """As ``KafkaProducer.begin_transaction``."""
        await self._run(self._core.begin_transaction)

    async def send_offsets_to_transaction(
        self, offsets: Offsets, group: str | GroupMetadata
    ) -> None:
        """As ``KafkaProducer.send_offsets_to_transaction``."""
        await self._run(partial(self._core.send_offsets_to_transaction, offsets, group))

    async def commit_transaction(self) -> None:
        """As ``KafkaProducer.commit_transaction``."""
        await self._run(self._core.commit_transaction)

    async def abort_transaction(self) -> None:
        """As ``KafkaProducer.abort_transaction``."""
        await self._run(self._core.abort_transaction)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncKafkaProducer]:
        """A transaction that is committed at the end of the ``async with`` block, and aborted if
        that raises, or is cancelled, however often: the next transaction begins after that.
        """
        begun: list[bool] = []

        def begin() -> None:
            self._core.begin_transaction()
            begun.append(True)

        def abort() -> None:
            if begun and self._core.in_transaction:
                self._core.abort_transaction()

        try:
            await self._run(begin)
            yield self
            await self.commit_transaction()
        except BaseException:
            undoing = self._undoing = asyncio.ensure_future(self._run(abort, undo=True))
            undoing.add_done_callback(retrieved)
            with suppress(ClientError):  # of a fenced producer; the block's own error is raised
                await asyncio.shield(undoing)
            raise


def _end(made: asyncio.Future[RecordMetadata], future: RecordFuture) -> None:
    error = future.exception(0)
    if error is None:
        made.set_result(future.result(0))
    else:
        made.set_exception(error)


def _pairs(headers: Headers) -> list[tuple[str, bytes | None]]:
    return list(headers.items() if isinstance(headers, Mapping) else headers)


def _bytes_of(headers: list[tuple[str, bytes | None]] | None) -> int:
    """At most, of a record without key and value."""
    return _RECORD_OVERHEAD + sum(
        # BOUND: UTF-8 has at most four bytes for a character.
        4 * len(name) + len(value or b"") + _HEADER_OVERHEAD
        for name, value in headers or ()
    )


def _slices(values: Any, keys: Any, overhead: int, most: int) -> Iterator[tuple[int, int, int]]:
    """(from, to, bytes at most) of what is taken at once. overhead: bytes of each record."""
    most = min(most, _BYTES_AT_ONCE)
    if isinstance(values, Parts):
        yield from slices_of(values, keys, overhead, most, _RECORDS_AT_ONCE)
        return
    at = size = 0
    for place, value in enumerate(values):
        one = overhead + _length(value) + (0 if keys is None else _length(keys[place]))
        if place > at and (size + one > most or place - at == _RECORDS_AT_ONCE):
            yield at, place, size
            at, size = place, 0
        size += one
    if at < len(values):
        yield at, len(values), size


def _length(field: Any) -> int:
    return memoryview(field).nbytes if isinstance(field, bytes | bytearray | memoryview) else 0
