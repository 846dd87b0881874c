"""Aborted transactions in fetch responses, and the cost of finding them."""

import struct

import pytest
from support.storage.log_store import LogStore, append, batch, end_transaction, sent

from kbroker._ext.fetch.fetch_engine import FetchEngine
from kbroker.protocol import codec
from kbroker.protocol.header import decode_response_header
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse

pytestmark = pytest.mark.unit

STORAGE_ERROR = 56
VERSION = 12


class Bench:
    def __init__(self, path, **config):
        self.store = LogStore(path)
        self.config = config
        self.log = self.store.open(**config)
        self.engine = FetchEngine(self.store.table, 0, self.store.dirs)
        self.engine.put_topic("t", bytes(range(16)), [0])
        self.token = 0

    def start(self, offset, *, limit=1 << 20, isolation=1, wait_ms=0, version=VERSION):
        request = FetchRequest(
            max_wait_ms=wait_ms, min_bytes=1, max_bytes=1 << 20, isolation_level=isolation
        )
        wanted = FetchRequest.FetchPartition(
            partition=0, fetch_offset=offset, partition_max_bytes=limit
        )
        request.topics.append(FetchRequest.FetchTopic(topic="t", partitions=[wanted]))
        self.token += 1
        body = codec.encode(request, version)
        return self.engine.handle_bytes(body, version, 1, self.token, 0)

    def decode(self, reply, version=VERSION):
        _, position = decode_response_header(reply, 1, version, 4)
        response = codec.decode_exact(FetchResponse, version, reply, position)
        return response.responses[0].partitions[0]

    def fetch(self, offset, **terms):
        return self.decode(self.start(offset, **terms), terms.get("version", VERSION))

    def aborted(self, offset, **terms):
        partition = self.fetch(offset, **terms)
        assert partition.error_code == 0
        return [(t.producer_id, t.first_offset) for t in partition.aborted_transactions]

    def reads(self):
        return self.engine.log_counts("t", 0)["aborted_reads"]

    def abort(self, producer_id, count=1):
        entry = self.log.appender.producers.entries.get(producer_id)
        at = 0 if entry is None else entry.last_sequence_number + 1
        for number in range(count):
            append(self.log, sent(producer_id, at + number))
        return end_transaction(self.log, producer_id, commit=False)


@pytest.fixture
def bench(tmp_path):
    made = Bench(tmp_path)
    yield made
    made.store.stop(clean=False)


def test_aborted_transactions_of_the_range_are_told(bench):
    first = bench.abort(1, 3)  # offsets 0 to 2, marker 3
    append(bench.log, batch(2))
    bench.abort(2)  # offset 6, marker 7

    assert bench.aborted(0) == [(1, 0), (2, 6)]
    assert bench.aborted(first) == [(1, 0), (2, 6)]
    assert bench.aborted(first + 1) == [(2, 6)]
    assert bench.aborted(8) == []


@pytest.mark.parametrize("version", range(4, 13))
def test_aborted_transactions_are_told_in_every_version(bench, version):
    bench.abort(1)

    assert bench.aborted(0, version=version) == [(1, 0)]
    assert bench.fetch(0, version=version).last_stable_offset == 2


def test_uncommitted_reader_gets_everything_and_no_list(bench):
    append(bench.log, sent(1, 0))
    bench.abort(2)

    partition = bench.fetch(0, isolation=0)

    assert partition.aborted_transactions is None
    assert (partition.high_watermark, partition.last_stable_offset) == (3, 0)
    assert len(partition.records) == bench.log.appender.position


def test_open_transaction_ends_the_range(bench):
    append(bench.log, batch(2))
    end = bench.log.appender.position
    append(bench.log, sent(1, 0))
    append(bench.log, batch(2))

    assert len(bench.fetch(0).records) == end
    assert not bench.fetch(2).records
    assert not bench.fetch(4).records
    assert bench.fetch(4).error_code == 0


def test_waiting_reader_is_woken_by_the_marker(bench):
    append(bench.log, sent(1, 0))
    assert bench.start(0, wait_ms=1000) is None
    append(bench.log, batch())
    bench.engine.wake_slot(0)
    assert bench.engine.take_completed() == []

    end_transaction(bench.log, 1, commit=False)
    assert bench.store.table.waiters(0) == 1
    bench.engine.wake_slot(0)

    ((_, reply),) = bench.engine.take_completed()
    partition = bench.decode(reply)
    assert [(t.producer_id, t.first_offset) for t in partition.aborted_transactions] == [(1, 0)]
    assert len(partition.records) == bench.log.appender.position


def test_partition_without_aborts_reads_no_index(bench):
    append(bench.log, sent(1, 0))
    end_transaction(bench.log, 1, commit=True)

    assert bench.aborted(0) == []
    assert bench.reads() == 0


def test_index_is_read_once_until_it_grows(bench):
    bench.abort(1)
    for _ in range(3):
        bench.aborted(0)
    assert bench.reads() == 1

    append(bench.log, batch())
    bench.aborted(0)
    assert bench.reads() == 1
    bench.abort(2)
    assert bench.aborted(0) == [(1, 0), (2, 3)]
    assert bench.reads() == 2


def test_search_continues_in_later_segments_until_everything_was_decided(tmp_path):
    bench = Bench(tmp_path, **{"segment.bytes": 400})
    append(bench.log, sent(1, 0))
    for sequence in range(1, 10):
        append(bench.log, sent(2, sequence - 1))
    end_transaction(bench.log, 2, commit=True)
    for sequence in range(1, 5):
        append(bench.log, sent(1, sequence))
    end_transaction(bench.log, 1, commit=False)
    for _ in range(8):
        bench.abort(3)

    assert len(bench.log.segments) > 3
    assert bench.aborted(0, limit=100) == [(1, 0)]
    assert bench.reads() <= len(bench.log.segments)
    bench.store.stop(clean=False)


def test_list_is_short_when_the_range_is(tmp_path):
    bench = Bench(tmp_path, **{"index.interval.bytes": 200})
    for _ in range(100):
        bench.abort(1)

    told = bench.aborted(0, limit=500)
    assert (1, 0) in told
    assert len(told) < 10
    assert len(bench.aborted(0)) == 100
    bench.store.stop(clean=False)


def test_wrong_offset_index_makes_the_list_no_shorter(tmp_path):
    bench = Bench(tmp_path, **{"index.interval.bytes": 200})
    for _ in range(100):
        bench.abort(1)
    path = bench.store.path("0" * 20 + ".index")
    data = bytearray(path.read_bytes())
    for at in range(0, 8 * 20, 8):
        struct.pack_into(">i", data, at, 1 + at // 8)  # offsets far too small for their positions
    path.write_bytes(data)

    assert len(bench.aborted(0, limit=3000)) >= 3000 // 150
    bench.store.stop(clean=False)


def test_index_that_cannot_be_read_is_an_error_and_not_a_shorter_list(bench, caplog):
    bench.abort(1)
    path = bench.store.path("0" * 20 + ".txnindex")
    data = bytearray(path.read_bytes())
    data[1] = 9
    path.write_bytes(data)

    partition = bench.fetch(0)

    assert (partition.error_code, partition.records) == (STORAGE_ERROR, b"")
    assert "txnindex" in caplog.text
    data[1] = 0
    path.write_bytes(data)
    assert bench.aborted(0) == [(1, 0)]
