"""Lifetimes and secrets of delegation tokens, and who may change them."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64encode

import pytest

from kbroker.errors import ErrorCode, WireError
from kbroker.security import delegation
from kbroker.security.delegation import DelegationToken, Lifetimes, Secrets
from kbroker.security.principal import KafkaPrincipal
from kbroker.security.sasl.scram import from_password

pytestmark = pytest.mark.unit

ALICE, BOB, CAROL = (KafkaPrincipal("User", name) for name in ("alice", "bob", "carol"))
NOW, LONG_MAX = 1_000_000, 2**63 - 1
LIFETIMES = Lifetimes(max_ms=7_000, renewal_ms=1_000)


def token(
    asked_ms: int = -1, now_ms: int = NOW, lifetimes: Lifetimes = LIFETIMES
) -> DelegationToken:
    return delegation.new_token(ALICE, CAROL, [BOB], asked_ms, lifetimes, now_ms)


def code(error: pytest.ExceptionInfo[WireError]) -> ErrorCode:
    return error.value.code


@pytest.mark.parametrize(
    ("asked_ms", "max_ms", "expires_ms"),
    [
        (-1, 7_000, 1_000),
        (0, 7_000, 1_000),
        (500, 500, 500),
        (2_000, 2_000, 1_000),
        (LONG_MAX, 7_000, 1_000),
    ],
)
def test_new_token_lives_as_long_as_asked_and_configured(
    asked_ms: int, max_ms: int, expires_ms: int
) -> None:
    made = token(asked_ms)

    assert (made.issued_ms, made.max_ms - NOW, made.expires_ms - NOW) == (NOW, max_ms, expires_ms)
    assert (made.owner, made.requester, made.renewers) == (ALICE, CAROL, (BOB,))


def test_token_that_could_live_for_ever_fits_into_the_response() -> None:
    made = token(LONG_MAX, lifetimes=Lifetimes(LONG_MAX, LONG_MAX))

    assert (made.max_ms, made.expires_ms) == (LONG_MAX, LONG_MAX)


def test_ids_differ_and_are_no_options_of_a_command() -> None:
    ids = {delegation.new_id() for _ in range(2_000)}

    assert len(ids) == 2_000
    assert {len(one) for one in ids} == {22}
    assert not any(one.startswith("-") for one in ids)


def test_token_is_renewed_from_now_on_but_never_beyond_its_latest_end() -> None:
    made = token()

    def end(period_ms: int) -> int:
        return delegation.renewed(made, BOB, period_ms, LIFETIMES, NOW + 900).expires_ms - NOW

    assert (end(-1), end(3_000), end(LONG_MAX), end(0)) == (1_900, 3_900, 7_000, 900)


def test_token_ends_earlier_or_at_once() -> None:
    made = token()

    later = delegation.shortened(made, ALICE, 50, NOW)
    assert later is not None and later.expires_ms == NOW + 50
    assert delegation.shortened(made, ALICE, -1, NOW) is None


@pytest.mark.parametrize(
    "principal", [CAROL, KafkaPrincipal("Group", "alice"), KafkaPrincipal("User", "x")]
)
def test_token_is_changed_by_its_owner_and_renewers_only(principal: KafkaPrincipal) -> None:
    """Not even by the one who requested it for its owner."""
    made = token()

    with pytest.raises(WireError) as renewing:
        delegation.renewed(made, principal, -1, LIFETIMES, NOW)
    with pytest.raises(WireError) as ending:
        delegation.shortened(made, principal, -1, NOW)

    mismatch = ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    assert (code(renewing), code(ending)) == (mismatch, mismatch)


def test_token_that_has_ended_is_not_brought_back() -> None:
    made = token()
    assert not made.has_ended(NOW + 1_000)
    assert made.has_ended(NOW + 1_001)

    with pytest.raises(WireError) as renewing:
        delegation.renewed(made, ALICE, -1, LIFETIMES, NOW + 1_001)
    with pytest.raises(WireError) as ending:
        delegation.shortened(made, ALICE, 500, NOW + 1_001)

    expired = ErrorCode.DELEGATION_TOKEN_EXPIRED
    assert (code(renewing), code(ending)) == (expired, expired)
    assert delegation.shortened(made, ALICE, -1, NOW + 1_001) is None, "it can be removed"


def test_secret_is_the_hmac_of_the_id_as_in_kafka() -> None:
    found = Secrets("the key").hmac_of("an id")

    assert found == hmac.new(b"the key", b"an id", hashlib.sha512).digest()
    assert Secrets("another").hmac_of("an id") != found
    assert "the key" not in repr(Secrets("the key"))


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_credential_is_for_the_secret_as_text_and_the_same_in_every_broker(mechanism: str) -> None:
    secrets = Secrets("the key")
    password = b64encode(secrets.hmac_of("an id")).decode()

    found = secrets.credential("an id", mechanism)

    assert found == from_password(mechanism, password, 4096, found.salt)
    assert found == Secrets("the key").credential("an id", mechanism)
    assert found.salt != secrets.credential("another id", mechanism).salt
