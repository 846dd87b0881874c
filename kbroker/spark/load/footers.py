"""The footer that describes a data file, and rebuilding the log of commits from footers alone.

The names are those of ``LoadedFile``, and: ``load``, ``run``, ``kind`` and ``written_ms`` of the
commit it was written for; ``attempt``, the name of the try, which all files of a range share;
``part``, its number among them, and in the last of them ``parts``, how many there are;
``topic_id``, where brokers have them; ``replaces``, in a compacted file, the names of all files
whose rows it holds, and ``loaded_ms``, when the last of them was loaded.
"""

from __future__ import annotations

import itertools
import os
import time
import uuid
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from kbroker._ext.base.crc32c import crc32c
from kbroker.spark.load import layout, points
from kbroker.spark.load.commits import (
    COMPACT,
    RECOVER,
    RELOAD,
    Commit,
    Gap,
    LoadedFile,
    LoadedRange,
    LoadError,
    merged_ends,
)
from kbroker.spark.load.directory import Directory
from kbroker.spark.load.writer import about

REPLACES = "replaces"
_READ_BYTES = 8 << 20


def checksum_of(path: Path) -> int:
    """CRC-32C of a whole file."""
    checksum = 0
    with path.open("rb") as file:
        while piece := file.read(_READ_BYTES):
            checksum = crc32c(piece, checksum)
    return checksum


def replaced_names(metadata: Mapping[bytes, bytes] | None) -> list[str]:
    """The names of the files whose rows a compacted file holds; none for another file."""
    return about(metadata).get(REPLACES, "").split()


@dataclass(frozen=True, slots=True)
class _FoundFooter:
    file: LoadedFile
    about: dict[str, str]

    @property
    def name(self) -> str:
        return os.path.basename(self.file.path)

    @property
    def is_bad(self) -> bool:
        return self.file.path.startswith(f"{layout.ERRORS}/")

    @property
    def written_ms(self) -> int:
        return int(self.about.get("written_ms", "0"))

    @property
    def loaded_ms(self) -> int:
        return int(self.about.get("loaded_ms", self.written_ms))


def loaded_ms(metadata: Mapping[bytes, bytes] | None) -> int:
    """When the newest rows of a file were loaded."""
    values = about(metadata)
    return int(values.get("loaded_ms") or values.get("written_ms", "0"))


def recover(destination: Directory, load: str) -> Commit:
    """Rebuild a log of one commit from the files of a directory whose log is lost, including
    existing error files.

    Files that a compacted file or a later reload replaces are removed: a run may have died between
    publishing the one and removing the other. May be repeated wherever it was killed.

    Raises LoadError when there is a log, or a range lacks one of its files.
    """
    newest = destination.log.newest()
    if newest is not None and newest.kind == RECOVER:
        with destination.locked():
            destination.publish_newest()
        return newest
    if newest is not None:
        raise LoadError(
            f"{destination.root} still has its log; recover is for a destination that has lost it "
            "(move _kbroker/commits and _kbroker/checkpoint away first)"
        )
    root = destination.root
    footers = [_read(root, path) for path in sorted((root / layout.DATA).rglob("*.parquet"))]
    bad = [_read(root, path) for path in sorted((root / layout.ERRORS).glob("*.parquet"))]
    if not footers and not bad:
        raise LoadError(f"{root} has no data files to rebuild a log from")
    destination.prepare()
    with destination.locked():
        made = _sum_of(footers, bad, destination.number_before(load), load)
        destination.forget_published()
        destination.log.begin_after(made.number - 1, load)
        points.reach("recover-begun")
        destination.commit(made)
        points.reach("recover-committed")
        destination.publish(made)
    return made


def _sum_of(footers: list[_FoundFooter], bad: list[_FoundFooter], before: int, load: str) -> Commit:
    """The single commit that describes the files; its number follows ``before``.

    bad: those of bad values, of which a range may have no others.
    """
    superseded = _superseded([*footers, *bad])
    kept = [one for one in footers if one.name not in superseded]
    errors = [one for one in bad if one.name not in superseded]
    names = {one.name for one in kept} | superseded
    for one in footers:
        names |= set(one.about.get(REPLACES, "").split())
    _require_whole(kept, names)
    every = [*kept, *errors]
    topics = _topics(every)
    current = _ranges([one for one in every if one.file.topic_id == topics[one.file.topic]])
    return Commit(
        number=before + 1,
        kind=RECOVER,
        load=load,
        run=uuid.uuid4().hex[:12],
        written_ms=int(time.time() * 1000),
        ends=merged_ends({}, current),
        ranges=tuple(_ranges(every)),
        added=tuple(one.file for one in kept),
        removed=tuple(one.file.path for one in (*footers, *bad) if one.name in superseded),
        errors=tuple(one.file for one in errors),
        gaps=tuple(_gaps(current)),
        topics={topic: one for topic, one in topics.items() if one},
    )


