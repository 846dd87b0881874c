"""GSSAPI: the tokens of the exchange, with a context of Kerberos that is none."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.security.sasl.exchange import (
    Authenticated,
    Challenge,
    NotAuthenticated,
    Unavailable,
    Work,
)
from kbroker.security.sasl.kerberos import Kerberos
from kbroker.security.sasl.kerberos_names import PrincipalRules

pytestmark = pytest.mark.unit

RULES = PrincipalRules("R", ["DEFAULT"])
OFFER = b"wrapped:\x01\0\0\0"


class Context:
    """Is complete after so many tokens, with these answers."""

    def __init__(self, *answers: bytes, client: str = "alice@R") -> None:
        self.answers = list(answers) or [b"AP-REP"]
        self.client = client
        self.complete = False
        self.failure: NotAuthenticated | Unavailable | None = None

    def step(self, token: bytes) -> bytes:
        if token != b"AP-REQ":
            raise NotAuthenticated("a token that is none", reason="Cannot find key")
        answer = self.answers.pop(0)
        self.complete = not self.answers
        return answer

    def wrap(self, data: bytes) -> bytes:
        return b"wrapped:" + data

    def unwrap(self, token: bytes) -> bytes:
        if not token.startswith(b"wrapped:"):
            raise NotAuthenticated("a signature that is wrong")
        return token.removeprefix(b"wrapped:")


def step(exchange: Kerberos, token: bytes) -> Any:
    found = exchange.evaluate(token)
    return exchange.resume(found.run()) if isinstance(found, Work) else found


def established(context: Context | None = None) -> Kerberos:
    exchange = Kerberos(context or Context(), RULES.user)
    assert step(exchange, b"AP-REQ") == Challenge(b"AP-REP")
    assert step(exchange, b"") == Challenge(OFFER)
    return exchange


@pytest.mark.parametrize(
    "answer",
    [
        b"\x01\0\0\0",
        b"\x01\0\0\0alice@R",
        b"\x01\xff\xff\xffkafka@host",  # kafka-python's
        b"\x01\0\0\0root@R",
        b"\x07\0\0\0",
    ],
)
def test_client_of_the_ticket_logs_in_whatever_id_it_asks_for(answer: bytes) -> None:
    """Kafka ignores the authorization id, too: it makes nobody another (CVE-2017-12610)."""
    exchange = established()
    assert step(exchange, b"wrapped:" + answer) == Authenticated(None, "alice")


def test_broker_without_an_answer_offers_at_once() -> None:
    exchange = Kerberos(Context(b""), RULES.user)
    assert step(exchange, b"AP-REQ") == Challenge(OFFER)
    assert step(exchange, b"wrapped:\x01\0\0\0") == Authenticated(None, "alice")


def test_context_may_take_more_tokens() -> None:
    exchange = Kerberos(Context(b"more", b"AP-REP"), RULES.user)
    assert step(exchange, b"AP-REQ") == Challenge(b"more")
    assert step(exchange, b"AP-REQ") == Challenge(b"AP-REP")
    assert step(exchange, b"") == Challenge(OFFER)


@pytest.mark.parametrize(
    "answer", [b"", b"\x01", b"\x01\0\0", b"\x02\0\0\0", b"\x04\0\xff\xff", b"\0\0\0\0"]
)
def test_client_that_wants_a_security_layer_fails(answer: bytes) -> None:
    with pytest.raises(NotAuthenticated, match="security layer"):
        step(established(), b"wrapped:" + answer)


@pytest.mark.parametrize("token", [b"", b"\x01\0\0\0", b"wrappe", b"\x60" * 1000])
def test_choice_that_is_not_signed_fails(token: bytes) -> None:
    with pytest.raises(NotAuthenticated):
        step(established(), token)


@pytest.mark.parametrize("token", [b"", b"AP-REP", b"\0" * 100_000, b"wrapped:\x01\0\0\0"])
def test_token_that_is_no_ticket_fails_with_the_librarys_reason(token: bytes) -> None:
    with pytest.raises(NotAuthenticated) as caught:
        step(Kerberos(Context(), RULES.user), token)
    assert (caught.value.told, caught.value.reason) == ("", "Cannot find key")


def test_data_in_place_of_nothing_fails() -> None:
    exchange = Kerberos(Context(), RULES.user)
    step(exchange, b"AP-REQ")
    with pytest.raises(NotAuthenticated):
        step(exchange, b"wrapped:\x01\0\0\0")


def test_token_after_the_last_one_fails() -> None:
    exchange = established()
    step(exchange, b"wrapped:\x01\0\0\0")
    with pytest.raises(NotAuthenticated):
        step(exchange, b"wrapped:\x01\0\0\0")


def test_principal_without_a_rule_fails_with_the_reason() -> None:
    exchange = established(Context(client="alice@ELSEWHERE"))
    with pytest.raises(NotAuthenticated) as caught:
        step(exchange, b"wrapped:\x01\0\0\0")
    assert caught.value.user == "alice@ELSEWHERE"
    assert "no rule of sasl.kerberos.principal.to.local.rules applies" in caught.value.reason
    assert caught.value.told == ""


def test_ticket_that_is_not_valid_yet_is_no_failure() -> None:
    """The connection is closed without a word, so that the client tries again, as in Kafka."""

    class Early(Context):
        def step(self, token: bytes) -> bytes:
            raise Unavailable("Ticket not yet valid")

    with pytest.raises(Unavailable):
        step(Kerberos(Early(), RULES.user), b"AP-REQ")
