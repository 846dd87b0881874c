"""Logs of Kafka 0.7 in their directories: ``TOPIC-N/00000000000000000000.kafka`` (or with 11
digits), named by the position of their first byte. Nothing is changed in them.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from typing import NamedTuple

from kbroker._ext.legacy.messages_07 import Region, read_region

# Documents of Kafka show names of 11 digits, its files have 20.
_SEGMENT = re.compile(r"([0-9]{11}|[0-9]{20})\.kafka")
_PARTITION = re.compile(r"(.+)-([0-9]{1,9})")
_POSITION_MAX = (1 << 63) - 1
# BOUND: bytes read at a time, unless a message is larger.
_CHUNK_BYTES = 4 << 20


class OldLogError(Exception):
    """A log cannot be read."""


class OldSegment(NamedTuple):
    """base: position of its first byte in the log."""

    base: int
    path: str
    size: int

    @property
    def end(self) -> int:
        return self.base + self.size


class OldPartition(NamedTuple):
    """A partition of a broker, with its segments in order."""

    topic: str
    broker: int
    partition: int
    segments: list[OldSegment]

    @property
    def name(self) -> str:
        """As in ZooKeeper's nodes: topic, broker and partition."""
        return f"{self.topic}/{self.broker}-{self.partition}"

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def start(self) -> int:
        return self.segments[0].base if self.segments else 0

    @property
    def end(self) -> int:
        return self.segments[-1].end if self.segments else 0

    def size_before(self, position: int) -> int:
        """The bytes of the log before a position."""
        return sum(min(max(position - each.base, 0), each.size) for each in self.segments)


class Bad(NamedTuple):
    """What is left out: how many messages, and why the first is. size: bytes of the log."""

    position: int
    size: int
    messages: int
    why: str


class ImportLimits(NamedTuple):
    """BOUND: message_bytes: of a message in the log. decompressed_bytes: what a compressed one
    holds. batch_bytes: of a batch with more than one record.
    """

    message_bytes: int = 64 << 20
    decompressed_bytes: int = 64 << 20
    batch_bytes: int = 900_000
    codec: int = 0


class OldLogPart(NamedTuple):
    """A part of a log. position: where it ends."""

    position: int
    region: Region | None
    bad: list[Bad]


def partitions_in(directory: str, broker: int) -> list[OldPartition]:
    """The partitions in the log directory of a broker, by name. Raises OSError."""
    partitions = []
    for entry in os.scandir(directory):
        match = _PARTITION.fullmatch(entry.name)
        if match is None or not entry.is_dir():
            continue
        segments = _segments(entry.path)
        partitions.append(OldPartition(match[1], broker, int(match[2]), segments))
    return sorted(partitions, key=lambda each: each[:3])


def _segments(directory: str) -> list[OldSegment]:
    segments = []
    for entry in os.scandir(directory):
        match = _SEGMENT.fullmatch(entry.name)
        if match is None or not entry.is_file():
            continue
        segment = OldSegment(int(match[1]), entry.path, entry.stat().st_size)
        if segment.end <= _POSITION_MAX:
            segments.append(segment)
    if not segments:
        return []
    segments.sort()
    # A segment ends where the next one begins, even if its file goes on.
    nexts = [segment.base for segment in segments[1:]] + [_POSITION_MAX]
    return [
        segment._replace(size=min(segment.size, after - segment.base))
        for segment, after in zip(segments, nexts, strict=True)
    ]


class OldLog:
    """Reads the messages of a partition, from any message on."""

    def __init__(self, partition: OldPartition, limits: ImportLimits) -> None:
        self._partition = partition
        self._limits = limits

    def steps(self, position: int, offset: int, skip: int = 0) -> Iterator[OldLogPart]:
        """All that follows a position, in parts. offset: that the first record gets. skip: records
        that are left out at the begin.

        Raises OldLogError, OSError.
        """
        for segment in self._partition.segments:
            if segment.end <= position or not segment.size:
                continue
            if segment.base > position:
                gap = segment.base - position
                yield OldLogPart(
                    segment.base, None, [Bad(position, gap, 0, f"{gap:,} bytes are missing")]
                )
                position = segment.base
            descriptor = os.open(segment.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise OldLogError(f"{segment.path} is not a regular file")
                while position < segment.end:
                    step = self._step(segment, descriptor, position, offset, skip)
                    position = step.position
                    if step.region is not None:
                        offset, skip = step.region.offset, step.region.skip
                    yield step
            finally:
                os.close(descriptor)

    def _step(
        self, segment: OldSegment, descriptor: int, position: int, offset: int, skip: int
    ) -> OldLogPart:
        left = segment.end - position
        wanted = min(left, _CHUNK_BYTES)
        while True:
            region = self._region(segment, descriptor, position, wanted, offset, skip)
            bad = [Bad(*each) for each in region.bad]
            if region.lost:
                at = position + region.consumed
                rest = segment.end - at
                why = f"its length is impossible, so the last {rest:,} bytes of {segment.path} "
                bad.append(Bad(at, rest, 1, f"{why}cannot be read"))
                return OldLogPart(segment.end, region, bad)
            if region.consumed:
                return OldLogPart(position + region.consumed, region, bad)
            wanted = region.wanted
            if wanted > left:
                why = f"{segment.path} ends within the message"
                return OldLogPart(segment.end, None, [Bad(position, left, 1, why)])
            if wanted > self._limits.message_bytes:
                why = f"it has {wanted:,} bytes, more than --message-max-bytes"
                return OldLogPart(position + wanted, None, [Bad(position, wanted, 1, why)])

    def _region(
        self, segment: OldSegment, descriptor: int, position: int, size: int, offset: int, skip: int
    ) -> Region:
        data = os.pread(descriptor, size, position - segment.base)
        if len(data) < size:
            raise OldLogError(f"{segment.path} has become shorter: stop what writes to it")
        return read_region(
            data,
            position=position,
            offset=offset,
            skip=skip,
            batch_bytes=self._limits.batch_bytes,
            decompressed_max=self._limits.decompressed_bytes,
            codec=self._limits.codec,
        )
