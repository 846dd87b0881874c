"""Fetches of followers in a network process: responses, and reports to the owners of logs.

A follower's fetch reads up to the log end. It moves nothing by itself: where the follower is goes
to the owner of the slot, which decides what that means.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from support.replication.follower_fetches import NETWORK_BIT, Follower, reports, wake
from support.storage.fetch_log import FetchBench, OwnedLog, follower_fields

from kbroker._ext.shared import session_times
from kbroker._ext.shared.lane_layout import PROGRESS
from kbroker._ext.shared.partition_table import CLOSED, FOLLOWER, LEADER, LOADING, NO_ROLE, OFFLINE
from kbroker._ext.shared.session_times import SessionTimes

pytestmark = pytest.mark.unit

NOT_LEADER, OUT_OF_RANGE, UNKNOWN_TOPIC, STORAGE_ERROR = 6, 1, 3, 56
FENCED, UNKNOWN_EPOCH, NOT_FOUND, BAD_EPOCH = 74, 75, 70, 71
SESSION_VERSIONS = range(7, 19)


@pytest.fixture
def times() -> SessionTimes:
    return SessionTimes(bytearray(session_times.region_size(2)), 1)


@pytest.fixture
def bench(tmp_path: Path, times: SessionTimes) -> FetchBench:
    return FetchBench(tmp_path, times=times)


# ---- deleted records --


def test_follower_that_waits_is_told_at_once_that_records_were_deleted(bench):
    """A DeleteRecords waits for it."""
    log = bench.log()
    log.append_many(5)
    follower = Follower(bench)
    follower.fetch({("t", 0): 5})
    assert follower.start({}, max_wait_ms=500) is None

    log.start_at(3)
    assert wake(bench, log)

    (response,) = bench.completed().values()
    answer = bench.only(response)
    assert (answer.error_code, answer.log_start_offset) == (0, 3)
    assert not answer.records
    assert follower.start({}, max_wait_ms=500) is None


@pytest.mark.parametrize("version", [5, 12])
def test_fetch_without_a_session_is_not_ended_by_a_deletion(bench, version):
    """It is told where the log starts each time: it would end at once, again and again."""
    log = bench.log()
    log.append_many(5)
    log.start_at(3)
    session = {"session_epoch": -1} if version >= 7 else {}
    fields = {**follower_fields(2, version), **session}

    assert bench.start({("t", 0): 5}, version, max_wait_ms=500, **fields) is None

    log.start_at(4)
    assert wake(bench, log)
    assert bench.completed() == {}


# ---- what it gets ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", SESSION_VERSIONS)
@pytest.mark.parametrize("isolation", [0, 1])
def test_follower_reads_up_to_the_log_end_whatever_its_isolation(bench, version, isolation):
    log = bench.log()
    log.append_many(5)
    log.hold_back(2, last_stable=1)

    answer = bench.only(Follower(bench, 2, version).fetch({("t", 0): 1}, isolation_level=isolation))

    assert bytes(answer.records) == b"".join(batch.data for batch in log.batches[1:])
    assert (answer.high_watermark, answer.log_start_offset) == (2, 0)
    assert answer.aborted_transactions is None


def test_consumer_still_reads_up_to_the_high_watermark(bench):
    log = bench.log()
    log.append_many(5)
    log.hold_back(2)

    answer = bench.only(bench.fetch({("t", 0): 1}))

    assert bytes(answer.records) == log.batches[1].data


@pytest.mark.parametrize("version", [11, 12])
def test_debugging_consumer_is_served_as_a_consumer(bench, version):
    """Replica id -2, as in Kafka 2.7."""
    log = bench.log()
    log.append_many(5)
    log.hold_back(2)

    answer = bench.only(bench.fetch({("t", 0): 0}, version, replica_id=-2))

    assert bytes(answer.records) == b"".join(batch.data for batch in log.batches[:2])
    assert reports(bench) == []


@pytest.mark.parametrize("role", [LEADER, FOLLOWER])
def test_replica_id_minus_three_reads_up_to_the_log_end_of_any_replica(bench, role):
    log = bench.log()
    log.append_many(5)
    log.hold_back(2)
    bench.table.set_role(log.slot, role, 0, 0)

    answer = bench.only(bench.fetch({("t", 0): 0}, replica_id=-3))

    assert bytes(answer.records) == b"".join(batch.data for batch in log.batches)
    assert reports(bench) == []


@pytest.mark.parametrize("consumer", [-1, -2])
@pytest.mark.parametrize(("version", "code"), [(10, NOT_LEADER), (11, 0), (12, 0), (18, 0)])
def test_consumer_reads_from_followers_up_to_their_high_watermark(bench, version, code, consumer):
    """-2 are the debugging consumers of Kafka's ReplicaVerificationTool."""
    log = bench.log()
    log.append_many(5)
    log.hold_back(2)
    bench.table.set_role(log.slot, FOLLOWER, 0, 0)

    answer = bench.only(bench.fetch({("t", 0): 0}, version, **follower_fields(consumer, version)))

    expected = b"".join(batch.data for batch in log.batches[:2]) if code == 0 else b""
    assert (answer.error_code, bytes(answer.records or b"")) == (code, expected)


