"""Hostile bytes: only DecodeError is raised, and nothing is allocated for their claims."""

import random
import struct
import tracemalloc

import pytest
from support.network.codec_samples import SEED, message_classes, random_message, versions_of
from support.running.in_one import in_one

from kbroker.coordinator.records.offsets_topic import GroupMetadataValue
from kbroker.coordinator.records.transaction_topic import TransactionLogValue
from kbroker.protocol import codec, header
from kbroker.protocol.codec import DecodeError
from kbroker.protocol.decoder import ELEMENTS_MAX, is_from_clients
from kbroker.protocol.messages.api_versions import ApiVersionsRequest
from kbroker.protocol.messages.elect_leaders import ElectLeadersRequest
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.messages.find_coordinator import FindCoordinatorRequest
from kbroker.protocol.messages.metadata import MetadataRequest, MetadataResponse
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.protocol.primitives import encode_uvarint, read_uvarint

pytestmark = pytest.mark.wire

TRUNCATIONS_MAX = 60
FLIPS = 25


@in_one("cls", message_classes())
def test_message_cut_short_anywhere_is_rejected(cls):
    for version in versions_of(cls):
        rng = random.Random(f"{SEED} cut {cls.__name__} {version}")
        encoded = codec.encode(random_message(cls, version, rng), version)
        ends = range(len(encoded))
        if len(encoded) > TRUNCATIONS_MAX:
            ends = sorted(rng.sample(ends, TRUNCATIONS_MAX))
        for end in ends:
            with pytest.raises(DecodeError):
                codec.decode(cls, version, encoded[:end])


@in_one("cls", message_classes())
def test_message_with_damaged_bytes_is_decoded_or_rejected(cls):
    for version in versions_of(cls):
        rng = random.Random(f"{SEED} flip {cls.__name__} {version}")
        encoded = codec.encode(random_message(cls, version, rng), version)
        for _ in range(FLIPS if encoded else 0):
            damaged = bytearray(encoded)
            for _ in range(rng.choice([1, 1, 3])):
                damaged[rng.randrange(len(damaged))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF])
            try:
                message, end = codec.decode(cls, version, bytes(damaged))
            except DecodeError:
                continue
            assert end <= len(damaged)
            # An accepted message is legal, so it can be encoded again.
            codec.encode(message, version)


@in_one("cls", message_classes())
def test_random_bytes_are_decoded_or_rejected(cls):
    rng = random.Random(f"{SEED} noise {cls.__name__}")
    for version in versions_of(cls):
        for size in (0, 1, 7, 100):
            try:
                codec.decode(cls, version, rng.randbytes(size))
            except DecodeError:
                continue


