"""The metadata store of a cluster: ZooKeeper, with Kafka's paths below the chroot.

The owner's thread makes requests and resolves them: it calls ``drain`` when ``fd`` is readable.
kazoo gets a window of them, the rest waits here in order. When the connection is lost, all of them
fail with ConnectionLoss, and so do requests made until it is back.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    NoAuthError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.exceptions import ConnectionLoss as KazooConnectionLoss
from kazoo.exceptions import SessionExpiredError as KazooSessionExpired
from kazoo.protocol.states import EventType, KeeperState

from kbroker.ipc.pending import Pending, run
from kbroker.metastore import paths
from kbroker.metastore.session_file import SessionFile
from kbroker.metastore.store import (
    CHANGED,
    CHILDREN,
    CREATED,
    DELETED,
    BadVersion,
    ConnectionLoss,
    EphemeralParent,
    Node,
    NodeExists,
    NodeStat,
    NoNode,
    NotEmpty,
    SessionCallback,
    SessionState,
    Store,
    StoreFailed,
    StoreOperation,
    TooLarge,
    WatchCallback,
    check_path,
    parent_of,
)
from kbroker.metastore.watches import Watches
from kbroker.metastore.zookeeper_client import acl_of
from kbroker.metastore.zookeeper_connection import (
    ConnectionClosed,
    Report,
    ReportQueue,
    RequestResult,
    StateChange,
    ZooKeeperConnection,
    ask_to_sync,
)
from kbroker.metastore.zookeeper_settings import ZooKeeperSettings
from kbroker.metastore.zookeeper_watches import WatchedNode

logger = logging.getLogger(__name__)

# BOUND: requests with kazoo. It is woken through a pipe that holds some 270 of them; a write to a
# full one would block the owner's thread.
WINDOW_MAX = 128
# BOUND: reports handled in a turn of the owner's loop: about 10 ms.
REPORTS_PER_TURN = 256
# BOUND: ZooKeeper's jute.maxbuffer is 1 MiB by default: it closes the connection on a larger
# request without an error.
REQUEST_BYTES_MAX = 1_048_575
RESTART_MS = 5_000
REMIND_MS = 60_000
# The time before a start logs that it waits for the first connection.
FIRST_REMIND_MS = 5_000

_KINDS = {
    EventType.CREATED: CREATED,
    EventType.CHANGED: CHANGED,
    EventType.DELETED: DELETED,
    EventType.CHILD: CHILDREN,
}
_LOST = (KazooConnectionLoss, KazooSessionExpired, AuthFailedError, RuntimeError)


class ZooKeeperRequest(NamedTuple):
    """A request in flight. ``take`` gets its value or its error."""

    ask: Callable[[KazooClient], RequestResult]
    take: Callable[[Any, BaseException | None], None]


class ZooKeeperStore(Store):
    """Used by one thread of one process, and created there, because kazoo starts threads."""

    def __init__(
        self,
        settings: ZooKeeperSettings,
        session_file: SessionFile,
        top_paths: Sequence[str] = paths.PERSISTENT_PATHS,
    ) -> None:
        """Resumes the session in the file if it is still alive. top_paths: created if missing."""
        self._settings = settings
        self._top_paths = top_paths
        self._file = session_file
        self._reports = ReportQueue()
        self._state = SessionState.SUSPENDED
        self._callbacks: list[SessionCallback] = []
        self._watches = Watches()
        self._nodes: dict[str, WatchedNode] = {}
        self._waiting: deque[ZooKeeperRequest] = deque()
        self._in_flight = 0
        self._window = min(settings.window, WINDOW_MAX)
        self._has_paths = False
        self._session = session_file.read()
        self._is_expired = False
        self._closing: Pending[None] | None = None
        self._is_ending = False
        self._is_ended = False  # kazoo has given up, which it does not by itself
        self._restart_at_ms: int | None = None
        self._remind_at_ms = 0
        self._time: Callable[[int], None] | None = None
        self._connection = ZooKeeperConnection(settings, self._reports, self._session)
        self._connection.start()

    @property
    def fd(self) -> int:
        return self._reports.fd

    def time_requests(self, note: Callable[[int], None]) -> None:
        """Have told how many nanoseconds each request took that ZooKeeper has answered."""
        self._time = note

    @property
    def session_id(self) -> int:
        return self._session[0] if self._session else 0

    @property
    def request_bytes_max(self) -> int:
        return REQUEST_BYTES_MAX

    # -- requests ----------------------------------------------------------------------------

    def get(self, path: str) -> Pending[Node]:
        def node(value: Any) -> Node:
            return _node(path, value)

        return self._read(path, lambda client, at: client.get_async(at), node)

    def exists(self, path: str) -> Pending[NodeStat | None]:
        return self._read(path, lambda client, at: client.exists_async(at), _stat_or_none)

    def sync(self, path: str) -> Pending[None]:
        return self._read(path, ask_to_sync, lambda _: None)

    def children(self, path: str) -> Pending[list[str]]:
        return self._read(path, lambda client, at: client.get_children_async(at), sorted)

    def subtree(self, path: str) -> Pending[list[Node]]:
        pending: Pending[list[Node]] = Pending()
        _Subtree(self, path, pending).start()
        return pending

    def apply(self, operations: list[StoreOperation]) -> Pending[list[str]]:
        asked = list(operations)
        for operation in asked:
            check_path(operation.path)
        pending: Pending[list[str]] = Pending()
        size = sum(operation.bytes for operation in asked)
        if size > REQUEST_BYTES_MAX:
            largest = max(asked, key=lambda operation: len(operation.data))
            pending.resolve(error=TooLarge(largest.path, size, REQUEST_BYTES_MAX))
            return pending

        def ask(client: KazooClient) -> RequestResult:
            transaction = client.transaction()
            for operation in asked:
                self._add(transaction, operation)
            result: RequestResult = transaction.commit_async()
            return result

        def take(results: Any, error: BaseException | None) -> None:
            if error is not None:
                pending.resolve(error=_error(error, asked[0].path if asked else "/"))
                return
            try:
                pending.resolve(self._made(asked, results))
            except Exception as failed:
                pending.resolve(error=failed)

        self._ask(ZooKeeperRequest(ask, take))
        return pending

    def watch(self, path: str, callback: WatchCallback) -> Pending[Callable[[], None]]:
        pending: Pending[Callable[[], None]] = Pending()

        def armed(error: BaseException | None) -> None:
            if error is not None:
                pending.resolve(error=error)
                return
            pending.resolve(self._watches.add(path, callback))

        self._arm(self._nodes.setdefault(path, WatchedNode(path)), (CHANGED, CHILDREN), armed)
        return pending

    def watch_session(self, callback: SessionCallback) -> None:
        self._callbacks.append(callback)
        callback(self._state)

    def close(self) -> Pending[None]:
        if self._closing is None:
            self._closing = Pending()
            self._callbacks.clear()
            self._close_when_done()
        return self._closing

    def settle(self, now_ms: int) -> None:
        if self._state == SessionState.CONNECTED or self._closing is not None:
            self._remind_at_ms = now_ms + REMIND_MS
            return
        if now_ms >= self._remind_at_ms:
            wait_ms = FIRST_REMIND_MS
            if self._remind_at_ms:
                wait_ms = REMIND_MS
                logger.warning("still no connection to ZooKeeper %s: %s; trying again",
                               self._settings.connect, self._connection.problem)  # fmt: skip
            self._remind_at_ms = now_ms + wait_ms
        if not self._is_ended:
            return
        if self._restart_at_ms is None:
            self._restart_at_ms = now_ms + RESTART_MS
        if now_ms < self._restart_at_ms:
            return
        self._restart_at_ms, self._is_ended, self._in_flight = None, False, 0
        self._connection = ZooKeeperConnection(self._settings, self._reports, self._session)
        self._connection.start()

    def _read(
        self, path: str, ask: Callable[[Any, str], RequestResult], convert: Callable[[Any], Any]
    ) -> Pending[Any]:
        pending: Pending[Any] = Pending()

        def take(value: Any, error: BaseException | None) -> None:
            if error is None:
                pending.resolve(convert(value))
            else:
                pending.resolve(error=_error(error, path))

        self._ask(ZooKeeperRequest(partial(_at, ask, self._absolute(path)), take))
        return pending

    def _ask(self, request: ZooKeeperRequest) -> None:
        if self._state != SessionState.CONNECTED or self._closing is not None:
            # Later: a callback that retries at once must not block the thread.
            self._reports.add(lambda: request.take(None, KazooConnectionLoss()))
            return
        self._waiting.append(request)
        self._send()

    def _send(self) -> None:
        waiting = self._waiting
        while waiting and self._in_flight < self._window:
            if not self._connection.send(waiting[0].ask, waiting[0]):
                return  # the connection is lost; its report is on the way
            waiting.popleft()
            self._in_flight += 1

    def _add(self, transaction: Any, operation: StoreOperation) -> None:
        path = self._absolute(operation.path)
        if operation.kind == "create":
            acl = acl_of(operation.path, self._settings)
            transaction.create(path, operation.data, acl, operation.ephemeral, operation.sequential)
            _without_data(transaction)
        elif operation.kind == "set":
            transaction.set_data(path, operation.data, operation.version)
        elif operation.kind == "delete":
            transaction.delete(path, operation.version)
        else:
            transaction.check(path, operation.version)

    def _made(self, operations: list[StoreOperation], results: list[Any]) -> list[str]:
        """The paths. Raises the error of the first operation that failed."""
        for operation, result in zip(operations, results, strict=False):
            is_of_another = isinstance(result, (RolledBackError, RuntimeInconsistency))
            if isinstance(result, Exception) and not is_of_another:
                raise _error(result, operation.path, of=operation)
        chroot = len(self._settings.chroot)
        return [
            result[chroot:] if isinstance(result, str) else operation.path
            for operation, result in zip(operations, results, strict=True)
        ]

    def _absolute(self, path: str) -> str:
        return (self._settings.chroot + path).rstrip("/") or "/"

    # -- watches -----------------------------------------------------------------------------

    def _arm(
        self,
        node: WatchedNode,
        kinds: tuple[str, ...],
        done: Callable[[BaseException | None], None] = lambda _: None,
    ) -> None:
        """Set watches on data, children or both, and report changes since they last fired."""
        at = self._absolute(node.path)

        def ask_node(client: KazooClient) -> Any:
            return client.exists_async(at, self._on_event)

        def ask_children(client: KazooClient) -> Any:
            return client.get_children_async(at, self._on_event, include_data=True)

        def take(value: Any, error: BaseException | None) -> None:
            node.arming -= 1
            if error is not None and not isinstance(error, NoNodeError):
                done(_error(error, node.path))
                return
            # Without the node there are no children, as the other watch knows or will report.
            if error is None:
                stat = value[1] if isinstance(value, tuple) and len(value) == 2 else value
                for change in node.on_stat(_stat_or_none(stat)):
                    self._watches.report(change)
            done(None)

        def take_first(value: Any, error: BaseException | None) -> None:
            nonlocal done
            last, done = done, lambda _: None
            take(value, error)
            done = last

        asks = [ask_children if kind == CHILDREN else ask_node for kind in kinds]
        node.arming += len(asks)
        for ask in asks[:-1]:
            self._ask(ZooKeeperRequest(ask, take_first))
        self._ask(ZooKeeperRequest(asks[-1], take))

    def _on_event(self, event: Any) -> None:
        kind = _KINDS.get(event.type)
        if kind is None:
            return  # the connection is lost, and all watches with it
        node = self._nodes.get(event.path[len(self._settings.chroot) :] or "/")
        if node is None:
            return
        if not node.arming and not self._watches.has(node.path):
            del self._nodes[node.path]
            return
        if self._state == SessionState.CONNECTED:
            # A deleted node may exist again, with its children unwatched.
            both = (CHANGED, CHILDREN)
            self._arm(node, (kind,) if kind in both else both)
        for change in node.on_event(kind):
            self._watches.report(change)

    # -- the session -------------------------------------------------------------------------

    def drain(self) -> None:
        """Process kazoo's reports."""
        for report in self._reports.take(REPORTS_PER_TURN):
            self._take(report)
        self._send()
        if self._closing is not None:
            self._close_when_done()

    def _take(self, report: Report) -> None:
        if isinstance(report, RequestResult):
            if report.request is not None:
                self._in_flight -= 1
                if self._time is not None and not isinstance(report.error, _LOST):
                    self._time(report.took_ns)
                report.request.take(report.value, report.error)
        elif isinstance(report, StateChange):
            report.connection.seen()
            if report.connection is self._connection and self._closing is None:
                self._on_state(report)
        elif isinstance(report, ConnectionClosed):
            if report.connection is self._connection and self._closing is not None:
                self._file.remove()
                self._closing.resolve()
        else:
            report()

    def _on_state(self, change: StateChange) -> None:
        if change.state == KeeperState.CONNECTED:
            self._connected(change.session)
            return
        if self._state == SessionState.CONNECTED:
            logger.warning("connection to ZooKeeper %s lost: %s; trying again",
                           self._settings.connect, self._connection.problem)  # fmt: skip
            self._become(SessionState.SUSPENDED)
        lost, self._waiting = self._waiting, deque()
        for request in lost:
            request.take(None, KazooConnectionLoss())
        if change.state == KeeperState.EXPIRED_SESSION:
            self._expired()
        elif change.state in (KeeperState.CLOSED, KeeperState.AUTH_FAILED):
            logger.error(
                "the client of ZooKeeper %s ended (%s): %s; starting another in %d s",
                self._settings.connect, change.state, self._connection.problem, RESTART_MS // 1000,
            )  # fmt: skip
            self._connection.close()
            self._is_ended = True

    def _expired(self) -> None:
        if self._session is not None and not self._is_expired:
            self._is_expired = True
            logger.warning("ZooKeeper session 0x%x expired; starting another", self.session_id)
            self._become(SessionState.EXPIRED)

    def _connected(self, session: tuple[int, bytes] | None) -> None:
        if session is None:
            return  # lost again; that is reported next
        if self._session != session:
            if self.session_id != session[0]:
                self._expired()
            self._session = session
            try:
                self._file.write(session)
            except OSError as error:
                text = "cannot keep the session; the next controller process starts another: %s"
                logger.error(text, error)
        self._is_expired = False
        logger.info("ZooKeeper %s: connected, session 0x%x", self._settings.connect, session[0])
        self._state = SessionState.CONNECTED
        if self._has_paths:
            self._serve()
        else:
            connection = self._connection
            run(self._make_paths()).then(lambda outcome: self._paths_made(outcome, connection))

    def _paths_made(self, outcome: Pending[None], connection: ZooKeeperConnection) -> None:
        if outcome.error is None:
            self._has_paths = True
        elif isinstance(outcome.error, ConnectionLoss):
            return
        else:
            logger.error("cannot create the paths of a broker in ZooKeeper: %s", outcome.error)
        if connection is self._connection and self._state == SessionState.CONNECTED:
            self._serve()

    def _serve(self) -> None:
        """Set the watches again after a reconnect, then report CONNECTED."""
        for path, node in list(self._nodes.items()):
            if self._watches.has(path):
                self._arm(node, (CHANGED, CHILDREN))
            else:
                del self._nodes[path]
        self._become(SessionState.CONNECTED)

    async def _make_paths(self) -> None:
        chroot = self._settings.chroot
        above = [chroot[:end] for end in range(2, len(chroot)) if chroot[end] == "/"]
        made = [self._make(path) for path in [*above, *([chroot] if chroot else [])]]
        made += [self._make(chroot + path, path) for path in self._top_paths]
        for pending in made:
            try:
                await pending
            except NodeExists:
                pass  # made by another broker, or at an earlier start

    def _make(self, absolute: str, path: str | None = None) -> Pending[None]:
        pending: Pending[None] = Pending()
        acl = acl_of(path or absolute, self._settings)

        def ask(client: KazooClient) -> RequestResult:
            transaction = client.transaction()
            transaction.create(absolute, b"", acl)
            _without_data(transaction)
            result: RequestResult = transaction.commit_async()
            return result

        def take(results: Any, error: BaseException | None) -> None:
            failed = error or next((r for r in results if isinstance(r, Exception)), None)
            pending.resolve(error=None if failed is None else _error(failed, absolute))

        self._ask(ZooKeeperRequest(ask, take))
        return pending

    def _become(self, state: SessionState) -> None:
        self._state = state
        for callback in list(self._callbacks):
            callback(state)

    def _close_when_done(self) -> None:
        is_idle = not self._waiting and not self._in_flight
        if (is_idle or self._state != SessionState.CONNECTED) and not self._is_ending:
            self._is_ending = True
            self._connection.close()


