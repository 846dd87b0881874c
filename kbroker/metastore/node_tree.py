"""A tree of nodes in memory, with ZooKeeper's rules: the content of the simulated store."""

from __future__ import annotations

from typing import NamedTuple

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
    StoreOperation,
    WatchEvent,
    check_path,
    parent_of,
)


class TreeEntry(NamedTuple):
    """A node and its metadata."""

    data: bytes
    stat: NodeStat
    names: frozenset[str]  # of its children


class NodeTree:
    """Owned by one ensemble, which gives the time and the session of each change."""

    def __init__(self) -> None:
        self._entries = {"/": TreeEntry(b"", NodeStat(0, 0, 0, 0, 0, 0), frozenset())}
        self._changes = 0

    # -- reads: as in ``Store`` --

    def get(self, path: str) -> Node:
        entry = self._entries.get(path)
        if entry is None:
            raise NoNode(path)
        return Node(path, entry.data, entry.stat)

    def exists(self, path: str) -> NodeStat | None:
        entry = self._entries.get(path)
        return None if entry is None else entry.stat

    def children(self, path: str) -> list[str]:
        entry = self._entries.get(path)
        if entry is None:
            raise NoNode(path)
        return sorted(entry.names)

    def subtree(self, path: str) -> list[Node]:
        nodes: list[Node] = []
        if path in self._entries:
            for name in self.children(path):
                below = f"{path.rstrip('/')}/{name}"
                nodes += [self.get(below), *self.subtree(below)]
        return nodes

    # -- changes --

    def apply(
        self, operations: list[StoreOperation], session_id: int, now_ms: int
    ) -> tuple[list[str], list[WatchEvent]]:
        """Like ``Store.apply``; also returns the events for watchers."""
        change = _Change(self._entries, self._changes, session_id, now_ms)
        made = [change.apply(operation) for operation in operations]
        self._changes = change.count
        for path, entry in change.entries.items():
            if entry is None:
                # It may have been created and deleted in the same transaction.
                self._entries.pop(path, None)
            else:
                self._entries[path] = entry
        return made, change.events

    def end_session(self, session_id: int, now_ms: int) -> list[WatchEvent]:
        """Delete the session's ephemeral nodes; returns the events for watchers."""
        mine = [
            StoreOperation("delete", path)
            for path, entry in self._entries.items()
            if entry.stat.owner_session == session_id
        ]
        return self.apply(mine, session_id, now_ms)[1]


class _Change:
    """A transaction in progress: the entries it changes, over those that exist."""

    def __init__(
        self, before: dict[str, TreeEntry], count: int, session_id: int, now_ms: int
    ) -> None:
        self.count = count
        self.entries: dict[str, TreeEntry | None] = {}
        self.events: list[WatchEvent] = []
        self._before = before
        self._session_id = session_id
        self._now_ms = now_ms

    def apply(self, operation: StoreOperation) -> str:
        check_path(operation.path)
        if operation.kind == "create":
            return self._create(operation)
        entry = self._entry(operation.path)
        if entry is None:
            raise NoNode(operation.path)
        if operation.version not in (ANY_VERSION, entry.stat.version):
            raise BadVersion(operation.path)
        if operation.kind == "set":
            self.count += 1
            stat = entry.stat._replace(version=entry.stat.version + 1, modified_ms=self._now_ms)
            self.entries[operation.path] = entry._replace(data=operation.data, stat=stat)
            self.events.append(WatchEvent(CHANGED, operation.path))
        elif operation.kind == "delete":
            self._delete(operation.path, entry)
        return operation.path

    def _entry(self, path: str) -> TreeEntry | None:
        return self.entries[path] if path in self.entries else self._before.get(path)

    def _create(self, operation: StoreOperation) -> str:
        path, parent_path = operation.path, parent_of(operation.path)
        parent = self._entry(parent_path)
        if parent is None:
            raise NoNode(parent_path)
        if parent.stat.owner_session:
            raise EphemeralParent(parent_path)
        if operation.sequential:
            path = f"{path}{parent.stat.children_version:010d}"
        if self._entry(path) is not None:
            raise NodeExists(path)
        self.count += 1
        owner = self._session_id if operation.ephemeral else 0
        stat = NodeStat(0, 0, self._now_ms, self._now_ms, self.count, owner)
        self.entries[path] = TreeEntry(operation.data, stat, frozenset())
        name = path.rpartition("/")[2]
        self._touch(parent_path, parent, parent.names | {name})
        self.events += WatchEvent(CREATED, path), WatchEvent(CHILDREN, parent_path)
        return path

    def _delete(self, path: str, entry: TreeEntry) -> None:
        if entry.names:
            raise NotEmpty(path)
        self.count += 1
        self.entries[path] = None
        parent_path = parent_of(path)
        parent = self._entry(parent_path)
        assert parent is not None, path
        self._touch(parent_path, parent, parent.names - {path.rpartition("/")[2]})
        self.events += WatchEvent(DELETED, path), WatchEvent(CHILDREN, parent_path)

    def _touch(self, path: str, parent: TreeEntry, names: frozenset[str]) -> None:
        stat = parent.stat._replace(children_version=parent.stat.children_version + 1)
        self.entries[path] = parent._replace(stat=stat, names=names)
