"""Partitions of a follower's session without changes: no request looks at them."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.replication.follower_fetches import NETWORK_BIT, Follower, new_reports, reports, wake
from support.storage.fetch_log import FetchBench, OwnedLog

from kbroker._ext.shared.lane_layout import LEFT
from kbroker._ext.shared.partition_table import FOLLOWER

pytestmark = pytest.mark.unit

NOT_LEADER, UNKNOWN_TOPIC = 6, 3


@pytest.fixture
def bench(tmp_path: Path) -> FetchBench:
    return FetchBench(tmp_path)


def standing(bench: FetchBench) -> int:
    return bench.engine.counts()["standing"]


def idle(bench: FetchBench, count: int = 3) -> tuple[list[OwnedLog], Follower]:
    """A follower that is at the log end of all partitions."""
    logs = bench.topic("t", count)
    for log in logs:
        log.append_many(2)
    follower = Follower(bench)
    follower.fetch({("t", index): 2 for index in range(count)})
    return logs, follower


def test_partitions_at_the_log_end_stand_with_the_mask_set(bench):
    logs, _ = idle(bench)

    assert standing(bench) == 3
    assert [bench.table.waiters(log.slot) for log in logs] == [NETWORK_BIT] * 3


def test_requests_do_not_look_at_what_stands(bench):
    """A slot that changes without a wake-up is not noticed: nobody has read it."""
    logs, follower = idle(bench)
    logs[1].append()

    assert follower.fetch({}).responses == []
    assert standing(bench) == 3
    wake(bench, logs[1])
    assert list(bench.partitions(follower.fetch({}))) == [("t", 1)]


def test_append_wakes_the_partition_and_ends_the_wait(bench):
    logs, follower = idle(bench)
    assert follower.start({}, max_wait_ms=500) is None
    logs[1].append()

    assert wake(bench, logs[1])

    (done,) = bench.completed().values()
    assert list(bench.partitions(done)) == [("t", 1)]
    assert standing(bench) == 2
    follower.fetch({("t", 1): 3})
    assert standing(bench) == 3


def test_wait_counts_the_bytes_of_all_partitions(bench):
    logs, follower = idle(bench)
    assert follower.start({}, max_wait_ms=500, min_bytes=1000) is None
    logs[0].append(1, 600)
    assert wake(bench, logs[0])
    assert bench.completed() == {}

    logs[2].append(1, 600)
    assert wake(bench, logs[2])

    (done,) = bench.completed().values()
    assert sorted(bench.partitions(done)) == [("t", 0), ("t", 2)]


def test_partition_whose_high_watermark_is_behind_does_not_stand(bench):
    """It is about to advance, and followers are not woken for it."""
    log = bench.log()
    log.append_many(2)
    log.hold_back(1)
    follower = Follower(bench)
    follower.fetch({("t", 0): 2})
    assert standing(bench) == 0

    log.release()
    told = bench.only(follower.fetch({}))

    assert (told.high_watermark, standing(bench)) == (2, 1)
    assert follower.fetch({}).responses == []


def test_log_start_that_moves_is_told(bench):
    logs, follower = idle(bench)
    logs[0].start_at(1)
    wake(bench, logs[0])

    assert bench.only(follower.fetch({})).log_start_offset == 1
    assert standing(bench) == 3


def test_lost_lead_is_told(bench):
    logs, follower = idle(bench)
    assert follower.start({}, max_wait_ms=500) is None
    bench.table.set_role(logs[2].slot, FOLLOWER, 1, 0)
    wake(bench, logs[2])

    (done,) = bench.completed().values()
    assert bench.only(done).error_code == NOT_LEADER
    assert standing(bench) == 2


def test_standing_partition_may_be_forgotten_and_named(bench):
    logs, follower = idle(bench)
    before = reports(bench)
    follower.fetch({("t", 1): 1}, forget=[("t", 0)])

    left, back = new_reports(bench, before)
    assert (left.slot, left.flags) == (0, LEFT)
    assert (back.slot, back.offset) == (1, 1)
    assert standing(bench) == 1
    logs[0].append()
    wake(bench, logs[0])
    answers = bench.partitions(follower.fetch({("t", 1): 2}))
    assert answers == {}
    assert standing(bench) == 2


def test_removed_topic_ends_the_wait_of_what_stands(bench):
    _, follower = idle(bench)
    assert follower.start({}, max_wait_ms=500) is None

    bench.engine.remove_topic("t")

    (done,) = bench.completed().values()
    errors = [response.error_code for response in bench.partitions(done).values()]
    assert errors == [UNKNOWN_TOPIC] * 3
    assert standing(bench) == 0


def test_ended_session_does_not_stand(bench):
    logs, follower = idle(bench)
    others = Follower(bench, 5)
    others.fetch({("t", 0): 2})
    before = reports(bench)

    bench.engine.end_session(follower.session)

    assert standing(bench) == 1
    assert [report.slot for report in new_reports(bench, before)] == [0, 1, 2]
    logs[0].append()
    wake(bench, logs[0])
    assert list(bench.partitions(others.fetch({}))) == [("t", 0)]


def test_sessions_stand_in_one_slot_side_by_side(bench):
    logs, first = idle(bench, 1)
    second, third = Follower(bench, 5), Follower(bench, 6)
    for follower in (second, third):
        follower.fetch({("t", 0): 2})
        assert follower.start({}, max_wait_ms=500) is None
    assert standing(bench) == 3

    logs[0].append()
    wake(bench, logs[0])

    assert len(bench.completed()) == 2
    assert list(bench.partitions(first.fetch({}))) == [("t", 0)]


def test_consumers_do_not_stand(bench):
    bench.log()
    session = bench.fetch({("t", 0): 0}, session_epoch=0).session_id
    bench.fetch({}, session_id=session, session_epoch=1)

    assert standing(bench) == 0


def test_restarted_owner_is_told_of_what_stands(bench):
    idle(bench)
    bench.engine.tell_again(0)

    assert [report.offset for report in reports(bench)] == [2, 2, 2]
    assert standing(bench) == 3
