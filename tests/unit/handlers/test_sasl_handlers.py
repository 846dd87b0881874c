"""Authentication by SASL as the requests of a client see it."""

from __future__ import annotations

import logging
import time
from types import SimpleNamespace
from typing import Any

import pytest
from support.network.network_process import NetworkProcess, decode

from kbroker._ext.network.connection import (
    AUTHENTICATING,
    FAILED,
    HANDSHAKE,
    SERVING,
    SESSION,
    TOKENS,
)
from kbroker.config.loader import BrokerConfig, load_properties
from kbroker.errors import ConfigError, ErrorCode, WireError
from kbroker.handlers import sasl
from kbroker.handlers.sasl import ConnectionLogin
from kbroker.handlers.support.sasl_listener import sasl_listener
from kbroker.ipc.pending import Pending
from kbroker.logcontext import RateLimit
from kbroker.metrics.catalog import (
    AUTHENTICATIONS,
    FAILED_AUTHENTICATIONS,
    FAILED_REAUTHENTICATIONS,
    REAUTHENTICATIONS,
)
from kbroker.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from kbroker.protocol.messages.sasl_handshake import SaslHandshakeRequest
from kbroker.security.access import AccessTable
from kbroker.security.principal import KafkaPrincipal
from kbroker.security.sasl.scram import from_password
from kbroker.wire.sasl import Scram

pytestmark = pytest.mark.unit

JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required {};"
OWN = "listener.name.plaintext."
SETTINGS = {
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    f"{OWN}plain.sasl.jaas.config": JAAS.format('user_alice="secret" user_bob="other"'),
}
DELAYS = [100, sasl.GRACE_MS]
ALICE = b"\0alice\0secret"


class Client:
    """A connection to a listener with SASL. slept: the delays of failures, which end at once."""

    def __init__(self, **settings: str) -> None:
        self.process = process = NetworkProcess()
        self.config = BrokerConfig(
            SETTINGS | {k.replace("__", "."): v for k, v in settings.items()}
        )
        process.sasl_listeners = {0: sasl_listener(self.config, "PLAINTEXT")}
        process.failed_logins = RateLimit()
        self.slept: list[int] = []
        self.ended: list[Any] = []
        process.rpc.sleep = self._sleep
        process.loop.end = self.ended.append
        process.beside = SimpleNamespace(run=self._run)
        self.connection = connection = process.connection
        connection.phase, connection.login = HANDSHAKE, ConnectionLogin()
        connection.close_reason, connection.session_end_ms = None, 0
        connection.authenticate_again = lambda phase: setattr(connection, "phase", phase)
        connection.identify = lambda access: setattr(connection, "access", access)

    def _sleep(self, delay_ms: int) -> Pending[None]:
        self.slept.append(delay_ms)
        done: Pending[None] = Pending()
        done.resolve()
        return done

    def _run(self, work: Any) -> Pending[Any]:
        done: Pending[Any] = Pending()
        try:
            done.resolve(work())
        except Exception as error:
            done.resolve(error=error)
        return done

    def handshake(self, mechanism: str = "PLAIN", version: int = 1) -> Any:
        return self.process.ask(SaslHandshakeRequest(mechanism=mechanism), version)

    def authenticate(self, token: bytes, version: int = 2) -> Any:
        return self.process.ask(SaslAuthenticateRequest(auth_bytes=token), version)

    def log_in(self, token: bytes = ALICE) -> Any:
        assert self.handshake().error_code == 0
        return self.authenticate(token)

    @property
    def principal(self) -> str:
        return str(self.connection.access.principal)


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.mark.parametrize("version", [0, 1, 2])
def test_client_with_the_right_password_is_its_user(client, version):
    response = client.handshake()
    assert (response.error_code, response.mechanisms) == (
        0, ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"],
    )  # fmt: skip
    assert client.connection.phase == AUTHENTICATING

    response = client.authenticate(ALICE, version)

    assert (response.error_code, response.error_message, response.auth_bytes) == (0, None, b"")
    assert (client.principal, client.connection.phase) == ("User:alice", SERVING)
    assert (client.slept, client.ended) == ([], [])


