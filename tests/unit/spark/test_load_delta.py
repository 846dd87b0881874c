"""A Delta table that was never written by a JVM."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from support.spark.load_source import MadeUp, expected, load, rows_in

from kbroker.spark.direct import InlineRunner
from kbroker.spark.load import points
from kbroker.spark.load.cli import main
from kbroker.spark.load.commits import LoadError
from kbroker.spark.load.directory import Directory
from kbroker.spark.load.engine import Load, LoadSettings
from kbroker.spark.load.footers import recover
from kbroker.spark.load.maintenance import compact, verify
from kbroker.spark.load.writer import FileOptions

deltalake = pytest.importorskip("deltalake")

from kbroker.spark.load.delta import Delta  # noqa: E402

pytestmark = pytest.mark.unit


def places(root: Path) -> Counter[tuple[str, int, int]]:
    """The table's content, as its own reader sees it."""
    table = deltalake.DeltaTable(str(root)).to_pyarrow_table()
    columns = [table.column(name).to_pylist() for name in ("topic", "partition", "offset")]
    return Counter(zip(*columns, strict=True))


def test_load_is_a_version_of_the_table_with_its_offsets(tmp_path: Path) -> None:
    load(MadeUp.of({"a": [800, 5]}), Delta(tmp_path))
    load(MadeUp.of({"a": [900, 5]}), Delta(tmp_path))

    newest = deltalake.DeltaTable(str(tmp_path)).history(1)[0]
    assert places(tmp_path) == expected(MadeUp.of({"a": [900, 5]}))
    assert json.loads(newest["kbroker.ends"]) == {"a": {"0": 900, "1": 5}}
    assert deltalake.DeltaTable(str(tmp_path)).transaction_version("test") == 2


def test_publishing_again_adds_nothing(tmp_path: Path) -> None:
    made = load(MadeUp.of({"a": [300]}), Delta(tmp_path))

    Delta(tmp_path).publish(made[0])

    assert places(tmp_path) == expected(MadeUp.of({"a": [300]}))
    assert len(deltalake.DeltaTable(str(tmp_path)).history()) == 2


def test_rewind_replaces_files_in_one_version(tmp_path: Path) -> None:
    source = MadeUp.of({"a": [300]})
    load(source, Delta(tmp_path))

    Load(source, Delta(tmp_path), InlineRunner(), LoadSettings(load="test")).rewind({("a", 0): 10})

    assert places(tmp_path) == expected(source)


def test_table_keeps_its_partitioning(tmp_path: Path) -> None:
    """A compaction job does not know the partitioning; the next load must specify the same."""
    by_day = FileOptions(partition_by="day")
    for end in (300, 500):
        load(MadeUp.of({"a": [end]}), Delta(tmp_path, by_day))

    compact(Delta(tmp_path), "test", InlineRunner(), file_bytes=1 << 30)
    with pytest.raises(LoadError, match=r"topic, dt; .* --partition-by day"):
        load(MadeUp.of({"a": [700]}), Delta(tmp_path))

    table = deltalake.DeltaTable(str(tmp_path))
    assert places(tmp_path) == expected(MadeUp.of({"a": [500]}))
    assert table.metadata().partition_columns == ["topic", "dt"]
    assert "hr" not in {field.name for field in table.schema().fields}


def test_table_of_something_else_is_refused(tmp_path: Path) -> None:
    deltalake.write_deltalake(str(tmp_path), pa.table({"offset": [1]}))

    with pytest.raises(
        LoadError, match="was not created by a load: it is not partitioned by topic"
    ):
        load(MadeUp.of({"a": [10]}), Delta(tmp_path))


@pytest.mark.parametrize("change", ["optimize", "delete"])
def test_files_that_another_writer_has_rewritten_are_not_replaced(
    tmp_path: Path, change: str
) -> None:
    """Their rows are in files that no commit lists, or nowhere: they would be duplicated or come
    back.
    """
    source = MadeUp.of({"a": [300]})
    load(source, Delta(tmp_path), records_max=100)
    load(source, Delta(tmp_path))
    table = deltalake.DeltaTable(str(tmp_path))
    if change == "optimize":
        table.optimize.compact()
    else:
        table.delete('"offset" % 7 = 3')
    left = places(tmp_path)

    job = Load(source, Delta(tmp_path), InlineRunner(), LoadSettings(load="test"))
    with pytest.raises(LoadError, match=r"cannot be replaced.*another writer has rewritten"):
        job.rewind({("a", 0): 10})
    compact(Delta(tmp_path), "test", InlineRunner(), file_bytes=1 << 30)
    found = list(verify(Delta(tmp_path)))
    load(MadeUp.of({"a": [500]}), Delta(tmp_path))

    new = expected(MadeUp.of({"a": [500]})) - expected(source)
    assert places(tmp_path) == left + new
    assert found and all("another writer has rewritten" in line for line in found)


def test_table_that_takes_only_additions_is_asked_for_no_other(tmp_path: Path) -> None:
    """A commit that the table can never accept would stop every later run."""
    for end in (300, 500):
        load(MadeUp.of({"a": [end]}), Delta(tmp_path))
    table = deltalake.DeltaTable(str(tmp_path))
    table.alter.set_table_properties({"delta.appendOnly": "true"})

    source = MadeUp.of({"a": [700]})
    job = Load(source, Delta(tmp_path), InlineRunner(), LoadSettings(load="test"))
    with pytest.raises(LoadError, match="is append-only"):
        job.rewind({("a", 0): 10})
    with pytest.raises(LoadError, match="is append-only"):
        compact(Delta(tmp_path), "test", InlineRunner(), file_bytes=1 << 30)
    load(source, Delta(tmp_path))

    assert places(tmp_path) == expected(source)


