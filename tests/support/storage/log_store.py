"""Logs of a LogManager in a temporary directory, batches for them, and ways to read them back."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

from kbroker._ext.record.record_codec import decode_records
from kbroker._ext.shared.partition_table import PartitionTable, region_size
from kbroker.clock import ManualClock
from kbroker.record.builder import BatchBuilder
from kbroker.storage.background import BackgroundDisk
from kbroker.storage.log.partition_log import PartitionLog
from kbroker.storage.manager.log_manager import LogManager
from kbroker.storage.manager.recovery_threads import OpenRequest

NO_LIMIT = (1 << 63) - 1
NOW_MS = 1_700_000_000_000
TOPIC_ID = bytes(range(16))

TOPIC_DEFAULTS: dict[str, Any] = {
    "cleanup.policy": ("delete",),
    "compression.gzip.level": -1,
    "compression.lz4.level": 9,
    "compression.type": "producer",
    "compression.zstd.level": 3,
    "file.delete.delay.ms": 60_000,
    "flush.messages": NO_LIMIT,
    "flush.ms": 1000,
    "index.interval.bytes": 4096,
    "max.message.bytes": 1_048_588,
    "max.compaction.lag.ms": NO_LIMIT,
    "message.format.version": "2.7-IV2",
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": NO_LIMIT,
    "message.timestamp.after.max.ms": NO_LIMIT,
    "message.timestamp.difference.max.ms": NO_LIMIT,
    "preallocate": False,
    "retention.bytes": -1,
    "retention.ms": 7 * 86_400_000,
    "segment.bytes": 1 << 30,
    "segment.index.bytes": 10 << 20,
    "segment.jitter.ms": 0,
    "segment.ms": 7 * 86_400_000,
}

BROKER_DEFAULTS: dict[str, Any] = {
    "log.check.io.max.bytes.per.second": 0,
    "log.flush.offset.checkpoint.interval.ms": 60_000,
    "log.flush.start.offset.checkpoint.interval.ms": 60_000,
    "log.initial.task.delay.ms": 30_000,
    "log.segment.delete.delay.ms": 60_000,
    "producer.id.expiration.check.interval.ms": 600_000,
    "replica.high.watermark.checkpoint.interval.ms": 5_000,
    "log.retention.check.interval.ms": 300_000,
    "max.decompressed.message.bytes": 64 << 20,
    "num.recovery.threads.per.data.dir": 1,
    "producer.id.expiration.ms": 86_400_000,
    "replica.alter.log.dirs.io.max.bytes.per.second": NO_LIMIT,
}


def topic_config(**changes: Any) -> dict[str, Any]:
    """Topic defaults; ``segment_bytes=100`` sets ``segment.bytes``."""
    return {**TOPIC_DEFAULTS, **{key.replace("_", "."): value for key, value in changes.items()}}


def batch(
    values: list[bytes] | int = 1,
    *,
    timestamp: int = NOW_MS,
    codec: int = 0,
    key: bytes | None = b"k",
    size: int = 10,
    **header: Any,
) -> bytes:
    """A batch as from a client; ``values``: a number makes as many of ``size`` bytes."""
    builder = BatchBuilder(codec, **header)
    if isinstance(values, int):
        values = [b"v" * size] * values
    for value in values:
        builder.append(value, key, timestamp)
    return builder.build()


def small(**changes: Any) -> dict[str, Any]:
    """Topic configs with which every batch gets its own segment."""
    return {"segment.bytes": len(batch()), **changes}


def sent(
    producer_id: int, sequence: int, values: list[bytes] | int = 1, *, epoch: int = 0, **more: Any
) -> bytes:
    """A batch of a transaction."""
    return batch(
        values,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=True,
        **more,
    )


def break_file(log: PartitionLog) -> None:
    """Make every write and sync of the active segment's descriptor fail from now on."""
    read_end, write_end = os.pipe()
    os.dup2(read_end, log.segments.files.fd)
    os.close(read_end)
    os.close(write_end)


