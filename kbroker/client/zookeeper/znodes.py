"""The nodes of a ZooKeeper, to look at and to change: for tools."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from kbroker.client.errors import ClientError, UnreachableError

if TYPE_CHECKING:
    from kbroker.client.zookeeper.zookeeper_tls import ZooKeeperTls

_TIMEOUT_S = 30.0
ANY_VERSION, NO_NODE = -1, -2


class ZnodeError(ClientError):
    """ZooKeeper refuses; in the words of its own shell, with the path."""


class ZnodeChanged(ZnodeError):
    """Another client has written in between."""


class Put(NamedTuple):
    """A node to create (NO_NODE), to replace, or to delete (without data), if it has that version.

    acl: of a new node, as kazoo has it; None: everybody may do everything.
    """

    path: str
    data: bytes | None
    version: int = NO_NODE
    acl: Any = None
    sequence: bool = False


class Znodes:
    """A session with ZooKeeper. connect: ``host:port,host:port/chroot``. Raises UnreachableError,
    SettingRefused.

    All methods raise ZnodeError, and UnreachableError. is_known: whether ZooKeeper knows whose
    the nodes are that this session creates.
    """

    def __init__(self, connect: str, tls: ZooKeeperTls | None = None) -> None:
        from kbroker.client.zookeeper import zookeeper_link

        self._connect = connect
        self.is_known = tls is not None and tls.has_certificate
        self._client = zookeeper_link.connected(connect, _TIMEOUT_S, tls)
        self._tls = tls

    def __enter__(self) -> Znodes:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the session."""
        self._client.stop()
        self._client.close()

    @contextmanager
    def _asking(self, path: str) -> Iterator[Any]:
        from kazoo import exceptions

        said = {
            exceptions.NoNodeError: "Node does not exist",
            exceptions.NodeExistsError: "Node already exists",
            exceptions.NotEmptyError: "Node not empty",
            exceptions.NoAuthError: "Insufficient permission",
            exceptions.BadVersionError: "version No is not valid",
        }
        try:
            yield self._client
        except tuple(said) as error:
            text = next(text for kind, text in said.items() if isinstance(error, kind))
            raise ZnodeError(f"{text}: {path}") from error
        except exceptions.KazooException as error:
            raise UnreachableError({self._connect: f"{type(error).__name__}: {error}"}) from error

    def children(self, path: str) -> tuple[list[str], Any]:
        """The names below a node, sorted, and its state as kazoo has it."""
        with self._asking(path) as client:
            names, stat = client.get_children(path, include_data=True)
        return sorted(names), stat

    def below(self, path: str) -> Iterator[str]:
        """A node and all nodes below it."""
        yield path
        for name in self.children(path)[0]:
            yield from self.below(f"{path.rstrip('/')}/{name}")

    def get(self, path: str) -> tuple[bytes, Any]:
        """What a node has in it, and its state."""
        with self._asking(path) as client:
            data, stat = client.get(path)
        return data, stat

    def create(self, path: str, data: bytes, *, ephemeral: bool, sequence: bool) -> str:
        """The path of the new node."""
        with self._asking(path) as client:
            return str(client.create(path, data, ephemeral=ephemeral, sequence=sequence))

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Any:
        """The state of the node then."""
        with self._asking(path) as client:
            return client.set(path, data, version=version)

    def delete(self, path: str, version: int = ANY_VERSION, *, below: bool = False) -> None:
        """below: with all nodes below it."""
        with self._asking(path) as client:
            client.delete(path, version=version, recursive=below)

    def acls(self, path: str) -> list[Any]:
        """As kazoo has them."""
        with self._asking(path) as client:
            return list(client.get_acls(path)[0])

    def ensure(self, path: str, acl_of: Callable[[str], Any]) -> None:
        """Create what is missing of a path, and of the chroot."""
        from kbroker.client.zookeeper import zookeeper_link

        hosts, _, chroot = self._connect.partition("/")
        if chroot:
            whole = zookeeper_link.connected(hosts, _TIMEOUT_S, self._tls)
            try:
                whole.ensure_path(f"/{chroot}", acl_of("/"))
            finally:
                whole.stop()
                whole.close()
        parts = path.strip("/").split("/")
        for count in range(1, len(parts) + 1):
            part = "/" + "/".join(parts[:count])
            with self._asking(part) as client:
                if client.exists(part) is None:
                    client.ensure_path(part, acl_of(part))

    def put(self, writes: Iterable[Put]) -> None:
        """All of them or none. Raises ZnodeChanged."""
        from kazoo import exceptions

        wanted = list(writes)
        with self._asking(wanted[0].path) as client:
            transaction = client.transaction()
            for one in wanted:
                if one.data is None:
                    transaction.delete(one.path, one.version)
                elif one.version == NO_NODE:
                    transaction.create(one.path, one.data, one.acl, sequence=one.sequence)
                else:
                    transaction.set_data(one.path, one.data, one.version)
            results = transaction.commit()
            lost = exceptions.BadVersionError, exceptions.NodeExistsError, exceptions.NoNodeError
            for one, result in zip(wanted, results, strict=True):
                if isinstance(result, lost):
                    raise ZnodeChanged(f"another client has changed {one.path}")
                if isinstance(result, exceptions.KazooException) and not isinstance(
                    result, (exceptions.RolledBackError, exceptions.RuntimeInconsistency)
                ):
                    raise result
