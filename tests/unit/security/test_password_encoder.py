"""Encrypted secrets in the store (beside Kafka: interop/test_stored_passwords_of_kafka)."""

from __future__ import annotations

import pytest

from kbroker.config.broker_keys import BROKER_KEYS
from kbroker.errors import ConfigError
from kbroker.security import password_encoder
from kbroker.security.password_encoder import (
    CIPHERS,
    DERIVATIONS,
    GCM,
    KEY_LENGTHS,
    BadPassword,
    Encoding,
    PasswordEncoder,
)

pytestmark = pytest.mark.unit

SECRET = "the secret"
FIELDS = {
    "keyFactoryAlgorithm", "cipherAlgorithm", "keyLength", "salt", "iterations",
    "passwordLength", "initializationVector", "encryptedPassword",
}  # fmt: skip


def fields_of(text: str) -> dict[str, str]:
    return dict(part.rpartition(":")[::2] for part in text.split(","))


def text_of(fields: dict[str, str]) -> str:
    return ",".join(f"{name}:{value}" for name, value in fields.items())


@pytest.mark.parametrize("cipher", CIPHERS)
@pytest.mark.parametrize("password", ["", "a", "x" * 16, "pässword \U0001f511", "y" * 5_000])
def test_password_is_decrypted_as_it_was(cipher: str, password: str) -> None:
    encoder = PasswordEncoder([SECRET], Encoding(cipher=cipher))

    text = encoder.encode(password)

    assert encoder.decode(text) == password
    assert encoder.encode(password) != text, "another salt"
    assert FIELDS <= fields_of(text).keys()
    assert len(password) < 9 or password not in text


@pytest.mark.parametrize("derivation", DERIVATIONS)
@pytest.mark.parametrize("bits", KEY_LENGTHS)
def test_text_says_how_it_was_encrypted(derivation: str, bits: int) -> None:
    how = Encoding(derivation, key_bits=bits, iterations=1_500)
    text = PasswordEncoder([SECRET], how).encode("p")

    assert PasswordEncoder([SECRET]).decode(text) == "p"


def test_old_secret_decrypts_what_it_has_encrypted() -> None:
    before = PasswordEncoder(["old"]).encode("p")
    encoder = PasswordEncoder(["new", "old"])
    after = encoder.encode("p")

    assert (encoder.decode(before), encoder.decode(after)) == ("p", "p")
    assert (encoder.is_current(before), encoder.is_current(after)) == (False, True)
    with pytest.raises(BadPassword):
        PasswordEncoder(["new"]).decode(before)


@pytest.mark.parametrize("cipher", CIPHERS)
def test_another_secret_decrypts_nothing(cipher: str) -> None:
    """The padding of CBC fits by chance once in 256 times: then the length must tell."""
    text = PasswordEncoder([SECRET], Encoding(cipher=cipher, iterations=1)).encode("password")
    for number in range(600):
        with pytest.raises(BadPassword):
            PasswordEncoder([f"guess {number}"]).decode(text)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("keyFactoryAlgorithm", "PBKDF2WithHmacMD5"),
        ("cipherAlgorithm", "DES/CBC/PKCS5Padding"),
        ("keyLength", "64"),
        ("keyLength", "1000000000"),
        ("iterations", "0"),
        ("iterations", "999999999"),
        ("iterations", "-1"),
        ("iterations", "²"),
        ("passwordLength", "7"),
        ("salt", "*"),
        ("initializationVector", "AAAA"),
        ("initializationVector", ""),
        ("encryptedPassword", "AAAA"),
        ("encryptedPassword", ""),
    ],
)
def test_text_that_is_no_password_is_rejected(name: str, value: str) -> None:
    fields = fields_of(PasswordEncoder([SECRET]).encode("password")) | {name: value}

    with pytest.raises(BadPassword) as raised:
        PasswordEncoder([SECRET]).decode(text_of(fields))
    assert "password" not in str(raised.value).replace("a password", "")


@pytest.mark.parametrize("text", ["", "x", ":", ",,,", "plain password", "salt:", "x" * (1 << 21)])
def test_any_other_text_is_rejected(text: str) -> None:
    with pytest.raises(BadPassword):
        PasswordEncoder([SECRET]).decode(text)


@pytest.mark.parametrize("name", sorted(FIELDS))
def test_text_without_a_field_is_rejected(name: str) -> None:
    fields = fields_of(PasswordEncoder([SECRET]).encode("p"))
    del fields[name]

    with pytest.raises(BadPassword, match=name):
        PasswordEncoder([SECRET]).decode(text_of(fields))


def test_tag_of_another_length_is_rejected() -> None:
    encoder = PasswordEncoder([SECRET], Encoding(cipher=GCM))
    fields = fields_of(encoder.encode("p")) | {"authenticationTagLength": "32"}

    with pytest.raises(BadPassword):
        encoder.decode(text_of(fields))


def test_configs_allow_what_the_encoder_can() -> None:
    """The packages do not import each other."""
    key = BROKER_KEYS["password.encoder.keyfactory.algorithm"]
    for name in DERIVATIONS:
        assert key.parse(name) == name
    with pytest.raises(ConfigError):
        key.parse("PBKDF2WithHmacMD5")
    assert BROKER_KEYS["password.encoder.cipher.algorithm"].one_of == CIPHERS
    lengths = BROKER_KEYS["password.encoder.key.length"]
    for bits in KEY_LENGTHS:
        assert lengths.parse(str(bits)) == bits
    with pytest.raises(ConfigError):
        lengths.parse("64")
    iterations = BROKER_KEYS["password.encoder.iterations"]
    assert iterations.high == password_encoder.ITERATIONS_MAX


def test_encoder_shows_no_secret() -> None:
    assert SECRET not in repr(PasswordEncoder([SECRET]))