@pytest.mark.parametrize(
    ("cls", "version", "data"),
    [
        (MetadataRequest, 0, struct.pack(">i", 0x7FFFFFFF)),
        (MetadataRequest, 1, struct.pack(">i", 0x7FFFFFFF) + bytes(1000)),
        (MetadataRequest, 9, b"\xff\xff\xff\xff\x0f" + bytes(1000)),
        (FetchRequest, 4, bytes(17) + struct.pack(">i", 0x40000000) + bytes(1000)),
        (FindCoordinatorRequest, 4, b"\0" + b"\xff\xff\xff\xff\x07" + bytes(1000)),
        (ProduceRequest, 3, struct.pack(">hhiihi", -1, 1, 1, 1, 0, 1) + b"\x7f\xff\xff\xff"),
        (ApiVersionsRequest, 3, b"\1\1" + b"\xff\xff\xff\xff\x0f"),
        (ApiVersionsRequest, 3, b"\1\1" + b"\1\0" + b"\xff\xff\xff\xff\x0f"),
    ],
    ids=lambda value: value if isinstance(value, int) else getattr(value, "__name__", "bytes"),
)
def test_huge_count_or_length_is_rejected_without_allocating_for_it(cls, version, data):
    codec.prepare(cls, version)
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError):
            codec.decode(cls, version, data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 64 * 1024


def many_strings(count):
    """A request for so many groups, in a byte each."""
    return b"\0" + encode_uvarint(count + 1) + b"\1" * count + b"\0"


def test_request_with_more_elements_than_one_may_have_is_rejected_before_they_are_made():
    """A million configs without a name, in 4 MB, blocked a process for 5 s and took 0.7 GB."""
    codec.prepare(FindCoordinatorRequest, 4)
    most = codec.decode_exact(FindCoordinatorRequest, 4, many_strings(ELEMENTS_MAX))
    data = many_strings(ELEMENTS_MAX + 1)

    tracemalloc.start()
    try:
        with pytest.raises(DecodeError, match=rf"coordinator_keys: .* more than {ELEMENTS_MAX} "):
            codec.decode(FindCoordinatorRequest, 4, data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert len(most.coordinator_keys) == ELEMENTS_MAX
    assert peak < 64 * 1024


def test_long_request_is_decoded_in_many_steps():
    """Other tasks run between two steps."""
    steps = codec.decode_steps(FindCoordinatorRequest, 4, many_strings(ELEMENTS_MAX))

    assert sum(1 for _ in steps) >= ELEMENTS_MAX // 100


def test_request_cut_short_is_rejected_in_steps_as_in_one_go():
    data = many_strings(1_000)
    for size in range(0, len(data), 50):
        with pytest.raises(DecodeError):
            list(codec.decode_steps(FindCoordinatorRequest, 4, data[:size]))


def test_broker_with_more_partitions_takes_requests_about_all_of_them():
    try:
        codec.allow_elements(ELEMENTS_MAX)
        most = many_strings(3 * ELEMENTS_MAX)
        assert codec.decode_exact(FindCoordinatorRequest, 4, most)
        with pytest.raises(DecodeError, match=f"more than {3 * ELEMENTS_MAX} "):
            codec.decode(FindCoordinatorRequest, 4, many_strings(3 * ELEMENTS_MAX + 1))
    finally:
        codec.allow_elements(0)


def test_elements_of_arrays_within_arrays_are_counted_together():
    topic = ElectLeadersRequest.TopicPartitions
    half = ELEMENTS_MAX // 2

    def encoded(numbers):
        topics = [topic(topic="t", partitions=[0] * n) for n in numbers]
        return codec.encode(ElectLeadersRequest(topic_partitions=topics), 1)

    codec.decode_exact(ElectLeadersRequest, 1, encoded([half - 1, half - 1]))
    with pytest.raises(DecodeError, match=r"topic_partitions.partitions: .* elements"):
        codec.decode(ElectLeadersRequest, 1, encoded([half - 1, half]))


def test_responses_and_stored_data_may_have_any_number_of_elements():
    """A log that was written must be readable."""
    topic = MetadataResponse.MetadataResponseTopic()
    partition = MetadataResponse.MetadataResponsePartition(replica_nodes=[0] * (ELEMENTS_MAX + 1))
    topic.partitions = [partition]
    encoded = codec.encode(MetadataResponse(topics=[topic]), 1)

    found = codec.decode_exact(MetadataResponse, 1, encoded)

    assert len(found.topics[0].partitions[0].replica_nodes) == ELEMENTS_MAX + 1
    assert not is_from_clients(TransactionLogValue)
    assert not is_from_clients(GroupMetadataValue)


@pytest.mark.parametrize(
    ("cls", "version", "data"),
    [
        (MetadataRequest, 0, b"\xff\xff\xff\xff"),  # null array, legal from version 1 on
        (MetadataRequest, 1, b"\xff\xff\xff\xfe"),  # count of -2
        (MetadataRequest, 1, b"\0\0\0\1" + b"\xff\xff"),  # null name
        (MetadataRequest, 1, b"\0\0\0\1" + b"\x80\0"),  # length of -32768
        (MetadataRequest, 9, b"\2\0\0" + b"\0\0\0\0"),  # null name in compact form
        (FindCoordinatorRequest, 3, b"\0\0\0"),  # null key
    ],
)
def test_negative_length_or_forbidden_null_is_rejected(cls, version, data):
    with pytest.raises(DecodeError, match="null or negative"):
        codec.decode(cls, version, data)


@pytest.mark.parametrize("view", [bytes, memoryview])
def test_string_in_another_encoding_is_read_as_kafka_reads_it(view):
    """Clients send Latin-1, and Java replaces undecodable bytes."""
    data = view(b"\0\0\0\1" + b"\0\6" + b"\xc3(\xe9\xc3\xa9\xff")

    request = codec.decode_exact(MetadataRequest, 0, data)

    assert request.topics[0].name == "\ufffd(\ufffd\xe9\ufffd"


def test_string_in_another_encoding_that_would_grow_too_long_is_rejected():
    for size, legal in ((10922, True), (10923, False)):
        data = b"\0\0\0\1" + struct.pack(">h", size) + b"\xff" * size
        if legal:
            request = codec.decode_exact(MetadataRequest, 0, data)
            assert codec.decode(MetadataRequest, 0, codec.encode(request, 0))[0] == request
        else:
            with pytest.raises(DecodeError, match="UTF-8"):
                codec.decode(MetadataRequest, 0, data)


def test_compact_string_longer_than_32767_bytes_is_rejected():
    for size, legal in ((32767, True), (32768, False)):
        data = b"\2" + encode_uvarint(size + 1) + b"x" * size + b"\0" + b"\0\0\0\0"
        if legal:
            codec.decode_exact(MetadataRequest, 9, data)
        else:
            with pytest.raises(DecodeError, match="32768"):
                codec.decode(MetadataRequest, 9, data)


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x80\x80\x80\x80\x00",  # six bytes
        b"\xff\xff\xff\xff\x1f",  # 33 bits
        b"\x80\x80\x80\x80\x80",
    ],
)
def test_overlong_varint_is_rejected(data):
    with pytest.raises(DecodeError, match="varint"):
        read_uvarint(data + bytes(10), 0)
    with pytest.raises(DecodeError):
        codec.decode(MetadataRequest, 9, data + bytes(10))