@pytest.mark.parametrize(("offset", "code"), [(1, OUT_OF_RANGE), (2, 0), (5, 0), (6, OUT_OF_RANGE)])
def test_consumer_at_a_follower_is_out_of_range_where_this_replica_has_nothing(bench, offset, code):
    """Beyond the high watermark there is only nothing yet: the consumer may know a later one."""
    log = bench.log()
    log.append_many(5)
    log.start_at(2)
    log.hold_back(3)
    bench.table.set_role(log.slot, FOLLOWER, 0, 0)

    answer = bench.only(bench.fetch({("t", 0): offset}))

    expected = log.batches[2].data if offset == 2 else b""
    assert (answer.error_code, bytes(answer.records or b"")) == (code, expected)


def test_consumer_that_waits_at_a_follower_gets_what_becomes_visible(bench):
    log = bench.log()
    log.append_many(5)
    log.hold_back(2)
    bench.table.set_role(log.slot, FOLLOWER, 0, 0)
    assert bench.start({("t", 0): 2}, max_wait_ms=500) is None

    log.hold_back(4)
    bench.engine.wake_slot(log.slot, bench.now_ms)

    (answer,) = map(bench.only, bench.completed().values())
    assert bytes(answer.records) == b"".join(batch.data for batch in log.batches[2:4])


def test_replica_id_minus_three_gets_nothing_of_a_log_without_a_role(bench):
    log = bench.log()
    log.append_many(5)
    bench.table.set_role(log.slot, NO_ROLE, 0, 0)

    assert bench.only(bench.fetch({("t", 0): 0}, replica_id=-3)).error_code == NOT_LEADER


@pytest.mark.parametrize(
    ("offset", "error"), [(1, OUT_OF_RANGE), (2, 0), (5, 0), (6, OUT_OF_RANGE), (-1, OUT_OF_RANGE)]
)
def test_offset_must_be_between_log_start_and_log_end(bench, offset, error):
    log = bench.log()
    log.append_many(5)
    log.start_at(2)
    log.hold_back(3)

    answer = bench.only(Follower(bench).fetch({("t", 0): offset}))

    assert answer.error_code == error
    assert len(reports(bench)) == (error == 0)


@pytest.mark.parametrize("role", [FOLLOWER, NO_ROLE])
def test_follower_of_a_log_that_is_not_led_here_gets_not_leader(bench, role):
    log = bench.log()
    log.append()
    bench.table.set_role(log.slot, role, 4, 0)

    answer = bench.only(Follower(bench).fetch({("t", 0): 0}))

    assert (answer.error_code, bytes(answer.records or b"")) == (NOT_LEADER, b"")
    assert reports(bench) == []


@pytest.mark.parametrize(
    ("state", "error"), [(LOADING, NOT_LEADER), (CLOSED, NOT_LEADER), (OFFLINE, STORAGE_ERROR)]
)
def test_log_that_is_not_online_is_an_error_and_no_progress(bench, state, error):
    log = bench.log()
    log.append()
    bench.table.set_state(log.slot, state)

    assert bench.only(Follower(bench).fetch({("t", 0): 0})).error_code == error
    assert reports(bench) == []


