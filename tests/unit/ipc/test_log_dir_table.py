"""The state of log directories that processes share: failures, and writes that found no room."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from kbroker.ipc import log_dir_table
from kbroker.ipc.log_dir_table import LogDirTable, Space, region_size, space_of

pytestmark = pytest.mark.unit

TOTAL = 1 << 40
FULL = Space(TOTAL, 4096)


@pytest.mark.parametrize("count", [1, 3, 8, 9])
def test_flags_and_rejections_of_each_directory_are_apart(count: int) -> None:
    region = bytearray(region_size(count))
    table = LogDirTable(region, count)

    region[count - 1] = 1
    for index in range(count - 1):
        table.reject(index, 4096)

    facts = [table.fact(index, f"/{index}", FULL) for index in range(count)]
    assert [one.has_failed for one in facts] == [False] * (count - 1) + [True]
    assert [one.rejects_writes for one in facts] == [True] * (count - 1) + [False]
    # Another process, or a copy of the region, sees the same.
    assert LogDirTable(bytes(region), count).fact(0, "/0", FULL).state == facts[0].state


def test_directory_without_a_rejected_write_has_room_of_any_size() -> None:
    fact = LogDirTable(bytearray(region_size(1)), 1).fact(0, "/d", FULL)

    assert (fact.rejected_ms, fact.rejects_writes, fact.state) == (None, False, "online")


def test_rejections_in_a_row_begin_with_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000_000_000_000
    monkeypatch.setattr(log_dir_table.time, "monotonic_ns", lambda: now)
    table = LogDirTable(bytearray(region_size(1)), 1)
    table.reject(0, 4096)
    now += 40_000_000_000
    table.reject(0, 4096)
    now += 2_000_000_000

    fact = table.fact(0, "/d", FULL)
    assert (fact.rejected_ms, fact.rejecting_ms) == (2_000, 42_000)

    now += 100_000_000_000
    table.reject(0, 4096)
    assert table.fact(0, "/d", FULL).rejecting_ms == 0


@pytest.mark.parametrize(
    ("code", "is_room"), [(errno.ENOSPC, True), (errno.EFBIG, False), (errno.EDQUOT, False)]
)
def test_room_is_noted_only_where_it_is_what_a_write_lacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, is_room: bool
) -> None:
    monkeypatch.setattr(log_dir_table, "space_of", lambda path: FULL)
    table = LogDirTable(bytearray(region_size(1)), 1)

    table.note_full_disk(0, str(tmp_path), code)

    fact = table.fact(0, str(tmp_path), FULL)
    assert fact.rejects_writes
    assert fact.free_then_bytes == (4096 if is_room else -1)


def test_space_of_a_path_that_is_gone_cannot_be_had(tmp_path: Path) -> None:
    found = space_of(str(tmp_path))

    assert found is not None
    assert 0 < found.free <= found.total
    assert space_of(str(tmp_path / "gone")) is None
