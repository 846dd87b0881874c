"""``AsyncKafkaConsumer``: the consumer for programs of asyncio."""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from kbroker._ext.client.consumer_record import ConsumerRecord
from kbroker._ext.client.record_reader import RecordColumns
from kbroker.client.aio.futures import retrieved
from kbroker.client.batches.offsets import GroupMetadata
from kbroker.client.consumer.kafka_consumer import KafkaConsumer, OffsetAndTimestamp
from kbroker.client.consumer.membership import LISTENED
from kbroker.client.consumer.partitions import OffsetAndMetadata, TopicPartition
from kbroker.client.errors import ClientClosed

Result = TypeVar("Result")


class _Callback:
    """A callback of a rebalance, for which the consumer's thread waits until it has ended."""

    def __init__(self) -> None:
        self.has_ended = False


# That of this task. A task that a callback has started inherits it, and may outlive it.
_callback: ContextVar[_Callback | None] = ContextVar("callback", default=None)


def _in_callback() -> bool:
    callback = _callback.get()
    return callback is not None and not callback.has_ended


class _Work:
    """A call in the consumer's thread, which its caller may abandon at any time, in any thread."""

    def __init__(
        self, consumer: KafkaConsumer, call: Callable[[], Any], reads: bool, ends: bool
    ) -> None:
        self._consumer = consumer
        self._call = call
        self._reads = reads
        self._ends = ends
        self._result: Any = None
        self._lock = threading.Lock()
        self._is_running = False
        self._has_ended = False
        self._is_abandoned = False
        self._is_hurried = False

    def run(self) -> Any:
        """In the consumer's thread."""
        with self._lock:
            if self._is_abandoned:
                if not self._reads:
                    return None
                self._is_hurried = True  # else a program that is always too soon reads nothing
            if self._is_hurried:
                self._consumer.hurry()
            self._is_running = True
        try:
            self._result = self._call()
            return self._result
        finally:
            if self._end():
                self.undo()
                self._consumer.forget_wakeup()
            elif self._is_hurried:
                self._consumer.forget_wakeup()

    def _end(self) -> bool:
        with self._lock:
            self._has_ended = True
            return self._is_abandoned

    def hurry(self) -> None:
        """Another call waits: a read returns what is there."""
        with self._lock:
            if self._has_ended or self._is_hurried or not self._reads:
                return
            self._is_hurried = True
            if self._is_running:
                self._consumer.hurry()

    def abandon(self) -> bool:
        """Nobody waits for it any more: it ends soon. True: it has ended already, and ``undo`` is
        to be called in the consumer's thread.
        """
        with self._lock:
            if self._has_ended:
                return True
            self._is_abandoned = True
            if self._is_running and self._reads:
                self._consumer.hurry()
            elif self._is_running and self._ends:
                self._consumer.wakeup()
            return False

    def undo(self) -> None:
        """What it has returned has not arrived."""
        if self._reads and self._result:
            with suppress(ClientClosed):
                self._consumer.keep(self._result)


