"""When records were written, from the files of a log."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from kbroker.workers.exporter.record_ages import LOOKUPS_MAX, RecordAges, indexed_position

pytestmark = pytest.mark.unit


def index_of(path: Path, *entries: tuple[int, int], zeros: int = 0) -> str:
    file = path / "00000000000000000000.index"
    file.write_bytes(b"".join(struct.pack(">ii", *entry) for entry in entries) + bytes(8 * zeros))
    return str(file)


@pytest.mark.parametrize("zeros", [0, 1, 1000])
@pytest.mark.parametrize(
    ("offset", "position"), [(0, 0), (9, 0), (10, 400), (11, 400), (29, 900), (10**6, 2000)]
)
def test_search_begins_at_the_last_entry_at_or_below(
    tmp_path: Path, zeros: int, offset: int, position: int
) -> None:
    path = index_of(tmp_path, (10, 400), (20, 900), (30, 2000), zeros=zeros)

    assert indexed_position(path, offset, 10_000) == position


def test_entry_that_points_behind_the_end_is_not_followed(tmp_path: Path) -> None:
    assert indexed_position(index_of(tmp_path, (10, 400)), 50, 400) == 0


def test_log_without_an_index_is_searched_from_its_begin(tmp_path: Path) -> None:
    assert indexed_position(str(tmp_path / "none.index"), 50, 400) == 0


def test_lookups_of_one_scrape_are_bounded() -> None:
    asked = []

    def place_of(topic: str, partition: int) -> None:
        asked.append(partition)

    ages = RecordAges(place_of, lambda: 0)
    found = [ages.age_s("t", number, 0) for number in range(LOOKUPS_MAX + 5)]

    assert set(found) == {None}
    assert len(asked) == LOOKUPS_MAX
    ages.begin()
    ages.age_s("t", 0, 0)
    assert len(asked) == LOOKUPS_MAX + 1
