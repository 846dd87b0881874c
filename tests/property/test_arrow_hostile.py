"""Whatever bytes a broker returns, a reader ends with rows or with RecordsDamaged."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.running.examples import examples

pa = pytest.importorskip("pyarrow")

from support.spark.arrow_rows import batch, marker, offsets, read  # noqa: E402
from support.storage.message_sets import OldMessage, set_bytes, wrapper_bytes  # noqa: E402

from kbroker._ext.record.record_counts import RecordCounter  # noqa: E402
from kbroker._ext.record.record_cursor import RecordsDamaged, end_offset  # noqa: E402
from kbroker.client.batches.arrow import schema_of  # noqa: E402
from kbroker.record.batch import RecordBatch, iterate_batches  # noqa: E402
from kbroker.record.builder import BatchBuilder  # noqa: E402

pytestmark = pytest.mark.property

OLD = [OldMessage(20 + n, 1000 + n, b"k", b"v" * n) for n in range(4)]
SETS = [
    *(batch(0, [b"v" * 40, None, b""], codec) + batch(3, [b"w"], codec) for codec in range(5)),
    batch(0, [b"a"], producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    + marker(1, 1, False),
    set_bytes(0, [one._replace(timestamp=-1) for one in OLD]),
    wrapper_bytes(1, 1, OLD),
    wrapper_bytes(1, 3, OLD),
]


@settings(max_examples=examples(300), deadline=None)
@given(st.sampled_from(SETS), st.data())
def test_damaged_sets_never_crash_a_reader(whole, data):
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at] = data.draw(st.integers(0, 255))
    cut = bytes(damaged[: data.draw(st.integers(0, len(damaged)))])
    crcs = data.draw(st.booleans())

    with suppress(RecordsDamaged):
        assert end_offset(cut, 0) >= 0
    with suppress(RecordsDamaged):
        for one in read([(cut, [(1, 0)])], check_crcs=crcs, decompressed_max=1 << 20):
            assert one.schema.equals(schema_of(headers=True))
    counter = RecordCounter(0, 1 << 62, 10, decompressed_max=1 << 20, check_crcs=crcs)
    with suppress(RecordsDamaged):
        counter.count(cut)
    assert all(row[0] > 0 for row in counter.buckets().values())


@settings(max_examples=examples(200), deadline=None)
@given(st.binary(max_size=300))
def test_random_bytes_never_crash_a_reader(data):
    with suppress(RecordsDamaged):
        read([data], check_crcs=False)


records = st.tuples(
    st.none() | st.binary(max_size=40),
    st.none() | st.binary(max_size=200),
    st.integers(-(1 << 40), 1 << 45),
    st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=9)), max_size=3),
)


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(st.lists(records, min_size=1, max_size=20), min_size=1, max_size=5),
    st.integers(0, 4),
    st.integers(0, 60),
    st.integers(0, 60),
    st.integers(1, 30),
)
def test_reader_gives_what_the_record_walk_gives(batches, codec, start, length, rows_max):
    """Oracle: ``kbroker.record.batch``, which shares only the codecs with the reader."""
    data = b""
    base = 0
    for rows in batches:
        builder = BatchBuilder(codec, base_offset=base)
        for key, value, timestamp, headers in rows:
            builder.append(value, key, timestamp, headers)
        data += builder.build()
        base += len(rows) + 3
    end = start + length
    wanted = [
        (record.offset, record.key, record.value, record.timestamp)
        for one in iterate_batches(data)
        for record in _records_of(one)
        if start <= record.offset < end
    ]

    found = read([data], start, end, rows_max=rows_max)

    got = [
        row
        for one in found
        for row in zip(
            one.column("offset").to_pylist(),
            one.column("key").to_pylist(),
            one.column("value").to_pylist(),
            [at // 1000 for at in one.column("timestamp").cast(pa.int64()).to_pylist()],
            strict=True,
        )
    ]
    assert got == wanted
    assert offsets(found) == [row[0] for row in wanted]
    counter = RecordCounter(start, end, 1000)
    counter.count(data)
    assert sum(row[0] for row in counter.buckets().values()) == len(wanted)
    assert sum(row[1] for row in counter.buckets().values()) == sum(
        len(key or b"") + len(value or b"") for _, key, value, _ in wanted
    )


def _records_of(one: RecordBatch):
    return list(one.records())