def test_token_without_a_header_follows_handshake_0(client):
    assert client.handshake(version=0).error_code == 0
    assert client.connection.phase == TOKENS

    assert client.process.send_bytes(ALICE).value == b""
    assert (client.principal, client.connection.phase) == ("User:alice", SERVING)


def test_wrong_token_without_a_header_gets_no_response(client):
    client.handshake(version=0)

    assert client.process.send_bytes(b"\0alice\0wrong").value is None
    assert (client.principal, client.slept) == ("User:ANONYMOUS", DELAYS)
    assert client.connection.phase == FAILED


def test_wrong_password_is_answered_after_the_delay_and_ends_the_connection(client, caplog):
    with caplog.at_level(logging.WARNING):
        response = client.log_in(b"\0alice\0sesame")

    assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert response.error_message == "Authentication failed: Invalid username or password"
    assert (client.slept, client.ended) == (DELAYS, [client.connection])
    assert client.principal == "User:ANONYMOUS"
    (record,) = caplog.records
    assert "198.51.100.4" in record.getMessage()
    assert "'alice'" in record.getMessage()
    assert "sesame" not in caplog.text


def test_failures_from_one_address_are_one_line(client, caplog):
    for _ in range(100):
        client.connection.phase = HANDSHAKE
        client.log_in(b"\0alice\0wrong")

    assert len(caplog.records) == 1


def test_unknown_mechanism_is_told_which_there_are(client):
    for mechanism in ("GSSAPI", "plain", "", "x" * 1000):
        response = client.handshake(mechanism)
        assert response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert response.mechanisms == ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
        assert client.ended.pop() is client.connection
        assert client.connection.phase == FAILED
        client.connection.phase = HANDSHAKE


def test_requests_of_sasl_out_of_place_are_an_illegal_state(client):
    client.log_in()

    assert client.handshake().error_code == ErrorCode.ILLEGAL_SASL_STATE
    response = client.authenticate(ALICE)
    assert response.error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert response.error_message == sasl.ALREADY
    assert client.principal == "User:alice"


# -- SCRAM


def stored(users: dict[str, Any]) -> Any:
    """What serves lookups of credentials."""

    def find(to: Any, name: str, mechanism: str, is_token: bool = False) -> Any:
        found = users.get(name)
        if isinstance(found, WireError):
            raise found
        answer = {"name": name, "mechanism": mechanism, "salt": "", "stored_key": "",
                  "server_key": ""}  # fmt: skip
        if found is not None:
            credential = from_password(mechanism, found, 4096)
            answer |= {"user": name, **{k: v.hex() if isinstance(v, bytes) else v
                                        for k, v in credential._asdict().items()}}  # fmt: skip
        return answer

    return find


def scram(
    client: Client,
    user: str,
    password: str,
    mechanism: str = "SCRAM-SHA-256",
    *,
    is_token: bool = False,
) -> Any:
    digest = "sha256" if mechanism.endswith("256") else "sha512"
    ours = Scram(user, password, digest, is_token=is_token)
    client.handshake(mechanism)
    response = client.authenticate(ours.evaluate(None))
    if response is None or response.error_code:
        return response
    response = client.authenticate(ours.evaluate(bytes(response.auth_bytes)))
    if not response.error_code:
        ours.evaluate(bytes(response.auth_bytes))
        assert ours.done
    return response


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_scram_user_logs_in_with_its_stored_credential(client, mechanism):
    client.process.set_response("find_credential", stored({"carol": "pw"}))

    assert scram(client, "carol", "pw", mechanism).error_code == 0
    assert client.principal == "User:carol"


@pytest.mark.parametrize(("user", "password"), [("carol", "wrong"), ("nobody", "pw")])
def test_scram_failure_has_kafkas_text_whatever_was_wrong(client, user, password):
    client.process.set_response("find_credential", stored({"carol": "pw"}))

    response = scram(client, user, password)

    assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert response.error_message == (
        "Authentication failed during authentication due to invalid credentials with SASL "
        "mechanism SCRAM-SHA-256"
    )


