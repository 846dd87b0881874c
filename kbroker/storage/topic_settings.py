"""The settings of a topic that concern its logs, read once into plain fields."""

from __future__ import annotations

import os
from typing import Any, Protocol

from kbroker.config.key import TIMESTAMP_AFTER_MAX_MS

NO_LIMIT = (1 << 63) - 1
# Codec numbers are those in a batch's attributes (``record.compression``).
AS_PRODUCED = -1
UNCOMPRESSED, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODECS = {"uncompressed": UNCOMPRESSED, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}
LEVEL_KEYS = {
    GZIP: "compression.gzip.level",
    LZ4: "compression.lz4.level",
    ZSTD: "compression.zstd.level",
}
LZ4_FAST_LEVEL = 9


class TypedSettings(Protocol):
    """Typed values by Kafka's names, defaults included; of the broker here, of a topic below."""

    def __getitem__(self, key: str) -> Any: ...


TopicConfig = TypedSettings


class LogConfig:
    """One topic's storage settings. Times in milliseconds; a retention of None keeps everything."""

    __slots__ = (
        "codec",
        "codec_level",
        "compact",
        "decompressed_bytes_max",
        "delete",
        "file_delete_delay_ms",
        "flush_messages",
        "flush_ms",
        "index_interval_bytes",
        "log_append_time",
        "message_bytes_max",
        "message_magic",
        "preallocate",
        "retention_bytes",
        "retention_ms",
        "segment_bytes",
        "segment_index_bytes",
        "segment_jitter_ms",
        "segment_ms",
        "timestamp_after_max_ms",
        "timestamp_before_max_ms",
    )

    def __init__(self, config: TopicConfig, *, decompressed_bytes_max: int = 64 << 20) -> None:
        policy = config["cleanup.policy"]
        policies = policy.split(",") if isinstance(policy, str) else policy
        self.codec, self.codec_level = _codec(config)
        self.compact = "compact" in policies
        self.delete = "delete" in policies
        self.decompressed_bytes_max = decompressed_bytes_max
        self.file_delete_delay_ms = config["file.delete.delay.ms"]
        self.flush_messages = config["flush.messages"]
        self.flush_ms = config["flush.ms"]
        self.index_interval_bytes = config["index.interval.bytes"]
        self.log_append_time = config["message.timestamp.type"] == "LogAppendTime"
        self.message_bytes_max = config["max.message.bytes"]
        self.message_magic = magic_of(config["message.format.version"])
        self.preallocate = config["preallocate"]
        self.retention_bytes = _limit(config["retention.bytes"])
        self.retention_ms = _limit(config["retention.ms"])
        self.segment_bytes = config["segment.bytes"]
        self.segment_index_bytes = config["segment.index.bytes"]
        self.segment_jitter_ms = config["segment.jitter.ms"]
        self.segment_ms = config["segment.ms"]
        if self.compact:
            # Only sealed segments are compacted, so one must not stay active for longer than that.
            self.segment_ms = min(self.segment_ms, config["max.compaction.lag.ms"])
        self.timestamp_after_max_ms = _bound(
            config, "message.timestamp.after.max.ms", TIMESTAMP_AFTER_MAX_MS
        )
        self.timestamp_before_max_ms = _bound(config, "message.timestamp.before.max.ms", NO_LIMIT)

    def append_limits(self) -> dict[str, Any]:
        """The arguments of ``LogAppender.configure``. The jitter is drawn again each time."""
        jitter_max = min(self.segment_jitter_ms, self.segment_ms)
        jitter = int.from_bytes(os.urandom(8), "big") % jitter_max if jitter_max > 0 else 0
        return {
            "message_bytes_max": self.message_bytes_max,
            "decompressed_bytes_max": self.decompressed_bytes_max,
            "segment_bytes": self.segment_bytes,
            "segment_ms": self.segment_ms - jitter,
            "index_interval_bytes": self.index_interval_bytes,
            "flush_messages": self.flush_messages,
            "timestamp_before_max_ms": self.timestamp_before_max_ms,
            "timestamp_after_max_ms": self.timestamp_after_max_ms,
            "log_append_time": self.log_append_time,
            "compacted": self.compact,
            "codec": self.codec,
            "level": self.codec_level,
            "stored_magic": self.message_magic,
        }


def magic_of(version: str) -> int:
    """The message format of a version of Kafka: ``0.9.0`` has 0, ``0.10.2-IV0`` 1, ``2.7`` 2."""
    numbers = [int(part) for part in version.split("-")[0].split(".")]
    if numbers >= [0, 11]:
        return 2
    return int(numbers >= [0, 10])


def _codec(config: TopicConfig) -> tuple[int, int | None]:
    """The codec of ``compression.type``: its number, -1 for the producer's own, and its level."""
    name = config["compression.type"]
    if name == "producer":
        return AS_PRODUCED, None
    codec = CODECS[name]
    if codec not in LEVEL_KEYS:
        return codec, None
    level = config[LEVEL_KEYS[codec]]
    # COMPAT: as in Kafka, lz4's default stands for its fast mode, every other level for the slow.
    return codec, None if codec == LZ4 and level == LZ4_FAST_LEVEL else level


def _limit(value: int) -> int | None:
    return None if value < 0 else value


def _bound(config: TopicConfig, key: str, default: int) -> int:
    # COMPAT: the older config applies, if it is set, where the newer one has its default (KIP-937).
    bound, older = int(config[key]), int(config["message.timestamp.difference.max.ms"])
    return older if bound == default and older != NO_LIMIT else bound
