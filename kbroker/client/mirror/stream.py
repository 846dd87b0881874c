"""One consumer of a mirror, in its own thread: reads, passes on, commits what is acknowledged."""

from __future__ import annotations

import logging
import re
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from kbroker._ext.client.forwarder import Forwarder
from kbroker.client.consumer.kafka_consumer import KafkaConsumer
from kbroker.client.consumer.membership import RebalanceListener
from kbroker.client.consumer.partitions import TopicPartition
from kbroker.client.errors import (
    ClientError,
    CommitFailed,
    ProtocolViolation,
    Timeout,
    WakeupError,
)
from kbroker.client.mirror.ledger import Key, Ledger, Several
from kbroker.client.mirror.plugins import Handler, HandlerFailed
from kbroker.client.producer.kafka_producer import KafkaProducer
from kbroker.client.producer.records import ProducerRecord

logger = logging.getLogger("kbroker.client.mirror")

_POLL_S = 0.5
_ROOM_S = 0.1
_TOPIC_S = 1.0
# BOUND: how long partitions that are given up are kept, until what was read of them is
# acknowledged; the group waits meanwhile.
_GIVE_UP_S = 30.0
# The first commit after partitions have come; later ones have the interval of the user.
_FIRST_MARK_S = 0.5
_RETRY_S = 1.0
_LAG_S = 1.0


class SendFailed(ClientError):
    """A record was not written, and the mirror is to stop then."""


class MirrorPlan(NamedTuple):
    """What all streams of a mirror do. handler: None: records stay as they are."""

    topics: re.Pattern[str]
    commit_s: float
    abort_on_send_failure: bool = True
    handler: Handler | None = None
    listener: Any = None
    keep_partitions: bool = False


class MirrorCounts(NamedTuple):
    """Of one stream or all. whole: records in batches that were not unpacked. dropped: records that
    were given up. lag: records that are not read yet, as far as it is known. held_s: for how long
    the target has taken nothing, and nothing was read; 0: it takes records.
    """

    records: int = 0
    bytes: int = 0
    whole: int = 0
    dropped: int = 0
    lag: int = 0
    held_s: float = 0.0

    def plus(self, other: MirrorCounts) -> MirrorCounts:
        return MirrorCounts(
            self.records + other.records,
            self.bytes + other.bytes,
            self.whole + other.whole,
            self.dropped + other.dropped,
            self.lag + other.lag,
            max(self.held_s, other.held_s),
        )


