"""Opens the database of the embedded store: checked, or replaced by the last good state."""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress

from kbroker.metastore.store import StoreFailed
from kbroker.metastore.store_files import (
    COPY_NAME,
    DAMAGED_SUFFIX,
    FILE_NAME,
    WAL_NAME,
    StoreCopy,
    differences,
    lost_changes,
    replace_whole,
    set_aside,
    structure_fault,
    sync_directory,
)
from kbroker.wording import counted

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
# Counts changes of nodes, in all versions of kbroker. Older files have none.
COUNT_OF_CHANGES = """
CREATE TABLE IF NOT EXISTS changes (count INTEGER NOT NULL);
INSERT INTO changes SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM changes);
CREATE TRIGGER IF NOT EXISTS node_inserted AFTER INSERT ON nodes
    BEGIN UPDATE changes SET count = count + 1; END;
CREATE TRIGGER IF NOT EXISTS node_updated AFTER UPDATE OF data ON nodes
    BEGIN UPDATE changes SET count = count + 1; END;
CREATE TRIGGER IF NOT EXISTS node_deleted AFTER DELETE ON nodes
    BEGIN UPDATE changes SET count = count + 1; END;
"""
# Errors for data that SQLite reads but cannot have written. The schema may be damaged, too:
# SQLITE_ERROR.
OF_DAMAGE = ("SQLITE_NOTADB", "SQLITE_CORRUPT", "SQLITE_ERROR")


class StoreOpening:
    """One opening of the store in a directory.

    damage: what was lost from the files or repaired in them, None if nothing was.
    """

    def __init__(self, directory: str, copy: StoreCopy | None) -> None:
        """copy: the last good state, None if there is none."""
        self.path = os.path.join(directory, FILE_NAME)
        self.damage: str | None = None
        self._directory = directory
        self._copy = copy

    def connect(self) -> sqlite3.Connection:
        """Open and check the database and begin a session. Raises sqlite3.Error, StoreFailed,
        OSError.
        """
        if not os.path.exists(self.path):
            self._replace_missing()
        db = self._checked()
        try:
            # One transaction: each is a sync, and a start waits for it.
            db.executescript(f"BEGIN EXCLUSIVE;{COUNT_OF_CHANGES}")
            drop_ephemerals(db)
            db.execute("COMMIT")
        except BaseException:
            db.close()
            raise
        return db

    def _replace_missing(self) -> None:
        """Remove a write-ahead log without its database: it would be taken for that of the new
        database.
        """
        if os.path.exists(os.path.join(self._directory, WAL_NAME)):
            set_aside(self._directory, WAL_NAME)
            self.damage = (
                f"it is missing, although {WAL_NAME} exists, which is kept as "
                f"{WAL_NAME}{DAMAGED_SUFFIX}"
            )
        if self._copy is None:
            create_file(self._directory)
        else:
            self._restore(self._copy, self.damage or "it is missing")

    def _restore(self, copy: StoreCopy, fault: str) -> None:
        """Continue from the last good state."""
        if os.path.exists(self.path):
            set_aside(self._directory, FILE_NAME, WAL_NAME)
            fault += f" (it is kept as {FILE_NAME}{DAMAGED_SUFFIX})"
        replace_whole(self._directory, FILE_NAME, copy.image)
        self.damage = (
            f"{fault}; restoring the last good state from {COPY_NAME}; metadata changes after it "
            "are lost"
        )

    def _checked(self) -> sqlite3.Connection:
        try:
            db = open_file(self.path)
        except (sqlite3.Error, StoreFailed, ValueError) as error:
            if self._copy is None or (isinstance(error, sqlite3.Error) and not tells_damage(error)):
                raise
            self._restore(self._copy, str(error))
            return open_file(self.path)
        try:
            lost = self._lost_changes(db)
            fault = self._fault(db)
        except BaseException:
            db.close()
            raise
        if fault is None:
            if lost:
                self.damage = (
                    f"{WAL_NAME} is damaged; {counted(lost, 'metadata change')} after the damage "
                    f"cannot be read; that file is kept as {WAL_NAME}{DAMAGED_SUFFIX}"
                )
            return db
        db.close()
        if self._copy is None:
            raise Damaged(fault)
        self._restore(self._copy, fault)
        return open_file(self.path)

    def _fault(self, db: sqlite3.Connection) -> str | None:
        """The reason why the database cannot be used."""
        try:
            return differences(db, self._copy) or structure_fault(db)
        except (sqlite3.Error, TypeError, ValueError) as error:
            if isinstance(error, sqlite3.Error) and not tells_damage(error):
                raise
            return str(error)

    def _lost_changes(self, db: sqlite3.Connection) -> int:
        """The number of changes in the write-ahead log that SQLite ignored; the log is kept then.
        Raises OSError, sqlite3.Error.
        """
        with open(os.path.join(self._directory, WAL_NAME), "rb") as file:
            wal = file.read()
        _, taken, _ = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        lost = lost_changes(wal, max(0, taken))
        if lost:
            replace_whole(self._directory, WAL_NAME + DAMAGED_SUFFIX, wal)
        return lost


def open_file(path: str) -> sqlite3.Connection:
    """Open and lock the file. Raises sqlite3.Error, StoreFailed, ValueError."""
    db = sqlite3.connect(path, timeout=LOCK_TIMEOUT_S, isolation_level=None)
    try:
        # Exclusive before WAL: the index of the log is in our memory then, not in a -shm file.
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("BEGIN EXCLUSIVE")
        layout = db.execute("PRAGMA user_version").fetchone()[0]
        db.execute("COMMIT")
        if layout != LAYOUT_VERSION:
            raise StoreFailed(
                f"{path} has layout {layout}, but this version of kbroker reads layout "
                f"{LAYOUT_VERSION}; start the version that wrote it, or move it and {COPY_NAME} "
                "away"
            )
    except BaseException:
        # Closed late, it would remove the write-ahead log of its successor.
        db.close()
        raise
    return db


def drop_ephemerals(db: sqlite3.Connection) -> None:
    """End the previous session, inside a transaction. Raises sqlite3.Error."""
    parents = db.execute("SELECT parent FROM nodes WHERE ephemeral = 1").fetchall()
    if parents:
        db.executemany(
            "UPDATE nodes SET children_version = children_version + 1 WHERE path = ?", parents
        )
        db.execute("DELETE FROM nodes WHERE ephemeral = 1")


def create_file(directory: str) -> None:
    """Create an empty store, atomically.

    Created under another name and without SQLite's own syncs, of which there are many: one sync of
    the file and one of the directory are enough.
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


def is_full(error: Exception) -> bool:
    """Whether the disk was full."""
    return getattr(error, "sqlite_errorname", "") == "SQLITE_FULL"


class Damaged(sqlite3.DatabaseError):
    """The file can be read, but its content is damaged."""

    sqlite_errorname = "SQLITE_CORRUPT"


def tells_damage(error: Exception) -> bool:
    """Whether the error means that the file's content is damaged."""
    return getattr(error, "sqlite_errorname", "").startswith(OF_DAMAGE)


def hint(error: Exception) -> str:
    """A remedy for the error, where one is known."""
    name = getattr(error, "sqlite_errorname", "")
    if name == "SQLITE_BUSY":
        return (
            "; another broker uses this log directory: stop it, or give this one its own log.dirs"
        )
    if name == "SQLITE_FULL":
        return "; free some space, and metadata changes will work again"
    if tells_damage(error):
        return (
            f"; the file is damaged, and there is no intact {COPY_NAME}: restore it from a "
            "backup; the records are not affected"
        )
    return ""
