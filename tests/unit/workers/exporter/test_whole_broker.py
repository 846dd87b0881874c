"""Shares of time that are told of the whole broker."""

from __future__ import annotations

import mmap

import pytest

from kbroker.ipc.process_table import Address, ProcessKind
from kbroker.metrics.catalog import ACCEPTOR_BLOCKED, LISTENER_WIDTH
from kbroker.metrics.slots import Counters, region_size
from kbroker.workers.exporter.whole_broker import WholeBroker

pytestmark = pytest.mark.unit

SECOND = 1_000_000_000


class Clock:
    def __init__(self) -> None:
        self.ns = 5 * SECOND

    def __call__(self) -> int:
        return self.ns


def blocked_shares(whole: WholeBroker) -> dict[str, float]:
    return {
        tags.pairs[0][1]: share
        for bean, samples in whole.samples()
        if bean.name == "AcceptorBlockedPercent"
        for tags, share in samples
    }


def test_share_of_time_that_connections_wait_is_told_by_listener() -> None:
    clock, counters = Clock(), Counters(mmap.mmap(-1, region_size(1)), 0)
    counters.add(ACCEPTOR_BLOCKED, 7 * SECOND, 1)  # before anybody asked
    whole = WholeBroker(
        {Address(ProcessKind.ACCEPTOR, 0): counters}, ["PLAIN", "TLS"], lambda: 0, clock, 2, 10_000,
        uses_zookeeper=False,
    )  # fmt: skip
    assert blocked_shares(whole) == {}

    clock.ns += 4 * SECOND
    counters.add(ACCEPTOR_BLOCKED, SECOND, 1)
    assert blocked_shares(whole) == {"PLAIN": 0.0, "TLS": 0.25}
    for _ in range(4):
        clock.ns += 10 * SECOND
        whole.tick()

    assert blocked_shares(whole) == {"PLAIN": 0.0, "TLS": 0.0}


def test_share_is_at_most_all_of_the_time() -> None:
    """A wait is counted when it is over."""
    clock, counters = Clock(), Counters(mmap.mmap(-1, region_size(1)), 0)
    names = [str(number) for number in range(LISTENER_WIDTH + 2)]
    whole = WholeBroker(
        {Address(ProcessKind.ACCEPTOR, 0): counters}, names, lambda: 0, clock, 2, 10_000,
        uses_zookeeper=False,
    )  # fmt: skip
    clock.ns += 2 * SECOND
    counters.add(ACCEPTOR_BLOCKED, 3 * SECOND, 0)

    found = blocked_shares(whole)

    assert found["0"] == 1.0
    assert len(found) == LISTENER_WIDTH
