"""Every setting of a topic, and the broker settings that give its default.

The names, types, ranges and defaults are those of Kafka 3.9; where Kafka 2.7 has the setting too,
the two agree except for ``message.format.version``.
"""

from __future__ import annotations

from kbroker.config.key import (
    BOOLEAN,
    BUILT,
    CLUSTER_WIDE,
    DOUBLE,
    INT,
    INT_MAX,
    LATER,
    LIST,
    LONG,
    LONG_MAX,
    LOW,
    MEDIUM,
    STRING,
    TIMESTAMP_AFTER_MAX_MS,
    Key,
    ValueRule,
)
from kbroker.config.table.rules import GZIP_LEVEL, KAFKA_VERSION

MINUTE_MS = 60 * 1000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


def _is_throttled_replicas(items: tuple[str, ...]) -> bool:
    if items in (("*",), ("none",)):
        return True
    for item in items:
        partition, colon, broker = item.partition(":")
        if not (colon and partition.isascii() and partition.isdigit()):
            return False
        if not (broker.isascii() and broker.isdigit()):
            return False
    return True


_THROTTLED = ValueRule("partition:broker pairs separated by commas, or *", _is_throttled_replicas)


def _key(
    name: str,
    type: int,
    default: object,
    doc: str,
    server_keys: tuple[tuple[str, int], ...] | str = (),
    *,
    low: float | None = None,
    high: float | None = None,
    one_of: tuple[str, ...] | None = None,
    check: ValueRule | None = None,
    importance: str = MEDIUM,
    status: str = BUILT,
    deviation: str = "",
) -> Key:
    keys = ((server_keys, 1),) if isinstance(server_keys, str) else server_keys
    return Key(
        name, type, default, importance, doc, low=low, high=high, one_of=one_of, check=check,
        dynamic=CLUSTER_WIDE, server_keys=keys, status=status, deviation=deviation,
    )  # fmt: skip


