"""Fetches that wait: for bytes, for a timeout, and events that may happen to them meanwhile."""

import pytest
from support.storage.fetch_log import FetchBench

from kbroker._ext.shared import partition_table

pytestmark = pytest.mark.unit

NETWORK_BIT = 1 << 1  # FetchBench's engine is network process 1


@pytest.fixture
def bench(tmp_path):
    return FetchBench(tmp_path)


def park(bench, wanted, version=12, **fields):
    """Send a request that must be parked; returns its token."""
    fields.setdefault("max_wait_ms", 500)
    assert bench.start(wanted, version, **fields) is None
    assert bench.engine.take_completed() == []
    return bench.token


def wake(bench, log):
    """The wake-up of an io worker, if this process has asked for one."""
    if bench.table.waiters(log.slot) & NETWORK_BIT:
        bench.engine.wake_slot(log.slot, bench.now_ms)
        return True
    return False


def test_fetch_at_the_end_waits_and_completes_on_the_wake_up(bench):
    log = bench.log()
    log.append_many(3)
    token = park(bench, {("t", 0): 3})

    log.append()
    assert wake(bench, log)

    done = bench.completed()
    assert list(done) == [token]
    assert bytes(bench.only(done[token]).records) == log.batches[3].data
    assert bench.engine.counts()["parked"] == 0
    assert bench.engine.deadline_ms == -1
    assert not wake(bench, log)


def test_wake_up_without_news_keeps_waiting_and_asks_again(bench):
    log = bench.log()
    park(bench, {("t", 0): 0})

    assert wake(bench, log)

    assert bench.completed() == {}
    assert bench.table.waiters(log.slot) == NETWORK_BIT


def test_min_bytes_are_counted_over_partitions_and_wake_ups(bench):
    logs = bench.topic("t", 3)
    token = park(bench, {("t", i): 0 for i in range(3)}, min_bytes=1000)

    logs[0].append(1, 400)
    wake(bench, logs[0])
    logs[1].append(1, 300)
    wake(bench, logs[1])
    logs[0].append(1, 299)
    wake(bench, logs[0])
    assert bench.completed() == {}
    logs[2].append(1, 61)
    wake(bench, logs[2])

    done = bench.completed()
    sizes = [len(p.records) for p in bench.partitions(done[token]).values()]
    assert sizes == [699, 300, 61]


def test_min_bytes_with_some_at_hand_waits_for_the_rest(bench):
    log = bench.log()
    log.append(1, 400)
    park(bench, {("t", 0): 0}, min_bytes=1000)

    log.append(1, 599)
    wake(bench, log)
    assert bench.completed() == {}
    log.append(1, 61)
    wake(bench, log)

    assert len(bench.only(bench.completed()[bench.token]).records) == 1060


def test_partition_limit_caps_what_is_counted(bench):
    log = bench.log()
    park(bench, {("t", 0): 0}, min_bytes=1000, partition_max_bytes=500)

    log.append_many(20)
    wake(bench, log)

    assert bench.completed() == {}


def test_deadline_returns_what_is_there(bench):
    log = bench.log()
    token = park(bench, {("t", 0): 0}, min_bytes=1000, max_wait_ms=300)
    log.append(1, 200)
    wake(bench, log)
    assert bench.engine.deadline_ms == bench.now_ms + 300

    bench.engine.expire_at(bench.now_ms + 299)
    assert bench.completed() == {}
    bench.engine.expire_at(bench.now_ms + 300)

    assert bytes(bench.only(bench.completed()[token]).records) == log.batches[0].data


def test_deadlines_come_in_order_whatever_order_requests_came_in(bench):
    bench.log()
    waits = [500, 100, 900, 300, 700, 200, 800, 400, 600, 1000, 150]
    tokens = {wait: park(bench, {("t", 0): 0}, max_wait_ms=wait) for wait in waits}
    bench.engine.cancel_token(tokens.pop(100))
    bench.engine.cancel_token(tokens.pop(700))

    seen = []
    while bench.engine.deadline_ms >= 0:
        bench.engine.expire_at(bench.engine.deadline_ms)
        seen += bench.completed()

    assert seen == [tokens[wait] for wait in sorted(tokens)]


