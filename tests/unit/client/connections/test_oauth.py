"""OAUTHBEARER of the client: its settings, its tokens, its message."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from support.brokers.fake_broker import FakeBroker

from kbroker.client.connections.cluster import Cluster
from kbroker.client.connections.security import Security
from kbroker.client.errors import AuthenticationFailed, SettingRefused
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.sasl_authenticate import SaslAuthenticateResponse
from kbroker.protocol.messages.sasl_handshake import SaslHandshakeResponse

pytestmark = pytest.mark.unit

ENDPOINT = "sasl.oauthbearer.token.endpoint.url"
LOGIN = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "


class Endpoint:
    """An OAuth endpoint. answers: status and body of each request; the last one stays."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, object]] = []
        self.requests: list[tuple[str, bytes]] = []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                size = int(self.headers["Content-Length"])
                owner.requests.append((self.headers["Authorization"], self.rfile.read(size)))
                status, body = owner.answers[0] if len(owner.answers) == 1 else owner.answers.pop(0)
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", owner.url + "/elsewhere")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint()
    yield made
    made.server.shutdown()
    made.server.server_close()


def options(url: str, **more: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.client.id": "me:1",
        "sasl.oauthbearer.client.secret": "top secret",
        ENDPOINT: url,
        **{name.replace("_", "."): value for name, value in more.items()},
    }


class BearerBroker(FakeBroker):
    """Accepts one token."""

    def __init__(self, token: str) -> None:
        self.accepted = token
        self.messages: list[bytes] = []
        super().__init__(
            {
                ApiKey.SASL_HANDSHAKE: lambda request, state: SaslHandshakeResponse(
                    error_code=0, mechanisms=["OAUTHBEARER"]
                ),
                ApiKey.SASL_AUTHENTICATE: self.authenticate,
            }
        )

    def authenticate(self, request, state):
        message = bytes(request.auth_bytes)
        self.messages.append(message)
        if message == b"\x01":
            return SaslAuthenticateResponse(error_code=58, error_message="invalid token")
        if f"auth=Bearer {self.accepted}\x01".encode() in message:
            return SaslAuthenticateResponse(auth_bytes=b"")
        return SaslAuthenticateResponse(auth_bytes=b'{"status":"invalid_token"}')


def test_token_of_the_endpoint_is_used_and_kept(endpoint):
    endpoint.answers = [(200, {"access_token": "abc.def", "expires_in": 3600})]
    given = options(endpoint.url, sasl_oauthbearer_scope="kafka", sasl_oauthbearer_extensions="a=1")
    with BearerBroker("abc.def") as broker:
        for _ in range(2):
            cluster = Cluster(broker.bootstrap, security := Security.from_options(given))
            assert cluster.nodes() == [0]
            cluster.close()
            assert cluster.nodes() == [0]
            cluster.close()

    authorization, body = endpoint.requests[0]
    pair = base64.b64decode(authorization.removeprefix("Basic "))
    assert pair == b"me%3A1:top%20secret"
    assert body == b"grant_type=client_credentials&scope=kafka"
    assert len(endpoint.requests) == 2, "one for each Security"
    assert set(broker.messages) == {b"n,,\x01auth=Bearer abc.def\x01a=1\x01\x01"}
    assert "secret" not in repr(security)


def test_token_that_ends_soon_is_fetched_again(endpoint):
    endpoint.answers = [(200, {"access_token": "t", "expires_in": 5})]
    security = Security.from_options(options(endpoint.url))
    deadline = time.monotonic() + 10

    assert [security._tokens.token(deadline) for _ in range(2)] == ["t", "t"]
    assert len(endpoint.requests) == 2


def test_rejected_token_is_not_tried_again(endpoint):
    endpoint.answers = [(200, {"access_token": "wrong", "expires_in": 3600})]
    with BearerBroker("right") as broker:
        cluster = Cluster(broker.bootstrap, Security.from_options(options(endpoint.url)))
        with pytest.raises(AuthenticationFailed, match="OAUTHBEARER: invalid token"):
            cluster.nodes()

    assert broker.messages[-1] == b"\x01"
    assert len(broker.messages) == 2


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (401, {"error": "invalid_client"}, "HTTP 401"),
        (302, b"", "HTTP 302"),
        (200, b"no json", "Expecting value"),
        (200, {}, "has no access_token"),
        (200, [], "has no access_token"),
        (200, {"access_token": "a\x01b"}, "it has no token"),
        (200, {"access_token": "t", "expires_in": "soon"}, "has no access_token"),
    ],
)
def test_endpoint_without_a_token_is_named_and_the_secret_is_not(endpoint, status, body, why):
    endpoint.answers = [(status, body)]
    security = Security.from_options(options(endpoint.url))

    with pytest.raises(AuthenticationFailed, match=why) as caught:
        security._tokens.token(time.monotonic() + 10)

    assert endpoint.url in str(caught.value)
    assert "secret" not in str(caught.value)
    assert len(endpoint.requests) == 1


def test_token_of_a_file_is_read_each_time(tmp_path: Path):
    file = tmp_path / "token"
    security = Security.from_options(options(file.as_uri()))

    for token in ("one", "two"):
        file.write_text(f"{token}\n")
        assert security._tokens.token(0) == token
    file.unlink()
    with pytest.raises(AuthenticationFailed, match="No such file"):
        security._tokens.token(0)


def test_names_of_java_are_taken():
    jaas = f'{LOGIN} clientId="me" clientSecret="s;e\\"c" scope="x" extension_zone="a";'
    security = Security.from_options(
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.jaas.config": jaas,
            ENDPOINT: "https://login.example.org/token",
        }
    )

    found = security._tokens.settings
    assert (found.client_id, found.client_secret, found.scope) == ("me", 's;e"c', "x")
    assert found.extensions == (("zone", "a"),)


@pytest.mark.parametrize(
    ("given", "setting"),
    [
        ({ENDPOINT: ""}, ENDPOINT),
        ({ENDPOINT: "ftp://x/"}, ENDPOINT),
        ({"sasl.oauthbearer.client.secret": ""}, "sasl.oauthbearer.client.id"),
        ({"sasl.oauthbearer.method": "default"}, "sasl.oauthbearer.method"),
        ({"sasl.oauthbearer.config": "principal=x"}, "sasl.oauthbearer.config"),
        (
            {"sasl.jaas.config": f'{LOGIN} unsecuredLoginStringClaim_sub="x";'},
            "sasl.oauthbearer.config",
        ),
        ({"sasl.jaas.config": 'PlainLoginModule required username="x";'}, "sasl.jaas.config"),
        ({"sasl.oauthbearer.extensions": "auth=x"}, "sasl.oauthbearer.extensions"),
        ({"sasl.oauthbearer.extensions": "a1=x"}, "sasl.oauthbearer.extensions"),
        ({"sasl.oauthbearer.assertion.file": "x"}, "sasl.oauthbearer.assertion.file"),
    ],
)
def test_setting_that_is_not_possible_is_refused_by_its_name(given, setting):
    with pytest.raises(SettingRefused) as caught:
        Security.from_options({**options("https://x/"), **given})

    assert caught.value.setting == setting
