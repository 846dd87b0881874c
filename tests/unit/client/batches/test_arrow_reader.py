"""Record sets to Arrow: contents, boundaries and errors."""

from __future__ import annotations

import gc
from collections import namedtuple

import pytest

pa = pytest.importorskip("pyarrow")

from support.spark.arrow_rows import ALL, batch, column, marker, offsets, read  # noqa: E402
from support.storage.message_sets import CODECS, OldMessage, set_bytes, wrapper_bytes  # noqa: E402

from kbroker._ext.arrow.arrow_abi import live_arrays  # noqa: E402
from kbroker._ext.arrow.arrow_reader import ArrowReader  # noqa: E402
from kbroker._ext.record.record_cursor import RecordsDamaged, end_offset  # noqa: E402
from kbroker.client.batches import arrow as client_arrow  # noqa: E402
from kbroker.client.batches.arrow import read_arrow, schema_of  # noqa: E402
from kbroker.client.errors import OffsetOutOfRange  # noqa: E402
from kbroker.record.builder import BatchBuilder  # noqa: E402
from kbroker.record.compression import CODEC_NAMES  # noqa: E402

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("codec", range(5), ids=CODEC_NAMES)
def test_batch_of_each_codec_becomes_its_rows(codec):
    builder = BatchBuilder(codec, base_offset=40)
    builder.append(b"v" * 1000, b"key", 1_700_000_000_123, [("h", b"1"), ("é", None), ("h", b"")])
    builder.append(None, None, 1_600_000_000_000)
    builder.append(b"", b"", -1)

    (rows,) = read([builder.build()])

    assert rows.schema.equals(schema_of(headers=True), check_metadata=True)
    assert column([rows], "key") == [b"key", None, b""]
    assert column([rows], "value") == [b"v" * 1000, None, b""]
    assert column([rows], "topic") == ["t"] * 3
    assert column([rows], "partition") == [3] * 3
    assert offsets([rows]) == [40, 41, 42]
    assert rows.column("timestamp").cast(pa.int64()).to_pylist() == [
        1_700_000_000_123_000,
        1_600_000_000_000_000,
        -1000,
    ]
    assert column([rows], "timestampType") == [0] * 3
    assert column([rows], "headers") == [
        [
            {"key": "h", "value": b"1"},
            {"key": "é", "value": None},
            {"key": "h", "value": b""},
        ],
        None,
        None,
    ]


def test_append_time_is_that_of_the_batch():
    (rows,) = read([batch(0, [b"a", b"b"], append_time_ms=777)])

    assert rows.column("timestamp").cast(pa.int64()).to_pylist() == [777_000] * 2
    assert column([rows], "timestampType") == [1] * 2


def test_change_of_the_timestamp_type_begins_another_batch():
    found = read([batch(0, [b"a"]) + batch(1, [b"b"], append_time_ms=5) + batch(2, [b"c"])])

    assert [column([one], "timestampType") for one in found] == [[0], [1], [0]]
    assert offsets(found) == [0, 1, 2]


def test_timestamp_beyond_microseconds_is_the_last_there_is():
    builder = BatchBuilder()
    builder.append(b"v", timestamp=(1 << 63) - 1)

    (rows,) = read([builder.build()], columns=["timestamp"])

    assert rows.column(0).cast(pa.int64()).to_pylist() == [(1 << 63) - 1]


@pytest.mark.parametrize("time_ms", [(1 << 63) - 1, 1 << 62, 0, -1])
def test_timestamp_in_milliseconds_is_that_of_the_record(time_ms):
    builder = BatchBuilder()
    builder.append(b"v", timestamp=time_ms)

    (rows,) = read([builder.build()], columns=["timestamp"], milliseconds=True)

    assert rows.column(0).type == pa.timestamp("ms", "UTC")
    assert rows.column(0).cast(pa.int64()).to_pylist() == [time_ms]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", CODECS)
def test_message_sets_of_old_formats_become_rows(magic, codec):
    messages = [
        OldMessage(7 + n, -1 if magic == 0 else 1000 + n, None if n == 1 else b"k%d" % n, value)
        for n, value in enumerate([b"a" * 300, b"", None])
    ]
    data = set_bytes(magic, messages)
    if codec != "none":
        data = wrapper_bytes(magic, CODECS[codec], messages)

    (rows,) = read([data + batch(10, [b"new"])[:30]])

    assert offsets([rows]) == [7, 8, 9]
    assert column([rows], "key") == [b"k0", None, b"k2"]
    assert column([rows], "value") == [b"a" * 300, b"", None]
    assert column([rows], "timestampType") == [-1 if magic == 0 else 0] * 3
    assert column([rows], "headers") == [None] * 3
    assert end_offset(data, 0) == 10
    assert offsets(read([data], start=8, end=9)) == [8]


