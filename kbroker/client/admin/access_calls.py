"""Who may do what, and how much: ACLs, users, delegation tokens, quotas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kbroker.client.admin import acls as acl_admin
from kbroker.client.admin import quotas as quota_admin
from kbroker.client.admin import tokens as token_admin
from kbroker.client.admin import users as user_admin
from kbroker.client.admin.acls import Acl
from kbroker.client.admin.calls import AdminCalls
from kbroker.client.admin.quotas import Entity
from kbroker.client.admin.tokens import Principal, Token
from kbroker.client.admin.users import Credential


class AccessCalls(AdminCalls):
    """Each of them raises RejectedError."""

    # -- ACLs (KIP-140; prefixes KIP-290)

    def describe_acls(self, acl_filter: Acl | None = None) -> list[Acl]:
        """Those that match, sorted; None: all. In a filter, ANY and None match everything."""
        return self._do(acl_admin.list_acls, acl_filter or Acl())

    def create_acls(self, acls: Iterable[Acl]) -> None:
        """Raises the error of the first that is rejected; others may have been created."""
        self._do(acl_admin.create_acls, acls)

    def delete_acls(self, filters: Iterable[Acl]) -> list[Acl]:
        """Delete those that match any of these; returns them."""
        return self._do(acl_admin.delete_acls, filters)

    # -- SCRAM users (KIP-554, from Kafka 2.7)

    def describe_user_scram_credentials(
        self, users: Iterable[str] | None = None
    ) -> list[Credential]:
        """The mechanisms and iterations of users, sorted; None: of all. RESOURCE_NOT_FOUND for a
        user that has none.
        """
        return self._do(user_admin.list_credentials, users)

    def set_password(
        self,
        user: str,
        password: str,
        mechanisms: Sequence[str] = ("SCRAM-SHA-512",),
        iterations: int = user_admin.ITERATIONS,
    ) -> None:
        """Let a user log in with a password, by these mechanisms (SCRAM-SHA-256 or -512). The
        password does not leave this process. iterations: 4096 to 16384.
        """
        self._do(user_admin.set_password, user, password, mechanisms, iterations)

    def delete_user_scram_credentials(self, credentials: Iterable[Credential]) -> None:
        """Let users not log in any more by these mechanisms; ``iterations`` does not matter."""
        self._do(user_admin.delete_credentials, credentials)

    # -- delegation tokens (KIP-48), for who has logged in, and not with a token

    def create_delegation_token(
        self,
        renewers: Iterable[Principal] = (),
        *,
        life_ms: int = -1,
        owner: Principal | None = None,
    ) -> Token:
        """A token of this user, or of another (KIP-373, from Kafka 3.3). life_ms: -1: as long as
        the cluster allows.
        """
        return self._do(token_admin.create_token, renewers, life_ms=life_ms, owner=owner)

    def renew_delegation_token(self, hmac: bytes, period_ms: int = -1) -> int:
        """Let it be valid for so long from now on, -1: as the cluster has it; until when, in ms
        since 1970.
        """
        return self._do(token_admin.renew_token, hmac, period_ms)

    def expire_delegation_token(self, hmac: bytes, period_ms: int = -1) -> int:
        """Let it end after this time, -1: now; when that is, in ms since 1970."""
        return self._do(token_admin.expire_token, hmac, period_ms)

    def describe_delegation_tokens(self, owners: Iterable[Principal] | None = None) -> list[Token]:
        """Those of these owners that this user may see; None: all of them."""
        return self._do(token_admin.describe_tokens, owners)

    # -- quotas (KIP-546, from Kafka 2.6)

    def describe_client_quotas(
        self, wanted: Sequence[tuple[str, str]]
    ) -> dict[Entity, dict[str, float]]:
        """The quotas of entities that have exactly these types.

        wanted: (type, name) with the types ``user``, ``client-id`` and ``ip``; the name
        ``quotas.DEFAULT`` is the default of the type, EVERY all of its names and the default.
        Rates are bytes, connections or mutations a second, ``request_percentage`` is per thread.
        """
        return self._do(quota_admin.describe_quotas, wanted)

    def alter_client_quotas(self, entity: Entity, changes: Mapping[str, float | None]) -> None:
        """Set or remove (None) quotas of an entity, such as ``(("user", "alice"),)``."""
        self._do(quota_admin.alter_quotas, entity, changes)
