"""Every client writes in every way it has, and reads it back."""

from __future__ import annotations

import struct

import pytest
from interop.conftest import ALL, directory_of
from support.drivers import CODECS, ClientError, Driver, Message, payloads
from support.running.grids import some_of

from kbroker.testing import Broker, wait_until

pytestmark = pytest.mark.interop

MESSAGE_TOO_LARGE = 10
MAX_MESSAGE_BYTES = 1_048_588  # the default of max.message.bytes
HEADERS = (("trace", b"\x00\xff"), ("empty", b""), ("null", None), ("trace", b"again"))


def batches(broker: Broker, topic: str, partition: int = 0) -> list[tuple[int, int, int]]:
    """``(records, codec, producer id)`` of each batch in the log on disk."""
    found = []
    for path in sorted(directory_of(broker, topic, partition).glob("*.log")):
        data = path.read_bytes()
        at = 0
        while at < len(data):
            (length,) = struct.unpack_from(">i", data, at + 8)
            (attributes,) = struct.unpack_from(">h", data, at + 21)
            (producer_id,) = struct.unpack_from(">q", data, at + 43)
            (count,) = struct.unpack_from(">i", data, at + 57)
            found.append((count, attributes & 7, producer_id))
            at += 12 + length
    return found


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("driver", ALL, indirect=True)
def test_produce_with_codec_is_stored_so_and_read_back(
    broker: Broker, driver: Driver, made: str, codec: str
) -> None:
    """The batches keep the producer's compression: the broker does not recompress."""
    messages = payloads(200)
    offsets = driver.produce(made, messages, codec=codec)
    if driver.name != "kcat":
        assert offsets == list(range(200))
    stored = batches(broker, made)
    assert sum(count for count, _, _ in stored) == 200
    assert {used for _, used, _ in stored} == {CODECS.index(codec)}
    records = driver.fetch(made, 200)
    assert [record.value for record in records] == [message.value for message in messages]
    assert [record.offset for record in records] == list(range(200))


@pytest.mark.parametrize("acks", ["0", "1", "all"])
@pytest.mark.parametrize("driver", ALL, indirect=True)
def test_produce_with_acks_is_stored(broker: Broker, driver: Driver, made: str, acks: str) -> None:
    messages = payloads(50)
    driver.produce(made, messages, acks=acks)
    wait_until(lambda: sum(count for count, _, _ in batches(broker, made)) == 50)
    values = [record.value for record in driver.fetch(made, 50)]
    assert values == [message.value for message in messages]


@pytest.mark.parametrize("driver", ALL, indirect=True)
def test_idempotent_producer_gets_an_id_and_is_stored_once(
    broker: Broker, driver: Driver, made: str
) -> None:
    """Two producers, several batches each: sequence numbers start at 0 with each id."""
    for _ in range(2):
        driver.produce(made, payloads(300), idempotent=True)
    stored = batches(broker, made)
    assert sum(count for count, _, _ in stored) == 600
    ids = {producer_id for _, _, producer_id in stored}
    assert len(ids) == 2 and min(ids) >= 0
    assert [record.offset for record in driver.fetch(made, 600)] == list(range(600))


@pytest.mark.parametrize("driver", ALL, indirect=True)
def test_keys_headers_nulls_and_timestamps_come_back(driver: Driver, made: str) -> None:
    headers = HEADERS if driver.header_sets else (("trace", b"1"), ("null", None))
    if not driver.null_headers:
        headers = tuple(header for header in headers if header[1] is not None)
    messages = [
        Message(b"value", b"key", headers, 1_600_000_000_123),
        Message(None, b"deleted", headers, 1_600_000_000_456),
        Message(b"no key", None, headers, 1_600_000_000_789),
        Message("zwölf €".encode(), "schlüssel".encode(), headers, 1_600_000_001_000),
    ]
    driver.produce(made, messages)
    records = driver.fetch(made, len(messages))
    assert [(record.key, record.value, record.headers) for record in records] == [
        (message.key, message.value, message.headers) for message in messages
    ]
    if driver.timestamps:
        assert [record.timestamp_ms for record in records] == [
            message.timestamp_ms for message in messages
        ]


@pytest.mark.parametrize("codec", some_of(["none", "lz4"], ["lz4"]))
@pytest.mark.parametrize("driver", ALL, indirect=True)
def test_ten_thousand_records_keep_their_order(driver: Driver, made: str, codec: str) -> None:
    messages = payloads(10_000, 20)
    driver.produce(made, messages, codec=codec)
    records = driver.fetch(made, 10_000)
    assert [record.value for record in records] == [message.value for message in messages]
    assert [record.offset for record in records] == list(range(10_000))


LARGE_CONFIG = {  # makes each client send more than the broker accepts
    "confluent-kafka": {"message.max.bytes": 3_000_000},
    "kcat": {"message_max_bytes": "3000000"},
    "kafka-python": {"max_request_size": 3_000_000, "batch_size": 16384},
    "aiokafka": {"max_request_size": 3_000_000},
    "java": {"max_request_size": 3_000_000},
}


@pytest.mark.parametrize("driver", ALL, indirect=True)
def test_message_just_within_the_limit_is_stored_and_read_whole(driver: Driver, made: str) -> None:
    """The batch is larger than the default fetch size of these clients."""
    message = Message(b"x" * (MAX_MESSAGE_BYTES - 200), b"k")
    config = LARGE_CONFIG[driver.name.split()[0]]
    driver.produce(made, [message, Message(b"after")], **config)
    assert [record.value for record in driver.fetch(made, 2)] == [message.value, b"after"]


@pytest.mark.parametrize("driver", ALL, indirect=True)
def test_message_over_the_limit_is_refused_as_too_large(driver: Driver, made: str) -> None:
    config = LARGE_CONFIG[driver.name.split()[0]]
    with pytest.raises(ClientError) as refused:
        driver.produce(made, [Message(b"x" * (MAX_MESSAGE_BYTES + 1))], **config)
    assert refused.value.code == MESSAGE_TOO_LARGE
    driver.produce(made, [Message(b"small")], **config)
    assert [record.value for record in driver.fetch(made, 1)] == [b"small"]
