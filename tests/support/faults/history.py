"""The clients' requests and responses, and whether they agree with the broker's final log.

Every test that kills, tears or fills something writes one ``History`` and ends with ``check``. A
value names its writer, its partition and its number, so that a lost, doubled, moved, reordered or
foreign record is recognised wherever it turns up. The anomalies are Jepsen's, by their names.

Tests with transactions hand over entries, which ``entries_of`` makes of a log's batches, and call
``check_transactions`` (whether each transaction came to pass whole or not at all, and was read
so), ``check_chain`` (whether what one topic has visibly is what the topic before it had) and
``check_offsets`` (whether committed offsets went forwards only, and fit what was written).
"""

from __future__ import annotations

import threading
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

from support.faults.producer_record import EpochBegin

from kbroker.record.batch import RecordBatch

Partition = tuple[str, int]
Producer = tuple[int, int]  # id and epoch
# Outcomes of an entry; "open" has no marker after it yet.
PLAIN, COMMITTED, ABORTED, OPEN, MARKER = "plain", "committed", "aborted", "open", "marker"
UNKNOWN = "unknown"
_COMMIT_MARKER = b"\0\0\0\1"  # WIRE: version 0, type 1; an abort has type 0


def value_of(writer: str, partition: int, number: int, size: int = 64) -> bytes:
    """A value that names its writer, filled up to ``size`` bytes, with a checksum at its end."""
    head = f"{writer}|{partition}|{number}|".encode()
    body = head + (writer.encode() * (size // max(1, len(writer)) + 1))[: max(0, size - len(head))]
    return body + b"|%08x" % zlib.crc32(body)


def parse_value(value: bytes | None) -> tuple[str, int, int] | None:
    """(writer, partition, number); None for bytes that ``value_of`` did not create."""
    if value is None or len(value) < 12 or b"%08x" % zlib.crc32(value[:-9]) != value[-8:]:
        return None
    writer, partition, number, _ = value.split(b"|", 3)
    return writer.decode(), int(partition), int(number)


@dataclass(slots=True)
class WriterLog:
    """The history of one writer. Only its thread appends.

    exact: every record is in the log at most once and in order, for the writer is idempotent or
    never sends anything twice. epochs: those of a librdkafka producer, in order; it repeats what
    has no response when it begins one (``support.faults.producer_record``).
    """

    name: str
    topic: str
    exact: bool
    sent: list[tuple[int, int]] = field(default_factory=list)  # (partition, number)
    acked: list[tuple[float, int, int, int]] = field(default_factory=list)  # (.., offset)
    failed: list[tuple[float, int, int, str]] = field(default_factory=list)
    longest_s: float = 0.0
    epochs: list[EpochBegin] = field(default_factory=list)

    def ack(self, partition: int, number: int, offset: int) -> None:
        self.acked.append((time.monotonic(), partition, number, offset))

    def fail(self, partition: int, number: int, why: str) -> None:
        """Not acknowledged: it may or may not be in the log."""
        self.failed.append((time.monotonic(), partition, number, why))


@dataclass(slots=True)
class ReaderLog:
    """The records that one reader got from each partition, in order. Only its thread appends."""

    name: str
    topic: str
    polled: dict[int, list[tuple[float, int, bytes | None]]] = field(default_factory=dict)

    def poll(self, partition: int, offset: int, value: bytes | None) -> None:
        self.polled.setdefault(partition, []).append((time.monotonic(), offset, value))


class LoggedRecord(NamedTuple):
    """A record in a log, and the producer of its batch."""

    offset: int
    value: bytes | None
    producer: Producer = (-1, -1)


def logged(batches: Iterable[RecordBatch], start: int = 0) -> list[LoggedRecord]:
    """The records of a partition from an offset on."""
    return [
        LoggedRecord(
            record.offset, record.value, (batch.header.producer_id, batch.header.producer_epoch)
        )
        for batch in batches
        for record in batch.records()
        if record.offset >= start
    ]


@dataclass(frozen=True, slots=True)
class Entry:
    """A record in a log, and the outcome of its transaction."""

    offset: int
    key: bytes | None
    value: bytes | None
    fate: str = PLAIN

    @property
    def visible(self) -> bool:
        """Whether a read_committed consumer should get it."""
        return self.fate in (PLAIN, COMMITTED)


def entries_of(batches: Iterable[RecordBatch]) -> list[Entry]:
    """A partition's records with their outcomes, decided by the markers in the log."""
    found: list[Entry] = []
    open_of: dict[int, list[int]] = defaultdict(list)  # producer id -> indexes
    for batch in batches:
        producer = batch.header.producer_id
        for record in batch.records():
            if batch.is_control:
                fate = COMMITTED if record.key == _COMMIT_MARKER else ABORTED
                for index in open_of.pop(producer, ()):
                    found[index] = replace(found[index], fate=fate)
                found.append(Entry(record.offset, record.key, None, MARKER))
                continue
            if batch.is_transactional:
                open_of[producer].append(len(found))
            fate = OPEN if batch.is_transactional else PLAIN
            found.append(Entry(record.offset, record.key, record.value, fate))
    return found


@dataclass(slots=True)
class Attempt:
    """A transaction of a transactor. Its key is in every record it writes."""

    key: bytes
    writes: dict[Partition, int] = field(default_factory=dict)
    outcome: str = UNKNOWN  # the client's result: committed or aborted

    def wrote(self, topic: str, partition: int, count: int = 1) -> None:
        """Call before it is sent."""
        self.writes[topic, partition] = self.writes.get((topic, partition), 0) + count


@dataclass(slots=True)
class TransactorLog:
    """The transactions of one transactional producer. Only its thread appends."""

    name: str
    attempts: list[Attempt] = field(default_factory=list)

    def begin(self) -> Attempt:
        attempt = Attempt(f"{self.name}|{len(self.attempts)}".encode())
        self.attempts.append(attempt)
        return attempt


@dataclass(slots=True)
class OffsetLog:
    """Committed offsets of a group, in the order in which they were seen."""

    group: str
    topic: str
    seen: dict[int, list[int]] = field(default_factory=dict)

    def see(self, partition: int, offset: int) -> None:
        self.seen.setdefault(partition, []).append(offset)


class History:
    """All writers, readers, transactors and groups of one test."""

    def __init__(self) -> None:
        self.writers: dict[str, WriterLog] = {}
        self.readers: dict[str, ReaderLog] = {}
        self.transactors: dict[str, TransactorLog] = {}
        self.groups: dict[str, OffsetLog] = {}
        self._lock = threading.Lock()

    def writer(self, name: str, topic: str, *, exact: bool) -> WriterLog:
        with self._lock:
            assert name not in self.writers, name
            return self.writers.setdefault(name, WriterLog(name, topic, exact))

    def reader(self, name: str, topic: str) -> ReaderLog:
        with self._lock:
            assert name not in self.readers, name
            return self.readers.setdefault(name, ReaderLog(name, topic))

    def transactor(self, name: str) -> TransactorLog:
        with self._lock:
            assert name not in self.transactors, name
            return self.transactors.setdefault(name, TransactorLog(name))

    def group(self, group: str, topic: str) -> OffsetLog:
        with self._lock:
            assert group not in self.groups, group
            return self.groups.setdefault(group, OffsetLog(group, topic))

    @property
    def acked_count(self) -> int:
        return sum(len(writer.acked) for writer in self.writers.values())

    def operations(self, begin: float, end: float, partitions: Iterable[int] | None = None) -> int:
        """Acknowledged and polled records between two times, of some partitions or all."""
        wanted = None if partitions is None else set(partitions)
        acks = sum(
            begin <= at <= end and (wanted is None or partition in wanted)
            for writer in self.writers.values()
            for at, partition, _, _ in list(writer.acked)
        )
        polls = sum(
            begin <= at <= end
            for reader in self.readers.values()
            for partition, polled in list(reader.polled.items())
            if wanted is None or partition in wanted
            for at, _, _ in list(polled)
        )
        return acks + polls

    def check(
        self, log: Mapping[Partition, Sequence[LoggedRecord]], *, lost_allowed: bool = False
    ) -> list[str]:
        """Every contradiction, as one line each; empty if there are none.

        log: all records of every partition, as read after the last fault. lost_allowed: for tests
        that destroyed data on purpose; the rest is checked anyway.
        """
        problems: list[str] = []
        places = self._places(log, problems)
        for writer in self.writers.values():
            problems += _check_acks(writer, places, log, lost_allowed)
            if writer.exact:
                problems += _check_exact(writer, places, log)
        problems += _check_ack_offsets(self.writers.values())
        for reader in self.readers.values():
            problems += _check_polls(reader, log, lost_allowed)
        return problems

    def check_transactions(self, log: Mapping[Partition, Sequence[Entry]]) -> list[str]:
        """The outcome of each attempt, in all partitions of its topics."""
        fates: dict[bytes, dict[Partition, Counter[str]]] = defaultdict(
            lambda: defaultdict(Counter)
        )
        for where, entries in log.items():
            for entry in entries:
                if entry.fate in (COMMITTED, ABORTED, OPEN):
                    fates[entry.key or b""][where][entry.fate] += 1
        problems = []
        for transactor in self.transactors.values():
            for attempt in transactor.attempts:
                problems += _check_attempt(attempt, fates.pop(attempt.key, {}))
        problems += [f"forged: nobody began the transaction {key!r:.60}" for key in fates]
        for reader in self.readers.values():
            problems += _check_committed_polls(reader, log)
        return problems

    def check_offsets(
        self, log: Mapping[Partition, Sequence[Entry]], outputs: Mapping[str, str]
    ) -> list[str]:
        """Committed offsets never go backwards, and the last ones match the output.

        outputs: the topic into which a group puts one record for each that it takes, by group.
        """
        problems = []
        for group in self.groups.values():
            for partition, seen in group.seen.items():
                where = f"{group.group} in {group.topic}-{partition}"
                for before, after in pairwise(seen):
                    if after < before:
                        problems.append(f"nonmonotonic-commit: {where}: {after} after {before}")
                taken = log.get((group.topic, partition), ())
                taken = [entry for entry in taken if entry.visible and entry.offset < seen[-1]]
                put = [e for e in log.get((outputs[group.group], partition), ()) if e.visible]
                if len(taken) != len(put):
                    problems.append(
                        f"offset-mismatch: {where}: {len(taken)} records are below the committed "
                        f"offset {seen[-1]}, {len(put)} were put out"
                    )
        return problems

    def _places(
        self, log: Mapping[Partition, Sequence[LoggedRecord]], problems: list[str]
    ) -> dict[tuple[str, int, int], list[int]]:
        """(writer, partition, number) -> offsets, with errors in the log itself."""
        places: dict[tuple[str, int, int], list[int]] = defaultdict(list)
        sent = {
            (writer.name, *entry): writer.topic
            for writer in self.writers.values()
            for entry in writer.sent
        }
        for (topic, partition), records in log.items():
            expected = records[0].offset if records else 0
            for record in records:
                if record.offset != expected:
                    problems.append(f"gap: {topic}-{partition} {expected} to {record.offset}")
                expected = record.offset + 1
                key = parse_value(record.value)
                where = f"{topic}-{partition} at {record.offset}"
                if key is None or sent.get(key) != topic:
                    problems.append(f"forged: {where} holds {record.value!r:.80}")
                elif key[1] != partition:
                    problems.append(f"misplaced: {where} holds {key}")
                else:
                    places[key].append(record.offset)
        return places


def check_chain(
    log: Mapping[Partition, Sequence[Entry]], source: str, target: str, partition: int
) -> list[str]:
    """The target's visible records are the source's: all of them, once, in the same order."""
    wanted = [e.value for e in log.get((source, partition), ()) if e.visible]
    found = [e.value for e in log.get((target, partition), ()) if e.visible]
    where = f"{source} to {target} in {partition}"
    problems = []
    count = Counter(found)
    for value in dict.fromkeys(wanted):
        if count[value] != 1:
            kind = "lost-hop" if not count[value] else "duplicate-hop"
            problems.append(f"{kind}: {where}: {parse_value(value)} is there {count[value]} times")
    strangers = set(found) - set(wanted)
    problems += [f"forged: {where}: {value!r:.80} was never put in" for value in strangers]
    if not problems and found != wanted:
        at = next(n for n, (a, b) in enumerate(zip(wanted, found, strict=True)) if a != b)
        problems.append(f"reordered-hop: {where}: {parse_value(found[at])} is record {at}")
    return problems


def _check_attempt(attempt: Attempt, found: Mapping[Partition, Counter[str]]) -> list[str]:
    """It is either complete or absent, as its client was told."""
    problems = []
    name = attempt.key.decode()
    committed = {where: counts[COMMITTED] for where, counts in found.items() if counts[COMMITTED]}
    left_open = [where for where, counts in found.items() if counts[OPEN]]
    if left_open:
        problems.append(f"hanging-transaction: {name} is open in {left_open}")
    if committed and committed != attempt.writes:
        problems.append(f"torn-transaction: {name} wrote {attempt.writes}, committed: {committed}")
    if attempt.outcome == COMMITTED and attempt.writes and not committed:
        problems.append(f"lost-transaction: {name}: {attempt.writes} were committed, none is there")
    if attempt.outcome == ABORTED and committed:
        problems.append(f"aborted-commit: {name} was aborted, and has {committed}")
    return problems


def _check_committed_polls(
    reader: ReaderLog, log: Mapping[Partition, Sequence[Entry]]
) -> list[str]:
    """A read_committed consumer got each visible record, in order, and no other."""
    problems = []
    for partition, polled in reader.polled.items():
        entries = {entry.offset: entry for entry in log.get((reader.topic, partition), ())}
        visible = sorted(offset for offset, entry in entries.items() if entry.visible)
        following = dict(pairwise(visible))
        before = None
        for _, offset, value in polled:
            where = f"{reader.name} in {reader.topic}-{partition} at {offset}"
            entry = entries.get(offset)
            if entry is None:
                problems.append(f"phantom: {where}: not in the log any more")
            elif not entry.visible:
                problems.append(f"aborted-read: {where}: {entry.fate}")
            elif entry.value != value:
                problems.append(f"inconsistent-offsets: {where}: the log has another record there")
            if before is not None and offset <= before:
                problems.append(f"nonmonotonic-poll: {where} after {before}")
            elif before is not None and before in following and following[before] != offset:
                problems.append(f"poll-skip: {where} after {before}, not {following[before]}")
            before = offset
    return problems


def _check_acks(
    writer: WriterLog,
    places: Mapping[tuple[str, int, int], list[int]],
    log: Mapping[Partition, Sequence[LoggedRecord]],
    lost_allowed: bool,
) -> list[str]:
    """Each acknowledged record is at the offset in the response."""
    problems = []
    for _, partition, number, offset in writer.acked:
        found = places.get((writer.name, partition, number), [])
        what = f"{writer.name} {number} in {writer.topic}-{partition}, acknowledged at {offset}"
        if offset in found or (offset < 0 and found):
            continue
        if found:
            problems.append(f"inconsistent-offsets: {what}, is at {found}")
        elif not lost_allowed:
            records = log.get((writer.topic, partition), ())
            end = records[-1].offset + 1 if records else 0
            problems.append(f"lost-write: {what}; the log ends at {end}")
    return problems


def _check_exact(
    writer: WriterLog,
    places: Mapping[tuple[str, int, int], list[int]],
    log: Mapping[Partition, Sequence[LoggedRecord]],
) -> list[str]:
    """At most once each, and in the order of sending; but for what ``_is_repeated_by_client``."""
    problems = []
    producers = {
        (partition, record.offset): record.producer
        for (topic, partition), records in log.items()
        if topic == writer.topic
        for record in records
    }
    acked_at = {(partition, number): at for at, partition, number, _ in writer.acked}
    repeated: Counter[int] = Counter()
    last: dict[int, tuple[int, int]] = {}
    for partition, number in writer.sent:
        found = places.get((writer.name, partition, number), [])
        if len(found) > 1:
            by = [producers[partition, offset] for offset in found]
            if _is_repeated_by_client(writer.epochs, by, acked_at.get((partition, number))):
                repeated[partition] += 1
            else:
                problems.append(
                    f"duplicate: {writer.name} {number} in {partition} at {found}, of the "
                    f"producers {by}; {_epochs_text(writer.epochs)}"
                )
        if not found:
            continue
        before = last.get(partition)
        if before is not None and found[0] < before[1]:
            problems.append(
                f"nonmonotonic-send: {writer.name} {number} in {partition} is at {found[0]}, "
                f"{before[0]}, sent before it, at {before[1]}"
            )
        last[partition] = number, found[0]
    if repeated:
        print(f"{writer.name} has repeated {dict(repeated)}: {_epochs_text(writer.epochs)}")
    return problems


def _is_repeated_by_client(
    epochs: Sequence[EpochBegin], producers: Sequence[Producer], acked_at: float | None
) -> bool:
    """Whether librdkafka alone has caused the copies, whose producers these are, by offset.

    Each copy is of a later epoch of one producer id than the one before it. Every epoch between
    them was begun because a record was given up, and for no other reason, while this one had no
    response. A copy in the same epoch, or for an error of a broker, is the broker's fault.
    """
    begun = {one.producer: one for one in epochs}
    for (earlier_id, earlier), (later_id, later) in pairwise(producers):
        if earlier_id != later_id or later <= earlier:
            return False
        for epoch in range(earlier + 1, later + 1):
            step = begun.get((later_id, epoch))
            if step is None or not step.is_for_records_given_up:
                return False
            if acked_at is not None and acked_at < step.at:
                return False
    return True


def _epochs_text(epochs: Sequence[EpochBegin]) -> str:
    """The epochs and why they began."""
    if not epochs:
        return "its epochs are unknown"
    return "its epochs: " + "; ".join(
        f"{one.producer} {Counter(one.reasons).most_common(2)}" for one in epochs
    )


def _check_ack_offsets(writers: Iterable[WriterLog]) -> list[str]:
    """No offset was returned twice."""
    problems = []
    owner: dict[tuple[str, int, int], tuple[str, int]] = {}
    for writer in writers:
        for _, partition, number, offset in writer.acked:
            if offset < 0:
                continue
            first = owner.setdefault((writer.topic, partition, offset), (writer.name, number))
            if first != (writer.name, number):
                problems.append(
                    f"inconsistent-offsets: {writer.topic}-{partition} {offset} was promised to "
                    f"{first} and to {(writer.name, number)}"
                )
    return problems


def _check_polls(
    reader: ReaderLog, log: Mapping[Partition, Sequence[LoggedRecord]], lost_allowed: bool
) -> list[str]:
    """The records read match the log, offset by offset and without gaps."""
    problems = []
    for partition, polled in reader.polled.items():
        records = log.get((reader.topic, partition), ())
        known = {record.offset: record.value for record in records}
        before = None
        for _, offset, value in polled:
            where = f"{reader.name} in {reader.topic}-{partition} at {offset}"
            if before is not None and offset <= before:
                problems.append(f"nonmonotonic-poll: {where} after {before}")
            elif before is not None and offset != before + 1:
                problems.append(f"poll-skip: {where} after {before}")
            before = offset
            if offset not in known:
                if not lost_allowed:
                    problems.append(f"phantom: {where}: not in the log any more")
            elif known[offset] != value:
                problems.append(f"inconsistent-offsets: {where}: the log has another record there")
    return problems
