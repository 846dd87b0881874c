"""The nodes of a ZooKeeper, to look at and to change: for tools."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

from kbroker.client.errors import ClientError, UnreachableError

if TYPE_CHECKING:
    from kbroker.client.legacy.zookeeper_tls import ZooKeeperTls

_TIMEOUT_S = 30.0
ANY_VERSION = -1


class ZnodeError(ClientError):
    """ZooKeeper refuses; in the words of its own shell, with the path."""


class Znodes:
    """A session with ZooKeeper. connect: ``host:port,host:port/chroot``. Raises UnreachableError,
    SettingRefused.

    All methods raise ZnodeError, and UnreachableError.
    """

    def __init__(self, connect: str, tls: ZooKeeperTls | None = None) -> None:
        from kbroker.client.legacy import zookeeper_link

        self._connect = connect
        self._client = zookeeper_link.connected(connect, _TIMEOUT_S, tls)

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
