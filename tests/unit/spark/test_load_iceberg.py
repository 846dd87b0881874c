"""An Iceberg table that was never written by a JVM."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.spark.load_source import MadeUp, expected, load, rows_in_table

from kbroker.spark.direct import InlineRunner
from kbroker.spark.load import decode, fields
from kbroker.spark.load.cli import main
from kbroker.spark.load.commits import LoadError
from kbroker.spark.load.engine import Load, LoadSettings
from kbroker.spark.load.footers import recover
from kbroker.spark.load.maintenance import compact, verify
from kbroker.spark.load.writer import FileOptions
from kbroker.spark.plan import OffsetRange

pytest.importorskip("pyiceberg")

from pyiceberg.expressions import visitors
from pyiceberg.table import StaticTable

from kbroker.spark.load import iceberg, iceberg_folder
from kbroker.spark.load.iceberg import Iceberg
from kbroker.spark.load.iceberg_folder import FolderCatalog, Overtaken, replaces_reliably

pytestmark = pytest.mark.unit


def places(root: Path) -> Counter[tuple[str, int, int]]:
    """The content for readers that use the hint, and for those that look for the newest version."""
    names = ("topic", "partition", "offset")
    table = StaticTable.from_metadata(str(root)).scan(selected_fields=names).to_arrow()
    found = Counter(zip(*(table.column(one).to_pylist() for one in names), strict=True))
    assert found == rows_in_table(root, "iceberg")
    return found


def versions(root: Path) -> int:
    return FolderCatalog(root).newest()


def test_load_is_a_version_of_the_table_with_its_offsets(tmp_path: Path) -> None:
    load(MadeUp.of({"a": [800, 5]}), Iceberg(tmp_path))
    load(MadeUp.of({"a": [900, 5]}), Iceberg(tmp_path))

    table = FolderCatalog(tmp_path).load_table()
    newest = table.current_snapshot()
    assert places(tmp_path) == expected(MadeUp.of({"a": [900, 5]}))
    assert table.properties["kbroker.commit.test"] == "2"
    assert json.loads(table.properties["kbroker.ends.test"]) == {"a": {"0": 900, "1": 5}}
    assert newest is not None and newest.summary is not None
    assert newest.summary["kbroker.commit"] == "2"
    assert newest.summary["total-records"] == "905"
    assert (tmp_path / "metadata/version-hint.text").read_text() == "3"


def test_rows_have_the_columns_of_files_and_folders(tmp_path: Path) -> None:
    load(MadeUp.of({"a": [60]}), Iceberg(tmp_path))

    rows = FolderCatalog(tmp_path).load_table().scan().to_arrow().sort_by("offset").to_pylist()

    assert rows[50] | {"timestamp": None} == {
        "key": b"k50",
        "value": b'{"id": 50, "name": "a/0"}',
        "partition": 0,
        "offset": 50,
        "timestamp": None,
        "timestampType": 0,
        "topic": "a",
        "dt": "2026-01-01",
        "hr": "00",
    }
    assert rows[49]["dt"] is None, "it has no time"


def test_columns_of_files_have_the_numbers_of_the_table(tmp_path: Path) -> None:
    """Readers identify columns by these ids, not by names."""
    load(MadeUp.of({"a": [300]}), Iceberg(tmp_path))
    load(MadeUp.of({"a": [500]}), Iceberg(tmp_path))
    compact(Iceberg(tmp_path), "test", InlineRunner(), file_bytes=1 << 30)

    schema = FolderCatalog(tmp_path).load_table().schema()

    for path in tmp_path.glob("data/**/*.parquet"):
        for one in pq.read_schema(path):
            wanted = schema.find_field(one.name).field_id
            assert int(one.metadata[b"PARQUET:field_id"]) == wanted, one.name


def test_values_of_json_are_read_by_their_fields(tmp_path: Path) -> None:
    class Headers(MadeUp):
        def read(self, one: OffsetRange) -> Iterator[pa.RecordBatch]:
            for batch in super().read(one):
                entry = pa.struct([("key", pa.string()), ("value", pa.binary())])
                column = pa.array([[{"key": "h", "value": b"1"}]] * len(batch), pa.list_(entry))
                yield batch.append_column("headers", column)

    destination = Iceberg(tmp_path)
    destination.prepare()
    decoder = decode.JsonDecoder(fields.schema_of("id long, name string, more array<int>"))
    source = Headers.of({"a": [30]})
    Load(source, destination, InlineRunner(), LoadSettings("test"), decoder=decoder).catch_up()

    rows = FolderCatalog(tmp_path).load_table().scan(row_filter="offset = 7").to_arrow().to_pylist()

    assert rows[0]["value"] == {"id": 7, "name": "a/0", "more": None}
    assert rows[0]["headers"] == [{"key": "h", "value": b"1"}]


def test_publishing_again_adds_nothing(tmp_path: Path) -> None:
    (made,) = load(MadeUp.of({"a": [300]}), Iceberg(tmp_path))
    before = versions(tmp_path)

    Iceberg(tmp_path).publish(made)

    assert versions(tmp_path) == before
    assert places(tmp_path) == expected(MadeUp.of({"a": [300]}))


def test_hint_that_a_kill_has_left_behind_is_put_right(tmp_path: Path) -> None:
    """Some readers use nothing else."""
    load(MadeUp.of({"a": [300]}), Iceberg(tmp_path))
    (tmp_path / "metadata/version-hint.text").write_text("1")
    (tmp_path / "_kbroker/published").unlink()

    load(MadeUp.of({"a": [300]}), Iceberg(tmp_path))

    assert (tmp_path / "metadata/version-hint.text").read_text() == "2"


def test_rewind_replaces_files_in_one_version(tmp_path: Path) -> None:
    source = MadeUp.of({"a": [300]})
    load(source, Iceberg(tmp_path))
    before = versions(tmp_path)

    Load(source, Iceberg(tmp_path), InlineRunner(), LoadSettings(load="test")).rewind(
        {("a", 0): 10}
    )

    assert places(tmp_path) == expected(source)
    assert versions(tmp_path) == before + 1


def test_manifests_are_looked_through_independently_of_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyiceberg does it in threads: here one manifest comes in the middle of another."""
    for end in (100, 700):  # the second in hours of its own
        load(MadeUp.of({"a": [end]}), Iceberg(tmp_path))
    table = FolderCatalog(tmp_path).load_table()
    newest, oldest = table.current_snapshot().manifests(table.io)  # type: ignore[union-attr]
    files = [one.data_file for one in newest.fetch_manifest_entry(table.io)]
    update = replaces_reliably(table.transaction().update_snapshot().overwrite())
    update.delete_data_file(max(files, key=lambda one: one.partition[2] or ""))
    update._build_delete_files_partition_predicate()
    may_hold = update._build_manifest_evaluator(0)
    visit, meanwhile = visitors.visit, [oldest]

    def visit_amid(obj: Any, visitor: Any) -> Any:
        if isinstance(visitor, visitors._ManifestEvalVisitor) and meanwhile:
            assert not may_hold(meanwhile.pop())
        return visit(obj, visitor)

    monkeypatch.setattr(visitors, "visit", visit_amid)

    assert may_hold(newest)
    assert not meanwhile