@pytest.mark.parametrize(("epoch", "error"), [(-1, 0), (4, FENCED), (5, 0), (6, UNKNOWN_EPOCH)])
def test_leader_epoch_of_the_follower_must_be_the_slots(bench, epoch, error):
    bench.log(leader_epoch=5).append()

    answer = bench.only(Follower(bench).fetch({("t", 0): 1}, leader_epoch=epoch))

    assert answer.error_code == error
    assert len(reports(bench)) == (error == 0)


def test_unknown_topic_is_an_error_of_its_partition_alone(bench):
    bench.log().append()

    response = Follower(bench).fetch({("t", 0): 0, ("u", 0): 0, ("t", 9): 0})

    errors = {key: answer.error_code for key, answer in bench.partitions(response).items()}
    assert errors == {("t", 0): 0, ("u", 0): UNKNOWN_TOPIC, ("t", 9): UNKNOWN_TOPIC}
    assert [report.slot for report in reports(bench)] == [0]


# ---- diverging epochs --------------------------------------------------------------------------


def led(bench: FetchBench, latest: int = 5, start: int = 10, previous: int = 3) -> OwnedLog:
    """A log of 20 records with these last epochs."""
    log = bench.log(leader_epoch=5)
    log.append_many(20)
    bench.table.set_epochs(log.slot, latest, start, previous)
    return log


def diverging_end(answer: Any) -> tuple[int, int] | None:
    """The diverging epoch in a response, and its end."""
    found = answer.diverging_epoch
    return None if found is None else (found.epoch, found.end_offset)


@pytest.mark.parametrize(
    ("last_epoch", "offset", "diverging"),
    [
        (5, 20, None),
        (5, 15, None),
        (5, 21, (5, 20)),  # it has more of our epoch than we
        (4, 12, (3, 10)),  # an epoch that we do not have
        (4, 10, (3, 10)),
        (3, 10, None),
        (3, 5, None),
        (3, 11, (3, 10)),
        (3, 99, (3, 10)),
    ],
)
def test_log_of_a_follower_is_compared_by_its_last_epoch(bench, last_epoch, offset, diverging):
    led(bench)

    answer = bench.only(Follower(bench).fetch({("t", 0): offset}, last_fetched_epoch=last_epoch))

    assert answer.error_code == 0
    assert diverging_end(answer) == diverging
    if diverging:
        assert bytes(answer.records) == b""
        assert reports(bench) == [], "what diverges is no progress"
    else:
        assert [report.offset for report in reports(bench)] == [offset]


def test_last_epoch_that_the_leader_does_not_know_is_out_of_range(bench):
    led(bench)

    answer = bench.only(Follower(bench).fetch({("t", 0): 5}, last_fetched_epoch=6))

    assert answer.error_code == OUT_OF_RANGE


def test_offset_below_the_log_start_is_out_of_range_whatever_the_epoch(bench):
    led(bench).start_at(4)

    answer = bench.only(Follower(bench).fetch({("t", 0): 3}, last_fetched_epoch=4))

    assert answer.error_code == OUT_OF_RANGE


def test_epoch_before_the_only_one_ends_where_that_begins(bench):
    led(bench, start=7, previous=-1)

    fits = bench.only(Follower(bench).fetch({("t", 0): 7}, last_fetched_epoch=2))
    diverges = bench.only(Follower(bench, 3).fetch({("t", 0): 8}, last_fetched_epoch=2))

    assert (fits.error_code, diverging_end(fits)) == (0, None)
    assert diverging_end(diverges) == (2, 7)


def test_diverging_follower_is_told_at_once_and_in_each_response(bench):
    log = led(bench)
    log.hold_back(0)
    follower = Follower(bench)
    follower.fetch({("t", 0): 20}, last_fetched_epoch=5)

    for _ in range(2):
        told = follower.fetch({("t", 0): 20}, last_fetched_epoch=4, max_wait_ms=500)
        assert diverging_end(bench.only(told)) == (3, 10)


