"""Data directories, segments, retention, durability and compaction."""

from __future__ import annotations

from kbroker.config.key import (
    BOOLEAN,
    CLUSTER_WIDE,
    DOUBLE,
    DOUBLE_MAX,
    HIGH,
    INT,
    LATER,
    LIST,
    LONG,
    LONG_MAX,
    LOW,
    MEDIUM,
    PER_BROKER,
    STRING,
    TIMESTAMP_AFTER_MAX_MS,
    Key,
)
from kbroker.config.table.rules import KAFKA_VERSION

# fmt: off
DATA_DIRECTORIES = (
    Key("log.dir", STRING, "/tmp/kafka-logs", HIGH,
        doc="Data directory, used when log.dirs is unset."),
    Key("log.dirs", STRING, None, HIGH,
        doc=
            "Data directories separated by commas, ideally one per disk. Each partition is in "
            "one of them; a directory that fails goes offline while the others stay in use."),
    Key("cordoned.log.dirs", LIST, (), MEDIUM, dynamic=PER_BROKER,
        doc="Data directories that get no new partitions and no replicas from other directories, "
            "separated by commas; * for all."),
    Key("log.dir.failure.timeout.ms", LONG, 30_000, LOW, low=1, status=LATER,
        doc="A broker that cannot report a failed directory to its controller for this long "
            "stops."),
)

SEGMENTS = (
    Key("log.segment.bytes", INT, 1_073_741_824, HIGH, low=14, dynamic=CLUSTER_WIDE,
        doc="Size at which the active segment is rolled."),
    Key("log.roll.ms", LONG, None, HIGH, dynamic=CLUSTER_WIDE,
        synonyms=("log.roll.ms", "log.roll.hours"),
        doc="Age at which the active segment is rolled even if it is not full."),
    Key("log.roll.hours", INT, 168, HIGH, low=1, synonyms=("log.roll.ms", "log.roll.hours"),
        doc="The same in hours, used when log.roll.ms is unset."),
    Key("log.roll.jitter.ms", LONG, None, HIGH, dynamic=CLUSTER_WIDE,
        synonyms=("log.roll.jitter.ms", "log.roll.jitter.hours"),
        doc=
            "Maximum random reduction of the rolling age, so that partitions do not all roll at "
            "once."),
    Key("log.roll.jitter.hours", INT, 0, HIGH, low=0,
        synonyms=("log.roll.jitter.ms", "log.roll.jitter.hours"),
        doc="The same in hours, used when log.roll.jitter.ms is unset."),
    Key("log.index.size.max.bytes", INT, 10_485_760, MEDIUM, low=4, dynamic=CLUSTER_WIDE,
        doc="Largest size of an index file, which grows in steps and is cut to its content when "
            "the segment is rolled. A full index rolls the segment."),
    Key("log.index.interval.bytes", INT, 4096, MEDIUM, low=0, dynamic=CLUSTER_WIDE,
        doc=
            "Bytes of log between two entries of the offset index. A smaller value finds "
            "positions faster but makes the index larger."),
    Key("log.preallocate", BOOLEAN, False, MEDIUM, dynamic=CLUSTER_WIDE,
        doc="Preallocate the disk space of a segment when it is created."),
    Key("log.segment.delete.delay.ms", LONG, 60_000, HIGH, low=0, dynamic=CLUSTER_WIDE,
        aliases=("log.delete.delay.ms",),
        doc="How long a deleted segment stays on disk under its .deleted name, so that readers "
            "can finish."),
    Key("log.initial.task.delay.ms", LONG, 30_000, LOW, low=0,
        doc="Wait after the start before retention and the checkpoints run for the first time; "
            "those with a shorter interval wait only that long."),
)

RETENTION = (
    Key("log.retention.ms", LONG, None, HIGH, dynamic=CLUSTER_WIDE,
        synonyms=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
        doc='Age at which segments are deleted under the policy "delete"; -1 keeps them forever.'),
    Key("log.retention.minutes", INT, None, HIGH,
        synonyms=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
        doc="The same in minutes, used when log.retention.ms is unset."),
    Key("log.retention.hours", INT, 168, HIGH,
        synonyms=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
        doc="The same in hours, used when log.retention.ms and log.retention.minutes are unset."),
    Key("log.retention.bytes", LONG, -1, HIGH, dynamic=CLUSTER_WIDE,
        doc=
            "Size of a partition above which its oldest segments are deleted; -1 sets no limit. "
            "The disk needs room for one segment more than this per partition."),
    Key("log.retention.check.interval.ms", LONG, 300_000, MEDIUM, low=1,
        doc="How often the retention limits are checked."),
    Key("log.cleanup.policy", LIST, ("delete",), MEDIUM, one_of=("delete", "compact"),
        dynamic=CLUSTER_WIDE,
        doc='What happens to old data: "delete" drops whole segments by age and size, "compact" '
            'keeps the newest value of each key, or both.'),
)