def test_trailing_bytes_are_reported_by_decode_exact():
    with pytest.raises(DecodeError, match="2 bytes left over"):
        codec.decode_exact(MetadataRequest, 0, b"\0\0\0\0" + b"xy")


def test_offset_outside_the_buffer_is_rejected():
    for offset in (-1, 5):
        with pytest.raises(DecodeError, match="outside"):
            codec.decode(MetadataRequest, 0, b"\0\0\0\0", offset)


def test_unknown_tagged_fields_are_skipped():
    plain = codec.encode(MetadataResponse(), 9)
    assert plain[-1] == 0

    tagged = plain[:-1] + b"\2" + b"\x05\3abc" + b"\xff\x7f\0"

    assert codec.decode_exact(MetadataResponse, 9, tagged) == MetadataResponse()


def test_tagged_field_shorter_or_longer_than_its_content_is_rejected():
    message = FetchRequest(cluster_id="abc")
    encoded = codec.encode(message, 12)
    assert encoded.endswith(b"\1\0\4\4abc")

    for size in (3, 5):
        with pytest.raises(DecodeError):
            codec.decode(FetchRequest, 12, encoded[:-5] + bytes([size]) + b"\4abc" + bytes(5))


@pytest.mark.parametrize("cut", range(14))
def test_request_header_cut_short_is_rejected(cut):
    encoded = header.encode_request_header(3, 9, 7, "abc")
    assert len(encoded) == 14

    with pytest.raises(DecodeError):
        header.decode_request_header(encoded[:cut])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (struct.pack(">hhih", 3, 1, 7, -2), "client id of -2"),
        (struct.pack(">hhih", 3, 1, 7, 5) + b"abcd", "client id of 5"),
        (struct.pack(">hhih", 3, 1, 7, 10923) + b"\xff" * 10923, "UTF-8"),
        (struct.pack(">hhih", 999, 1, 7, 0), "key 999"),
        (struct.pack(">hhih", -1, 1, 7, 0), "key -1"),
        (struct.pack(">hhih", 3, -1, 7, 0), "negative"),
        (struct.pack(">hhihB", 3, 9, 7, 0, 1) + b"\0\x7f", "tagged field"),
        (b"GET / HTTP/1.1\r\n", "key 18245"),
    ],
)
def test_malformed_request_header_is_rejected_with_the_reason(data, reason):
    with pytest.raises(DecodeError, match=reason):
        header.decode_request_header(data)