def test_owner_is_asked_for_an_older_epoch_while_the_fetch_waits(bench):
    led(bench)
    follower = Follower(bench)
    assert follower.start({("t", 0): 4}, last_fetched_epoch=2, max_wait_ms=500) is None

    (question,) = bench.engine.take_epoch_questions()
    assert question == (0, 1, 5, 2)
    assert bench.completed() == {}, "there are bytes, but nobody knows whether they fit"
    bench.engine.put_epoch_ends([(question, (1, 3))], bench.now_ms)

    (answer,) = map(bench.only, bench.completed().values())
    assert diverging_end(answer) == (1, 3)
    assert reports(bench) == []


def test_response_of_the_owner_is_kept(bench):
    log = led(bench)
    follower = Follower(bench)
    follower.start({("t", 0): 4}, last_fetched_epoch=2, max_wait_ms=500)
    (question,) = bench.engine.take_epoch_questions()
    bench.engine.put_epoch_ends([(question, (2, 4))], bench.now_ms)
    (done,) = map(bench.only, bench.completed().values())
    assert bytes(done.records) == b"".join(batch.data for batch in log.batches[4:])
    assert [report.offset for report in reports(bench)] == [4]

    again = bench.only(Follower(bench, 3).fetch({("t", 0): 4}, last_fetched_epoch=2))

    assert (again.error_code, diverging_end(again)) == (0, None)
    assert bench.engine.take_epoch_questions() == []


def test_response_for_another_leader_epoch_is_not_used(bench):
    led(bench)
    follower = Follower(bench)
    follower.start({("t", 0): 4}, last_fetched_epoch=2, max_wait_ms=500)
    (question,) = bench.engine.take_epoch_questions()
    bench.table.set_role(0, LEADER, 6, 0)
    bench.engine.put_epoch_ends([(question, (2, 4))], bench.now_ms)

    (done,) = map(bench.only, bench.completed().values())

    assert done.error_code == NOT_LEADER
    assert [asked[2] for asked in bench.engine.take_epoch_questions()] == [6]


def test_question_without_a_response_ends_the_wait_and_is_asked_again(bench):
    led(bench)
    follower = Follower(bench)
    follower.start({("t", 0): 4}, last_fetched_epoch=2, max_wait_ms=500)
    (question,) = bench.engine.take_epoch_questions()

    bench.engine.put_epoch_ends([(question, None)], bench.now_ms)

    (done,) = map(bench.only, bench.completed().values())
    assert (done.error_code, bytes(done.records or b"")) == (NOT_LEADER, b"")
    assert bench.engine.take_epoch_questions() == [question]


def test_fetch_that_may_not_wait_for_the_owner_gets_an_error_for_that_partition(bench):
    led(bench)
    other = bench.log("u")
    other.append()
    bench.table.set_role(other.slot, LEADER, 0, 0)

    response = Follower(bench).fetch({("t", 0): 4}, last_fetched_epoch=2, max_wait_ms=0)

    assert bench.only(response).error_code == NOT_LEADER
    assert bench.engine.take_epoch_questions() == [(0, 1, 5, 2)]


def test_fetch_waits_for_all_the_epochs_it_has_asked_for(bench):
    logs = bench.topic("t", 3, leader_epoch=5)
    for log in logs:
        log.append_many(5)
        bench.table.set_epochs(log.slot, 5, 3, 4)
    wanted = {("t", index): 2 for index in range(3)}
    assert Follower(bench).start(wanted, last_fetched_epoch=1, max_wait_ms=500) is None
    questions = bench.engine.take_epoch_questions()
    assert [question[0] for question in questions] == [0, 1, 2]

    fits = [(questions[number], (1, 2)) for number in (0, 2)]
    bench.engine.put_epoch_ends(fits, bench.now_ms)
    assert bench.completed() == {}
    bench.engine.put_epoch_ends([(questions[1], (0, 0))], bench.now_ms)

    (done,) = bench.completed().values()
    ends = [diverging_end(answer) for answer in bench.partitions(done).values()]
    assert ends == [None, (0, 0), None]


def test_owner_that_does_not_respond_ends_with_the_deadline(bench):
    led(bench)
    Follower(bench).start({("t", 0): 4}, last_fetched_epoch=2, max_wait_ms=300)

    bench.engine.expire_at(bench.now_ms + 300)

    (done,) = map(bench.only, bench.completed().values())
    assert done.error_code == NOT_LEADER


