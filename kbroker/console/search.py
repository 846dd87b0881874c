"""Search in records, in what of them is shown: their bytes, and what a schema registry makes of
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kbroker.client.batches.topic_reader import ReadRecord
from kbroker.schemas.framing import KEY_HEADER, VALUE_HEADER, Framed, framed

if TYPE_CHECKING:
    from kbroker.console.decoding import Decoding


class Search:
    """Whether a record has a text somewhere, in any case of letters (in bytes: those of ASCII).

    where: ``key``, ``value``, ``headers`` or ``any``. is_on: whether there is a text. not_decoded:
    how many records that name a schema were searched by their bytes alone.
    """

    def __init__(self, text: str, where: str, decoding: Decoding | None = None) -> None:
        self._text = text.lower()
        self._wanted = text.encode().lower()
        self._where = where
        self._decoding = decoding if text else None
        self.is_on = bool(text)
        self.not_decoded = 0

    def find(self, records: Sequence[ReadRecord]) -> list[bool]:
        """Of each record."""
        matches = [self._finds(record) for record in records]
        if self._decoding is not None:
            self._decode(records, matches, self._decoding)
        return matches

    def _finds(self, record: ReadRecord) -> bool:
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

    def _decode(
        self, records: Sequence[ReadRecord], matches: list[bool], decoding: Decoding
    ) -> None:
        """Also those that have the text only when decoded."""
        values: list[Framed] = []
        places: list[int] = []
        for at, record in enumerate(records):
            if not matches[at]:
                for value in self._framed(record):
                    values.append(value)
                    places.append(at)
        failed = set()
        for at, answer in zip(places, decoding.decode(values), strict=True):
            if "text" not in answer:
                failed.add(at)
            elif self._text in answer["text"].lower():
                matches[at] = True
        self.not_decoded += sum(not matches[at] for at in failed)

    def _framed(self, record: ReadRecord) -> list[Framed]:
        parts = []
        if self._where in ("key", "any") and record.key is not None:
            parts.append(framed(bytes(record.key), record.headers, KEY_HEADER))
        if self._where in ("value", "any") and record.value is not None:
            parts.append(framed(bytes(record.value), record.headers, VALUE_HEADER))
        return [part for part in parts if part is not None]
