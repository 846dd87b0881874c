"""The data directories to adopt: checks their owner, that they are not in use, and their content.

Reads only, except for the locks, which are those a broker takes.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple

from kbroker.adopt.errors import Refusal
from kbroker.adopt.metadata_log import DIRECTORY as METADATA_DIRECTORY
from kbroker.cluster.topic_names import PARTITIONS_MAX
from kbroker.controller.state.topics import check_name
from kbroker.errors import WireError
from kbroker.properties import PropertiesError, read_properties
from kbroker.storage.checkpoint import CorruptCheckpointError, OffsetCheckpoint, TopicPartition
from kbroker.storage.dirs.log_dir import holds_segments
from kbroker.storage.formats import (
    CLEAN_SHUTDOWN_NAME,
    CLEANER_CHECKPOINT,
    DELETE_DIR_SUFFIX,
    FUTURE_DIR_SUFFIX,
    LOCK_NAME,
    LOG_START_CHECKPOINT,
    META_NAME,
    RECOVERY_POINT_CHECKPOINT,
    STRAY_DIR_SUFFIX,
    parse_partition_dir,
)
from kbroker.uuids import parse_uuid

# Directories that look like partitions but mean nothing to a broker.
_PASSING_SUFFIXES = (DELETE_DIR_SUFFIX, STRAY_DIR_SUFFIX, FUTURE_DIR_SUFFIX)
ZOOKEEPER_META, KRAFT_META = "0", "1"
# Kafka's copies of indexes that are in remote storage, which kbroker does not read.
_REMOTE_INDEXES = "remote-log-index-cache"
# Files that a file system or a backup tool creates at the top of a volume.
_HARMLESS = frozenset({"lost+found", ".snapshot", ".snapshots"})


class DirectoryIdentity(NamedTuple):
    """The identity in ``meta.properties``."""

    version: str
    broker_id: int
    cluster_id: str
    directory_id: bytes | None

    @property
    def is_kraft(self) -> bool:
        return self.version == KRAFT_META


class LogDirectory:
    """One data directory and what it contains."""

    __slots__ = (
        "cleaned",
        "identity",
        "is_clean",
        "left_alone",
        "log_starts",
        "partitions",
        "path",
        "recovery_points",
    )

    def __init__(
        self,
        path: str,
        *,
        logs_only: bool = False,
        was_clean: bool | None = None,
        only: Set[TopicPartition] | None = None,
    ) -> None:
        """One directory of ``read_directories``. Raises Refusal, OSError."""
        self.path = path
        if not os.path.isdir(path):
            what = "not a directory" if os.path.exists(path) else "no such directory"
            raise Refusal(f"{path}: {what}; give the directories of Kafka's log.dirs")
        self.identity = read_identity(path)
        if was_clean is None:
            was_clean = os.path.exists(os.path.join(path, CLEAN_SHUTDOWN_NAME))
        self.is_clean = was_clean
        self.recovery_points = _checkpoint(path, RECOVERY_POINT_CHECKPOINT)
        self.log_starts = _checkpoint(path, LOG_START_CHECKPOINT)
        # Partitions that were compacted by kbroker: their offsets may have gaps.
        self.cleaned = _checkpoint(path, CLEANER_CHECKPOINT)
        self.partitions: dict[TopicPartition, str] = {}
        # Directories that mean nothing to a broker, with the reason.
        self.left_alone: dict[str, str] = {}
        with os.scandir(path) as entries:
            for entry in sorted(entries, key=lambda one: one.name):
                if entry.is_dir() and not (logs_only and self._has_no_log(entry)):
                    self._sort(entry)
        named = set(self.recovery_points)
        if only is not None:
            named.intersection_update(only)
            self.partitions = {key: self.partitions[key] for key in only & self.partitions.keys()}
        missing = sorted(named - self.partitions.keys() - self._passing())
        if missing:
            topic, number = missing[0]
            raise Refusal(
                f"{path}/{topic}-{number}: missing, although {RECOVERY_POINT_CHECKPOINT} names "
                f"it{_and_others(missing)}; copy the directory again while the broker is stopped. "
                "If the topic was deleted, remove its line from that file"
            )

    def _has_no_log(self, entry: os.DirEntry[str]) -> bool:
        """Whether the directory has no sign of a past or present log."""
        key = parse_partition_dir(entry.name)
        if key is None:
            return not entry.name.endswith(_PASSING_SUFFIXES)
        if key in self.recovery_points:
            return False
        return not is_topic_name(key[0]) or not holds_segments(entry.path)

    def _sort(self, entry: os.DirEntry[str]) -> None:
        name = entry.name
        if name in (METADATA_DIRECTORY, _REMOTE_INDEXES) or name in _HARMLESS:
            return
        if name.endswith(DELETE_DIR_SUFFIX):
            self.left_alone[name] = (
                "was deleted; the broker removes it when it starts, as Kafka does"
            )
        elif name.endswith(STRAY_DIR_SUFFIX):
            self.left_alone[name] = "was set aside because its topic no longer existed"
        elif name.endswith(FUTURE_DIR_SUFFIX):
            self.left_alone[name] = (
                "a replica that was being moved into this directory; the original is used"
            )
        else:
            key = parse_partition_dir(name)
            if key is None or not is_topic_name(key[0]):
                raise Refusal(
                    f"{entry.path} is not a partition directory, and a data directory holds "
                    "nothing else. Move it away, or give the directory that is Kafka's"
                )
            if key[1] >= PARTITIONS_MAX:
                raise Refusal(
                    f"{entry.path}: kbroker allows at most {PARTITIONS_MAX} partitions per topic; "
                    "move the directory away"
                )
            self.partitions[key] = entry.path

    def _passing(self) -> set[TopicPartition]:
        """Partitions that checkpoints may name without a log: deleted ones and the metadata log."""
        keys = {("__cluster_metadata", 0)}
        for name in self.left_alone:
            key = parse_partition_dir(name.rpartition(".")[0])
            if key is not None:
                keys.add(key)
        return keys


def read_meta_fields(path: str) -> dict[str, str]:
    """``meta.properties`` of a directory. Raises Refusal."""
    file = os.path.join(path, META_NAME)
    try:
        return dict(read_properties(file))
    except FileNotFoundError:
        raise Refusal(
            f"{file} is missing, so {path} is not a broker's data directory, or only part of one; "
            "give the directories of log.dirs, or copy that file as well"
        ) from None
    except (PropertiesError, UnicodeDecodeError) as error:
        raise Refusal(f"{file}: {error}; restore it from a backup") from error


def read_identity(path: str) -> DirectoryIdentity:
    """Raises Refusal."""
    file = os.path.join(path, META_NAME)
    fields = read_meta_fields(path)
    version = fields.get("version", "")
    broker = fields.get("node.id" if version == KRAFT_META else "broker.id", "")
    cluster_id = fields.get("cluster.id", "")
    if version not in (ZOOKEEPER_META, KRAFT_META):
        raise Refusal(f"{file}: unknown version {version!r}; expected 0 or 1")
    if not broker.isdigit() or not cluster_id:
        raise Refusal(
            f"{file} does not contain a {'node' if version == KRAFT_META else 'broker'}.id and a "
            "cluster.id; restore it from a backup"
        )
    directory_id = None
    if "directory.id" in fields:
        try:
            directory_id = parse_uuid(fields["directory.id"])
        except ValueError as error:
            raise Refusal(f"{file}: directory.id: {error}; restore it from a backup") from error
    return DirectoryIdentity(version, int(broker), cluster_id, directory_id)


def read_directories(
    paths: Sequence[str],
    *,
    logs_only: bool = False,
    was_clean: Mapping[str, bool] | None = None,
    only: Set[TopicPartition] | None = None,
) -> list[LogDirectory]:
    """Read all log directories of one broker, which must agree. Raises Refusal, OSError.

    logs_only: directories without logs are skipped instead of refused. was_clean: whether a broker
    has shut down cleanly, by directory; None: as the marker in each directory says. only: the
    partitions to look at; None: all.
    """
    was_clean = was_clean or {}
    directories = [
        LogDirectory(path, logs_only=logs_only, was_clean=was_clean.get(path), only=only)
        for path in paths
    ]
    first = directories[0]
    for other in directories[1:]:
        for name in ("cluster_id", "broker_id", "version"):
            here, there = getattr(first.identity, name), getattr(other.identity, name)
            if here != there:
                raise Refusal(
                    f"{other.path}/{META_NAME}: {name.replace('_', '.')} {there}, but {here} in "
                    f"{first.path}; these directories belong to different brokers"
                )
        for key in first.partitions.keys() & other.partitions.keys():
            raise Refusal(
                f"{other.partitions[key]}: {first.path} also has this partition; keep the "
                "complete one and move the other away"
            )
    return directories


def is_topic_name(name: str) -> bool:
    try:
        check_name(name)
    except WireError:
        return False
    return True


def _checkpoint(path: str, name: str) -> Mapping[TopicPartition, int]:
    try:
        return OffsetCheckpoint(path, name).read() or {}
    except CorruptCheckpointError as error:
        raise Refusal(
            f"{error}; copy the file again, or remove it, in which case the start recovers every "
            "log"
        ) from error


def _and_others(missing: Sequence[object]) -> str:
    return f", and {len(missing) - 1:,} more" if len(missing) > 1 else ""


# ---- locks ----


@contextmanager
def held(paths: Sequence[str]) -> Iterator[None]:
    """Lock out brokers, as they lock each other out. Raises Refusal if one is running.

    A directory without a lock file has none while this is over, either.
    """
    with ExitStack() as stack:
        for path in paths:
            if os.path.isdir(path):
                stack.enter_context(_held(path))
        yield


@contextmanager
def _held(path: str) -> Iterator[None]:
    file = os.path.join(path, LOCK_NAME)
    made = False
    try:
        fd = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        try:
            fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except OSError:
            yield  # no broker that may write here can be running, nor can we write
            return
        made = True
    try:
        # flock locks out kbrokers, lockf is the lock of a JVM.
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise Refusal(f"a broker is using {path} ({LOCK_NAME} is locked); stop it first") from error
    try:
        yield
    finally:
        if made:
            with suppress(OSError):  # an empty file may stay
                os.unlink(file)
        os.close(fd)
