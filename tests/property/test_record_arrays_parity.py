"""What a consumer reads as arrays is what it reads as lists, and what a producer is given as parts
of a buffer is what it is given as lists.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.clients.produce_link import ProduceLink, pool

from kbroker._ext.client.record_reader import RecordReader
from kbroker.client.batches.record_arrays import Fields, Parts, arrays_of, parts_of, slices_of
from kbroker.record.builder import BatchBuilder
from kbroker.record.compression import CODEC_NAMES
from kbroker.record.control import marker_batch

pytestmark = pytest.mark.property

FIELD = st.none() | st.binary(max_size=40)
HEADERS = st.lists(st.tuples(st.text(max_size=3), FIELD), max_size=2)
RECORD = st.tuples(FIELD, FIELD, st.integers(0, 1 << 40), HEADERS)
BATCH = st.tuples(
    st.integers(0, len(CODEC_NAMES) - 1),
    st.lists(RECORD, min_size=1, max_size=30),
    st.booleans(),  # append time
    st.integers(0, 3),  # offsets that are missing before it
    st.booleans(),  # a marker behind it
)


def record_set(batches: list[tuple]) -> bytes:  # type: ignore[type-arg]
    data, base = b"", 0
    for codec, records, is_append_time, gap, has_marker in batches:
        base += gap
        time = {"append_time_ms": 777} if is_append_time else {}
        builder = BatchBuilder(codec, base_offset=base, **time)
        for value, key, timestamp, headers in records:
            builder.append(value, key, timestamp, headers)
        data += bytes(builder.build())
        base += len(records)
        if has_marker:
            marker = marker_batch(5, 0, True, 0, 9)
            marker[:8] = base.to_bytes(8, "big")
            data += bytes(marker)
            base += 1
    return data


def reader(data: bytes, start: int) -> RecordReader:
    made = RecordReader("t", 3, start)
    made.load(memoryview(data))
    return made


@settings(deadline=None)
@given(
    st.lists(BATCH, max_size=6),
    st.integers(0, 40),
    st.lists(st.integers(1, 50), min_size=1, max_size=5),
    st.lists(st.sampled_from([1, 30, 1 << 40]), min_size=1, max_size=3),
    st.integers(0, 30),
    st.booleans(),
)
def test_arrays_are_what_lists_are(batches, start, limits, sizes, cut, with_keys):  # type: ignore[no-untyped-def]
    """However the records are divided, and wherever the set ends or begins."""
    data = record_set(batches)
    data = data[: len(data) - cut]
    by_lists, by_arrays = reader(data, start), reader(data, start)
    wanted: list[tuple] = []  # type: ignore[type-arg]
    while (found := by_lists.read_columns(7)) is not None:
        rows = zip(found.offsets, found.timestamps, found.keys, found.values, strict=True)
        wanted += [(*row, found.timestamp_type) for row in rows]

    got: list[tuple] = []  # type: ignore[type-arg]
    turn = 0
    while True:
        limit, size = limits[turn % len(limits)], sizes[turn % len(sizes)]
        columns = by_arrays.read_arrays(limit, with_keys, size)
        if columns is None:
            break
        turn += 1
        arrays = arrays_of(columns)
        assert 0 < len(arrays) == len(columns) == len(arrays.values) <= limit
        for fields in filter(None, (arrays.keys, arrays.values)):
            ends = fields.starts + np.maximum(fields.sizes, 0)
            assert fields.starts.min() >= 0 and ends.max() <= len(fields.buffer)
        keys = [None] * len(arrays) if arrays.keys is None else list(arrays.keys)
        assert columns.keys == (keys if with_keys else [])
        assert columns.values == list(arrays.values)
        lengths = np.maximum(arrays.values.sizes, 0).sum() + sum(len(key or b"") for key in keys)
        if with_keys:
            assert columns.size_bytes == lengths
        rows = zip(arrays.offsets, arrays.timestamps, keys, arrays.values, strict=True)
        got += [(*row, columns.timestamp_type) for row in rows]
        assert columns.next_offset == by_arrays.position > arrays.offsets[-1]

    assert got == [
        (offset, at, key if with_keys else None, value, kind)
        for offset, at, key, value, kind in wanted
    ]
    assert by_arrays.position == by_lists.position
    assert by_arrays.error == by_lists.error


@settings(deadline=None)
@given(st.lists(st.tuples(FIELD, FIELD, st.integers(0, 1 << 40)), max_size=50), st.booleans())
def test_parts_are_sent_as_lists_are(records, with_keys):  # type: ignore[no-untyped-def]
    values = [value for value, _, _ in records]
    keys = [key for _, key, _ in records] if with_keys else None
    times = np.array([at for *_, at in records], np.int64)
    parts = parts_of(Fields.of(values))
    key_parts = None if keys is None else parts_of(Fields.of(keys))

    got = []
    for append, given_values, given_keys in (
        ("append_parts", parts, key_parts),
        ("append_many", values, keys),
    ):
        made = pool(batch_bytes=200, in_flight_max=100)
        futures = getattr(made, append)("t", given_values, given_keys, [("h", b"1")], 0, times)
        found = []
        with ProduceLink(made, in_flight_max=200) as link:
            link.start()
            while len(found) < len(records):
                answer = link.receive()
                found += answer.records()
                link.respond(answer, base_offset=len(found) - len(answer.records()))
            assert len(futures) == len(records) and futures.exceptions(10) == {}
        got.append([(one.key, one.value, one.timestamp, list(one.headers)) for one in found])

    by_parts, by_lists = got
    assert by_parts == by_lists
    assert [(key, value, at) for key, value, at, _ in by_parts] == [
        (key if with_keys else None, value, at) for value, key, at in records
    ]


@given(
    st.lists(st.tuples(FIELD, FIELD), max_size=30),
    st.integers(1, 100),
    st.integers(1, 10),
    st.integers(0, 20),
)
def test_pieces_are_all_records_and_as_large_as_they_may_be(rows, most, count, overhead):  # type: ignore[no-untyped-def]
    values = parts_of(Fields.of([value for value, _ in rows]))
    keys = parts_of(Fields.of([key for _, key in rows]))
    sizes = [overhead + len(value or b"") + len(key or b"") for value, key in rows]

    pieces = list(slices_of(values, keys, overhead, most, count))

    assert [at for first, after, _ in pieces for at in range(first, after)] == list(
        range(len(rows))
    )
    for first, after, size in pieces:
        assert size == sum(sizes[first:after])
        assert after - first <= count and (size <= most or after - first == 1)
        if after < len(rows) and after - first < count:
            assert size + sizes[after] > most or size > most


@given(
    st.binary(max_size=20),
    st.lists(st.tuples(st.integers(-5, 30), st.integers(-3, 30)), min_size=1, max_size=5),
)
def test_position_outside_of_the_buffer_is_refused_before_anything_is_sent(buffer, rows):  # type: ignore[no-untyped-def]
    starts, sizes = zip(*rows, strict=True)
    made = pool()
    is_right = all(
        start >= 0 and (size == -1 or 0 <= size <= len(buffer) - start) for start, size in rows
    )
    parts = parts_of(Fields(buffer, starts, sizes))

    try:
        made.append_parts("t", parts, None, None, None, 5)
        was_refused = False
    except ValueError as error:
        was_refused = True
        assert f"is not in its buffer of {len(buffer)} bytes" in str(error)

    assert was_refused is not is_right
    assert made.unended == (0 if was_refused else 1)


@pytest.mark.parametrize("position", [1 << 62, (1 << 63) - 1, -(1 << 63)])
def test_position_near_the_end_of_numbers_is_refused(position: int) -> None:
    made = pool()
    parts = Parts(memoryview(b"abc"), np.array([position]), np.array([2], np.int32))

    with pytest.raises(ValueError, match="value 0 is not in its buffer"):
        made.append_parts("t", parts, None, None, None, 5)
    with pytest.raises(ValueError, match="key 0 is not in its buffer"):
        made.append_parts("t", parts_of(Fields.of([b"v"])), parts, None, None, 5)
    assert made.unended == made.used_bytes == 0
