"""The interface of the metadata store: a tree of znodes, as far as a broker needs it.

Every request returns a ``Pending``, because the store may be remote, and take milliseconds or
forever. Requests of one store object take effect and complete in the order in which they were made.
Paths are absolute and have no trailing slash. A write is durable when its Pending resolves. Errors
are typed; a ``StoreTransaction`` applies all of its operations or none.

``ConnectionLoss`` is the only error that leaves the outcome open: the request may have taken
effect. So every write is conditional, on a version or by creating a node, and its outcome is
found by reading; it is never retried blindly.

Watches are permanent until cancelled. Their callbacks must only take note of a change, because they
run inside the code that reports it. Changes while disconnected may go unreported: after every
CONNECTED, watchers must read again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

from kbroker.ipc.pending import Pending

R = TypeVar("R")

ANY_VERSION = -1
_OVERHEAD_BYTES = 100  # of an operation, with its access list


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


class TooLarge(StoreError):
    """The operations exceed the size limit of one request."""

    def __init__(self, path: str, size: int, limit: int) -> None:
        super().__init__(path)
        self.args = (
            f"{path}: {size} bytes are more than the {limit} that ZooKeeper takes in one request "
            "(jute.maxbuffer); a topic of this size needs fewer partitions or replicas",
        )


class StoreFailed(Exception):
    """The store cannot be read or written; the message names file, cause and remedy."""


class WrongCluster(Exception):
    """The store and the log directories belong to different clusters; the message names both."""


class ConnectionLoss(Exception):
    """The connection or its session ended during the request, which may or may not have taken
    effect.
    """


class SessionState(Enum):
    """The states that ``watch_session`` reports."""

    CONNECTED = "connected"  # the same session as before SUSPENDED, or after EXPIRED a new one
    SUSPENDED = "suspended"  # from now on requests end as ConnectionLoss; the session may live on
    EXPIRED = "expired"  # the session's ephemeral nodes are gone; a new session is being created


class NodeStat(NamedTuple):
    """The metadata of a znode."""

    version: int  # times the data was set
    children_version: int  # times a child was created or deleted
    created_ms: int
    modified_ms: int
    # Larger than that of every node created before, so it distinguishes a node from earlier ones at
    # its path. Nodes that are not ephemeral have 0 if the store is not shared.
    created_id: int
    owner_session: int  # whose end is the node's end; 0: the node is not ephemeral


class Node(NamedTuple):
    path: str
    data: bytes
    stat: NodeStat


CREATED, CHANGED, DELETED, CHILDREN = "created", "changed", "deleted", "children"


class WatchEvent(NamedTuple):
    """The event for the node ``path``; CHILDREN: its list of children has changed."""

    kind: str
    path: str


WatchCallback = Callable[[WatchEvent], None]
SessionCallback = Callable[[SessionState], None]


class StoreOperation(NamedTuple):
    """One step of a transaction: ``kind`` is create, set, delete or check."""

    kind: str
    path: str
    data: bytes = b""
    version: int = ANY_VERSION
    ephemeral: bool = False
    sequential: bool = False

    @property
    def bytes(self) -> int:
        """An upper bound of its size in a request."""
        return _OVERHEAD_BYTES + len(self.path) + len(self.data)


class StoreTransaction(Generic[R]):
    """Collects operations, which ``commit`` applies together."""

    def __init__(self, apply: Callable[[list[StoreOperation]], R]) -> None:
        self._apply = apply
        self.operations: list[StoreOperation] = []

    def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> StoreTransaction[R]:
        self.operations.append(
            StoreOperation("create", path, data, ephemeral=ephemeral, sequential=sequential)
        )
        return self

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> StoreTransaction[R]:
        self.operations.append(StoreOperation("set", path, data, version))
        return self

    def delete(self, path: str, version: int = ANY_VERSION) -> StoreTransaction[R]:
        self.operations.append(StoreOperation("delete", path, version=version))
        return self

    def check(self, path: str, version: int) -> StoreTransaction[R]:
        """Make the transaction conditional on the znode's version."""
        self.operations.append(StoreOperation("check", path, version=version))
        return self

    def commit(self) -> R:
        """Apply all operations durably, or none: fails with the error of the first failed one.

        The result has the path of every operation (of a sequential create: the one it was given).
        """
        return self._apply(self.operations)


