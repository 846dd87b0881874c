"""Operations on a destination besides loading.

``verify`` reads every file that the log lists; ``compact`` merges the small files of each hour,
in a commit under the rules of any run.
"""

from __future__ import annotations

import itertools
import os
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from kbroker.spark.load import layout
from kbroker.spark.load.columns import schema_of_file
from kbroker.spark.load.commits import COMPACT, OPEN, Commit, CommitState, LoadedFile, LoadError
from kbroker.spark.load.destination import discarding
from kbroker.spark.load.directory import Directory
from kbroker.spark.load.footers import REPLACES, checksum_of, loaded_ms, replaced_names
from kbroker.spark.load.writer import FileOptions, RangeWriter
from kbroker.spark.plan import TASK_BYTES_MAX, TASKS_PER_CORE, shares

if TYPE_CHECKING:
    from kbroker.spark.direct import Result, Runner

_MERGE_ROWS = 65_536


def verify(destination: Directory, *, deep: bool = True) -> Iterator[str]:
    """One line for each problem: a log that does not belong to the files; a file missing, changed,
    unreadable or not in the log; rows that differ from the log; offsets loaded twice.

    What a run changes meanwhile is not wrong, nor what the newest commit still has to publish.

    deep: also read every row's offset; without it sizes and checksums have to do.
    """
    log = destination.log
    if (said := destination.disagreement()) is not None:
        yield said
    before = log.state()
    suspects = {path for path, _ in _verify_files(destination, before, deep)}
    present = {
        path.relative_to(destination.root).as_posix()
        for path in (destination.root / layout.DATA).rglob("*.parquet")
    }
    # A run may have replaced files since ``before``: differences are checked again.
    state = log.state()
    moving = destination.moving()
    for _, line in _verify_files(destination, state, deep, suspects - moving):
        yield line
    if not destination.is_table:
        for stray in sorted(present - set(state.files) - moving):
            if (destination.root / stray).exists():
                yield f"{stray}: no commit lists it"
    yield from _verify_offsets(state)


def _verify_files(
    destination: Directory, state: CommitState, deep: bool, among: set[str] | None = None
) -> Iterator[tuple[str, str]]:
    """Paths, and their problems."""

    def chosen(files: dict[str, LoadedFile]) -> list[LoadedFile]:
        return [one for path, one in files.items() if among is None or path in among]

    files = chosen(state.files)
    gone = destination.out_of_place(files)
    for one in files:
        if one.path in gone:
            yield one.path, f"{one.path}: {gone[one.path]}"
            continue
        try:
            for line in _verify_file(destination.root, one, deep):
                yield one.path, line
        except FileNotFoundError:
            yield one.path, f"{one.path}: missing"
    for one in chosen(state.errors):
        # An operator who has dealt with the records of such a file may remove it.
        with suppress(FileNotFoundError):
            for line in _verify_file(destination.root, one, deep):
                yield one.path, line


def _verify_file(root: Path, one: LoadedFile, deep: bool) -> Iterator[str]:
    """Raises FileNotFoundError."""
    path = root / one.path
    size = path.stat().st_size
    if size != one.bytes:
        yield f"{one.path}: {size} bytes, but the log says {one.bytes}"
        return
    if checksum_of(path) != one.checksum:
        yield f"{one.path}: its checksum differs from the log, so it has been changed"
        return
    try:
        file = pq.ParquetFile(path)
        if file.metadata.num_rows != one.rows:
            yield f"{one.path}: {file.metadata.num_rows} rows, but the log says {one.rows}"
        if deep:
            yield from _verify_rows(file, one)
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as err:
        yield f"{one.path}: cannot be read: {err}"


def _verify_rows(file: pq.ParquetFile, one: LoadedFile) -> Iterator[str]:
    offsets = file.read(["offset"]).column(0).to_numpy()
    if len(offsets) and (offsets[1:] <= offsets[:-1]).any():
        yield f"{one.path}: offsets are not increasing"
    if len(offsets) and not (one.start <= offsets[0] and offsets[-1] < one.end):
        yield f"{one.path}: offsets {offsets[0]} to {offsets[-1]} are outside its range"


def _verify_offsets(state: CommitState) -> Iterator[str]:
    """Files of one folder have consecutive offsets; none is past the end. Topics that were
    recreated under the same name have separate offsets.
    """
    folders: dict[tuple[str, str, int, str], list[LoadedFile]] = defaultdict(list)
    for one in state.files.values():
        folder = os.path.dirname(one.path)
        folders[one.topic, one.topic_id, one.partition, folder].append(one)
        loaded = state.ends.get(one.topic, {}).get(one.partition, 0)
        is_current = one.topic_id in ("", state.topics.get(one.topic, ""))
        if is_current and one.end > loaded:
            yield f"{one.path}: ends at {one.end}, but the log ends at {loaded}"
    for in_folder in folders.values():
        ordered = sorted(in_folder, key=lambda one: one.first_offset)
        for before, after in itertools.pairwise(ordered):
            if after.first_offset <= before.last_offset:
                yield f"{after.path}: begins before {before.path} ends"


