"""The list of topics of a large cluster: only what a page shows is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from kbroker.client.offsets import EARLIEST, LATEST, TopicPartition
from kbroker.client.topic_admin import PartitionState, TopicState
from kbroker.console.api import topics
from kbroker.console.operation import Asked

pytestmark = pytest.mark.unit

COUNT = 10_000
(LIST,) = (row for row in topics.OPERATIONS if (row.method, row.path) == ("GET", "/topics"))


class Offset:
    offset = 7


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, set[str]]]:
    """What brokers were asked, and of which topics."""
    calls: list[tuple[Any, set[str]]] = []

    def offsets(_: Any, wanted: Mapping[TopicPartition, int], **how: Any) -> dict[Any, Any]:
        (time_ms,) = set(wanted.values())
        calls.append((time_ms, {topic for topic, _ in wanted}))
        return dict.fromkeys(wanted, Offset())

    def sizes(_: Any, names: Iterable[str], **how: Any) -> dict[Any, Any]:
        calls.append(("sizes", set(names)))
        return {(name, 0): 5 for name in names}

    part = PartitionState(0, 0, [0], [0], [])
    found = [TopicState(f"topic-{n:05}", bytes(16), False, [part]) for n in range(COUNT)]
    monkeypatch.setattr(topics, "list_topics", lambda _: found)
    monkeypatch.setattr(topics, "list_offsets", offsets)
    monkeypatch.setattr(topics, "log_dir_sizes", sizes)
    return calls


@pytest.mark.parametrize(
    ("query", "total", "first", "rows"),
    [
        ([], COUNT, 0, 100),
        ([("skip", "9950")], COUNT, 9950, 50),
        ([("limit", "500"), ("skip", "500")], COUNT, 500, 500),
        ([("search", "0999")], 11, 999, 11),
    ],
)
def test_figures_are_those_of_the_page(
    asked: list[tuple[Any, set[str]]],
    query: list[tuple[str, str]],
    total: int,
    first: int,
    rows: int,
) -> None:
    request: Any = Asked(None, None, LIST.values({}, query))  # type: ignore[arg-type]

    found = LIST.serve(request)

    shown = {row["name"] for row in found["topics"]}
    assert (found["total"], len(shown), min(shown)) == (total, rows, f"topic-{first:05}")
    assert asked == [(EARLIEST, shown), (LATEST, shown), ("sizes", shown)]
    assert found["topics"][0]["bytes"] == 5
