"""Incremental fetch sessions (KIP-227)."""

import pytest
from support.storage.fetch_log import FetchBench

pytestmark = pytest.mark.unit

NOT_FOUND, BAD_EPOCH, TOPIC_ID_ERROR = 70, 71, 106


@pytest.fixture
def bench(tmp_path):
    return FetchBench(tmp_path)


def open_session(bench, wanted, version=12, **fields):
    response = bench.fetch(wanted, version, session_epoch=0, **fields)
    assert response.error_code == 0
    assert response.session_id > 0
    return response.session_id


def go_on(bench, session_id, epoch, wanted=(), version=12, **fields):
    return bench.fetch(dict(wanted), version, session_id=session_id, session_epoch=epoch, **fields)


def keys(bench, response):
    return list(bench.partitions(response))


@pytest.mark.parametrize("version", range(7, 19))
def test_session_reply_leaves_out_partitions_with_nothing_new(bench, version):
    logs = bench.topic("t", 3)
    for log in logs:
        log.append_many(2)
    session = open_session(bench, {("t", i): 2 for i in range(3)}, version)
    logs[1].append()

    first = go_on(bench, session, 1, version=version)
    second = go_on(bench, session, 2, {("t", 1): 3}, version=version)

    assert first.session_id == second.session_id == session
    assert keys(bench, first) == [("t", 1)]
    assert bytes(bench.only(first).records) == logs[1].batches[2].data
    assert second.responses == []


def test_full_reply_holds_every_partition_with_or_without_records(bench):
    bench.topic("t", 3)[2].append()

    response = bench.fetch({("t", i): 0 for i in range(3)}, session_epoch=0)

    assert keys(bench, response) == [("t", 0), ("t", 1), ("t", 2)]


def test_request_without_a_session_gets_none(bench):
    bench.log().append()

    assert bench.fetch({("t", 0): 0}).session_id == 0
    assert bench.engine.counts()["sessions"] == 0


def test_session_says_again_what_changed_high_watermark_or_log_start(bench):
    log = bench.log()
    log.append_many(5)
    log.hold_back(3)
    session = open_session(bench, {("t", 0): 3})

    log.hold_back(3)
    assert go_on(bench, session, 1).responses == []
    log.hold_back(4)
    log.append()
    moved = go_on(bench, session, 2, {("t", 0): 6})
    log.start_at(1)
    started = go_on(bench, session, 3)

    assert bench.only(moved).high_watermark == 4
    assert bench.only(started).log_start_offset == 1
    assert bytes(bench.only(started).records) == b""
    assert go_on(bench, session, 4).responses == []


def test_session_reports_an_error_each_time_and_offsets_again_after_it(bench):
    from kbroker._ext.shared import partition_table

    log = bench.log()
    log.append_many(2)
    session = open_session(bench, {("t", 0): 2})
    bench.table.set_state(log.slot, partition_table.OFFLINE)
    for epoch in (1, 2):
        assert bench.only(go_on(bench, session, epoch)).error_code == 56
    bench.table.set_state(log.slot, partition_table.ONLINE)

    healed = bench.only(go_on(bench, session, 3))

    assert (healed.error_code, healed.high_watermark) == (0, 2)
    assert go_on(bench, session, 4).responses == []


def test_session_forgets_and_adds_partitions(bench):
    logs = bench.topic("t", 4)
    session = open_session(bench, {("t", 0): 0, ("t", 1): 0})
    for log in logs:
        log.append()

    response = go_on(bench, session, 1, {("t", 3): 0}, forget=[("t", 0), ("t", 2)])

    assert keys(bench, response) == [("t", 1), ("t", 3)]


