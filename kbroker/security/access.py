"""Authorizer verdicts by principal, cached by a network process.

A connection has the ``Access`` of its principal and address; all connections of both share it. It
caches no verdicts except those of the hot paths (``_ext.verdicts``).
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from weakref import WeakValueDictionary

from kbroker._ext.sockets.verdicts import Verdicts
from kbroker.security.authorizer import Authorizer
from kbroker.security.operations import CLUSTER_NAME, AclOperation, Kind, mask
from kbroker.security.principal import Principal

# In the order of Question in verdicts.pxd.
QUESTIONS = (
    (AclOperation.READ, Kind.TOPIC),
    (AclOperation.WRITE, Kind.TOPIC),
    (AclOperation.WRITE, Kind.TRANSACTIONAL_ID),
    (AclOperation.CLUSTER_ACTION, Kind.CLUSTER),
)


class Everything:
    """A set that contains every name."""

    def __contains__(self, name: object) -> bool:
        return True


EVERYTHING = Everything()


class Access(Verdicts):
    """The permissions of a principal from an address. Made by an ``AccessTable``."""

    def __init__(self, principal: Principal, host: str, authorizer: Authorizer) -> None:
        self.principal = principal
        self.host = host
        self.follow(authorizer)

    def follow(self, authorizer: Authorizer) -> None:
        """Use this authorizer from now on, and forget the present verdicts."""
        self._authorizer = authorizer
        everything = authorizer.allows_everything(self.principal, self.host)
        self.set_verdicts(self.principal.to_wire(), everything)

    def allowed(self, operation: AclOperation, kind: Kind, names: Iterable[str]) -> Container[str]:
        """The resources for which the principal is authorized."""
        if self.everything:
            return EVERYTHING
        asked = list(dict.fromkeys(names))
        verdicts = self._authorizer.authorize(self.principal, self.host, operation, kind, asked)
        return {name for name, verdict in zip(asked, verdicts, strict=True) if verdict}

    def allows(self, operation: AclOperation, kind: Kind, name: str = CLUSTER_NAME) -> bool:
        """Whether it is authorized for one resource."""
        return name in self.allowed(operation, kind, (name,))

    def allows_any(self, operation: AclOperation, kind: Kind) -> bool:
        """Whether it is authorized for any resource of a kind."""
        return self.everything or self._authorizer.authorize_any(
            self.principal, self.host, operation, kind
        )

    def operations(self, kind: Kind, name: str = CLUSTER_NAME) -> int:
        """The bits of all authorized operations on a resource (KIP-430)."""
        if self.everything:
            return kind.all_operations
        return mask(each for each in kind.operations if self.allows(each, kind, name))

    @property
    def cache_key(self) -> object:
        """The key for cached responses: equal for all principals that may do everything."""
        return None if self.everything else (self.principal, self.host, self.version)

    def ask(self, question: int, name: bytes) -> bool:
        """Called by the hot paths for verdicts that they do not have yet."""
        try:
            return self.allows(*QUESTIONS[question], name.decode())
        except UnicodeDecodeError:
            return False  # no resource has such a name


class AccessTable:
    """The Access of each principal and address that has a connection in this process."""

    def __init__(self, authorizer: Authorizer) -> None:
        self._authorizer = authorizer
        self._kept: WeakValueDictionary[tuple[Principal, str], Access] = WeakValueDictionary()

    def of(self, principal: Principal, host: str) -> Access:
        known = self._kept.get((principal, host))
        if known is None:
            known = self._kept[principal, host] = Access(principal, host, self._authorizer)
        return known

    def follow(self, authorizer: Authorizer) -> None:
        """The verdicts have changed, or there is another authorizer."""
        self._authorizer = authorizer
        for access in list(self._kept.values()):
            access.follow(authorizer)
