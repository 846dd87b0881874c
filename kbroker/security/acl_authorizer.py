"""The authorizer over ACLs: Kafka's AclAuthorizer, and StandardAuthorizer, which decides alike."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kbroker.security.acl_index import AclIndex
from kbroker.security.operations import AclOperation, Kind
from kbroker.security.principal import KafkaPrincipal, parse

# The classes of Kafka that ask for it.
CLASS_NAMES = (
    "kafka.security.authorizer.AclAuthorizer",
    "kafka.security.auth.SimpleAclAuthorizer",
    "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
)


class AclAuthorizer:
    """index: may change; whoever changes it has ``AccessTable.follow`` called.

    allows_if_none: ``allow.everyone.if.no.acl.found``.
    """

    def __init__(
        self, index: AclIndex, super_users: Collection[KafkaPrincipal], *, allows_if_none: bool
    ) -> None:
        self.index = index
        self._super_users = frozenset(super_users)
        self._allows_if_none = allows_if_none

    def allows_everything(self, principal: KafkaPrincipal, host: str) -> bool:
        return principal in self._super_users

    def authorize(
        self,
        principal: KafkaPrincipal,
        host: str,
        operation: AclOperation,
        kind: Kind,
        names: Sequence[str],
    ) -> list[bool]:
        who, rights_of = str(principal), self.index.rights
        verdicts = []
        for name in names:
            rights = rights_of(kind, name, who, host)
            verdicts.append(rights.allows(operation) if rights.found else self._allows_if_none)
        return verdicts

    def authorize_any(
        self, principal: KafkaPrincipal, host: str, operation: AclOperation, kind: Kind
    ) -> bool:
        who = str(principal)
        if self._allows_if_none and not self.index.covers_all(kind):
            return True  # COMPAT: as StandardAuthorizer; AclAuthorizer does not look at "*"
        return self.index.allows_any(kind, who, host, operation)


def super_users(text: str) -> list[KafkaPrincipal]:
    """The value of ``super.users``. Raises ValueError.

    Unlike in Kafka, ``User:`` is refused: it is more likely a slip than everybody whose certificate
    has no subject.
    """
    principals = [parse(part.strip()) for part in text.split(";") if part.strip()]
    if not all(principal.name for principal in principals):
        raise ValueError("a principal is written as type:name, and this one has no name")
    return principals
