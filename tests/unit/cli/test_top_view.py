"""The screen of ``kbroker top``: what fits into a terminal, and what keys change."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.cli.local.tables import size_text
from kbroker.cli.local.view import BoardView, screen

LONG = "t" * 249
MIB = 1 << 20


def board(**sections: Any) -> dict[str, Any]:
    process = {
        "pid": 17, "state": "ready", "restarts": 0, "heartbeat_ms": 120, "cpu_percent": 12.5,
        "idle_percent": 87.0, "memory_bytes": 40 * MIB, "descriptors": 90, "connections": 3,
    }  # fmt: skip
    topic = {
        "partitions": 3, "leads": 3, "messages_in_per_s": 10.0, "bytes_in_per_s": 200.0 * MIB,
        "bytes_out_per_s": 5.0, "bytes": 900,
    }  # fmt: skip
    group = {"state": "Stable", "members": 2, "topics": 1, "lag_max": 9, "lag_seconds": 1.5}
    return {
        "broker": {
            "broker_id": 1, "cluster_id": "c", "version": "1", "pid": 17, "user": None,
            "bootstrap": "localhost:9092",
        },
        "findings": [],
        "log_dirs": [
            {"path": "/data", "state": "online", "total_bytes": 1 << 37, "free_bytes": 1 << 36}
        ],
        "processes": [
            {"process": f"{kind}-{index}", **process}
            for kind in ("controller", "io", "network") for index in range(4)
        ],
        "topics": [{"topic": LONG, **topic}]
        + [{"topic": f"orders-{number}", **topic, "bytes": number} for number in range(40)],
        "clients": [],
        "requests": [{"api": "Produce", "per_s": 1.0, "total": 8}],
        "groups": [{"group": f"g{number}", "lag": number, **group} for number in range(7)],
        **sections,
    }  # fmt: skip


def pressed(keys: str, view: BoardView | None = None) -> BoardView:
    view = view or BoardView()
    for key in keys:
        view = view.pressed(key)
    return view


def test_all_sections_and_a_long_name_fit_into_80_columns_and_24_lines() -> None:
    lines = screen(board(), BoardView(), 80, 24)

    assert len(lines) == 24
    assert max(map(len, lines)) <= 80
    for title in ("PROCESS", "TOPIC", "GROUP", "CLIENT", "REQUEST"):
        assert any(line.startswith(title) for line in lines), title
    (topic,) = [line for line in lines if line.startswith("tttt")]
    assert "200M" in topic  # the long name has moved nothing out of sight
    assert any(line.startswith("g0") for line in lines)
    assert any("+" in line and line.startswith("GROUP") for line in lines)  # some are left out


@pytest.mark.parametrize(("columns", "lines"), [(20, 3), (1, 1), (40, 10), (300, 100), (80, 5)])
def test_screen_of_any_size_is_not_exceeded(columns: int, lines: int) -> None:
    for view in (BoardView(), pressed("t"), pressed("g/x")):
        found = screen(board(), view, columns, lines)

        assert len(found) <= lines
        assert all(len(line) <= columns for line in found)


def test_key_shows_one_section_alone_and_another_all_again() -> None:
    lines = screen(board(), pressed("t"), 80, 24)

    assert any(line.startswith("TOPIC") for line in lines)
    assert not any(line.startswith("PROCESS") for line in lines)
    assert sum(line.startswith("orders-") for line in lines) > 15
    assert pressed("ta") == BoardView()


def test_column_sorts_figures_from_the_largest_and_names_from_a() -> None:
    by_size = pressed("t<")  # the last column
    rows = by_size.rows("topics", board()["topics"])
    assert [row["bytes"] for row in rows[:2]] == [900, 39]
    assert any("SIZEv" in line for line in screen(board(), by_size, 120, 24))

    by_name = pressed("t>").rows("topics", board()["topics"])
    assert by_name[0]["topic"] == "orders-0"
    assert pressed("t>i").rows("topics", board()["topics"])[0]["topic"] == LONG


def test_figures_that_are_unknown_come_last() -> None:
    rows = [{"group": "a", "lag": None}, {"group": "b", "lag": 1}]
    rest = {"state": "", "members": 0, "topics": 0, "lag_max": 0, "lag_seconds": None}
    view = pressed("g>>>>>")

    assert [row["group"] for row in view.rows("groups", [{**rest, **row} for row in rows])] == [
        "b", "a",
    ]  # fmt: skip


def test_broker_among_several_has_its_number() -> None:
    one = BoardView(others=2, number=3)

    assert screen(board(), one, 80, 24)[0].startswith("[3/3] broker 1, localhost:9092, pid 17")
    assert "b: broker" in screen(board(), one, 80, 24)[-1]
    assert "b: broker" not in screen(board(), BoardView(), 80, 24)[-1]
    assert pressed("a", one) == one


def test_filter_is_typed_kept_and_dropped() -> None:
    typing = pressed("/ORDERS-1")
    assert typing.is_typing
    assert "filter: ORDERS-1" in screen(board(), typing, 80, 24)[-1]
    kept = pressed("\r", typing)
    rows = kept.rows("topics", board()["topics"])
    assert {row["topic"] for row in rows} == {
        "orders-1", *(f"orders-1{number}" for number in range(10)),
    }  # fmt: skip
    assert pressed("/abq\x7f").filter == "ab"  # q is no key while one types
    assert pressed("/ab\x1b").filter == ""


def test_findings_are_above_everything() -> None:
    finding = {"severity": "critical", "subject": "io-0", "what": "stuck: no sign of life for 6 s"}

    lines = screen(board(findings=[finding] * 5), BoardView(), 80, 24)

    assert lines[1] == "CRITICAL io-0: stuck: no sign of life for 6 s"
    assert "3 more findings" in lines[3]
    assert screen(board(), BoardView(), 80, 24)[1] == "all is well"


def test_groups_of_an_exporter_that_does_not_answer_are_absent() -> None:
    lines = screen(board(groups=None), BoardView(), 80, 24)

    assert "GROUP: the exporter does not answer" in lines


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0B"), (999, "999B"), (1000, "1.0K"), (1536, "1.5K"), (150 * 1024, "150K"),
     (99.96 * 1024, "100K"), (200 * MIB, "200M"), (5 << 30, "5.0G"), (3 << 60, "3072P")],
)  # fmt: skip
def test_every_size_has_its_unit(count: float, text: str) -> None:
    assert size_text(count) == text
