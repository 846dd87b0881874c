"""Sizes of replicas for a plan, where a broker is gone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kbroker.client.admin.partitions import LogDir, Replica
from kbroker.client.errors import Timeout
from kbroker.console.api import rebalancing

pytestmark = pytest.mark.unit
KEY = ("t", 0)


class OneIsGone:
    """A cluster whose broker 2 never answers. waited: seconds, for all of its brokers."""

    def __init__(self) -> None:
        self.waited = 0.0
        self._may_wait = 60.0

    def nodes(self) -> list[int]:
        return [1, 2]

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        self._may_wait = seconds
        yield
        self._may_wait = 60.0

    def log_dirs(self, nodes: Iterable[int]) -> dict[int, list[LogDir]]:
        (node,) = nodes
        if node == 2:
            self.waited += self._may_wait
            raise Timeout("log directories", self._may_wait, "connection refused")
        return {node: [LogDir("/data", None, {KEY: [Replica(700, 0, False)]})]}


def test_broker_that_is_gone_is_waited_for_shortly(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster: Any = OneIsGone()
    monkeypatch.setattr(rebalancing, "log_dirs", lambda of, nodes: of.log_dirs(nodes))

    assert rebalancing._sizes(cluster) == {KEY: 700}
    assert 0 < cluster.waited <= rebalancing.SIZES_S
