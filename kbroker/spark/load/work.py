"""The work of a load task: read its ranges, decode, write, and return what it wrote."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from kbroker.client.errors import OffsetOutOfRange
from kbroker.spark.load import points
from kbroker.spark.load.commits import Ends, Gap, LoadedFile, LoadedRange, TopicPartition
from kbroker.spark.load.positions import DataLossError, PositionBounds
from kbroker.spark.plan import OffsetRange

if TYPE_CHECKING:
    import pyarrow as pa

    from kbroker.spark.direct import Result
    from kbroker.spark.load.decode import RowDecoder
    from kbroker.spark.load.destination import TaskSink


class LoadSource(Protocol):
    """The source of records. It is sent to executors, so it pickles and holds no connection."""

    def bounds(self) -> dict[TopicPartition, PositionBounds]:
        """The present bounds of every partition of the requested topics."""
        ...

    def offsets_at(
        self, partitions: Sequence[TopicPartition], time_ms: int
    ) -> dict[TopicPartition, int]:
        """The first offset at or after a time; the log end offset if there is none."""
        ...

    def read(self, one: OffsetRange) -> Iterator[pa.RecordBatch]:
        """The records of a range, in order; called in a task."""
        ...

    def commit_group(self, group: str, ends: Ends) -> None:
        """Store ``ends`` as the group's offsets. Raises ClientError."""
        ...


@dataclass(frozen=True, slots=True)
class LoadWork:
    """The work of a task on its ranges; see ``kbroker.spark.direct.Work``."""

    source: LoadSource
    sink: TaskSink
    decoder: RowDecoder | None
    # whether to continue after records that are deleted before they are read
    allow_loss: bool = False

    def __call__(self, ranges: Sequence[OffsetRange], attempt: str) -> list[Result]:
        results = []
        for index, one in enumerate(ranges):
            results.append(self._load(one, f"{attempt}-{index}"))
            points.reach("task-staged")
        return results

    def _load(self, one: OffsetRange, attempt: str) -> Result:
        gaps: list[Gap] = []
        batches = self._read(one, gaps)
        first = next(batches, None)
        # File names contain their start, so that a reload from there requests existing offsets.
        held = replace(one, start=gaps[-1].end if gaps else one.start)
        writer = self.sink.open(held, attempt)
        errors = None
        for batch in itertools.chain([first] if first is not None else [], batches):
            good, bad = (batch, None) if self.decoder is None else self.decoder.split(batch)
            writer.write(good)
            if bad is not None and bad.num_rows:
                errors = errors or self.sink.open_errors(held, attempt)
                errors.write(bad)
        written = writer.finish()
        rejected = errors.finish() if errors is not None else None
        return {
            "range": asdict(
                LoadedRange(
                    one.topic, one.partition, one.start, one.end, written.rows, written.bytes
                )
            ),
            "files": _results_of(written.files, one.topic_id),
            "errors": _results_of(rejected.files if rejected else (), one.topic_id),
            "counts": {str(bucket): count for bucket, count in written.counts.items()},
            "gaps": [asdict(gap) for gap in gaps],
        }

    def _read(self, one: OffsetRange, gaps: list[Gap]) -> Iterator[pa.RecordBatch]:
        """The records that still exist; those deleted since the plan are in ``gaps``.

        Raises DataLossError where that is not allowed.
        """
        start = one.start
        while start < one.end:
            try:
                yield from self.source.read(replace(one, start=start))
                return
            except OffsetOutOfRange as err:
                if err.log_start <= err.wanted:
                    raise  # the log was cut: another plan will see it
                start = min(err.log_start, one.end)
                gap = Gap(one.topic, one.partition, err.wanted, start)
                if not self.allow_loss:
                    raise DataLossError(
                        f"data is lost, so nothing was loaded: {deleted(gap)}. With "
                        "--allow-data-loss, the load continues with what is left"
                    ) from err
                gaps.append(gap)


def _results_of(files: Sequence[LoadedFile], topic_id: str) -> list[dict[str, Any]]:
    return [asdict(replace(file, topic_id=topic_id)) for file in files]


def deleted(gap: Gap) -> str:
    """Describe a gap that a task has found."""
    return (
        f"{gap.topic} partition {gap.partition}: offsets {gap.start} to {gap.end} were deleted "
        "before they were read"
    )
