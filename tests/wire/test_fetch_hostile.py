"""Fetch requests nobody should send: they may only end with FetchDecodeError or a valid
response.
"""

import random
import struct

import pytest
from support.storage.fetch_log import FetchBench

from kbroker._ext.fetch.fetch_decode import FetchDecodeError
from kbroker.protocol import codec
from kbroker.protocol.messages.fetch import FetchRequest

pytestmark = pytest.mark.wire

VERSIONS = range(19)


@pytest.fixture
def bench(tmp_path):
    bench = FetchBench(tmp_path)
    for log in bench.topic("topic", 2):
        log.append_many(5)
    return bench


def sample(bench, version):
    fields = {"rack_id": "rack"} if version >= 11 else {}
    if version >= 12:
        fields["cluster_id"] = "cluster"
    if version >= 15:
        fields["replica_state"] = FetchRequest.ReplicaState(replica_id=-1, replica_epoch=5)
    if version >= 7:
        fields["forget"] = [("topic", 0), ("other", 3)]
    return bench.request({("topic", 0): 1, ("topic", 1): 2, ("u", 0): 3}, version, **fields)


def handle(bench, body, version):
    """True if it completed or was parked, False if it was rejected."""
    bench.token += 1
    try:
        reply = bench.engine.handle_bytes(body, version, 7000 + version, bench.token, bench.now_ms)
    except FetchDecodeError:
        return False
    if reply is None:
        bench.engine.cancel_token(bench.token)
    else:
        bench.response(reply, version)
    return True


@pytest.mark.parametrize("version", VERSIONS)
def test_every_truncation_of_a_request_is_rejected(bench, version):
    body = sample(bench, version)
    assert handle(bench, body, version)

    for size in range(len(body)):
        assert not handle(bench, body[:size], version), size
    assert not handle(bench, body + b"\0", version)


@pytest.mark.parametrize("version", VERSIONS)
def test_flipped_bytes_complete_or_are_rejected(bench, version):
    body = sample(bench, version)

    for position in range(len(body)):
        for value in (0x00, 0x01, 0x7F, 0x80, 0xFF):
            handle(bench, body[:position] + bytes([value]) + body[position + 1 :], version)

    assert handle(bench, body, version)
    assert bench.engine.counts()["parked"] == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_what_the_general_codec_accepts_is_accepted(bench, version):
    body = sample(bench, version)
    generator = random.Random(version)

    for _ in range(300):
        mutated = bytearray(body)
        for _ in range(generator.randint(1, 3)):
            mutated[generator.randrange(len(body))] = generator.choice((0, 1, 2, 127, 128, 255))
        try:
            message = codec.decode_exact(FetchRequest, version, bytes(mutated))
        except (codec.DecodeError, ValueError):
            message = None
        accepted = handle(bench, bytes(mutated), version)
        if message is None or message.isolation_level not in (0, 1):
            continue  # laxer only about unused strings: rack and cluster id
        assert accepted, mutated.hex()


def test_counts_that_promise_more_than_the_request_holds_are_rejected(bench):
    head = struct.pack(">iiiib", -1, 0, 1, 1 << 20, 0)
    for count in (2, 1000, 2**31 - 1, -2, -(2**31)):
        assert not handle(bench, head + struct.pack(">i", count), 4)
        topic = struct.pack(">ih", 1, 1) + b"t"
        assert not handle(bench, head + topic + struct.pack(">i", count), 4)
    assert handle(bench, head + struct.pack(">i", -1), 4)


def test_more_partitions_than_are_served_are_rejected(bench):
    head = struct.pack(">iiiib", -1, 0, 1, 1 << 20, 0) + struct.pack(">ih", 1, 1) + b"t"
    partition = struct.pack(">iqi", 0, 0, 1 << 20)

    assert handle(bench, head + struct.pack(">i", 1000) + partition * 1000, 4)
    assert not handle(bench, head + struct.pack(">i", 262145) + partition * 262145, 4)


@pytest.mark.parametrize("version", [-1, 19, 32767])
def test_versions_outside_the_range_are_rejected(bench, version):
    with pytest.raises(FetchDecodeError, match=r"outside 0\.\.18"):
        bench.engine.handle_bytes(sample(bench, 12), version)


@pytest.mark.parametrize("level", [-1, 2, 127])
def test_unknown_isolation_level_is_rejected(bench, level):
    with pytest.raises(FetchDecodeError, match="isolation level"):
        bench.engine.handle_bytes(bench.request({("topic", 0): 0}, 12, isolation_level=level), 12)


def test_extreme_numbers_get_a_response(bench):
    top, low = 2**31 - 1, -(2**31)
    for offset in (-(2**63), -1, 2**63 - 1):
        for number in (low, -1, 0, top):
            body = bench.request(
                {("topic", number): offset},
                12,
                partition_max_bytes=number,
                max_bytes=number,
                min_bytes=number,
                leader_epoch=number,
            )
            assert handle(bench, body, 12)


def test_waiting_for_the_longest_time_does_not_overflow(bench):
    assert bench.start({("topic", 0): 5}, max_wait_ms=2**31 - 1, min_bytes=2**31 - 1) is None

    assert bench.engine.deadline_ms == bench.now_ms + 2**31 - 1


def request_for(name):
    body = struct.pack(">iiiib", -1, 0, 1, 1 << 20, 0) + struct.pack(">ih", 1, len(name)) + name
    return body + struct.pack(">i", 1) + struct.pack(">iqi", 0, 0, 100)


@pytest.mark.parametrize("name", ["", "../../etc", "a\0b", "\u263a"])
def test_topic_names_nobody_may_have_are_unknown(bench, name):
    reply = bench.engine.handle_bytes(request_for(name.encode()), 4, 7004)

    topic = bench.response(reply, 4).responses[0]
    assert (topic.topic, topic.partitions[0].error_code) == (name, 3)


def test_topic_name_that_is_not_utf_8_is_unknown(bench):
    assert handle(bench, request_for(b"\xff\xfe"), 4)

    reply = bench.engine.handle_bytes(request_for(b"\xff\xfe"), 4, 7004)
    topic = bench.response(reply, 4).responses[0]
    assert (topic.topic, topic.partitions[0].error_code) == ("\ufffd\ufffd", 3)