class Store(ABC):
    """A metadata store, as sessions and controllers need it.

    Besides the errors named here, every Pending may fail with ConnectionLoss or StoreFailed.
    """

    @property
    @abstractmethod
    def session_id(self) -> int:
        """The owner of the ephemeral nodes that this store object creates; 0 before the first
        session.
        """

    @property
    def is_shared(self) -> bool:
        """Whether other clients write to it, so that everything read must be watched."""
        return True

    @property
    def request_bytes_max(self) -> int | None:
        """BOUND: the size of all operations that are applied together, above which they fail with
        TooLarge; None if there is none.
        """
        return None

    @abstractmethod
    def get(self, path: str) -> Pending[Node]:
        """The node. Fails with NoNode."""

    @abstractmethod
    def exists(self, path: str) -> Pending[NodeStat | None]:
        """The node's stat; None if there is no such node."""

    @abstractmethod
    def children(self, path: str) -> Pending[list[str]]:
        """Names (not paths) of the children, sorted. Fails with NoNode."""

    @abstractmethod
    def subtree(self, path: str) -> Pending[list[Node]]:
        """All nodes below ``path``, parents before children; empty if it does not exist.

        This is not a snapshot: the tree may change while it is read.
        """

    def sync(self, path: str) -> Pending[None]:
        """Resolves when later reads see whatever was written before, by any client."""
        done: Pending[None] = Pending()
        done.resolve()
        return done

    @abstractmethod
    def apply(self, operations: list[StoreOperation]) -> Pending[list[str]]:
        """Apply operations in order, all or none. Use ``multi``."""

    @abstractmethod
    def watch(self, path: str, callback: WatchCallback) -> Pending[Callable[[], None]]:
        """Call back after each change of the node, which need not exist.

        Changes after the Pending has resolved are reported; its value cancels the watch.
        """

    @abstractmethod
    def watch_session(self, callback: SessionCallback) -> None:
        """Call back with the session's state, now and after each change."""

    @abstractmethod
    def close(self) -> Pending[None]:
        """End the session, which removes its ephemeral nodes."""

    @property
    def fd(self) -> int | None:
        """Readable when ``drain`` has something to do; None if it never has."""
        return None

    def drain(self) -> None:  # noqa: B027
        """Resolve completed requests and report changes. Never blocks."""

    def settle(self, now_ms: int) -> None:  # noqa: B027
        """Do periodic work; called several times a second. now_ms: monotonic."""

    def multi(self) -> StoreTransaction[Pending[list[str]]]:
        """A transaction to fill and commit."""
        return StoreTransaction(self.apply)

    def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> Pending[list[str]]:
        """Create a node below an existing parent; returns its path, in a list of one.

        NodeExists; NoNode or EphemeralParent for a parent that is missing or has no children.
        """
        return self.apply(
            [StoreOperation("create", path, data, ANY_VERSION, ephemeral, sequential)]
        )

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Pending[list[str]]:
        """Replace the data. NoNode, BadVersion."""
        return self.apply([StoreOperation("set", path, data, version)])

    def delete(self, path: str, version: int = ANY_VERSION) -> Pending[list[str]]:
        """Delete a node without children. NoNode, BadVersion, NotEmpty."""
        return self.apply([StoreOperation("delete", path, b"", version)])


def foreign_cluster(actual: str | None, expected: str) -> WrongCluster:
    """The error for a shared store that belongs to cluster ``found``."""
    known = f"is of cluster {actual}" if actual else "knows no cluster id"
    return WrongCluster(
        f"the ZooKeeper of zookeeper.connect {known}, the log directories are of cluster "
        f"{expected}. Check the setting, its path too, or start with log directories of that "
        "cluster"
    )


def parent_of(path: str) -> str:
    """``/a/b`` -> ``/a``, ``/a`` -> ``/``."""
    return path.rpartition("/")[0] or "/"


def check_path(path: str) -> None:
    """Raises ValueError unless the path is absolute, normalised and not the root."""
    if not path.startswith("/") or path == "/" or path.endswith("/") or "//" in path:
        raise ValueError(f"{path!r} is not a znode path")
    if "\0" in path or any(part in (".", "..") for part in path.split("/")):
        raise ValueError(f"{path!r} is not a znode path")
