"""Which bytes a fetch finds, in every state of a log, and the cost of finding them."""

import os
import struct

import pytest
from support.storage.fetch_log import FetchBench

pytestmark = pytest.mark.unit

OUT_OF_RANGE, CORRUPT, UNKNOWN, NOT_LEADER, STORAGE = 1, 2, 3, 6, 56


@pytest.fixture
def bench(tmp_path):
    return FetchBench(tmp_path)


def records(bench, offset, **limits):
    partition = bench.only(bench.fetch({("t", 0): offset}, **limits))
    assert partition.error_code == 0
    return bytes(partition.records)


def error(bench, offset, **limits):
    partition = bench.only(bench.fetch({("t", 0): offset}, **limits))
    assert bytes(partition.records) == b""
    return partition.error_code


def read_whole_log(bench, log, start=0, **limits):
    """Read the log as a consumer does: continue after the last whole batch of each response."""
    at, seen = start, []
    while at < log.end[0]:
        data = records(bench, at, **limits)
        assert data, f"no progress at {at}"
        while len(data) >= 12:
            base, length = struct.unpack_from(">qi", data)
            if len(data) < 12 + length:
                break
            last = base + struct.unpack_from(">i", data, 23)[0]
            if last >= at:
                seen.append(base)
                at = last + 1
            data = data[12 + length :]
    return seen


def test_fetch_at_log_end_is_empty_and_not_an_error(bench):
    log = bench.log()
    log.append_many(3)

    assert records(bench, 3) == b""


@pytest.mark.parametrize("offset", [-1, 1, 11, 2**62])
def test_fetch_outside_the_log_is_out_of_range(bench, offset):
    log = bench.log()
    log.append_many(10)
    log.start_at(2)

    assert error(bench, offset) == OUT_OF_RANGE


def test_fetch_at_log_start_and_inside_a_batch_brings_the_whole_batch(bench):
    log = bench.log()
    log.append_many(4, records=10)
    log.start_at(13)

    assert records(bench, 13) == b"".join(batch.data for batch in log.batches[1:])
    assert records(bench, 39) == log.batches[3].data


def test_fetch_between_high_watermark_and_log_end_is_empty(bench):
    log = bench.log()
    log.append_many(10)
    log.hold_back(6)

    assert records(bench, 5) == log.batches[5].data
    assert records(bench, 6) == b""
    assert records(bench, 9) == b""
    assert records(bench, 10) == b""


def test_fetch_smaller_than_the_first_batch_brings_it_whole(bench):
    log = bench.log()
    log.append(1, 5000)
    log.append(1, 5000)

    assert records(bench, 0, max_bytes=1) == log.batches[0].data
    assert records(bench, 0, partition_max_bytes=0) == log.batches[0].data
    assert records(bench, 0, max_bytes=-5, partition_max_bytes=-5) == log.batches[0].data


def test_fetch_ends_at_the_byte_limit_inside_a_batch(bench):
    log = bench.log()
    log.append_many(10, size=1000)

    whole = b"".join(batch.data for batch in log.batches)
    assert records(bench, 0, partition_max_bytes=2500) == whole[:2500]
    assert records(bench, 0, max_bytes=1000) == whole[:1000]
    assert records(bench, 0, max_bytes=10000) == whole


def test_fetch_total_limit_is_shared_and_every_partition_gets_a_response(bench):
    logs = bench.topic("t", 4)
    for log in logs:
        log.append_many(10, size=1000)

    found = bench.partitions(bench.fetch({("t", i): 0 for i in range(4)}, max_bytes=15500))

    sizes = [len(partition.records) for partition in found.values()]
    assert sizes == [10000, 5500, 0, 0]
    assert [partition.high_watermark for partition in found.values()] == [10] * 4


def test_fetch_limit_left_below_a_batch_brings_nothing_of_the_next_partition(bench):
    logs = bench.topic("t", 2)
    for log in logs:
        log.append_many(10, size=1000)

    found = bench.partitions(bench.fetch({("t", 0): 0, ("t", 1): 0}, max_bytes=10999))

    assert [len(partition.records) for partition in found.values()] == [10000, 0]


