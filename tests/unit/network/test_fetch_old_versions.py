"""Fetch versions 0 to 3: responses for readers of message formats 0 and 1."""

import struct

import pytest
from support.storage.fetch_log import FetchBench
from support.storage.message_sets import messages_in

from kbroker.record.builder import BatchBuilder
from kbroker.record.compression import GZIP, LZ4, ZSTD
from kbroker.record.control import marker_batch

pytestmark = pytest.mark.unit

OLD = range(4)
CORRUPT_MESSAGE, UNSUPPORTED_VERSION, UNSUPPORTED_COMPRESSION_TYPE = 2, 35, 76
TIME = 1_700_000_000_000
MIB = 1 << 20


@pytest.fixture
def bench(tmp_path):
    return FetchBench(tmp_path)


def fill(log, count=3, *, codec=0, value=b"v"):
    """Append one batch."""
    builder = BatchBuilder(codec)
    for n in range(count):
        builder.append(value, b"k", TIME + n, [("h", b"1")])
    return log.append_built(builder)


def mark(log):
    """Append a transaction marker."""
    data = bytearray(marker_batch(9, 0, True, 0, TIME))
    struct.pack_into(">q", data, 0, log.end[0])
    return log.append_bytes(bytes(data), 1)


def offsets(partition):
    assert partition.error_code == 0
    return [message.offset for message in messages_in(bytes(partition.records or b""))]


@pytest.mark.parametrize("version", OLD)
def test_old_fetch_brings_messages_of_its_format(bench, version):
    log = bench.log()
    fill(log)
    fill(log, codec=LZ4)

    partition = bench.only(bench.fetch({("t", 0): 1}, version))

    assert (partition.error_code, partition.high_watermark) == (0, 6)
    found = messages_in(bytes(partition.records))
    assert [m.offset for m in found] == [1, 2, 3, 4, 5]
    assert {m.timestamp > 0 for m in found} == {version >= 2}
    assert partition.records[16] == (1 if version >= 2 else 0)
    assert bench.engine.counts()["copied_bytes"] == 0  # given back when it was sent


@pytest.mark.parametrize("version", OLD)
def test_old_fetch_at_the_end_waits_for_a_message(bench, version):
    log = bench.log()
    fill(log)
    assert bench.start({("t", 0): 3}, version, max_wait_ms=500) is None
    fill(log)
    bench.engine.wake_slot(log.slot, bench.now_ms)
    [(token, response)] = bench.completed(version).items()
    assert token == bench.token
    assert offsets(bench.only(response)) == [3, 4, 5]


@pytest.mark.parametrize("version", OLD)
def test_old_fetch_that_waits_in_vain_returns_nothing(bench, version):
    log = bench.log()
    fill(log)
    assert bench.start({("t", 0): 3}, version, max_wait_ms=500) is None
    bench.engine.expire_at(bench.now_ms + 500)
    [response] = bench.completed(version).values()
    assert offsets(bench.only(response)) == []


@pytest.mark.parametrize("version", OLD)
def test_markers_are_passed_over_even_at_the_end_of_a_segment(bench, version):
    log = bench.log()
    fill(log)
    for _ in range(3):
        mark(log)
    log.roll()
    mark(log)
    log.roll()
    fill(log)
    fill(log, codec=GZIP)

    partition = bench.only(bench.fetch({("t", 0): 3}, version))
    assert offsets(partition) == [7, 8, 9, 10, 11, 12][: len(offsets(partition))]
    assert offsets(partition)[0] == 7
    assert bench.engine.counts()["open_files"] == 3


@pytest.mark.parametrize("version", OLD)
def test_markers_at_the_end_of_the_log_give_an_empty_response(bench, version):
    log = bench.log()
    fill(log)
    mark(log)
    assert offsets(bench.only(bench.fetch({("t", 0): 3}, version))) == []


@pytest.mark.parametrize("version", range(3))
def test_max_bytes_cut_the_last_message_of_each_partition(bench, version):
    logs = bench.topic("t", 2)
    for log in logs:
        fill(log, 10, value=b"v" * 100)
    wanted = {("t", 0): 0, ("t", 1): 0}
    response = bench.fetch(wanted, version, partition_max_bytes=400)
    for partition in bench.partitions(response).values():
        assert len(partition.records) == 400
        assert offsets(partition) == [0, 1, 2] if version < 2 else [0, 1]
    tiny = bench.fetch(wanted, version, partition_max_bytes=5)
    assert [len(p.records) for p in bench.partitions(tiny).values()] == [5, 5]
    none = bench.fetch(wanted, version, partition_max_bytes=0)
    assert [p.records or b"" for p in bench.partitions(none).values()] == [b"", b""]


def test_version_3_brings_the_first_batch_whole_and_obeys_max_bytes(bench):
    logs = bench.topic("t", 2)
    for log in logs:
        fill(log, 10, value=b"v" * 100)
    wanted = {("t", 0): 0, ("t", 1): 0}
    first, second = bench.partitions(bench.fetch(wanted, 3, max_bytes=10)).values()
    assert (len(offsets(first)), len(offsets(second))) == (10, 0)
    first, second = bench.partitions(bench.fetch(wanted, 3, partition_max_bytes=10)).values()
    assert (len(offsets(first)), len(offsets(second))) == (10, 0)


