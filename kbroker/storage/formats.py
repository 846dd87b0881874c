"""Names, suffixes and constants of everything in a log directory. docs/formats/ explains each."""

from __future__ import annotations

import os

from kbroker.types import Offset

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
# A file to be deleted, a file being written by the cleaner, a cleaned file that replaces others.
DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
# A file that is being rewritten; it has no meaning until it is renamed.
TEMPORARY_SUFFIX = ".tmp"
SEGMENT_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)

# Directories: <topic>-<partition>.<32 hex digits>-delete waits for deletion; ...-stray belonged to
# another topic id or is not assigned to this broker any more; ...-future is a replica on its way
# into this log directory.
DELETE_DIR_SUFFIX = "-delete"
STRAY_DIR_SUFFIX = "-stray"
FUTURE_DIR_SUFFIX = "-future"
# BOUND: bytes of a name, on all common file systems.
NAME_BYTES_MAX = 255
# kbroker's own: marks a partition's directory that has replaced one in another log directory, until
# that one is gone.
MOVED_MARKER = "moved.txt"

PARTITION_METADATA = "partition.metadata"
# kbroker's own, in a cluster without topic ids: the creation of the topic that the partition is of.
CREATION_NOTE = "kbroker-creation"
LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
# kbroker's own: checksums of the partition's .txnindex files.
TXN_INDEX_CHECKPOINT = "txn-index-checkpoint"
# Present while a partition is offline because its files are damaged below the recovery point.
QUARANTINE_MARKER = "quarantine.txt"

# Files of a data directory: its owner, a clean shutdown, a running broker.
META_NAME = "meta.properties"
CLEAN_SHUTDOWN_NAME = ".kafka_cleanshutdown"
LOCK_NAME = ".lock"
# kbroker's own: the data directories of the last start, if there were several.
LOG_DIRS_NAME = "kbroker-log-dirs.txt"
# kbroker's own, in a cluster: the boot id of the last start; partitions that a power failure may
# have cut short.
BOOT_ID_NAME = "kbroker-boot-id"
SUSPECT_PARTITIONS = "kbroker-suspect-partitions"
# kbroker's own, in a cluster: the id of the directory, and the number of its last start.
INCARNATION_NAME = "kbroker-incarnation"
RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
LOG_START_CHECKPOINT = "log-start-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT = "replication-offset-checkpoint"
CLEANER_CHECKPOINT = "cleaner-offset-checkpoint"

OFFSET_DIGITS = 20
NO_TIMESTAMP = -1
# For an offset or a time that is after every possible one.
LARGEST = (1 << 63) - 1


def segment_name(base_offset: int, suffix: str) -> str:
    """``00000000000000000000.log`` for base offset 0."""
    return f"{base_offset:0{OFFSET_DIGITS}d}{suffix}"


def base_offset_of(name: str) -> Offset | None:
    """The offset that starts a segment's file name, whatever its suffixes; None for other names."""
    digits = name.split(".", 1)[0]
    if len(digits) < OFFSET_DIGITS or not (digits.isascii() and digits.isdigit()):
        return None
    return Offset(int(digits))


def partition_dir_name(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


def aside_dir_name(topic: str, partition: int, suffix: str) -> str:
    """A new name for a directory that will be deleted. A topic name that is too long for it is
    truncated.
    """
    rest = f"-{partition}.{os.urandom(16).hex()}{suffix}"
    return topic[: NAME_BYTES_MAX - len(rest)] + rest


def future_dir_name(topic: str, partition: int) -> str:
    """A new name for a replica on its way into a log directory."""
    return f"{topic}-{partition}.{os.urandom(16).hex()}{FUTURE_DIR_SUFFIX}"


def parse_future_dir(name: str) -> tuple[str, int] | None:
    """(topic, partition) of a future replica's directory, None for any other name."""
    if not name.endswith(FUTURE_DIR_SUFFIX):
        return None
    return parse_partition_dir(name.removesuffix(FUTURE_DIR_SUFFIX).rpartition(".")[0])


def parse_partition_dir(name: str) -> tuple[str, int] | None:
    """(topic, partition) of a partition's directory, None for any other name."""
    if name.endswith((DELETE_DIR_SUFFIX, STRAY_DIR_SUFFIX)):
        return None
    topic, dash, digits = name.rpartition("-")
    if not dash or not topic or not (digits.isascii() and digits.isdigit()):
        return None
    return topic, int(digits)
