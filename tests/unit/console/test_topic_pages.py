"""The list of topics of a large cluster: only what a page shows is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from kbroker.client.admin import topics as topic_admin
from kbroker.client.batches.offsets import EARLIEST, LATEST, TopicPartition
from kbroker.console import topic_figures
from kbroker.console.api import topics
from kbroker.console.operation import CheckedRequest
from kbroker.protocol.messages.metadata import MetadataResponse

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

    def refuse(*_: Any) -> Any:
        raise topic_admin.NotPaged

    monkeypatch.setattr(topic_admin.SearchedTopics, "_ask", refuse)  # as of Kafka's brokers
    topic, part = MetadataResponse.MetadataResponseTopic, MetadataResponse.MetadataResponsePartition
    parts = [part(partition_index=0, leader_id=0, replica_nodes=[0], isr_nodes=[0])]
    rows = [topic(name=f"topic-{n:05}", partitions=parts) for n in reversed(range(COUNT))]
    rows.append(topic(name="__internal", is_internal=True, partitions=parts))
    monkeypatch.setattr(topic_admin, "_rows", lambda _cluster, _names: rows)
    monkeypatch.setattr(topic_figures, "list_offsets", offsets)
    monkeypatch.setattr(topic_figures, "log_dir_sizes", sizes)
    return calls


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Topics of which a state was made."""
    names: list[str] = []
    state = topic_admin._state

    def noted(row: Any) -> Any:
        names.append(row.name)
        return state(row)

    monkeypatch.setattr(topic_admin, "_state", noted)
    return names


@pytest.mark.parametrize(
    ("query", "total", "first", "rows"),
    [
        ([], COUNT, 0, 100),
        ([("skip", "9950")], COUNT, 9950, 50),
        ([("limit", "500"), ("skip", "500")], COUNT, 500, 500),
        ([("search", "0999")], 11, 999, 11),
        ([("internal", "true"), ("limit", "1"), ("skip", "1")], COUNT + 1, 0, 1),
    ],
)
def test_figures_are_those_of_the_page(
    asked: list[tuple[Any, set[str]]],
    made: list[str],
    query: list[tuple[str, str]],
    total: int,
    first: int,
    rows: int,
) -> None:
    request: Any = CheckedRequest(None, None, LIST.values({}, query))  # type: ignore[arg-type]

    found = LIST.serve(request)

    shown = {row["name"] for row in found["topics"]}
    assert (found["total"], len(shown), min(shown)) == (total, rows, f"topic-{first:05}")
    assert asked == [(EARLIEST, shown), (LATEST, shown), ("sizes", shown)]
    assert sorted(shown) == made
    assert found["topics"][0]["bytes"] == 5