def test_two_who_publish_the_same_commit_bring_it_in_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was presumed dead, and the one that completes its work."""
    source = MadeUp.of({"a": [300]})
    load(MadeUp.of({"a": [100]}), Iceberg(tmp_path))
    slow = Iceberg(tmp_path)
    monkeypatch.setattr(slow, "publish", slow._put_in_place)
    (commit,) = load(source, slow)
    put = FolderCatalog._put
    others = [lambda: Iceberg(tmp_path).publish(commit)]

    def overtaken(catalog: FolderCatalog, metadata: object, number: int) -> Path:
        while others:
            others.pop()()
        return put(catalog, metadata, number)  # type: ignore[arg-type]

    monkeypatch.setattr(FolderCatalog, "_put", overtaken)
    Iceberg(tmp_path).publish(commit)

    assert places(tmp_path) == expected(source)


def test_version_is_made_once(tmp_path: Path) -> None:
    load(MadeUp.of({"a": [300]}), Iceberg(tmp_path))
    catalog = FolderCatalog(tmp_path)
    first, second = catalog.load_table(), catalog.load_table()

    with first.transaction() as change:
        change.set_properties({"by": "first"})
    with pytest.raises(Overtaken), second.transaction() as change:
        change.set_properties({"by": "second"})

    assert catalog.load_table().properties["by"] == "first"


@pytest.mark.parametrize("does", ["overwrites", "deletes rows"])
def test_files_that_another_writer_has_rewritten_are_not_replaced(
    tmp_path: Path, does: str
) -> None:
    """Their rows are in files that no commit lists, or nowhere: they would come back."""
    source = MadeUp.of({"a": [300]})
    for end in (100, 300):
        load(MadeUp.of({"a": [end]}), Iceberg(tmp_path))
    table = FolderCatalog(tmp_path).load_table()
    table.delete("offset = 7" if does == "overwrites" else "offset < 50")
    left = places(tmp_path)

    job = Load(source, Iceberg(tmp_path), InlineRunner(), LoadSettings(load="test"))
    with pytest.raises(LoadError, match=r"cannot be replaced.*another writer has rewritten"):
        job.rewind({("a", 0): 10})
    found = list(verify(Iceberg(tmp_path)))
    load(MadeUp.of({"a": [500]}), Iceberg(tmp_path))

    new = expected(MadeUp.of({"a": [500]})) - expected(source)
    assert places(tmp_path) == left + new
    assert found and all("another writer has rewritten" in line for line in found)


def test_metadata_stays_short_however_many_commits_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each version names all its snapshots."""
    monkeypatch.setattr(iceberg, "SNAPSHOTS_MAX", 6)
    monkeypatch.setattr(iceberg, "SNAPSHOTS_KEPT", 3)

    for end in range(10, 300, 10):
        load(MadeUp.of({"a": [end]}), Iceberg(tmp_path, FileOptions("none")))

    table = FolderCatalog(tmp_path).load_table()
    assert len(table.metadata.snapshots) <= 6
    assert len(table.metadata.metadata_log) <= 20
    assert len(list(tmp_path.glob("metadata/v*.metadata.json"))) <= 21
    assert places(tmp_path) == expected(MadeUp.of({"a": [290]}))


