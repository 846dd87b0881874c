"""The interface of an authorizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kbroker.security.operations import AclOperation, Kind
from kbroker.security.principal import KafkaPrincipal


class Authorizer(Protocol):
    """Decides for one process; its verdicts are cached (``access``) until it says they changed.

    Called in the middle of a turn: it answers from memory, and does not raise.
    """

    def allows_everything(self, principal: KafkaPrincipal, host: str) -> bool:
        """Whether the principal may do everything; then nothing else is checked."""
        ...

    def authorize(
        self,
        principal: KafkaPrincipal,
        host: str,
        operation: AclOperation,
        kind: Kind,
        names: Sequence[str],
    ) -> list[bool]:
        """Whether the principal, from this address, is authorized for each of the resources."""
        ...

    def authorize_any(
        self, principal: KafkaPrincipal, host: str, operation: AclOperation, kind: Kind
    ) -> bool:
        """Whether it is authorized for any resource of the kind, even one that does not exist
        yet.
        """
        ...


class AllowAll:
    """Used if no authorizer is configured."""

    def allows_everything(self, principal: KafkaPrincipal, host: str) -> bool:
        return True

    def authorize(
        self,
        principal: KafkaPrincipal,
        host: str,
        operation: AclOperation,
        kind: Kind,
        names: Sequence[str],
    ) -> list[bool]:
        return [True] * len(names)

    def authorize_any(
        self, principal: KafkaPrincipal, host: str, operation: AclOperation, kind: Kind
    ) -> bool:
        return True
