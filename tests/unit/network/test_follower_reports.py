"""Reports to owners about followers: positions, sessions that start and end, restarts."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.replication.follower_fetches import Follower, Report, new_reports, reports, wake
from support.storage.fetch_log import FetchBench, OwnedLog

from kbroker._ext.shared import session_times
from kbroker._ext.shared.lane_layout import ATTACHED, LEFT, PROGRESS
from kbroker._ext.shared.partition_table import LOADING, OFFLINE
from kbroker._ext.shared.session_times import CELLS, SessionTimes

pytestmark = pytest.mark.unit

OUT_OF_RANGE, NOT_FOUND = 1, 70
SESSION_VERSIONS = range(7, 19)


@pytest.fixture
def times() -> SessionTimes:
    return SessionTimes(bytearray(session_times.region_size(2)), 1)


@pytest.fixture
def bench(tmp_path: Path, times: SessionTimes) -> FetchBench:
    return FetchBench(tmp_path, times=times)


# ---- what the owners are told ------------------------------------------------------------------


@pytest.mark.parametrize("version", SESSION_VERSIONS)
def test_first_fetch_attaches_and_tells_everything(bench, times, version):
    log = bench.log(leader_epoch=5)
    log.append_many(4)
    follower = Follower(bench, 7, version)

    follower.fetch({("t", 0): 2}, log_start_offset=1)

    place = log.place(2)
    assert reports(bench) == [
        Report(
            slot=0,
            slot_incarnation=1,
            replica=7,
            leader_epoch=5,
            offset=2,
            log_start=1,
            log_end_seen=4,
            segment=place[1],
            position=place[2],
            request_ms=bench.now_ms,
            segment_version=bench.table.read(0)["segment_version"],
            cell=CELLS,
            flags=ATTACHED | PROGRESS,
            unused=0,
        )
    ]
    assert times.read(CELLS) == bench.now_ms


@pytest.mark.parametrize("version", [4, 5, 6])
def test_fetch_without_a_session_is_reported_each_time(bench, version):
    bench.log().append_many(4)
    follower = Follower(bench, 7, version)

    follower.fetch({("t", 0): 4}, log_start_offset=1 if version >= 5 else -1)
    follower.fetch({("t", 0): 4})

    first, second = reports(bench)
    assert (first.cell, first.flags, first.offset) == (-1, PROGRESS, 4)
    assert first.log_start == (1 if version >= 5 else -1)
    assert second[:5] == first[:5]


def test_idle_partition_costs_no_report_but_its_session_shows_that_it_asks(bench, times):
    bench.topic("t", 3)
    follower = Follower(bench)
    follower.fetch({("t", index): 0 for index in range(3)})
    before = reports(bench)

    for _ in range(3):
        bench.now_ms += 500
        follower.fetch({})

    assert new_reports(bench, before) == []
    assert times.read(CELLS) == bench.now_ms


def test_partitions_whose_offset_changed_are_reported_alone(bench):
    logs = bench.topic("t", 3)
    for log in logs:
        log.append_many(2)
    follower = Follower(bench)
    follower.fetch({("t", index): 2 for index in range(3)})
    before = reports(bench)
    bench.now_ms += 10
    logs[1].append()
    follower.fetch({})
    assert new_reports(bench, before) == []

    follower.fetch({("t", 1): 3})

    (report,) = new_reports(bench, before)
    assert (report.slot, report.offset, report.log_end_seen) == (1, 3, 3)
    assert (report.flags, report.cell, report.request_ms) == (PROGRESS, CELLS, bench.now_ms)


def test_change_of_the_followers_log_start_is_reported(bench):
    bench.log().append_many(4)
    follower = Follower(bench)
    follower.fetch({("t", 0): 4}, log_start_offset=0)
    before = reports(bench)

    follower.fetch({("t", 0): 4}, log_start_offset=3)

    (report,) = new_reports(bench, before)
    assert (report.offset, report.log_start, report.flags) == (4, 3, PROGRESS)


@pytest.mark.parametrize("version", [7, 8])
def test_new_leader_epoch_is_reported_even_if_the_follower_says_nothing_new(bench, version):
    """Below version 9 a follower does not send the epoch, so its session has nothing to change."""
    log = bench.log()
    log.append_many(4)
    follower = Follower(bench, 2, version)
    follower.fetch({("t", 0): 4})
    before = reports(bench)

    log.leader_epoch = 1
    log.publish()
    wake(bench, log)
    follower.fetch({})

    (report,) = new_reports(bench, before)
    assert (report.leader_epoch, report.offset, report.flags) == (1, 4, ATTACHED | PROGRESS)


def test_wait_is_reported_when_it_begins_and_not_when_it_ends(bench):
    """When it ends the follower has not got the records yet."""
    log = bench.log()
    follower = Follower(bench)
    assert follower.start({("t", 0): 0}, max_wait_ms=500) is None
    before = reports(bench)
    assert len(before) == 1

    log.append()
    wake(bench, log)

    assert len(bench.completed()) == 1
    assert reports(bench) == before


def test_offset_at_the_log_end_has_its_place(bench):
    log = bench.log()
    log.append_many(3)
    log.roll()

    Follower(bench).fetch({("t", 0): 3})

    (report,) = reports(bench)
    assert (report.segment, report.position) == (3, 0)


def test_partition_without_room_in_the_response_is_reported_without_a_place(bench):
    logs = bench.topic("t", 2)
    for log in logs:
        log.append(1, 1000)
    follower = Follower(bench)

    follower.fetch({("t", 0): 0, ("t", 1): 0}, max_bytes=1)

    assert [(r.slot, r.segment, r.position) for r in reports(bench)] == [(0, 0, 0), (1, -1, -1)]


def test_owner_gets_the_reports_of_its_slots(tmp_path):
    bench = FetchBench(tmp_path, io_workers=3)
    bench.topic("t", 5)

    Follower(bench).fetch({("t", index): 0 for index in range(5)})

    slots = [[report.slot for report in reports(bench, worker)] for worker in range(3)]
    assert slots == [[0, 3], [1, 4], [2]]


def test_forgotten_partition_has_left(bench):
    bench.topic("t", 2)
    follower = Follower(bench)
    follower.fetch({("t", 0): 0, ("t", 1): 0})
    before = reports(bench)
    asked_ms, bench.now_ms = bench.now_ms, bench.now_ms + 70

    follower.fetch({}, forget=[("t", 1), ("t", 8), ("u", 0)])

    (report,) = new_reports(bench, before)
    assert (report.slot, report.replica, report.cell, report.flags) == (1, 2, CELLS, LEFT)
    assert (report.slot_incarnation, report.offset, report.request_ms) == (1, -1, asked_ms)


def test_partition_that_comes_back_attaches_again(bench):
    bench.topic("t", 2)
    follower = Follower(bench)
    follower.fetch({("t", 0): 0, ("t", 1): 0})
    follower.fetch({}, forget=[("t", 1)])
    before = reports(bench)

    follower.fetch({("t", 1): 0})

    (report,) = new_reports(bench, before)
    assert (report.slot, report.flags) == (1, ATTACHED | PROGRESS)


def test_end_of_the_session_leaves_everything_and_frees_its_cell(bench, times):
    bench.topic("t", 3)
    follower = Follower(bench)
    follower.fetch({("t", 0): 0, ("t", 1): 0, ("t", 9): 0})
    before = reports(bench)

    bench.engine.end_session(follower.session)
    bench.engine.end_session(follower.session)  # there is none any more

    left = new_reports(bench, before)
    assert [(report.slot, report.flags) for report in left] == [(0, LEFT), (1, LEFT)]
    assert times.read(CELLS) == 0
    assert follower.fetch({}).error_code == NOT_FOUND


@pytest.mark.parametrize("epoch", [0, -1])
def test_full_fetch_in_place_of_a_session_ends_that(bench, times, epoch):
    bench.log()
    follower = Follower(bench)
    follower.fetch({("t", 0): 0})
    before = reports(bench)

    response = bench.fetch(
        {("t", 0): 0}, replica_id=2, session_id=follower.session, session_epoch=epoch
    )

    left, came = new_reports(bench, before)
    assert (left.flags, left.cell) == (LEFT, CELLS)
    if epoch == 0:
        assert response.session_id not in (0, follower.session)
        assert (came.flags, came.cell) == (ATTACHED | PROGRESS, CELLS + 1)
    else:
        assert response.session_id == 0
        assert (came.flags, came.cell) == (PROGRESS, -1)


def test_session_that_has_forgotten_everything_ends(bench, times):
    bench.log()
    follower = Follower(bench)
    follower.fetch({("t", 0): 0})

    assert follower.fetch({}, forget=[("t", 0)]).session_id == 0

    assert times.read(CELLS) == 0
    assert reports(bench)[-1].flags == LEFT


def test_ended_session_that_waits_says_nothing_more(bench):
    log = bench.log()
    follower = Follower(bench)
    follower.fetch({("t", 0): 0})
    follower.start({}, max_wait_ms=500)
    bench.engine.end_session(follower.session)
    before = reports(bench)

    log.leader_epoch = 3
    log.append()
    wake(bench, log)
    bench.engine.expire_at(bench.now_ms + 500)

    assert len(bench.completed()) == 1
    assert reports(bench) == before


def test_topic_that_is_gone_has_left(bench):
    bench.log()
    follower = Follower(bench)
    follower.fetch({("t", 0): 0})
    before = reports(bench)

    bench.engine.remove_topic("t")
    follower.fetch({})

    (report,) = new_reports(bench, before)
    assert (report.slot, report.flags) == (0, LEFT)


def test_slot_given_to_another_replica_has_left_and_the_new_one_attaches(bench):
    bench.log()
    other = OwnedLog(bench.table, 9, bench.log_dir, "t", 0)
    follower = Follower(bench)
    follower.fetch({("t", 0): 0})
    before = reports(bench)

    bench.engine.put_topic("t", bench.ids["t"], [other.slot])
    follower.fetch({})

    left, came = new_reports(bench, before)
    assert (left.slot, left.flags) == (0, LEFT)
    assert (came.slot, came.flags) == (9, ATTACHED | PROGRESS)


def test_error_of_a_partition_is_no_progress_until_it_is_over(bench):
    log = bench.log()
    log.append_many(3)
    follower = Follower(bench)
    follower.fetch({("t", 0): 1})
    before = reports(bench)
    bench.table.set_state(log.slot, OFFLINE)
    follower.fetch({("t", 0): 2})
    assert new_reports(bench, before) == []

    bench.table.set_state(log.slot, 1)
    follower.fetch({})

    assert [report.offset for report in new_reports(bench, before)] == [2]


# ---- an io worker that was restarted -----------------------------------------------------------


def test_restarted_owner_is_told_everything_again(tmp_path):
    bench = FetchBench(tmp_path, io_workers=2)
    logs = bench.topic("t", 4)
    for log in logs:
        log.append_many(3)
    followers = [Follower(bench, replica) for replica in (5, 6)]
    for follower in followers:
        follower.fetch({("t", index): 1 for index in range(4)}, log_start_offset=1)
    others = reports(bench, 1)

    bench.engine.tell_again(0)

    assert reports(bench, 1) == others
    again = reports(bench, 0)
    assert [(r.slot, r.replica, r.offset, r.log_start, r.flags) for r in again] == [
        (slot, replica, 1, 1, ATTACHED | PROGRESS) for replica in (5, 6) for slot in (0, 2)
    ]


def test_log_that_is_not_back_yet_is_reported_by_the_next_fetch(bench):
    log = bench.log()
    log.append_many(3)
    follower = Follower(bench)
    follower.fetch({("t", 0): 2})
    bench.table.set_state(log.slot, LOADING)

    bench.engine.tell_again(0)
    assert reports(bench) == []
    follower.fetch({})
    assert reports(bench) == []
    bench.table.set_state(log.slot, 1)
    follower.fetch({})

    (report,) = reports(bench)
    assert (report.offset, report.flags) == (2, ATTACHED | PROGRESS)


def test_offset_that_was_rejected_is_not_told_a_restarted_owner(bench):
    bench.log().append_many(3)
    follower = Follower(bench)
    follower.fetch({("t", 0): 2})
    assert bench.only(follower.fetch({("t", 0): 99})).error_code == OUT_OF_RANGE

    bench.engine.tell_again(0)

    assert [report.offset for report in reports(bench)] == [2]


# ---- replicas that are none --------------------------------------------------------------------


def test_any_replica_id_is_served_and_reported(bench):
    """The owner knows the assignment, and ignores other replicas."""
    log = bench.log()
    log.append()

    answer = bench.only(Follower(bench, 0x7FFFFFFF).fetch({("t", 0): 0}))

    assert bytes(answer.records) == log.batches[0].data
    assert [report.replica for report in reports(bench)] == [0x7FFFFFFF]


def test_partition_named_twice_attaches_once_as_the_later(bench):
    bench.log().append_many(3)

    Follower(bench).fetch([(("t", 0), 1), (("t", 0), 3)])

    assert [report.offset for report in reports(bench)] == [3]
