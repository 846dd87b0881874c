"""Authorizer verdicts by principal, cached by a network process.

A connection has the ``Access`` of its principal and address; all connections of both share it. It
caches no verdicts except those of the hot paths (``_ext.verdicts``).
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from weakref import WeakValueDictionary

from kbroker._ext.sockets.verdicts import Verdicts
from kbroker.security.audit import Audit
from kbroker.security.authorizer import Authorizer
from kbroker.security.operations import CLUSTER_NAME, AclOperation, Kind, mask
from kbroker.security.principal import KafkaPrincipal

# In the order of Question in verdicts.pxd, with the requests that ask.
QUESTIONS = (
    (AclOperation.READ, Kind.TOPIC, "Fetch"),
    (AclOperation.WRITE, Kind.TOPIC, "Produce"),
    (AclOperation.WRITE, Kind.TRANSACTIONAL_ID, "Produce"),
    (AclOperation.CLUSTER_ACTION, Kind.CLUSTER, "Fetch"),
)


class Everything:
    """A set that contains every name."""

    def __contains__(self, name: object) -> bool:
        return True


EVERYTHING = Everything()


class Access(Verdicts):
    """The permissions of a principal from an address. Made by an ``AccessTable``."""

    def __init__(
        self, principal: KafkaPrincipal, host: str, authorizer: Authorizer, audit: Audit
    ) -> None:
        self.principal = principal
        self.host = host
        self._audit = audit
        self.follow(authorizer)

    def follow(self, authorizer: Authorizer) -> None:
        """Use this authorizer from now on, and forget the present verdicts."""
        self._authorizer = authorizer
        everything = authorizer.allows_everything(self.principal, self.host)
        self.set_verdicts(self.principal.to_wire(), everything)

    def allowed(
        self,
        operation: AclOperation,
        kind: Kind,
        names: Iterable[str],
        request: str = "",
        *,
        is_filter: bool = False,
    ) -> Container[str]:
        """The resources for which the principal is authorized.

        request: the API, for the log. is_filter: what is denied is hidden, and no denial.
        """
        if self.everything:
            return EVERYTHING
        asked = list(dict.fromkeys(names))
        who, host = self.principal, self.host
        verdicts = self._authorizer.authorize(who, host, operation, kind, asked)
        allowed = {name for name, verdict in zip(asked, verdicts, strict=True) if verdict}
        self._audit.verdicts(
            who, host, operation, kind, asked, allowed, request, is_filter=is_filter
        )
        return allowed

    def allows(
        self,
        operation: AclOperation,
        kind: Kind,
        name: str = CLUSTER_NAME,
        request: str = "",
        *,
        is_filter: bool = False,
    ) -> bool:
        """Whether it is authorized for one resource."""
        return name in self.allowed(operation, kind, (name,), request, is_filter=is_filter)

    def allows_any(self, operation: AclOperation, kind: Kind) -> bool:
        """Whether it is authorized for any resource of a kind."""
        return self.everything or self._authorizer.authorize_any(
            self.principal, self.host, operation, kind
        )

    def operations(self, kind: Kind, name: str = CLUSTER_NAME) -> int:
        """The bits of all authorized operations on a resource (KIP-430)."""
        if self.everything:
            return kind.all_operations
        return mask(
            each for each in kind.operations if self.allows(each, kind, name, is_filter=True)
        )

    @property
    def cache_key(self) -> object:
        """The key for cached responses: equal for all principals that may do everything."""
        return None if self.everything else (self.principal, self.host, self.version)

    def ask(self, question: int, name: bytes) -> bool:
        """Called by the hot paths for verdicts that they do not have yet."""
        operation, kind, request = QUESTIONS[question]
        try:
            return self.allows(operation, kind, name.decode(), request)
        except UnicodeDecodeError:
            return False  # no resource has such a name


class AccessTable:
    """The Access of each principal and address that has a connection in this process."""

    def __init__(self, authorizer: Authorizer) -> None:
        self._authorizer = authorizer
        self._audit = Audit()
        self._kept: WeakValueDictionary[tuple[KafkaPrincipal, str], Access] = WeakValueDictionary()

    def of(self, principal: KafkaPrincipal, host: str) -> Access:
        known = self._kept.get((principal, host))
        if known is None:
            known = Access(principal, host, self._authorizer, self._audit)
            self._kept[principal, host] = known
        return known

    def follow(self, authorizer: Authorizer) -> None:
        """The verdicts have changed, or there is another authorizer."""
        self._authorizer = authorizer
        for access in list(self._kept.values()):
            access.follow(authorizer)
