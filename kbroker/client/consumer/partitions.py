"""The partitions that a consumer reads: where it is in each, and what was fetched of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import index
from typing import Any, NamedTuple

from kbroker.client.batches.offsets import TopicPartition as Key
from kbroker.client.connections.cluster import NO_TOPIC_ID
from kbroker.client.connections.retry import Backoff
from kbroker.client.errors import ClientError, DeserializationFailed

NO_NODE = -1


class TopicPartition(NamedTuple):
    """A partition; a plain tuple of both does as well."""

    topic: str
    partition: int


class OffsetAndMetadata(NamedTuple):
    """What is committed for a partition: the offset of the next record to read, a text of the
    caller's, and the leader epoch of the record before, -1 if that is unknown.
    """

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


def key_of(partition: Any) -> Key:
    """A (topic, partition) of a caller. Raises TypeError."""
    try:
        topic, number = partition
        if isinstance(topic, str):
            return topic, index(number)
    except (TypeError, ValueError):
        pass
    raise TypeError(f"a partition is (topic, number), such as ('orders', 0), not {partition!r}")


def keys_of(partitions: Iterable[Any]) -> list[Key]:
    """The same of several."""
    return [key_of(partition) for partition in partitions]


def as_committed(given: Mapping[Any, Any]) -> dict[Key, OffsetAndMetadata]:
    """Offsets as users give them: (topic, partition) -> offset, (offset, metadata), or
    OffsetAndMetadata. Raises TypeError, ValueError.
    """
    if not isinstance(given, Mapping):
        raise TypeError(f"offsets by (topic, partition), in a dict, not {given!r}")
    offsets_by_partition = {}
    for partition, value in given.items():
        key = key_of(partition)
        offsets_by_partition[key] = _row(key, value)
    return offsets_by_partition


def _row(key: Key, value: Any) -> OffsetAndMetadata:
    try:
        fields = value if isinstance(value, tuple | list) else (value,)
        row = OffsetAndMetadata(*fields)
        row = OffsetAndMetadata(index(row.offset), row.metadata or "", index(row.leader_epoch))
    except TypeError:
        row = None
    if row is None or not isinstance(row.metadata, str):
        raise TypeError(
            f"{key[0]}-{key[1]}: an offset, (offset, text), or OffsetAndMetadata, not {value!r}"
        )
    if row.offset < 0:
        raise ValueError(f"{key[0]}-{key[1]}: offset {row.offset} is negative")
    return row


class FetchedSet:
    """The records of a partition in one response, until they are read.

    version: of the partition's position when they were asked for; when it has changed since, they
    are dropped. fault: what is known to be wrong behind the last record.
    """

    __slots__ = (
        "aborted",
        "fault",
        "loaded",
        "next_offset",
        "part",
        "records",
        "source",
        "version",
    )

    def __init__(self, part: ReadPartition, records: Any, aborted: Any, source: Any) -> None:
        self.part = part
        self.version = part.version
        self.records = records
        self.aborted = aborted
        self.source = source
        self.next_offset = 0
        self.loaded = False
        self.fault: ClientError | None = None

    @property
    def stale(self) -> bool:
        return self.version != self.part.version


class ReadPartition:
    """position: the offset of the next record that ``poll`` returns, None while it is looked up.
    fetch_offset: that of the next one to fetch. reset: what the position is looked up by, a
    timestamp; None: by what is committed. epoch: of the record before the position, -1 if unknown.
    validating: the position is to be compared with the leader's log before more is returned
    (KIP-320). incarnation: of the topic, see ``MetadataView``. in_lookup: a question about the
    position is under way. ask_at: no other one begins before, after some that were asked_in_vain.
    fault: why it cannot be read, until the position is changed; ``fail``
    sets it. fault_due: when ``poll`` raises that next. faults: the partitions with a fault, of one
    consumer.
    """

    __slots__ = (
        "ask_at",
        "asked_in_vain",
        "epoch",
        "fault",
        "fault_due",
        "faults",
        "fetch_offset",
        "high_watermark",
        "in_lookup",
        "incarnation",
        "key",
        "last_stable_offset",
        "leader",
        "leader_epoch",
        "log_start_offset",
        "max_bytes",
        "paused",
        "pending_revocation",
        "position",
        "preferred",
        "preferred_until",
        "reader",
        "rejections",
        "reset",
        "retry_at",
        "topic_id",
        "validating",
        "version",
    )

    def __init__(
        self, key: Key, max_bytes: int, faults: dict[Key, ReadPartition] | None = None
    ) -> None:
        self.key = key
        self.faults = {} if faults is None else faults
        self.fault_due = 0.0
        self.topic_id = NO_TOPIC_ID
        self.incarnation: int | None = None  # unknown
        self.leader = NO_NODE
        self.leader_epoch = -1
        self.position: int | None = None
        self.fetch_offset = 0
        self.epoch = -1
        self.reset: int | None = None
        self.in_lookup = False
        self.ask_at = 0.0
        self.asked_in_vain = 0
        self.validating = False
        self.paused = False
        self.pending_revocation = False
        self.preferred = NO_NODE
        self.preferred_until = 0.0
        self.max_bytes = max_bytes
        self.retry_at = 0.0
        self.rejections = 0  # of fetches in a row, by the same leader
        self.version = 0
        self.reader: Any = None  # a RecordReader, or one of Arrow
        self.fault: ClientError | None = None
        self.high_watermark: int | None = None
        self.last_stable_offset: int | None = None
        self.log_start_offset: int | None = None

    def seek(self, offset: int, epoch: int = -1) -> None:
        """Continue at an offset that somebody has named, which is compared with the log first if
        its epoch is known; what was fetched is dropped.
        """
        self.move(offset, epoch)
        self.validating = epoch >= 0

    def move(self, offset: int, epoch: int = -1) -> None:
        """Continue at an offset that is known to be in the log; what was fetched is dropped."""
        self._forget()
        self.position = self.fetch_offset = offset
        self.epoch = epoch

    def fetch_again(self) -> None:
        """What was fetched and is not returned is dropped, and so is every answer under way: the
        log of another leader may differ from there on.
        """
        if self.position is not None:
            self.version += 1
            self.in_lookup = False
            self.fetch_now()
            self.fetch_offset = self.position
            self.drop_reader()

    def look_up(self, reset: int | None) -> None:
        """The position is to be looked up. reset: a timestamp, EARLIEST or LATEST; None: the
        committed one.
        """
        self._forget()
        self.position = None
        self.reset = reset
        self.epoch = -1

    def fail(self, error: ClientError) -> None:
        """It cannot be read; ``poll`` is to say so, once it is due to say something of it again."""
        self.fault = error
        self.faults[self.key] = self

    def stop(self, error: ClientError) -> None:
        """The record at the position cannot be read; what was fetched behind it is dropped."""
        self.version += 1
        self.drop_reader()
        self.fail(error)

    def clear_fault(self) -> None:
        self.fault = None
        if self.faults.get(self.key) is self:
            del self.faults[self.key]

    def _forget(self) -> None:
        self.version += 1
        self.clear_fault()
        self.fault_due = 0.0
        self.in_lookup = False
        self.ask_now()
        self.validating = False
        self.fetch_now()
        self.drop_reader()

    def fetch_now(self) -> None:
        """Earlier fetches that were rejected do not count any more."""
        self.retry_at = 0.0
        self.rejections = 0

    def fetch_later(self, pauses: Backoff, now: float) -> None:
        """A fetch was rejected."""
        self.rejections += 1
        self.retry_at = now + pauses.after(self.rejections)

    def ask_now(self) -> None:
        """What was asked in vain does not count any more."""
        self.ask_at = 0.0
        self.asked_in_vain = 0

    def ask_another(self) -> None:
        """The partition has another leader. One that was asked where to begin may be silent for as
        long as a request may take.
        """
        if self.position is None and self.reset is not None and self.in_lookup:
            self.look_up(self.reset)
        else:
            self.ask_now()

    @property
    def is_to_be_placed(self) -> bool:
        """Whether something about its position is to be asked, and is not under way."""
        return (
            (self.position is None or self.validating) and not self.in_lookup and self.fault is None
        )

    def drop_reader(self) -> None:
        if self.reader is not None:
            self.reader.unload()
            self.reader = None

    @property
    def may_return(self) -> bool:
        """Whether what was fetched may be returned now. One that could not be deserialized is tried
        again later.
        """
        return not (
            self.paused
            or self.pending_revocation
            or self.validating
            or (self.fault is not None and isinstance(self.fault, DeserializationFailed))
        )

    def node(self, now: float) -> int:
        """Whom to fetch from."""
        if self.preferred != NO_NODE:
            if now < self.preferred_until:
                return self.preferred
            self.preferred = NO_NODE
        return self.leader

    def may_fetch(self, now: float) -> bool:
        return (
            self.position is not None
            and not self.paused
            and not self.pending_revocation
            and not self.validating
            and self.fault is None
            and now >= self.retry_at
        )