class _Subtree:
    """A read of all nodes below one; reads children only of nodes that have some."""

    def __init__(self, store: ZooKeeperStore, path: str, pending: Pending[list[Node]]) -> None:
        self._store = store
        self._root = path
        self._pending = pending
        self._nodes: list[Node] = []
        self._open = 0

    def start(self) -> None:
        self._list(self._root)

    def _list(self, path: str) -> None:
        self._open += 1
        self._store.children(path).then(partial(self._listed, path))

    def _listed(self, path: str, children: Pending[list[str]]) -> None:
        if children.error is None:
            for name in children.value:
                self._open += 1
                child = f"{path.rstrip('/')}/{name}"
                self._store._read(
                    child, lambda client, at: client.get_async(at), partial(_with_count, child)
                ).then(self._read)
        self._done(children)

    def _read(self, answer: Pending[tuple[Node, int]]) -> None:
        if answer.error is None:
            node, children = answer.value
            self._nodes.append(node)
            if children:
                self._list(node.path)
        self._done(answer)

    def _done(self, answer: Pending[Any]) -> None:
        self._open -= 1
        if answer.error is not None and not isinstance(answer.error, NoNode):
            self._pending.resolve(error=answer.error)
        elif not self._open:
            self._pending.resolve(sorted(self._nodes, key=lambda node: node.path.split("/")))


