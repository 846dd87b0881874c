"""The few wire bytes the benchmarks send themselves: a record batch, Produce 0 to 9, Metadata 4.

Written apart from kbroker's own codec on purpose: a mistake in that must not hide itself here, and
the tools must be able to load Apache Kafka with nothing of kbroker but the load generator.
Sources: protocol guide, "Record Batch" and the Produce and Metadata schemas.
"""

import random
import struct
import time
import zlib
from dataclasses import dataclass
from typing import NamedTuple

PRODUCE = 0
METADATA = 3
CLIENT_ID = b"kbroker-perf"
FETCH = 1
PRODUCE_VERSIONS = range(10)
# In earlier versions, Produce has message sets: of format 1 in version 2, of format 0 before.
FIRST_BATCH_PRODUCE = 3
FIRST_FLEXIBLE_PRODUCE = 9
BATCH_HEADER_BYTES = 61


def _crc32c_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _crc32c_table()


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli), byte by byte: a batch is built once per run."""
    table, crc = _TABLE, 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def unsigned_varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def zigzag_varint(value: int) -> bytes:
    return unsigned_varint((value << 1) ^ (value >> 63))


LETTERS = bytes(65 + value % 26 for value in range(256))


def text(value: str) -> bytes:
    """A string with its size, as requests have it before they were flexible."""
    data = value.encode()
    return struct.pack(">h", len(data)) + data


def random_values(count: int, size: int, seed: int) -> list[bytes]:
    """``count`` values of ``size`` random capital letters, the same for the same seed.

    As Kafka's own tool makes them; lz4 and snappy cannot shrink such values.
    """
    raw = random.Random(seed).randbytes(count * size).translate(LETTERS)
    return [raw[at : at + size] for at in range(0, count * size, size)]


def random_bytes(count: int, size: int, seed: int) -> list[bytes]:
    """``count`` values that nothing can shrink."""
    source = random.Random(seed)
    return [source.randbytes(size) for _ in range(count)]


def half_random_values(count: int, size: int, seed: int) -> list[bytes]:
    """``count`` values whose first half is random: half of a record of a log repeats, too."""
    rest = b"x" * (size - size // 2)
    return [noise + rest for noise in random_bytes(count, size // 2, seed)]


def text_values(count: int, size: int, seed: int) -> list[bytes]:
    """``count`` values of ``size`` bytes like log lines: numbers between words that recur."""
    source = random.Random(seed)
    vocabulary = random_values(200, 7, seed)
    values = []
    for _ in range(count):
        line = b""
        while len(line) < size:
            words = b" ".join(source.choices(vocabulary, k=size // 16 + 1))
            line += b"%d %s " % (source.getrandbits(40), words)
        values.append(line[:size])
    return values


def record_batch(values: list[bytes], timestamp_ms: int | None = None) -> bytes:
    """An uncompressed batch of format 2: no keys, headers or producer id, one timestamp."""
    now = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
    records = bytearray()
    for delta, value in enumerate(values):
        # attributes, timestamp delta 0, offset delta, no key (-1), value, no headers
        body = b"\0\0" + zigzag_varint(delta) + b"\x01" + zigzag_varint(len(value)) + value + b"\0"
        records += zigzag_varint(len(body)) + body
    checked = struct.pack(">hiqqqhii", 0, len(values) - 1, now, now, -1, -1, -1, len(values))
    checked += records
    after_length = struct.pack(">ibI", -1, 2, crc32c(checked)) + checked
    return struct.pack(">qi", 0, len(after_length)) + after_length


def message_set(values: list[bytes], message_format: int, timestamp_ms: int | None = None) -> bytes:
    """An uncompressed message set of format 0 or 1, without keys."""
    now = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
    head = struct.pack(">bb", message_format, 0)
    if message_format:
        head += struct.pack(">q", now)
    out = bytearray()
    for offset, value in enumerate(values):
        body = head + struct.pack(">ii", -1, len(value)) + value
        out += struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body
    return bytes(out)


def records_for(version: int, values: list[bytes]) -> bytes:
    """The values in the format of that Produce version."""
    if version >= FIRST_BATCH_PRODUCE:
        return record_batch(values)
    return message_set(values, 1 if version == 2 else 0)


def request_frame(api_key: int, version: int, body: bytes, *, flexible: bool = False) -> bytes:
    """A whole request with its length; correlation id 0 in bytes 8 to 11."""
    header = struct.pack(">hhih", api_key, version, 0, len(CLIENT_ID)) + CLIENT_ID
    if flexible:
        header += b"\0"
    return struct.pack(">i", len(header) + len(body)) + header + body


def produce_frame(
    version: int, topic: str, partition: int, batch: bytes, *, acks: int, timeout_ms: int = 30_000
) -> bytes:
    """A Produce request of one batch for one partition."""
    if version not in PRODUCE_VERSIONS:
        raise ValueError(f"Produce version {version}: only 0 to 9 name topics as this tool does")
    name = topic.encode()
    if version < FIRST_FLEXIBLE_PRODUCE:
        body = struct.pack(">h", -1) if version >= FIRST_BATCH_PRODUCE else b""
        body += struct.pack(">hiih", acks, timeout_ms, 1, len(name)) + name
        body += struct.pack(">iii", 1, partition, len(batch)) + batch
        return request_frame(PRODUCE, version, body)
    body = b"\0" + struct.pack(">hi", acks, timeout_ms)
    body += b"\x02" + unsigned_varint(len(name) + 1) + name
    body += b"\x02" + struct.pack(">i", partition) + unsigned_varint(len(batch) + 1) + batch
    return request_frame(PRODUCE, version, body + b"\0\0\0", flexible=True)


def produce_response_prefix(version: int, topic: str, partition: int) -> bytes:
    """The bytes between correlation id and error code in the response to ``produce_frame``."""
    name = topic.encode()
    if version < FIRST_FLEXIBLE_PRODUCE:
        return struct.pack(">ih", 1, len(name)) + name + struct.pack(">ii", 1, partition)
    head = b"\0\x02" + unsigned_varint(len(name) + 1) + name
    return head + b"\x02" + struct.pack(">i", partition)


def fetch_frame(topic: str, partition: int, offset: int, max_bytes: int) -> bytes:
    """Fetch 4: batches as they are stored."""
    name = topic.encode()
    body = struct.pack(">iiiibih", -1, 500, 1, max_bytes, 0, 1, len(name)) + name
    body += struct.pack(">iiqi", 1, partition, offset, max_bytes)
    return request_frame(FETCH, 4, body)


def old_fetch_frame(topic: str, partition: int, offset: int, max_bytes: int) -> bytes:
    """Fetch 2, of a client that supports message format 1 and nothing newer."""
    name = topic.encode()
    body = struct.pack(">iiiih", -1, 500, 1, 1, len(name)) + name
    body += struct.pack(">iiqi", 1, partition, offset, max_bytes)
    return request_frame(FETCH, 2, body)


def old_fetch_records(response: bytes) -> tuple[int, int, int]:
    """(error code, position of the message set, high watermark) in a response to Fetch 2."""
    name_bytes = struct.unpack_from(">h", response, 12)[0]
    at = 14 + name_bytes + 8
    code, high_watermark, _size = struct.unpack_from(">hqi", response, at)
    return code, at + 14, high_watermark


def metadata_frame(topic: str, *, auto_create: bool) -> bytes:
    """Metadata 4 about one topic."""
    name = topic.encode()
    body = struct.pack(">ih", 1, len(name)) + name + struct.pack(">?", auto_create)
    return request_frame(METADATA, 4, body)


@dataclass(slots=True)
class TopicMetadata:
    """Error code of the topic; the address of each partition's leader, None if it has none."""

    error_code: int
    leaders: dict[int, tuple[str, int] | None]


