"""SCRAM: the vector of RFC 7677, and exchanges in which something was changed on the way."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re

import pytest
from support.running.in_one import in_one

from kbroker.security.sasl.exchange import (
    Authenticated,
    Challenge,
    CredentialLookup,
    NotAuthenticated,
)
from kbroker.security.sasl.plain import OTHER_ID
from kbroker.security.sasl.scram import (
    HASHES,
    ITERATIONS_MIN,
    Nobody,
    ScramSaslServer,
    StoredCredential,
    fake_salt,
    from_password,
    from_salted,
    from_text,
    is_of_empty_password,
    new_salt,
    to_text,
)
from kbroker.wire.sasl import Scram as Client

pytestmark = pytest.mark.unit

# RFC 7677, section 3.
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
NONCE = f"rOprNGfwEbeRWgbNEkqO{SERVER_NONCE}"
SERVER_FIRST = f"r={NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
PROOF = "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
CLIENT_FINAL = f"c=biws,r={NONCE},p={PROOF}".encode()
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
STORED = StoredCredential("user", from_password("SCRAM-SHA-256", "pencil", 4096, SALT))


def begun(first: bytes = CLIENT_FIRST, stored: StoredCredential | None = STORED) -> ScramSaslServer:
    """An exchange that has answered the client's first message."""
    exchange = ScramSaslServer("SCRAM-SHA-256", SERVER_NONCE)
    assert isinstance(exchange.evaluate(first), CredentialLookup)
    exchange.resume(stored)
    return exchange


def signed_final(before: str, without_proof: str) -> bytes:
    """The final message of a client that knows the password."""
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", SALT, 4096)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    stored_key = hashlib.sha256(client_key).digest()
    signature = hmac.digest(stored_key, f"{before},{without_proof}".encode(), "sha256")
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()


def test_vector_of_the_rfc():
    exchange = ScramSaslServer("SCRAM-SHA-256", SERVER_NONCE)

    assert exchange.evaluate(CLIENT_FIRST) == CredentialLookup("user", "SCRAM-SHA-256", False)
    assert exchange.resume(STORED) == Challenge(SERVER_FIRST)
    assert exchange.evaluate(CLIENT_FINAL) == Authenticated(SERVER_FINAL, "user")


@pytest.mark.parametrize("mechanism", HASHES)
@pytest.mark.parametrize("user", ["alice", "a,b=c", "ünï", "x" * 200])
def test_exchange_with_a_client_succeeds(mechanism, user):
    """With names that must be escaped, too; the client checks the server's signature."""
    stored = StoredCredential(user, from_password(mechanism, "secret", 8192))
    client = Client(user, "secret", HASHES[mechanism])
    exchange = ScramSaslServer(mechanism)

    asked = exchange.evaluate(client.evaluate(None))
    assert asked == CredentialLookup(user, mechanism, False)
    challenge = exchange.resume(stored)
    done = exchange.evaluate(client.evaluate(challenge.token))
    client.evaluate(done.token)

    assert (done.user, client.done) == (user, True)


@pytest.mark.parametrize("mechanism", HASHES)
def test_wrong_password_fails_at_the_end(mechanism):
    stored = StoredCredential("u", from_password(mechanism, "right", 4096))
    client, exchange = Client("u", "wrong", HASHES[mechanism]), ScramSaslServer(mechanism)
    exchange.evaluate(client.evaluate(None))
    final = client.evaluate(exchange.resume(stored).token)

    with pytest.raises(NotAuthenticated) as caught:
        exchange.evaluate(final)
    assert (caught.value.told, caught.value.user) == ("", "u")


@pytest.mark.parametrize("mechanism", HASHES)
def test_unknown_user_is_told_from_no_other(mechanism):
    """A challenge of the same form, the same salt each time, and the same failure at the end."""
    known = StoredCredential("known", from_password(mechanism, "p", ITERATIONS_MIN))
    salts = []
    for user, stored in (("nobody", None), ("nobody", None), ("other", None), ("known", known)):
        client, exchange = Client(user, "guess", HASHES[mechanism]), ScramSaslServer(mechanism)
        exchange.evaluate(client.evaluate(None))
        challenge = exchange.resume(stored).token.decode()
        fields = dict(part.split("=", 1) for part in challenge.split(","))
        salts.append(fields["s"])
        assert fields["i"] == str(ITERATIONS_MIN)
        with pytest.raises(NotAuthenticated) as caught:
            exchange.evaluate(client.evaluate(challenge.encode()))
        assert (str(caught.value), caught.value.told) == ("wrong user or password", "")
    assert salts[0] == salts[1] != salts[2]
    assert all(re.fullmatch("[0-9a-z]+", base64.b64decode(salt).decode()) for salt in salts)


