"""A topic that is to be written to, and is not there."""

from __future__ import annotations

import random

import pytest

from kbroker.client import retry as subject
from kbroker.client.cluster import Cluster
from kbroker.client.errors import RefusedError

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("seed", range(50))
def test_topic_that_nobody_creates_is_refused_whatever_the_jitter(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In 6 of 50 the last pause went past the deadline, and a timeout was told instead."""
    now = [100.0]
    monkeypatch.setattr(subject.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(subject.time, "sleep", lambda seconds: now.append(now.pop() + seconds))
    monkeypatch.setattr(subject.random, "uniform", random.Random(seed).uniform)
    monkeypatch.setattr(Cluster, "_ask_metadata", lambda *_, **__: {})

    with Cluster("127.0.0.1:1") as cluster, pytest.raises(RefusedError):
        cluster.topic_to_write("nowhere")

    assert now[0] < 105
