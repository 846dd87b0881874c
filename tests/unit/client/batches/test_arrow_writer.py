"""Arrow batches to record batches: partitioning, encoding, sizes, errors."""

from __future__ import annotations

import pytest

pa = pytest.importorskip("pyarrow")

from kafka.partitioner.default import murmur2  # noqa: E402
from support.storage.batch_stamps import stamp_batch  # noqa: E402

from kbroker._ext.arrow.arrow_writer import ArrowWriter, partition_of  # noqa: E402
from kbroker._ext.record.record_batch import check_batch  # noqa: E402
from kbroker.client.batches.arrow import FIELDS, as_written  # noqa: E402
from kbroker.client.errors import SettingRefused  # noqa: E402
from kbroker.record import compression  # noqa: E402
from kbroker.record.batch import RecordBatch  # noqa: E402
from kbroker.record.compression import CODEC_NAMES  # noqa: E402

pytestmark = pytest.mark.unit

NOW = 1_700_000_000_000


def write(batches, partitions=1, **options):
    """{(topic, partition): [batch...]}, each checked as in a broker."""
    options.setdefault("topic", "t")
    writer = ArrowWriter(lambda topic: partitions, **options)
    for one in [batches] if isinstance(batches, pa.RecordBatch) else batches:
        writer.add(*as_written(one).__arrow_c_array__(), NOW)
    writer.close_all()
    found = {}
    for topic, partition, data, records in writer.take():
        stamp_batch(data, 5, 1, 7, False)
        summary = check_batch(data, 1 << 26)
        assert (summary.record_count, summary.producer_id, summary.base_sequence) == (records, 5, 7)
        assert summary.walked_max_timestamp == summary.max_timestamp
        found.setdefault((topic, partition), []).append(data)
    assert writer.waiting_bytes == 0
    return found


def rows_of(batches):
    return [record for data in batches for record in RecordBatch(data).records()]


@pytest.mark.parametrize("codec", range(5), ids=CODEC_NAMES)
def test_rows_of_each_codec_are_read_back(codec):
    headers = [[{"key": "h", "value": b"1"}, {"key": "é", "value": None}], None, []]
    rows = pa.record_batch(
        {
            "key": [b"k", None, b""],
            "value": ["text", None, ""],
            "headers": pa.array(headers, FIELDS["headers"].type),
            "timestamp": pa.array([5_000, None, -1_500], pa.timestamp("us", tz="UTC")),
        }
    )

    found = rows_of(write(rows, codec=codec)["t", 0])

    assert [(one.offset, one.timestamp, one.key, one.value) for one in found] == [
        (0, 5, b"k", b"text"),
        (1, NOW, None, None),
        (2, -2, b"", b""),
    ]
    assert [[tuple(pair) for pair in one.headers] for one in found] == [
        [(b"h", b"1"), ("é".encode(), None)],
        [],
        [],
    ]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_timestamps_of_each_unit_are_milliseconds(unit):
    stamps = pa.array([86_400, 0], pa.timestamp("s")).cast(pa.timestamp(unit))

    (found,) = write(pa.record_batch({"value": [b"a", b"b"], "timestamp": stamps})).values()

    assert [one.timestamp for one in rows_of(found)] == [86_400_000, 0]


def test_keys_are_placed_as_kafka_places_them():
    keys = [b"x" * (n % 17) + b"%d" % n for n in range(500)]

    found = write(pa.record_batch({"key": keys, "value": keys}), partitions=7)

    for (_, partition), batches in found.items():
        for one in rows_of(batches):
            assert (murmur2(one.key) & 0x7FFFFFFF) % 7 == partition == partition_of(one.key, 7)
    assert len(found) == 7


def test_partition_and_topic_of_a_row_are_obeyed():
    rows = pa.record_batch(
        {
            "topic": ["a", "b", None, "a"],
            "partition": pa.array([1, 0, 2, None], pa.int32()),
            "key": [b"k", None, b"k", b"k"],
            "value": [b"1", b"2", b"3", b"4"],
        }
    )

    found = write(rows, partitions=3, topic="default")

    placed = {key: [one.value for one in rows_of(value)] for key, value in found.items()}
    expected = {("a", 1): [b"1"], ("b", 0): [b"2"], ("default", 2): [b"3"]}
    expected.setdefault(("a", partition_of(b"k", 3)), []).append(b"4")
    assert placed == expected


def test_slices_of_every_column_are_read_at_their_offset():
    n = 100
    rows = pa.record_batch(
        {
            "key": [b"%d" % i if i % 3 else None for i in range(n)],
            "value": [b"v%d" % i for i in range(n)],
            "headers": pa.array(
                [[{"key": "k", "value": b"%d" % i}] * (i % 3) or None for i in range(n)],
                FIELDS["headers"].type,
            ),
            "partition": pa.array([0] * n, pa.int32()),
            "timestamp": pa.array(range(n), pa.timestamp("ms")),
        }
    )

    found = rows_of(write([rows.slice(at, 7) for at in range(0, n, 7)])["t", 0])

    assert [one.timestamp for one in found] == list(range(n))
    assert [one.key for one in found] == rows["key"].to_pylist()
    assert [one.value for one in found] == rows["value"].to_pylist()
    assert [[v for _, v in one.headers] for one in found] == [
        [b"%d" % i] * (i % 3) for i in range(n)
    ]


