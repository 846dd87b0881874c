"""confluent-kafka's Producer and Consumer, in name, made of ours: what programs that are built on
it call. Partitions, errors and metadata are its own classes.

Callbacks are called by ``poll`` and ``flush``, in the thread of the program, as there.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from kbroker.client import KafkaConsumer, KafkaProducer, OffsetAndMetadata, RebalanceListener
from kbroker.client.errors import BufferExhausted, ClientError, NoOffsetForPartition, Timeout

FOREVER_S = 60.0
# Of librdkafka alone, or callbacks.
_NOT_OURS = ("logger", "error_cb", "stats_cb", "on_commit", "statistics.interval.ms",
             "enable.auto.offset.store", "fetch.queue.backoff.ms", "log_level",
             "topic.metadata.refresh.interval.ms", "enable.partition.eof")  # fmt: skip
_NAMES = {
    "message.timeout.ms": "delivery.timeout.ms",
    "queue.buffering.max.ms": "linger.ms",
    "compression.codec": "compression.type",
}
_PARTITIONERS = ("murmur2", "murmur2_random")  # what ours is


def _settings(config: dict[str, Any]) -> dict[str, Any]:
    found = {_NAMES.get(key, key): value for key, value in config.items() if key not in _NOT_OURS}
    partitioner = found.pop("partitioner", None)
    assert partitioner is None or partitioner in _PARTITIONERS, partitioner
    if found.get("auto.offset.reset") == "error":
        found["auto.offset.reset"] = "none"
    return found


def _raised(error: ClientError) -> KafkaException:
    code = error.code
    number = KafkaError._TIMED_OUT if isinstance(error, Timeout) else int(code or -1)
    made = KafkaError(number, str(error), retriable=error.retriable)
    return KafkaException(made)


def _seconds(timeout: float | None) -> float:
    return FOREVER_S if timeout is None or timeout < 0 else timeout


class Message:
    """Of a record, or of what became of one."""

    def __init__(
        self, topic: str, partition: int, offset: int | None, key: Any, value: Any,
        headers: Any = None, timestamp: tuple[int, int] = (0, -1), error: Any = None,
    ) -> None:  # fmt: skip
        self._fields = {
            "topic": topic, "partition": partition, "offset": offset, "key": key, "value": value,
            "headers": headers, "timestamp": timestamp, "error": error, "latency": None,
            "leader_epoch": None,
        }  # fmt: skip

    def __getattr__(self, name: str) -> Callable[..., Any]:
        try:
            found = self.__dict__["_fields"][name]
        except KeyError:
            raise AttributeError(name) from None
        return lambda *_, **__: found

    def __len__(self) -> int:
        return len(self._fields["value"] or b"")


class Producer:
    """Of the classic one."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._core = KafkaProducer(_settings(config))
        self._ended: deque[tuple[Callable[..., Any], Any, Message]] = deque()
        self._open = 0

    def produce(
        self, topic: str, value: Any = None, key: Any = None, partition: int = -1,
        on_delivery: Callable[..., Any] | None = None, timestamp: int = 0, headers: Any = None,
        callback: Callable[..., Any] | None = None,
    ) -> None:  # fmt: skip
        tell = on_delivery or callback
        pairs = list(headers.items() if isinstance(headers, dict) else headers or ())
        rows = [(name, text.encode() if isinstance(text, str) else text) for name, text in pairs]
        key, value = (one.encode() if isinstance(one, str) else one for one in (key, value))

        def ended(future: Any) -> None:
            error = future.exception()
            offset, place = None, partition
            if error is None:
                found = future.result()
                offset, place = found.offset, found.partition
            message = Message(topic, place, offset, key, value, rows)
            told = None if error is None else _raised(error).args[0]
            self._ended.append((tell or (lambda *_: None), told, message))

        try:
            future = self._core.send(
                topic, value, key, rows, None if partition < 0 else partition, timestamp or None
            )
        except BufferExhausted as error:
            raise BufferError(str(error)) from error
        except ClientError as error:
            raise _raised(error) from error
        self._open += 1
        future.add_done_callback(ended)

    def poll(self, timeout: float | None = None) -> int:
        deadline = time.monotonic() + _seconds(timeout)
        while not self._ended and self._open and time.monotonic() < deadline:
            try:
                self._core.flush(min(0.05, max(0.0, deadline - time.monotonic())))
            except Timeout:
                pass
        count = 0
        while self._ended:
            tell, error, message = self._ended.popleft()
            self._open -= 1
            count += 1
            tell(error, message)
        return count

    def flush(self, timeout: float | None = None) -> int:
        deadline = time.monotonic() + _seconds(timeout)
        while self._open and time.monotonic() < deadline:
            self.poll(max(0.0, deadline - time.monotonic()))
        return self._open

    def __len__(self) -> int:
        return self._open

    def __bool__(self) -> bool:
        return True

    def purge(self, *_: Any, **__: Any) -> None:
        self._core.close(0.0)
        self.poll(0)

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "not of our producer"))

    # -- transactions

    def init_transactions(self, timeout: float = -1) -> None:
        self._of_transactions("init_transactions", _seconds(timeout))

    def begin_transaction(self) -> None:
        self._of_transactions("begin_transaction")

    def commit_transaction(self, timeout: float = -1) -> None:
        self._of_transactions("commit_transaction")
        self.poll(0)

    def abort_transaction(self, timeout: float = -1) -> None:
        self._of_transactions("abort_transaction")
        self.poll(0)

    def send_offsets_to_transaction(
        self, positions: Sequence[TopicPartition], group: Any, timeout: float = -1
    ) -> None:
        offsets = {(one.topic, one.partition): one.offset for one in positions}
        self._of_transactions("send_offsets_to_transaction", offsets, group)

    def _of_transactions(self, name: str, *arguments: Any) -> None:
        try:
            getattr(self._core, name)(*arguments)
        except ClientError as error:
            raise _raised(error) from error