@pytest.mark.parametrize("fields", [{"max_wait_ms": 0}, {"max_wait_ms": -1}, {"min_bytes": 0}])
def test_fetch_that_need_not_wait_completes_at_once(bench, fields):
    bench.log()

    assert bench.start({("t", 0): 0}, **{"max_wait_ms": 500, **fields}) is not None


def test_fetch_with_an_error_completes_at_once(bench):
    bench.topic("t", 2)

    response = bench.fetch({("t", 0): 0, ("t", 1): 99}, max_wait_ms=500)

    assert [p.error_code for p in bench.partitions(response).values()] == [0, 1]


def test_one_wake_up_serves_every_request_on_the_slot(bench):
    log = bench.log()
    small = [park(bench, {("t", 0): 0}) for _ in range(5)]
    large = park(bench, {("t", 0): 0}, min_bytes=1000)

    log.append()
    wake(bench, log)

    assert sorted(bench.completed()) == small
    assert bench.table.waiters(log.slot) == NETWORK_BIT
    bench.engine.expire_at(bench.now_ms + 500)
    assert list(bench.completed()) == [large]


def test_append_between_reading_and_asking_is_not_missed(bench):
    """The engine sets its bit, then reads the slot again; the writer publishes, then takes bits."""
    log = bench.log()
    other = bench.log("u")
    park(bench, {("t", 0): 0, ("u", 0): 0}, min_bytes=150)
    log.append()
    wake(bench, log)  # 100 of 150 bytes; parked again, with the bit set before the second look
    assert bench.table.waiters(log.slot) == NETWORK_BIT
    other.append()
    wake(bench, other)

    assert len(bench.completed()) == 1


@pytest.mark.parametrize("state", ["OFFLINE", "LOADING", "CLOSED"])
def test_slot_that_goes_offline_completes_what_waits(bench, state):
    log = bench.log()
    token = park(bench, {("t", 0): 0})

    bench.table.set_state(log.slot, getattr(partition_table, state))
    wake(bench, log)

    assert bench.only(bench.completed()[token]).error_code == (56 if state == "OFFLINE" else 6)


def test_leader_epoch_that_moves_on_completes_with_fenced(bench):
    log = bench.log(leader_epoch=4)
    token = park(bench, {("t", 0): 0}, leader_epoch=4)

    log.leader_epoch = 5
    log.publish()
    wake(bench, log)

    assert bench.only(bench.completed()[token]).error_code == 74


def test_log_start_that_passes_the_offset_completes_out_of_range(bench):
    log = bench.log()
    log.append_many(3)
    log.hold_back(2)
    token = park(bench, {("t", 0): 2})

    log.start_at(3)
    wake(bench, log)

    assert bench.only(bench.completed()[token]).error_code == 1


def test_offset_above_high_watermark_completes_when_it_passes(bench):
    log = bench.log()
    log.append_many(6)
    log.hold_back(2)
    token = park(bench, {("t", 0): 4})

    log.hold_back(4)
    wake(bench, log)
    assert bench.completed() == {}
    log.hold_back(5)
    wake(bench, log)

    assert bytes(bench.only(bench.completed()[token]).records) == log.batches[4].data


def test_read_committed_waits_for_the_last_stable_offset(bench):
    log = bench.log()
    log.append_many(6)
    log.hold_back(6, last_stable=2)
    token = park(bench, {("t", 0): 2}, isolation_level=1)

    log.append()
    log.hold_back(7, last_stable=2)
    wake(bench, log)
    assert bench.completed() == {}
    log.release()
    wake(bench, log)

    assert len(bench.only(bench.completed()[token]).records) == 500


def test_roll_completes_with_the_new_segment(bench):
    log = bench.log()
    log.append_many(2)
    token = park(bench, {("t", 0): 2}, min_bytes=1000)

    log.roll()
    wake(bench, log)
    assert bench.completed() == {}
    log.append()
    wake(bench, log)

    assert bytes(bench.only(bench.completed()[token]).records) == log.batches[2].data


