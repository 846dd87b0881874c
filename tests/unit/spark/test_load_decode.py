"""Decoded values, and undecodable ones."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.json as pj
import pyarrow.parquet as pq
import pytest
from support.spark.load_source import MadeUp, batch, destination_of

from kbroker.spark.direct import InlineRunner
from kbroker.spark.load import decode
from kbroker.spark.load.commits import LoadError
from kbroker.spark.load.decode import JsonDecoder
from kbroker.spark.load.directory import Directory
from kbroker.spark.load.engine import Load, LoadSettings
from kbroker.spark.load.fields import schema_of
from kbroker.spark.load.footers import recover
from kbroker.spark.load.layout import PartitionBy
from kbroker.spark.load.maintenance import verify
from kbroker.spark.load.writer import FileOptions

pytestmark = pytest.mark.unit

DECODER = JsonDecoder(pa.schema([("id", pa.int64()), ("name", pa.string())]))


def with_values(*values: bytes | None) -> pa.RecordBatch:
    found = batch("t", 0, range(len(values)))
    index = found.schema.get_field_index("value")
    return found.set_column(index, "value", pa.array(values, pa.binary()))


def test_values_of_the_schema_become_a_struct() -> None:
    good, bad = DECODER.split(
        with_values(b'{"id": 1, "name": "a", "more": [1]}', None, b'{\n"name":"b"}', b'{"id":null}')
    )

    assert bad is None
    assert good.column("value").to_pylist() == [
        {"id": 1, "name": "a"},
        None,
        {"id": None, "name": "b"},
        {"id": None, "name": None},
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        *(b"", b"{", b"\xff\xfe", b"7", b'"x"', b"[]", b"null", b'{"id":"x"}', b'{"id":1}{"id":2}'),
        b"[" * 100_000,  # deeper than Python's parser allows
        b'{"name":"a\nb"}',  # a line end would become a blank
        b'{"name":"\xff"}',  # Arrow's accepts it, and readers reject the file
        b'{"name":"\xed\xa0\x80"}',
    ],
    ids=lambda wrong: repr(wrong[:20]),
)
def test_bad_value_is_set_aside_with_its_reason(wrong: bytes) -> None:
    good, bad = DECODER.split(with_values(b'{"id":1}', wrong, b'{"id":2}'))

    assert [one["id"] for one in good.column("value").to_pylist()] == [1, 2]
    assert bad is not None
    assert bad.column("value").to_pylist() == [wrong]
    assert bad.column("offset").to_pylist() == [1]
    assert bad.column("error")[0].as_py()


def test_reason_quotes_little_and_nothing_that_a_database_refuses() -> None:
    decoder = JsonDecoder(pa.schema([("at", pa.timestamp("us", "UTC"))]))

    _, bad = decoder.split(with_values(b'{"at":"a\\u0000' + b"x" * 10_000 + b'"}'))

    assert bad is not None
    reason = bad.column("error")[0].as_py()
    assert "a\ufffdx" in reason and len(reason) == 500


@pytest.mark.parametrize(
    "pair", [(b" ", b'{"id":1} {"id":2}'), (b'{"id":1}{"id":2', b"}"), (b"null", b'{"id":1}{}')]
)
def test_bad_neighbours_do_not_make_up_for_each_other(pair: tuple[bytes, bytes]) -> None:
    """As many objects as values: each must still be in its own record."""
    good, bad = DECODER.split(with_values(*pair, b'{"id":3}'))

    assert [one["id"] for one in good.column("value").to_pylist()] == [3]
    assert bad is not None and bad.column("offset").to_pylist() == [0, 1]


def test_one_bad_value_of_many_costs_a_few_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one attempt for each value of its batch."""
    looks = []
    read_json = pj.read_json

    def counted(*arguments: Any) -> pa.Table:
        looks.append(1)
        return read_json(*arguments)

    monkeypatch.setattr(decode, "pj", SimpleNamespace(**vars(pj) | {"read_json": counted}))
    values = [b'{"id":%d}' % number for number in range(1000)]
    good, bad = DECODER.split(with_values(*values[:777], b"?", *values[777:]))

    assert [one["id"] for one in good.column("value").to_pylist()] == list(range(1000))
    assert bad is not None and bad.column("offset").to_pylist() == [777]
    assert len(looks) < 40