def test_range_is_cut_at_both_edges():
    data = b"".join(batch(base, [b"v"] * 10) for base in (0, 10, 20))

    assert offsets(read([data], start=7, end=23)) == list(range(7, 23))
    assert offsets(read([data], start=10, end=20)) == list(range(10, 20))
    assert offsets(read([data], start=19, end=20)) == [19]
    assert offsets(read([data], start=30)) == []


def test_records_that_come_twice_are_taken_once():
    """The next fetch begins with the batch that may have been truncated in the last one."""
    data = batch(0, [b"v"] * 10)

    assert offsets(read([data, data + batch(10, [b"w"])])) == list(range(11))


def test_set_that_ends_within_a_batch_gives_the_whole_ones():
    data = batch(0, [b"v"] * 5) + batch(5, [b"w"] * 5)
    for size in range(len(data)):
        expected = 5 if size >= len(batch(0, [b"v"] * 5)) else 0
        assert offsets(read([data[:size]])) == list(range(expected))
        assert end_offset(data[:size], 0) == expected


@pytest.mark.parametrize("base", [0, 4, 9])
def test_batch_that_begins_within_the_one_before_it_is_damage(base):
    data = batch(0, [b"v"] * 10) + batch(base, [b"w"]) + batch(11, [b"x"])

    with pytest.raises(RecordsDamaged, match="not above those of the batch before") as caught:
        end_offset(data, 0)

    assert caught.value.args[0] == base
    assert end_offset(data[: len(batch(0, [b"v"] * 10))], 5) == 10


def test_gaps_of_compaction_are_kept():
    builder = BatchBuilder(base_offset=100)
    for delta in (2, 5, 9):
        builder.append(b"v", timestamp=1, offset_delta=delta)
    reader = ArrowReader("t", 0, 0, 1000, ["offset"])
    reader.load(builder.build())
    assert reader.read() is None

    assert offsets([pa.record_batch(reader.finish())]) == [102, 105, 109]
    assert reader.next_offset == 110


def test_control_and_aborted_batches_are_dropped_and_their_offsets_consumed():
    def sent(base, producer):
        return batch(
            base,
            [b"v"],
            producer_id=producer,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )

    data = b"".join(
        [
            sent(0, 1),  # aborted
            sent(1, 2),  # committed
            batch(2, [b"plain"]),
            marker(3, 1, commit=False),
            sent(4, 1),  # the producer's next transaction, committed
            marker(5, 2, commit=True),
            marker(6, 1, commit=True),
            sent(7, 2),  # aborted, marker not here yet
        ]
    )
    reader = ArrowReader("t", 0, 0, 8, ["offset"])
    reader.load(data, [(2, 7), (1, 0)])
    assert reader.read() is None

    assert offsets([pa.record_batch(reader.finish())]) == [1, 2, 4]
    assert (reader.next_offset, reader.done) == (8, True)
    assert offsets(read([data])) == [0, 1, 2, 4, 7], "uncommitted readers get all but markers"


def test_columns_come_in_the_order_asked_for_and_no_others():
    (rows,) = read([batch(0, [b"a", b"b"])], columns=["value", "offset"])

    assert rows.schema.names == ["value", "offset"]
    assert rows.to_pydict() == {"value": [b"a", b"b"], "offset": [0, 1]}
    (nothing,) = read([batch(0, [b"a", b"b"])], columns=[])
    assert nothing.num_rows == 2


@pytest.mark.parametrize("columns", [["nonsense"], ["key", "key"]])
def test_columns_that_are_none_are_refused(columns):
    with pytest.raises(ValueError):
        ArrowReader("t", 0, 0, 1, columns)


def test_batches_end_at_the_rows_and_at_the_bytes_allowed():
    data = batch(0, [b"v" * 10] * 25)
    assert [one.num_rows for one in read([data], rows_max=10)] == [10, 10, 5]

    sizes = [10, 10, 500, 10, 90, 90]
    found = read([batch(0, [b"v" * size for size in sizes])], bytes_max=100, columns=["value"])

    assert [[len(v) for v in column([one], "value")] for one in found] == [
        [10, 10],
        [500],
        [10, 90],
        [90],
    ]


def test_rows_of_several_sets_share_a_batch():
    found = read([batch(n, [b"v"]) for n in range(10)])

    assert [one.num_rows for one in found] == [10]


