"""Records as JSON: text where it is UTF-8, else base64; and search in them."""

from __future__ import annotations

import base64
import codecs
from typing import Any

from kbroker.client.batches.topic_reader import ReadRecord


def record_json(record: ReadRecord, bytes_max: int) -> dict[str, Any]:
    """bytes_max: of key, value and each header, the rest is cut."""
    return {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": None if record.timestamp < 0 else record.timestamp,
        "key": data_json(record.key, bytes_max),
        "value": data_json(record.value, bytes_max),
        "headers": [
            {"name": data_json(name, bytes_max), "value": data_json(value, bytes_max)}
            for name, value in record.headers
        ],
    }


def data_json(data: bytes | None, bytes_max: int) -> dict[str, Any] | None:
    """size: of the whole. A null is None."""
    if data is None:
        return None
    shown = bytes(data[:bytes_max])
    found: dict[str, Any] = {"size": len(data), "cut": len(data) > len(shown)}
    try:
        # The last character may be cut in the middle.
        found["text"] = codecs.getincrementaldecoder("utf-8")().decode(shown, not found["cut"])
    except UnicodeDecodeError:
        found["base64"] = base64.b64encode(shown).decode()
    return found


class Search:
    """Whether a record has a text somewhere, in any case of the letters of ASCII.

    where: ``key``, ``value``, ``headers`` or ``any``.
    """

    def __init__(self, text: str, where: str) -> None:
        self._wanted = text.encode().lower()
        self._where = where

    def finds(self, record: ReadRecord) -> bool:
        if not self._wanted:
            return True
        where = self._where
        if where in ("key", "any") and self._has(record.key):
            return True
        if where in ("value", "any") and self._has(record.value):
            return True
        return where in ("headers", "any") and any(
            self._has(name) or self._has(value) for name, value in record.headers
        )

    def _has(self, data: bytes | None) -> bool:
        return data is not None and self._wanted in bytes(data).lower()
