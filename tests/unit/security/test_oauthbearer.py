"""OAUTHBEARER: its messages, and which tokens are valid."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from kbroker.security.sasl import tokens
from kbroker.security.sasl.exchange import (
    Authenticated,
    Challenge,
    NotAuthenticated,
    Unavailable,
    Work,
)
from kbroker.security.sasl.oauthbearer import OTHER_ID, Claims, InvalidToken, OauthBearer
from kbroker.security.sasl.tokens import Expected, Keys, Signed, Unsecured, fetcher, keys_of

pytestmark = pytest.mark.unit

NOW_S = 1_700_000_000.0
CLAIMS = {"sub": "alice", "exp": NOW_S + 60, "iat": NOW_S - 1}


def message(token: str = "a.b.c", authzid: str = "", more: str = "") -> bytes:
    name = f"a={authzid}" if authzid else ""
    return f"n,{name},\x01auth=Bearer {token}\x01{more}\x01".encode()


def accepting(token: str) -> Claims:
    return Claims("alice", 123)


def step(exchange: OauthBearer, data: bytes) -> Any:
    work = exchange.evaluate(data)
    assert isinstance(work, Work)
    return exchange.resume(work.run())


@pytest.mark.parametrize(
    "data",
    [message(), message(authzid="alice"), message(more="host=h\x01port=1\x01"),
     message().replace(b"Bearer", b"bearer"), message().replace(b"Bearer ", b"Bearer   ")],
)  # fmt: skip
def test_valid_token_is_its_subject(data):
    assert step(OauthBearer(accepting), data) == Authenticated(b"", "alice", 123)


@pytest.mark.parametrize(
    "data",
    [b"", b"n,,", b"n,,\x01\x01", b"n,,\x01auth=Bearer \x01\x01",
     b"n,,\x01auth=Basic a.b.c\x01\x01",
     message()[:-1], message()[:-2], message() + b"\x01", b"y" + message()[1:], b"\xff",
     message("a b"), message("a\x00b"), message(more="auth=Bearer x.y.z\x01"), message("ü"),
     b"\x01"],
)  # fmt: skip
def test_malformed_message_fails(data):
    with pytest.raises(NotAuthenticated):
        OauthBearer(accepting).evaluate(data)


def test_authorization_id_must_be_the_subject():
    with pytest.raises(NotAuthenticated) as caught:
        step(OauthBearer(accepting), message(authzid="root"))
    assert caught.value.told == OTHER_ID


def test_invalid_token_is_answered_in_json_and_fails_at_the_next_message():
    def reject(token: str) -> Claims:
        raise InvalidToken("whatever", "insufficient_scope", "a b")

    exchange = OauthBearer(reject)

    expected = b'{"status":"insufficient_scope","scope":"a b"}'
    assert step(exchange, message()) == Challenge(expected)
    for data in (b"\x01", message()):
        with pytest.raises(NotAuthenticated) as caught:
            exchange.evaluate(data)
        assert caught.value.told == expected.decode()


def test_keys_that_cannot_be_fetched_are_no_failure_of_the_client():
    def unavailable(token: str) -> Claims:
        raise Unavailable("no keys")

    with pytest.raises(Unavailable):
        step(OauthBearer(unavailable), message())


# -- claims


def unsecured(claims: dict[str, Any], **expected: Any) -> Claims:
    token = f"{part({'alg': 'none'})}.{part(claims)}."
    return Unsecured(Expected(**expected), lambda: NOW_S)(token)


def part(document: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(document).encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        ({}, {}),
        ({"exp": NOW_S - 29}, {}),
        ({"iat": NOW_S + 29, "nbf": NOW_S + 29}, {}),
        ({"iss": "https://i"}, {"issuer": "https://i"}),
        ({"aud": "a"}, {"audience": ("a", "b")}),
        ({"aud": ["x", "b"]}, {"audience": ("a", "b")}),
        ({"scope": "r w"}, {"scope": ("r",)}),
        ({"scp": ["r", "w"]}, {"scope": ("w", "r"), "scope_claim": "scp"}),
        ({"email": "alice", "sub": "7"}, {"subject_claim": "email"}),
    ],
)
def test_claims_that_are_as_expected(claims, expected):
    assert unsecured(CLAIMS | claims, **expected).subject == "alice"


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        ({"exp": NOW_S - 30}, {}),
        ({"exp": None}, {}),
        ({"exp": "9999999999"}, {}),
        ({"exp": True}, {}),
        ({"exp": 1e300}, {}),
        ({"exp": -1}, {}),
        ({"iat": NOW_S + 31}, {}),
        ({"nbf": NOW_S + 31}, {}),
        ({}, {"issuer": "https://i"}),
        ({"iss": "https://i/"}, {"issuer": "https://i"}),
        ({}, {"audience": ("a",)}),
        ({"aud": "b"}, {"audience": ("a",)}),
        ({"aud": {"a": 1}}, {"audience": ("a",)}),
        ({"sub": None}, {}),
        ({"sub": ""}, {}),
        ({"sub": ["alice"]}, {}),
        ({}, {"subject_claim": "email"}),
        ({"scope": "w"}, {"scope": ("r",)}),
        ({"scope": [1]}, {"scope": ("r",)}),
        ({"scope": 7}, {}),
    ],
)
def test_claims_that_are_not_as_expected(claims, expected):
    with pytest.raises(InvalidToken):
        unsecured(CLAIMS | claims, **expected)


@pytest.mark.parametrize(
    "token",
    ["", ".", "..", "a.b.", f"{part({'alg': 'none'})}.{part(CLAIMS)}.x",
     f"{part({'alg': 'HS256'})}.{part(CLAIMS)}.", f"{part([1])}.{part(CLAIMS)}.",
     f"{part({'alg': 'none'})}.{part([CLAIMS])}.", f"{part({'alg': 'none'})}.ü.",
     f"{part({'alg': 'none'})}.{part(CLAIMS)}"],
)  # fmt: skip
def test_unsecured_token_that_is_none(token):
    with pytest.raises(InvalidToken):
        Unsecured(Expected(), lambda: NOW_S)(token)


# -- signatures

jwt = pytest.importorskip("jwt", reason="needs PyJWT and cryptography (pip: kbroker[oauth])")


@pytest.fixture(scope="module")
def signer() -> Any:
    """A private key, and the JWKS with its public one."""
    from cryptography.hazmat.primitives.asymmetric import rsa

    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(private.public_key()))
    return private, {"keys": [public | {"kid": "k1", "use": "sig"}]}


def signed(private: Any, claims: dict[str, Any], alg: str = "RS256", **headers: Any) -> str:
    token: str = jwt.encode(claims, private, algorithm=alg, headers={"kid": "k1"} | headers)
    return token


def keys(
    *sets: Any, clock: Any = lambda: 1000.0, refresh_s: float = 3600
) -> tuple[Keys, list[int]]:
    """These sets of keys, one after the other; an OSError among them is raised."""
    fetched: list[int] = []

    def fetch() -> bytes:
        found = sets[min(len(fetched), len(sets) - 1)]
        fetched.append(1)
        if isinstance(found, OSError):
            raise found
        return json.dumps(found).encode()

    return Keys("the test", fetch, refresh_s, (0.1, 10), clock), fetched


def verifier(*sets: Any, **expected: Any) -> Signed:
    return Signed(Expected(**expected), keys(*sets)[0], lambda: NOW_S)


@pytest.mark.parametrize("alg", ["RS256", "RS512", "PS256"])
def test_signed_token_is_valid(signer, alg):
    private, jwks = signer

    assert verifier(jwks)(signed(private, CLAIMS, alg)) == Claims("alice", int(NOW_S + 60) * 1000)


def test_elliptic_key_signs_too():
    from cryptography.hazmat.primitives.asymmetric import ec

    private = ec.generate_private_key(ec.SECP256R1())
    public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(private.public_key()))
    jwks = {"keys": [public | {"kid": "k1", "alg": "ES256"}]}

    assert verifier(jwks)(signed(private, CLAIMS, "ES256")).subject == "alice"


def test_token_that_was_changed_is_not_valid(signer):
    private, jwks = signer
    token = signed(private, CLAIMS)
    head, body, signature = token.split(".")
    other = part(CLAIMS | {"sub": "root"})
    flipped = ("A" if signature[0] != "A" else "B") + signature[1:]

    for changed in (f"{head}.{other}.{signature}", f"{head}.{body}.{flipped}", f"{head}.{body}.",
                    f"{part({'alg': 'none', 'kid': 'k1'})}.{body}.", f"{head}.{body}", token + "x",
                    "", "...", "ü", token * 1000):  # fmt: skip
        with pytest.raises(InvalidToken):
            verifier(jwks)(changed)


def test_public_key_is_no_secret_to_sign_with(signer):
    """The old confusion: HS256 with the public key, which everybody has."""
    import hashlib
    import hmac

    _, jwks = signer
    public = jwks["keys"][0]["n"].encode()
    start = f"{part({'alg': 'HS256', 'kid': 'k1'})}.{part(CLAIMS)}"
    mac = hmac.digest(public, start.encode(), hashlib.sha256)
    token = f"{start}.{base64.urlsafe_b64encode(mac).decode().rstrip('=')}"

    with pytest.raises(InvalidToken):
        verifier(jwks)(token)


def test_key_for_one_algorithm_is_used_for_no_other(signer):
    private, jwks = signer
    only = {"keys": [jwks["keys"][0] | {"alg": "RS256"}]}

    with pytest.raises(InvalidToken):
        verifier(only)(signed(private, CLAIMS, "RS512"))


def test_signed_token_must_have_the_claims_expected(signer):
    private, jwks = signer

    with pytest.raises(InvalidToken):
        verifier(jwks, issuer="https://i")(signed(private, CLAIMS))
    with pytest.raises(InvalidToken):
        verifier(jwks)(signed(private, CLAIMS | {"exp": NOW_S - 31}))
    with pytest.raises(InvalidToken):
        verifier(jwks)(signed(private, CLAIMS, crit=["b64"]))


def test_unknown_key_has_the_set_fetched_again_but_not_often(signer):
    private, jwks = signer
    now = [1000.0]
    rotated = {"keys": [jwks["keys"][0] | {"kid": "k2"}]}
    found, fetched = keys(jwks, rotated, clock=lambda: now[0])
    check = Signed(Expected(), found, lambda: NOW_S)
    check(signed(private, CLAIMS))
    for _ in range(3):
        with pytest.raises(InvalidToken):
            check(signed(private, CLAIMS, kid="k2"))
    assert len(fetched) == 1

    now[0] += tokens.UNKNOWN_KEY_S

    assert check(signed(private, CLAIMS, kid="k2")).subject == "alice"
    assert len(fetched) == 2


def test_old_keys_stay_when_there_are_no_new_ones(signer, caplog):
    private, jwks = signer
    now = [1000.0]
    found, fetched = keys(jwks, OSError("HTTP status 503"), clock=lambda: now[0], refresh_s=60)
    check = Signed(Expected(), found, lambda: NOW_S)
    check(signed(private, CLAIMS))

    now[0] += 61
    assert check(signed(private, CLAIMS)).subject == "alice"
    assert len(fetched) == 2
    assert "HTTP status 503" in caplog.text


def test_no_keys_at_all_is_unavailable(signer):
    with pytest.raises(Unavailable):
        verifier(OSError("refused"))(signed(signer[0], CLAIMS))


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"keys":{}}', b"\xff", b"<html>"])
def test_set_of_keys_that_is_none(data):
    with pytest.raises(ValueError):
        keys_of(data)


def test_keys_for_other_things_are_left_out(signer):
    public = signer[1]["keys"][0]
    rows = [public | {"use": "enc"}, {"kty": "oct", "k": "AAAA", "kid": "k1"}, "x", public]

    assert keys_of(json.dumps({"keys": rows}).encode()) == [public]


def test_place_of_keys_must_be_allowed(tmp_path):
    file = tmp_path / "keys"
    file.write_text("{}")
    url = file.as_uri()

    assert fetcher(url, (url,))() == b"{}"
    for place, allowed in ((url, ()), (url + "x", (url,)), ("ftp://h/k", ("ftp://h/k",)),
                           ("data:,{}", ("data:,{}",)), (str(file), (str(file),))):  # fmt: skip
        with pytest.raises(ValueError):
            fetcher(place, allowed)


def test_redirect_is_not_followed():
    """It would lead past the allow list."""
    import threading
    from http.server import BaseHTTPRequestHandler, HTTPServer

    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(302 if self.path == "/a" else 200)
            self.send_header("Location", "/b")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}/a"
        with pytest.raises(OSError, match="302"):
            fetcher(url, (url,))()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert asked == ["/a"]
