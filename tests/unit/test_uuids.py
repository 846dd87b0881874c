"""Ids in Kafka's text form."""

from __future__ import annotations

import re
import uuid
from unittest import mock

import pytest

from kbroker.uuids import new_uuid, parse_uuid, uuid_text


def test_text_is_22_url_safe_characters_and_no_option() -> None:
    texts = {uuid_text(new_uuid()) for _ in range(1000)}  # one in 64 would begin with a dash

    assert len(texts) == 1000
    assert all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{21}", text) for text in texts)


def test_id_that_would_begin_with_a_dash_is_drawn_again() -> None:
    with mock.patch("os.urandom", side_effect=[b"\xfb" * 16, b"\x01" * 16]):
        assert new_uuid() == bytes.fromhex("01010101010141018101010101010101")


def test_new_id_is_a_random_uuid_of_version_4() -> None:
    found = uuid.UUID(bytes=new_uuid())

    assert (found.version, found.variant) == (4, uuid.RFC_4122)


def test_text_is_read_back() -> None:
    value = bytes(range(240, 256))

    assert uuid_text(value) == "8PHy8_T19vf4-fr7_P3-_w"
    assert parse_uuid(uuid_text(value)) == value


@pytest.mark.parametrize(
    "text",
    ["", "A", "8PHy8_T19vf4-fr7_P3-", "8PHy8/T19vf4+fr7/P3+/w", "8PHy8_T19vf4-fr7_P3-_w!", "é"],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not an id"):
        parse_uuid(text)
