"""Writing to a topic that does not exist."""

from __future__ import annotations

import random
import threading
import time
from types import SimpleNamespace

import pytest

from kbroker.client.connections import cluster as cluster_module
from kbroker.client.connections import retry as subject
from kbroker.client.connections.cluster import Cluster, Partition, Topic
from kbroker.client.errors import RejectedError, UnreachableError

pytestmark = pytest.mark.unit


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that only pauses advance, those of this thread: clients of earlier tests may have
    threads that still try to connect.
    """
    now, own = [100.0], threading.get_ident()

    def sleep(seconds: float) -> None:
        if threading.get_ident() != own:
            threading.Event().wait(seconds)
            return
        now[0] += seconds

    def monotonic() -> float:
        return now[0] if threading.get_ident() == own else time.monotonic()

    monkeypatch.setattr(cluster_module, "time", SimpleNamespace(monotonic=monotonic, sleep=sleep))
    monkeypatch.setattr(subject.Retry, "clock", staticmethod(monotonic))
    monkeypatch.setattr(subject.Retry, "sleep", staticmethod(sleep))
    return now


@pytest.mark.parametrize("seed", range(50))
def test_topic_that_nobody_creates_is_refused_whatever_the_jitter(
    seed: int, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In 6 of 50 runs the last pause exceeded the deadline, and a timeout was reported instead."""
    monkeypatch.setattr(subject, "random", random.Random(seed))
    monkeypatch.setattr(Cluster, "_ask_metadata", lambda *_, **__: {})

    with Cluster("127.0.0.1:1") as cluster, pytest.raises(RejectedError):
        cluster.topic_to_write("nowhere")

    assert clock[0] < 105


def test_broker_that_is_away_for_longer_than_a_creation_takes_is_waited_for(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restarted broker made a Spark write fail after five seconds."""
    topic = Topic("t", bytes(16), {0: Partition(0, 0)}, internal=False)

    def answer(*_: object, **__: object) -> dict[str, Topic]:
        if clock[0] < 130:
            raise UnreachableError({"a:1": "refused"})
        return {"t": topic} if clock[0] > 133 else {}

    monkeypatch.setattr(Cluster, "_ask_metadata", answer)

    with Cluster("127.0.0.1:1") as cluster:
        assert cluster.topic_to_write("t") is topic
