"""The tier ``load`` of a folder or table: what a reader of it sees, which is not always what was
loaded.

Where a reader sees exactly the files of the commits, the commits say how many rows of each bucket
are in them. Where other writers have rewritten files or deleted rows, or files were removed or
copied by hand, the rows of the files are counted, whoever wrote them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kbroker.spark.audit.counts import LOAD_TIER, bucket_counts, merge
from kbroker.spark.audit.report import Count
from kbroker.spark.load.commits import RECOVER, RELOAD, Commit, CommitState, LoadError
from kbroker.spark.load.directory import Directory
from kbroker.spark.load.log import CommitLog
from kbroker.spark.load.seen import SeenFile
from kbroker.spark.plan import TASKS_PER_CORE, shares
from kbroker.wording import counted

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from kbroker.spark.direct import Result, Runner

# While files are counted, a reload, a merge or an expiry may remove some of them.
_TURNS = 3
_TIME = "timestamp"


@dataclass(frozen=True, slots=True)
class FilesWork:
    """Counts the rows of data files by their times; see ``kbroker.spark.direct.Work``.

    from_ms: rows before it need not be counted.
    """

    root: str
    bucket_ms: int
    from_ms: int | None

    def __call__(self, groups: Sequence[list[SeenFile]], attempt: str) -> list[Result]:
        return [self._counted(one) for files in groups for one in files]

    def _counted(self, one: SeenFile) -> Result:
        import pyarrow as pa
        import pyarrow.parquet as pq

        counts: dict[int, int] = {}
        try:
            with pq.ParquetFile(
                Path(self.root) / one.path, coerce_int96_timestamp_unit="us"
            ) as file:
                for times in _times(file, one.deleted, self.from_ms):
                    merge(counts, bucket_counts(times, self.bucket_ms))
        except FileNotFoundError:
            return {"gone": one.path}
        except (pa.ArrowException, OSError) as err:
            raise LoadError(f"{one.path} cannot be read: {err}") from err
        return {"topic": one.topic, "counts": counts}


def _times(
    file: pq.ParquetFile, deleted: pa.Array | None, from_ms: int | None
) -> Iterator[pa.Array]:
    """The times of the rows in a file, as microseconds; null for rows without any."""
    import pyarrow as pa
    import pyarrow.compute as pc

    has_times = _TIME in file.schema_arrow.names
    type_us = pa.timestamp("us", tz="UTC")
    if has_times and not pa.types.is_timestamp(time_type := file.schema_arrow.field(_TIME).type):
        raise pa.ArrowTypeError(f"its column {_TIME} is of type {time_type}")
    first = 0
    for number in range(file.num_row_groups):
        group = file.metadata.row_group(number)
        rows = group.num_rows
        if not (has_times and _ends_before(file, group, from_ms)):
            times = (
                file.read_row_group(number, columns=[_TIME]).column(0).combine_chunks()
                if has_times
                else pa.nulls(rows, type_us)
            )
            # Other writers may have chosen another unit.
            times = times if times.type.unit == "us" else times.cast(type_us, safe=False)
            if deleted is not None:
                positions = pa.array(range(first, first + rows), pa.int64())
                times = times.filter(pc.invert(pc.is_in(positions, value_set=deleted)))
            yield times
        first += rows


def _ends_before(file: pq.ParquetFile, group: Any, from_ms: int | None) -> bool:
    """Whether all rows of a row group are older, as far as its statistics say."""
    if not from_ms or from_ms < 0 or file.schema_arrow.field(_TIME).type.unit != "us":
        return False
    for index in range(group.num_columns):
        column = group.column(index)
        if column.path_in_schema == _TIME:
            statistics = column.statistics
            has_all = (
                statistics is not None
                and statistics.has_min_max
                and column.physical_type == "INT64"
            )
            return bool(has_all and statistics.max_raw < from_ms * 1000)
    return False


def loaded(
    destination: Directory, runner: Runner, *, bucket_ms: int, from_ms: int | None = None
) -> list[Count]:
    """The counts of a folder or table, from ``from_ms`` on at least. Raises LoadError."""
    for turn in range(_TURNS):
        state = destination.log.state()
        seen = destination.seen()
        if _is_as_loaded(destination.root, state, seen):
            counts = of_commits(destination.log, bucket_ms, state.number)
            if counts is not None:
                return counts
        work = FilesWork(str(destination.root), bucket_ms, from_ms)
        wanted = runner.parallelism * TASKS_PER_CORE
        tasks = [[files] for files in shares(seen, wanted)]
        results = runner.run(tasks, work, "kbroker-audit files")
        gone = [one["gone"] for one in results if "gone" in one]
        if not gone or turn == _TURNS - 1:
            break
    if gone:
        print(
            f"kbroker-audit: {counted(len(gone), 'file')} of {destination.root} missing, such as "
            f"{gone[0]}: readers fail there, and the rows are not counted",
            file=sys.stderr,
            flush=True,
        )
    times = LoadTimes(destination.log, bucket_ms, state.written_ms)
    return [
        times.count(one["topic"], int(bucket), count)
        for one in results
        if "gone" not in one
        for bucket, count in one["counts"].items()
    ]


def _is_as_loaded(root: Path, state: CommitState, seen: Sequence[SeenFile]) -> bool:
    """Whether readers see the files of the log, all of them, whole, and no others."""
    if len(seen) != len(state.files):
        return False
    for one in seen:
        listed = state.files.get(one.path)
        if listed is None or one.deleted is not None:
            return False
        try:
            size = (root / one.path).stat().st_size
        except OSError:
            return False
        if size != listed.bytes:
            return False
    return True


def of_commits(log: CommitLog, bucket_ms: int, last: int) -> list[Count] | None:
    """The sum of a log's commits up to ``last``. None if some have expired or were rebuilt from
    files, something was loaded again, or their buckets have another size: then the records must be
    counted.
    """
    commits = [one for one in log.after(0) if one.number <= last]
    whole = [one.number for one in commits] == list(range(1, last + 1))
    # A commit that loaded nothing, such as one that fences another run, has no buckets.
    same = all(one.bucket_ms == bucket_ms for one in commits if one.counts)
    if not whole or not same or any(one.kind in (RELOAD, RECOVER) for one in commits):
        return None
    return [
        Count(topic, bucket, LOAD_TIER, count, one.written_ms)
        for one in commits
        for topic, buckets in one.counts.items()
        for bucket, count in buckets.items()
    ]


class LoadTimes:
    """When the rows of a bucket were loaded, as far as the commits that are kept say.

    written_ms: of the newest commit, for buckets of which no kept commit says anything.
    """

    def __init__(self, log: CommitLog, bucket_ms: int, written_ms: int) -> None:
        self._bucket_ms = bucket_ms
        self._written_ms = written_ms
        # size of larger buckets that commits have counted by
        self._sizes: set[int] = set()
        self._found: dict[tuple[int, str, int], int] = {}
        for one in log.after(0):
            self._add(one)

    def _add(self, one: Commit) -> None:
        size = max(one.bucket_ms, self._bucket_ms)
        if one.counts:
            self._sizes.add(size)
        for topic, buckets in one.counts.items():
            for bucket in buckets:
                key = (size, topic, bucket // size)
                self._found[key] = max(one.written_ms, self._found.get(key, 0))

    def count(self, topic: str, bucket: int, count: int) -> Count:
        """The count of one of the report's buckets, with its time."""
        known = [
            at
            for size in self._sizes
            if (at := self._found.get((size, topic, bucket // size))) is not None
        ]
        return Count(topic, bucket, LOAD_TIER, count, max(known, default=self._written_ms))
