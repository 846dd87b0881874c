"""Record batches that are corrupt, too large or bombs: only their partition rejects them (exam
S3).
"""

from __future__ import annotations

import random
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import pytest
from support.clients.wire_client import WireClient, batch_of, produce_request
from support.faults.hostile_harness import MIB, GoodClient, nothing_dies
from support.running.grids import some_of
from support.running.pace import hold

from kbroker._ext.base.crc32c import crc32c
from kbroker.errors import ErrorCode
from kbroker.record import compression
from kbroker.testing import Broker

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

TOPIC = "batches"
GOOD = "good"
HEADER_BYTES = 61
REFUSED = {
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.INVALID_RECORD,
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
}
CODECS = {
    "gzip": compression.GZIP,
    "snappy": compression.SNAPPY,
    "lz4": compression.LZ4,
    "zstd": compression.ZSTD,
}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as started:
        with WireClient((started.host, started.port)) as client:
            client.create_topic(TOPIC, 3)
            client.create_topic(GOOD)
        yield started


@pytest.fixture
def client(broker: Broker) -> Iterator[WireClient]:
    with WireClient((broker.host, broker.port)) as connected:
        yield connected


def sealed(batch: bytearray | bytes) -> bytes:
    """With a valid checksum: only the content is wrong."""
    data = bytearray(batch)
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    return bytes(data)


def patched(layout: str, position: int, value: int) -> Callable[[bytes], bytes]:
    """Another value in the header, with a valid checksum."""

    def change(batch: bytes) -> bytes:
        data = bytearray(batch)
        struct.pack_into(layout, data, position, value)
        return sealed(data)

    return change


def flipped(position: int) -> Callable[[bytes], bytes]:
    """One flipped bit, and the old checksum."""

    def change(batch: bytes) -> bytes:
        data = bytearray(batch)
        data[position] ^= 0x10
        return bytes(data)

    return change


CORRUPTIONS: dict[str, Callable[[bytes], bytes]] = {
    "cut in its header": lambda batch: batch[:40],
    "cut in its records": lambda batch: batch[:-3],
    "zeros behind it": lambda batch: batch + b"\0" * 12,
    "another one behind it": lambda batch: batch * 2,
    "empty": lambda batch: b"",
    "nothing but zeros": lambda batch: bytes(len(batch)),
    "checksum": flipped(17),
    "record flipped": flipped(HEADER_BYTES + 5),
    "attributes flipped": flipped(22),
    "length negative": patched(">i", 8, -1),
    "length too large": patched(">i", 8, 2**31 - 1),
    "length too small": patched(">i", 8, 10),
    "magic": patched(">b", 16, 9),
    "records fewer": patched(">i", 57, 1),
    "records more": patched(">i", 57, 4),
    "records negative": patched(">i", 57, -1),
    "records 2^31": patched(">i", 57, 2**31 - 1),
    "last delta": patched(">i", 23, 17),
    "last delta negative": patched(">i", 23, -5),
    "codec 7": patched(">h", 21, 7),
    "codec gzip, but plain": patched(">h", 21, 1),
    "control": patched(">h", 21, 0x20),
    "base offset": patched(">q", 0, 77),
    "record length": lambda batch: sealed(batch[:HEADER_BYTES] + b"\x7f" + batch[62:]),
    "record length negative": lambda batch: sealed(batch[:HEADER_BYTES] + b"\x01" + batch[62:]),
}


@pytest.mark.parametrize("how", CORRUPTIONS)
def test_corrupt_batch_fails_its_partition_only(
    broker: Broker, client: WireClient, how: str
) -> None:
    good = batch_of([b"first", b"second", b"third"])
    bad = CORRUPTIONS[how](good)
    assert bad != good
    ends = [client.offset(TOPIC, partition, -1) for partition in range(3)]
    with nothing_dies(broker):
        answers = client.produce(TOPIC, {0: good, 1: bad, 2: good})

    assert [answers[0].error_code, answers[2].error_code] == [0, 0]
    assert ErrorCode(answers[1].error_code) in REFUSED, ErrorCode(answers[1].error_code).name
    assert [answers[0].base_offset, answers[2].base_offset] == [ends[0], ends[2]]
    assert answers[1].base_offset == -1
    assert client.offset(TOPIC, 1, -1) == ends[1]


