"""The data of one commit of a load, and the sums over commits.

A commit is the only statement about what has been loaded: the files it adds and removes, the offset
range of each partition it covers, and the offset where each partition continues. What no commit
lists is not loaded, and nothing here touches a disk.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

FORMAT = 1

LOAD = "load"
RELOAD = "reload"
COMPACT = "compact"
# Rebuilt from the files of a destination that has lost its log.
RECOVER = "recover"
# Written by a run that found another's staged files: it takes the number that the other run would
# need, so that those files can never be committed.
OPEN = "open"

# Files store times as microseconds in 64 bits: later ones are limited to the last of them, and
# buckets are those of files, whatever the destination.
TIME_MS_MAX = ((1 << 63) - 1) // 1000

Ends = dict[str, dict[int, int]]
"""topic -> partition -> the offset where the next run continues (exclusive end)."""


TopicPartition = tuple[str, int]


class LoadError(Exception):
    """A load cannot continue; the message has the reason and the remedy."""


class LostRaceError(LoadError):
    """Another run has taken the commit that this one was to write."""


class CorruptLogError(LoadError):
    """The log of commits is invalid or incomplete."""


@dataclass(frozen=True, slots=True)
class LoadedRange:
    """Offsets ``[start, end)`` of one partition, and their content."""

    topic: str
    partition: int
    start: int
    end: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class LoadedFile:
    """One file of a commit.

    path, staged: below the destination; ``staged`` is where the task has left it.
    start, end: the offset range that the task read, or the union of a compaction; the rows of the
        range may be spread over several files. first_offset, last_offset: of the rows in here.
    checksum: CRC-32C of the whole file. topic_id: of the topic it was read from; a topic that was
        recreated has offsets of its own.
    """

    path: str
    staged: str
    topic: str
    partition: int
    start: int
    end: int
    rows: int
    bytes: int
    checksum: int
    first_offset: int
    last_offset: int
    min_ms: int
    max_ms: int
    topic_id: str = ""


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets ``[start, end)`` that were deleted before they could be loaded."""

    topic: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Commit:
    """See the module; ``number`` counts from 1 without a gap."""

    number: int
    kind: str
    load: str
    run: str
    written_ms: int
    ends: Ends
    ranges: tuple[LoadedRange, ...] = ()
    added: tuple[LoadedFile, ...] = ()
    removed: tuple[str, ...] = ()
    errors: tuple[LoadedFile, ...] = ()
    gaps: tuple[Gap, ...] = ()
    # topic -> start of the bucket in milliseconds -> records, by the time of the record
    counts: dict[str, dict[int, int]] = field(default_factory=dict)
    bucket_ms: int = 600_000
    # topic -> the id of the topic that ``ends`` are offsets of, where brokers have ids
    topics: dict[str, str] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """The number of records in the commit."""
        return sum(one.rows for one in self.ranges)

    @property
    def bad_rows(self) -> int:
        """The number of records that could not be decoded and are in the error files."""
        return sum(one.rows for one in self.errors)

    @property
    def skipped(self) -> Counter[TopicPartition]:
        """The number of missing offsets by partition. After the log is rebuilt, offsets in no file
        of the destination may have had no records.
        """
        counts: Counter[TopicPartition] = Counter()
        if self.kind == LOAD:
            for one in self.gaps:
                counts[one.topic, one.partition] += one.end - one.start
        return counts

    def to_json(self) -> str:
        """The text of the commit's file, one line."""
        return json.dumps({"format": FORMAT} | asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> Commit:
        """Raises CorruptLogError when ``text`` is not a commit of this format."""
        try:
            return cls._from_mapping(json.loads(text))
        except (ValueError, TypeError, KeyError, AttributeError) as err:
            raise CorruptLogError(f"not a commit: {err!r}") from err

    @classmethod
    def _from_mapping(cls, values: dict[str, Any]) -> Commit:
        if values.pop("format") != FORMAT:
            raise CorruptLogError(
                "a commit in an unknown format, written by a newer version of kbroker"
            )
        values["ends"] = ends_from_json(values["ends"])
        values["counts"] = {
            topic: {int(bucket): count for bucket, count in buckets.items()}
            for topic, buckets in values["counts"].items()
        }
        for name, kind in (
            ("ranges", LoadedRange),
            ("added", LoadedFile),
            ("errors", LoadedFile),
            ("gaps", Gap),
        ):
            values[name] = tuple(kind(**one) for one in values[name])
        values["removed"] = tuple(values["removed"])
        values.setdefault("topics", {})
        return cls(**{one.name: values[one.name] for one in fields(cls)})


def ends_from_json(document: Mapping[str, Mapping[str, int]]) -> Ends:
    """JSON has text keys; partitions are numbers."""
    return {
        topic: {int(partition): int(offset) for partition, offset in of_topic.items()}
        for topic, of_topic in document.items()
    }


def merged_ends(old: Ends, ranges: Iterable[LoadedRange | Gap]) -> Ends:
    """``old`` with every partition of ``ranges`` moved to the end of its last range."""
    merged = {topic: dict(of_topic) for topic, of_topic in old.items()}
    moved: Ends = {}
    for one in ranges:
        of_topic = moved.setdefault(one.topic, {})
        of_topic[one.partition] = max(one.end, of_topic.get(one.partition, one.end))
    for topic, partitions in moved.items():
        merged.setdefault(topic, {}).update(partitions)
    return merged


@dataclass(slots=True)
class CommitState:
    """The sum of all commits up to ``number``: where to continue, and the files in use.

    skipped: of each partition, how many offsets were gone before they could be loaded.
    """

    number: int = 0
    load: str = ""
    ends: Ends = field(default_factory=dict)
    files: dict[str, LoadedFile] = field(default_factory=dict)
    errors: dict[str, LoadedFile] = field(default_factory=dict)
    topics: dict[str, str] = field(default_factory=dict)
    rows: int = 0
    bad_rows: int = 0
    written_ms: int = 0
    skipped: Ends = field(default_factory=dict)

    def apply(self, commit: Commit) -> None:
        """Add the next commit. Raises CorruptLogError when it is not the next one."""
        if commit.number != self.number + 1:
            raise CorruptLogError(f"commit {commit.number} follows {self.number}: one is missing")
        for path in commit.removed:
            if path in self.files:
                self.rows -= self.files.pop(path).rows
            elif path in self.errors:
                self.bad_rows -= self.errors.pop(path).rows
            elif commit.kind != RECOVER:  # which removes files that are in no log
                raise CorruptLogError(
                    f"commit {commit.number} removes {path}, which does not exist"
                )
        for one in commit.added:
            if one.path in self.files:
                raise CorruptLogError(f"commit {commit.number} adds {one.path} again")
            self.files[one.path] = one
            self.rows += one.rows
        self.number = commit.number
        self.load = commit.load
        self.ends = commit.ends
        self.topics = commit.topics
        self.errors |= {one.path: one for one in commit.errors}
        self.bad_rows += commit.bad_rows
        self.written_ms = commit.written_ms
        for (topic, partition), count in commit.skipped.items():
            of_topic = self.skipped.setdefault(topic, {})
            of_topic[partition] = of_topic.get(partition, 0) + count

    def to_json(self) -> str:
        """The text of a checkpoint."""
        document = {one.name: getattr(self, one.name) for one in fields(self)}
        for name in ("files", "errors"):
            document[name] = [asdict(one) for one in document[name].values()]
        return json.dumps({"format": FORMAT} | document, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> CommitState:
        """Raises CorruptLogError when ``text`` is not a checkpoint of this format."""
        try:
            document = json.loads(text)
            if document.pop("format") != FORMAT:
                raise CorruptLogError("a checkpoint in an unknown format")
            document["ends"] = ends_from_json(document["ends"])
            document["skipped"] = ends_from_json(document.get("skipped", {}))
            for name in ("files", "errors"):
                files = (LoadedFile(**one) for one in document.get(name, ()))
                document[name] = {one.path: one for one in files}
            return cls(**document)
        except (ValueError, TypeError, KeyError, AttributeError) as err:
            raise CorruptLogError(f"not a checkpoint: {err!r}") from err
