"""Delegation tokens (KIP-48, KIP-373): what they are, and who may do what with one.

A token's secret is the HMAC of its id with the brokers' key, so that it is stored nowhere; its text
in Base64 is the password of a login by SCRAM. Times are in ms since 1970.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from typing import NamedTuple

from kbroker.errors import ErrorCode, WireError
from kbroker.security.digests import hmac_digest
from kbroker.security.principal import KafkaPrincipal
from kbroker.security.sasl.scram import ITERATIONS_MIN, ScramCredential, fake_salt, from_password
from kbroker.uuids import new_uuid, uuid_text

USER = "User"  # the only type of principals that log in
LONG_MAX = 2**63 - 1


class DelegationToken(NamedTuple):
    """renewers: who may renew, end and see it beside its owner. expires_ms: the end, unless it is
    renewed, which is possible up to ``max_ms``.
    """

    token_id: str
    owner: KafkaPrincipal
    requester: KafkaPrincipal
    renewers: tuple[KafkaPrincipal, ...]
    issued_ms: int
    expires_ms: int
    max_ms: int

    def has_ended(self, now_ms: int) -> bool:
        return min(self.expires_ms, self.max_ms) < now_ms

    @property
    def principals(self) -> tuple[KafkaPrincipal, ...]:
        """Those who may see it without further authorization."""
        return self.owner, self.requester, *self.renewers

    def changeable_by(self, principal: KafkaPrincipal) -> bool:
        return principal in (self.owner, *self.renewers)

    def until(self, expires_ms: int) -> DelegationToken:
        """The token with another end, which is never later than the latest one."""
        return self._replace(expires_ms=min(expires_ms, self.max_ms))


class Lifetimes(NamedTuple):
    """Of the brokers' configs: how long a token can live, and until it must be renewed."""

    max_ms: int
    renewal_ms: int


def new_token(
    owner: KafkaPrincipal,
    requester: KafkaPrincipal,
    renewers: Sequence[KafkaPrincipal],
    asked_ms: int,
    lifetimes: Lifetimes,
    now_ms: int,
) -> DelegationToken:
    """asked_ms: the longest life that its client wants; 0 or less: as long as possible."""
    longest = min(asked_ms, lifetimes.max_ms) if asked_ms > 0 else lifetimes.max_ms
    max_ms = min(now_ms + longest, LONG_MAX)
    made = DelegationToken(new_id(), owner, requester, tuple(renewers), now_ms, max_ms, max_ms)
    return made.until(now_ms + lifetimes.renewal_ms)


def renewed(
    token: DelegationToken,
    principal: KafkaPrincipal,
    period_ms: int,
    lifetimes: Lifetimes,
    now_ms: int,
) -> DelegationToken:
    """period_ms: from now on; negative: the brokers' default. Raises WireError."""
    _check(token, principal)
    if token.has_ended(now_ms):
        raise WireError(ErrorCode.DELEGATION_TOKEN_EXPIRED)
    return token.until(now_ms + (lifetimes.renewal_ms if period_ms < 0 else period_ms))


def shortened(
    token: DelegationToken, principal: KafkaPrincipal, period_ms: int, now_ms: int
) -> DelegationToken | None:
    """The token that ends in ``period_ms``; None, if negative: it ends now. Raises WireError."""
    _check(token, principal)
    if period_ms < 0:
        return None
    if token.has_ended(now_ms):
        raise WireError(ErrorCode.DELEGATION_TOKEN_EXPIRED)
    return token.until(now_ms + period_ms)


def _check(token: DelegationToken, principal: KafkaPrincipal) -> None:
    if not token.changeable_by(principal):
        raise WireError(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)


def new_id() -> str:
    """22 letters, digits, ``_`` and ``-``, as in Kafka."""
    return uuid_text(new_uuid())


class Secrets:
    """What follows from the key that all brokers of a cluster share."""

    def __init__(self, key: str) -> None:
        self._key = key.encode()

    def __repr__(self) -> str:
        return "Secrets(hidden)"

    def hmac_of(self, token_id: str) -> bytes:
        """The secret of a token."""
        return hmac_digest(self._key, token_id.encode(), "sha512")

    def credential(self, token_id: str, mechanism: str) -> ScramCredential:
        """For a login by SCRAM; the same in every broker. Takes milliseconds."""
        secret = self.hmac_of(token_id)
        salt = fake_salt(secret, mechanism, token_id)
        return from_password(mechanism, b64encode(secret).decode(), ITERATIONS_MIN, salt)