def _at(ask: Callable[[Any, str], RequestResult], path: str, client: KazooClient) -> RequestResult:
    return ask(client, path)


def _without_data(transaction: Any) -> None:
    """Have the node that it creates last hold null instead of no bytes.

    COMPAT: Kafka creates empty nodes so, and does not start when one that it parses is not.
    """
    last = transaction.operations[-1]
    if not last.data:
        transaction.operations[-1] = last._replace(data=None)


def _node(path: str, answer: Any) -> Node:
    data, stat = answer
    return Node(path, data or b"", _stat(stat))


def _with_count(path: str, answer: Any) -> tuple[Node, int]:
    return _node(path, answer), answer[1].numChildren


def _stat(stat: Any) -> NodeStat:
    return NodeStat(
        stat.version, stat.cversion, stat.ctime, stat.mtime, stat.czxid, stat.ephemeralOwner
    )


def _stat_or_none(stat: Any) -> NodeStat | None:
    return None if stat is None else _stat(stat)


def _error(error: BaseException, path: str, of: StoreOperation | None = None) -> BaseException:
    """Maps an error of kazoo to one of the store."""
    if isinstance(error, NoNodeError):
        return NoNode(parent_of(path) if of is not None and of.kind == "create" else path)
    if isinstance(error, NodeExistsError):
        return NodeExists(path)
    if isinstance(error, BadVersionError):
        return BadVersion(path)
    if isinstance(error, NotEmptyError):
        return NotEmpty(path)
    if isinstance(error, NoChildrenForEphemeralsError):
        return EphemeralParent(parent_of(path))
    if isinstance(error, _LOST):
        return ConnectionLoss()
    if isinstance(error, NoAuthError):
        return StoreFailed(
            f"ZooKeeper does not allow this broker to use {path}: its access list names another "
            "identity; give this broker the credentials of the other brokers, or free the nodes "
            "(zookeeper-security-migration.sh --zookeeper.acl=unsecure)"
        )
    return StoreFailed(f"ZooKeeper failed at {path}: {type(error).__name__} {error}")
