"""The embedded store's tree in one SQLite file. Synchronous: calls wait for the disk.

The controller uses it through ``kbroker.metastore.embedded``; commands that read or write the
metadata of a stopped broker use the file directly.

The file is in the first log directory, where Kafka ignores plain files that it does not know. WAL
with synchronous=FULL: a commit is one sync and survives ``kill -9`` and a power failure. The file
is locked exclusively while the store is open, so a second broker on the same directory cannot
start. A session lasts while the file is open: session ids only grow, and ephemeral nodes of a
session are removed by the next.

The owner calls ``settle`` periodically: it checkpoints the write-ahead log and writes the state to
a second file, the last good state. If the database is found damaged, or older than that file, at
the next start, that file is used instead (``damage`` says so; kbroker.metastore.store_files).
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable
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
    StoreFailed,
    StoreOperation,
    StoreTransaction,
    WatchEvent,
    check_path,
    parent_of,
)
from kbroker.metastore.store_files import (
    COPY_NAME,
    FILE_NAME,
    check_room,
    count_changes,
    read_copy,
    write_copy,
)
from kbroker.metastore.store_opening import StoreOpening, drop_ephemerals, hint, is_full

logger = logging.getLogger(__name__)

# Changes are settled once nothing has changed for this long, but no later than this.
QUIET_MS, UNSETTLED_MAX_MS = 400, 3_000
STAT = "version, children_version, created_ms, modified_ms, ephemeral"

Row = tuple[int, int, int, int, int]
# SQLite's errors for "nothing was written, the file is unchanged": there may be room again later.
TRANSIENT = frozenset({"SQLITE_FULL", "SQLITE_BUSY"})


class NodeFile:
    """A tree of nodes in ``directory``; used by one thread of one process."""

    def __init__(
        self,
        directory: str,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.path = os.path.join(directory, FILE_NAME)
        self._directory = directory
        self._now_ms = now_ms
        self._failure: str | None = None
        self._reserve = Reserve(directory)
        try:
            copy = read_copy(directory)
            opening = StoreOpening(directory, copy)
            try:
                self._db = opening.connect()
            except sqlite3.OperationalError as error:
                if not (is_full(error) and self._reserve.release()):
                    raise
                self._db = opening.connect()
        except (sqlite3.Error, ValueError) as error:
            raise StoreFailed(f"{self.path}: {error}{hint(error)}") from error
        except OSError as error:
            raise StoreFailed(f"{self.path}: {error}") from error
        # What was lost from the files or repaired in them; None if nothing was.
        self.damage = opening.damage
        changes = count_changes(self._db)
        is_settled = copy is not None and copy.changes == changes
        self.session_id = changes + 1
        # Creation ids of ephemeral nodes, which end with this session.
        self._created_ids: dict[str, int] = {}
        # Values of ``total_changes``: at the last settling, and at the last call of ``settle``.
        self._settled = self._seen = self._db.total_changes if is_settled else -1
        self._quiet_ms = self._due_ms = 0
        self._was_told = False
        self._reserve.fill()
        if self.damage is not None:
            logger.error("%s: %s", self.path, self.damage, extra={"event": "node_file.damaged"})

    # -- reads -------------------------------------------------------------------------------------

    def get(self, path: str) -> Node:
        """The node. Raises NoNode."""
        row = self._db.execute(f"SELECT data, {STAT} FROM nodes WHERE path = ?", (path,)).fetchone()
        if row is None:
            raise NoNode(path)
        return Node(path, row[0], self._stat(path, row[1:]))

    def exists(self, path: str) -> NodeStat | None:
        """The node's stat; None if there is no such node."""
        row = self._db.execute(f"SELECT {STAT} FROM nodes WHERE path = ?", (path,)).fetchone()
        return None if row is None else self._stat(path, row)

    def children(self, path: str) -> list[str]:
        """Names (not paths) of the children, sorted. Raises NoNode."""
        rows = self._db.execute(
            "SELECT path FROM nodes WHERE parent = ? ORDER BY path", (path,)
        ).fetchall()
        if not rows and self.exists(path) is None:
            raise NoNode(path)
        start = 1 if path == "/" else len(path) + 1
        return [row[0][start:] for row in rows]

    def subtree(self, path: str) -> list[Node]:
        """All nodes below ``path``, parents before children; empty if it does not exist."""
        # '/' sorts right before '0': the range holds exactly the paths that begin with path + '/'.
        low, high = (path + "/", path + "0") if path != "/" else ("/", "0")
        rows = self._db.execute(
            f"SELECT path, data, {STAT} FROM nodes WHERE path > ? AND path < ? ORDER BY path",
            (low, high),
        ).fetchall()
        return [Node(row[0], row[1], self._stat(row[0], row[2:])) for row in rows]

    def _stat(self, path: str, row: Row) -> NodeStat:
        """A stat from the columns ``STAT``."""
        is_ephemeral = row[4] != 0
        return NodeStat(
            version=row[0],
            children_version=row[1],
            created_ms=row[2],
            modified_ms=row[3],
            created_id=self._created_ids.get(path, 0),
            owner_session=self.session_id if is_ephemeral else 0,
        )

    # -- writes ------------------------------------------------------------------------------------

    def multi(self) -> StoreTransaction[list[str]]:
        """A transaction to fill and commit."""
        return StoreTransaction(self.apply)

    def apply(self, operations: list[StoreOperation]) -> list[str]:
        """Apply operations in order and durably, all or none; returns the path of each. Raises
        StoreError, StoreFailed.
        """
        return self.transact(operations)[0]

    def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        """See ``Store.create``."""
        transaction = self.multi()
        transaction.create(path, data, ephemeral=ephemeral, sequential=sequential)
        return transaction.commit()[0]

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> None:
        """Replace the data. NoNode, BadVersion."""
        self.multi().set(path, data, version).commit()

    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Delete a node without children. NoNode, BadVersion, NotEmpty."""
        self.multi().delete(path, version).commit()

    def transact(self, operations: list[StoreOperation]) -> tuple[list[str], list[WatchEvent]]:
        """Like ``apply``; also returns the events for watchers."""
        if self._failure is not None:
            raise StoreFailed(self._failure)
        try:
            try:
                made, events = self._write(operations)
            except sqlite3.OperationalError as error:
                if makes_topic(operations) or not (is_full(error) and self._reserve.release()):
                    raise
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                made, events = self._write(operations)
        except sqlite3.Error as error:
            raise self._failed(error) from error
        self._reserve.fill()
        return made, events

    def _write(self, operations: list[StoreOperation]) -> tuple[list[str], list[WatchEvent]]:
        events: list[WatchEvent] = []
        created_ids = self._created_ids
        self._created_ids = dict(created_ids)
        try:
            made = self._transact(operations, events)
        except BaseException:
            self._created_ids = created_ids
            raise
        return made, events

    def _transact(self, operations: list[StoreOperation], events: list[WatchEvent]) -> list[str]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            made = [self._apply_one(operation, events) for operation in operations]
        except BaseException:
            if self._db.in_transaction:  # SQLite itself rolls back when the disk is full
                self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")
        return made

    def _failed(self, error: sqlite3.Error) -> StoreFailed:
        text = f"{self.path}: {error}{hint(error)}"
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")
        if getattr(error, "sqlite_errorname", "") not in TRANSIENT:
            # After a failed sync the next one may claim success without having written anything: no
            # later write counts.
            self._failure = text
        return StoreFailed(text)

    def _apply_one(self, operation: StoreOperation, events: list[WatchEvent]) -> str:
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

    def _create(self, operation: StoreOperation, events: list[WatchEvent]) -> str:
        path, parent = operation.path, parent_of(operation.path)
        stat = self.exists(parent)
        if stat is None:
            raise NoNode(parent)
        if stat.owner_session:
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
        if operation.ephemeral:
            self._created_ids[path] = count_changes(self._db)
        self._touch_parent(parent)
        events += WatchEvent(CREATED, path), WatchEvent(CHILDREN, parent)
        return path

    def _delete(self, path: str, events: list[WatchEvent]) -> None:
        child = self._db.execute("SELECT 1 FROM nodes WHERE parent = ? LIMIT 1", (path,)).fetchone()
        if child is not None:
            raise NotEmpty(path)
        self._db.execute("DELETE FROM nodes WHERE path = ?", (path,))
        self._created_ids.pop(path, None)
        parent = parent_of(path)
        self._touch_parent(parent)
        events += WatchEvent(DELETED, path), WatchEvent(CHILDREN, parent)

    def _touch_parent(self, parent: str) -> None:
        self._db.execute(
            "UPDATE nodes SET children_version = children_version + 1 WHERE path = ?", (parent,)
        )

    # -- session -----------------------------------------------------------------------------------

    def settle(self, now_ms: int) -> None:
        """Checkpoint the write-ahead log and update the copy, if it is due.

        Call it several times a second. now_ms: monotonic.
        """
        changes = self._db.total_changes
        if changes == self._settled or self._failure is not None:
            return
        if changes != self._seen:
            self._seen, self._quiet_ms = changes, now_ms + QUIET_MS
            self._due_ms = self._due_ms or now_ms + UNSETTLED_MAX_MS
        if now_ms >= min(self._quiet_ms, self._due_ms):
            self._settle()
            if self._settled == changes:
                self._due_ms = 0
            else:  # again later
                self._quiet_ms = self._due_ms = now_ms + UNSETTLED_MAX_MS

    def _settle(self) -> None:
        changes = self._db.total_changes
        try:
            image = self._db.serialize()
            check_room(self._directory, len(image))
            write_copy(self._directory, image)
            self._settled, self._was_told = changes, False
        except OSError as error:
            if not self._was_told:
                logger.warning("cannot write %s: %s", COPY_NAME, error)
            self._was_told = True
        try:
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as error:
            logger.error("%s", self._failed(error), extra={"event": "node_file.failed"})

    def close(self) -> None:
        """End the session and remove its ephemeral nodes."""
        if self._failure is None:
            # What cannot be written now, for instance on a full disk, is done at the next start.
            with suppress(sqlite3.Error):
                self._db.execute("BEGIN IMMEDIATE")
                drop_ephemerals(self._db)
                self._db.execute("COMMIT")
            if self._db.total_changes != self._settled:
                self._settle()
        self._db.close()


def makes_topic(operations: list[StoreOperation]) -> bool:
    """Whether a topic or partition is created, whose logs will need disk space as well."""
    below = paths.BROKER_TOPICS + "/"
    return any(entry.kind == "create" and entry.path.startswith(below) for entry in operations)