class _Listener(RebalanceListener):
    """Calls what was given to ``subscribe``."""

    def __init__(self, consumer: Consumer, callbacks: dict[str, Any]) -> None:
        self._consumer, self._callbacks = consumer, callbacks

    def _call(self, name: str, partitions: Iterable[Any]) -> None:
        found = [TopicPartition(topic, number) for topic, number in partitions]
        if (call := self._callbacks.get(name)) is not None:
            call(self._consumer, found)

    def on_partitions_assigned(self, partitions: Any) -> None:
        self._call("on_assign", partitions)

    def on_partitions_revoked(self, partitions: Any) -> None:
        self._call("on_revoke", partitions)

    def on_partitions_lost(self, partitions: Any) -> None:
        self._call("on_lost" if self._callbacks.get("on_lost") else "on_revoke", partitions)


class Consumer:
    """Assignments are those of the group: ``assign`` in a callback says where to begin."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._core = KafkaConsumer(_settings(config))
        self._subscribed = False

    def subscribe(self, topics: list[str], **callbacks: Any) -> None:
        self._subscribed = True
        self._core.subscribe(topics, listener=_Listener(self, callbacks))

    def unsubscribe(self) -> None:
        self._core.unsubscribe()

    # -- messages

    def poll(self, timeout: float | None = None) -> Message | None:
        found = self.consume(1, timeout)
        return found[0] if found else None

    def consume(self, num_messages: int = 1, timeout: float | None = None) -> list[Any]:
        try:
            found = self._core.poll(_seconds(timeout), num_messages)
        except NoOffsetForPartition as error:
            topic, number = error.partitions[0]
            code = KafkaError(KafkaError._AUTO_OFFSET_RESET, str(error))
            return [Message(topic, number, None, None, None, error=code)]
        except ClientError as error:
            raise _raised(error) from error
        return [
            Message(
                one.topic, one.partition, one.offset, one.key, one.value,
                list(one.headers) or None, (1, one.timestamp),
            )
            for one in found
        ]  # fmt: skip

    # -- partitions

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        wanted = list(partitions)
        if not self._subscribed:
            self._core.assign([(one.topic, one.partition) for one in wanted])
        for one in wanted:
            if one.offset != OFFSET_INVALID:
                self.seek(one)

    incremental_assign = assign

    def unassign(self) -> None:
        """The group's assignment ends by itself."""

    def incremental_unassign(self, partitions: Iterable[TopicPartition]) -> None:
        """The same."""

    def assignment(self) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for topic, number in self._core.assignment()]

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self._core.pause(*((one.topic, one.partition) for one in partitions))

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._core.resume(*((one.topic, one.partition) for one in partitions))

    def seek(self, partition: TopicPartition) -> None:
        key = partition.topic, partition.partition
        if partition.offset == OFFSET_BEGINNING:
            self._core.seek_to_beginning(key)
        elif partition.offset == OFFSET_END:
            self._core.seek_to_end(key)
        else:
            self._core.seek(key, partition.offset)

    def position(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """OFFSET_INVALID before the first message, as there."""
        known = self._core.positions()
        found = {(key.topic, key.partition): row.offset for key, row in known.items()}
        return [
            TopicPartition(one.topic, one.partition, found.get((one.topic, one.partition), -1001))
            for one in partitions
        ]

    def get_watermark_offsets(
        self, partition: TopicPartition, timeout: float = -1, cached: bool = False
    ) -> tuple[int, int]:
        key = partition.topic, partition.partition
        seconds = _seconds(timeout)
        begins = self._core.beginning_offsets([key], seconds)
        ends = self._core.end_offsets([key], seconds)
        return next(iter(begins.values())), next(iter(ends.values()))

    # -- commits

    def committed(
        self, partitions: Iterable[TopicPartition], timeout: float = -1
    ) -> list[TopicPartition]:
        keys = [(one.topic, one.partition) for one in partitions]
        try:
            found = self._core.committed(keys, _seconds(timeout))
        except ClientError as error:
            raise _raised(error) from error
        rows = {(key.topic, key.partition): row for key, row in found.items() if row is not None}
        return [
            TopicPartition(*key, rows[key].offset if key in rows else OFFSET_INVALID)
            for key in keys
        ]

    def commit(
        self, message: Any = None, offsets: Any = None, asynchronous: bool = True
    ) -> list[TopicPartition]:
        if message is not None:
            place = message.topic(), message.partition(), message.offset() + 1
            offsets = [TopicPartition(*place)]
        wanted = None
        if offsets is not None:
            wanted = {(one.topic, one.partition): OffsetAndMetadata(one.offset) for one in offsets}
        try:
            self._core.commit_sync(wanted)
        except ClientError as error:
            raise _raised(error) from error
        return list(offsets or ())

    def store_offsets(self, message: Any = None, offsets: Any = None) -> None:
        """What was returned counts as handled."""

    # -- the rest

    def consumer_group_metadata(self) -> Any:
        return self._core.group_metadata()

    def memberid(self) -> str:
        return str(self._core.group_metadata().member_id)

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        topics = self._core.list_topics(_seconds(timeout))
        return SimpleNamespace(
            topics={
                name: SimpleNamespace(topic=name, partitions=dict.fromkeys(numbers), error=None)
                for name, numbers in topics.items()
                if topic in (None, name)
            }
        )

    def close(self) -> None:
        self._core.close()