@pytest.mark.parametrize("version", [12, 13])
def test_session_update_and_forget_over_many_partitions_keeps_the_right_ones(tmp_path, version):
    bench = FetchBench(tmp_path, slots=400)
    logs = bench.topic("t", 300)
    session = open_session(bench, {("t", i): 0 for i in range(0, 300, 2)}, version)
    gone = [("t", i) for i in range(0, 300, 6)]
    added = {("t", i): 0 for i in range(1, 300, 2)}
    go_on(bench, session, 1, added, version, forget=gone)
    for log in logs:
        log.append()

    response = go_on(bench, session, 2, version=version)

    assert sorted(index for _, index in keys(bench, response)) == [
        i for i in range(300) if i % 2 or i % 6
    ]


def test_session_emptied_by_its_client_is_closed(bench):
    bench.topic("t", 1)
    session = open_session(bench, {("t", 0): 0})

    response = go_on(bench, session, 1, forget=[("t", 0)], max_wait_ms=1000)

    assert (response.session_id, response.responses) == (0, [])
    assert bench.engine.counts()["sessions"] == 0


def test_partitions_in_the_response_move_to_the_end(bench):
    logs = bench.topic("t", 4)
    session = open_session(bench, {("t", i): 0 for i in range(4)})
    for log in logs:
        log.append_many(5, size=1000)

    served = []
    at = {("t", i): 0 for i in range(4)}
    changed = {}
    for epoch in range(1, 9):
        response = go_on(bench, session, epoch, changed, max_bytes=2000)
        changed = {}
        for key, partition in bench.partitions(response).items():
            if len(partition.records):
                at[key] += len(partition.records) // 1000
                changed[key] = at[key]
                served.append(key[1])

    assert served == [0, 1, 2, 3, 0, 1, 2, 3]


def test_unknown_session_is_not_found_and_a_wrong_epoch_rejected(bench):
    bench.log()
    session = open_session(bench, {("t", 0): 0})

    assert go_on(bench, session + 64, 1).error_code == NOT_FOUND
    assert go_on(bench, session, 2).error_code == BAD_EPOCH
    assert go_on(bench, session, -7).error_code == BAD_EPOCH
    rejected = go_on(bench, session, 5)
    assert (rejected.session_id, rejected.responses) == (0, [])
    assert go_on(bench, session, 1).error_code == 0


def test_session_by_name_rejects_topic_ids_and_the_reverse(bench):
    bench.log()
    by_name = open_session(bench, {("t", 0): 0}, 12)
    by_id = open_session(bench, {("t", 0): 0}, 13)

    assert go_on(bench, by_name, 1, version=13).error_code == TOPIC_ID_ERROR
    assert go_on(bench, by_id, 1, version=12).error_code == TOPIC_ID_ERROR


@pytest.mark.parametrize("epoch", [0, -1])
def test_full_request_with_a_session_id_ends_that_session(bench, epoch):
    bench.log()
    session = open_session(bench, {("t", 0): 0})

    response = bench.fetch({("t", 0): 0}, session_id=session, session_epoch=epoch)

    assert (response.session_id > 0) == (epoch == 0)
    assert go_on(bench, session, 1).error_code == NOT_FOUND


def test_session_epoch_advances_by_one_per_request(bench):
    bench.log()
    session = open_session(bench, {("t", 0): 0})

    for epoch in range(1, 200):
        assert go_on(bench, session, epoch).error_code == 0
    assert go_on(bench, session, 199).error_code == BAD_EPOCH


def test_sessions_are_limited_and_an_idle_one_makes_room(tmp_path):
    bench = FetchBench(tmp_path, max_sessions=2)
    bench.log()
    first = open_session(bench, {("t", 0): 0})
    bench.now_ms += 60_000
    second = open_session(bench, {("t", 0): 0})
    assert bench.fetch({("t", 0): 0}, session_epoch=0).session_id == 0
    bench.now_ms += 61_000
    third = open_session(bench, {("t", 0): 0})

    assert go_on(bench, first, 1).error_code == NOT_FOUND
    assert go_on(bench, second, 1).error_code == 0
    assert go_on(bench, third, 1).error_code == 0
    assert bench.engine.counts()["session_evictions"] == 1


