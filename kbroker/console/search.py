"""Search in records."""

from __future__ import annotations

from kbroker.client.batches.topic_reader import ReadRecord


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