DURABILITY = (
    Key("log.flush.interval.messages", LONG, LONG_MAX, HIGH, low=1, dynamic=CLUSTER_WIDE,
        doc=
            "Sync a partition to disk after this many records; 1 syncs before each response, "
            "with one sync for all that are waiting."),
    Key("log.flush.interval.ms", LONG, 1000, HIGH, dynamic=CLUSTER_WIDE,
        synonyms=("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
        doc=
            "Sync a partition to disk at most this long after a write; without replicas, this is "
            "how much a power cut can cost.",
        deviation="1,000 ms (Kafka: null, which leaves syncing to the operating system)"),
    Key("log.flush.scheduler.interval.ms", LONG, LONG_MAX, HIGH,
        doc=
            "Used as log.flush.interval.ms when only this one is set. Otherwise, syncs are done "
            "when they are due, without polling."),
    Key("log.flush.offset.checkpoint.interval.ms", INT, 60_000, HIGH, low=0,
        doc=
            "How often the recovery points are saved; everything below them is known to be on "
            "disk."),
    Key("log.flush.start.offset.checkpoint.interval.ms", INT, 60_000, HIGH, low=0,
        doc="How often the log start offset of each partition is saved."),
    Key("replica.high.watermark.checkpoint.interval.ms", LONG, 5000, HIGH,
        doc="How often the high watermarks are saved."),
)

RECORDS = (
    Key("log.message.timestamp.type", STRING, "CreateTime", MEDIUM,
        one_of=("CreateTime", "LogAppendTime"), dynamic=CLUSTER_WIDE,
        doc='"CreateTime" keeps the producer\'s timestamps, "LogAppendTime" overwrites them with '
            "the broker's clock."),
    Key("log.message.timestamp.difference.max.ms", LONG, LONG_MAX, MEDIUM, low=0,
        dynamic=CLUSTER_WIDE,
        doc="Older form of the next two together: how far a CreateTime may be from the broker's "
            "clock in either direction.",
        deviation="not negative"),
    Key("log.message.timestamp.before.max.ms", LONG, LONG_MAX, MEDIUM, low=0, dynamic=CLUSTER_WIDE,
        doc="A record whose CreateTime is further in the past than this is rejected."),
    Key("log.message.timestamp.after.max.ms", LONG, TIMESTAMP_AFTER_MAX_MS, MEDIUM, low=0,
        dynamic=CLUSTER_WIDE,
        doc="A record whose CreateTime is further in the future than this is rejected."),
    Key("log.message.format.version", STRING, "2.7-IV2", MEDIUM, check=KAFKA_VERSION,
        doc="Format of stored records, as a Kafka version: format 0 before 0.10, 1 before 0.11, "
            "then 2. The topics of coordinators are always in format 2.",
        deviation="validated as a version"),
    Key("log.message.downconversion.enable", BOOLEAN, True, LOW, dynamic=CLUSTER_WIDE,
        doc=
            "Whether batches are down-converted for clients that do not know format 2 (Fetch "
            "below version 4). If not, those clients get UNSUPPORTED_VERSION."),
    Key("producer.id.expiration.ms", INT, 86_400_000, LOW, low=1, dynamic=CLUSTER_WIDE,
        doc="How long the last sequence number of an inactive idempotent producer is kept."),
    Key("producer.id.expiration.check.interval.ms", INT, 600_000, LOW, low=1,
        doc="How often expired producers are removed."),
)

LOG_CLEANER = (
    Key("log.cleaner.enable", BOOLEAN, True, MEDIUM,
        doc='Whether topics with the policy "compact" are compacted, by a separate process.'),
    Key("log.cleaner.threads", INT, 1, MEDIUM, low=0, dynamic=CLUSTER_WIDE,
        doc="Threads of the cleaner process; each compacts one log at a time. 0 stops compaction."),
    Key("log.cleaner.io.max.bytes.per.second", DOUBLE, DOUBLE_MAX, MEDIUM, dynamic=CLUSTER_WIDE,
        doc="Maximum bytes per second that compaction reads and writes."),
    Key("log.cleaner.dedupe.buffer.size", LONG, 134_217_728, MEDIUM, dynamic=CLUSTER_WIDE,
        doc=
            "Memory for the map from key to offset, over all threads: 24 bytes a key. What does "
            "not fit is compacted in the next run."),
    Key("log.cleaner.io.buffer.size", INT, 524_288, MEDIUM, low=0, dynamic=CLUSTER_WIDE,
        doc="Memory for reading and writing, over all threads."),
    Key("log.cleaner.io.buffer.load.factor", DOUBLE, 0.9, MEDIUM, dynamic=CLUSTER_WIDE,
        doc="How full the map may get, as a share of its size."),
    Key("log.cleaner.backoff.ms", LONG, 15_000, MEDIUM, low=0, dynamic=CLUSTER_WIDE,
        doc="How long a thread sleeps when no log needs compaction."),
    Key("log.cleaner.min.cleanable.ratio", DOUBLE, 0.5, MEDIUM, low=0, high=1, dynamic=CLUSTER_WIDE,
        doc="A log is compacted once this share of it is dirty, that is, not compacted yet.",
        deviation="validated as a fraction"),
    Key("log.cleaner.delete.retention.ms", LONG, 86_400_000, MEDIUM, low=0, dynamic=CLUSTER_WIDE,
        doc="How long a tombstone stays in a compacted log.",
        deviation="not negative"),
    Key("log.cleaner.min.compaction.lag.ms", LONG, 0, MEDIUM, low=0, dynamic=CLUSTER_WIDE,
        doc="A record is not compacted before it is this old.",
        deviation="not negative"),
    Key("log.cleaner.max.compaction.lag.ms", LONG, LONG_MAX, MEDIUM, low=1, dynamic=CLUSTER_WIDE,
        doc="A record is compacted no later than this long after it was written.",
        deviation="at least 1"),
)

SECTIONS = (
    ("Data directories", DATA_DIRECTORIES),
    ("Segments", SEGMENTS),
    ("Retention", RETENTION),
    ("Durability", DURABILITY),
    ("Records", RECORDS),
    ("Log cleaner", LOG_CLEANER),
)