def test_tailing_fetch_searches_no_index_and_reads_no_header(bench):
    log = bench.log()
    log.append_many(50, size=1000)
    records(bench, 7)
    before = bench.engine.log_counts("t", 0)

    for _ in range(20):
        at = log.end[0]
        log.append(3, 700)
        assert records(bench, at) == log.batches[-1].data

    assert bench.engine.log_counts("t", 0) == before
    assert bench.engine.counts()["opened_total"] == 2


def test_catching_up_by_cut_ranges_costs_two_reads_each(bench):
    log = bench.log()
    log.append_many(2000, size=700)

    assert len(read_whole_log(bench, log, partition_max_bytes=100_000)) == 2000

    counts = bench.engine.log_counts("t", 0)
    assert counts["index_searches"] <= 15
    assert counts["header_reads"] <= 45


@pytest.mark.parametrize("damage", ["missing", "short", "padded", "wild", "odd_size", "ahead"])
def test_fetch_with_an_index_in_any_state_finds_the_same_bytes(bench, damage):
    log = bench.log(index_interval=500)
    log.append_many(300, size=300)
    index = log.path(0, ".index")
    data = index.read_bytes()
    if damage == "missing":
        index.unlink()
    elif damage == "short":
        index.write_bytes(data[: len(data) // 16 * 8])
    elif damage == "padded":
        index.write_bytes(data + bytes(80000))
    elif damage == "wild":
        index.write_bytes(os.urandom(len(data)))
    elif damage == "odd_size":
        index.write_bytes(data[:-3])
    else:  # entries of batches that are not published yet
        log.hold_back(150)

    for offset in (0, 1, 2, 99, 149):
        end = log.high_watermark or log.end
        assert records(bench, offset) == log.expected(offset, end, 1 << 20, first=True)


def test_fetch_searches_an_index_of_many_blocks(bench):
    log = bench.log(index_interval=0)
    log.append_many(3000, size=61)
    log.path(0, ".index").open("ab").write(bytes(40000))

    for offset in (2999, 1, 512, 513, 1024, 2047, 1500, 511):
        assert records(bench, offset)[:8] == offset.to_bytes(8, "big")


def test_fetch_continues_in_the_next_segment(bench):
    log = bench.log()
    for _ in range(3):
        log.append_many(5, records=2)
        log.roll()
    log.append_many(5, records=2)

    assert records(bench, 3) == b"".join(batch.data for batch in log.batches[1:5])
    assert records(bench, 10) == b"".join(batch.data for batch in log.batches[5:10])
    assert read_whole_log(bench, log) == [batch.base_offset for batch in log.batches]


def test_fetch_in_a_gap_at_the_end_of_a_segment_finds_the_next_one(bench):
    log = bench.log()
    log.append_many(5)
    log.append(1, gap=10)
    log.end = (30, log.end[1], log.end[2])  # compaction left nothing of 16 to 29
    log.roll()
    log.append_many(2)

    assert records(bench, 5) == log.batches[5].data
    assert records(bench, 20) == b"".join(batch.data for batch in log.batches[6:])


def test_fetch_in_a_gap_below_the_high_watermark_is_empty(bench):
    log = bench.log()
    log.append()
    log.append(1, gap=5)
    log.hold_back(6)

    assert records(bench, 1) == b""
    log.release()
    assert records(bench, 1) == log.batches[1].data


def test_fetch_after_a_roll_without_data_waits_at_the_end(bench):
    log = bench.log()
    log.append_many(5)
    records(bench, 0)
    log.roll()

    assert records(bench, 5) == b""
    log.append()
    assert records(bench, 5) == log.batches[5].data
    assert records(bench, 4) == log.batches[4].data


def test_fetch_below_a_deleted_segment_is_out_of_range_and_above_it_continues(bench):
    log = bench.log()
    log.append_many(5)
    log.roll()
    log.append_many(5)
    records(bench, 0)
    log.drop_segment()

    assert error(bench, 0) == OUT_OF_RANGE
    assert records(bench, 5) == b"".join(batch.data for batch in log.batches)


def test_range_in_flight_survives_the_deletion_of_its_segment(bench):
    log = bench.log()
    log.append_many(5)
    log.roll()
    log.append_many(5)
    body = bench.request({("t", 0): 1})
    expected = log.expected(1, log.end, 1 << 20, first=True)
    reply = bench.engine.handle_reply(body, 12, 7012, 1, bench.now_ms)
    log.drop_segment()
    records(bench, 5)
    bench.engine.tidy(bench.now_ms + 10**6)

    response = bench.response(bench.engine.finish_reply(reply), 12)

    assert bytes(bench.only(response).records) == expected
    assert bench.engine.counts()["open_files"] == 0


def test_segment_that_vanished_before_the_slot_says_so_is_a_storage_error(bench):
    log = bench.log()
    log.append_many(5)
    log.path(0).unlink()

    assert error(bench, 0) == STORAGE


def test_log_that_was_replaced_under_its_name_is_read_again(bench):
    log = bench.log()
    log.append_many(5)
    records(bench, 0)
    fresh = log.path(0).read_bytes()[:-100]
    log.path(0).with_suffix(".swap").write_bytes(fresh)
    os.rename(log.path(0).with_suffix(".swap"), log.path(0))
    log.batches.pop()
    log.end = (4, 0, 400)
    log.publish(segments_changed=True)
    log.append(1, 333)

    assert records(bench, 0) == b"".join(batch.data for batch in log.batches)
    assert records(bench, 4) == log.batches[4].data


def test_log_cut_shorter_than_published_is_a_storage_error(bench):
    log = bench.log()
    log.append_many(20, size=1000)
    os.truncate(log.path(0), 5000)

    assert error(bench, 12) == STORAGE
    assert error(bench, 12, partition_max_bytes=100) == STORAGE


def test_garbage_where_a_batch_must_begin_is_corrupt_for_that_partition_only(bench):
    logs = bench.topic("t", 2)
    for log in logs:
        log.append_many(20, size=1000)
    with logs[0].path(0).open("r+b") as file:
        file.seek(3000)
        file.write(b"\xff" * 100)

    found = bench.partitions(bench.fetch({("t", 0): 4, ("t", 1): 4}))

    assert found["t", 0].error_code == CORRUPT
    assert found["t", 0].high_watermark == -1
    assert len(found["t", 1].records) == 16000


def test_fetch_from_format_1_messages_finds_the_wanted_one(bench):
    log = bench.log()
    position = 0
    with log.path(0).open("wb") as file:
        for offset in range(40):
            body = struct.pack(">IbbqiI", 0, 1, 0, 0, -1, 0)
            file.write(struct.pack(">qi", offset, len(body)) + body)
            position += 12 + len(body)
    log.end = (40, 0, position)
    log.publish(segments_changed=True)

    assert records(bench, 17)[:8] == (17).to_bytes(8, "big")


def test_more_files_than_descriptors_are_served_by_closing_the_oldest(tmp_path):
    bench = FetchBench(tmp_path, max_open_files=2)
    logs = bench.topic("t", 8)
    for log in logs:
        log.append_many(30, size=500)

    for _ in range(2):
        for index, log in enumerate(logs):
            found = bench.only(bench.fetch({("t", index): 20}))
            assert bytes(found.records) == log.expected(20, log.end, 1 << 20, first=True)

    assert bench.engine.counts()["open_files"] == 2


def test_descriptors_all_in_flight_leave_the_rest_for_the_next_fetch(tmp_path):
    bench = FetchBench(tmp_path, max_open_files=2)
    for log in bench.topic("t", 4):
        log.append_many(3)

    found = bench.partitions(bench.fetch({("t", index): 0 for index in range(4)}))

    assert [len(partition.records) for partition in found.values()] == [300, 300, 0, 0]
    assert [partition.error_code for partition in found.values()] == [0] * 4
    assert [len(p.records) for p in bench.partitions(bench.fetch({("t", 3): 0})).values()] == [300]


def test_response_leaves_files_for_the_fetches_of_others(tmp_path):
    """A consumer of 1,000 partitions held every file until it had read its response: followers got
    nothing meanwhile, and it was disconnected as too slow.
    """
    bench = FetchBench(tmp_path, max_open_files=12)
    for log in bench.topic("t", 8):
        log.append_many(3)
    slow = bench.fetch({("t", index): 0 for index in range(8)})

    lengths = [len(partition.records) for partition in bench.partitions(slow).values()]
    assert lengths == [300] * 3 + [0] * 5
    other = bench.fetch({("t", index): 0 for index in (6, 7)})
    assert [len(partition.records) for partition in bench.partitions(other).values()] == [300, 300]


def test_idle_files_are_closed(bench):
    bench.log().append_many(3)
    records(bench, 1)
    assert bench.engine.counts()["open_files"] > 0

    bench.engine.tidy(bench.now_ms + 10_000)
    assert bench.engine.counts()["open_files"] > 0
    bench.engine.tidy(bench.now_ms + 31_000)

    assert bench.engine.counts()["open_files"] == 0
    assert len(records(bench, 1)) == 200


@pytest.mark.parametrize(
    ("state", "code"), [("OFFLINE", STORAGE), ("LOADING", NOT_LEADER), ("CLOSED", NOT_LEADER)]
)
def test_slot_that_is_not_online_returns_its_error(bench, state, code):
    from kbroker._ext.shared import partition_table

    log = bench.log()
    log.append()
    bench.table.set_state(log.slot, getattr(partition_table, state))

    assert error(bench, 0) == code


def test_slot_that_was_freed_returns_unknown_partition(bench):
    from kbroker._ext.shared import partition_table

    log = bench.log()
    log.append()
    bench.table.reset(log.slot, state=partition_table.FREE)

    assert error(bench, 0) == UNKNOWN


def test_slot_whose_owner_died_while_writing_returns_a_retriable_error(tmp_path):
    from kbroker._ext.fetch import fetch_engine
    from kbroker._ext.shared import partition_table

    region = bytearray(partition_table.region_size(64))
    bench = FetchBench(tmp_path)
    bench.table = partition_table.PartitionTable(region, 64)
    bench.engine = fetch_engine.FetchEngine(bench.table, 1, [str(tmp_path)])
    bench.log().append()
    region[64] |= 1  # the sequence of slot 0, odd while a write is in progress

    assert error(bench, 0) == NOT_LEADER


@pytest.mark.parametrize(("asked", "code"), [(-1, 0), (3, 0), (2, 74), (4, 75)])
def test_current_leader_epoch_is_checked(bench, asked, code):
    log = bench.log(leader_epoch=3)
    log.append()

    partition = bench.only(bench.fetch({("t", 0): 0}, leader_epoch=asked))

    assert partition.error_code == code


def test_slot_that_its_owner_has_not_taken_yet_returns_a_retriable_error(bench):
    """The topic is known before its log is opened at a start; clients must not take it for
    deleted.
    """
    from kbroker._ext.shared import partition_table

    log = bench.log()
    log.append()
    bench.engine.put_topic("t", bench.ids["t"], bench.slots["t"], [1])
    bench.table.reset(log.slot, state=partition_table.FREE)

    assert error(bench, 0) == NOT_LEADER

    bench.table.reset(log.slot, state=partition_table.FREE, slot_incarnation=1)
    assert error(bench, 0) == UNKNOWN, "it was deleted"


@pytest.mark.parametrize(("incarnation", "code"), [(1, 0), (2, NOT_LEADER)])
def test_slot_given_to_another_replica_is_not_read(bench, incarnation, code):
    bench.log().append()
    bench.engine.put_topic("t", bench.ids["t"], bench.slots["t"], [incarnation])

    assert bench.only(bench.fetch({("t", 0): 0})).error_code == code


def test_partition_led_elsewhere_returns_not_leader(bench):
    bench.log()
    bench.engine.put_topic("t", bench.ids["t"], [0, -1])

    assert bench.only(bench.fetch({("t", 1): 0})).error_code == NOT_LEADER
    assert bench.only(bench.fetch({("t", 2): 0})).error_code == UNKNOWN
    assert bench.only(bench.fetch({("t", -1): 0})).error_code == UNKNOWN


def test_topic_removed_returns_unknown_and_lets_go_of_its_files(bench):
    bench.log().append()
    records(bench, 0)
    bench.engine.remove_topic("t")

    assert error(bench, 0) == UNKNOWN
    assert error(bench, 0, version=13) == 100
    assert bench.engine.counts()["open_files"] == 0


def test_put_topic_rejects_a_slot_outside_the_table(bench):
    with pytest.raises(IndexError):
        bench.engine.put_topic("t", bytes(16), [64])
