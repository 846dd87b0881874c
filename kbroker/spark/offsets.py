"""Turns options into offsets: partitions, starts, ends, limits and lost data.

Everything asks the brokers through ``BrokerQueries``, so that tests need none. An offset map is
``{(topic, partition): offset}``; an end is exclusive. With read_committed "latest" is the last
stable offset: what a reader may see, not what is written.

What counts as lost: offsets below the log's start, and partitions or topics that vanished. Gaps
inside the log are not (compaction, transaction markers, aborted records).
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from kbroker.spark.options.option_values import (
    EARLIEST,
    LATEST,
    Limit,
    LimitKind,
    OptionError,
    TopicPartition,
    TopicSubscription,
)
from kbroker.spark.options.options import ReadOptions
from kbroker.spark.plan import OffsetRange

logger = logging.getLogger(__name__)

NO_MATCH = -1
T = TypeVar("T")
_NAMED_MAX = 10


class BrokerQueries(Protocol):
    """The queries to the brokers."""

    def topics(self) -> Mapping[str, int]:
        """Topic to its number of partitions; without internal topics."""

    def partition_counts(self, topics: Iterable[str]) -> Mapping[str, int]:
        """The partition counts of some topics; those that do not exist are missing."""

    def list_offsets(self, wanted: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """wanted: EARLIEST, LATEST or ms. NO_MATCH if no record is that recent; a partition that
        does not exist is missing.
        """

    def committed(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """Offsets the group has committed; partitions without are missing."""

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit them as a group without members."""

    def topic_ids(self) -> Mapping[str, bytes]:
        """The latest known ids of the topics that were requested, without those that have none."""

    def sizes(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Bytes of whole partitions, if brokers report them."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Offsets ``[start, end)`` were requested, but the log holds ``[log_start, log_end)``; both are
    None if the log is gone.
    """

    topic: str
    partition: int
    start: int
    end: int | None
    log_start: int | None
    log_end: int | None

    @property
    def count(self) -> int | None:
        """The number of requested offsets that are missing; None if unknown."""
        if self.log_start is None and self.log_end is None:
            return None if self.end is None else self.end - self.start
        below = max(0, (self.log_start or 0) - self.start)
        if self.end is None:
            return below or None
        above = 0 if self.log_end is None else self.end - max(self.start, self.log_end)
        return min(self.end - self.start, below + max(0, above))

    def describe(self) -> str:
        """Partition, requested offsets and available offsets."""
        wanted = f"[{self.start}, {'...' if self.end is None else self.end})"
        if self.log_start is None and self.log_end is None:
            has = "is gone"
        else:
            start = "..." if self.log_start is None else self.log_start
            end = "..." if self.log_end is None else self.log_end
            has = f"holds [{start}, {end})"
        return f"{self.topic}-{self.partition}: requested {wanted}, but the log {has}"


class DataLossError(RuntimeError):
    """Offsets that were to be read are not there. One argument, as it travels between processes."""

    @classmethod
    def of(cls, lost: Iterable[Lost]) -> DataLossError:
        """The message lists each partition and says how to continue."""
        return cls(
            f"data was lost: {_describe(lost)}. It was deleted by retention or with its topic "
            "before it was read, or has not been written (or committed) yet. To skip what is "
            "lost, set failOnDataLoss=false"
        )


def report_loss(lost: list[Lost], fail: bool) -> None:
    """Raises DataLossError, or logs what is skipped: a countable line for each partition."""
    if lost and fail:
        raise DataLossError.of(lost)
    for one in lost:
        count = "?" if one.count is None else one.count
        logger.warning("skipped (failOnDataLoss=false): %s offsets of %s", count, one.describe())


def _describe(lost: Iterable[Lost]) -> str:
    partitions = list(lost)
    text = "; ".join(one.describe() for one in partitions[:_NAMED_MAX])
    more = len(partitions) - _NAMED_MAX
    return text + (f"; and {more} more" if more > 0 else "")


# -- partitions


def assigned_partitions(
    view: BrokerQueries, subscription: TopicSubscription, *, all_there: bool = True
) -> set[TopicPartition]:
    """The partitions there are now.

    all_there: raise OptionError where a topic named by the user is not there. A partition that is
    not, of one that is, is left out as by Spark's connector, with a warning.
    """
    if subscription.pattern:
        pattern = re.compile(subscription.pattern)
        # Anywhere in the name, as in Spark's connector (and unlike in a consumer).
        counts = {t: n for t, n in view.topics().items() if pattern.search(t)}
        return _partitions(counts)
    if subscription.topics:
        counts = dict(view.partition_counts(subscription.topics))
        if all_there:
            _refuse_missing(set(subscription.topics) - set(counts))
        return _partitions(counts)
    named = {topic for topic, _ in subscription.partitions}
    counts = dict(view.partition_counts(named))
    if all_there:
        _refuse_missing(named - set(counts))
    present = _partitions(counts) & set(subscription.partitions)
    missing = set(subscription.partitions) - present
    if all_there and missing:
        names = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(missing))
        logger.warning("assign contains %s, which does not exist and is skipped", names)
    return present


def _partitions(counts: Mapping[str, int]) -> set[TopicPartition]:
    return {(topic, partition) for topic, count in counts.items() for partition in range(count)}


def _refuse_missing(topics: set[str]) -> None:
    if topics:
        raise OptionError(
            f"there is no topic {', '.join(sorted(topics))}: create it first, or use "
            "subscribePattern to read topics that are created later"
        )


# -- one side of what is read


def resolve(
    view: BrokerQueries,
    limit: Limit,
    partitions: set[TopicPartition],
    *,
    side: str,
    group_id: str | None = None,
) -> dict[TopicPartition, int]:
    """An offset for each partition. side: ``starting`` or ``ending``, for messages.

    Raises OptionError where the limit names other partitions, or a time has no record.
    """
    if limit.kind is LimitKind.COMMITTED:
        return _resolve_committed(view, partitions, group_id or "")
    wanted: dict[TopicPartition, int]
    if limit.kind is LimitKind.EARLIEST:
        wanted = dict.fromkeys(partitions, EARLIEST)
    elif limit.kind is LimitKind.LATEST:
        wanted = dict.fromkeys(partitions, LATEST)
    elif limit.kind is LimitKind.TIMESTAMP:
        wanted = dict.fromkeys(partitions, limit.timestamp)
    else:
        _check_names(set(limit.values), partitions, side, limit)
        wanted = dict(limit.values)
    if limit.kind in (LimitKind.TIMESTAMP, LimitKind.TIMESTAMPS):
        return _resolve_times(view, limit, wanted)
    symbolic = {partition: offset for partition, offset in wanted.items() if offset < 0}
    return {**wanted, **(_list(view, symbolic) if symbolic else {})}


def _check_names(
    named: set[TopicPartition], partitions: set[TopicPartition], side: str, limit: Limit
) -> None:
    if named == partitions:
        return
    missing = ", ".join(f"{t}-{p}" for t, p in sorted(partitions - named)) or "none"
    extra = ", ".join(f"{t}-{p}" for t, p in sorted(named - partitions)) or "none"
    hint = "write one for each"
    if limit.kind is LimitKind.OFFSETS:
        symbol = "-2 (earliest)" if side == "starting" else "-1 (latest)"
        hint = f"write {symbol} where no offset is known"
    raise OptionError(
        f"{side} {limit.kind.value} must contain every partition that is read: missing {missing}, "
        f"not read {extra}; {hint}"
    )


def _resolve_times(
    view: BrokerQueries, limit: Limit, wanted: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    offsets = _list(view, wanted)
    unmatched = [partition for partition, offset in offsets.items() if offset == NO_MATCH]
    if unmatched and not limit.latest_without_match:
        topic, partition = min(unmatched)
        raise OptionError(
            f"{topic}-{partition} has no record at or after {wanted[topic, partition]} ms: set "
            "startingOffsetsByTimestampStrategy=latest to start at its end, or use an earlier "
            "time"
        )
    return {**offsets, **_list(view, dict.fromkeys(unmatched, LATEST))}


def _resolve_committed(
    view: BrokerQueries, partitions: set[TopicPartition], group_id: str
) -> dict[TopicPartition, int]:
    offsets = dict(view.committed(group_id, partitions))
    missing = partitions - set(offsets)
    return {**offsets, **_list(view, dict.fromkeys(missing, EARLIEST))}


def _list(view: BrokerQueries, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Raises LookupError if a partition has disappeared in the meantime; the caller retries."""
    if not wanted:
        return {}
    offsets = dict(view.list_offsets(wanted))
    gone = set(wanted) - set(offsets)
    if gone:
        names = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(gone))
        raise LookupError(f"no offsets of {names}")
    return offsets


