"""How the columns of a loaded file are stored. The engine's tests check that its rows come back."""

import random
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kbroker.client.batches.arrow import FIELDS, schema_of
from kbroker.spark.load.column_codecs import LEVEL, QUICK_LEVEL
from kbroker.spark.load.writer import FileOptions, RangeWriter

ROWS = 3000
NOISE = random.Random(5)


def batch(keys: list[bytes | None], values: list[bytes | None]) -> pa.RecordBatch:
    rows = len(keys)
    headers = [[{"key": "h", "value": b"1"}] if row % 3 else None for row in range(rows)]
    columns = {
        "key": keys,
        "value": values,
        "topic": ["t"] * rows,
        "partition": [0] * rows,
        "offset": list(range(rows)),
        "timestamp": [1_700_000_000_000_000 + row for row in range(rows)],
        "timestampType": [0] * rows,
        "headers": headers,
    }
    made = {name: pa.array(column, FIELDS[name].type) for name, column in columns.items()}
    return pa.record_batch(made, schema=schema_of(headers=True))


def written(
    root: Path, rows: pa.RecordBatch, codec: str = "zstd", level: int | None = None
) -> Path:
    """In pieces, which are slices of one array as in a decoding load."""
    options = FileOptions(codec=codec, level=level)
    writer = RangeWriter(root, "staging", ("t", 0, 0, rows.num_rows), "a", options)
    for first in range(0, rows.num_rows, 700):
        writer.write(rows.slice(first, 700))
    (file,) = writer.finish().files
    return root / file.staged


def columns_of(path: Path) -> dict[str, tuple[str, set[str]]]:
    group = pq.read_metadata(path).row_group(0)
    found = [group.column(index) for index in range(group.num_columns)]
    return {one.path_in_schema: (one.compression, set(one.encodings)) for one in found}


@pytest.mark.parametrize("codec", ["zstd", "snappy", "gzip", "lz4"])
def test_columns_that_do_not_compress_are_kept_as_they_are(tmp_path: Path, codec: str) -> None:
    keys = [NOISE.randbytes(16) if row % 7 else None for row in range(ROWS)]
    rows = batch(keys, [b"text of row %d" % row for row in range(ROWS)])

    path = written(tmp_path, rows, codec)

    assert pq.read_table(path, partitioning=None).equals(
        pa.Table.from_batches([rows.drop_columns(["topic"])])
    )
    columns = columns_of(path)
    assert columns["key"][0] == "UNCOMPRESSED"
    assert "DELTA_LENGTH_BYTE_ARRAY" in columns["key"][1]
    assert {one for name, (one, _) in columns.items() if name != "key"} == {codec.upper()}


def test_columns_that_compress_are_compressed(tmp_path: Path) -> None:
    rows = batch([b"%016d" % row for row in range(ROWS)], [b"text" * 9] * ROWS)
    assert {one for one, _ in columns_of(written(tmp_path, rows)).values()} == {"ZSTD"}


def test_few_bytes_decide_nothing(tmp_path: Path) -> None:
    rows = batch([NOISE.randbytes(16) for _ in range(100)], [None] * 100)
    assert {one for one, _ in columns_of(written(tmp_path, rows)).values()} == {"ZSTD"}


def test_long_random_keys_that_come_again_are_compressed(tmp_path: Path) -> None:
    known = [NOISE.randbytes(64) for _ in range(200)]
    rows = batch([known[row % 200] for row in range(ROWS)], [None] * ROWS)
    assert columns_of(written(tmp_path, rows))["key"][0] == "ZSTD"


def test_without_a_codec_nothing_is_compressed(tmp_path: Path) -> None:
    rows = batch([NOISE.randbytes(16) for _ in range(ROWS)], [None] * ROWS)
    columns = columns_of(written(tmp_path, rows, "none"))
    assert {one for one, _ in columns.values()} == {"UNCOMPRESSED"}
    assert "DELTA_LENGTH_BYTE_ARRAY" not in columns["key"][1]


def value_bytes(path: Path) -> int:
    group = pq.read_metadata(path).row_group(0)
    found = [group.column(index) for index in range(group.num_columns)]
    return sum(one.total_compressed_size for one in found if one.path_in_schema == "value")


def test_level_is_a_fast_one_only_where_that_makes_files_no_larger(tmp_path: Path) -> None:
    half = [NOISE.randbytes(50) + b"x" * 50 for _ in range(ROWS)]
    text = [b'{"user": "u%d", "clicks": %d, "ok": true}' % (n % 50, n) for n in range(ROWS)]
    for name, values, is_quick in (("half", half, True), ("text", text, False)):
        rows = batch([None] * ROWS, values)
        sizes = {
            level: value_bytes(written(tmp_path / f"{name}{level}", rows, level=level))
            for level in (None, QUICK_LEVEL, LEVEL)
        }
        assert sizes[QUICK_LEVEL] != sizes[LEVEL]
        assert sizes[None] == sizes[QUICK_LEVEL if is_quick else LEVEL], name
        assert sizes[None] <= 1.05 * sizes[LEVEL]


def test_a_task_that_writes_does_not_import_pandas(tmp_path: Path) -> None:
    """A third of a second for each Python worker, and 40 MiB, which a load that goes on for long
    would take when rows first cross the end of a bucket, or of an hour.
    """
    rows = batch([NOISE.randbytes(16) for _ in range(ROWS)], [b"text" * 9] * ROWS)
    at = rows.schema.get_field_index("timestamp")
    times = [-1000, *(1_700_000_000_000_000 + 10_000_000 * row for row in range(1, ROWS))]
    hours = rows.set_column(at, rows.schema.field(at), pa.array(times, rows.schema.field(at).type))
    with pa.ipc.new_file(tmp_path / "rows", rows.schema) as file:
        file.write_batch(rows)
        file.write_batch(hours)
    code = """
import sys
from pathlib import Path
import pyarrow as pa
from kbroker.spark.load.column_codecs import LEVEL, QUICK_LEVEL
from kbroker.spark.load.writer import FileOptions, RangeWriter
rows = pa.ipc.open_file(pa.memory_map("rows"))
writer = RangeWriter(Path(), "staging", ("t", 0, 0, 1), "a", FileOptions())
for number in range(2):
    writer.write(rows.get_batch(number))
assert len(writer.finish().files) > 2
assert "pandas" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


def test_times_that_are_no_dates_share_a_folder(tmp_path: Path) -> None:
    """One day of six digits makes all days texts to Spark; a producer that gives microseconds as
    milliseconds makes a folder, and a file, for each second or so."""
    last, beyond = 253_402_300_799_999_999, 253_402_300_800_000_000
    rows = batch([b"k"] * 9, [b"v"] * 9)
    times = [-1000, 0, last, beyond, *(1_700_000_000_000_000_000 + 10**10 * n for n in range(5))]
    at = rows.schema.get_field_index("timestamp")
    rows = rows.set_column(at, FIELDS["timestamp"], pa.array(times, FIELDS["timestamp"].type))
    writer = RangeWriter(tmp_path, "staging", ("t", 0, 0, 9), "a", FileOptions())
    writer.write(rows)

    found = {one.path.rpartition("/")[0]: one.rows for one in writer.finish().files}

    assert found == {
        "data/topic=t/dt=__HIVE_DEFAULT_PARTITION__/hr=__HIVE_DEFAULT_PARTITION__": 7,
        "data/topic=t/dt=1970-01-01/hr=00": 1,
        "data/topic=t/dt=9999-12-31/hr=23": 1,
    }
