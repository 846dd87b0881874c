"""PLAIN, with the texts that Kafka's clients show to their users."""

from __future__ import annotations

import pytest

from kbroker.security.sasl.exchange import Authenticated, NotAuthenticated, Work
from kbroker.security.sasl.plain import INVALID, OTHER_ID, PlainSaslServer, users_of

pytestmark = pytest.mark.unit

USERS = {"alice": "secret", "bob": "other", "ünï": "pässword"}


def told(token: bytes) -> str:
    with pytest.raises(NotAuthenticated) as caught:
        PlainSaslServer(USERS).evaluate(token)
    return caught.value.told


@pytest.mark.parametrize(
    "token", [b"\0alice\0secret", b"alice\0alice\0secret", "\0ünï\0pässword".encode()]
)
def test_right_password_lets_its_user_in(token):
    assert PlainSaslServer(USERS).evaluate(token) == Authenticated(
        b"", token.decode().split("\0")[1]
    )


@pytest.mark.parametrize(
    "token",
    [b"\0alice\0wrong", b"\0nobody\0secret", b"\0alice\0other", b"\0ALICE\0secret",
     b"\0alice\0secret ", b"\0alice \0secret", b"\xff\0alice\0secret",
     b"\0nobody\0no user has this password, whatever it is", b"bob\0alice\0wrong"],
)  # fmt: skip
def test_anything_else_is_the_same_failure(token):
    assert told(token) == INVALID


def test_authorization_id_of_another_user_fails():
    """CVE-2017-12610; only a client that knows the password learns why."""
    assert told(b"bob\0alice\0secret") == OTHER_ID


@pytest.mark.parametrize(
    ("token", "text"),
    [
        (b"", "expected 3 tokens, got 1"),
        (b"alice\0secret", "expected 3 tokens, got 2"),
        (b"a\0b\0c\0d", "expected 3 tokens, got 4"),
        (b"\0" * 1000, "expected 3 tokens, got 4"),
        (b"\0\0secret", "username not specified"),
        (b"\0alice\0", "password not specified"),
    ],
)
def test_malformed_token_fails_with_kafkas_text(token, text):
    assert text in told(token)


def test_check_by_a_callback_is_work_and_only_true_lets_in():
    for answer in (True, False, None, "yes", 1):
        exchange = PlainSaslServer({}, lambda user, password, answer=answer: answer)
        step = exchange.evaluate(b"\0u\0p")
        assert isinstance(step, Work)
        if answer is True:
            assert exchange.resume(step.run()) == Authenticated(b"", "u")
        else:
            with pytest.raises(NotAuthenticated):
                exchange.resume(step.run())


def test_callback_is_not_asked_for_another_authorization_id():
    with pytest.raises(NotAuthenticated):
        PlainSaslServer({}, lambda user, password: True).evaluate(b"admin\0u\0p")


def test_users_are_those_of_the_login_module():
    assert users_of({"username": "x", "password": "y", "user_alice": "s", "user_": "z"}) == {
        "alice": "s",
        "": "z",
    }
