"""Counts in sentences."""

from __future__ import annotations

import pytest

from kbroker.wording import counted

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("count", "said"), [(0, "0 files"), (1, "1 file"), (2, "2 files"), (12_400, "12,400 files")]
)
def test_one_thing_has_no_plural(count: int, said: str) -> None:
    assert counted(count, "file") == said


def test_plural_of_its_own_is_said() -> None:
    assert [counted(count, "batch", "es") for count in (1, 2)] == ["1 batch", "2 batches"]
