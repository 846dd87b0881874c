"""Consumers that the leader sends to a replica in their rack (KIP-392)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.storage.fetch_log import FetchBench, OwnedLog

from kbroker._ext.shared.partition_table import FOLLOWER, LEADER

pytestmark = pytest.mark.unit

RACK, OTHER_RACK = "near", "far"
NEAR = 2
OUT_OF_RANGE, FENCED = 1, 74
NO_OFFSET = -1
READ_COMMITTED = 1


class Near:
    """Topic t of two partitions; brokers 2 and 3 have replicas of partition 0 in RACK."""

    def __init__(self, path: Path) -> None:
        self.bench = FetchBench(path)
        self.logs: list[OwnedLog] = self.bench.topic(partitions=2)
        for log in self.logs:
            log.append_many(5)
        self.asked: list[tuple[Any, ...]] = []
        self.chosen = NEAR
        self.bench.engine.reader.select = self.select
        topic = self.bench.engine.registry.get(b"t")
        assert topic is not None
        self.topic = topic
        topic.nearby = {RACK.encode(): {0: (2, 3)}}
        self.bench.table.set_followers(self.logs[0].slot, 0, NEAR)

    def select(self, *asked: Any) -> int:
        self.asked.append(asked)
        return self.chosen

    def fetch(self, offset: int = 0, version: int = 12, **fields: Any) -> Any:
        """Partition 0 alone, of a client in RACK."""
        fields = {"rack_id": RACK, "max_wait_ms": 500, **fields}
        return self.bench.only(self.bench.fetch({("t", 0): offset}, version, **fields))


@pytest.fixture
def near(tmp_path: Path) -> Near:
    return Near(tmp_path)


@pytest.mark.parametrize("version", range(11, 19))
def test_consumer_is_sent_to_the_replica_in_its_rack_without_records(near, version):
    answer = near.fetch(version=version)

    assert (answer.error_code, answer.preferred_read_replica) == (0, NEAR)
    assert bytes(answer.records or b"") == b""
    assert (answer.high_watermark, answer.last_stable_offset, answer.log_start_offset) == (5, 5, 0)
    assert near.asked == [((2, 3), 0, NEAR)]
    assert near.bench.engine.reader.redirected_total == 1


def test_consumer_at_the_end_is_sent_at_once(near):
    """It would wait for a record otherwise."""
    assert near.fetch(5).preferred_read_replica == NEAR


def test_consumer_of_committed_records_gets_no_list_of_aborted_transactions(near):
    answer = near.fetch(isolation_level=READ_COMMITTED)

    assert (answer.preferred_read_replica, answer.aborted_transactions) == (NEAR, None)


@pytest.mark.parametrize("rack", ["", OTHER_RACK, RACK + "er"])
def test_consumer_of_another_rack_reads_here(near, rack):
    answer = near.fetch(rack_id=rack)

    assert (answer.preferred_read_replica, len(answer.records)) == (-1, 500)
    assert near.asked == []


def test_consumer_of_an_older_version_reads_here(near):
    response = near.bench.fetch({("t", 0): 0}, 10)

    assert len(near.bench.only(response).records) == 500


@pytest.mark.parametrize("replica", [2, -3])
def test_whoever_reads_up_to_the_log_end_reads_here(near, replica):
    assert len(near.fetch(replica_id=replica).records) == 500


def test_without_a_selector_everybody_reads_here(near):
    near.bench.engine.reader.select = None

    assert len(near.fetch().records) == 500


def test_consumer_reads_here_if_it_reaches_no_replica(near):
    near.chosen = -1

    assert len(near.fetch().records) == 500


def test_follower_sends_nobody_away(near):
    near.bench.table.set_role(near.logs[0].slot, FOLLOWER, 0, 0)

    assert len(near.fetch().records) == 500


@pytest.mark.parametrize(("offset", "near_by"), [(2, False), (3, True)])
def test_consumer_reads_here_what_a_replica_has_deleted(near, offset, near_by):
    near.bench.table.set_followers(near.logs[0].slot, 3, NEAR)

    assert (near.fetch(offset).preferred_read_replica == NEAR) == near_by


def test_nobody_is_sent_away_before_the_replicas_have_said_where_they_are(near):
    log = OwnedLog(near.bench.table, near.logs[0].slot, near.bench.log_dir, "t", 0)
    log.append()

    assert len(near.fetch().records) == 100


@pytest.mark.parametrize(("offset", "near_by"), [(3, True), (4, False)])
def test_consumer_beyond_the_high_watermark_stays(near, offset, near_by):
    """Only up to there is it known what replicas have."""
    near.logs[0].hold_back(3)

    answer = near.fetch(offset, max_wait_ms=0)

    assert (answer.error_code, answer.preferred_read_replica == NEAR) == (0, near_by)


def test_errors_come_first(near):
    near.bench.table.set_role(near.logs[0].slot, LEADER, 3, 0)
    assert near.fetch(leader_epoch=2).error_code == FENCED
    near.logs[0].start_at(2)
    assert near.fetch(1).error_code == OUT_OF_RANGE


def test_other_partitions_of_the_request_are_read_here(near):
    response = near.bench.fetch({("t", 0): 0, ("t", 1): 0}, rack_id=RACK)

    first, second = near.bench.partitions(response).values()
    assert (first.preferred_read_replica, len(first.records)) == (NEAR, 0)
    assert (second.preferred_read_replica, len(second.records)) == (-1, 500)


def test_session_is_told_each_time_it_asks(near):
    wanted = {("t", 0): 5, ("t", 1): 5}
    fields = {"max_wait_ms": 500, "rack_id": RACK}
    begun = near.bench.fetch(wanted, session_epoch=0, **fields)

    for epoch in (1, 2):
        told = near.bench.fetch({}, session_id=begun.session_id, session_epoch=epoch, **fields)
        assert [(key, one.preferred_read_replica) for key, one in
                near.bench.partitions(told).items()] == [(("t", 0), NEAR)]  # fmt: skip


def test_consumer_that_waited_gets_the_records(near):
    """It is sent away with its next request, if it asks here again."""
    near.topic.nearby = None
    assert near.bench.start({("t", 0): 5}, max_wait_ms=500, rack_id=RACK) is None
    near.topic.nearby = {RACK.encode(): {0: (NEAR,)}}

    near.logs[0].append()
    near.bench.engine.wake_slot(near.logs[0].slot, near.bench.now_ms)

    (answer,) = map(near.bench.only, near.bench.completed().values())
    assert (answer.preferred_read_replica, len(answer.records)) == (-1, 100)
    assert near.fetch(6).preferred_read_replica == NEAR