def with_attempts(options: ReadOptions, call: Callable[[], T]) -> T:
    """The result of ``call``; retriable failures are retried ``fetchOffset.numRetries`` times."""
    for attempt in range(1, options.offset_attempts + 1):
        try:
            return call()
        except OptionError:
            raise
        except Exception as error:
            passing = isinstance(error, LookupError) or getattr(error, "retriable", False)
            if not passing or attempt == options.offset_attempts:
                raise
            logger.warning("cannot get offsets, attempt %d: %s", attempt, error)
            time.sleep(options.offset_retry_ms / 1000)
    raise AssertionError("unreachable")


# -- a batch


def batch_ranges(view: BrokerQueries, options: ReadOptions) -> list[OffsetRange]:
    """The ranges of a batch query: a snapshot, ordered by partition.

    Raises OptionError and DataLossError.
    """
    partitions = assigned_partitions(view, options.subscription)
    group = options.group_id
    starts = resolve(view, options.starting, partitions, side="starting", group_id=group)
    ends = resolve(view, options.ending, partitions, side="ending")
    log_starts = _list(view, dict.fromkeys(partitions, EARLIEST))
    log_ends = _list(view, dict.fromkeys(partitions, LATEST))
    ranges, lost = [], []
    for topic, partition in sorted(partitions):
        key = (topic, partition)
        start, end = starts[key], ends[key]
        if start > end:
            raise OptionError(
                f"{topic}-{partition} would be read from {start} to {end}: write a start that is"
                " not after the end"
            )
        if start < end and (start < log_starts[key] or end > log_ends[key]):
            lost.append(Lost(topic, partition, start, end, log_starts[key], log_ends[key]))
            start, end = max(start, log_starts[key]), min(end, log_ends[key])
        ranges.append(OffsetRange(topic, partition, start, max(start, end)))
    report_loss(lost, options.fail_on_data_loss)
    return ranges


