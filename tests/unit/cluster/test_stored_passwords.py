"""Passwords among a broker's stored configs, as its processes see them."""

from __future__ import annotations

import pytest

from kbroker.cluster.settings import effective_config
from kbroker.cluster.stored_passwords import decoded, encoded, encoder_of, reencoded
from kbroker.config.loader import BrokerConfig
from kbroker.errors import ErrorCode, WireError
from kbroker.security.password_encoder import PasswordEncoder

pytestmark = pytest.mark.unit

NAME = "listener.name.x.ssl.key.password"
OLD, NEW = PasswordEncoder(["old"]), PasswordEncoder(["new", "old"])


def config(**settings: str) -> BrokerConfig:
    return BrokerConfig({name.replace("_", "."): value for name, value in settings.items()})


def test_password_is_decrypted_in_the_config_of_a_process_only() -> None:
    started_with = config(password_encoder_secret="old")
    text = OLD.encode("hunter2")
    layers = {"3": {NAME: text, "log.retention.ms": "7"}, "4": {NAME: "of another broker"}}

    found = effective_config(started_with, layers, 3)

    assert (found[NAME], found["log.retention.ms"]) == ("hunter2", 7)
    assert layers["3"][NAME] == text


@pytest.mark.parametrize("settings", [{}, {"password_encoder_secret": "another"}])
def test_password_that_cannot_be_decrypted_is_left_out_and_named(
    settings: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    text = OLD.encode("hunter2")

    found = effective_config(config(**settings), {"3": {NAME: text, "log.retention.ms": "7"}}, 3)

    assert not found.is_set(NAME)
    assert found["log.retention.ms"] == 7
    assert f"Dynamic password config {NAME} could not be decoded, ignoring" in caplog.text
    assert text not in caplog.text


def test_password_for_all_brokers_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    """Each has a secret of its own, perhaps."""
    layers = {"default": {NAME: OLD.encode("x"), "log.retention.ms": "7"}}

    found = effective_config(config(password_encoder_secret="old"), layers, 3)

    assert not found.is_set(NAME)
    assert found["log.retention.ms"] == 7
    assert "Per-broker configs defined at default cluster level" in caplog.text


def test_password_is_stored_encrypted_and_stays_while_it_is_the_same() -> None:
    layer = {NAME: "hunter2", "log.retention.ms": "7"}

    first = encoded(layer, {}, NEW, "3")
    again = encoded(layer, first, NEW, "3")
    other = encoded(layer | {NAME: "hunter3"}, first, NEW, "3")

    assert "hunter2" not in first[NAME]
    assert first["log.retention.ms"] == "7"
    assert again == first
    assert other[NAME] != first[NAME]
    assert [decoded(one, NEW)[NAME] for one in (first, other)] == ["hunter2", "hunter3"]


def test_password_without_a_secret_is_rejected_with_kafkas_text() -> None:
    with pytest.raises(WireError) as raised:
        encoded({NAME: "hunter2"}, {}, None, "3")

    assert raised.value.code == ErrorCode.INVALID_REQUEST
    assert "Password encoder secret not configured" in str(raised.value.message)
    assert "hunter2" not in str(raised.value.message)
    assert encoded({"log.retention.ms": "7"}, {}, None, "3") == {"log.retention.ms": "7"}


def test_passwords_of_the_old_secret_are_encrypted_with_the_new_one() -> None:
    layer = {NAME: OLD.encode("a"), "listener.name.y.ssl.key.password": NEW.encode("b"),
             "listener.name.z.ssl.key.password": "damaged", "log.retention.ms": "7"}  # fmt: skip

    found = reencoded(layer, NEW)

    assert found is not None
    assert decoded(found, PasswordEncoder(["new"])) == {
        NAME: "a", "listener.name.y.ssl.key.password": "b", "log.retention.ms": "7",
    }  # fmt: skip
    unchanged = {name: found[name] for name in layer if name != NAME}
    assert unchanged == {name: layer[name] for name in layer if name != NAME}
    assert reencoded(found, NEW) is None
    assert reencoded(layer, None) is None


def test_encoder_has_the_configured_algorithms() -> None:
    assert encoder_of(config()) is None
    assert encoder_of(config(password_encoder_secret="")) is None
    found = encoder_of(
        config(
            password_encoder_secret="s",
            password_encoder_cipher_algorithm="AES/GCM/NoPadding",
            password_encoder_keyfactory_algorithm="PBKDF2WithHmacSHA256",
            password_encoder_key_length="256",
            password_encoder_iterations="2000",
        )
    )
    assert found is not None
    text = found.encode("p")
    for part in ("AES/GCM/NoPadding", "PBKDF2WithHmacSHA256", "keyLength:256", "iterations:2000"):
        assert part in text
