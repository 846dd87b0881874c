"""Computes the offsets that a run reads from and to: pure functions.

Offsets that a run wants come from the commit log; what the broker has comes from the broker. Where
they do not meet, data is lost (retention was faster than the load, or the topic was recreated), and
that is an error with both numbers in it unless the caller allows the loss, which is then recorded.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from kbroker.spark.load.commits import Ends, Gap, LoadedFile, LoadError, TopicPartition
from kbroker.spark.plan import OffsetRange


class DataLossError(LoadError):
    """The broker no longer has offsets that should be loaded."""


@dataclass(frozen=True, slots=True)
class PositionBounds:
    """The offsets of a partition on the broker: ``[start, end)``.

    size_bytes: of the whole partition on its disk; 0 if the broker does not tell. topic_id: as
    Kafka writes it; empty if brokers have no ids.
    """

    start: int
    end: int
    size_bytes: int = 0
    topic_id: str = ""


def made_anew(
    topics: Mapping[str, str], available: Mapping[TopicPartition, PositionBounds]
) -> set[str]:
    """Topics that were deleted and created again since their offsets were noted.

    topics: the ids of then, by name; a topic without an id counts as the same.
    """
    return {
        topic
        for (topic, _), partition in available.items()
        if partition.topic_id and topics.get(topic, partition.topic_id) != partition.topic_id
    }


def restarted(
    ends: Ends, topics: Iterable[str], available: Mapping[TopicPartition, PositionBounds]
) -> Ends:
    """``ends``, with recreated topics at their start."""
    restarted_ends = {topic: dict(of_topic) for topic, of_topic in ends.items()}
    for one in topics:
        restarted_ends[one] = {
            partition: bounds.start
            for (topic, partition), bounds in available.items()
            if topic == one
        }
    return restarted_ends


def wanted_ranges(
    ends: Ends,
    first: Mapping[TopicPartition, int],
    available: Mapping[TopicPartition, PositionBounds],
    *,
    allow_loss: bool,
    anew: Iterable[str] = (),
) -> tuple[list[OffsetRange], list[Gap], list[str]]:
    """Everything between what is loaded and the broker's ends, and the losses in between: as
    offsets if their number is known, and as a text for each partition that continues elsewhere.

    first: where to begin in partitions that have no entry in ``ends``; without one, or with 0, at
    their start.
    anew: topics that are not those of ``ends`` any more, whatever their offsets say.

    Raises DataLossError, which names every partition that lost something, unless ``allow_loss``.
    """
    ranges: list[OffsetRange] = []
    gaps: list[Gap] = []
    lost: list[str] = []
    others = set(anew)
    for (topic, partition), bounds in sorted(available.items()):
        known = ends.get(topic, {}).get(partition)
        wanted = known if known is not None else first.get((topic, partition), bounds.start)
        if topic in others:
            if known is not None:
                lost.append(
                    f"{topic} partition {partition}: loaded up to offset {known}, then the topic "
                    f"was deleted; the new one has {bounds.start} to {bounds.end}"
                )
            begin = bounds.start
        elif bounds.start <= wanted <= bounds.end:
            begin = wanted
        elif known is None and wanted == 0:
            begin = bounds.start  # where logs begin by default
        elif known is None and wanted > bounds.end:
            begin = bounds.end  # of a time: the log has grown since its bounds were asked for
        else:
            lost.append(
                f"{topic} partition {partition}: offset {wanted} is requested, but the broker has "
                f"{bounds.start} to {bounds.end}"
            )
            begin = bounds.start
            if wanted < bounds.start:
                gaps.append(Gap(topic, partition, wanted, bounds.start))
        if begin < bounds.end:
            ranges.append(
                OffsetRange(topic, partition, begin, bounds.end, topic_id=bounds.topic_id)
            )
    vanished: list[str] = []
    for topic, partition, end in _absent(ends, available):
        said = f"{topic} partition {partition}: loaded up to offset {end}, "
        if topic in others:
            lost.append(said + "then the topic was deleted; the new one does not have that offset")
        else:
            vanished.append(said + "but the broker no longer has that offset")
    if (lost or vanished) and not allow_loss:
        raise DataLossError(
            "data is lost, so nothing was loaded: "
            + "; ".join(lost + vanished)
            + ". With --allow-data-loss, the load continues with what is left"
        )
    return ranges, gaps, lost


def _absent(
    ends: Ends, available: Mapping[TopicPartition, PositionBounds]
) -> Iterator[tuple[str, int, int]]:
    """Loaded partitions that their topic no longer has, with the end of the loaded offsets."""
    for topic in sorted(ends.keys() & {topic for topic, _ in available}):
        for partition, end in sorted(ends[topic].items()):
            if (topic, partition) not in available:
                yield topic, partition, end


def with_begins(
    ends: Ends,
    first: Mapping[TopicPartition, int],
    available: Mapping[TopicPartition, PositionBounds],
    ranges: Iterable[OffsetRange],
) -> Ends:
    """``ends`` with the explicit start offsets of partitions, so that a later run without them
    continues there, even if nothing is loaded now.

    first, available, ranges: what ``wanted_ranges`` took, and what it found.
    """
    begins = {(one.topic, one.partition): one.start for one in ranges}
    all_ends = {topic: dict(of_topic) for topic, of_topic in ends.items()}
    for topic, partition in sorted(first.keys() & available.keys()):
        begin = begins.get((topic, partition), available[topic, partition].end)
        all_ends.setdefault(topic, {}).setdefault(partition, begin)
    return all_ends


def within(
    ranges: Iterable[OffsetRange], *, records: int | None = None, size_bytes: int | None = None
) -> list[OffsetRange]:
    """The fronts of ``ranges`` that keep to a budget, shared among them in proportion.

    Each range gets at least one record while the budget has any: none starves behind a large one.
    Bytes are as exact as the ranges' estimates.
    """
    ranges_left = [one for one in ranges if one.count > 0]
    shares = [1.0]
    total_records = sum(one.count for one in ranges_left)
    total_bytes = sum(one.size_bytes for one in ranges_left)
    if records is not None and total_records > records:
        shares.append(records / total_records)
    if size_bytes is not None and total_bytes > size_bytes:
        shares.append(size_bytes / total_bytes)
    share = min(shares)
    if share >= 1.0:
        return ranges_left
    left = records if records is not None else total_records
    fronts: list[OffsetRange] = []
    for one in sorted(ranges_left, key=lambda each: each.count):
        count = min(max(1, int(one.count * share)), one.count, left)
        if count <= 0:
            continue
        left -= count
        size = one.size_bytes * count // one.count
        fronts.append(replace(one, end=one.start + count, size_bytes=size))
    return sorted(fronts, key=lambda each: (each.topic, each.partition))


def reloaded(
    files: Iterable[LoadedFile],
    ends: Ends,
    starts: Mapping[TopicPartition, int],
    topics: Mapping[str, str],
) -> tuple[Ends, list[LoadedFile]]:
    """Ends to load again from, and the files that this replaces.

    A start in the middle of a file moves down to where that file begins, as often as it takes:
    files are replaced whole. A partition whose start is at or past its end is left as it is, and
    so is every file of a topic that was deleted since: ``topics`` has the ids of those of now.
    """
    by_partition: dict[TopicPartition, list[LoadedFile]] = {}
    for one in files:
        if one.topic_id and topics.get(one.topic, one.topic_id) != one.topic_id:
            continue
        by_partition.setdefault((one.topic, one.partition), []).append(one)
    next_ends = {topic: dict(of_topic) for topic, of_topic in ends.items()}
    removed: list[LoadedFile] = []
    for (topic, partition), wanted in starts.items():
        end = ends.get(topic, {}).get(partition)
        if end is None or wanted >= end:
            continue
        start = wanted
        # From the last to the first: a file that begins lower can only widen the previous range.
        for one in sorted(by_partition.get((topic, partition), []), key=lambda f: -f.end):
            if one.end <= start:
                break
            start = min(start, one.start)
        removed += [one for one in by_partition.get((topic, partition), []) if one.end > start]
        next_ends[topic][partition] = start
    return next_ends, removed


def again_ranges(
    ends: Ends,
    loaded: Ends,
    available: Mapping[TopicPartition, PositionBounds],
    topics: Mapping[str, str],
    removed: Iterable[LoadedFile] = (),
) -> list[OffsetRange]:
    """Everything from ``ends`` on, of the partitions in ``available``; from their start if nothing
    before it was loaded.

    removed: the files that this replaces.

    Raises DataLossError when something of it, up to ``loaded``, is not on the broker any more, or
    the topic is another than that of ``topics``.
    """
    again: list[OffsetRange] = []
    lost: list[str] = []
    anew = made_anew(topics, available)
    begins: dict[TopicPartition, int] = {}
    for one in removed:
        key = (one.topic, one.partition)
        begins[key] = min(one.start, begins.get(key, one.start))
    for (topic, partition), bounds in sorted(available.items()):
        start = ends[topic][partition]
        end = loaded[topic][partition]
        if bounds.start <= begins.get((topic, partition), end):
            start = max(start, bounds.start)
        if topic in anew:
            lost.append(f"{topic} partition {partition}: the topic has been deleted and recreated")
        elif start < bounds.start or bounds.end < end:
            lost.append(
                f"{topic} partition {partition}: its files have offsets {start} to {end}, "
                f"but the broker has {bounds.start} to {bounds.end}"
            )
        else:
            again.append(OffsetRange(topic, partition, start, bounds.end, topic_id=bounds.topic_id))
    if lost:
        raise DataLossError(
            "cannot reload these records, so nothing is changed: "
            + "; ".join(lost)
            + ". Begin with a file whose offsets the broker still has (status --files)"
        )
    return again


def check_complete(planned: Iterable[OffsetRange], done: Iterable[OffsetRange]) -> None:
    """Check that the results of the tasks match the plan, each range once.

    Raises LoadError otherwise: then a task was lost or its result arrived twice, and nothing is
    committed.
    """
    wanted = sorted((one.topic, one.partition, one.start, one.end) for one in planned)
    bounds = sorted((one.topic, one.partition, one.start, one.end) for one in done)
    if wanted != bounds:
        odd = sorted(set(wanted) ^ set(bounds)) or [one for one in bounds if bounds.count(one) > 1]
        raise LoadError(f"the tasks' results differ from the plan, so nothing is committed: {odd}")
    for before, after in itertools.pairwise(bounds):
        if before[:2] == after[:2] and before[3] > after[2]:
            raise LoadError(f"planned ranges overlap, so nothing is committed: {before}, {after}")