class AsyncKafkaConsumer:
    """``KafkaConsumer`` (its settings, results and errors), with calls that are awaited.

        async with AsyncKafkaConsumer(bootstrap_servers="localhost:9092", group_id="g") as consumer:
            await consumer.subscribe(["orders"])
            async for record in consumer:
                ...

    Calls are done one after the other, by a thread of its own; while a task waits for records,
    calls of other tasks come between, and ``close`` ends its wait with ClientClosed. A call that is
    cancelled ends at once, however often it is cancelled: what it has read is read again by the
    next ``poll``, and is not committed before. The methods of a listener may be coroutines, and may
    await calls of the consumer.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, **settings: Any) -> None:
        self._consumer = KafkaConsumer(config, **settings)
        self._thread = ThreadPoolExecutor(1, f"{self._consumer.client_id}-aio")
        self._turn = asyncio.Lock()
        self._last: asyncio.Future[Any] | None = None  # what the thread does, or has done
        self._work: _Work | None = None  # the same
        self._waiting = 0  # calls that wait for their turn, but those that read
        self._closed = False
        self._inner: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    async def __aenter__(self) -> AsyncKafkaConsumer:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._consumer.stop_auto_commit()
        await self.close()

    # -- running calls

    async def _run(
        self, call: Callable[[], Result], *, reads: bool = False, ends: bool = True
    ) -> Result:
        """reads: what a cancelled call has returned is returned by the next. ends: a cancelled one
        ends early.
        """
        loop = asyncio.get_running_loop()
        if _in_callback():
            return await asyncio.wrap_future(self._queued(call), loop=loop)
        await self._await_turn(reads)
        try:
            if self._last is not None and not self._last.done():
                await asyncio.wait([self._last])  # BOUND: one that was cancelled, and no queue
            if self._closed:
                raise ClientClosed("the consumer is closed")
            work = self._work = _Work(self._consumer, call, reads, ends)
            if self._waiting:
                work.hurry()
            ended = self._last = loop.run_in_executor(self._thread, work.run)
            try:
                return await asyncio.shield(ended)
            except asyncio.CancelledError:
                ended.add_done_callback(retrieved)
                if work.abandon():
                    # Nobody has what it returned: keep that, before any later call is begun.
                    self._last = loop.run_in_executor(self._thread, work.undo)
                    self._last.add_done_callback(retrieved)
                raise
        finally:
            self._turn.release()

    async def _await_turn(self, reads: bool) -> None:
        """Acquire it. Reads wait for records, and so make way for what only uses the consumer."""
        if reads:
            await self._turn.acquire()
            return
        self._waiting += 1
        try:
            if self._work is not None:
                self._work.hurry()
            await self._turn.acquire()
        finally:
            self._waiting -= 1

    async def _read(
        self, call: Callable[[float], list[Any]], timeout: float, *kind: Any
    ) -> list[Any]:
        """What a cancelled call has left is returned at once, so that there is progress however
        soon this one is cancelled. One that has made way for another call continues after it.
        """
        if (self._last is None or self._last.done()) and not _in_callback():
            with suppress(ClientClosed):
                kept = self._consumer.kept(*kind)
                if kept:
                    return kept
        deadline = time.monotonic() + timeout
        while True:
            rows = await self._run(lambda: call(max(0.0, deadline - time.monotonic())), reads=True)
            if rows or time.monotonic() >= deadline or _in_callback():
                return rows

    def _queued(self, call: Callable[[], Result]) -> Future[Result]:
        """Run it in the consumer's thread, which waits for a callback."""
        made: Future[Result] = Future()

        def body() -> None:
            try:
                made.set_result(call())
            except BaseException as error:
                made.set_exception(error)

        self._inner.put(body)
        return made

    def _awaited(self, method: Callable[[Any], Any], loop: asyncio.AbstractEventLoop) -> Any:
        """A listener's method, for the consumer's thread."""

        async def called(partitions: Any) -> None:
            callback = _Callback()
            _callback.set(callback)
            try:
                await method(partitions)
            finally:
                callback.has_ended = True

        def wait(partitions: Any) -> None:
            ended = asyncio.run_coroutine_threadsafe(called(partitions), loop)
            ended.add_done_callback(lambda _: self._inner.put(None))
            while (body := self._inner.get()) is not None:
                body()
            ended.result()

        return wait if inspect.iscoroutinefunction(method) else method

    # -- what is read

    async def subscribe(
        self,
        topics: Iterable[str] | None = None,
        *,
        pattern: str | None = None,
        listener: Any = None,
    ) -> None:
        """As ``KafkaConsumer.subscribe``; methods of the listener may be coroutines."""
        told: Any = None
        if listener is not None:
            loop = asyncio.get_running_loop()
            methods = {name: getattr(listener, name, None) for name in LISTENED}
            told = type(
                "Listener",
                (),
                {
                    name: staticmethod(self._awaited(method, loop))
                    for name, method in methods.items()
                    if method is not None
                },
            )()
        await self._run(lambda: self._consumer.subscribe(topics, pattern=pattern, listener=told))

    async def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """As ``KafkaConsumer.assign``."""
        await self._run(lambda: self._consumer.assign(partitions))

    async def unsubscribe(self) -> None:
        """As ``KafkaConsumer.unsubscribe``."""
        await self._run(self._consumer.unsubscribe)

    async def enforce_rebalance(self) -> None:
        """As ``KafkaConsumer.enforce_rebalance``."""
        await self._run(self._consumer.enforce_rebalance)

    def assignment(self) -> set[TopicPartition]:
        """The partitions that are read."""
        return self._consumer.assignment()

    def subscription(self) -> set[str]:
        """The topics that are subscribed to."""
        return self._consumer.subscription()

    # -- records

    async def poll(
        self, timeout: float = 1.0, max_records: int | None = None
    ) -> list[ConsumerRecord]:
        """As ``KafkaConsumer.poll``."""
        return await self._read(
            lambda left: self._consumer.poll(left, max_records), timeout, "records", max_records
        )

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """Records, one after the other, until another task calls ``close``. Lists of ``poll`` are
        much faster.
        """
        is_open = not self._closed
        while True:
            try:
                records = await self.poll(max_records=1)
            except ClientClosed:
                if is_open:
                    return
                raise
            for record in records:
                yield record

    async def poll_columns(
        self,
        timeout: float = 1.0,
        max_records: int = 5_000,
        *,
        keys: bool = True,
        arrays: bool = False,
    ) -> list[RecordColumns]:
        """As ``KafkaConsumer.poll_columns``."""
        poll = partial(self._consumer.poll_columns, keys=keys, arrays=arrays)
        return await self._read(
            lambda left: poll(left, max_records), timeout, "columns", max_records, keys, arrays
        )

    async def poll_arrow(
        self,
        timeout: float = 1.0,
        max_records: int = 100_000,
        columns: Iterable[str] | None = None,
    ) -> list[Any]:
        """As ``KafkaConsumer.poll_arrow``."""
        names = None if columns is None else tuple(columns)
        return await self._read(
            lambda left: self._consumer.poll_arrow(left, max_records, names),
            timeout,
            "arrow",
            max_records,
            names,
        )

    # -- positions

    async def seek(
        self, partition: tuple[str, int], offset: int | OffsetAndMetadata, leader_epoch: int = -1
    ) -> None:
        """As ``KafkaConsumer.seek``."""
        await self._run(lambda: self._consumer.seek(partition, offset, leader_epoch))

    async def seek_to_beginning(self, *partitions: tuple[str, int]) -> None:
        """As ``KafkaConsumer.seek_to_beginning``."""
        await self._run(lambda: self._consumer.seek_to_beginning(*partitions))

    async def seek_to_end(self, *partitions: tuple[str, int]) -> None:
        """As ``KafkaConsumer.seek_to_end``."""
        await self._run(lambda: self._consumer.seek_to_end(*partitions))

    async def position(self, partition: tuple[str, int], timeout: float | None = None) -> int:
        """As ``KafkaConsumer.position``."""
        return await self._run(lambda: self._consumer.position(partition, timeout))

    async def pause(self, *partitions: tuple[str, int]) -> None:
        """As ``KafkaConsumer.pause``."""
        await self._run(lambda: self._consumer.pause(*partitions))

    async def resume(self, *partitions: tuple[str, int]) -> None:
        """As ``KafkaConsumer.resume``."""
        await self._run(lambda: self._consumer.resume(*partitions))

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        return self._consumer.paused()

    async def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """As ``KafkaConsumer.positions``."""
        return await self._run(self._consumer.positions)

    async def current_lag(self, partition: tuple[str, int]) -> int | None:
        """As ``KafkaConsumer.current_lag``."""
        return await self._run(lambda: self._consumer.current_lag(partition))

    # -- commits

    async def commit(
        self, offsets: Mapping[Any, Any] | None = None, timeout: float | None = None
    ) -> None:
        """As ``KafkaConsumer.commit_sync``."""
        await self._run(lambda: self._consumer.commit_sync(offsets, timeout))

    async def committed(
        self, partitions: Iterable[tuple[str, int]], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """As ``KafkaConsumer.committed``."""
        return await self._run(lambda: self._consumer.committed(partitions, timeout))

    async def group_metadata(self) -> GroupMetadata:
        """As ``KafkaConsumer.group_metadata``."""
        return await self._run(self._consumer.group_metadata)

    # -- logs and topics

    async def beginning_offsets(
        self, partitions: Iterable[tuple[str, int]], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """As ``KafkaConsumer.beginning_offsets``."""
        return await self._run(lambda: self._consumer.beginning_offsets(partitions, timeout))

    async def end_offsets(
        self, partitions: Iterable[tuple[str, int]], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """As ``KafkaConsumer.end_offsets``."""
        return await self._run(lambda: self._consumer.end_offsets(partitions, timeout))

    async def offsets_for_times(
        self, timestamps: Mapping[tuple[str, int], int], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """As ``KafkaConsumer.offsets_for_times``."""
        return await self._run(lambda: self._consumer.offsets_for_times(timestamps, timeout))

    async def partitions_for(self, topic: str, timeout: float | None = None) -> set[int]:
        """As ``KafkaConsumer.partitions_for``."""
        return await self._run(lambda: self._consumer.partitions_for(topic, timeout))

    async def list_topics(self, timeout: float | None = None) -> dict[str, set[int]]:
        """As ``KafkaConsumer.list_topics``."""
        return await self._run(lambda: self._consumer.list_topics(timeout))

    def metrics(self) -> dict[str, float]:
        """As ``KafkaConsumer.metrics``."""
        return self._consumer.metrics()

    async def client_instance_id(self, timeout: float | None = None) -> str | None:
        """As ``KafkaConsumer.client_instance_id``."""
        return await self._run(lambda: self._consumer.client_instance_id(timeout))

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """As ``KafkaConsumer.metrics_address``."""
        return self._consumer.metrics_address

    async def close(self, timeout: float | None = None) -> None:
        """As ``KafkaConsumer.close``. Whoever waits for records gets ClientClosed."""
        if self._closed:
            if self._last is not None and not self._last.done():
                await asyncio.wait([self._last])
            return
        try:
            with suppress(ClientClosed):  # by another task, meanwhile
                await self._run(lambda: self._consumer.close(timeout), ends=False)
        finally:
            self._closed = True
            self._thread.shutdown(wait=False)  # after what is queued
