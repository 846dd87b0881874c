"""What decides who may do what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kbroker.security.operations import AclOperation, Kind
from kbroker.security.principal import Principal


class Authorizer(Protocol):
    """Decides for one process; its verdicts are kept (``access``) until it says they changed.

    Called in the middle of a turn: it answers from memory, and does not raise.
    """

    def allows_everything(self, principal: Principal, host: str) -> bool:
        """Whether it may do everything; no further checks are made then."""
        ...

    def authorize(
        self,
        principal: Principal,
        host: str,
        operation: AclOperation,
        kind: Kind,
        names: Sequence[str],
    ) -> list[bool]:
        """Whether the principal, from this address, may do this to each of the resources."""
        ...

    def authorize_any(
        self, principal: Principal, host: str, operation: AclOperation, kind: Kind
    ) -> bool:
        """Whether it may do this to any resource of the kind, also to one that is not there yet."""
        ...


class AllowAll:
    """Where no authorizer is configured."""

    def allows_everything(self, principal: Principal, host: str) -> bool:
        return True

    def authorize(
        self,
        principal: Principal,
        host: str,
        operation: AclOperation,
        kind: Kind,
        names: Sequence[str],
    ) -> list[bool]:
        return [True] * len(names)

    def authorize_any(
        self, principal: Principal, host: str, operation: AclOperation, kind: Kind
    ) -> bool:
        return True
