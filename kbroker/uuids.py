"""Ids as Kafka creates and writes them: 16 bytes, as text 22 characters of URL-safe base 64."""

from __future__ import annotations

import base64
import os
import re

_TEXT = re.compile(r"[A-Za-z0-9_-]{22}")


def new_uuid() -> bytes:
    """A random version 4 UUID whose text does not begin with a dash: command lines would take it
    for an option.
    """
    while True:
        made = bytearray(os.urandom(16))
        made[6] = made[6] & 0x0F | 0x40
        made[8] = made[8] & 0x3F | 0x80
        value = bytes(made)
        if not uuid_text(value).startswith("-"):
            return value


def uuid_text(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def parse_uuid(text: str) -> bytes:
    """Raises ValueError."""
    if _TEXT.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not an id: expected 22 characters of A-Z, a-z, 0-9, - and _")
    return base64.urlsafe_b64decode(text + "==")
