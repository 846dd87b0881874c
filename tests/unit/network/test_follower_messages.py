"""Positions of followers on a lane, at the io worker's end."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.network.net_loop_harness import ENVELOPE, NETWORK
from support.storage.io_loop_bench import Bench

from kbroker._ext.log.replica_set import ReplicaSet
from kbroker._ext.shared import lane_layout

pytestmark = pytest.mark.unit

PROGRESS = struct.Struct(lane_layout.FOLLOWER_FORMAT)
ONE = PROGRESS.pack(0, 1, 2, 5, 100, 0, 120, 0, 4096, 777, 3, 9, lane_layout.PROGRESS, 0)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.store.stop(clean=False)


def send(bench: Bench, body: bytes, count: int, network: int = 1) -> None:
    header = ENVELOPE.pack(lane_layout.FOLLOWER, NETWORK, network, bench.cells[network], 5, count)
    bench.ends[network][1].send(header + body)
    bench.loop.read_lane(bench.lanes[network])


def test_owner_takes_the_entries_of_a_message(bench: Bench) -> None:
    replicas = ReplicaSet(None, 1000)
    replicas.begin_epoch(5, 0, 0, 0)
    bench.log.appender.replicas = replicas
    other = PROGRESS.pack(0, 1, 3, 5, 110, 0, 120, 0, 4096, 777, 3, 9, lane_layout.PROGRESS, 0)

    send(bench, ONE + other, 2)

    ends = [(replicas.describe(replica) or {})["end"] for replica in (2, 3)]
    assert ends == [100, 110]


def test_message_with_more_entries_than_bytes_is_rejected(bench: Bench) -> None:
    with pytest.raises(ValueError, match="2 positions of followers in 80 bytes"):
        send(bench, ONE, 2)