class MirrorStream:
    """ended: called at the end of the thread."""

    def __init__(
        self,
        name: str,
        settings: Mapping[str, Any],
        producers: Sequence[KafkaProducer],
        plan: MirrorPlan,
        ended: Callable[[], None],
    ) -> None:
        self.name = name
        self.source = str(settings["bootstrap.servers"])
        self._consumer = KafkaConsumer(settings)
        self._producers = producers
        self._plan = plan
        self._held = False
        self._ended = ended
        self._handler = plan.handler
        self._forwarders: list[Forwarder] = []
        if self._handler is None:
            self._use_forwarders()
        self._ledger = Ledger()
        self._committed: dict[Key, int] = {}
        self._mark_at = 0.0
        self._lag_at = 0.0
        self._known: set[str] | None = None
        self._stopping = False
        self._cannot_read = False
        self._records = self._bytes = self._lag = 0
        self._missing: tuple[KafkaProducer, str] | None = None  # who does not know which topic
        self._missing_since = 0.0
        self.trouble = ""  # why the topic is not known
        self.waiting_since: float | None = None  # the oldest that the target has not acknowledged
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"mirror-{name}", daemon=True)

    def _use_forwarders(self) -> None:
        try:
            self._forwarders = [
                producer.forwarder(keep_partitions=self._plan.keep_partitions)
                for producer in self._producers
            ]
        except TypeError:  # a partitioner or an interceptor in Python has to see each record
            self._handler = unchanged

    # -- other threads

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Commit what is acknowledged, and end."""
        self._stopping = True
        self._consumer.wakeup()

    def hold(self, held: bool) -> None:
        """Whether to read nothing, as the target takes nothing; a read under way ends, too."""
        self._held = held
        for forwarder in self._forwarders:
            forwarder.held = held

    def join(self, timeout: float) -> bool:
        """Whether it has ended within ``timeout`` seconds."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def counts(self) -> MirrorCounts:
        """As they are now."""
        passed = [(one.records, one.bytes, one.whole_records) for one in self._forwarders]
        records, size, whole = map(sum, zip((self._records, self._bytes, 0), *passed, strict=True))
        return MirrorCounts(records, size, whole, self._ledger.failed, self._lag)

    # -- the thread

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._turn()
        except BaseException as error:
            self.error = error
        try:
            self._consumer.forget_wakeup()
            self._note_lag()
            self._consumer.close()  # tells the listener, which commits
        except BaseException as error:
            logger.warning("%s: cannot leave the group: %r", self.name, error)
        self._ended()

    def _turn(self) -> None:
        try:
            if self._known is None:
                self._begin()
            self._read()
        except WakeupError:
            return
        except ClientError as error:
            passes = error.retriable or isinstance(error, ProtocolViolation)
            if not passes or isinstance(error, SendFailed):
                raise
            self._tell_cannot_read(error)
        else:
            if self._cannot_read:
                self._cannot_read = False
                logger.warning("%s: reading from %s again", self.name, self.source)
        self._settle()

    def _begin(self) -> None:
        names = self._consumer.list_topics()
        self._known = {name for name in names if self._plan.topics.fullmatch(name)}
        self._consumer.subscribe(pattern=self._plan.topics, listener=_Listener(self))

    def _tell_cannot_read(self, error: ClientError) -> None:
        if not self._cannot_read:
            self._cannot_read = True
            logger.warning("%s: cannot read from %s: %s; trying on", self.name, self.source, error)
        time.sleep(_RETRY_S)

    # -- reading

    def _read(self) -> None:
        if self._handler is not None:
            held = self._held
            self._handle([] if held else self._consumer.poll(_POLL_S))
            if held:
                self._consumer.poll(_ROOM_S, 0)
            return
        for sent in self._consumer.forward(self._forwarder, _POLL_S):
            self._ledger.add(sent)
        for place, forwarder in enumerate(self._forwarders):
            if forwarder.missing is not None and self._missing is None:
                self._missing = self._producers[place], forwarder.missing
                self._missing_since = time.monotonic()
            elif forwarder.is_full and self._missing is None:
                forwarder.wait_for_room(_ROOM_S)
        if self._missing is not None:
            self._await_topic(*self._missing)

    def _place(self, topic: str, partition: int) -> int:
        """Records of a partition have one producer, so that they stay in order."""
        if len(self._producers) == 1:
            return 0
        return zlib.crc32(f"{self.source} {topic} {partition}".encode()) % len(self._producers)

    def _forwarder(self, topic: str, partition: int) -> Forwarder:
        return self._forwarders[self._place(topic, partition)]

    def _await_topic(self, producer: KafkaProducer, topic: str) -> None:
        try:
            producer.await_topic(topic, _TOPIC_S)
        except ClientError as error:
            if not error.retriable:
                raise SendFailed(f"cannot write to topic {topic}: {error}") from error
            self.trouble = str(error)
            return
        self._missing = None
        self.trouble = ""

    def _handle(self, records: Sequence[Any]) -> None:
        assert self._handler is not None
        sent: list[Any] = []
        self.waiting_since = self.waiting_since or time.monotonic()
        for record in records:
            producer = self._producers[self._place(record.topic, record.partition)]
            self._records += 1
            self._bytes += max(record.serialized_key_size, 0) + max(record.serialized_value_size, 0)
            try:
                made = list(self._handler(record) or ())
            except Exception as error:
                why = f"{type(error).__name__}: {error}"
                at = record.topic, record.partition, record.offset
                raise HandlerFailed(*at, why) from error
            try:
                sent += [producer.send(*_fields(one)) for one in made]
            except ClientError as error:
                raise SendFailed(f"a record was not written: {error}") from error
        if sent:
            self._ledger.add(Several(sent))

    # -- commits

    def _settle(self) -> None:
        now = time.monotonic()
        offsets = self._ledger.settle()
        self._check_errors()
        self._commit(offsets, self._commit_later)
        if now >= self._mark_at:
            positions = self._consumer.positions()
            self._ledger.mark(positions)
            # Where a partition begins is committed at once, so that whoever takes it over agrees.
            all_known = len(positions) == len(self._consumer.assignment())
            self._mark_at = now + (self._plan.commit_s if all_known else _FIRST_MARK_S)
        since = self._ledger.waiting_since
        self.waiting_since = since if self._missing is None else self._missing_since
        if now >= self._lag_at:
            self._lag_at = now + _LAG_S
            self._note_lag()

    def _note_lag(self) -> None:
        if self._held:
            self._ask_lag()
            return
        lags = map(self._consumer.current_lag, self._consumer.assignment())
        self._lag = sum(lag or 0 for lag in lags)

    def _ask_lag(self) -> None:
        """While nothing is read, no fetch tells where partitions end."""
        at = self._consumer.positions()
        try:
            ends = self._consumer.end_offsets(at, _LAG_S)
        except ClientError:
            return  # that the source cannot be reached is told by reading
        self._lag = sum(max(0, end - at[part].offset) for part, end in ends.items())

    def _check_errors(self) -> None:
        errors, self._ledger.errors = self._ledger.errors, []
        if errors and self._plan.abort_on_send_failure:
            raise SendFailed(f"a record was not written: {errors[0]}") from errors[0]
        for error in errors:
            logger.error("%s: records are lost: %s", self.name, error)

    def _commit(self, offsets: Mapping[Key, Any], how: Callable[[dict[Key, Any]], None]) -> None:
        moved = {key: row for key, row in offsets.items() if self._committed.get(key) != row.offset}
        if moved:
            how(moved)

    def _commit_later(self, offsets: dict[Key, Any]) -> None:
        self._consumer.commit_async(offsets, self._note)

    def _note(self, offsets: Mapping[Any, Any], error: Exception | None) -> None:
        if error is None:
            self._committed.update({tuple(key): row.offset for key, row in offsets.items()})
        elif not isinstance(error, CommitFailed):  # the group rebalances
            logger.warning("%s: cannot commit: %s; trying again later", self.name, error)

    # -- partitions that come and go, in `poll`

    def take(self, partitions: Sequence[TopicPartition]) -> None:
        """A topic that appeared after the start is read from its first record."""
        self._mark_at = min(self._mark_at, time.monotonic() + _FIRST_MARK_S)
        new = [key for key in partitions if key.topic not in (self._known or ())]
        if new:
            offsets = self._consumer.committed(new)
            fresh = [key for key in new if offsets[key] is None]
            if fresh:
                self._consumer.seek_to_beginning(*fresh)

    def give_up(self, partitions: Sequence[TopicPartition]) -> None:
        """Commit what was read of them, as far as it is acknowledged in time."""
        if self.error is None and partitions:
            positions = self._consumer.positions()
            self._ledger.mark({key: positions[key] for key in partitions if key in positions})
            until = time.monotonic() + (_TOPIC_S if self._held else _GIVE_UP_S)
            offsets = self._ledger.settle()
            while self._ledger.waiting_since is not None and time.monotonic() < until:
                self._flush(min(_TOPIC_S, until - time.monotonic()))
                offsets.update(self._ledger.settle())
            if not (self._ledger.errors and self._plan.abort_on_send_failure):
                self._commit(offsets, self._commit_now)
        self.lose(partitions)

    def _flush(self, seconds: float) -> None:
        for producer in self._producers:
            try:
                producer.flush(max(0.0, seconds))
            except Timeout:
                return

    def _commit_now(self, offsets: dict[Key, Any]) -> None:
        try:
            try:
                self._consumer.commit_sync(offsets)
            except WakeupError:  # `stop` was called meanwhile
                self._consumer.commit_sync(offsets)
        except ClientError as error:
            logger.warning(
                "%s: cannot commit before partitions are given up: %s; what was read of them since "
                "the last commit is copied again",
                self.name,
                error,
            )
        else:
            self._note(offsets, None)

    def lose(self, partitions: Sequence[TopicPartition]) -> None:
        """Others have them."""
        self._ledger.forget(partitions)
        for key in partitions:
            self._committed.pop((key.topic, key.partition), None)

    @property
    def listener(self) -> Any:
        """That of the user."""
        return self._plan.listener


class _Listener(RebalanceListener):
    def __init__(self, stream: MirrorStream) -> None:
        self._stream = stream

    def _tell(self, what: str, partitions: list[TopicPartition]) -> None:
        call = getattr(self._stream.listener, what, None)
        if call is not None:
            call(partitions)

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        self._stream.take(partitions)
        self._tell("on_partitions_assigned", partitions)

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        self._stream.give_up(partitions)
        self._tell("on_partitions_revoked", partitions)

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        self._stream.lose(partitions)
        has = hasattr(self._stream.listener, "on_partitions_lost")
        self._tell("on_partitions_lost" if has else "on_partitions_revoked", partitions)


def _fields(record: Any) -> tuple[Any, ...]:
    """Of a ``ProducerRecord``, as ``send`` has them."""
    return (
        record.topic,
        record.value,
        record.key,
        record.headers,
        record.partition,
        record.timestamp_ms,
    )


def unchanged(record: Any) -> list[ProducerRecord]:
    """The message handler of a mirror that needs each record as an object."""
    made = ProducerRecord(
        record.topic,
        record.value,
        record.key,
        record.headers or None,
        None,
        record.timestamp if record.timestamp >= 0 else None,
    )
    return [made]