# -- a stream


def share_limit(
    most: int, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Ends such that about ``most`` offsets are read: shared in proportion to what each partition
    has, at least one each if it has any; in doubles, as in Spark's connector.
    """
    available = {key: end - starts[key] for key, end in ends.items() if end > starts[key]}
    total = float(sum(available.values()))
    limited = dict(ends)
    for key, count in available.items():
        share = most * (count / total)
        limited[key] = min(ends[key], starts[key] + (1 if share < 1 else int(share)))
    return limited


def changed_partitions(
    starts: Mapping[TopicPartition, int], now: Iterable[TopicPartition]
) -> tuple[list[TopicPartition], list[Lost]]:
    """(new partitions, vanished ones)."""
    present = set(now)
    gone = [
        Lost(topic, partition, start, None, None, None)
        for (topic, partition), start in sorted(starts.items())
        if (topic, partition) not in present
    ]
    return sorted(present - set(starts)), gone


def stream_ranges(
    view: BrokerQueries,
    options: ReadOptions,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    *,
    anew: Iterable[str] = (),
    reported: Container[TopicPartition] = (),
) -> list[OffsetRange]:
    """The ranges of a micro-batch between two offsets of the query.

    A partition without start is new and begins at its earliest offset. One that ends before it
    starts is shorter than it was, which is a loss; without failOnDataLoss nothing of it is read
    (its end is the start of the next micro-batch), so that a repetition reads nothing as well.

    anew: topics that are not those of the offsets any more; nothing of them is read. told:
    partitions whose loss before their start has been reported and is not reported again.
    """
    others = set(anew)
    new, lost = changed_partitions(starts, ends)
    firsts = dict(view.list_offsets(dict.fromkeys(new, EARLIEST))) if new else {}
    ranges = []
    for topic, partition in sorted(ends):
        key = (topic, partition)
        end = ends[key]
        start = starts.get(key, firsts.get(key))
        if start is None or (topic in others and start < end):
            lost.append(Lost(topic, partition, start or 0, end, None, None))
            continue
        if key in firsts and start > 0:
            lost.append(Lost(topic, partition, 0, end, start, None))
        if end < start:
            lost.append(Lost(topic, partition, start, None, None, end))
            start = end
        ranges.append(OffsetRange(topic, partition, start, end))
    missed = [one for one in lost if (one.topic, one.partition) not in reported]
    report_loss(missed, options.fail_on_data_loss)
    return ranges
