"""What a new controller reads in the store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.controller.controlled import Controlled

from kbroker.cluster.topic_ids import TopicIds
from kbroker.controller.state.state import ClusterState, PartitionState
from kbroker.controller.store import persistence
from kbroker.metastore import paths
from kbroker.metastore.store import StoreOperation

pytestmark = pytest.mark.unit

STATE = PartitionState(1, 3, [1, 0], [0, 1])


@pytest.fixture
def cluster() -> Controlled:
    """Topic ``t`` with three partitions, the last of which has no state."""
    made = Controlled()
    made.register(0, 1)
    made.create_topic("t", *[[0, 1]] * 3, states={0: STATE, 1: STATE})
    made.ensemble.run_until(lambda: made._connected.session_id != 0)
    return made


def load(cluster: Controlled) -> ClusterState:
    state = ClusterState(0, 5, TopicIds("cluster"))
    loaded = cluster.run(persistence.load(cluster.store, state))
    assert loaded.error is None, loaded.error
    return state


def test_partitions_are_loaded_with_and_without_a_state(cluster: Controlled) -> None:
    topic = load(cluster).existing("t")

    assert [(one.leader, one.leader_epoch) for one in topic.partitions[:2]] == [(1, 3)] * 2
    assert [one.is_stored for one in topic.partitions] == [True, True, False]


def test_partition_is_one_request(cluster: Controlled, monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be ten thousand of them, and no partition gets a leader meanwhile."""
    asked: list[str] = []

    def noting(ask: Callable[[str], Any]) -> Callable[[str], Any]:
        return lambda path: asked.append(path) or ask(path)  # type: ignore[func-returns-value]

    for name in ("get", "children", "exists", "subtree"):
        monkeypatch.setattr(cluster._connected, name, noting(getattr(cluster._connected, name)))
    load(cluster)

    below = [path for path in asked if path.startswith(paths.topic("t"))]
    assert below == [paths.topic("t"), *(paths.partition_state("t", n) for n in range(3))]


def test_topic_that_cannot_be_parsed_is_left_out(
    cluster: Controlled, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.apply(StoreOperation("create", paths.topic("damaged"), b"{"))

    assert [topic.name for topic in load(cluster).topics()] == ["t"]
    assert "ignoring topic damaged of the store" in caplog.text
