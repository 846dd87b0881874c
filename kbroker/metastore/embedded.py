"""The embedded metadata store: the tree in one SQLite file, for a broker that stands alone.

The file lies in the first log directory; Kafka ignores plain files it does not know there. WAL
with synchronous=FULL: a commit is one sync and survives ``kill -9`` and a power cut. The file is
locked exclusively for as long as the store is open, so a second broker on the same directory cannot
start; a session is one opening of the file, and ephemeral nodes of the session before are removed
by the next.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from kbroker.metastore import paths
from kbroker.metastore.reserve import Reserve
from kbroker.metastore.store import (
    ANY_VERSION,
    CHANGED,
    CHILDREN,
    CREATED,
    DELETED,
    BadVersion,
    EphemeralParent,
    Node,
    NodeExists,
    NodeStat,
    NoNode,
    NotEmpty,
    Operation,
    Store,
    StoreFailed,
    WatchCallback,
    WatchEvent,
    check_path,
    parent_of,
)

FILE_NAME = "kbroker-metadata.db"
LAYOUT_VERSION = 1
# BOUND: how long opening waits for the lock of a controller that was just killed, until it is gone.
LOCK_TIMEOUT_S = 5.0

SCHEMA = """
CREATE TABLE nodes (
    path TEXT PRIMARY KEY,
    parent TEXT NOT NULL,
    data BLOB NOT NULL,
    version INTEGER NOT NULL,
    children_version INTEGER NOT NULL,
    created_ms INTEGER NOT NULL,
    modified_ms INTEGER NOT NULL,
    ephemeral INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX nodes_by_parent ON nodes (parent);
INSERT INTO nodes VALUES ('/', '', x'', 0, 0, 0, 0, 0);
"""
STAT = "version, children_version, created_ms, modified_ms, ephemeral"

Row = tuple[int, int, int, int, int]
# SQLite's words for "nothing was written, the file is as before": there may be room again later.
TRANSIENT = frozenset({"SQLITE_FULL", "SQLITE_BUSY"})


class EmbeddedStore(Store):
    """A store in ``directory``; used by one thread of one process."""

    def __init__(
        self,
        directory: str,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.path = os.path.join(directory, FILE_NAME)
        self._now_ms = now_ms
        self._watches: dict[str, list[WatchCallback]] = {}
        self._failure: str | None = None
        self._reserve = Reserve(directory)
        try:
            if not os.path.exists(self.path):
                create_file(directory)
            try:
                self._db = self._open()
            except sqlite3.OperationalError as error:
                if not (is_full(error) and self._reserve.release()):
                    raise
                self._db = self._open()
        except sqlite3.Error as error:
            raise StoreFailed(f"{self.path}: {error}{hint(error)}") from error
        self._reserve.fill()

    def _open(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, timeout=LOCK_TIMEOUT_S, isolation_level=None)
        # Exclusive before WAL: the index of the log then lives in our memory, not in a -shm file.
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("BEGIN EXCLUSIVE")
        layout = db.execute("PRAGMA user_version").fetchone()[0]
        if layout != LAYOUT_VERSION:
            db.execute("ROLLBACK")
            db.close()
            raise StoreFailed(
                f"{self.path} has layout {layout}, this kbroker reads layout {LAYOUT_VERSION}; "
                "start the version that wrote it, or move the file away"
            )
        self._drop_ephemerals(db)
        db.execute("COMMIT")
        return db

    @staticmethod
    def _drop_ephemerals(db: sqlite3.Connection) -> None:
        parents = db.execute("SELECT parent FROM nodes WHERE ephemeral = 1").fetchall()
        if parents:
            db.executemany(
                "UPDATE nodes SET children_version = children_version + 1 WHERE path = ?", parents
            )
            db.execute("DELETE FROM nodes WHERE ephemeral = 1")

    # -- reads -------------------------------------------------------------------------------------

    def get(self, path: str) -> Node:
        row = self._db.execute(f"SELECT data, {STAT} FROM nodes WHERE path = ?", (path,)).fetchone()
        if row is None:
            raise NoNode(path)
        return Node(path, row[0], stat_of(row[1:]))

    def exists(self, path: str) -> NodeStat | None:
        row = self._db.execute(f"SELECT {STAT} FROM nodes WHERE path = ?", (path,)).fetchone()
        return None if row is None else stat_of(row)

    def children(self, path: str) -> list[str]:
        rows = self._db.execute(
            "SELECT path FROM nodes WHERE parent = ? ORDER BY path", (path,)
        ).fetchall()
        if not rows and self.exists(path) is None:
            raise NoNode(path)
        start = 1 if path == "/" else len(path) + 1
        return [row[0][start:] for row in rows]

    def subtree(self, path: str) -> Iterator[Node]:
        # '/' sorts right before '0': the range holds exactly the paths that begin with path + '/'.
        low, high = (path + "/", path + "0") if path != "/" else ("/", "0")
        rows = self._db.execute(
            f"SELECT path, data, {STAT} FROM nodes WHERE path > ? AND path < ? ORDER BY path",
            (low, high),
        ).fetchall()
        for row in rows:
            yield Node(row[0], row[1], stat_of(row[2:]))

    # -- writes ------------------------------------------------------------------------------------

    def apply(self, operations: list[Operation]) -> list[str]:
        if self._failure is not None:
            raise StoreFailed(self._failure)
        try:
            try:
                made, events = self._transact(operations)
            except sqlite3.OperationalError as error:
                if makes_topic(operations) or not (is_full(error) and self._reserve.release()):
                    raise
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                made, events = self._transact(operations)
        except sqlite3.Error as error:
            raise self._failed(error) from error
        self._reserve.fill()
        for event in events:
            for callback in list(self._watches.get(event.path, ())):
                callback(event)
        return made

    def _transact(self, operations: list[Operation]) -> tuple[list[str], list[WatchEvent]]:
        events: list[WatchEvent] = []
        self._db.execute("BEGIN IMMEDIATE")
        try:
            made = [self._apply_one(operation, events) for operation in operations]
        except BaseException:
            if self._db.in_transaction:  # SQLite itself rolls back when the disk is full
                self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")
        return made, events

    def _failed(self, error: sqlite3.Error) -> StoreFailed:
        text = f"{self.path}: {error}{hint(error)}"
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")
        if getattr(error, "sqlite_errorname", "") not in TRANSIENT:
            # A sync that failed may claim success the next time without having written anything:
            # no write after it counts.
            self._failure = text
        return StoreFailed(text)

    def _apply_one(self, operation: Operation, events: list[WatchEvent]) -> str:
        check_path(operation.path)
        if operation.kind == "create":
            return self._create(operation, events)
        stat = self.exists(operation.path)
        if stat is None:
            raise NoNode(operation.path)
        if operation.version not in (ANY_VERSION, stat.version):
            raise BadVersion(operation.path)
        if operation.kind == "set":
            self._db.execute(
                "UPDATE nodes SET data = ?, version = version + 1, modified_ms = ? WHERE path = ?",
                (operation.data, self._now_ms(), operation.path),
            )
            events.append(WatchEvent(CHANGED, operation.path))
        elif operation.kind == "delete":
            self._delete(operation.path, events)
        else:
            assert operation.kind == "check", operation.kind
        return operation.path

    def _create(self, operation: Operation, events: list[WatchEvent]) -> str:
        path, parent = operation.path, parent_of(operation.path)
        stat = self.exists(parent)
        if stat is None:
            raise NoNode(parent)
        if stat.ephemeral:
            raise EphemeralParent(parent)
        if operation.sequential:
            path = f"{path}{stat.children_version:010d}"
        now = self._now_ms()
        try:
            self._db.execute(
                "INSERT INTO nodes VALUES (?, ?, ?, 0, 0, ?, ?, ?)",
                (path, parent, operation.data, now, now, int(operation.ephemeral)),
            )
        except sqlite3.IntegrityError as error:
            raise NodeExists(path) from error
        self._touch_parent(parent)
        events += WatchEvent(CREATED, path), WatchEvent(CHILDREN, parent)
        return path

    def _delete(self, path: str, events: list[WatchEvent]) -> None:
        child = self._db.execute("SELECT 1 FROM nodes WHERE parent = ? LIMIT 1", (path,)).fetchone()
        if child is not None:
            raise NotEmpty(path)
        self._db.execute("DELETE FROM nodes WHERE path = ?", (path,))
        parent = parent_of(path)
        self._touch_parent(parent)
        events += WatchEvent(DELETED, path), WatchEvent(CHILDREN, parent)

    def _touch_parent(self, parent: str) -> None:
        self._db.execute(
            "UPDATE nodes SET children_version = children_version + 1 WHERE path = ?", (parent,)
        )

    # -- session -----------------------------------------------------------------------------------

    def watch(self, path: str, callback: WatchCallback) -> Callable[[], None]:
        self._watches.setdefault(path, []).append(callback)

        def cancel() -> None:
            callbacks = self._watches.get(path, [])
            if callback in callbacks:
                callbacks.remove(callback)

        return cancel

    def close(self) -> None:
        if self._failure is None:
            # What cannot be written now, on a full disk say, is done by the next opening.
            with suppress(sqlite3.Error):
                self._db.execute("BEGIN IMMEDIATE")
                self._drop_ephemerals(self._db)
                self._db.execute("COMMIT")
        self._db.close()


def create_file(directory: str) -> None:
    """An empty store, there as a whole or not at all.

    Made under another name and without SQLite's own syncs, of which there are many: one of the
    file and one of the directory do.
    """
    path = os.path.join(directory, FILE_NAME)
    made = path + ".new"
    for leftover in (made, made + "-wal", made + "-journal"):
        with suppress(FileNotFoundError):
            os.unlink(leftover)
    fd = os.open(made, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    try:
        db = sqlite3.connect(made, isolation_level=None)
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("PRAGMA synchronous = OFF")
        db.execute("PRAGMA journal_mode = WAL")  # kept in the file
        db.executescript(SCHEMA)
        db.execute(f"PRAGMA user_version = {LAYOUT_VERSION}")
        db.close()
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(made, path)
    sync_directory(directory)


def stat_of(row: Row) -> NodeStat:
    """A stat from the columns ``STAT``."""
    return NodeStat(row[0], row[1], row[2], row[3], bool(row[4]))


def makes_topic(operations: list[Operation]) -> bool:
    """Whether a topic is made or grown: its logs would need room, too."""
    below = paths.BROKER_TOPICS + "/"
    return any(entry.kind == "create" and entry.path.startswith(below) for entry in operations)


def is_full(error: sqlite3.Error) -> bool:
    """Whether the disk had no room."""
    return getattr(error, "sqlite_errorname", "") == "SQLITE_FULL"


def hint(error: sqlite3.Error) -> str:
    """What to do about it, when that can be told from the error."""
    name = getattr(error, "sqlite_errorname", "")
    if name == "SQLITE_BUSY":
        return (
            "; another broker uses this log directory: stop it, or give this one its own log.dirs"
        )
    if name == "SQLITE_FULL":
        return "; free some space, metadata changes work again then"
    if name in ("SQLITE_NOTADB", "SQLITE_CORRUPT"):
        return "; the file is damaged: restore it from a backup, the message data is not affected"
    return ""


def sync_directory(path: str) -> None:
    """Make a new directory entry durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
