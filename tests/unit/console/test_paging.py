"""Pages of lists: by number, and behind the last row of the page before."""

from __future__ import annotations

import pytest

from kbroker.console.operation import page_of
from kbroker.console.problems import BadRequest

pytestmark = pytest.mark.unit

ROWS = [f"topic-{number:02}" for number in range(25)]


def page(rows: list[str], cursor: str = "", skip: int = 0) -> tuple[list[str], str | None]:
    found, after = page_of(rows, {"limit": 10, "skip": skip, "cursor": cursor})
    return list(found), after


def test_cursors_lead_through_all_rows() -> None:
    seen, cursor = page(ROWS)
    while cursor is not None:
        more, cursor = page(ROWS, cursor)
        seen += more

    assert seen == ROWS
    assert page(ROWS, skip=20) == (ROWS[20:], None)
    assert page([]) == ([], None)


def test_page_begins_behind_the_last_row_although_others_came_and_went() -> None:
    _, cursor = page(ROWS)
    assert cursor is not None

    assert page(ROWS[5:], cursor)[0] == ROWS[10:20]
    assert page(["a", "b", *ROWS], cursor)[0] == ROWS[10:20]
    # The row itself is gone: as many as before are left out.
    assert page([row for row in ROWS if row != ROWS[9]], cursor)[0] == ROWS[11:21]
    assert page(ROWS[:3], cursor) == ([], None)


@pytest.mark.parametrize("cursor", ["x", "\u00fc", "W10", "WzEsMV0x", "[1,2]", "WzAsMV0", "e30"])
def test_made_up_cursor_is_rejected(cursor: str) -> None:
    with pytest.raises(BadRequest, match="cursor"):
        page(ROWS, cursor)


def test_skip_and_cursor_are_not_both_taken() -> None:
    with pytest.raises(BadRequest, match="either skip or cursor"):
        page(ROWS, page(ROWS)[1] or "", skip=1)