def test_batch_of_bad_values_alone_leaves_no_good_row() -> None:
    good, bad = DECODER.split(with_values(b"x", b"y"))

    assert good.num_rows == 0
    assert bad is not None and bad.num_rows == 2


def bad_load(root: Path, sink: str = "dir", *, fail_on_error: bool = False) -> Load:
    source = MadeUp({"t": [(0, 1000)]}, {("t", 0): {5: b"{", 700: b"[]"}})
    destination = destination_of(str(root), sink)
    destination.prepare()
    settings = LoadSettings(load="test", fail_on_error=fail_on_error)
    return Load(source, destination, InlineRunner(), settings, decoder=DECODER)


def test_load_keeps_bad_records_in_the_error_file_and_counts_them(tmp_path: Path) -> None:
    made = bad_load(tmp_path).catch_up()

    errors = [pq.read_table(path) for path in (tmp_path / "_kbroker/errors").iterdir()]
    rows = sum(pq.read_metadata(path).num_rows for path in tmp_path.glob("data/**/*.parquet"))
    assert made[0].bad_rows == 2 and Directory(tmp_path).log.state().bad_rows == 2
    assert sorted(errors[0].column("offset").to_pylist()) == [5, 700]
    assert rows == 998


def load_as(destination: Directory, end: int, decoder: JsonDecoder | None) -> None:
    destination.prepare()
    source = MadeUp({"t": [(0, end)]})
    Load(source, destination, InlineRunner(), LoadSettings(load="test"), decoder=decoder).catch_up()


@pytest.mark.parametrize("text", ["id long, ID string", "s struct<a: int, A: int>"])
def test_fields_that_readers_take_for_the_same_are_refused(text: str) -> None:
    """Spark and DuckDB do not distinguish the names, and read neither."""
    with pytest.raises(LoadError, match=r"appears twice"):
        schema_of(text)


NARROW = JsonDecoder(schema_of("id long"))
OTHER = JsonDecoder(schema_of("id double"))


@pytest.mark.parametrize(
    ("first", "second"), [(None, DECODER), (DECODER, None), (NARROW, OTHER), (OTHER, None)]
)
def test_values_of_another_type_are_refused_before_they_spoil_the_folder(
    tmp_path: Path, first: JsonDecoder | None, second: JsonDecoder | None
) -> None:
    load_as(Directory(tmp_path), 50, first)

    with pytest.raises(LoadError, match="t has columns that do not match"):
        load_as(Directory(tmp_path), 90, second)
    assert not list((tmp_path / "_kbroker/staging").iterdir())
    load_as(Directory(tmp_path), 70, first)

    assert sum(rows_of(tmp_path)) == 70
    assert list(verify(Directory(tmp_path))) == []


def rows_of(root: Path) -> list[int]:
    return [pq.read_metadata(path).num_rows for path in root.glob("data/**/*.parquet")]


@pytest.mark.parametrize(("first", "second"), [("hour", "day"), ("none", "hour"), ("day", "none")])
def test_folders_of_another_kind_are_refused_before_they_spoil_the_others(
    tmp_path: Path, first: PartitionBy, second: PartitionBy
) -> None:
    """Spark and DuckDB do not read a folder with files at two depths."""
    load_as(Directory(tmp_path, FileOptions(first)), 100, None)

    with pytest.raises(LoadError, match=f"Use --partition-by {first} as before"):
        load_as(Directory(tmp_path, FileOptions(second)), 200, None)
    load_as(Directory(tmp_path, FileOptions(first)), 200, None)

    assert Directory(tmp_path).log.state().rows == 200