@dataclass(frozen=True, slots=True)
class MergeWork:
    """Merges groups of files, in a task; see ``kbroker.spark.direct.Work``."""

    root: str
    staging: str
    files: FileOptions
    run: str
    written_ms: int

    def __call__(self, groups: Sequence[list[LoadedFile]], attempt: str) -> list[Result]:
        return [
            asdict(self._merge(files, f"{attempt}-{index}")) for index, files in enumerate(groups)
        ]

    def _merge(self, files: list[LoadedFile], attempt: str) -> LoadedFile:
        root = Path(self.root)
        folder = os.path.dirname(files[0].path)
        where = (
            files[0].topic,
            files[0].partition,
            min(one.start for one in files),
            max(one.end for one in files),
        )
        replaced = [os.path.basename(one.path) for one in files]
        loaded = 0
        for one in files:
            footer = pq.read_metadata(root / one.path).metadata
            replaced += replaced_names(footer)
            loaded = max(loaded, loaded_ms(footer))
        about = {
            "run": self.run,
            "kind": COMPACT,
            "written_ms": str(self.written_ms),
            "loaded_ms": str(loaded),
            REPLACES: " ".join(replaced),
        }
        if files[0].topic_id:
            about["topic_id"] = files[0].topic_id
        options = replace(self.files, partition_by="none", file_bytes=1 << 62)
        writer = RangeWriter(root, self.staging, where, attempt, options, about)
        for one in files:
            for piece in pq.ParquetFile(root / one.path).iter_batches(_MERGE_ROWS):
                writer.write(piece)
        (merged,) = writer.finish().files
        if merged.rows != sum(one.rows for one in files):
            raise LoadError(
                f"{folder}: {merged.rows} rows after merging, which differs from the input"
            )
        path = f"{folder}/{os.path.basename(merged.path)}"
        return replace(merged, path=path, topic_id=files[0].topic_id)


def compact(
    destination: Directory,
    load: str,
    runner: Runner,
    *,
    file_bytes: int,
    older_than_ms: int | None = None,
) -> Commit | None:
    """Merge the files of each topic, partition and hour that together make at most ``file_bytes``.

    Rows keep the order of their offsets. One commit for everything; None if there was nothing to
    merge. older_than_ms: leave files alone that have a record after that time. The caller holds
    the destination's lock.
    """
    run = uuid.uuid4().hex[:12]
    newest = destination.recover(lambda last: _write(destination, load, run, OPEN, last))
    if newest is None:
        return None
    folders: dict[tuple[str, str, int, str], list[LoadedFile]] = defaultdict(list)
    files = destination.log.state().files
    gone = destination.out_of_place(files.values())  # deleted by hand, or rewritten by others
    for one in files.values():
        if one.path not in gone:
            folder = os.path.dirname(one.path)
            folders[one.topic, one.topic_id, one.partition, folder].append(one)
    batches = [
        batch
        for in_folder in folders.values()
        for neighbours in _alike(destination.root, in_folder, older_than_ms)
        for batch in _batches(neighbours, file_bytes)
    ]
    if not batches:
        return None
    work = MergeWork(
        str(destination.root),
        f"{layout.STAGING}/{run}",
        destination.files,
        run,
        int(time.time() * 1000),
    )
    with discarding(destination, run):
        results = runner.run(
            _tasks(batches, runner.parallelism), work, f"kbroker-load {load} compact"
        )
    added = tuple(LoadedFile(**result) for result in results)
    removed = tuple(one.path for batch in batches for one in batch)
    made = _write(destination, load, run, COMPACT, newest, added, removed)
    destination.publish(made)
    destination.ended(made)
    return made


def _tasks(batches: list[list[LoadedFile]], parallelism: int) -> list[list[list[LoadedFile]]]:
    """A few batches for each core, as many small ones would cost less than their tasks."""

    def size(batch: list[LoadedFile]) -> int:
        return sum(one.bytes for one in batch)

    count = max(parallelism * TASKS_PER_CORE, sum(map(size, batches)) // TASK_BYTES_MAX)
    return shares(sorted(batches, key=size, reverse=True), count)


def _write(
    destination: Directory,
    load: str,
    run: str,
    kind: str,
    last: Commit | None,
    added: tuple[LoadedFile, ...] = (),
    removed: tuple[str, ...] = (),
) -> Commit:
    made = Commit(
        number=last.number + 1 if last else 1,
        kind=kind,
        load=load,
        run=run,
        written_ms=int(time.time() * 1000),
        ends=last.ends if last else {},
        topics=last.topics if last else {},
        added=added,
        removed=removed,
    )
    destination.commit(made)
    return made


def _alike(
    root: Path, files: list[LoadedFile], older_than_ms: int | None
) -> Iterator[list[LoadedFile]]:
    """Files of a folder that may be merged, in the order of their offsets. Files yielded together
    have none between them, because the rows of the merged file must be consecutive.
    """

    def kind(one: LoadedFile) -> str:
        if older_than_ms is not None and one.max_ms >= older_than_ms:
            return ""
        # Files with different columns (headers switched on in between) are not merged.
        return str(schema_of_file(root / one.path))

    ordered = sorted(files, key=lambda one: one.first_offset)
    for columns, alike in itertools.groupby(ordered, kind):
        if columns:
            yield list(alike)


def _batches(files: list[LoadedFile], file_bytes: int) -> Iterator[list[LoadedFile]]:
    """Neighbours that fit into one file together, at least two."""
    batch: list[LoadedFile] = []
    size = 0
    for one in files:
        if batch and size + one.bytes > file_bytes:
            if len(batch) > 1:
                yield batch
            batch, size = [], 0
        batch.append(one)
        size += one.bytes
    if len(batch) > 1:
        yield batch
