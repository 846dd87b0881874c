"""Passwords among the stored configs of a broker: encrypted in the metadata store, in the image and
in every message between processes; decrypted in the ``BrokerConfig`` of each process only.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from kbroker.config.broker_keys import BROKER_NAMES
from kbroker.config.loader import BrokerConfig
from kbroker.errors import ErrorCode, WireError
from kbroker.security.password_encoder import (
    DEFAULT_DERIVATION,
    BadPassword,
    Encoding,
    PasswordEncoder,
)

logger = logging.getLogger(__name__)

SECRET, OLD_SECRET = "password.encoder.secret", "password.encoder.old.secret"


def is_password(name: str) -> bool:
    key = BROKER_NAMES.get(name)
    return key is not None and key.sensitive


def encoder_of(config: BrokerConfig) -> PasswordEncoder | None:
    """None without a secret."""
    if not config[SECRET]:
        return None
    how = Encoding(
        config["password.encoder.keyfactory.algorithm"] or DEFAULT_DERIVATION,
        config["password.encoder.cipher.algorithm"],
        config["password.encoder.key.length"],
        config["password.encoder.iterations"],
    )
    return PasswordEncoder([one for one in (config[SECRET], config[OLD_SECRET]) if one], how)


def decoded(layer: Mapping[str, str], encoder: PasswordEncoder | None) -> dict[str, str]:
    """A broker's stored configs with its passwords in plaintext. COMPAT: those that cannot be
    decrypted are left out, with an error in the log.
    """
    values = {}
    for name, text in layer.items():
        if is_password(name):
            try:
                text = _decoded(text, encoder)
            except BadPassword as error:
                logger.error(
                    "Dynamic password config %s could not be decoded, ignoring: %s (see %s and %s)",
                    name, error, SECRET, OLD_SECRET,
                )  # fmt: skip
                continue
        values[name] = text
    return values


def _decoded(text: str, encoder: PasswordEncoder | None) -> str:
    if encoder is None:
        raise BadPassword("there is no secret")
    return encoder.decode(text)


def encoded(
    layer: Mapping[str, str],
    stored: Mapping[str, str],
    encoder: PasswordEncoder | None,
    broker: str,
) -> dict[str, str]:
    """A broker's configs as they are stored. stored: those that are there now, whose encrypted
    texts stay where the password is the same. INVALID_REQUEST without a secret.
    """
    values = dict(layer)
    for name in filter(is_password, layer):
        if encoder is None:
            raise WireError(
                ErrorCode.INVALID_REQUEST,
                "Invalid config value for resource ConfigResource(type=BROKER, "
                f"name='{broker}'): Password encoder secret not configured",
            )
        text = stored.get(name)
        if text is None or not _is_of(text, layer[name], encoder):
            text = encoder.encode(layer[name])
        values[name] = text
    return values


def _is_of(text: str, password: str, encoder: PasswordEncoder) -> bool:
    """Whether the text is the password, encrypted with the present secret."""
    try:
        return encoder.decode(text) == password and encoder.is_current(text)
    except BadPassword:
        return False


def reencoded(layer: Mapping[str, str], encoder: PasswordEncoder | None) -> dict[str, str] | None:
    """A broker's stored configs with all passwords encrypted with the present secret; None if they
    are already, or if nothing is known of the one they are encrypted with.
    """
    if encoder is None:
        return None
    values = dict(layer)
    for name in filter(is_password, layer):
        try:
            if not encoder.is_current(layer[name]):
                values[name] = encoder.encode(encoder.decode(layer[name]))
        except BadPassword:
            continue
    return values if values != layer else None