def test_salt_is_made_as_java_makes_it():
    """A number of 130 bits in base 36: one of 26 signs begins with 1. All are made by one function,
    for users who exist and for those who do not.
    """
    salts = [new_salt().decode() for _ in range(300)]
    salts += [fake_salt(b"secret", "SCRAM-SHA-256", str(n)).decode() for n in range(300)]

    assert {int(salt, 36).bit_length() for salt in salts} <= set(range(100, 131))
    assert {salt[0] for salt in salts if len(salt) == 26} == {"1"}
    assert {25, 26} <= {len(salt) for salt in salts}
    assert not any(salt.startswith("0") for salt in salts)


def test_password_that_is_empty_is_refused():
    with pytest.raises(ValueError, match="empty"):
        from_password("SCRAM-SHA-256", "", ITERATIONS_MIN)
    for mechanism, name in HASHES.items():
        for password in ("", "x"):
            salted = hashlib.pbkdf2_hmac(name, password.encode(), b"salt", 4096)
            assert is_of_empty_password(mechanism, salted, b"salt", 4096) == (not password)


def test_proof_for_what_an_unknown_user_is_shown_does_not_exist():
    """Not even with the keys of its disguise, if these were ever known."""
    from kbroker.security.sasl.scram import disguise

    mechanism, digest = "SCRAM-SHA-256", "sha256"
    shown = disguise(mechanism, "nobody")
    exchange = ScramSaslServer(mechanism, "server")
    exchange.evaluate(b"n,,n=nobody,r=client")
    challenge = exchange.resume(None).token.decode()
    without = "c=biws,r=clientserver"
    signed = f"n=nobody,r=client,{challenge},{without}".encode()
    signature = hmac.digest(shown.stored_key, signed, digest)
    proof = base64.b64encode(bytes(len(signature))).decode()

    with pytest.raises(NotAuthenticated):
        exchange.evaluate(f"{without},p={proof}".encode())


def test_unknown_user_is_shown_the_salt_that_was_found_for_it():
    client, exchange = Client("nobody", "guess", "sha256"), ScramSaslServer("SCRAM-SHA-256")
    exchange.evaluate(client.evaluate(None))

    challenge = exchange.resume(Nobody(b"a salt of all brokers")).token

    assert f"s={base64.b64encode(b'a salt of all brokers').decode()}," in challenge.decode()
    with pytest.raises(NotAuthenticated):
        exchange.evaluate(client.evaluate(challenge))


def changed_finals() -> dict[str, bytes]:
    final = CLIENT_FINAL.decode()
    wrong_proof = base64.b64encode(bytes(32)).decode()
    return {
        "nonce of the client only": final.replace(SERVER_NONCE, "").encode(),
        "nonce with another end": final.replace("NlF$k0", "NlF$k1").encode(),
        "nonce with more at its end": final.replace("NlF$k0", "NlF$k0x").encode(),
        "binding of another header": final.replace("biws", "eSws").encode(),
        "binding with an authorization id": final.replace("biws", "bixhPXgs").encode(),
        "no binding": final.replace("c=biws,", "").encode(),
        "proof of zeros": final.replace(PROOF, wrong_proof).encode(),
        "proof cut": final.replace(PROOF, PROOF[:20]).encode(),
        "proof longer": final.replace(PROOF, base64.b64encode(bytes(33)).decode()).encode(),
        "proof not in base64": final.replace(PROOF, "=AAA").encode(),
        "no proof": final.partition(",p=")[0].encode(),
        "extension that was not signed": final.replace(",p=", ",x=1,p=").encode(),
        "something behind the proof": final.encode() + b",x=1",
        "first message again": CLIENT_FIRST,
        "server's message back": SERVER_FIRST,
        "empty": b"",
        "no UTF-8": b"\xff" + CLIENT_FINAL,
        "zero byte": CLIENT_FINAL + b"\0",
    }


@pytest.mark.parametrize("what", changed_finals())
def test_changed_final_message_fails(what):
    """CVE-2024-56128: the nonce was not compared."""
    exchange = begun()

    with pytest.raises(NotAuthenticated) as caught:
        exchange.evaluate(changed_finals()[what])
    assert caught.value.told == ""


@in_one("cut", range(len(CLIENT_FINAL)))
def test_final_message_cut_anywhere_fails(cut):
    exchange = begun()

    with pytest.raises(NotAuthenticated):
        exchange.evaluate(CLIENT_FINAL[:cut])


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"n",
        b"n,,",
        b"n,,n=user",
        b"n,,n=,r=abc",
        b"n,,r=abc,n=user",
        b"n,,n=user,r=",
        b"n,,n=user,r=a\x01b",
        b"n,,n=us=er,r=abc",
        b"n,,n=us=2cer,r=abc",
        b"p=tls-unique,,n=user,r=abc",
        b"x,,n=user,r=abc",
        b"n,a=,n=user,r=abc",
        b"n,,m=must,n=user,r=abc",
        b"n,,n=user,r=abc,m=must",
        b"n,,n=user,r=abc,tokenauth",
        b"\xff\xfe",
        b"\0user\0pencil",
    ],
)
def test_malformed_first_message_fails(first):
    with pytest.raises(NotAuthenticated):
        ScramSaslServer("SCRAM-SHA-256").evaluate(first)


