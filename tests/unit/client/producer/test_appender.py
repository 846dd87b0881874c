"""Records become batches: placement, encoding, limits, and futures of what is refused."""

from __future__ import annotations

import time

import pytest
from support.clients.produce_link import NODE, ProduceLink, pool

from kbroker._ext.arrow.arrow_writer import partition_of
from kbroker.client.errors import (
    BufferExhausted,
    ClientClosed,
    NoSuchPartition,
    RecordTooLarge,
)
from kbroker.record.compression import CODEC_NAMES

pytestmark = pytest.mark.unit

# From Kafka's own tests of its hash; the sign bit is left out of a partition.
MURMUR2 = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def send(made, value=b"v", key=None, headers=None, partition=None, timestamp=None, topic="t"):
    return made.append(topic, key, value, headers, partition, timestamp)


@pytest.mark.parametrize("key", MURMUR2)
def test_partition_of_a_key_is_that_of_java(key):
    most = (1 << 31) - 1

    assert partition_of(key, most) == (MURMUR2[key] & 0x7FFFFFFF) % most


@pytest.mark.parametrize("codec", range(5), ids=CODEC_NAMES)
@pytest.mark.parametrize("version", [3, 8, 9, 12])
def test_records_are_read_back(codec, version):
    made = pool(codec=codec, batch_bytes=1 << 20)
    with ProduceLink(made, version) as link:
        send(made, b"value", b"key", [("a", b"1"), ("é", None)], timestamp=5)
        send(made, None, None, {"b": bytearray(b"2")}, timestamp=4)
        send(made, memoryview(b"x" * 5000), bytearray(b""), timestamp=6)
        link.turn()
        got = link.receive()

    assert [(one.timestamp, one.key, one.value) for one in got.records()] == [
        (5, b"key", b"value"),
        (4, None, None),
        (6, b"", b"x" * 5000),
    ]
    assert [[tuple(pair) for pair in one.headers] for one in got.records()] == [
        [(b"a", b"1"), ("é".encode(), None)],
        [(b"b", b"2")],
        [],
    ]
    assert (got.request.acks, got.request.timeout_ms) == (-1, 1000)


def test_record_without_a_timestamp_gets_that_of_now():
    made = pool()
    before = int(time.time() * 1000)
    with ProduceLink(made) as link:
        send(made)
        link.turn()

        (record,) = link.receive().records()

    assert before <= record.timestamp <= int(time.time() * 1000)


def test_keys_decide_the_partition_and_an_explicit_one_comes_first():
    made = pool(7)
    with ProduceLink(made) as link:
        for key in MURMUR2:
            send(made, key, key)
        send(made, b"given", b"21", partition=3)
        link.turn()
        got = link.receive()

    for topic, partition in got.batches:
        for record in got.records(topic, partition):
            wanted = 3 if record.value == b"given" else partition_of(record.key, 7)
            assert partition == wanted


def test_records_without_a_key_stay_with_a_partition_for_a_batch():
    made = pool(5, batch_bytes=1000)
    for _ in range(1000):
        send(made, b"x" * 60)
    found = []
    with ProduceLink(made) as link:
        while made.unended:
            link.turn()
            got = link.receive()
            found += [(key[1], len(got.records(*key))) for key in got.batches]
            link.respond(got)
            link.turn(0.02)

    assert {partition for partition, _ in found} == set(range(5))
    # 13 records fit into a batch; the place changes after as many bytes as a batch has.
    assert sum(count for _, count in found) == 1000
    assert sum(count >= 9 for _, count in found) > 0.9 * len(found)


def test_records_without_a_key_avoid_partitions_without_a_leader():
    made = pool(4, batch_bytes=1)
    made.set_topic("t", [-1, -1, NODE, -1], [1] * 4)
    with ProduceLink(made) as link:
        for n in range(20):
            send(made, b"%d" % n)
        link.turn()

        assert set(link.receive().batches) == {("t", 2)}