def test_slices_of_a_struct_array_are_read_at_its_offset():
    rows = pa.record_batch({"value": [b"%d" % i for i in range(20)]})
    whole = rows.to_struct_array().slice(13)
    writer = ArrowWriter(lambda topic: 1, topic="t")

    writer.add(*whole.__arrow_c_array__(), NOW)
    writer.close_all()

    ((_, _, data, _),) = writer.take()
    assert [one.value for one in rows_of([data])] == [b"%d" % i for i in range(13, 20)]


@pytest.mark.parametrize(
    "kind",
    [pa.large_binary(), pa.large_string(), pa.string(), pa.dictionary(pa.int32(), pa.string())],
    ids=str,
)
def test_columns_of_other_types_are_cast(kind):
    (found,) = write(pa.record_batch({"value": pa.array(["a", None], kind)})).values()

    assert [one.value for one in rows_of(found)] == [b"a", None]


def test_batches_stay_below_their_size_and_a_larger_record_travels_alone():
    sizes = [100] * 20 + [5000, 100, 100]
    rows = pa.record_batch({"key": [b"k"] * 23, "value": [b"v" * size for size in sizes]})

    batches = write(rows, batch_bytes=1000)["t", 0]

    counts = [[len(one.value) for one in rows_of([data])] for data in batches]
    assert [size for count in counts for size in count] == sizes
    assert [5000] in counts
    assert all(len(data) <= 1000 for data in batches if len(data) < 5000)


def test_rows_without_a_key_fill_a_batch_of_one_partition_after_another():
    rows = pa.record_batch({"value": [b"v" * 100] * 1000})

    found = write(rows, partitions=4, batch_bytes=2000, seed=3)

    assert len(found) == 4
    counts = sorted(len(rows_of(batches)) for batches in found.values())
    assert counts[0] > 100
    # All but the last batch of each are full.
    assert all(len(data) > 1700 for batches in found.values() for data in batches[:-1])


def test_discard_forgets_what_was_not_taken():
    writer = ArrowWriter(lambda topic: 1, topic="t")
    writer.add(*pa.record_batch({"value": [b"a"]}).__arrow_c_array__(), NOW)
    writer.discard()
    writer.add(*pa.record_batch({"value": [b"b"]}).__arrow_c_array__(), NOW)
    writer.close_all()

    ((_, _, data, records),) = writer.take()

    assert ([one.value for one in rows_of([data])], records) == ([b"b"], 1)


def test_batch_that_cannot_be_compressed_is_tried_again(monkeypatch):
    writer = ArrowWriter(lambda topic: 1, topic="t", codec=1, batch_bytes=200)
    rows = pa.record_batch({"value": [b"%d" % n * 50 for n in range(8)]})
    writer.add(*rows.__arrow_c_array__(), NOW)
    writer.close_all()
    calls = []
    compress = compression._ENCODERS[compression.GZIP]

    def failing(*given):
        calls.append(given)
        if len(calls) == 2:
            raise MemoryError
        return compress(*given)

    monkeypatch.setattr(compression, "_ENCODERS", (bytes, failing))

    with pytest.raises(MemoryError):
        writer.take()
    taken = [data for _, _, data, _ in writer.take()]

    assert len(taken) == len(calls) - 1 > 2
    assert [one.value for one in rows_of(taken)] == rows.column("value").to_pylist()
    assert writer.take() == []


@pytest.mark.parametrize(
    ("columns", "options", "what"),
    [
        ({"value": [b"a"]}, {"topic": None}, "its topic is null.* set the option topic"),
        ({"value": [b"a"], "topic": [""]}, {}, "topic name must not have 0 bytes"),
        ({"value": [b"a"], "partition": [4]}, {}, "t has partitions 0 to 3, and not 4"),
        ({"value": [b"a"], "partition": [-1]}, {}, "0 to 3, and not -1"),
        (
            {"value": [b"a"], "headers": [[{"key": None, "value": b""}]]},
            {},
            "header without a key",
        ),
    ],
)
def test_rows_that_cannot_be_written_are_refused(columns, options, what):
    with pytest.raises(ValueError, match=what):
        rows = {name: pa.array(values, FIELDS[name].type) for name, values in columns.items()}
        write(pa.record_batch(rows), partitions=4, **options)


def test_column_that_is_none_of_a_record_is_refused():
    with pytest.raises(SettingRefused, match="offset"):
        as_written(pa.record_batch({"value": [b"a"], "offset": [1]}))