def test_owner_whose_log_has_no_such_epoch_means_out_of_range(bench):
    led(bench)
    Follower(bench).start({("t", 0): 4}, last_fetched_epoch=2, max_wait_ms=300)
    (question,) = bench.engine.take_epoch_questions()

    bench.engine.put_epoch_ends([(question, (-1, -1))], bench.now_ms)

    (done,) = map(bench.only, bench.completed().values())
    assert done.error_code == OUT_OF_RANGE


@pytest.mark.parametrize("role", [LEADER, FOLLOWER])
@pytest.mark.parametrize(
    ("last_epoch", "offset", "code", "diverging"),
    [(5, 15, 0, None), (4, 15, 0, (3, 10)), (3, 10, 0, None), (6, 15, OUT_OF_RANGE, None)],
)
def test_consumer_is_compared_in_the_same_way(bench, role, last_epoch, offset, code, diverging):
    """Consumers say no last epoch so far; Kafka compares it whoever says it."""
    log = led(bench)
    bench.table.set_role(log.slot, role, 5, 0)

    answer = bench.only(
        bench.fetch({("t", 0): offset}, last_fetched_epoch=last_epoch, max_wait_ms=500)
    )

    assert (answer.error_code, diverging_end(answer)) == (code, diverging)


# ---- the wait ----------------------------------------------------------------------------------


def test_follower_waits_for_the_log_end_and_consumers_for_the_high_watermark(bench):
    log = bench.log()
    log.append_many(3)
    log.hold_back(3)
    follower = Follower(bench)
    follower.fetch({("t", 0): 3})
    assert follower.start({}, max_wait_ms=500) is None
    assert bench.start({("t", 0): 3}, max_wait_ms=500) is None
    consumers_token = bench.token

    log.append()
    assert wake(bench, log)

    (done,) = bench.completed().items()
    assert done[0] == consumers_token - 1
    assert bytes(bench.only(done[1]).records) == log.batches[3].data
    log.hold_back(4)
    assert wake(bench, log)
    assert list(bench.completed()) == [consumers_token]


def test_high_watermark_does_not_complete_a_followers_wait(bench):
    log = bench.log()
    log.append_many(3)
    log.hold_back(1)
    follower = Follower(bench)
    follower.fetch({("t", 0): 3})
    assert follower.start({}, max_wait_ms=500) is None

    log.hold_back(2)
    wake(bench, log)

    assert bench.completed() == {}
    log.append()
    assert wake(bench, log), "it still waits for the log end"
    assert len(bench.completed()) == 1


def test_followers_that_have_nothing_new_are_answered_together(bench):
    """Each wake-up of an idle broker costs more than what it is for."""
    bench.log()
    followers = [Follower(bench, replica) for replica in range(2, 12)]
    for follower in followers:
        follower.fetch({("t", 0): 0})
    wake_ups = 0
    began = bench.now_ms
    for follower in followers:
        bench.now_ms += 37
        assert follower.start({}, max_wait_ms=500) is None
    while bench.now_ms < began + 5000:
        bench.now_ms = bench.engine.deadline_ms
        bench.engine.expire_at(bench.now_ms)
        wake_ups += 1
        bench.now_ms += 1
        for _ in bench.completed():
            follower = followers.pop(0)
            assert follower.start({}, max_wait_ms=500) is None
            followers.append(follower)

    assert wake_ups in (10, 11)


def test_only_the_mask_of_what_is_waited_for_is_set(bench):
    log = bench.log()
    follower = Follower(bench)
    follower.fetch({("t", 0): 0})
    follower.start({}, max_wait_ms=500)
    assert masks(bench, log.slot) == (0, NETWORK_BIT)

    bench.engine.expire_at(bench.now_ms + 500)
    bench.table.waiters(log.slot)
    bench.start({("t", 0): 0}, max_wait_ms=500)

    assert masks(bench, log.slot) == (NETWORK_BIT, 0)


