"""What clients asked and were told, and whether that agrees with the log a broker has in the end.

Every test that kills, tears or fills something writes one ``History`` and ends with ``check``. A
value names its writer, its partition and its number, so that a lost, doubled, moved, reordered or
foreign record is recognised wherever it turns up. The anomalies are Jepsen's, by their names.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kbroker.record.batch import Record

Partition = tuple[str, int]


def value_of(writer: str, partition: int, number: int, size: int = 64) -> bytes:
    """A value that says whose it is, filled up to ``size`` bytes, with a checksum at its end."""
    head = f"{writer}|{partition}|{number}|".encode()
    body = head + (writer.encode() * (size // max(1, len(writer)) + 1))[: max(0, size - len(head))]
    return body + b"|%08x" % zlib.crc32(body)


def parse_value(value: bytes | None) -> tuple[str, int, int] | None:
    """(writer, partition, number); None for bytes that ``value_of`` did not make."""
    if value is None or len(value) < 12 or b"%08x" % zlib.crc32(value[:-9]) != value[-8:]:
        return None
    writer, partition, number, _ = value.split(b"|", 3)
    return writer.decode(), int(partition), int(number)


@dataclass(slots=True)
class WriterLog:
    """What one writer did. Only its thread appends.

    exact: every record is in the log at most once and in order, for the writer is idempotent or
    never sends anything twice.
    """

    name: str
    topic: str
    exact: bool
    sent: list[tuple[int, int]] = field(default_factory=list)  # (partition, number)
    acked: list[tuple[float, int, int, int]] = field(default_factory=list)  # (.., offset)
    failed: list[tuple[float, int, int, str]] = field(default_factory=list)
    longest_s: float = 0.0

    def ack(self, partition: int, number: int, offset: int) -> None:
        self.acked.append((time.monotonic(), partition, number, offset))

    def fail(self, partition: int, number: int, why: str) -> None:
        """Not acknowledged: it may be in the log or not."""
        self.failed.append((time.monotonic(), partition, number, why))


@dataclass(slots=True)
class ReaderLog:
    """What one reader was given in each partition, in order. Only its thread appends."""

    name: str
    topic: str
    polled: dict[int, list[tuple[float, int, bytes | None]]] = field(default_factory=dict)

    def poll(self, partition: int, offset: int, value: bytes | None) -> None:
        self.polled.setdefault(partition, []).append((time.monotonic(), offset, value))


class History:
    """All writers and readers of one test."""

    def __init__(self) -> None:
        self.writers: dict[str, WriterLog] = {}
        self.readers: dict[str, ReaderLog] = {}
        self._lock = threading.Lock()

    def writer(self, name: str, topic: str, *, exact: bool) -> WriterLog:
        with self._lock:
            assert name not in self.writers, name
            return self.writers.setdefault(name, WriterLog(name, topic, exact))

    def reader(self, name: str, topic: str) -> ReaderLog:
        with self._lock:
            assert name not in self.readers, name
            return self.readers.setdefault(name, ReaderLog(name, topic))

    @property
    def acked_count(self) -> int:
        return sum(len(writer.acked) for writer in self.writers.values())

    def operations(self, begin: float, end: float, partitions: Iterable[int] | None = None) -> int:
        """Acknowledged records and polled records between two times, of some partitions or all."""
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
        self, log: Mapping[Partition, Sequence[Record]], *, lost_allowed: bool = False
    ) -> list[str]:
        """Every contradiction, as one line each; empty when there is none.

        log: all records of every partition, as read after the last fault. lost_allowed: for tests
        that destroyed data on purpose; the rest is checked all the same.
        """
        problems: list[str] = []
        places = self._places(log, problems)
        for writer in self.writers.values():
            problems += _check_acks(writer, places, log, lost_allowed)
            if writer.exact:
                problems += _check_exact(writer, places)
        problems += _check_ack_offsets(self.writers.values())
        for reader in self.readers.values():
            problems += _check_polls(reader, log, lost_allowed)
        return problems

    def _places(
        self, log: Mapping[Partition, Sequence[Record]], problems: list[str]
    ) -> dict[tuple[str, int, int], list[int]]:
        """(writer, partition, number) -> offsets, with what is wrong in the log itself."""
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


def _check_acks(
    writer: WriterLog,
    places: Mapping[tuple[str, int, int], list[int]],
    log: Mapping[Partition, Sequence[Record]],
    lost_allowed: bool,
) -> list[str]:
    """Each acknowledged record is where the broker said."""
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


def _check_exact(writer: WriterLog, places: Mapping[tuple[str, int, int], list[int]]) -> list[str]:
    """At most once each, and in the order of sending."""
    problems = []
    last: dict[int, tuple[int, int]] = {}
    for partition, number in writer.sent:
        found = places.get((writer.name, partition, number), [])
        if len(found) > 1:
            problems.append(f"duplicate: {writer.name} {number} in {partition} at {found}")
        if not found:
            continue
        before = last.get(partition)
        if before is not None and found[0] < before[1]:
            problems.append(
                f"nonmonotonic-send: {writer.name} {number} in {partition} is at {found[0]}, "
                f"{before[0]}, sent before it, at {before[1]}"
            )
        last[partition] = number, found[0]
    return problems


def _check_ack_offsets(writers: Iterable[WriterLog]) -> list[str]:
    """No offset was promised twice."""
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
    reader: ReaderLog, log: Mapping[Partition, Sequence[Record]], lost_allowed: bool
) -> list[str]:
    """What was read is what the log says, offset by offset and without holes."""
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