def test_header_key_that_is_no_utf_8_is_replaced_as_java_does():
    builder = BatchBuilder()
    builder.append(b"v", headers=[(b"a\xff\xc3\xa9\xed\xa0\x80z", b"1")])

    (rows,) = read([builder.build()], columns=["headers"])

    (headers,) = rows.column(0).to_pylist()
    assert headers[0]["key"] == "a�é���z"


@pytest.mark.parametrize(
    ("position", "word"),
    [(8, "length"), (16, "format"), (20, "checksum"), (70, "checksum")],
)
def test_damage_is_told_with_its_offset(position, word):
    data = bytearray(batch(0, [b"v"] * 3) + batch(3, [b"w"] * 3))
    at = len(batch(0, [b"v"] * 3)) + position
    data[at] ^= 0x80

    with pytest.raises(RecordsDamaged) as caught:
        read([bytes(data)])

    assert caught.value.args[0] == 3
    assert word in caught.value.args[1]


def test_rows_before_the_damage_can_be_had():
    data = batch(0, [b"v"] * 3) + batch(3, [b"w"] * 3)[:-1] + b"\x07"
    reader = ArrowReader("t", 0, 0, 10, ["offset"])
    reader.load(data)
    with pytest.raises(RecordsDamaged):
        reader.read()

    assert offsets([pa.record_batch(reader.finish())]) == [0, 1, 2]
    assert reader.next_offset == 3


def test_row_with_malformed_headers_leaves_nothing_behind():
    builder = BatchBuilder()
    builder.append(b"v0", b"k0")
    builder.append(b"v1", b"k1", headers=[(b"before", b"1"), (b"name", b"2")])
    data = bytearray(builder.build())
    data[data.index(b"name") - 1] = 0x7E  # its size: more than there is
    reader = ArrowReader("t", 0, 0, 10, ALL, rows_max=3, check_crcs=False)
    for base in (2, 4):
        reader.load(data)
        with pytest.raises(RecordsDamaged, match="fields"):
            reader.read()
        reader.skip_to(base)
        data[:8] = base.to_bytes(8, "big")
    reader.load(batch(6, [b"v6"] * 2))
    found = [pa.record_batch(reader.read())]
    reader.read()
    found.append(pa.record_batch(reader.finish()))

    for one in found:
        one.validate(full=True)
    assert offsets(found) == [0, 2, 6, 7]
    assert column(found, "key") == [b"k0", b"k0", b"k6", b"k7"]
    assert column(found, "headers") == [None] * 4


def test_rows_before_a_gap_come_before_its_error(monkeypatch):
    class Fetch(list):
        def __init__(self, *_, **__):
            super().__init__()

        def __iter__(self):
            yield Fetched(batch(0, [b"v"] * 3), [])
            raise OffsetOutOfRange("t", 0, 3, 15, 20)

        def close(self):
            self.clear()

    Fetched = namedtuple("Fetched", ["records", "aborted"])
    monkeypatch.setattr(client_arrow, "RangeFetch", Fetch)
    found = []

    with pytest.raises(OffsetOutOfRange):
        for one in read_arrow(None, "t", 0, 0, 20):
            found.append(one)

    assert offsets(found) == [0, 1, 2]


@pytest.mark.parametrize("codec", range(1, 5), ids=CODEC_NAMES[1:])
def test_batch_that_decompresses_to_too_much_is_refused(codec):
    data = batch(0, [b"\0" * 200_000], codec)

    with pytest.raises(RecordsDamaged, match="limit"):
        read([data], decompressed_max=100_000)
    assert read([data], decompressed_max=300_000)[0].num_rows == 1


def test_batches_free_their_memory_when_they_are_gone():
    data = batch(0, [b"v" * 100] * 50)
    before = live_arrays()

    kept = read([data])
    for _ in range(1000):
        read([data])
    gc.collect()
    assert live_arrays() - before == 12, "a batch, its columns, and the three of the headers"

    view = kept[0].column("value")
    del kept
    gc.collect()
    assert view.to_pylist() == [b"v" * 100] * 50, "a column keeps what it needs"
    del view
    gc.collect()
    assert live_arrays() == before


def test_batch_that_nobody_takes_is_freed():
    before = live_arrays()
    reader = ArrowReader("t", 0, 0, 10, ALL)
    reader.load(batch(0, [b"v"]))
    reader.read()
    made = reader.finish()
    assert live_arrays() > before

    del made, reader
    gc.collect()

    assert live_arrays() == before


def test_batch_is_taken_once():
    reader = ArrowReader("t", 0, 0, 10, ALL)
    reader.load(batch(0, [b"v"]))
    reader.read()
    made = reader.finish()
    made.__arrow_c_array__()

    with pytest.raises(ValueError):
        made.__arrow_c_array__()
