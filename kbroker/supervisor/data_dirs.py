"""The data directories at start and stop: created, locked, identified, and marked clean.

``meta.properties`` keeps the broker's number and the cluster's id; all directories of a broker
agree on both. A directory that cannot be used is left out with an error in the log, as long as one
is left.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import time
from collections.abc import Collection
from contextlib import suppress

from kbroker.clock import CLOCK_JUMP_MS, CONFIRMED_MS, ClockGuard, SystemClock
from kbroker.config.loader import BrokerConfig
from kbroker.errors import ConfigError
from kbroker.properties import PropertiesError, read_properties
from kbroker.storage.dirs import boots
from kbroker.storage.dirs.log_dir import CHECKPOINTS, scan_partitions
from kbroker.storage.files import make_directories, replace_file, sync_directory
from kbroker.storage.formats import (
    CLEAN_SHUTDOWN_NAME,
    CLEANER_CHECKPOINT,
    LOCK_NAME,
    META_NAME,
)
from kbroker.supervisor.identity import identity_in_cluster
from kbroker.supervisor.lost_dirs import find_lost, remember
from kbroker.uuids import new_uuid, uuid_text

logger = logging.getLogger(__name__)

# A killed broker's processes are gone a moment after its supervisor; a start right after it waits
# that long.
LOCK_WAIT_S = 2.0
_LOCK_POLL_S = 0.02


class DataDirs:
    """The usable data directories of this run, locked until ``release``.

    Nothing in them is changed before ``begin``. lock_fds: of the lock files. lost: directories that
    are not used because they are empty but were not at the last start; nothing is written there.
    """

    def __init__(
        self,
        paths: list[str],
        lock_fds: list[int],
        config: BrokerConfig,
        missing_begin_empty: bool = False,
    ) -> None:
        self.lock_fds = lock_fds
        metas = {path: read_meta(path) for path in paths}
        self.lost = [] if missing_begin_empty else find_lost(config.log_dirs, metas)
        for path in self.lost:
            del metas[path]
        self.paths = paths = list(metas)
        if config.uses_zookeeper:
            _check_no_store(paths)
        else:
            _check_store(config.log_dirs, metas)
            _check_kafka(config.log_dirs, paths)
        self.clock_guard = _guard_of_clock(paths)
        self.broker_id, self.cluster_id = self._identity(metas, config)
        self._metas = metas
        self._configured = config.log_dirs
        # A broker without a cluster has no other replica to ask.
        self._notes_boots = config.uses_zookeeper
        self.clean_start: dict[str, bool] = {}
        # Directories whose logs may have lost their tails in a power failure.
        self.suspect: list[str] = []

    @classmethod
    def open(cls, config: BrokerConfig, missing_begin_empty: bool = False) -> DataDirs:
        """Create, lock and read the directories of ``log.dirs``.

        missing_begin_empty: partitions of a directory that is gone are created empty.

        Raises ConfigError when none can be used, when one is in use by another broker, when they
        belong to different brokers or clusters, or when one with partitions is not in ``log.dirs``
        any more.
        """
        lock_fds: list[int] = []
        try:
            return cls(cls._lock_all(config, lock_fds), lock_fds, config, missing_begin_empty)
        except BaseException:
            for fd in lock_fds:
                os.close(fd)
            raise

    def begin(self) -> None:
        """Write meta.properties and remove the clean-shutdown markers.

        Call it when nothing else keeps the broker from running: a start that fails before leaves
        them as they were.
        """
        for path, meta in self._metas.items():
            wanted = _wanted_meta(meta, self.broker_id, self.cluster_id)
            if any(meta.get(key) != value for key, value in wanted.items()):
                _write_meta(path, {**meta, **wanted})
        remember(self.paths, self._configured)
        # An empty directory has nothing to recover.
        self.clean_start = {
            path: _take_clean_marker(path) or not scan_partitions(path) for path in self.paths
        }
        if self._notes_boots:
            self.suspect = [
                path
                for path, clean in self.clean_start.items()
                if boots.note_start(path, was_clean=clean)
            ]

    @staticmethod
    def _lock_all(config: BrokerConfig, lock_fds: list[int]) -> list[str]:
        """Lock the directories that can be used.

        Returns their paths, puts descriptors into ``lock_fds``.
        """
        paths, reason = [], ""
        deadline = time.monotonic() + LOCK_WAIT_S
        for path in config.log_dirs:
            try:
                make_directories(path)
                fd = os.open(os.path.join(path, LOCK_NAME), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
            except OSError as error:
                reason = _why_unusable(path, error)
                logger.error("data directory %s cannot be used and is left out: %s", path, reason)
                continue
            lock_fds.append(fd)
            if not try_lock(fd, deadline):
                raise ConfigError("log.dirs", path, "directories that no other broker uses")
            paths.append(path)
        if not paths:
            shown = ",".join(config.log_dirs)
            raise ConfigError("log.dirs", shown, f"writable directories ({reason})")
        return paths

    @staticmethod
    def _identity(metas: dict[str, dict[str, str]], config: BrokerConfig) -> tuple[int, str]:
        """The broker's id and the cluster's: as the directories have them, or new ones."""
        broker_id, cluster_id = _agreed_broker_id(metas, config), _agreed_cluster_id(metas)
        if config.uses_zookeeper:
            from kbroker.metastore.cluster_identity import ClusterIdentity

            return identity_in_cluster(config, ClusterIdentity(broker_id, cluster_id))
        if broker_id < 0:
            broker_id = config["reserved.broker.max.id"] + 1
        if not cluster_id:
            cluster_id = next(filter(None, map(_stored_cluster_id, metas)), None) or ""
        return broker_id, cluster_id or uuid_text(new_uuid())

    def mark_clean(self, failed: Collection[str] = ()) -> None:
        """Every log was closed in order: the next start needs no recovery. Not so those of
        directories that ``failed``.
        """
        for path in self.paths:
            if path in failed:
                logger.warning("log directory %s failed; the next start recovers its logs", path)
                continue
            try:
                replace_file(os.path.join(path, CLEAN_SHUTDOWN_NAME), b"")
            except OSError as error:
                logger.error("cannot write the clean-shutdown marker in %s: %s", path, error)

    def release(self) -> None:
        """Unlock. Children that are still exiting keep their inherited locks until they are
        gone.
        """
        for fd in self.lock_fds:
            os.close(fd)


def _why_unusable(path: str, error: OSError) -> str:
    """Names the owner of what this user may not write to: a container's volume is often root's."""
    # A file in its place, or above it.
    code = errno.ENOTDIR if error.errno == errno.EEXIST else error.errno or 0
    reason = os.strerror(code).lower()
    if code in (errno.EACCES, errno.EPERM):
        with suppress(OSError):
            owner = os.stat(path).st_uid
            if owner != os.geteuid():
                return f"{reason}: it belongs to user {owner}, this one is {os.geteuid()}"
    return reason


def try_lock(fd: int, deadline: float = 0.0) -> bool:
    """Lock against other kbrokers and against Kafka.

    flock is inherited by the children: a directory stays locked until the last process that may
    write to it is gone. lockf is what a JVM takes; it belongs to this process alone.
    """
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_LOCK_POLL_S)


def _guard_of_clock(paths: list[str]) -> ClockGuard:
    """A guard that trusts the wall clock from the start if it continues where the last run ended.

    A machine may start with a wrong clock; comparing it with the time at which the directories were
    last written shows that. (A broker that was down or idle for longer waits although its clock is
    right.) Where no broker has run yet, nothing can be lost. Call this before anything is written.
    """
    clock = SystemClock()
    last = max(filter(None, map(_last_written_ms, paths)), default=None)
    trusted = last is None or abs(clock.now_ms() - last) <= CLOCK_JUMP_MS
    if not trusted:
        logger.info(
            "the data directories were last written at %s; compaction waits %d s in case the "
            "wall clock is wrong",
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime((last or 0) / 1000)),
            CONFIRMED_MS // 1000,
        )
    return ClockGuard(clock.now_ms, clock.monotonic_ms, trust_start=trusted)


def _last_written_ms(path: str) -> int | None:
    """The last time a broker wrote one of its own files here; None if none did."""
    times_ms = []
    for name in (CLEAN_SHUTDOWN_NAME, *CHECKPOINTS, CLEANER_CHECKPOINT):
        with suppress(OSError):
            times_ms.append(os.stat(os.path.join(path, name)).st_mtime_ns // 1_000_000)
    return max(times_ms, default=None)


def _agreed_broker_id(metas: dict[str, dict[str, str]], config: BrokerConfig) -> int:
    """The broker id in the directories or the configs; -1 if it must be generated. Raises
    ConfigError.
    """
    configured = config.broker_id
    kept = {meta[name] for meta in metas.values() if (name := _id_name(meta)) in meta}
    if len(kept) > 1:
        raise ConfigError(
            "log.dirs",
            ",".join(metas),
            f"directories of a single broker; these belong to brokers {sorted(kept)}",
        )
    if not kept:
        return configured
    text = kept.pop()
    if not text.isdigit() or (configured >= 0 and int(text) != configured):
        allowed = f"{text}, the id in {META_NAME} of the data directories"
        raise ConfigError("broker.id", configured, allowed)
    return int(text)


def _agreed_cluster_id(metas: dict[str, dict[str, str]]) -> str:
    """The cluster id in the directories; empty if none has one. Raises ConfigError."""
    kept = {meta["cluster.id"] for meta in metas.values() if meta.get("cluster.id")}
    if len(kept) > 1:
        raise ConfigError(
            "log.dirs",
            ",".join(metas),
            f"directories of a single cluster; these belong to {sorted(kept)}",
        )
    return kept.pop() if kept else ""


def _check_no_store(usable: list[str]) -> None:
    """Refuse directories whose topics are in an embedded metadata store, which a broker on
    ZooKeeper does not read. Raises ConfigError.
    """
    from kbroker.metastore.store_files import FILE_NAME, holds_store

    for path in filter(holds_store, usable):
        raise ConfigError(
            "zookeeper.connect",
            "(set)",
            f"no value, because {path} holds {FILE_NAME}, this broker's own metadata. To take its "
            "topics along to ZooKeeper, run kbroker-adopt --back-to kafka-2.7 --zookeeper with "
            "that address first (docs/migration.md)",
        )


def _check_store(configured: list[str], metas: dict[str, dict[str, str]]) -> None:
    """Refuse to start if the metadata store is in a directory that cannot be used.

    The broker would not know its topics, and there would be two stores once the directory is
    usable again. Raises ConfigError.
    """
    from kbroker.metastore.store_files import FILE_NAME, holds_store

    left_out = [path for path in configured if path not in metas]
    has_run = any("cluster.id" in meta for meta in metas.values())
    if not left_out or not has_run:
        return
    if not any(map(holds_store, metas)):
        raise ConfigError(
            "log.dirs",
            ",".join(left_out),
            f"a usable directory: it holds {FILE_NAME}, the broker's metadata, and no other "
            "directory does. Repair it, or copy that file from a backup into "
            f"{next(iter(metas))}; or remove it from log.dirs to continue without its partitions "
            "and without the settings of topics",
        )


def _check_kafka(configured: list[str], usable: list[str]) -> None:
    """Refuse directories that kbroker-adopt has to take over first; nothing is changed. Raises
    ConfigError.
    """
    from kbroker.adopt.at_start import (
        look_at_topics,
        refuse_kafkas,
        refuse_what_kafka_changed,
    )
    from kbroker.adopt.errors import Refusal
    from kbroker.metastore.store_files import holds_store

    shown = ",".join(configured)
    try:
        if any(map(holds_store, usable)):
            refuse_what_kafka_changed(usable)
            return
        refuse_kafkas(configured)
        look_at_topics(usable)
    except Refusal as error:
        raise ConfigError("log.dirs", shown, f"directories of kbroker ({error})") from error
    except OSError as error:
        raise ConfigError("log.dirs", shown, f"readable directories ({error})") from error


def read_meta(path: str) -> dict[str, str]:
    """The content of meta.properties, empty when it is missing. Raises ConfigError."""
    try:
        return dict(read_properties(os.path.join(path, META_NAME)))
    except FileNotFoundError:
        return {}
    except PropertiesError as error:
        readable = f"directories with a readable {META_NAME} ({error})"
        raise ConfigError("log.dirs", path, readable) from error


def _stored_cluster_id(path: str) -> str | None:
    """The cluster id that the embedded metadata store in a directory knows.

    Only a damaged or missing meta.properties makes us look. Raises ConfigError for a store that
    cannot be read: a new id would make the directory unusable once the store is repaired.
    """
    import sqlite3

    from kbroker.metastore import paths
    from kbroker.metastore.node_file import NodeFile
    from kbroker.metastore.store import StoreError, StoreFailed
    from kbroker.metastore.store_files import holds_store

    if not holds_store(path):
        return None
    try:
        store = NodeFile(path)
        try:
            if store.exists(paths.CLUSTER_ID) is None:
                return None
            cluster_id = paths.decode_cluster_id(store.get(paths.CLUSTER_ID).data)
        finally:
            store.close()
    except (StoreError, StoreFailed, sqlite3.Error, ValueError, KeyError) as error:
        readable = f"directories with a readable {META_NAME} or metadata store ({error})"
        raise ConfigError("log.dirs", path, readable) from error
    logger.warning(
        "%s in %s names no cluster; using %s, the cluster of its metadata store",
        META_NAME,
        path,
        cluster_id,
    )
    return cluster_id


def _is_of_kraft(meta: dict[str, str]) -> bool:
    return meta.get("version") == "1" and "node.id" in meta


def _id_name(meta: dict[str, str]) -> str:
    """The key of the broker id in a document."""
    return "node.id" if _is_of_kraft(meta) else "broker.id"


def _wanted_meta(meta: dict[str, str], broker_id: int, cluster_id: str) -> dict[str, str]:
    """The expected content of meta.properties; a file written by KRaft keeps its version, for the
    way back.
    """
    version = "1" if _is_of_kraft(meta) else "0"
    return {"version": version, _id_name(meta): str(broker_id), "cluster.id": cluster_id}


def _write_meta(path: str, values: dict[str, str]) -> None:
    text = "".join(f"{key}={value}\n" for key, value in values.items())
    replace_file(os.path.join(path, META_NAME), text.encode())


def format_directory(path: str, broker_id: int, cluster_id: str) -> None:
    """Let a new directory belong to a cluster, and to a broker unless its id is -1. Raises
    OSError.
    """
    make_directories(path)
    own = {} if broker_id < 0 else {"broker.id": str(broker_id)}
    _write_meta(path, {"version": "0", **own, "cluster.id": cluster_id})


def _take_clean_marker(path: str) -> bool:
    """Whether the last stop was clean.

    Takes the marker away, for it is true only until the next write.
    """
    try:
        os.unlink(os.path.join(path, CLEAN_SHUTDOWN_NAME))
    except OSError:
        return False  # none, or one that would stay: recovery is safe, only slower
    sync_directory(path)
    return True
