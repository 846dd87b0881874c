"""``spark.readStream.format("kbroker")``: the reader of micro-batches.

What a restart relies on: ``initialOffset`` says the same each time (``first_offsets``), a range is
read the same way on every attempt, and an end never runs behind its start or past the target of
``Trigger.AvailableNow``. Spark calls the driver's methods in one Python process for each query.

Group offsets are committed when Spark asks for the next end, because all before ``start`` is done
then; ``commit`` is not called for the last micro-batch of an AvailableNow run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from kbroker.client.connections.cluster import Cluster
from kbroker.client.errors import ClientError
from kbroker.spark.broker_view import BrokerView
from kbroker.spark.first_offsets import first_offsets
from kbroker.spark.offsets import (
    BrokerQueries,
    Lost,
    assigned_partitions,
    changed_partitions,
    report_loss,
    share_limit,
    stream_ranges,
    with_attempts,
)
from kbroker.spark.options.option_values import (
    EARLIEST,
    LATEST,
    OptionError,
    TopicPartition,
    offsets_from_json,
    offsets_to_json,
)
from kbroker.spark.options.options import ReadOptions
from kbroker.spark.plain_errors import told_plainly
from kbroker.spark.plan import RECORD_BYTES_GUESS, TASK_BYTES_MIN, OffsetRange
from kbroker.spark.prefetch import Prefetch, holding
from kbroker.spark.source import (
    RangePartition,
    arrow_schema,
    mean_sizes,
    plan_tasks,
    read_partition,
)
from kbroker.spark.topic_ids import StreamTopicIds, TopicIdFile

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

_NO_ROW_LIMIT = 2**62
SIZES_TTL_S = 300.0


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Driver methods keep their results in ``StreamProgress``; ``read`` runs in tasks, to which the
    reader is sent before any driver method was called.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._progress: StreamProgress | None = None
        self._cluster: Cluster | None = None
        self._prefetch: Prefetch | None = None
        self._held: list[pa.RecordBatch] = []

    def _driver(self) -> StreamProgress:
        if self._progress is None:
            options = self._options
            settings = {**options.kafka, "bootstrap.servers": options.bootstrap}
            self._cluster = Cluster.from_options(settings)
            view = BrokerView(self._cluster, read_committed=options.read_committed)
            self._progress = StreamProgress(view, options)
        return self._progress

    @told_plainly()
    def initialOffset(self) -> dict[str, Any]:
        return offsets_to_json(self._driver().initial())

    @told_plainly()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        driver, starts = self._driver(), offsets_from_json(start)
        ends = driver.advance(starts, limited=not isinstance(limit, ReadAllAvailable))
        ranges = driver.expected(starts, ends)
        prefetch = self._prefetch_for(ranges)
        if prefetch is not None:
            prefetch.begin(ranges, driver.topic_ids())
        return offsets_to_json(ends)

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.min_offsets_per_trigger or options.max_bytes_per_trigger:
            return ReadMaxRows(_NO_ROW_LIMIT)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        latest = self._driver().latest
        return offsets_to_json(latest) if latest else None

    @told_plainly()
    def prepareForTriggerAvailableNow(self) -> None:
        self._driver().fix_target()

    @told_plainly()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Input partitions for tasks; or a single one, whose rows the reader then holds."""
        self.__class__ = StreamReader
        driver = self._driver()
        ranges = driver.ranges(offsets_from_json(start), offsets_from_json(end))
        prefetch, ids = self._prefetch_for(ranges), driver.topic_ids()
        held = prefetch.read(ranges, ids) if prefetch is not None else None
        if held is None:
            return driver.plan(ranges)
        self._held = held
        self.__class__ = _HOLDING  # type: ignore[assignment]
        return [RangePartition(ranges, ids)]

    def _prefetch_for(self, ranges: list[OffsetRange]) -> Prefetch | None:
        """The prefetched reader of these ranges; None if tasks should read them."""
        if _HOLDING is None:
            return None
        if self._prefetch is None:
            self._prefetch = Prefetch(self._options, arrow_schema(self._schema))
        return self._prefetch if self._prefetch.fits(ranges) else None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, partition, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: see the head of this module."""

    def stop(self) -> None:
        if self._cluster is not None:
            self._cluster.close()


_HOLDING = holding(StreamReader)


class RefusedStream(DataSourceStreamReader):
    """A stream with invalid options; the first call by Spark raises that error. If there were no
    reader at all, PySpark would try to stop it and report the resulting error instead.
    """

    def __init__(self, error: OptionError) -> None:
        self._error = error

    @told_plainly()
    def initialOffset(self) -> dict[str, Any]:
        raise self._error

    @told_plainly()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        raise self._error

    @told_plainly()
    def getDefaultReadLimit(self) -> ReadLimit:
        raise self._error

    @told_plainly()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        raise self._error

    @told_plainly()
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self._error


class StreamProgress:
    """The progress of a stream and its limits: the driver's side of the reader.

    latest: the ends of all partitions as last heard of, without any limit.
    """

    def __init__(self, view: BrokerQueries, options: ReadOptions) -> None:
        self.view = view
        self.latest: dict[TopicPartition, int] = {}
        self._options = options
        self._first: dict[TopicPartition, int] | None = None
        self._target: dict[TopicPartition, int] | None = None
        self._ids: StreamTopicIds | None = None
        # Records lost before the starts of the micro-batch that is planned next.
        self._reported: set[TopicPartition] = set()
        self._triggered_at = 0.0
        self._committed: dict[TopicPartition, int] = {}
        self._sizes: Mapping[TopicPartition, tuple[int, int]] = {}
        self._sizes_at: float | None = None

    def initial(self) -> dict[TopicPartition, int]:
        if self._first is None:
            self._first = with_attempts(
                self._options, lambda: first_offsets(self.view, self._options)
            )
            self._reach(self._first)
        return self._first

    def _reach(self, first: Mapping[TopicPartition, int]) -> None:
        """AvailableNow fixes its target before Spark asks for the first offsets. If the
        stream starts at the end, records written in between are skipped: they count as older.
        """
        target = self._target
        if target is None:
            return
        late = [key for key, at in first.items() if target.get(key, -1) < at]
        ends = self._ends() if late else {}
        for key in late:
            if key in ends:
                target[key] = max(target.get(key, 0), min(first[key], ends[key]))

    def fix_target(self) -> None:
        """Records written from now on are not read."""
        self._target = self._ends()

    def _ends(self) -> dict[TopicPartition, int]:
        def ask() -> dict[TopicPartition, int]:
            # A deleted topic is reported as lost data if its offsets are missing.
            partitions = assigned_partitions(self.view, self._options.subscription, all_there=False)
            ends = dict(self.view.list_offsets(dict.fromkeys(partitions, LATEST)))
            if set(ends) != partitions:
                raise LookupError("partitions disappeared while their offsets were requested")
            return ends

        return with_attempts(self._options, ask)

    def advance(
        self, starts: Mapping[TopicPartition, int], limited: bool
    ) -> dict[TopicPartition, int]:
        """Ends of the next micro-batch; ``starts`` if it is not yet time for one."""
        self._commit_group(starts)
        ends = self._ends_after(starts)
        self.latest = ends
        if not limited:
            return ends
        full_starts = self._with_new(starts, ends)
        if self._must_wait(full_starts, ends):
            return dict(starts)
        if self._options.max_bytes_per_trigger is not None:
            ends = self._share_bytes(self._options.max_bytes_per_trigger, full_starts, ends)
        if self._options.max_offsets_per_trigger is not None:
            ends = share_limit(self._options.max_offsets_per_trigger, full_starts, ends)
        return ends

    def _ends_after(self, starts: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The current ends, up to the target. An end before its start is requested again, because
        other replicas may lag; after that it is data loss. If that is no error, a truncated log
        continues at its end, because everything before it was read; a topic that was recreated (or
        may have been, if its id was unknown) restarts at its beginning, in a micro-batch that reads
        nothing of the topic and ends at that start.
        """
        options = self._options
        ends = self._ends() if self._target is None else dict(self._target)
        for _ in range(options.offset_attempts - 1):
            if self._target is not None or not _behind(starts, ends):
                break
            time.sleep(options.offset_retry_ms / 1000)
            ends = self._ends()
        ids, now = self._known_ids(), self.view.topic_ids()
        ids.arrive(starts)
        anew = ids.anew(now)
        _, lost = changed_partitions(starts, ends)
        lost += [Lost(*key, starts[key], None, None, ends[key]) for key in _behind(starts, ends)]
        lost_keys = {(one.topic, one.partition) for one in lost}
        lost += [
            Lost(*key, start, None, None, ends.get(key))
            for key, start in sorted(starts.items())
            if key[0] in anew and key not in lost_keys and start > 0
        ]
        fresh = [one for one in lost if (one.topic, one.partition) not in self._reported]
        report_loss(lost if options.fail_on_data_loss else fresh, options.fail_on_data_loss)
        self._reported = {(one.topic, one.partition) for one in lost}
        same = set(ids.known()) - anew
        back = {key for key in starts if key[0] in anew and key in ends}
        back |= {
            (o.topic, o.partition) for o in lost if o.log_end is not None and o.topic not in same
        }
        ends = self._gone_back(back, anew, starts, ends)
        ids.learn(now, {topic for topic, _ in (*starts, *ends)})
        return ends

    def _gone_back(
        self,
        keys: set[TopicPartition],
        anew: set[str],
        starts: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
    ) -> dict[TopicPartition, int]:
        """``ends``, with these partitions at their first offsets, unless they start below them.
        Other partitions of recreated topics, which have no start yet, wait for the next
        micro-batch.
        """
        firsts = self.view.list_offsets(dict.fromkeys(keys, EARLIEST)) if keys else {}
        next_ends, now, ids = dict(ends), self.view.topic_ids(), self._known_ids()
        for topic in {*anew, *(topic for topic, _ in keys)}:
            of_topic = [key for key in keys if key[0] == topic]
            at = {key: min(starts[key], firsts.get(key, starts[key])) for key in of_topic}
            moves = any(offset < starts[key] for key, offset in at.items())
            # If no offset moves, nothing of the older topic was read, and the stream has reached
            # the new one.
            ids.go_back(topic, now.get(topic), at if moves else {})
            if moves and topic in anew:
                next_ends = {key: end for key, end in next_ends.items() if key[0] != topic}
            next_ends |= at if moves else {}
        ids.arrive(starts)
        return next_ends

    def _known_ids(self) -> StreamTopicIds:
        if self._ids is None:
            kept = TopicIdFile(self._options) if self._options.checkpoint_location else None
            self._ids = StreamTopicIds(kept)
        return self._ids

    def topic_ids(self) -> dict[str, bytes]:
        """The ids of the topics that are read, if they have any: those that the stream's offsets
        belong to, not the current ones.
        """
        return {**self.view.topic_ids(), **self._known_ids().known()}

    def _with_new(
        self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Starts of all partitions in ``ends``: new ones from their earliest offset."""
        new, _ = changed_partitions(starts, ends)
        firsts = self.view.list_offsets(dict.fromkeys(new, EARLIEST)) if new else {}
        return {key: starts.get(key, firsts.get(key, end)) for key, end in ends.items()}

    def _must_wait(
        self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> bool:
        """For minOffsetsPerTrigger, but not longer than maxTriggerDelay, and not when AvailableNow
        must finish.
        """
        least = self._options.min_offsets_per_trigger
        if least is None or self._target is not None:
            return False
        now = time.monotonic()
        waited_ms = (now - self._triggered_at) * 1000
        available = sum(max(0, end - starts[key]) for key, end in ends.items())
        first = self._triggered_at == 0.0
        if not first and available < least and waited_ms < self._options.max_trigger_delay_ms:
            return True
        self._triggered_at = now
        return False

    def _share_bytes(
        self,
        most: int,
        starts: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
    ) -> dict[TopicPartition, int]:
        """Share ``most`` bytes in proportion to what each partition has."""
        ranges = [OffsetRange(*key, starts[key], end) for key, end in ends.items()]
        sizes = self._sizes_of(ranges)
        total = sum(one.count * _mean(sizes.get(one.topic_partition)) for one in ranges)
        if total <= most:
            return dict(ends)
        available = sum(max(0, one.count) for one in ranges)
        return share_limit(max(1, int(available * most / total)), starts, ends)

    def expected(
        self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> list[OffsetRange]:
        """The expected result of ``ranges``; empty if partitions were added or removed, or lost
        records. Sends no requests and reports no loss.
        """
        if set(starts) != set(ends) or _behind(starts, ends):
            return []
        return [
            OffsetRange(*key, starts[key], ends[key])
            for key in sorted(ends)
            if ends[key] > starts[key]
        ]

    def ranges(
        self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> list[OffsetRange]:
        """The ranges of a micro-batch; none is empty."""
        options = self._options
        ids = self._known_ids()
        if ends and not self.latest:
            # A micro-batch planned by an earlier run: its topic ids have not been requested yet.
            self.view.partition_counts({topic for topic, _ in ends})
        anew = ids.anew(self.view.topic_ids())
        ranges = with_attempts(
            options,
            lambda: stream_ranges(
                self.view, options, starts, ends, anew=anew, reported=frozenset(self._reported)
            ),
        )
        self._reported = set()
        return [one for one in ranges if one.count]

    def plan(self, ranges: list[OffsetRange]) -> list[InputPartition]:
        """Tasks of a micro-batch."""
        small = sum(one.count for one in ranges) * RECORD_BYTES_GUESS <= TASK_BYTES_MIN
        sizes = {} if small else self._sizes_of(ranges)
        return plan_tasks(self._options, ranges, sizes, self.topic_ids())

    def _sizes_of(self, ranges: list[OffsetRange]) -> Mapping[TopicPartition, tuple[int, int]]:
        """Mean sizes by partition, at most ``SIZES_TTL_S`` old."""
        now = time.monotonic()
        if self._sizes_at is None or now - self._sizes_at > SIZES_TTL_S:
            self._sizes = mean_sizes(self.view, self._options, ranges)
            self._sizes_at = now
        return self._sizes

    def _commit_group(self, starts: Mapping[TopicPartition, int]) -> None:
        """A failure is logged; the next trigger commits again."""
        group = self._options.group_id
        changed = {key: at for key, at in starts.items() if self._committed.get(key) != at}
        if group is None or not changed:
            return
        try:
            self.view.commit(group, changed)
            self._committed.update(changed)
        except ClientError as error:
            logger.warning("cannot commit the offsets of group %s: %s", group, error)


def _mean(size: tuple[int, int] | None) -> float:
    if size is None or size[0] <= 0 or size[1] <= 0:
        return float(RECORD_BYTES_GUESS)
    return size[0] / size[1]


def _behind(
    starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> list[TopicPartition]:
    return sorted(key for key, end in ends.items() if end < starts.get(key, 0))
