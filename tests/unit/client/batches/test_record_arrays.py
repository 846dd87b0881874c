"""Arrays of records: what is taken, what is refused, what stays in memory, when numpy is loaded."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from support.clients.produce_link import ProduceLink, pool

from kbroker._ext.client.record_reader import RecordReader
from kbroker.client.batches.record_arrays import (
    Fields,
    RecordArrays,
    arrays_of,
    both_parts_of,
    parts_of,
    timestamps_of,
)
from kbroker.client.errors import RecordTooLarge
from kbroker.record.builder import BatchBuilder

pytestmark = pytest.mark.unit


def batch(base: int, values: list[bytes | None], codec: int = 0) -> bytes:
    builder = BatchBuilder(codec, base_offset=base)
    for n, value in enumerate(values):
        builder.append(value, b"k%d" % n, 1000 + n)
    return bytes(builder.build())


def arrays(data: bytes | bytearray | memoryview, limit: int = 100) -> RecordArrays:
    reader = RecordReader("t", 3, 0)
    reader.load(data)
    columns = reader.read_arrays(limit)
    assert columns is not None
    return arrays_of(columns)


def test_clients_start_without_numpy():
    """It takes longer to load than a client."""
    source = (
        "import sys\n"
        "from kbroker.client import KafkaAdminClient, KafkaConsumer, KafkaProducer\n"
        "from kbroker.client.aio import AsyncKafkaConsumer, AsyncKafkaProducer\n"
        "import kbroker.cli.command, kbroker.cli.verbs.topic\n"
        "sys.exit('numpy is loaded' if 'numpy' in sys.modules else 0)"
    )

    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr


def test_positions_are_in_what_was_received_and_keep_it():
    """A fetch buffer is used again when nobody has a view into it."""
    received = bytearray(batch(0, [b"one", b"two"]))
    reader = RecordReader("t", 3, 0)
    reader.load(memoryview(received))
    columns = reader.read_arrays(10)
    reader.unload()
    assert columns is not None
    found = arrays_of(columns)
    del columns, reader

    assert len(found.values.buffer) == len(received)
    with pytest.raises(BufferError):
        received.append(0)
    assert list(found.values) == [b"one", b"two"]
    del found
    received.append(0)


@pytest.mark.parametrize("codec", range(5))
def test_arrays_cannot_be_written(codec):
    found = arrays(batch(0, [b"one", None], codec))

    for one in (found.offsets, found.timestamps, found.values.buffer, found.values.starts):
        with pytest.raises(ValueError, match="read-only"):
            one[0] = 1


def test_batches_that_were_compressed_are_in_one_buffer():
    data = b"".join(batch(base, [b"%d" % base] * 10, 4) for base in range(0, 100, 10))

    found = arrays(data)

    assert len(found) == 100
    assert list(found.values) == [b"%d" % (offset // 10 * 10) for offset in range(100)]


def test_damaged_record_ends_the_arrays_before_it():
    whole = batch(0, [b"one", b"two"]) + batch(2, [b"three"])
    bad = bytearray(whole)
    bad[-3] ^= 1
    reader = RecordReader("t", 3, 0)
    reader.load(bytes(bad))

    columns = reader.read_arrays(10)

    assert columns is not None and columns.values == [b"one", b"two"]
    assert reader.read_arrays(10) is None
    assert reader.error is not None and reader.error[0] == 2


def test_fields_are_a_sequence_of_bytes():
    fields = Fields(b"abcdef", [0, 2, 6, 0], [2, 4, 0, -1])

    assert len(fields) == 4
    assert list(fields) == [b"ab", b"cdef", b"", None]
    assert fields[1] == b"cdef"
    assert list(Fields.of(fields)) == list(fields)
    assert list(Fields.of([])) == []


def test_other_integers_and_strides_are_cast():
    """As long as they fit: 2**40 as a size would be another number in 32 bits."""
    starts = np.arange(6, dtype=np.uint16)[::2]

    parts = parts_of(Fields(bytearray(b"abcdef"), starts, np.ones(3, np.int64)))

    assert (parts.starts.dtype, parts.sizes.dtype) == (np.int64, np.int32)
    assert parts.starts.tolist() == [0, 2, 4]
    for bad in (np.array([1 << 40]), np.array([1 << 63], np.uint64)):
        with pytest.raises(ValueError, match="sizes do not fit int32"):
            parts_of(Fields(b"abc", [0], bad))


@pytest.mark.parametrize(
    ("fields", "error", "says"),
    [
        (Fields(b"abc", [0, 1], [1]), ValueError, "2 starts for 1 sizes"),
        (Fields(b"abc", [0.5], [1]), TypeError, "starts are of float64"),
        (Fields(b"abc", [[0]], [[1]]), ValueError, "2 dimensions"),
        (Fields("abc", [0], [1]), TypeError, "bytes-like"),
    ],
)
def test_what_is_no_position_is_refused(fields, error, says):
    with pytest.raises(error, match=says):
        parts_of(fields)


def test_keys_and_timestamps_must_be_as_many_as_values():
    made = pool()
    values, keys = both_parts_of(Fields.of([b"a", b"b"]), [b"k"])

    with pytest.raises(ValueError, match="1 keys for 2 values"):
        made.append_parts("t", values, keys, None, None, 5)
    with pytest.raises(ValueError, match="3 timestamps for 2 values"):
        timestamps_of(np.array([1, 2, 3]), 2)
    with pytest.raises(ValueError, match="3 timestamps for 2 values"):
        made.append_parts("t", values, None, None, None, np.array([1, 2, 3]))
    with pytest.raises(ValueError, match="the timestamp -1 is negative"):
        made.append_parts("t", values, None, None, None, np.array([1, -1]))
    assert timestamps_of(5, 2) == 5
    assert timestamps_of(None, 2) is None
    assert made.unended == made.used_bytes == 0


def test_record_that_is_too_large_fails_alone():
    made = pool()
    values = parts_of(Fields.of([b"a", b"x" * (1 << 20), b"b"]))

    futures = made.append_parts("t", values, None, None, None, 5)
    with ProduceLink(made) as link:
        link.turn()
        got = link.receive()
        link.respond(got)
        link.turn(0.02)

    assert [one.value for one in got.records()] == [b"a", b"b"]
    assert {place: type(error) for place, error in futures.exceptions(1).items()} == {
        1: RecordTooLarge
    }


def test_topic_that_is_not_known_is_not_taken():
    values = parts_of(Fields.of([b"a"]))

    assert pool().append_parts("other", values, None, None, None, 5) is None