def test_session_used_last_is_not_the_one_evicted(tmp_path):
    bench = FetchBench(tmp_path, max_sessions=2)
    bench.log()
    first = open_session(bench, {("t", 0): 0})
    second = open_session(bench, {("t", 0): 0})
    bench.now_ms += 121_000
    go_on(bench, first, 1)
    open_session(bench, {("t", 0): 0})

    assert go_on(bench, first, 2).error_code == 0
    assert go_on(bench, second, 1).error_code == NOT_FOUND


def test_cache_of_no_sessions_responds_without_one(tmp_path):
    bench = FetchBench(tmp_path, max_sessions=0)
    bench.log()

    assert bench.fetch({("t", 0): 0}, session_epoch=0).session_id == 0


@pytest.mark.parametrize("version", [12, 13])
def test_session_sees_a_topic_that_is_created_later(bench, version):
    bench.ids["t"] = b"t" * 16
    session = open_session(bench, {("t", 0): 0}, version)
    error = bench.only(go_on(bench, session, 1, version=version)).error_code
    real = bench.ids["t"]
    log = bench.log()
    bench.engine.remove_topic("t")
    bench.ids["t"] = real
    bench.engine.put_topic("t", real, bench.slots["t"])
    log.append()

    response = go_on(bench, session, 2, version=version)
    named_again = go_on(bench, session, 3, {("t", 0): 1}, version)

    assert error == (100 if version == 13 else 3)
    assert bytes(bench.only(response).records) == log.batches[0].data
    assert named_again.responses == []


@pytest.mark.parametrize(("version", "code"), [(12, 0), (13, 103)])
def test_session_on_a_topic_recreated_responds_by_name_but_not_by_id(bench, version, code):
    bench.log()
    session = open_session(bench, {("t", 0): 0}, version)
    old = bench.ids["t"]
    log = bench.topic("t", 1)[0]
    log.append()
    fresh = bench.ids["t"]
    bench.ids["t"] = old

    partition = bench.only(go_on(bench, session, 1, version=version))

    assert fresh != old
    assert partition.error_code == code
    assert len(partition.records) == (0 if code else 100)


@pytest.mark.parametrize("version", [12, 13, 18])
def test_deleted_topic_that_a_session_knew_is_unknown_by_its_name(bench, version):
    """As Kafka 3.9 and 4.3 answer by topic id, too: the session has resolved it."""
    bench.log()
    session = open_session(bench, {("t", 0): 0}, version)
    bench.engine.remove_topic("t")

    response = go_on(bench, session, 1, version=version)

    assert bench.only(response).error_code == 3


def test_topic_id_that_nobody_knew_is_unknown(bench):
    bench.log()
    bench.ids["t"] = bytes(range(1, 17))

    assert bench.only(bench.fetch([(("t", 0), 0)], version=13)).error_code == 100


def test_deleted_topic_is_unknown_once_per_partition_and_can_be_forgotten(bench):
    bench.topic("t", 2)
    session = open_session(bench, {("t", 0): 0, ("t", 1): 0})
    bench.engine.remove_topic("t")

    response = go_on(bench, session, 1, {("t", 0): 0})
    after = go_on(bench, session, 2, forget=[("t", 0)])

    assert [p.error_code for p in bench.partitions(response).values()] == [3, 3]
    assert keys(bench, after) == [("t", 1)]


def test_partition_named_twice_is_kept_once_in_its_session(bench):
    log = bench.log()
    response = bench.fetch([(("t", 0), 0)], session_epoch=0)
    twice = bench.request([(("t", 0), 0), (("t", 0), 1)], session_epoch=0)
    reply = bench.engine.handle_bytes(twice, 12, 7012, 9, bench.now_ms)
    session = bench.response(reply, 12).session_id
    log.append_many(3)

    assert response.session_id != session
    assert bytes(bench.only(go_on(bench, session, 1)).records) == log.expected(
        1, log.end, 1 << 20, first=True
    )


def test_session_id_carries_the_network_process(bench):
    """So that no other network process takes it for one of its own."""
    bench.log()
    session = open_session(bench, {("t", 0): 0})

    assert session % 64 == bench.engine.network_index
