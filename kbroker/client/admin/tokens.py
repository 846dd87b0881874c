"""Delegation tokens (KIP-48): created, renewed, expired and described. From Kafka 1.1.

Only who has logged in may do that, and not with a token.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from kbroker.client.connections.cluster import Cluster
from kbroker.client.connections.controller_calls import ask_controller, check

USER = "User"


class Principal(NamedTuple):
    """kind: ``User``, in all that Kafka has."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


class Token(NamedTuple):
    """hmac: the secret with which one logs in. requester: who has created it, None before Kafka
    3.3. Times: ms since 1970; ``renewed_until`` moves by renewals, up to ``ends``.
    """

    token_id: str
    hmac: bytes
    owner: Principal
    requester: Principal | None
    renewers: list[Principal]
    issued: int
    renewed_until: int
    ends: int


def create_token(
    cluster: Cluster,
    renewers: Iterable[Principal] = (),
    *,
    life_ms: int = -1,
    owner: Principal | None = None,
) -> Token:
    """A token of this user, or (from Kafka 3.3) of another. life_ms: -1: as long as the cluster
    allows. Raises RejectedError.
    """
    from kbroker.protocol.messages.create_delegation_token import (
        CreateDelegationTokenRequest as Request,
    )

    given = list(renewers)
    request = Request(
        owner_principal_type=None if owner is None else owner.kind,
        owner_principal_name=None if owner is None else owner.name,
        renewers=[
            Request.CreatableRenewers(principal_type=kind, principal_name=name)
            for kind, name in given
        ],
        max_lifetime_ms=life_ms,
    )
    row = _ask(cluster, request, "create a delegation token")
    return Token(
        row.token_id,
        bytes(row.hmac),
        Principal(row.principal_type, row.principal_name),
        _requester(row),
        given,
        row.issue_timestamp_ms,
        row.expiry_timestamp_ms,
        row.max_timestamp_ms,
    )


def _ask(cluster: Cluster, request: Any, what: str) -> Any:
    response = ask_controller(cluster, request, what, lambda found: [found.error_code])
    check(response, what)
    return response


def _requester(row: Any) -> Principal | None:
    name = row.token_requester_principal_name
    return Principal(row.token_requester_principal_type, name) if name else None


def renew_token(cluster: Cluster, hmac: bytes, period_ms: int = -1) -> int:
    """Let it be valid for longer; until when. period_ms: from now on, -1: as the cluster has it.
    Raises RejectedError.
    """
    from kbroker.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest

    request = RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=period_ms)
    until: int = _ask(cluster, request, "renew a delegation token").expiry_timestamp_ms
    return until


def expire_token(cluster: Cluster, hmac: bytes, period_ms: int = -1) -> int:
    """Let it end after this time, -1: now; when that is. Raises RejectedError."""
    from kbroker.protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest

    request = ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=period_ms)
    at: int = _ask(cluster, request, "expire a delegation token").expiry_timestamp_ms
    return at


def describe_tokens(cluster: Cluster, owners: Iterable[Principal] | None = None) -> list[Token]:
    """Those of these owners that this user may see; None: all of them. Raises RejectedError."""
    from kbroker.protocol.messages.describe_delegation_token import (
        DescribeDelegationTokenRequest as Request,
    )

    rows = None
    if owners is not None:
        row_of = Request.DescribeDelegationTokenOwner
        rows = [row_of(principal_type=kind, principal_name=name) for kind, name in owners]
    response = cluster.call(None, Request(owners=rows), what="describe delegation tokens")
    check(response, "describe delegation tokens")
    return [
        Token(
            row.token_id,
            bytes(row.hmac),
            Principal(row.principal_type, row.principal_name),
            _requester(row),
            [Principal(each.principal_type, each.principal_name) for each in row.renewers],
            row.issue_timestamp,
            row.expiry_timestamp,
            row.max_timestamp,
        )
        for row in response.tokens
    ]