# What Kafka 3.9.1 and 4.3.0 answer, measured beside them: a client sends again what is corrupt.
RECORD_SETS: dict[str, tuple[Callable[[bytes], bytes], int]] = {
    "nothing": (lambda batch: b"", 87),
    "1 byte": (lambda batch: b"\0", 87),
    "11 zeros": (lambda batch: bytes(11), 87),
    "12 zeros": (lambda batch: bytes(12), 2),
    "61 zeros": (lambda batch: bytes(61), 2),
    "61 bytes ff": (lambda batch: b"\xff" * 61, 2),
    **{f"cut at {n}": (lambda batch, n=n: batch[:n], 87) for n in (16, 17, 40, 61, -1)},
    **{f"{n} zeros behind it": (lambda batch, n=n: batch + bytes(n), 0) for n in (3, 11)},
    "12 zeros behind it": (lambda batch: batch + bytes(12), 2),
    "two": (lambda batch: batch * 2, 87),
    **{f"two, cut at {n}": (lambda batch, n=n: batch + batch[:n], 0) for n in (16, 17, 40, -1)},
    "another format behind it": (lambda batch: batch + patched(">b", 16, 1)(batch), 87),
    "no format behind it": (lambda batch: batch + patched(">b", 16, 5)(batch), 2),
    "no length behind it": (lambda batch: batch + patched(">i", 8, 10)(batch), 2),
    "length 48": (patched(">i", 8, 48), 2),
    "length 1000": (patched(">i", 8, 1000), 87),
    "format 1": (patched(">b", 16, 1), 87),
    "format 5": (patched(">b", 16, 5), 2),
    "format 5, cut": (lambda batch: patched(">b", 16, 5)(batch)[:40], 2),
}  # type: ignore[misc]


@pytest.mark.parametrize("version", [3, 8, 9, 12])
def test_record_set_is_taken_up_to_its_last_whole_batch(client: WireClient, version: int) -> None:
    good = batch_of([b"x"])
    for name, (change, code) in RECORD_SETS.items():
        end = client.offset(TOPIC, 1, -1)
        request = produce_request(TOPIC, {1: change(good)})
        (response,) = client.call(request, version).responses[0].partition_responses
        assert (response.error_code, client.offset(TOPIC, 1, -1)) == (code, end + (code == 0)), name


def test_bytes_behind_a_transactional_batch_hide_nothing(client: WireClient) -> None:
    """What is appended is what was checked: a batch of a transaction needs the right to it."""
    batch = patched(">h", 21, 0x10)(batch_of([b"x"]))
    for data in (batch, batch + b"\0"):
        response = client.produce(TOPIC, {1: data})[1]
        assert response.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_wrong_checksum_is_called_corrupt(client: WireClient) -> None:
    response = client.produce(TOPIC, {1: flipped(17)(batch_of([b"x"]))})[1]

    assert response.error_code == ErrorCode.CORRUPT_MESSAGE


def test_random_damage_is_never_served(broker: Broker, client: WireClient) -> None:
    """Everything accepted reads back whole."""
    chance = random.Random(20260101)
    with nothing_dies(broker), GoodClient(broker, GOOD, least=5):
        for _ in range(300):
            codec = chance.choice((0, 0, *CODECS.values()))
            data = bytearray(batch_of([b"a" * 40, b"b" * 40], codec=codec))
            for _ in range(chance.choice((1, 2, 8))):
                data[chance.randrange(12, len(data))] = chance.randrange(256)
            is_sealed = chance.random() < 0.7
            client.produce(TOPIC, {1: sealed(data) if is_sealed else bytes(data)})

    offsets = [record.offset for record in client.read_all(TOPIC, 1)]
    assert offsets == sorted(set(offsets))