class PartitionState(NamedTuple):
    """leader: -1 if there is none. replicas: the preferred leader first."""

    error_code: int
    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


class ClusterState(NamedTuple):
    """What a broker says in Metadata 4. controller: -1 if it knows none. topics: the error code of
    each, and its partitions.
    """

    addresses: dict[int, tuple[str, int]]
    controller: int
    topics: dict[str, tuple[int, dict[int, PartitionState]]]


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.pos = data, 0

    def take(self, layout: str) -> tuple[int, ...]:
        values = struct.unpack_from(">" + layout, self.data, self.pos)
        self.pos += struct.calcsize(">" + layout)
        return values

    def number(self) -> int:
        return self.take("i")[0]

    def numbers(self) -> tuple[int, ...]:
        return self.take(f"{self.number()}i")

    def text(self) -> str:
        """Empty if it is null."""
        size = max(self.take("h")[0], 0)
        self.pos += size
        return self.data[self.pos - size : self.pos].decode()


def parse_cluster(response: bytes) -> ClusterState:
    """A response to Metadata 4, without its length; struct.error if it is truncated."""
    reader = _Reader(response)
    reader.take("ii")  # correlation id, throttle time
    addresses = {}
    for _ in range(reader.number()):
        node, host, port, _rack = reader.number(), reader.text(), reader.number(), reader.text()
        addresses[node] = (host, port)
    reader.text()  # the cluster's id
    controller = reader.number()
    topics: dict[str, tuple[int, dict[int, PartitionState]]] = {}
    for _ in range(reader.number()):
        (code,), name, _is_internal = reader.take("h"), reader.text(), reader.take("b")
        partitions = {}
        for _ in range(reader.number()):
            error, index, leader = reader.take("hii")
            partitions[index] = PartitionState(error, leader, reader.numbers(), reader.numbers())
        topics[name] = (code, partitions)
    return ClusterState(addresses, controller, topics)


def parse_metadata(response: bytes) -> TopicMetadata:
    """The response to ``metadata_frame``. Raises as parse_cluster, or ValueError."""
    cluster = parse_cluster(response)
    if len(cluster.topics) != 1:
        raise ValueError("the response is not about one topic")
    ((code, partitions),) = cluster.topics.values()
    leaders = {
        index: cluster.addresses.get(one.leader) if one.error_code == 0 else None
        for index, one in partitions.items()
    }
    return TopicMetadata(code, leaders)