def test_round_robin_takes_the_partitions_in_turns():
    made = pool(3, round_robin=True)
    with ProduceLink(made) as link:
        for n in range(6):
            send(made, b"%d" % n, b"same key")
        link.turn()
        got = link.receive()

    assert {place: len(got.records(*place)) for place in got.batches} == {
        ("t", 0): 2,
        ("t", 1): 2,
        ("t", 2): 2,
    }


def test_topic_that_is_not_known_is_not_taken():
    made = pool()

    assert send(made, topic="other") is None
    made.set_topic("t", [], [])
    assert send(made) is None


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ({"value": "text"}, TypeError),
        ({"key": 5}, TypeError),
        ({"headers": [("a", "text")]}, TypeError),
        ({"headers": [(5, b"")]}, TypeError),
        ({"headers": [("a",)]}, ValueError),
        ({"timestamp": -1}, ValueError),
        ({"timestamp": 1 << 70}, OverflowError),
        ({"partition": 1}, NoSuchPartition),
        ({"partition": -1}, NoSuchPartition),
        ({"value": b"x" * (1 << 20)}, RecordTooLarge),
    ],
    ids=str,
)
def test_record_that_cannot_be_taken_is_refused(bad, error):
    made = pool()

    with pytest.raises(error):
        send(made, **bad)

    assert made.unended == made.used_bytes == 0


def test_full_memory_is_an_error_that_says_so():
    made = pool(buffer_bytes=1000, linger_us=60_000_000)
    send(made, b"x" * 800)

    with pytest.raises(BufferExhausted) as caught:
        send(made, b"x" * 300)

    assert "buffer.memory" in str(caught.value)
    assert caught.value.buffer_bytes == 1000


def test_memory_is_given_back_by_an_acknowledgement():
    made = pool(buffer_bytes=1000, block_us=10_000_000)
    with ProduceLink(made) as link:
        first = send(made, b"x" * 800)
        link.start()
        link.respond(link.receive())

        send(made, b"x" * 800)

        assert first.done()
        link.respond(link.receive())
        assert made.flush(10)
    assert made.used_bytes == 0


def test_closed_pool_takes_nothing():
    made = pool()
    made.close(ClientClosed("over"))

    with pytest.raises(ClientClosed, match="over"):
        send(made)


def test_many_values_are_taken_in_order_and_bad_ones_fail_alone():
    made = pool(batch_bytes=500, in_flight_max=100)
    values = [b"%d" % n * 20 for n in range(1000)]
    values[10] = "text"
    values[20] = bytearray(b"also bytes")
    values[30] = b"x" * (1 << 20)
    values[999] = None
    futures = made.append_many("t", values, None, None, None, 9)
    found = []
    with ProduceLink(made, in_flight_max=200) as link:
        link.start()
        while len(found) < 998:
            got = link.receive()
            found += got.records()
            link.respond(got, base_offset=len(found) - len(got.records()))
        failed = futures.exceptions(10)

    assert len(futures) == 1000
    assert {place: type(error) for place, error in failed.items()} == {
        10: TypeError,
        30: RecordTooLarge,
    }
    left = [value for n, value in enumerate(values) if n not in (10, 30)]
    assert [one.value for one in found] == [
        None if value is None else bytes(value) for value in left
    ]
    with pytest.raises(TypeError):
        futures.result()


def test_many_values_with_keys_are_placed_by_them():
    made = pool(3)
    keys = [b"%d" % n for n in range(100)]
    futures = made.append_many("t", keys, keys, [("h", b"1")], None, None)
    with ProduceLink(made) as link:
        link.turn()
        got = link.receive()
        link.respond(got)
        link.turn(0.02)

    assert sum(count for *_, count in futures.result(0)) == 100
    for topic, partition in got.batches:
        for record in got.records(topic, partition):
            assert partition == partition_of(record.key, 3)
            assert record.value == record.key
            assert [tuple(pair) for pair in record.headers] == [(b"h", b"1")]


def test_many_values_need_as_many_keys():
    with pytest.raises(ValueError, match="2 keys for 1 values"):
        pool().append_many("t", [b"v"], [b"k", b"l"], None, None, None)
