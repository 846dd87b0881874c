"""Authorizers with verdicts chosen by the test."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kbroker.security.operations import AclOperation, Kind
from kbroker.security.principal import KafkaPrincipal

Rule = Callable[[AclOperation, Kind, str], bool]


class Rules:
    """Allows what ``rule(operation, kind, name)`` returns, to everyone but ``super_users``.

    asked: every question, in order.
    """

    def __init__(self, rule: Rule, super_users: Sequence[KafkaPrincipal] = ()) -> None:
        self._rule = rule
        self._super_users = super_users
        self.asked: list[tuple[KafkaPrincipal, str, AclOperation, Kind, str]] = []

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
        self.asked += [(principal, host, operation, kind, name) for name in names]
        return [self._rule(operation, kind, name) for name in names]

    def authorize_any(
        self, principal: KafkaPrincipal, host: str, operation: AclOperation, kind: Kind
    ) -> bool:
        return self._rule(operation, kind, "any")


def deny_all() -> Rules:
    return Rules(lambda operation, kind, name: False)


def deny_kind(*denied: Kind) -> Rules:
    """Denies everything on resources of these types, allows the rest."""
    return Rules(lambda operation, kind, name: kind not in denied)


def deny_names(*denied: str) -> Rules:
    """Denies everything on resources with these names, allows the rest."""
    return Rules(lambda operation, kind, name: name not in denied)
