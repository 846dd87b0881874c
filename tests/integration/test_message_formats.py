"""Produce 0 to 2 and Fetch 0 to 3 on the wire of a real broker, and their configs."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from support.clients.wire_client import WireClient, batch_of, produce_request
from support.faults.hostile_harness import nothing_dies
from support.storage.message_sets import (
    OldMessage,
    message_bytes,
    messages_in,
    set_bytes,
    wrapper_bytes,
)

from kbroker.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from kbroker.protocol.messages.list_offsets import ListOffsetsRequest
from kbroker.protocol.messages.metadata import MetadataRequest
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.record.batch import RecordBatch
from kbroker.record.builder import BatchBuilder
from kbroker.record.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD, compress
from kbroker.testing import Broker, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

TIME = 1_700_000_000_000
MESSAGES = [OldMessage(n, TIME + n, b"k%d" % n, b"value %d" % n) for n in range(4)]
TOPIC, BROKER = 2, 4  # kinds of resources


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"log.retention.ms": -1}) as started:
        yield started


@pytest.fixture
def client(broker: Broker) -> Iterator[WireClient]:
    with WireClient((broker.host, broker.port)) as connected:
        yield connected


@pytest.fixture
def topic(client: WireClient, request: pytest.FixtureRequest) -> str:
    name = f"t{zlib.crc32(request.node.nodeid.encode())}"
    client.create_topic(name, 2)
    return name


def produce(client: WireClient, topic: str, data: bytes, version: int = 2, acks: int = 1) -> Any:
    response = client.call(produce_request(topic, {0: data}, acks), version)
    return response.responses[0].partition_responses[0]


@pytest.mark.parametrize("version", range(13))
def test_record_without_key_is_refused_by_a_compacted_topic(
    client: WireClient, request: pytest.FixtureRequest, version: int
) -> None:
    """In every version that names topics; from 8 on the response says which record it was."""
    name = f"t{zlib.crc32(request.node.nodeid.encode())}"
    client.create_topic(name, cleanup_policy="compact")
    with_keys = [OldMessage(n, TIME, b"k", b"v") for n in range(2)]
    keyless = [*with_keys, OldMessage(2, TIME, None, b"v"), OldMessage(3, TIME, b"k", b"v")]

    response = produce(client, name, records_of(version, keyless), version)

    assert (response.error_code, response.base_offset) == (ErrorCode.INVALID_RECORD, -1)
    if version >= 8:
        assert [error.batch_index for error in response.record_errors] == [2]
        assert "key" in response.error_message
    response = produce(client, name, records_of(version, with_keys), version)
    assert (response.error_code, response.base_offset) == (0, 0)


@pytest.mark.parametrize("version", [8, 13])
@pytest.mark.parametrize("codec", [NONE, LZ4])
def test_all_records_at_fault_are_named_up_to_a_thousand(
    client: WireClient, request: pytest.FixtureRequest, version: int, codec: int
) -> None:
    """A producer retries the records that were not named, without those that were (KIP-467)."""
    name = f"t{zlib.crc32(request.node.nodeid.encode())}"
    client.create_topic(name, 2, cleanup_policy="compact")
    cls = ProduceRequest
    builders = [BatchBuilder(codec), BatchBuilder(codec)]
    for index in range(3000):
        builders[0].append(b"v", b"k" if index % 2 else None, TIME)
        builders[1].append(b"v", None if index in (7, 2999) else b"k", TIME)
    parts = [
        cls.PartitionProduceData(index=index, records=builder.build())
        for index, builder in enumerate(builders)
    ]
    topic_id = client.call(
        MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=name)]), 12
    )
    data = cls.TopicProduceData(
        name=name, topic_id=topic_id.topics[0].topic_id, partition_data=parts
    )

    response = client.call(cls(acks=1, timeout_ms=10_000, topic_data=[data]), version)

    many, two = response.responses[0].partition_responses
    assert (many.error_code, two.error_code) == (ErrorCode.INVALID_RECORD,) * 2
    assert [error.batch_index for error in many.record_errors] == list(range(0, 2000, 2))
    assert [error.batch_index for error in two.record_errors] == [7, 2999]
    assert {error.batch_index_error_message for error in two.record_errors} == {two.error_message}


@pytest.mark.parametrize("version", range(3, 9))
def test_zstd_is_refused_by_a_produce_older_than_it(
    client: WireClient, topic: str, version: int
) -> None:
    builder = BatchBuilder(ZSTD)
    builder.append(b"v", b"k", TIME)

    response = produce(client, topic, builder.build(), version)

    old = version < 7
    assert response.error_code == (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE if old else 0)
    if version == 8:
        assert response.base_offset == 0 and response.error_message is None


def records_of(version: int, messages: list[OldMessage]) -> bytes:
    """The messages in the format of that Produce version."""
    if version < 3:
        return set_bytes(1 if version == 2 else 0, messages)
    builder = BatchBuilder()
    for message in messages:
        builder.append(message.value, message.key, TIME)
    return builder.build()


def fetch(client: WireClient, topic: str, version: int, **fields: int) -> Any:
    cls = FetchRequest
    part = cls.FetchPartition(
        partition=0,
        fetch_offset=fields.pop("offset", 0),
        partition_max_bytes=fields.pop("partition_max_bytes", 1 << 20),
    )
    limits = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 8 << 20, **fields}
    request = cls(**limits, topics=[cls.FetchTopic(topic=topic, partitions=[part])])
    return client.call(request, version).responses[0].partitions[0]


def alter(client: WireClient, kind: int, name: str, key: str, value: str) -> None:
    cls = IncrementalAlterConfigsRequest
    config = cls.AlterableConfig(name=key, config_operation=0, value=value)
    resource = cls.AlterConfigsResource(resource_type=kind, resource_name=name, configs=[config])
    (response,) = client.call(cls(resources=[resource]), 0).responses
    assert response.error_code == 0, response.error_message


@pytest.mark.parametrize("version", range(3))
@pytest.mark.parametrize("magic", [0, 1])
def test_message_set_comes_back_in_every_format(
    client: WireClient, topic: str, version: int, magic: int
) -> None:
    sets = [set_bytes(magic, MESSAGES)]
    sets += [wrapper_bytes(magic, codec, MESSAGES) for codec in (GZIP, SNAPPY, LZ4)]
    for number, data in enumerate(sets):
        response = produce(client, topic, data, version)
        assert (response.error_code, response.base_offset) == (0, 4 * number)
        assert response.log_append_time_ms == -1
    expected = [(4 * n + m.offset, m.key, m.value) for n in range(4) for m in MESSAGES]
    for fetch_version in range(4):
        found = messages_in(bytes(fetch(client, topic, fetch_version).records))
        assert [(m.offset, m.key, m.value) for m in found] == expected
        stamps = {m.timestamp for m in found}
        assert stamps == ({m.timestamp for m in MESSAGES} if magic and fetch_version > 1 else {-1})
    assert [(r.offset, r.key, r.value) for r in client.read_all(topic, 0)] == expected


def test_log_append_time_is_told_from_version_2_on(client: WireClient) -> None:
    client.create_topic("append-time", message_timestamp_type="LogAppendTime")
    for version in range(3):
        response = produce(client, "append-time", set_bytes(1, MESSAGES), version)
        assert response.error_code == 0
        assert (response.log_append_time_ms > TIME) == (version == 2)
    stored = {record.timestamp for record in client.read_all("append-time", 0)}
    assert response.log_append_time_ms in stored
    assert min(stored) > TIME


def test_produce_without_acks_is_stored_without_a_response(client: WireClient, topic: str) -> None:
    client.send(produce_request(topic, {0: set_bytes(0, MESSAGES)}, 0), 0)
    assert produce(client, topic, set_bytes(0, MESSAGES), 0).base_offset == 4


def test_list_offsets_0_lists_the_segments(client: WireClient) -> None:
    client.create_topic("segments", segment_bytes="200")
    for _ in range(3):
        produce(client, "segments", set_bytes(0, MESSAGES), 0)

    def offsets(timestamp: int, maximum: int) -> list[int]:
        cls = ListOffsetsRequest
        part = cls.ListOffsetsPartition(
            partition_index=0, timestamp=timestamp, max_num_offsets=maximum
        )
        topic = cls.ListOffsetsTopic(name="segments", partitions=[part])
        response = client.call(cls(replica_id=-1, topics=[topic]), 0).topics[0].partitions[0]
        assert response.error_code == 0
        found: list[int] = response.old_style_offsets
        return found

    assert offsets(-1, 9) == [12, 8, 4, 0]
    assert offsets(-1, 2) == [12, 8]
    assert offsets(-1, 1) == [12]
    assert offsets(-2, 9) == [0]
    assert offsets(1 << 60, 3) == [12, 8, 4]
    assert offsets(TIME, 9) == []  # before any file was written to


def test_batch_of_format_2_in_an_old_version_is_taken(client: WireClient, topic: str) -> None:
    assert produce(client, topic, batch_of([b"a", b"b"]), 2).error_code == 0
    assert client.offset(topic, 0, -1) == 2


def test_corrupt_message_fails_its_partition_only(client: WireClient, topic: str) -> None:
    good = set_bytes(0, MESSAGES)
    nested = message_bytes(
        0, OldMessage(0, -1, None, compress(GZIP, wrapper_bytes(0, GZIP, MESSAGES)), GZIP)
    )
    bomb = message_bytes(0, OldMessage(0, -1, None, compress(GZIP, bytes(80 << 20)), GZIP))
    for bad, error in (
        (good[:-1] + b"?", ErrorCode.CORRUPT_MESSAGE),
        (good[:20], ErrorCode.INVALID_RECORD),
        (b"", ErrorCode.INVALID_RECORD),
        (good + bytes(12), ErrorCode.CORRUPT_MESSAGE),
        (nested, ErrorCode.INVALID_RECORD),
        (bomb, ErrorCode.MESSAGE_TOO_LARGE),
    ):
        response = client.call(produce_request(topic, {0: bad, 1: good}), 2)
        first, second = response.responses[0].partition_responses
        assert (ErrorCode(first.error_code), first.base_offset) == (error, -1)
        assert second.error_code == 0
    assert client.offset(topic, 0, -1) == 0


def test_what_follows_the_last_whole_message_is_ignored(client: WireClient, topic: str) -> None:
    """As Kafka 3.9 does."""
    good = set_bytes(0, MESSAGES)
    for tail in (b"\0" * 3, b"\0" * 11, good[:17], good[:20]):
        assert produce(client, topic, good + tail, 0).error_code == 0
    assert client.offset(topic, 0, -1) == 4 * len(MESSAGES)
    assert produce(client, topic, good[:-1], 0).error_code == 0
    assert client.offset(topic, 0, -1) == 5 * len(MESSAGES) - 1


def test_random_message_sets_harm_nobody(broker: Broker, client: WireClient, topic: str) -> None:
    chance = random.Random(11)
    seeds = [set_bytes(magic, MESSAGES) for magic in (0, 1)]
    seeds += [wrapper_bytes(magic, codec, MESSAGES) for magic in (0, 1) for codec in (1, 2, 3)]
    with nothing_dies(broker):
        for _ in range(400):
            data = bytearray(chance.choice(seeds))
            for _ in range(chance.randrange(1, 5)):
                data[chance.randrange(len(data))] = chance.randrange(256)
            if chance.random() < 0.7:  # a right checksum of the first entry
                (size,) = struct.unpack_from(">i", data, 8)
                if 4 <= size <= len(data) - 12:
                    struct.pack_into(">I", data, 12, zlib.crc32(data[16 : 12 + size]))
            produce(client, topic, bytes(data), chance.randrange(3))
    records = client.read_all(topic, 0)
    assert [record.offset for record in records] == list(range(len(records)))
    found: list[OldMessage] = []
    while len(found) < len(records):
        part = fetch(client, topic, 0, offset=len(found)).records
        found += messages_in(bytes(part))
    assert [(m.key, m.value) for m in found] == [(r.key, r.value) for r in records]


def test_zstd_is_refused_to_old_readers(client: WireClient, topic: str) -> None:
    client.produce(topic, {0: batch_of([b"z"], codec=ZSTD)})
    for version in range(4):
        response = fetch(client, topic, version)
        assert response.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        assert not response.records


def test_down_conversion_is_switched_while_running(client: WireClient, topic: str) -> None:
    produce(client, topic, set_bytes(0, MESSAGES))

    def refused() -> bool:
        return bool(fetch(client, topic, 1).error_code == ErrorCode.UNSUPPORTED_VERSION)

    key = "message.downconversion.enable"
    assert not refused()
    alter(client, TOPIC, topic, key, "false")
    wait_until(refused, 30)
    assert fetch(client, topic, 4).error_code == 0
    alter(client, TOPIC, topic, key, "true")
    wait_until(lambda: not refused(), 30)
    alter(client, BROKER, "", f"log.{key}", "false")
    assert not refused()  # the topic has its own
    other = f"{topic}-other"
    client.create_topic(other)
    wait_until(lambda: fetch(client, other, 3).error_code == ErrorCode.UNSUPPORTED_VERSION, 30)
    alter(client, BROKER, "", f"log.{key}", "true")
    wait_until(lambda: fetch(client, other, 3).error_code == 0, 30)


def test_topic_of_an_older_format_is_written_and_read_by_every_version(client: WireClient) -> None:
    """Batches and message sets alike are stored in format 1; what that lacks is rejected."""
    client.create_topic("older", message_format_version="0.10.2")
    assert produce(client, "older", set_bytes(0, MESSAGES), 1).base_offset == 0
    assert produce(client, "older", batch_of([b"a", b"b"], codec=LZ4), 9).base_offset == 4
    for version in (0, 1, 2, 3, 4, 11):
        found = messages_in(bytes(fetch(client, "older", version).records))
        assert [m.value for m in found] == [*(m.value for m in MESSAGES), b"a", b"b"]
        assert {bytes(fetch(client, "older", version).records)[16]} == {int(version > 1)}
    builder = BatchBuilder(0, producer_id=5, producer_epoch=0, base_sequence=0)
    builder.append(b"v", b"k", TIME, ())
    response = produce(client, "older", builder.build(), 9)
    assert response.error_code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
    alter(client, TOPIC, "older", "message.format.version", "2.7")
    wait_until(lambda: produce(client, "older", builder.build(), 9).error_code == 0, 30)


def test_codec_of_the_topic_changes_while_running(client: WireClient, topic: str) -> None:
    def stored_codec() -> int:
        base = client.produce(topic, {0: batch_of([b"v" * 100] * 9, codec=LZ4)})[0].base_offset
        data = bytes(client.fetch(topic, 0, base).records)
        return RecordBatch(data).check().attributes & 7

    assert stored_codec() == LZ4
    for name, codec in (("gzip", GZIP), ("zstd", ZSTD), ("uncompressed", 0), ("producer", LZ4)):
        alter(client, TOPIC, topic, "compression.type", name)
        wait_until(lambda codec=codec: stored_codec() == codec, 30)
    values = {record.value for record in client.read_all(topic, 0)}
    assert values == {b"v" * 100}