def test_topic_removed_while_waiting_completes_with_unknown(bench):
    bench.log()
    token = park(bench, {("t", 0): 0})

    bench.engine.remove_topic("t")

    assert bench.only(bench.completed()[token]).error_code == 3


def test_topic_moved_to_other_slots_while_waiting_completes_from_there(bench):
    bench.topic("t", 2)
    token = park(bench, {("t", 0): 0})

    bench.engine.put_topic("t", bench.ids["t"], [-1, 1])

    assert bench.only(bench.completed()[token]).error_code == 6


def test_topic_put_again_unchanged_leaves_waiting_requests_alone(bench):
    bench.log()
    park(bench, {("t", 0): 0})

    bench.engine.put_topic("t", bench.ids["t"], bench.slots["t"])

    assert bench.engine.counts()["parked"] == 1


def test_cancelled_request_never_gets_a_response(bench):
    log = bench.log()
    token = park(bench, {("t", 0): 0})

    bench.engine.cancel_token(token)
    bench.engine.cancel_token(token)
    log.append()
    wake(bench, log)
    bench.engine.expire_at(bench.now_ms + 1000)

    assert bench.completed() == {}
    assert bench.engine.counts()["parked"] == 0


def test_partition_named_twice_waits_and_is_in_the_response_twice(bench):
    log = bench.log()
    body = bench.request([(("t", 0), 0), (("t", 0), 0)], max_wait_ms=500, session_epoch=0)
    assert bench.engine.handle_bytes(body, 12, 7012, 77, bench.now_ms) is None

    log.append()
    wake(bench, log)

    response = bench.completed()[77]
    assert [len(p.records) for p in response.responses[0].partitions] == [100, 100]


def test_session_waits_and_returns_news_only(bench):
    logs = bench.topic("t", 3)
    opened = bench.fetch({("t", i): 0 for i in range(3)}, session_epoch=0)
    token = park(bench, {}, session_id=opened.session_id, session_epoch=1)

    logs[2].append()
    wake(bench, logs[2])

    response = bench.completed()[token]
    assert response.session_id == opened.session_id
    assert list(bench.partitions(response)) == [("t", 2)]


def test_request_overtaken_in_its_session_gets_invalid_epoch(bench):
    """A client that reconnects may continue its session while the old connection still waits."""
    bench.log()
    session = bench.fetch({("t", 0): 0}, session_epoch=0).session_id
    token = park(bench, {}, session_id=session, session_epoch=1)

    second = bench.start({}, session_id=session, session_epoch=2, max_wait_ms=500)

    assert second is None
    done = bench.completed()
    assert list(done) == [token]
    assert done[token].error_code == 71
    assert bench.engine.counts()["parked"] == 1


def test_session_closed_while_a_request_waits_still_completes_it(bench):
    log = bench.log()
    session = bench.fetch({("t", 0): 0}, session_epoch=0).session_id
    token = park(bench, {}, session_id=session, session_epoch=1)
    bench.fetch({}, session_id=session, session_epoch=-1)

    log.append()
    wake(bench, log)

    assert len(bench.only(bench.completed()[token]).records) == 100


def test_full_request_that_waited_gets_its_session_when_it_gets_a_response(bench):
    log = bench.log()
    token = park(bench, {("t", 0): 0}, session_epoch=0)
    log.append()
    wake(bench, log)

    session = bench.completed()[token].session_id

    assert session > 0
    again = bench.fetch({("t", 0): 1}, session_id=session, session_epoch=1)
    assert again.responses == []


def test_token_in_use_is_rejected(bench):
    bench.log()
    token = park(bench, {("t", 0): 0})
    body = bench.request({("t", 0): 0}, max_wait_ms=500)

    with pytest.raises(ValueError, match="parked already"):
        bench.engine.handle_bytes(body, 12, 1, token, bench.now_ms)


def test_wake_of_a_slot_nobody_waits_for_does_nothing(bench):
    log = bench.log()

    for slot in (log.slot, 63, 64, -1, 2**31 - 1):
        bench.engine.wake_slot(slot)

    assert bench.table.waiters(log.slot) == 0