def test_expire_removes_what_no_snapshot_has_any_more(tmp_path: Path) -> None:
    source = MadeUp.of({"a": [500]})
    for end in (200, 350, 500):
        load(MadeUp.of({"a": [end]}), Iceberg(tmp_path))
    compact(Iceberg(tmp_path), "test", InlineRunner(), file_bytes=1 << 30)
    before = len(list(tmp_path.glob("data/**/*.parquet")))
    stray = next(tmp_path.glob("data/**/*.parquet")).with_name("of-another-writer.parquet")
    stray.write_bytes(b"")

    where = ["--dest", str(tmp_path), "--sink", "iceberg"]
    code = main(["expire", "--days", "0.0000001", *where])

    assert code == 0
    assert stray.exists()
    assert len(list(tmp_path.glob("data/**/*.parquet"))) < before
    assert places(tmp_path) == expected(source)
    assert list(verify(Iceberg(tmp_path))) == []
    assert len(FolderCatalog(tmp_path).load_table().metadata.snapshots) == 1


def test_table_keeps_its_partitioning(tmp_path: Path) -> None:
    load(MadeUp.of({"a": [300]}), Iceberg(tmp_path, FileOptions(partition_by="day")))

    with pytest.raises(LoadError, match=r"topic, dt; .* --partition-by day"):
        load(MadeUp.of({"a": [700]}), Iceberg(tmp_path))


@pytest.mark.parametrize(("first", "second"), [("iceberg", "dir"), ("iceberg", "delta")])
def test_destination_keeps_its_sink(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], first: str, second: str
) -> None:
    load(MadeUp.of({"a": [30]}), Iceberg(tmp_path))

    assert main(["verify", "--dest", str(tmp_path), "--sink", second]) == 1

    assert "is an Iceberg table: use --sink iceberg" in capsys.readouterr().err


def test_table_that_cannot_be_read_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load(MadeUp.of({"a": [30]}), Iceberg(tmp_path))
    (tmp_path / "metadata/v2.metadata.json").write_text("{")

    assert main(["verify", "--dest", str(tmp_path), "--sink", "iceberg"]) == 1

    said = capsys.readouterr().err
    assert "the Iceberg table" in said and "cannot be read" in said
    assert len(said.splitlines()) == 1


def test_lost_log_and_table_are_made_from_the_files(tmp_path: Path) -> None:
    source = MadeUp.of({"a": [500]})
    for end in (200, 500):
        load(MadeUp.of({"a": [end]}), Iceberg(tmp_path))
    shutil.rmtree(tmp_path / "metadata")
    with pytest.raises(LoadError, match="If it had a table, its metadata is lost"):
        load(source, Iceberg(tmp_path))
    shutil.rmtree(tmp_path / "_kbroker")

    recover(Iceberg(tmp_path), "test")

    assert places(tmp_path) == expected(source)
    assert list(verify(Iceberg(tmp_path))) == []


def test_folder_whose_name_is_no_address_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="use another folder"):
        load(MadeUp.of({"a": [1]}), Iceberg(tmp_path / "a#b"))


def test_who_is_never_first_gives_up_with_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(MadeUp.of({"a": [10]}), Iceberg(tmp_path))

    def overtaken(*_: object) -> Path:
        raise Overtaken

    with monkeypatch.context() as patch:
        patch.setattr(iceberg_folder.FolderCatalog, "_put", overtaken)
        with pytest.raises(LoadError, match="the next run will add it to the table"):
            load(MadeUp.of({"a": [20]}), Iceberg(tmp_path))
    load(MadeUp.of({"a": [20]}), Iceberg(tmp_path))

    assert places(tmp_path) == expected(MadeUp.of({"a": [20]}))