def masks(bench: FetchBench, slot: int) -> tuple[int, int]:
    """The wake-up masks of those that wait for the high watermark, and for the log end."""
    at = 64 + 192 * slot + 8
    return struct.unpack_from("=QQ", bench.region, at)


def test_lead_lost_while_it_waits_ends_the_wait(bench):
    log = bench.log()
    follower = Follower(bench)
    follower.fetch({("t", 0): 0})
    follower.start({}, max_wait_ms=500)

    bench.table.set_role(log.slot, FOLLOWER, 1, 0)
    wake(bench, log)

    (done,) = map(bench.only, bench.completed().values())
    assert done.error_code == NOT_LEADER


# ---- sessions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", SESSION_VERSIONS)
def test_session_of_a_follower_says_what_is_new(bench, version):
    logs = bench.topic("t", 3)
    for log in logs:
        log.append_many(2)
        log.hold_back(0)
    follower = Follower(bench, 2, version)
    first = follower.fetch({("t", index): 2 for index in range(3)})
    assert first.session_id > 0
    logs[1].append()
    logs[2].hold_back(1)

    second = follower.fetch({})

    found = bench.partitions(second)
    assert list(found) == [("t", 1), ("t", 2)]
    assert bytes(found["t", 1].records) == logs[1].batches[2].data
    assert (found["t", 2].high_watermark, bytes(found["t", 2].records)) == (1, b"")


def test_sessions_of_followers_are_no_part_of_the_limit_for_consumers(tmp_path):
    bench = FetchBench(tmp_path, max_sessions=1)
    bench.log()
    assert bench.fetch({("t", 0): 0}, session_epoch=0).session_id > 0

    followers = [Follower(bench, replica) for replica in range(2, 7)]
    for follower in followers:
        assert follower.fetch({("t", 0): 0}).session_id > 0
    bench.now_ms += 10_000_000
    assert bench.fetch({("t", 0): 0}, session_epoch=0).session_id > 0

    for follower in followers:
        assert follower.fetch({}).error_code == 0
    assert bench.engine.counts()["followers"] == 5
    assert bench.engine.counts()["sessions"] == 1


def test_session_is_of_no_use_to_another_replica_or_a_consumer(bench):
    """A client that guesses a session id must not act for the follower."""
    bench.log().append()
    follower = Follower(bench)
    follower.fetch({("t", 0): 1})
    before = reports(bench)
    fields = {"session_id": follower.session, "session_epoch": 1}

    assert bench.fetch({("t", 0): 0}, **fields).error_code == NOT_FOUND
    assert bench.fetch({("t", 0): 0}, replica_id=3, **fields).error_code == NOT_FOUND
    full = {"session_id": follower.session, "session_epoch": 0}
    assert bench.fetch({("t", 0): 0}, **full).error_code == 0
    closing = {"session_id": follower.session, "session_epoch": -1}
    assert bench.fetch({}, **closing).error_code == 0

    assert reports(bench) == before
    assert follower.fetch({}).error_code == 0


def test_session_of_a_consumer_is_of_no_use_to_a_follower(bench):
    bench.log()
    session = bench.fetch({("t", 0): 0}, session_epoch=0).session_id

    response = bench.fetch({}, replica_id=2, session_id=session, session_epoch=1)

    assert response.error_code == NOT_FOUND
    assert bench.fetch({}, session_id=session, session_epoch=1).error_code == 0


def test_wrong_epoch_of_a_session_changes_nothing(bench):
    bench.log().append()
    follower = Follower(bench)
    follower.fetch({("t", 0): 0})
    before = reports(bench)

    wrong = bench.fetch({("t", 0): 1}, replica_id=2, session_id=follower.session, session_epoch=7)

    assert wrong.error_code == BAD_EPOCH
    assert reports(bench) == before


def test_follower_without_a_cell_is_served_without_a_session(bench, times):
    log = bench.log()
    log.append()
    while times.take_cell(5) >= 0:
        pass

    response = Follower(bench).fetch({("t", 0): 0})

    assert response.session_id == 0
    assert bytes(bench.only(response).records) == log.batches[0].data
    (report,) = reports(bench)
    assert (report.cell, report.flags) == (-1, PROGRESS)
