"""The one interface to the metadata store: ZooKeeper's tree of nodes, as far as a broker needs it.

Paths are absolute and have no trailing slash. Every write is durable when its method returns.
Errors are typed; a ``Transaction`` applies all of its operations or none. Watches stay until
cancelled, and their callbacks only take note (they run inside whatever changed the node).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import NamedTuple

ANY_VERSION = -1


class StoreError(Exception):
    """The store rejected an operation on ``path``."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class NoNode(StoreError):
    """The node, or the parent of a node to create, does not exist."""


class NodeExists(StoreError):
    """The node to create exists already."""


class BadVersion(StoreError):
    """The znode's version is not the expected one: another client changed it."""


class NotEmpty(StoreError):
    """The node to delete has children."""


class EphemeralParent(StoreError):
    """Ephemeral nodes have no children."""


class StoreFailed(Exception):
    """The store cannot be read or written at all; the message names file, cause and remedy."""


class NodeStat(NamedTuple):
    """The metadata of a znode."""

    version: int  # times the data was set
    children_version: int  # times a child was created or deleted
    created_ms: int
    modified_ms: int
    ephemeral: bool


class Node(NamedTuple):
    path: str
    data: bytes
    stat: NodeStat


CREATED, CHANGED, DELETED, CHILDREN = "created", "changed", "deleted", "children"


class WatchEvent(NamedTuple):
    """What happened to the node ``path``; CHILDREN: its list of children changed."""

    kind: str
    path: str


WatchCallback = Callable[[WatchEvent], None]


class Operation(NamedTuple):
    """One step of a transaction: ``kind`` is create, set, delete or check."""

    kind: str
    path: str
    data: bytes = b""
    version: int = ANY_VERSION
    ephemeral: bool = False
    sequential: bool = False


class Transaction:
    """Operations to apply together; collects until ``commit``."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.operations: list[Operation] = []

    def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> Transaction:
        self.operations.append(
            Operation("create", path, data, ephemeral=ephemeral, sequential=sequential)
        )
        return self

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Transaction:
        self.operations.append(Operation("set", path, data, version))
        return self

    def delete(self, path: str, version: int = ANY_VERSION) -> Transaction:
        self.operations.append(Operation("delete", path, version=version))
        return self

    def check(self, path: str, version: int) -> Transaction:
        """Make the transaction fail unless the znode exists with that version."""
        self.operations.append(Operation("check", path, version=version))
        return self

    def commit(self) -> list[str]:
        """Apply everything, durably; or nothing, and raise the error of the first that failed.

        Returns the path of every operation (of a sequential create: the path it was given).
        """
        return self._store.apply(self.operations)


class Store(ABC):
    """What the controller needs of a metadata store."""

    @abstractmethod
    def get(self, path: str) -> Node:
        """The node; NoNode."""

    @abstractmethod
    def exists(self, path: str) -> NodeStat | None:
        """The node's stat, None when there is no such node."""

    @abstractmethod
    def children(self, path: str) -> list[str]:
        """Names (not paths) of the children, sorted; NoNode."""

    @abstractmethod
    def subtree(self, path: str) -> Iterator[Node]:
        """All nodes below ``path``, parents before children; none when it does not exist."""

    @abstractmethod
    def apply(self, operations: list[Operation]) -> list[str]:
        """Apply operations in order, all or none. Use ``multi``."""

    @abstractmethod
    def watch(self, path: str, callback: WatchCallback) -> Callable[[], None]:
        """Call back after each change of the node, which need not exist; returns a cancel."""

    @abstractmethod
    def close(self) -> None:
        """End the session: its ephemeral nodes go."""

    def multi(self) -> Transaction:
        """A transaction to fill and commit."""
        return Transaction(self)

    def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        """Create a node below an existing parent; returns its path.

        NodeExists; NoNode or EphemeralParent for a parent that is missing or has no children.
        """
        return self.apply([Operation("create", path, data, ANY_VERSION, ephemeral, sequential)])[0]

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> None:
        """Replace the data. NoNode, BadVersion."""
        self.apply([Operation("set", path, data, version)])

    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Delete a node without children. NoNode, BadVersion, NotEmpty."""
        self.apply([Operation("delete", path, b"", version)])


def parent_of(path: str) -> str:
    """``/a/b`` -> ``/a``, ``/a`` -> ``/``."""
    return path.rpartition("/")[0] or "/"


def check_path(path: str) -> None:
    """ValueError unless the path is absolute, normalised and not the root."""
    if not path.startswith("/") or path == "/" or path.endswith("/") or "//" in path:
        raise ValueError(f"{path!r} is not a znode path")
    if "\0" in path or any(part in (".", "..") for part in path.split("/")):
        raise ValueError(f"{path!r} is not a znode path")