def test_store_that_cannot_be_read_closes_the_connection_without_a_failure(client):
    """The client tries again: its password may be right."""
    error = WireError(ErrorCode.REQUEST_TIMED_OUT, "no answer")
    client.process.set_response("find_credential", stored({"carol": error}))

    assert scram(client, "carol", "pw") is None
    assert "cannot be checked" in client.connection.close_reason
    assert client.slept == []


@pytest.mark.parametrize("wrong", [{"name": "mallory"}, {"mechanism": "SCRAM-SHA-512"}])
def test_answer_to_another_question_lets_nobody_in(client, wrong):
    answer = stored({"mallory": "pw", "carol": "pw"})
    client.process.set_response(
        "find_credential",
        lambda to, name, mechanism, is_token=False: answer(to, name, mechanism) | wrong,
    )

    assert scram(client, "carol", "pw") is None


def test_credential_of_another_user_lets_nobody_in(client):
    answer = stored({"carol": "pw"})
    client.process.set_response(
        "find_credential",
        lambda to, name, mechanism, is_token=False: answer(to, name, mechanism) | {"user": "root"},
    )

    assert scram(client, "carol", "pw").error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


def next_connection(client: Client) -> Client:
    """Its next connection."""
    client.connection.phase, client.connection.login = HANDSHAKE, ConnectionLogin()
    return client


def change_image(client: Client) -> None:
    client.process.image.apply({"version": client.process.image.version + 1})


def test_credential_is_asked_for_once_until_the_image_changes(client):
    client.process.set_response("find_credential", stored({"carol": "pw"}))

    for password, code in (("pw", 0), ("wrong", ErrorCode.SASL_AUTHENTICATION_FAILED), ("pw", 0)):
        assert scram(next_connection(client), "carol", password).error_code == code
    assert scram(next_connection(client), "carol", "pw", "SCRAM-SHA-512").error_code == 0
    assert len(client.process.calls("find_credential")) == 2  # one for each mechanism

    client.process.set_response("find_credential", stored({"carol": "other"}))
    change_image(client)
    assert (
        scram(next_connection(client), "carol", "pw").error_code
        == ErrorCode.SASL_AUTHENTICATION_FAILED
    )
    assert scram(next_connection(client), "carol", "other").error_code == 0


def test_credential_that_was_found_before_a_change_is_not_kept(client):
    answer = stored({"carol": "pw"})

    def find(*asked: Any, **named: Any) -> Any:
        found = answer(*asked, **named)
        change_image(client)  # it has come in the meantime
        return found

    client.process.set_response("find_credential", find)
    assert scram(client, "carol", "pw").error_code == 0

    assert client.process.image.derived.get(sasl.KEPT) is None


def test_credential_is_kept_for_those_who_have_logged_in_with_it(client):
    """Whoever else asks gets the answer in the same time, whether the user exists or not."""
    client.process.set_response("find_credential", stored({"carol": "pw"}))

    scram(next_connection(client), "carol", "wrong")
    scram(next_connection(client), "carol", "wrong")
    assert len(client.process.calls("find_credential")) == 2
    scram(next_connection(client), "carol", "pw")
    scram(next_connection(client), "carol", "wrong")
    assert len(client.process.calls("find_credential")) == 3
    client.connection.peer_host = "192.0.2.7"
    scram(next_connection(client), "carol", "wrong")
    assert len(client.process.calls("find_credential")) == 4


def test_nothing_is_kept_of_unknown_users_and_of_tokens(client):
    """Tokens end by themselves."""
    client.process.set_response("find_credential", stored({"token-id": "hmac"}))
    for _ in range(2):
        scram(next_connection(client), "nobody", "pw")
        found = scram(next_connection(client), "token-id", "hmac", is_token=True)
        assert found.error_code == 0

    assert len(client.process.calls("find_credential")) == 4
    assert client.process.image.derived[sasl.KEPT] == {}


def test_no_more_than_so_many_credentials_are_kept(client, monkeypatch):
    monkeypatch.setattr(sasl, "KEPT_MAX", 3)
    users = {f"user{number}": "pw" for number in range(7)}
    client.process.set_response("find_credential", stored(users))
    for user in users:
        assert scram(next_connection(client), user, "pw").error_code == 0
        assert len(client.process.image.derived[sasl.KEPT]) <= 3