def test_fields_may_be_added_in_a_folder_but_not_in_a_table(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    from kbroker.spark.load.delta import Delta

    load_as(Directory(tmp_path / "d"), 50, NARROW)
    load_as(Directory(tmp_path / "d"), 90, DECODER)
    load_as(Delta(tmp_path / "t"), 50, NARROW)
    with pytest.raises(LoadError, match="t has columns that do not match"):
        load_as(Delta(tmp_path / "t"), 90, DECODER)

    assert sum(rows_of(tmp_path / "d")) == 90
    assert deltalake.DeltaTable(str(tmp_path / "t")).to_pyarrow_table().num_rows == 50


@pytest.mark.parametrize("sink", ["dir", "delta"])
def test_rewind_replaces_the_error_files_of_its_range(tmp_path: Path, sink: str) -> None:
    """Also in a table, which keeps replaced files for readers of its older versions."""
    if sink == "delta":
        pytest.importorskip("deltalake")
    bad_load(tmp_path, sink).catch_up()

    made = bad_load(tmp_path, sink).rewind({("t", 0): 600})

    errors = [pq.read_table(path) for path in (tmp_path / "_kbroker/errors").iterdir()]
    assert made is not None and made.ranges[0].start == 0
    assert [one.column("offset").to_pylist() for one in errors] == [[5, 700]]
    assert Directory(tmp_path).log.state().bad_rows == 2


def test_log_recreated_has_the_error_files_that_are_left(tmp_path: Path) -> None:
    """A reload replaces them, and a range of bad values alone is not loaded again."""
    bad = {("t", 0): dict.fromkeys(range(10), b"{")}
    source = MadeUp({"t": [(0, 10), (0, 10)]}, bad, {"t": "id"})
    destination = Directory(tmp_path)
    destination.prepare()
    job = Load(source, destination, InlineRunner(), LoadSettings(load="test"), decoder=DECODER)
    job.catch_up()
    before = destination.log.state()
    shutil.rmtree(tmp_path / "_kbroker/commits")

    made = recover(Directory(tmp_path), "test")
    after = destination.log.state()
    again = job.catch_up()
    job.rewind({("t", 0): 0, ("t", 1): 0})

    assert (after.ends, after.rows, after.bad_rows) == (before.ends, before.rows, before.bad_rows)
    assert made is not None and made.rows == 10 and again == []
    (path,) = (tmp_path / "_kbroker/errors").iterdir()
    assert pq.read_table(path).num_rows == 10
    assert list(verify(destination)) == []


def test_verify_reads_the_error_files_that_are_there(tmp_path: Path) -> None:
    """They have the only copy of records that could not be decoded."""
    bad_load(tmp_path).catch_up()
    (path,) = (tmp_path / "_kbroker/errors").iterdir()
    assert not list(verify(Directory(tmp_path)))
    whole = path.read_bytes()

    path.write_bytes(whole[:50] + b"?" + whole[51:])
    (found,) = verify(Directory(tmp_path))
    path.unlink()

    assert found.startswith(f"_kbroker/errors/{path.name}: its checksum differs from the log")
    assert not list(verify(Directory(tmp_path)))


def test_rewind_over_bad_values_alone_replaces_their_file(tmp_path: Path) -> None:
    """A range without a good value has no data file with its start."""
    source = MadeUp({"t": [(0, 10)]}, {("t", 0): dict.fromkeys(range(10), b"{")})
    destination = Directory(tmp_path)
    destination.prepare()
    job = Load(source, destination, InlineRunner(), LoadSettings(load="test"), decoder=DECODER)
    job.catch_up()

    made = job.rewind({("t", 0): 7})

    (path,) = (tmp_path / "_kbroker/errors").iterdir()
    assert made is not None and made.ranges[0].start == 0
    assert pq.read_table(path).num_rows == 10
    assert destination.log.checkpoint().bad_rows == 10
    assert len(destination.log.state().errors) == 1


def test_load_that_fails_on_errors_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"2 records cannot be decoded.*t partition 0 at offset 5"):
        bad_load(tmp_path, fail_on_error=True).catch_up()

    assert Directory(tmp_path).log.newest() is None
    assert not list(tmp_path.rglob("*.parquet"))
