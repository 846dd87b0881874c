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
    dashed, good = uuid.UUID(bytes=b"\xfb" * 16), uuid.UUID(bytes=b"\x01" * 16)
    with mock.patch("uuid.uuid4", side_effect=[dashed, good]):
        assert new_uuid() == good.bytes


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