class LogStore:
    """A LogManager over ``tmp_path`` with one or more directories, restarted at will."""

    def __init__(self, path: Path, *, dirs: int = 1, slots: int = 16, **config: Any) -> None:
        self.dirs = [str(path / f"logs-{i}") for i in range(dirs)]
        for directory in self.dirs:
            os.makedirs(directory, exist_ok=True)
        self.table = PartitionTable(bytearray(region_size(slots)), slots)
        self.clock = ManualClock(NOW_MS)
        self.config = {**BROKER_DEFAULTS, **config}
        # With a byte for each directory: failed ones stay offline over a restart.
        self.failed_flags: bytearray | None = None
        # Of each write that found no room: index and path of the directory, errno.
        self.full_disks: list[tuple[int, str, int]] = []
        self.manager = self._manager(clean=False)

    def make_background(self) -> BackgroundDisk:
        return BackgroundDisk(inline=True)

    def start(self, *, clean: bool | dict[str, bool] = False) -> LogManager:
        self.manager.close(clean=False)
        self.manager = self._manager(clean=clean)
        return self.manager

    def start_after_kill(self) -> LogManager:
        """As ``start``, without a stop of any kind before it."""
        self.manager = self._manager(clean=False)
        return self.manager

    def _manager(self, *, clean: bool | dict[str, bool]) -> LogManager:
        return LogManager(
            self.config, self.dirs, self.table, 0, 1, self.clock,
            clean_start=clean, failed_flags=self.failed_flags,
            background=self.make_background(),
            note_full_disk=lambda *row: self.full_disks.append(row),
        )  # fmt: skip

    def open(
        self, topic: str = "t", partition: int = 0, slot: int = 0, **config: Any
    ) -> PartitionLog:
        found = self.try_open(topic, partition, slot, **config)
        assert found is not None, self.manager.offline_reason(slot)
        return found

    def try_open(
        self, topic: str = "t", partition: int = 0, slot: int = 0, **config: Any
    ) -> PartitionLog | None:
        topic_id = config.pop("topic_id", TOPIC_ID)
        epoch = config.pop("leader_epoch", 0)
        more = {
            name: config.pop(name)
            for name in ("is_new", "role", "partition_epoch", "is_alone", "has_leader", "creation")
            if name in config
        }
        return self.manager.open_partition(
            OpenRequest(topic, topic_id, partition, slot, 1, epoch, topic_config(**config), **more)
        )

    def restart(self, *, clean: bool, **config: Any) -> PartitionLog:
        """Stop in the given way and open partition 0 of topic ``t`` again."""
        self.stop(clean=clean)
        self.start(clean=clean)
        return self.open(**config)

    def stop(self, *, clean: bool) -> None:
        self.manager.close(clean=clean)

    @staticmethod
    def topic_config(**changes: Any) -> dict[str, Any]:
        return topic_config(**changes)

    def path(self, name: str = "", topic: str = "t", partition: int = 0) -> Path:
        return Path(self.dirs[0]) / f"{topic}-{partition}" / name

    def slot(self, slot: int = 0) -> dict[str, Any]:
        return self.table.read(slot)


def checkpoint(store: LogStore, name: str = "recovery-point-offset-checkpoint") -> str:
    """The text of a checkpoint in the first directory."""
    return (Path(store.dirs[0]) / name).read_text()


def append(log: PartitionLog, data: bytes, now_ms: int = NOW_MS) -> int:
    """Append, publish and commit; returns the base offset. Fails on an error code."""
    code, base_offset, *_ = log.appender.append_batch(data, now_ms)
    assert code == 0, (code, log.appender.error_text)
    end_turn(log)
    return base_offset


def end_turn(log: PartitionLog) -> None:
    """Publish, and complete what waits for a commit, as the end of a turn does."""
    log.publish()
    log.appender.committed.advance(log.high_watermark)


def produce(
    log: PartitionLog, sequence: int, *, producer: int = 9, epoch: int = 0, records: int = 1
) -> tuple[int, int]:
    """(error code, base offset) of a batch of an idempotent producer."""
    data = batch(records, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
    code, base_offset, *_ = log.appender.append_batch(data, NOW_MS)
    return code, base_offset


def append_error(log: PartitionLog, data: bytes, now_ms: int = NOW_MS) -> tuple[int, int]:
    """(error code, bad record index) of an append that must fail."""
    code, base_offset, *_, bad_index = log.appender.append_batch(data, now_ms)
    assert code != 0 and base_offset == -1
    assert log.appender.error_text
    return code, bad_index


def end_transaction(
    log: PartitionLog,
    producer_id: int,
    *,
    commit: bool,
    epoch: int = 0,
    coordinator_epoch: int = 0,
    version: int = 0,
) -> int:
    """Append a marker, publish and commit; returns its offset. Fails on an error code."""
    code, offset = log.appender.append_marker(
        producer_id, epoch, commit, coordinator_epoch, NOW_MS, version
    )
    assert code == 0, (code, log.appender.error_text)
    end_turn(log)
    return offset


def stored_values(log: PartitionLog) -> list[tuple[int, bytes]]:
    """(offset, value) of every record, read from the files alone."""
    found = []
    for path in sorted(Path(log.path).glob("*.log")):
        found += parse_file(path.read_bytes())
    return [entry for entry in found if entry[0] >= log.log_start_offset]


def parse_file(data: bytes) -> list[tuple[int, bytes]]:
    """(offset, value) of the records of one uncompressed log file, parsed independently."""
    found = []
    at = 0
    while at < len(data):
        base, length = struct.unpack_from(">qi", data, at)
        count = struct.unpack_from(">i", data, at + 57)[0]
        last_delta = struct.unpack_from(">i", data, at + 23)[0]
        first_timestamp = struct.unpack_from(">q", data, at + 27)[0]
        body = data[at + 61 : at + 12 + length]
        for delta, _ts, _key, value, _headers in decode_records(
            body, count, last_delta, first_timestamp
        ):
            found.append((base + delta, value))
        at += 12 + length
    return found