def test_large_batch_is_too_large_for_its_partition_only(client: WireClient) -> None:
    good = batch_of([b"small"])
    large = batch_of([b"l" * (2 * MIB)])

    answers = client.produce(TOPIC, {0: good, 1: large, 2: good})

    assert [answers[p].error_code for p in range(3)] == [0, ErrorCode.MESSAGE_TOO_LARGE, 0]


@cache
def bomb_of(codec: str) -> bytes:
    """A batch that claims one record, of 128 MiB of zeros or more: a broker allows 64."""
    import lz4.frame
    import zstandard

    zeros = bytes(MIB)
    if codec == "gzip":
        packer = zlib.compressobj(9, wbits=31)
        body = b"".join(packer.compress(zeros) for _ in range(128)) + packer.flush()
    elif codec == "lz4":
        frame = lz4.frame.LZ4FrameCompressor(block_size=lz4.frame.BLOCKSIZE_MAX4MB)
        body = frame.begin() + b"".join(frame.compress(zeros) for _ in range(150)) + frame.flush()
    elif codec == "zstd":
        encoder = zstandard.ZstdCompressor().compressobj()
        body = b"".join(encoder.compress(zeros) for _ in range(300)) + encoder.flush()
    else:
        size, length = 512 * MIB, bytearray()
        while size >= 0x80:
            length.append(size & 0x7F | 0x80)
            size >>= 7
        body = bytes(length) + bytes([size, 0, 0]) + bytes([0xFE, 1, 0]) * 200_000
    data = bytearray(batch_of([b"x"])[:HEADER_BYTES]) + body
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">h", data, 21, CODECS[codec])
    return sealed(data)


@pytest.mark.parametrize("times", some_of([2, 5], [2]))
@pytest.mark.parametrize("codec", CODECS)
def test_bomb_fails_its_partition_and_delays_nobody(
    broker: Broker, client: WireClient, codec: str, times: int
) -> None:
    good = batch_of([b"good"])
    bomb = bomb_of(codec)
    assert len(bomb) < 1_000_000  # otherwise it would be too large itself
    client.produce(TOPIC, {1: batch_of([b"warm"], codec=CODECS[codec])})
    with nothing_dies(broker, 64 * MIB), ExitStack() as stack:
        stack.enter_context(GoodClient(broker, GOOD, longest_s=5, least=5))
        for _ in range(times):
            began = time.monotonic()
            answers = client.produce(TOPIC, {0: good, 1: bomb, 2: good})
            assert time.monotonic() - began < 10

            assert [answers[0].error_code, answers[2].error_code] == [0, 0]
            code = ErrorCode(answers[1].error_code)
            assert code in REFUSED | {ErrorCode.MESSAGE_TOO_LARGE}, code.name
            if code == ErrorCode.MESSAGE_TOO_LARGE:  # of which max.message.bytes is not the reason
                assert "max.decompressed.message.bytes" in answers[1].error_message
        hold(0.1)


@pytest.mark.parametrize("codec", CODECS)
def test_damaged_compression_is_corrupt(client: WireClient, codec: str) -> None:
    good = batch_of([b"value " * 20], codec=CODECS[codec])
    middle = (HEADER_BYTES + len(good)) // 2
    damaged = {
        "cut": good[:-4],
        "junk": good[:HEADER_BYTES] + b"\xa5" * (len(good) - HEADER_BYTES),
        "hole": good[:middle] + b"\xff\xff\xff" + good[middle + 3 :],
        "tail": good + b"\1\2\3\4",
        "empty": good[:HEADER_BYTES],
    }
    for how, batch in damaged.items():
        data = bytearray(batch)
        struct.pack_into(">i", data, 8, len(data) - 12)

        code = ErrorCode(client.produce(TOPIC, {1: sealed(data)})[1].error_code)

        assert code in REFUSED, f"{how}: {code.name}"