def test_message_of_another_exchange_fails():
    """A replay: the server's nonce is another one each time."""
    exchange = ScramSaslServer("SCRAM-SHA-256")
    exchange.evaluate(CLIENT_FIRST)
    exchange.resume(STORED)

    with pytest.raises(NotAuthenticated):
        exchange.evaluate(CLIENT_FINAL)


def test_server_nonces_differ():
    def nonce() -> bytes:
        exchange = ScramSaslServer("SCRAM-SHA-256")
        exchange.evaluate(CLIENT_FIRST)
        return exchange.resume(STORED).token.split(b",")[0]

    assert len({nonce() for _ in range(100)}) == 100


@pytest.mark.parametrize(
    ("authorization_id", "fails"), [("user", False), ("admin", True), ("USER", True)]
)
def test_authorization_id_must_be_the_user(authorization_id, fails):
    """CVE-2017-12610: with it, one user acted as another. Also for a user that does not exist."""
    for stored in (STORED, None):
        exchange = ScramSaslServer("SCRAM-SHA-256", SERVER_NONCE)
        exchange.evaluate(f"n,a={authorization_id},n=user,r=abc".encode())
        if not fails:
            assert isinstance(exchange.resume(stored), Challenge)
            continue
        with pytest.raises(NotAuthenticated) as caught:
            exchange.resume(stored)
        assert caught.value.told == OTHER_ID


@pytest.mark.parametrize(
    ("nonce", "passes"),
    [("abcserver", True), ("abcabcserver", True), ("xyzabcserver", False), ("abcabc", False)],
)
def test_client_may_put_its_own_nonce_first_once_more(nonce, passes):
    """librdkafka before 2.6.1 does, such as that of Debian 12; what it sends is signed."""
    exchange = ScramSaslServer("SCRAM-SHA-256", "server")
    exchange.evaluate(b"n,,n=user,r=abc")
    challenge = exchange.resume(STORED).token.decode()
    final = signed_final(f"n=user,r=abc,{challenge}", f"c=biws,r={nonce}")

    if passes:
        assert isinstance(exchange.evaluate(final), Authenticated)
    else:
        with pytest.raises(NotAuthenticated):
            exchange.evaluate(final)


def test_client_that_would_bind_channels_binds_what_it_said():
    """gs2 flag y: the binding is that of the header that the client has sent."""
    exchange = ScramSaslServer("SCRAM-SHA-256", "server")
    exchange.evaluate(b"y,,n=user,r=abc")
    challenge = exchange.resume(STORED).token.decode()

    def final(binding: str) -> bytes:
        return signed_final(f"n=user,r=abc,{challenge}", f"c={binding},r=abcserver")

    with pytest.raises(NotAuthenticated):
        exchange.evaluate(final("biws"))
    assert isinstance(exchange.evaluate(final("eSws")), Authenticated)


def test_credential_with_too_few_iterations_lets_nobody_in():
    weak = StoredCredential("user", from_password("SCRAM-SHA-256", "pencil", ITERATIONS_MIN - 1))

    with pytest.raises(NotAuthenticated):
        begun(stored=weak)


def test_token_is_looked_up_as_such_and_its_owner_is_the_user():
    token = StoredCredential("owner", STORED.credential, 17)
    exchange = ScramSaslServer("SCRAM-SHA-256", SERVER_NONCE)
    first = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO,tokenauth=true"
    assert exchange.evaluate(first) == CredentialLookup("user", "SCRAM-SHA-256", True)
    exchange.resume(token)
    client = Client("user", "pencil", "sha256", nonce="rOprNGfwEbeRWgbNEkqO")
    client.evaluate(None)
    client._first_bare += ",tokenauth=true"

    done = exchange.evaluate(client.evaluate(SERVER_FIRST))

    assert done[1:] == ("owner", 17, True)


def test_credential_becomes_kafkas_text_and_back():
    text = to_text(STORED.credential)

    assert text.startswith("salt=W22ZaJ0SNY7soEsUEjb6gQ==,stored_key=")
    assert text.endswith(",iterations=4096")
    assert from_text(text) == STORED.credential


@pytest.mark.parametrize(
    "text",
    ["", "salt=", "x", "salt=a,stored_key=b,server_key=c,iterations=4096",
     to_text(STORED.credential) + ",more=1", to_text(STORED.credential).replace("4096", "४०९६"),
     to_text(STORED.credential).replace("4096", "-4096")],
)  # fmt: skip
def test_damaged_credential_is_an_error_that_does_not_show_it(text):
    with pytest.raises(ValueError, match="SCRAM credential") as caught:
        from_text(text)
    assert "W22Z" not in str(caught.value)


def test_salted_password_of_a_client_is_the_password():
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", SALT, 4096)

    assert from_salted("SCRAM-SHA-256", salted, SALT, 4096) == STORED.credential
