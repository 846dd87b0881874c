"""Fills topics from logs of Kafka 0.7, each message once, over interruptions as well.

Beside the import, in its own directory, are two files for each partition: ``.json`` says how far it
is, ``.offsets`` has the new offset of each old one. What was written since the last note is known
by the end of the target, which nobody else may write to: as many records are read again, but not
written again.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from kbroker.client.batches.offsets import EARLIEST, LATEST, list_offsets
from kbroker.client.batches.produce import BatchProducer
from kbroker.client.connections.cluster import Cluster
from kbroker.legacy.offset_pairs import pair
from kbroker.legacy.old_logs import Bad, ImportLimits, OldLog, OldLogPart, OldPartition


class ImportFailed(Exception):
    """The import cannot go on; it says what to do."""


class Planned(NamedTuple):
    """A partition of 0.7, and the one that it fills, of the topic with the same name."""

    old: OldPartition
    partition: int

    @property
    def target(self) -> str:
        return f"{self.old.topic}-{self.partition}"


class ImportProgress(NamedTuple):
    """position: of the next message in the old log. offset: of the next record. pairs_bytes: of the
    file of offsets. bad: messages left out.
    """

    position: int
    offset: int
    pairs_bytes: int
    bad: int


class ImportCounts:
    """Of all partitions, in this run; ``bytes`` are those of the old logs that are done."""

    def __init__(self) -> None:
        self.records = 0
        self.bad = 0
        self.bytes = 0


class Notes:
    """The files of one partition."""

    def __init__(self, directory: str, planned: Planned) -> None:
        stem = os.path.join(directory, planned.target)
        self._path = f"{stem}.json"
        self.pairs_path = f"{stem}.offsets"
        self._source = planned.old.name

    def read(self) -> ImportProgress | None:
        """None if the import of the partition has not begun. Raises ImportFailed, OSError."""
        try:
            with open(self._path, encoding="utf-8") as file:
                row: Any = json.load(file)
            source = row.pop("source")
            progress = ImportProgress(**{name: int(value) for name, value in row.items()})
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ImportFailed(f"{self._path} is damaged: {error}") from error
        if source != self._source:
            raise ImportFailed(
                f"{self._path} is about {source}, not {self._source}: give each broker its own "
                "id, and all runs the same --state and directories"
            )
        return progress

    def write(self, progress: ImportProgress) -> None:
        """Replace what is noted; it survives a power failure."""
        text = json.dumps({"source": self._source, **progress._asdict()})
        path = f"{self._path}.new"
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"{text}\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(path, self._path)

    def append_pairs(self, at: int, pairs: bytes) -> None:
        """Write pairs at a place of the file, which ends behind them."""
        descriptor = os.open(self.pairs_path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        with open(descriptor, "wb") as file:
            if os.fstat(descriptor).st_size < at:
                raise ImportFailed(f"{self.pairs_path} has become shorter")
            file.truncate(at)
            file.seek(at)
            file.write(pairs)
            file.flush()
            os.fsync(descriptor)


class OldImport:
    """notes: a directory. name_bad: is told of each message that is left out. report: is called
    after each step. Use it in one thread.
    """

    def __init__(
        self,
        cluster: Cluster,
        notes: str,
        limits: ImportLimits,
        *,
        name_bad: Callable[[Planned, Bad], None],
        report: Callable[[ImportCounts], None],
    ) -> None:
        self._cluster = cluster
        self._notes = notes
        self._limits = limits
        self._name_bad = name_bad
        self._report = report
        self.counts = ImportCounts()

    def run(self, plan: list[Planned]) -> None:
        """Raises ImportFailed, OldLogError, OSError, ClientError."""
        producer = BatchProducer(self._cluster)
        try:
            for planned in plan:
                self._fill(producer, planned)
        finally:
            producer.close()

    def _fill(self, producer: BatchProducer, planned: Planned) -> None:
        notes = Notes(self._notes, planned)
        progress, skip = self._begin(notes, planned)
        log = OldLog(planned.old, self._limits)
        self.counts.bytes += planned.old.size_before(progress.position)
        for step in log.steps(progress.position, progress.offset, skip):
            for bad in step.bad:
                self._name_bad(planned, bad)
                self.counts.bad += bad.messages
            if step.region is not None:
                self._write(producer, planned, step)
                skip = step.region.skip
            progress = self._note(notes, planned, progress, step)
            self._report(self.counts)
        if skip:
            raise ImportFailed(
                f"{planned.target} has {skip:,} records more than {planned.old.name}: it was "
                "written to by something else"
            )
        # Again after each run: a last pair for the end, behind which the next run continues.
        notes.append_pairs(progress.pairs_bytes, pair(progress.position, progress.offset))
        notes.write(progress)

    def _begin(self, notes: Notes, planned: Planned) -> tuple[ImportProgress, int]:
        """And how many records were written since it was noted."""
        key = (planned.old.topic, planned.partition)
        end = list_offsets(self._cluster, {key: LATEST})[key].offset
        progress = notes.read()
        if progress is None:
            start = list_offsets(self._cluster, {key: EARLIEST})[key].offset
            if start or end:
                raise ImportFailed(
                    f"{planned.target} is not empty (offsets {start} to {end}), and nothing is "
                    "noted about its import: only new topics are filled"
                )
            progress = ImportProgress(planned.old.start, 0, 0, 0)
            notes.append_pairs(0, b"")
            notes.write(progress)
        if end < progress.offset:
            raise ImportFailed(
                f"{planned.target} ends at offset {end}, but {progress.offset} records were "
                "imported: to begin again, delete the topic and the files about it in --state"
            )
        return progress, end - progress.offset

    def _write(self, producer: BatchProducer, planned: Planned, step: OldLogPart) -> None:
        assert step.region is not None
        batches = step.region.batches
        topic, partition = planned.old.topic, planned.partition
        for batch, records in batches:
            producer.send(topic, partition, batch, records)
        producer.flush()
        if not batches:
            return
        expected = step.region.offset - batches[-1][1]
        last_offset = producer.last_offsets[topic, partition]
        if last_offset != expected:
            raise ImportFailed(
                f"{planned.target}: records got offset {last_offset} instead of {expected}, so "
                "something else writes to it: delete the topic and the files about it in --state, "
                "and begin again when nothing does"
            )
        self.counts.records += sum(records for _, records in batches)

    def _note(
        self, notes: Notes, planned: Planned, before: ImportProgress, step: OldLogPart
    ) -> ImportProgress:
        pairs = b"" if step.region is None else step.region.pairs
        notes.append_pairs(before.pairs_bytes, pairs)
        after = ImportProgress(
            step.position,
            before.offset if step.region is None else step.region.offset,
            before.pairs_bytes + len(pairs),
            before.bad + sum(bad.messages for bad in step.bad),
        )
        notes.write(after)
        self.counts.bytes += planned.old.size_before(after.position)
        self.counts.bytes -= planned.old.size_before(before.position)
        return after


def every(seconds: float, report: Callable[[ImportCounts], None]) -> Callable[[ImportCounts], None]:
    """Pass a report on at most so often."""
    due = [time.monotonic() + seconds]

    def limited(counts: ImportCounts) -> None:
        if time.monotonic() >= due[0]:
            due[0] = time.monotonic() + seconds
            report(counts)

    return limited


def noted(directory: str) -> Iterator[str]:
    """The targets that an import has begun with, as ``TOPIC-N``."""
    for name in sorted(os.listdir(directory)):
        if name.endswith(".offsets"):
            yield name.removesuffix(".offsets")