def test_commit_that_the_table_refuses_is_told_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **named: object) -> None:
        raise deltalake.exceptions.CommitFailedError("no\nmore")

    load(MadeUp.of({"a": [300]}), Delta(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(deltalake.DeltaTable, "create_write_transaction", refuse)
        with pytest.raises(LoadError, match=r"does not accept commit 2.*the next run.*: no$"):
            load(MadeUp.of({"a": [500]}), Delta(tmp_path))

    load(MadeUp.of({"a": [500]}), Delta(tmp_path))

    assert places(tmp_path) == expected(MadeUp.of({"a": [500]}))


def test_table_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    for end in (300, 500):
        load(MadeUp.of({"a": [end]}), Delta(tmp_path))
    (tmp_path / "_delta_log/00000000000000000000.json").unlink()

    with pytest.raises(LoadError, match=r"the Delta table .* cannot be read: [^\n]+$"):
        load(MadeUp.of({"a": [700]}), Delta(tmp_path))


def test_folder_that_deltalake_takes_for_another_is_refused(tmp_path: Path) -> None:
    """It created the table there and could not find it, nor could any later run."""
    with pytest.raises(LoadError, match=r"reads the % in .*a%20b"):
        Delta(tmp_path / "a%20b").prepare()

    load(MadeUp.of({"a": [300]}), Delta(tmp_path / "100% ü"))
    assert places(tmp_path / "100% ü") == expected(MadeUp.of({"a": [300]}))


def test_expire_of_a_load_without_a_row_has_no_table_to_clean(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    destination = Delta(tmp_path)
    job = Load(MadeUp.of({"a": [0]}), destination, InlineRunner(), LoadSettings(load="test"))
    destination.prepare()
    job.fence(None)

    assert main(["expire", "--dest", str(tmp_path), "--sink", "delta"]) == 0
    assert "0 replaced files removed" in capsys.readouterr().out


def test_table_whose_log_was_recreated_takes_new_commits(tmp_path: Path) -> None:
    """The table has the numbers of the lost log, and would take new commits for old ones."""
    for end in (300, 500, 700):
        load(MadeUp.of({"a": [end]}), Delta(tmp_path))
    source = MadeUp.of({"a": [700]})
    Load(source, Delta(tmp_path), InlineRunner(), LoadSettings(load="test")).rewind({("a", 0): 600})
    shutil.rmtree(tmp_path / "_kbroker")

    recover(Delta(tmp_path), "test")
    between = places(tmp_path)
    load(MadeUp.of({"a": [900]}), Delta(tmp_path))

    assert between == expected(source)
    assert places(tmp_path) == expected(MadeUp.of({"a": [900]}))
    assert Delta(tmp_path).log.state().ends == {"a": {0: 900}}


def test_recover_takes_out_of_the_table_what_the_files_have_replaced(tmp_path: Path) -> None:
    """A run died between putting merged files in place and updating the table."""
    for end in (300, 500):
        load(MadeUp.of({"a": [end]}), Delta(tmp_path))
    made = compact(Untold(tmp_path), "test", InlineRunner(), file_bytes=1 << 30)
    shutil.rmtree(tmp_path / "_kbroker")

    recover(Delta(tmp_path), "test")

    assert made is not None
    assert places(tmp_path) == expected(MadeUp.of({"a": [500]}))


@pytest.mark.parametrize("kind", ["delta", "dir"])
@pytest.mark.parametrize("point", points.RECOVER_POINTS)
@pytest.mark.parametrize("then", ["recover", "load"])
def test_recover_killed_midway_is_finished_by_the_next(
    tmp_path: Path, kind: str, point: str, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table has the rows once, and so has the plain directory in the end."""
    where = {"delta": Delta, "dir": Directory}[kind]
    for end in (300, 500):
        load(MadeUp.of({"a": [end]}), where(tmp_path))
    shutil.copytree(tmp_path / "data", tmp_path / "before")
    compact(where(tmp_path), "test", InlineRunner(), file_bytes=1 << 30)
    shutil.copytree(tmp_path / "before", tmp_path / "data", dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "_kbroker")

    def die(name: str) -> None:
        if name == point:
            raise Killed

    monkeypatch.setattr(points, "reach", die)
    with pytest.raises(Killed):
        recover(where(tmp_path), "test")
    monkeypatch.undo()
    if then == "load" and point == "recover-begun":
        with pytest.raises(LoadError, match="no log of commits"):
            load(MadeUp.of({"a": [700]}), where(tmp_path))
    if then == "recover" or point == "recover-begun":
        recover(where(tmp_path), "test")
    load(MadeUp.of({"a": [700]}), where(tmp_path))

    found = places if kind == "delta" else rows_in
    assert found(tmp_path) == expected(MadeUp.of({"a": [700]}))
    assert list(verify(where(tmp_path))) == []


class Killed(BaseException):
    """As if the process had ended there."""


class Untold(Delta):
    """Only puts files in place."""

    def _write_version(self, table: object, commit: object) -> None:
        pass
