"""GSSAPI of kbroker.client: its settings, and the tokens of its conversation."""

from __future__ import annotations

import pytest

from kbroker.client.connections.kerberos import KerberosInitiator, kerberos_settings
from kbroker.client.connections.security import Security
from kbroker.client.errors import SettingRefused
from kbroker.security.sasl.kerberos import Kerberos as Server
from kbroker.security.sasl.kerberos_library import KerberosError
from kbroker.security.sasl.kerberos_names import PrincipalRules
from kbroker.wire.sasl import ExchangeFailed, NothingToShow

pytestmark = pytest.mark.unit

MODULE = "com.sun.security.auth.module.Krb5LoginModule required"


class Ours:
    """A context that is none. answers: tokens of the broker that it takes, in their order."""

    def __init__(self, *answers: bytes) -> None:
        self._answers = [None, *(answers or (b"AP-REP",))]

    @property
    def complete(self) -> bool:
        return not self._answers

    def step(self, token: bytes | None) -> bytes:
        if token != self._answers.pop(0):
            raise KerberosError("Token header is malformed or corrupt")
        return b"AP-REQ" if token is None else b""

    def wrap(self, data: bytes) -> bytes:
        return b"wrapped:" + data

    def unwrap(self, token: bytes) -> bytes:
        if not token.startswith(b"wrapped:"):
            raise KerberosError("A token had an invalid signature")
        return token.removeprefix(b"wrapped:")


class Theirs(Ours):
    """The broker's end of it."""

    complete = False  # type: ignore[assignment]
    client = "alice@R"

    def step(self, token: bytes | None) -> bytes:
        assert token == b"AP-REQ"
        self.complete = True  # type: ignore[misc]
        return b"AP-REP"


def test_client_and_broker_understand_each_other() -> None:
    client = KerberosInitiator(Ours)
    server = Server(Theirs(), PrincipalRules("R", ["DEFAULT"]).user)
    token = client.evaluate(None)
    step = server.resume(server.evaluate(token).run())
    for _ in range(2):
        token = client.evaluate(step.token)
        step = server.evaluate(token)
    assert step.user == "alice"
    assert client.evaluate(b"") is None
    assert client.done


@pytest.mark.parametrize(
    "answers", [[b"nonsense"], [b"AP-REP", b"offer"], [b"AP-REP", b"wrapped:\x02\0\0\0"],
                [b"AP-REP", b"wrapped:\x01"], [b""]],
)  # fmt: skip
def test_answer_that_is_none_ends_the_exchange(answers: list[bytes]) -> None:
    client = KerberosInitiator(Ours)
    client.evaluate(None)
    with pytest.raises(ExchangeFailed):
        for answer in answers:
            client.evaluate(answer)


def test_client_without_a_ticket_has_nothing_to_show() -> None:
    class Nothing(Ours):
        def step(self, token: bytes | None) -> bytes:
            raise KerberosError("No Kerberos credentials available")

    with pytest.raises(NothingToShow, match="No Kerberos credentials"):
        KerberosInitiator(Nothing).evaluate(None)


@pytest.mark.parametrize(
    ("settings", "jaas", "found"),
    [
        ({}, None, ("kafka", "", "")),
        ({"sasl.kerberos.service.name": "k"}, None, ("k", "", "")),
        ({}, {"useTicketCache": "true", "serviceName": "k"}, ("k", "", "")),
        ({}, {"useKeyTab": "true", "keyTab": "/k", "principal": "a@R"}, ("kafka", "a@R", "/k")),
        ({}, {"useKeyTab": "true", "keyTab": "FILE:/k", "principal": "a"}, ("kafka", "a", "/k")),
        (
            {"sasl.kerberos.keytab": "/k", "sasl.kerberos.principal": "a@R"},
            None,
            ("kafka", "a@R", "/k"),
        ),
    ],
)
def test_settings_are_those_of_java_and_librdkafka(
    settings: dict[str, str], jaas: dict[str, str] | None, found: tuple[str, str, str]
) -> None:
    assert kerberos_settings(settings, jaas) == found


@pytest.mark.parametrize(
    ("settings", "jaas", "name"),
    [
        ({"sasl.kerberos.keytab": "/k"}, None, "sasl.kerberos.principal"),
        ({}, {"useKeyTab": "true", "keyTab": "/k"}, "sasl.jaas.config"),
        ({}, {"useKeyTab": "true", "principal": "a"}, "sasl.jaas.config"),
        (
            {"sasl.kerberos.service.name": "a"},
            {"serviceName": "b"},
            "sasl.kerberos.service.name",
        ),
    ],
)
def test_settings_that_do_not_suffice_are_refused(
    settings: dict[str, str], jaas: dict[str, str] | None, name: str
) -> None:
    with pytest.raises(SettingRefused, match=name):
        kerberos_settings(settings, jaas)


def test_mechanism_is_taken_with_a_login_module() -> None:
    options = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "GSSAPI",
        "sasl.jaas.config": f'{MODULE} useKeyTab=true keyTab="/k" principal="a@R";',
    }
    security = Security.from_options(options)
    assert (security.mechanism, security.username) == ("GSSAPI", "a@R")
    wrong = options | {"sasl.jaas.config": 'x.PlainLoginModule required username="a";'}
    with pytest.raises(SettingRefused, match="Krb5LoginModule"):
        Security.from_options(wrong)
