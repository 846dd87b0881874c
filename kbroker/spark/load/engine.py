"""A run of a load: recover, plan, stage in tasks, check, commit and publish, until nothing is left.

The steps and their order are the protocol of ``docs/formats/load-commits.md``. The newest commit
says where to continue, never the group's offsets: those follow the commits, for tools that show
lag. A run may make many commits; one covers at most ``commit_bytes``, so that a
large backlog is not lost with the last of its tasks.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kbroker.client.errors import ClientError
from kbroker.spark.load import commits, points
from kbroker.spark.load.commits import (
    Commit,
    Ends,
    LoadedFile,
    LoadedRange,
    LoadError,
    TopicPartition,
)
from kbroker.spark.load.destination import discarding
from kbroker.spark.load.positions import (
    PositionBounds,
    again_ranges,
    check_complete,
    made_anew,
    reloaded,
    restarted,
    wanted_ranges,
    with_begins,
    within,
)
from kbroker.spark.load.work import LoadSource, LoadWork, deleted
from kbroker.spark.plan import OffsetRange, pack_ranges, plan_ranges, with_sizes
from kbroker.wording import counted

if TYPE_CHECKING:
    from kbroker.spark.direct import Result, Runner
    from kbroker.spark.load.decode import RowDecoder
    from kbroker.spark.load.destination import Destination


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """The settings of a run. None means no limit."""

    load: str
    group: str | None = None
    first: Mapping[TopicPartition, int] = field(default_factory=dict)
    first_ms: int | None = None
    records_max: int | None = None
    bytes_max: int | None = None
    seconds_max: float | None = None
    commit_bytes: int = 4 << 30
    allow_loss: bool = False
    fail_on_error: bool = False
    by_partition: bool = False
    bucket_ms: int = 600_000


@dataclass(frozen=True, slots=True)
class Step:
    """The result of a commit, for its line of output."""

    commit: Commit
    seconds: float
    # topic -> records that are on the broker and not loaded yet
    lag: dict[str, int]
    # a text for each partition that did not continue at its offset
    lost: tuple[str, ...] = ()
    # why the group's offsets were not stored; empty if they were, or if there is no group
    not_stored: str = ""


class Load:
    """Loads from ``source`` into ``destination``; the caller holds the destination's lock."""

    def __init__(
        self,
        source: LoadSource,
        destination: Destination,
        runner: Runner,
        settings: LoadSettings,
        *,
        decoder: RowDecoder | None = None,
        report: Callable[[Step], None] = lambda step: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """clock: seconds, for how long things take; commits have the time of day."""
        self._source = source
        self._destination = destination
        self._runner = runner
        self._settings = settings
        self._decoder = decoder
        self._report = report
        self._clock = clock
        self.run = uuid.uuid4().hex[:12]
        self._mean: dict[str, float] = {}
        # The part of the run's limits that ``catch_up`` has used, over all its calls.
        self._begun: float | None = None
        self._records = self._bytes = 0

    # -- one run

    def catch_up(self) -> list[Commit]:
        """Load what is available now, within the remaining limits; returns the commits made.

        Raises LoadError, of which DataLossError and LostRaceError are kinds; TaskError when a task
        failed permanently. Whatever it raises, the destination holds exactly its commits.
        """
        newest = self._destination.recover(self.fence)
        points.reach("recovered")
        if self._begun is None:
            self._begun = self._clock()
        target = self._source.bounds()
        made: list[Commit] = []
        while not self.is_over:
            settings = self._settings
            left = None if settings.records_max is None else settings.records_max - self._records
            room = None if settings.bytes_max is None else settings.bytes_max - self._bytes
            done = self._step(newest, target, left, room)
            if done is None:
                break
            made.append(done)
            newest = done
            self._records += sum(one.end - one.start for one in done.ranges)
            self._bytes += sum(one.bytes for one in done.ranges)
        return made

    @property
    def is_over(self) -> bool:
        """Whether a limit of the run is reached."""
        settings = self._settings
        since = 0.0 if self._begun is None else self._clock() - self._begun
        return (
            (settings.seconds_max is not None and since >= settings.seconds_max)
            or (settings.records_max is not None and self._records >= settings.records_max)
            or (settings.bytes_max is not None and self._bytes >= settings.bytes_max)
        )

    def _step(
        self,
        newest: Commit | None,
        target: dict[TopicPartition, PositionBounds],
        records: int | None,
        size: int | None,
    ) -> Commit | None:
        """One commit; None if everything up to ``target`` is loaded."""
        known = newest.ends if newest is not None else {}
        anew = made_anew(newest.topics, target) if newest is not None else set()
        first = self._first(target, known)
        wanted, gaps, lost = wanted_ranges(
            known, first, target, allow_loss=self._settings.allow_loss, anew=anew
        )
        self._destination.require_room(anew)
        ends = with_begins(restarted(known, anew, target), first, target, wanted)
        sizes = {one: (found.size_bytes, found.end - found.start) for one, found in target.items()}
        sized = with_sizes(wanted, sizes, self._mean)
        limit = min(self._settings.commit_bytes, size if size is not None else 1 << 62)
        chosen = within(sized, records=records, size_bytes=limit)
        if not chosen and not gaps and ends == known:
            return None
        # May start Spark, whose start time does not count for the commit.
        parallelism = self._runner.parallelism if chosen else 1
        begun = self._clock()
        planned = plan_ranges(
            chosen, default_parallelism=parallelism, by_partition=self._settings.by_partition
        )
        tasks: list[list[OffsetRange]] = (
            [[one] for one in planned]
            if self._settings.by_partition
            else pack_ranges(planned, default_parallelism=parallelism)
        )
        points.reach("planned")
        results = self._tasks(planned, tasks, commits.LOAD)
        points.reach("staged")
        late = [commits.Gap(**gap) for result in results for gap in result["gaps"]]
        late.sort(key=lambda gap: (gap.topic, gap.partition, gap.start))
        lost += map(deleted, late)
        gaps += late
        made = self._commit(newest, results, commits.LOAD, target, gaps=gaps, ends=ends)
        self._learn(made)
        lag = _lag(target, made.ends)
        not_stored = self._store_group(made, target)
        self._report(Step(made, self._clock() - begun, lag, tuple(lost), not_stored))
        return made

    def _tasks(
        self, planned: list[OffsetRange], tasks: list[list[OffsetRange]], kind: str
    ) -> list[Result]:
        """Results that may be committed. tasks: contain all that is planned."""
        about = {
            "load": self._settings.load,
            "run": self.run,
            "kind": kind,
            "written_ms": str(_now_ms()),
        }
        # Offsets that cannot be read again must not be forgotten.
        allow_loss = self._settings.allow_loss and kind == commits.LOAD
        sink = self._destination.task_sink(self.run, about)
        work = LoadWork(self._source, sink, self._decoder, allow_loss)
        with discarding(self._destination, self.run):
            results = self._runner.run(tasks, work, f"kbroker-load {self._settings.load}")
            check_complete(planned, [_range_of(one) for one in results])
            if self._settings.fail_on_error:
                _fail_on_errors(results)
        return results

    def _first(
        self, target: dict[TopicPartition, PositionBounds], ends: Ends
    ) -> Mapping[TopicPartition, int]:
        """The start offsets of partitions that were never loaded."""
        if self._settings.first_ms is None:
            return self._settings.first
        fresh = [one for one in target if one[1] not in ends.get(one[0], {})]
        offsets = self._source.offsets_at(fresh, self._settings.first_ms) if fresh else {}
        return {**offsets, **self._settings.first}

    def _learn(self, made: Commit) -> None:
        """Bytes of a record by topic, for the next plan."""
        rows: dict[str, int] = {}
        size: dict[str, int] = {}
        for one in made.ranges:
            rows[one.topic] = rows.get(one.topic, 0) + one.end - one.start
            size[one.topic] = size.get(one.topic, 0) + one.bytes
        for topic, count in rows.items():
            self._mean[topic] = max(1.0, size[topic] / count)

    # -- commits

    def _commit(
        self,
        newest: Commit | None,
        results: Sequence[Result],
        kind: str,
        bounds: Mapping[TopicPartition, PositionBounds],
        *,
        ends: Ends,
        gaps: Sequence[commits.Gap] = (),
        removed: Sequence[str] = (),
    ) -> Commit:
        """bounds: used for planning. ends: before the results are added."""
        ranges = tuple(LoadedRange(**one["range"]) for one in results)
        after = commits.merged_ends(ends, [*gaps, *ranges])
        known = newest.topics if newest is not None else {}
        ids = {topic: one.topic_id for (topic, _), one in bounds.items() if one.topic_id}
        made = Commit(
            number=newest.number + 1 if newest is not None else 1,
            kind=kind,
            load=self._settings.load,
            run=self.run,
            written_ms=_now_ms(),
            ends=after,
            ranges=ranges,
            added=tuple(LoadedFile(**one) for result in results for one in result["files"]),
            removed=tuple(removed),
            errors=_errors(results),
            gaps=tuple(gaps),
            counts=_counts(results),
            bucket_ms=self._settings.bucket_ms,
            topics={topic: one for topic, one in {**known, **ids}.items() if topic in after},
        )
        self._destination.commit(made)
        points.reach("committed")
        self._destination.publish(made)
        points.reach("published")
        self._destination.ended(made)
        return made

    def _store_group(self, made: Commit, bounds: Mapping[TopicPartition, PositionBounds]) -> str:
        """Commit the group's offsets; returns why that failed, if it did. Nothing depends on them,
        so the run continues anyway.

        bounds: the partitions that this run is about. A commit has the ends of all others as well,
        whose topics may be gone, or another cluster's.
        """
        if not self._settings.group:
            return ""
        ends: Ends = {}
        for topic, partition in bounds:
            if partition in made.ends.get(topic, {}):
                ends.setdefault(topic, {})[partition] = made.ends[topic][partition]
        try:
            self._source.commit_group(self._settings.group, ends)
        except ClientError as err:
            return str(err)
        return ""

    def fence(self, newest: Commit | None) -> Commit:
        """An empty commit that takes the next number from a run that may still be alive."""
        made = Commit(
            number=newest.number + 1 if newest is not None else 1,
            kind=commits.OPEN,
            load=self._settings.load,
            run=self.run,
            written_ms=_now_ms(),
            ends=newest.ends if newest is not None else {},
            topics=newest.topics if newest is not None else {},
        )
        self._destination.commit(made)
        return made

    # -- load again

    def rewind(self, starts: Mapping[TopicPartition, int]) -> Commit | None:
        """Replace what was loaded from ``starts`` on by loading it again, in one commit.

        The new files take the place of the old ones when that commit is published. Limits do not
        hold for it, nor does ``allow_loss``: what cannot be read again must not be forgotten. None
        when nothing was loaded from there on.

        Raises as ``catch_up`` does; then everything is as it was.
        """
        newest = self._destination.recover(self.fence)
        points.reach("recovered")
        if newest is None:
            return None
        state = self._destination.log.state()
        files = [*state.files.values(), *state.errors.values()]
        ends, removed = reloaded(files, newest.ends, starts, newest.topics)
        if ends == newest.ends:
            return None
        bounds = self._source.bounds()
        again = {
            (topic, partition): bounds.get((topic, partition), PositionBounds(0, 0))
            for topic, of_topic in ends.items()
            for partition, offset in of_topic.items()
            if offset != newest.ends[topic][partition]
        }
        wanted = again_ranges(ends, newest.ends, again, newest.topics, removed)
        begun = self._clock()
        planned = plan_ranges(with_sizes(wanted), default_parallelism=self._runner.parallelism)
        tasks = pack_ranges(planned, default_parallelism=self._runner.parallelism)
        points.reach("planned")
        results = self._tasks(planned, tasks, commits.RELOAD)
        points.reach("staged")
        made = self._commit(
            newest,
            results,
            commits.RELOAD,
            bounds,
            removed=[one.path for one in removed],
            ends=ends,
        )
        not_stored = self._store_group(made, bounds)
        lag = _lag(bounds, made.ends)
        self._report(Step(made, self._clock() - begun, lag, not_stored=not_stored))
        return made


def _now_ms() -> int:
    return int(time.time() * 1000)


def _range_of(result: Result) -> OffsetRange:
    bounds = result["range"]
    return OffsetRange(bounds["topic"], bounds["partition"], bounds["start"], bounds["end"])


def _errors(results: Sequence[Result]) -> tuple[LoadedFile, ...]:
    from kbroker.spark.load.layout import ERRORS

    files = (LoadedFile(**one) for result in results for one in result["errors"])
    return tuple(replace(one, path=f"{ERRORS}/{one.path.rpartition('/')[2]}") for one in files)


def _fail_on_errors(results: Sequence[Result]) -> None:
    """Raises LoadError when there are bad values."""
    errors = _errors(results)
    if errors:
        bad = sum(one.rows for one in errors)
        first = errors[0]
        raise LoadError(
            f"{counted(bad, 'record')} cannot be decoded, so nothing was loaded; the first is in "
            f"{first.topic} partition {first.partition} at offset {first.first_offset}. Without "
            "--fail-on-error, they are set aside and the rest is loaded"
        )


def _counts(results: Sequence[Result]) -> dict[str, dict[int, int]]:
    counts: dict[str, dict[int, int]] = {}
    for result in results:
        of_topic = counts.setdefault(result["range"]["topic"], {})
        for bucket, count in result["counts"].items():
            of_topic[int(bucket)] = of_topic.get(int(bucket), 0) + count
    return counts


def _lag(bounds: Mapping[TopicPartition, PositionBounds], ends: Ends) -> dict[str, int]:
    lags: dict[str, int] = {}
    for (topic, partition), one in bounds.items():
        loaded = ends.get(topic, {}).get(partition, one.start)
        lags[topic] = lags.get(topic, 0) + max(0, one.end - loaded)
    return lags