def test_name_that_no_user_can_have_is_not_looked_up(client):
    assert scram(client, "x" * 2000, "pw").error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert client.process.calls("find_credential") == []


# -- sessions


@pytest.fixture
def again() -> Client:
    return Client(connections__max__reauth__ms="60000")


def test_session_has_an_end_that_the_client_is_told(again):
    before = time.monotonic_ns() // 1_000_000

    response = again.log_in()

    assert response.session_lifetime_ms == 60_000
    assert again.connection.phase == SESSION
    assert again.connection.session_end_ms >= before + 60_000


def test_session_is_renewed_by_the_same_user(again):
    again.log_in()
    first = again.connection.session_end_ms

    assert again.handshake().error_code == 0
    assert again.connection.phase == AUTHENTICATING
    assert again.authenticate(ALICE).error_code == 0

    assert (again.principal, again.connection.phase) == ("User:alice", SESSION)
    assert again.connection.session_end_ms >= first


def test_session_is_not_renewed_more_than_once_a_second(again):
    again.log_in()
    again.log_in()

    assert again.handshake().error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert again.connection.phase == SESSION


def test_another_user_cannot_renew_a_session(again):
    again.log_in()

    response = again.log_in(b"\0bob\0other")

    assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert response.error_message == (
        "Cannot change principals during re-authentication from User.alice: User.bob"
    )
    assert (again.principal, again.ended) == ("User:alice", [again.connection])


def test_another_mechanism_cannot_renew_a_session(again):
    again.process.set_response("find_credential", stored({"alice": "secret"}))
    again.log_in()

    response = scram(again, "alice", "secret")

    assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert response.error_message == (
        "SASL mechanism 'SCRAM-SHA-256' requested by client is not supported for "
        "re-authentication of mechanism 'PLAIN'"
    )


def test_wrong_password_ends_a_session(again):
    again.process.set_response("find_credential", stored({"carol": "pw"}))
    assert scram(again, "carol", "pw").session_lifetime_ms == 60_000

    response = scram(again, "carol", "wrong")

    assert "during re-authentication" in response.error_message
    assert again.ended == [again.connection]


def test_password_that_was_changed_counts_at_the_next_renewal(again):
    again.log_in()
    jaas = JAAS.format('user_alice="changed"')
    config = BrokerConfig(SETTINGS | {f"{OWN}plain.sasl.jaas.config": jaas})
    again.process.sasl_listeners[0] = sasl_listener(config, "PLAINTEXT")

    assert again.log_in().error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


# -- metrics


def counts(client: Client) -> list[int]:
    """Of the client's listener: logins, failures, renewals, failed renewals."""
    metrics = (AUTHENTICATIONS, FAILED_AUTHENTICATIONS, REAUTHENTICATIONS, FAILED_REAUTHENTICATIONS)
    return [client.process.counters.get(metric, client.connection.listener) for metric in metrics]


def test_logins_are_counted_by_listener(client):
    client.log_in()
    assert counts(client) == [1, 0, 0, 0]

    other = Client()
    other.connection.listener = 1
    other.process.sasl_listeners = {1: sasl_listener(other.config, "PLAINTEXT")}
    other.log_in(b"\0alice\0wrong")
    assert counts(other) == [0, 1, 0, 0]
    assert other.process.counters.get(FAILED_AUTHENTICATIONS, 0) == 0

    wants_other = Client()
    wants_other.handshake("GSSAPI")
    assert counts(wants_other) == [0, 1, 0, 0]


def test_renewals_are_counted_apart_from_logins(again):
    again.log_in()
    again.log_in()
    assert counts(again) == [1, 0, 1, 0]

    again.connection.login.again_ms = 0  # long ago
    again.log_in(b"\0alice\0wrong")
    assert counts(again) == [1, 0, 1, 1]


# -- what a listener may have


def refused(**settings: str) -> str:
    config = BrokerConfig({k.replace("__", "."): v for k, v in settings.items()})
    with pytest.raises(ConfigError) as caught:
        sasl_listener(config, "PLAINTEXT")
    assert "hunter2" not in str(caught.value)
    return str(caught.value)