# fmt: off
_KEYS = (
    _key("cleanup.policy", LIST, ("delete",), one_of=("compact", "delete"),
         server_keys="log.cleanup.policy",
         # COMPAT: clients' tests match the beginning of Kafka's text.
         doc='This config designates the retention policy to use on log segments. "delete" drops '
             'whole segments by age and size, "compact" keeps the newest value of each key, '
             '"delete,compact" does both.'),
    _key("compression.type", STRING, "producer", server_keys="compression.type",
         one_of=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
         doc=
             'How batches are stored: "producer" keeps them as they were sent, "uncompressed" '
             'decompresses them, a codec name recompresses them.'),
    _key("compression.gzip.level", INT, -1, check=GZIP_LEVEL,
         server_keys="compression.gzip.level",
         doc=
             "Level for batches that are recompressed with gzip: 1 (fast) to 9 (small), -1 for "
             "the codec's own choice."),
    _key("compression.lz4.level", INT, 9, low=1, high=17,
         server_keys="compression.lz4.level",
         doc=
             "Level for batches that are recompressed with lz4: 9 is its fast mode, the others "
             "are its slow one."),
    _key("compression.zstd.level", INT, 3, low=-131072, high=22,
         server_keys="compression.zstd.level",
         doc=
             "Level for batches that are recompressed with zstd; negative values trade size for "
             "speed."),
    _key("delete.retention.ms", LONG, DAY_MS, low=0,
         server_keys="log.cleaner.delete.retention.ms",
         doc="How long a tombstone stays in a compacted log. A reader from the start must finish "
             "within this time to see every deletion."),
    _key("file.delete.delay.ms", LONG, MINUTE_MS, low=0,
         server_keys="log.segment.delete.delay.ms",
         doc="How long a deleted segment stays on disk under its .deleted name."),
    _key("flush.messages", LONG, LONG_MAX, low=1, server_keys="log.flush.interval.messages",
         doc=
             "Sync a partition to disk after this many records; 1 syncs before each response, "
             "with one sync for all that are waiting."),
    _key("flush.ms", LONG, 1000, low=0,
         server_keys=(("log.flush.interval.ms", 1), ("log.flush.scheduler.interval.ms", 1)),
         doc="Sync a partition to disk at most this long after a write.",
         deviation="1,000 ms unless the broker says otherwise (Kafka: never)"),
    _key("follower.replication.throttled.replicas", LIST, (), check=_THROTTLED,
         doc="Replicas whose fetching is throttled, as partition:broker pairs; * means all."),
    _key("leader.replication.throttled.replicas", LIST, (), check=_THROTTLED,
         doc="Replicas whose sending is throttled, as partition:broker pairs; * means all."),
    _key("index.interval.bytes", INT, 4096, low=0, server_keys="log.index.interval.bytes",
         doc="Bytes of log between two entries of the offset index."),
    _key("local.retention.bytes", LONG, -2, low=-2, status=LATER,
         server_keys="log.local.retention.bytes",
         doc="Size above which segments that are stored remotely are removed here; -2 means "
             "retention.bytes."),
    _key("local.retention.ms", LONG, -2, low=-2, status=LATER,
         server_keys="log.local.retention.ms",
         doc="Age at which a segment that is stored remotely is removed here; -2 means "
             "retention.ms."),
    _key("max.compaction.lag.ms", LONG, LONG_MAX, low=1,
         server_keys="log.cleaner.max.compaction.lag.ms",
         doc=
             "A record is compacted no later than this long after it was written: its segment is "
             "rolled, and the log compacted however clean it is."),
    _key("max.message.bytes", INT, 1_048_588, low=0, server_keys="message.max.bytes",
         doc=
             "Maximum size of a record batch as sent (compressed, with its header). If you raise "
             "it, raise the fetch size of consumers as well."),
    _key("message.downconversion.enable", BOOLEAN, True, importance=LOW,
         server_keys="log.message.downconversion.enable",
         doc=
             "Whether batches are down-converted for clients that do not know format 2 (Fetch "
             "below version 4). If not, those clients get UNSUPPORTED_VERSION."),
    _key("message.format.version", STRING, "2.7-IV2", check=KAFKA_VERSION,
         server_keys="log.message.format.version",
         doc=
             "Format of stored records, as a Kafka version: format 0 before 0.10, 1 before 0.11, "
             "then 2. Formats 0 and 1 have no headers, idempotent producers or transactions: "
             "such records are rejected. Records that are already stored stay as they are."),
    _key("message.timestamp.after.max.ms", LONG, TIMESTAMP_AFTER_MAX_MS, low=0,
         server_keys="log.message.timestamp.after.max.ms",
         doc=
             "A record whose CreateTime is further ahead of the broker's clock than this is "
             "rejected."),
    _key("message.timestamp.before.max.ms", LONG, LONG_MAX, low=0,
         server_keys="log.message.timestamp.before.max.ms",
         doc=
             "A record whose CreateTime is further behind the broker's clock than this is "
             "rejected."),
    _key("message.timestamp.difference.max.ms", LONG, LONG_MAX, low=0,
         server_keys="log.message.timestamp.difference.max.ms",
         doc="Older form of message.timestamp.before.max.ms and message.timestamp.after.max.ms "
             "together; it counts for each of them that is not set."),
    _key("message.timestamp.type", STRING, "CreateTime",
         one_of=("CreateTime", "LogAppendTime"), server_keys="log.message.timestamp.type",
         doc='"CreateTime" keeps the producer\'s timestamps, "LogAppendTime" overwrites them with '
             "the broker's clock."),
    _key("min.cleanable.dirty.ratio", DOUBLE, 0.5, low=0, high=1,
         server_keys="log.cleaner.min.cleanable.ratio",
         doc="A log is compacted once this share of it is dirty, that is, not compacted yet."),
    _key("min.compaction.lag.ms", LONG, 0, low=0,
         server_keys="log.cleaner.min.compaction.lag.ms",
         doc="A record is not compacted before it is this old."),
    _key("min.insync.replicas", INT, 1, low=1, high=INT_MAX, server_keys="min.insync.replicas",
         doc="Replicas that must be in sync for a write with acks=all to be accepted: all, if "
             "there are fewer than this."),
    _key("preallocate", BOOLEAN, False, server_keys="log.preallocate",
         doc="Preallocate the disk space of a segment when it is created."),
    _key("remote.log.copy.disable", BOOLEAN, False, status=LATER,
         doc="Stop copying segments to remote storage."),
    _key("remote.log.delete.on.disable", BOOLEAN, False, status=LATER,
         doc="Delete remote segments when remote storage is turned off for the topic."),
    _key("remote.storage.enable", BOOLEAN, False, status=LATER,
         check=ValueRule("false, because remote storage is not supported yet",
                         lambda value: not value),
         doc="Keep old segments in remote storage. Rejected until that is built."),
    _key("retention.bytes", LONG, -1, server_keys="log.retention.bytes",
         doc="Size of a partition above which its oldest segments are deleted; -1 sets no limit."),
    _key("retention.ms", LONG, 7 * DAY_MS, low=-1,
         server_keys=(("log.retention.ms", 1), ("log.retention.minutes", MINUTE_MS),
                      ("log.retention.hours", HOUR_MS)),
         doc='Age at which segments are deleted under the policy "delete"; -1 keeps them forever.'),
    _key("segment.bytes", INT, 1 << 30, low=14, server_keys="log.segment.bytes",
         doc=
             "Size at which the active segment is rolled. Only whole segments are deleted, so "
             "smaller ones make retention more precise, at the price of more files."),
    _key("segment.index.bytes", INT, 10 << 20, low=4, server_keys="log.index.size.max.bytes",
         doc="Largest size of an index file, which grows in steps and is cut to its content when "
             "the segment is rolled. A full index rolls the segment."),
    _key("segment.jitter.ms", LONG, 0, low=0,
         server_keys=(("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", HOUR_MS)),
         doc="Maximum random reduction of segment.ms."),
    _key("segment.ms", LONG, 7 * DAY_MS, low=1,
         server_keys=(("log.roll.ms", 1), ("log.roll.hours", HOUR_MS)),
         doc="Age at which the active segment is rolled even if it is not full."),
    _key("unclean.leader.election.enable", BOOLEAN, False,
         server_keys="unclean.leader.election.enable",
         doc="Whether a replica that is not in sync may become leader when no other is left."),
)
# fmt: on

TOPIC_KEYS: dict[str, Key] = {key.name: key for key in _KEYS}