def _topics(kept: list[_FoundFooter]) -> dict[str, str]:
    """The last loaded id of each topic: a recreated topic has several."""
    footers: dict[str, _FoundFooter] = {}
    for one in kept:
        last = footers.setdefault(one.file.topic, one)
        if one.loaded_ms > last.loaded_ms:
            footers[one.file.topic] = one
    return {topic: one.file.topic_id for topic, one in footers.items()}


def _read(root: Path, path: Path) -> _FoundFooter:
    try:
        metadata = pq.read_metadata(path)
    except (pa.ArrowException, OSError) as err:
        raise LoadError(
            f"{path} cannot be read: {err}; move it away to continue without it"
        ) from err
    said = about(metadata.metadata)
    try:
        numbers = {
            name: int(said[name])
            for name in (
                *("partition", "start", "end"),
                *("first_offset", "last_offset", "min_ms", "max_ms"),
            )
        }
    except (KeyError, ValueError) as err:
        raise LoadError(f"{path} was not written by kbroker-load; move it away") from err
    relative = path.relative_to(root).as_posix()
    file = LoadedFile(
        path=relative,
        staged=relative,
        topic=said["topic"],
        rows=metadata.num_rows,
        bytes=path.stat().st_size,
        checksum=checksum_of(path),
        topic_id=said.get("topic_id", ""),
        **numbers,
    )
    return _FoundFooter(file, said)


def _superseded(footers: list[_FoundFooter]) -> set[str]:
    """Names of files whose rows are also in other files."""
    names: set[str] = set()
    for one in footers:
        names |= set(one.about.get(REPLACES, "").split())
    reloads: dict[tuple[str, str, int, str], list[_FoundFooter]] = defaultdict(list)
    for one in footers:
        if one.about.get("kind") == RELOAD:
            file = one.file
            reloads[file.topic, file.topic_id, file.partition, one.about["run"]].append(one)
    for (topic, topic_id, partition, _), files in reloads.items():
        start = min(one.file.start for one in files)
        written_ms = min(one.written_ms for one in files)
        names |= {
            one.name
            for one in footers
            if (one.file.topic, one.file.partition) == (topic, partition)
            and one.file.topic_id in ("", topic_id)
            and one.file.end > start
            and one.written_ms < written_ms
        }
    return names & {one.name for one in footers}


def _require_whole(kept: list[_FoundFooter], names: set[str]) -> None:
    """Check that all parts of each range exist, or are known to be in another file."""
    ranges: dict[tuple[str, int, int, int, str], list[_FoundFooter]] = defaultdict(list)
    for one in kept:
        if one.about.get("kind") != COMPACT:
            file = one.file
            key = (file.topic, file.partition, file.start, file.end, one.about["attempt"])
            ranges[key].append(one)
    for (topic, partition, start, end, _), parts in ranges.items():
        stem = parts[0].name.rpartition("-")[0]
        count = max(int(one.about["parts"]) for one in parts)
        count = max(count, 1 + max(int(one.about["part"]) for one in parts))
        for number in range(count):
            name = f"{stem}-{number}.parquet"
            if name not in names:
                raise LoadError(
                    f"{name} is missing, which is a part of {topic} partition {partition}, "
                    f"offsets {start} to {end}. Move {parts[0].file.path} and the other parts "
                    "away to continue without them"
                )


def _ranges(kept: list[_FoundFooter]) -> list[LoadedRange]:
    ranges: dict[tuple[str, int, int, int], LoadedRange] = {}
    for one in kept:
        key = (one.file.topic, one.file.partition, one.file.start, one.file.end)
        old = ranges.setdefault(key, LoadedRange(*key, 0, 0))
        if not one.is_bad:
            rows, size = old.rows + one.file.rows, old.bytes + one.file.bytes
            ranges[key] = replace(old, rows=rows, bytes=size)
    return [ranges[key] for key in sorted(ranges)]


def _gaps(ranges: list[LoadedRange]) -> list[Gap]:
    """Offsets that no file covers: they are lost, or had no record."""
    gaps = []
    reached: dict[tuple[str, int], int] = {}
    for before, after in itertools.pairwise(ranges):
        key = (before.topic, before.partition)
        reached[key] = max(before.end, reached.get(key, 0))
        if key == (after.topic, after.partition) and after.start > reached[key]:
            gaps.append(Gap(*key, reached[key], after.start))
    return gaps