def test_messages_larger_than_the_batch_still_respect_max_bytes(bench):
    """A message of format 1 is larger than a record of format 2."""
    logs = bench.topic("t", 2)
    for log in logs:
        for _ in range(5):
            fill(log, 100)
    size = len(logs[0].batches[0].data)
    wanted = {("t", 0): 0, ("t", 1): 0}
    first, second = bench.partitions(bench.fetch(wanted, 3, max_bytes=4 * size)).values()
    assert len(first.records) <= 4 * size < len(first.records) * 2
    assert offsets(second) == []


@pytest.mark.parametrize("version", OLD)
def test_zstd_is_rejected_for_its_partition_alone(bench, version):
    plain, packed = bench.topic("t", 2)
    fill(plain)
    fill(packed, codec=ZSTD)
    first, second = bench.partitions(bench.fetch({("t", 0): 0, ("t", 1): 0}, version)).values()
    assert offsets(first) == [0, 1, 2]
    assert second.error_code == UNSUPPORTED_COMPRESSION_TYPE
    assert not second.records
    assert second.high_watermark == -1


@pytest.mark.parametrize("version", OLD)
def test_damaged_batch_is_rejected_for_its_partition_alone(bench, version):
    sound, damaged = bench.topic("t", 2)
    fill(sound)
    fill(damaged)
    data = bytearray(damaged.path(0).read_bytes())
    data[-1] ^= 1
    damaged.path(0).write_bytes(data)
    first, second = bench.partitions(bench.fetch({("t", 0): 0, ("t", 1): 0}, version)).values()
    assert offsets(first) == [0, 1, 2]
    assert second.error_code == CORRUPT_MESSAGE


@pytest.mark.parametrize("version", [*OLD, 4, 12])
def test_topic_that_converts_nothing_rejects_old_versions_alone(bench, version):
    [log] = bench.topic("t")
    fill(log)
    bench.engine.put_topic("t", bench.ids["t"], bench.slots["t"], rejects_old=True)
    partition = bench.only(bench.fetch({("t", 0): 3}, version, max_wait_ms=0))
    assert partition.error_code == (UNSUPPORTED_VERSION if version < 4 else 0)
    # At once, although there is nothing to read.
    answered = bench.start({("t", 0): 3}, version, max_wait_ms=500) is not None
    assert answered == (version < 4)
    bench.engine.put_topic("t", bench.ids["t"], bench.slots["t"], rejects_old=False)
    if version < 4:
        assert offsets(bench.only(bench.fetch({("t", 0): 0}, version))) == [0, 1, 2]


@pytest.mark.parametrize("version", [*OLD, 4, 9, 10, 18])
def test_topic_of_zstd_rejects_readers_who_do_not_know_it(bench, version):
    [log] = bench.topic("t")
    fill(log)
    bench.engine.put_topic("t", bench.ids["t"], bench.slots["t"], stores_zstd=True)
    partition = bench.only(bench.fetch({("t", 0): 0}, version))
    assert partition.error_code == (UNSUPPORTED_COMPRESSION_TYPE if version < 10 else 0)
    assert bool(partition.records) == (version >= 10)


def test_budget_is_shared_so_that_no_partition_starves(bench):
    logs = bench.topic("t", 4)
    for log in logs:
        for _ in range(20):
            fill(log, 1, value=b"v" * 200_000)
    wanted = {("t", n): 0 for n in range(4)}
    response = bench.fetch(wanted, 1, partition_max_bytes=8 * MIB)
    found = [len(offsets(partition)) for partition in bench.partitions(response).values()]
    assert min(found) >= 5
    assert max(found) <= 7  # a quarter of 4 MiB, and a batch more


def test_response_is_bounded_and_no_partition_waits_forever(bench):
    logs = bench.topic("t", 40)
    for log in logs:
        fill(log, 1, value=b"v" * MIB)
    wanted = {("t", n): 0 for n in range(40)}
    served = set()
    for _ in range(40):
        response = bench.fetch(wanted, 0, partition_max_bytes=2 * MIB)
        found = bench.partitions(response).items()
        got = {key for key, partition in found if partition.records}
        assert 0 < len(got) <= 17
        served |= got
    assert len(served) == 40


def test_bytes_in_flight_lower_the_budget_and_come_back(bench):
    log = bench.log()
    for _ in range(30):
        fill(log, 1, value=b"v" * 200_000)
    body = bench.request({("t", 0): 0}, 1, partition_max_bytes=100 * MIB)
    replies = []
    for _ in range(60):
        replies.append(bench.engine.handle_reply(body, 1, 7001, 1, bench.now_ms))
    in_flight = bench.engine.counts()["copied_bytes"]
    assert 48 * MIB < in_flight < 80 * MIB
    sizes = [len(bench.engine.finish_reply(reply)) for reply in replies]
    assert sizes[0] > 4 * MIB
    assert sizes[-1] < MIB
    assert bench.engine.counts()["copied_bytes"] == 0


def test_reply_that_nobody_sends_gives_its_bytes_back(bench):
    log = bench.log()
    fill(log)
    body = bench.request({("t", 0): 0}, 0)
    reply = bench.engine.handle_reply(body, 0, 7000, 1, bench.now_ms)
    assert bench.engine.counts()["copied_bytes"] > 0
    del reply
    assert bench.engine.counts()["copied_bytes"] == 0
