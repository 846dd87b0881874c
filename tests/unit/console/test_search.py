"""Search looks at what is shown: bytes, and what a registry makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from kbroker.client.batches.topic_reader import ReadRecord
from kbroker.console.decoding import Decoding
from kbroker.console.search import Search
from kbroker.schemas.framing import Framed

pytestmark = pytest.mark.unit


class Decoder:
    """Makes text of payloads by adding 16 to each byte; fails at an empty one."""

    def __init__(self) -> None:
        self.asked: list[Framed] = []

    def decode(self, values: Sequence[Framed]) -> list[Mapping[str, Any]]:
        self.asked += values
        return [
            {"schema": one.schema, "text": "".join(chr(byte + 16) for byte in one.payload)}
            if one.payload
            else {"schema": one.schema, "error": "empty"}
            for one in values
        ]


def record(value: bytes | None, key: bytes | None = None) -> ReadRecord:
    return ReadRecord("t", 0, 0, -1, key, value, ())


def framed_text(text: str) -> bytes:
    """Bytes that say something else than their text."""
    return b"\0\0\0\0\1" + bytes(ord(letter) - 16 for letter in text)


def search(text: str, where: str, *records: ReadRecord) -> tuple[list[bool], Decoder, Search]:
    decoder = Decoder()
    one = Search(text, where, cast(Decoding, decoder))
    return one.find(records), decoder, one


def test_decoded_text_is_searched_in_any_case() -> None:
    rows = record(framed_text("Invoice")), record(framed_text("order")), record(b"an INVOICE")

    found, decoder, one = search("invoice", "any", *rows)

    assert found == [True, False, True]
    assert len(decoder.asked) == 2, "what is found by its bytes is not decoded, nor what is plain"
    assert one.not_decoded == 0


def test_keys_and_values_are_decoded_where_they_are_searched() -> None:
    row = record(framed_text("value"), framed_text("key"))

    assert search("key", "key", row)[0] == [True]
    assert search("key", "value", row)[0] == [False]
    assert search("value", "headers", row)[0] == [False]
    assert len(search("x", "any", row)[1].asked) == 2
    assert search("x", "headers", row)[1].asked == []


def test_records_that_cannot_be_decoded_are_counted() -> None:
    found, _, one = search("x", "any", record(b"\0\0\0\0\1"), record(b"x" + b"\0" * 9))

    assert found == [False, True]
    assert one.not_decoded == 1


def test_nothing_is_decoded_without_a_text() -> None:
    found, decoder, _ = search("", "any", record(framed_text("a")), record(None))

    assert found == [True, True]
    assert decoder.asked == []