def test_listener_without_mechanisms_that_are_built_is_refused():
    assert "sasl.enabled.mechanisms=DIGEST-MD5" in refused(sasl__enabled__mechanisms="DIGEST-MD5")
    assert "PLAINN" in refused(sasl__enabled__mechanisms="PLAIN,PLAINN")
    assert "at least one" in refused(sasl__enabled__mechanisms="")


@pytest.mark.parametrize(
    "jaas",
    ["nonsense", JAAS.format('user_a="hunter2'), JAAS.format('user_a="hunter2"') * 2,
     "ScramLoginModule required;"],
)  # fmt: skip
def test_login_that_cannot_be_read_is_refused_without_its_password(jaas):
    name = f"{OWN}plain.sasl.jaas.config".replace(".", "__")
    assert "jaas" in refused(sasl__enabled__mechanisms="PLAIN", **{name: jaas})


def test_plain_without_users_is_allowed_and_told():
    listener = sasl_listener(BrokerConfig({"sasl.enabled.mechanisms": "PLAIN"}), "PLAINTEXT")

    (warning,) = listener.warnings
    assert "nobody can log in" in warning


@pytest.mark.parametrize(
    "name",
    ["org.example.JavaHandler", "nosuchmodule.check", "os.nosuchname", "os.name", "check", "."],
)
def test_callback_that_cannot_be_loaded_is_refused(name):
    key = f"{OWN}plain.sasl.server.callback.handler.class".replace(".", "__")
    assert name in refused(sasl__enabled__mechanisms="PLAIN", **{key: name})


def check_password(user: str, password: str) -> bool:
    if user == "broken":
        raise RuntimeError(f"the directory says no to {password}")
    return password == f"{user}-pw"


class Checks:
    def __call__(self, user: str, password: str) -> bool:
        return check_password(user, password)


@pytest.mark.parametrize("name", ["check_password", "Checks"])
def test_callback_decides_about_passwords(name, caplog):
    path = f"{__name__}.{name}"
    with_callback = Client(**{f"{OWN}plain.sasl.server.callback.handler.class": path})

    assert with_callback.log_in(b"\0dora\0dora-pw").error_code == 0
    assert with_callback.principal == "User:dora"
    for token in (b"\0dora\0other", ALICE, b"\0broken\0hunter2"):
        other = Client(**{f"{OWN}plain.sasl.server.callback.handler.class": path})
        response = other.log_in(token)
        assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert response.error_message == sasl.NOT_VERIFIED
    assert "hunter2" not in caplog.text


def test_jaas_file_has_what_the_config_has_not(tmp_path):
    file = tmp_path / "jaas"
    file.write_text(
        "KafkaServer { " + JAAS.format('user_a="1"') + " };\n"
        "plaintext.KafkaServer { " + JAAS.format('user_alice="2"') + " };"
    )
    config = BrokerConfig({"sasl.enabled.mechanisms": "PLAIN",
                           "java.security.auth.login.config": str(file)})  # fmt: skip

    for listener, token in (("PLAINTEXT", b"\0alice\x002"), ("OTHER", b"\0a\x001")):
        exchange = sasl_listener(config, listener).begin["PLAIN"]()
        assert exchange.evaluate(token).user == token.split(b"\0")[1].decode()
    file.unlink()
    assert "java.security.auth.login.config" in refused(
        sasl__enabled__mechanisms="PLAIN", java__security__auth__login__config=str(file)
    )


def test_sasl_listener_is_no_longer_refused():
    config, warnings = load_properties(
        [("listeners", "SASL_PLAINTEXT://127.0.0.1:0"), ("sasl.enabled.mechanisms", "PLAIN")]
    )

    assert config.listeners[0].uses_sasl
    assert not any("sasl" in warning for warning in warnings)


def test_access_is_shared_by_connections_of_a_user(client):
    client.log_in()

    accesses: AccessTable = client.process.accesses
    assert client.connection.access is accesses.of(KafkaPrincipal("User", "alice"), "198.51.100.4")


def test_response_of_handshake_is_version_0s_for_version_0(client):
    data = client.process.send(SaslHandshakeRequest(mechanism="PLAIN"), 0).value
    assert decode(17, 0, data).mechanisms[0] == "PLAIN"
