"""A destination and a commit log that do not match: no run, and verify reports it.

Somebody has removed the newest file of one of them, or brought one back from a copy. A run that
went on would load records twice, or leave them out for good.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from support.spark.load_source import (
    BATCH_ROWS,
    MadeUp,
    destination_of,
    expected,
    load,
    rows_in,
    rows_in_table,
)

from kbroker.client.errors import OffsetOutOfRange
from kbroker.spark.direct import InlineRunner
from kbroker.spark.load.cli import main
from kbroker.spark.load.commits import Gap, LoadError
from kbroker.spark.load.database import Database
from kbroker.spark.load.directory import Directory
from kbroker.spark.load.engine import Load, LoadSettings
from kbroker.spark.load.footers import recover
from kbroker.spark.load.log import CHECKPOINT_EVERY
from kbroker.spark.load.maintenance import compact, verify
from kbroker.spark.plan import OffsetRange

pytestmark = pytest.mark.unit

MORE = MadeUp.of({"a": [1200, 60]})


LIBRARIES = {"delta": "deltalake", "iceberg": "pyiceberg"}


@pytest.fixture(params=["delta", "iceberg"])
def table(request: pytest.FixtureRequest) -> str:
    """A kind of table."""
    pytest.importorskip(LIBRARIES[request.param])
    return str(request.param)


@pytest.fixture(params=["dir", "delta", "iceberg"])
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of table in a folder."""
    if request.param in LIBRARIES:
        pytest.importorskip(LIBRARIES[request.param])
    return str(request.param)


def loaded(root: Path, kind: str) -> Directory:
    """Three commits."""
    for ends in ([300, 10], [700, 20], [900, 40]):
        load(MadeUp.of({"a": ends}), destination_of(str(root), kind))
    return at(root, kind)


def at(root: Path, kind: str) -> Directory:
    destination = destination_of(str(root), kind)
    assert isinstance(destination, Directory)
    return destination


def rows_of(root: Path, kind: str) -> object:
    """The rows that readers see."""
    return rows_in(root) if kind == "dir" else sum(rows_in_table(root, kind).values())


def newest_of(folder: Path) -> Path:
    """The file with the highest number."""
    found = {path: re.sub(r"\D", "", path.name) for path in folder.glob("*.json")}
    return max(found, key=lambda path: int(found[path]))


def own_log(root: Path, table: str) -> Path:
    return root / {"delta": "_delta_log", "iceberg": "metadata"}[table]


def test_log_without_its_newest_commit_stops_a_run_and_is_told(tmp_path: Path, kind: str) -> None:
    loaded(tmp_path, kind)
    before = rows_of(tmp_path, kind)
    newest_of(tmp_path / "_kbroker/commits").unlink()

    says = r"is ahead of its log of commits, which ends at commit 2: .* says that commit 3 was"
    with pytest.raises(LoadError, match=says):
        load(MORE, at(tmp_path, kind))
    with pytest.raises(LoadError, match=says):
        compact(at(tmp_path, kind), "test", InlineRunner(), file_bytes=1 << 30)
    assert main(["expire", "--dest", str(tmp_path), "--sink", kind]) == 1

    assert rows_of(tmp_path, kind) == before
    first, *_ = verify(at(tmp_path, kind))
    assert "Restore _kbroker/commits from commit 3 on" in first


def test_lost_commit_is_found_by_recover_and_the_load_continues(tmp_path: Path, kind: str) -> None:
    """As the message of the refusal says."""
    loaded(tmp_path, kind)
    newest_of(tmp_path / "_kbroker/commits").unlink()
    shutil.rmtree(tmp_path / "_kbroker/commits")

    recover(at(tmp_path, kind), "test")
    load(MORE, at(tmp_path, kind))

    assert list(verify(at(tmp_path, kind))) == []
    found = rows_of(tmp_path, kind)
    assert found == (expected(MORE) if kind == "dir" else sum(expected(MORE).values()))


def test_files_tell_of_a_lost_commit_where_nothing_else_does(tmp_path: Path) -> None:
    loaded(tmp_path, "dir")
    newest_of(tmp_path / "_kbroker/commits").unlink()
    (tmp_path / "_kbroker/published").unlink()
    before = rows_in(tmp_path)

    with pytest.raises(LoadError, match=r"a-1-.*\.parquet holds records that no commit lists"):
        load(MORE, Directory(tmp_path))

    assert rows_in(tmp_path) == before


def test_commit_that_was_killed_while_it_was_published_may_lose_its_log_as_well(
    tmp_path: Path,
) -> None:
    """``published`` names the previous commit, correctly."""
    loaded(tmp_path, "dir")

    class Dies(Directory):
        def _note_published(self, commit):  # type: ignore[no-untyped-def]
            raise LoadError("killed")

    with pytest.raises(LoadError, match="killed"):
        load(MORE, Dies(tmp_path))
    newest_of(tmp_path / "_kbroker/commits").unlink()

    with pytest.raises(LoadError, match="holds records that no commit lists"):
        load(MORE, Directory(tmp_path))


def test_files_of_others_are_no_reason_to_refuse(tmp_path: Path) -> None:
    loaded(tmp_path, "dir")
    (tmp_path / "_kbroker/published").unlink()
    some = next((tmp_path / "data").rglob("*.parquet"))
    shutil.copy(some, some.with_name("mine.parquet"))
    shutil.copy(some, some.with_name(f"a-0-{5000:020d}-{6000:020d}-mine-0.parquet").as_posix())
    next((tmp_path / "data").rglob("*mine-0.parquet")).write_bytes(b"not Parquet")

    assert len(load(MORE, Directory(tmp_path))) == 1


def test_checkpoint_tells_of_lost_commits(tmp_path: Path) -> None:
    for end in range(1, CHECKPOINT_EVERY + 1):
        load(MadeUp.of({"a": [end]}), Directory(tmp_path))
    for number in (99, 100):
        (tmp_path / f"_kbroker/commits/{number:012d}.json").unlink()
    (tmp_path / "_kbroker/published").unlink()

    with pytest.raises(
        LoadError, match=r"ends at commit 98: _kbroker/checkpoint says that commit 100"
    ):
        load(MORE, Directory(tmp_path))


@pytest.mark.parametrize("lost", [1, 2])
def test_table_without_its_newest_version_stops_a_run_and_is_told(
    tmp_path: Path, table: str, lost: int
) -> None:
    loaded(tmp_path, table)
    for _ in range(lost):
        newest_of(own_log(tmp_path, table)).unlink()
    before = rows_of(tmp_path, table)

    with pytest.raises(LoadError, match="is behind its log of commits: it lacks commit 3"):
        load(MORE, at(tmp_path, table))

    assert rows_of(tmp_path, table) == before
    first, *others = verify(at(tmp_path, table))
    assert f"Restore the newest files of {own_log(tmp_path, table).name}" in first
    assert others and all(f": not in the {table.title()} table" in one for one in others)


def test_table_that_is_behind_is_brought_to_what_the_files_say(tmp_path: Path, table: str) -> None:
    loaded(tmp_path, table)
    newest_of(own_log(tmp_path, table)).unlink()
    shutil.rmtree(tmp_path / "_kbroker/commits")

    recover(at(tmp_path, table), "test")
    load(MORE, at(tmp_path, table))

    assert rows_of(tmp_path, table) == sum(expected(MORE).values())


@pytest.mark.parametrize("is_empty", [True, False])
def test_verify_of_data_without_a_log_is_no_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, is_empty: bool
) -> None:
    """A refused run has created the folder again."""
    loaded(tmp_path, kind)
    shutil.rmtree(tmp_path / "_kbroker")
    if is_empty:
        (tmp_path / "_kbroker").mkdir()

    code = main(["verify", "--dest", str(tmp_path), "--sink", kind])

    said = capsys.readouterr()
    assert code == (3 if is_empty else 1)
    assert "has data files but no log of commits: rebuild the log from them" in said.out + said.err


# -- databases


def database(root: Path) -> Database:
    return Database(f"sqlite:{root}/warehouse.db", "rows", "test")


def change(root: Path, text: str) -> None:
    connection = sqlite3.connect(root / "warehouse.db")
    connection.execute(text)
    connection.commit()
    connection.close()


def loaded_rows(root: Path) -> None:
    for ends in ([290, 11], [900, 40]):
        load(MadeUp.of({"a": ends}), database(root))


def test_database_without_its_newest_commit_stops_a_run_and_is_told(tmp_path: Path) -> None:
    loaded_rows(tmp_path)
    change(tmp_path, "DELETE FROM kbroker_commits WHERE number = 2")

    with pytest.raises(LoadError, match="the newest commit of load test") as refused:
        load(MORE, database(tmp_path))

    said = str(refused.value)
    assert (
        "1, says that a partition 0 is loaded up to offset 290, but kbroker_offsets says 900"
        in said
    )
    assert "Restore the rows of kbroker_commits from number 2 on" in said
    assert said in list(database(tmp_path).verify())


def test_rows_of_a_lost_commit_are_loaded_again_once_they_are_deleted(tmp_path: Path) -> None:
    """As the message of the refusal says."""
    loaded_rows(tmp_path)
    change(tmp_path, "DELETE FROM kbroker_commits WHERE number = 2")
    ends = database(tmp_path).log.state().ends["a"]
    for partition, end in ends.items():
        change(tmp_path, f'DELETE FROM rows WHERE "partition" = {partition} AND "offset" >= {end}')
    change(tmp_path, "DELETE FROM kbroker_offsets WHERE load = 'test'")

    load(MORE, database(tmp_path))

    assert list(database(tmp_path).verify()) == []


def test_verify_of_a_sound_database_finds_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded_rows(tmp_path)
    where = ["--dest", f"sqlite:{tmp_path}/warehouse.db", "--sink", "jdbc", "--name", "test"]

    assert main(["verify", *where]) == main(["verify", "--quick", *where]) == 0

    assert capsys.readouterr().out == "940 rows, 0 findings\n" * 2


@pytest.mark.parametrize(
    ("does", "finds"),
    [
        (
            'DELETE FROM rows WHERE "partition" = 0 AND "offset" = 7',
            [
                "a partition 0, offsets 0 to ",
                "a partition 0: 899 rows in rows, but the log says 900",
            ],
        ),
        (
            'INSERT INTO rows ("topic", "partition", "offset") VALUES (\'a\', 1, 77)',
            ["a partition 1: 41 rows in rows, but the log says 40, up to offset 40; the last"],
        ),
    ],
)
def test_verify_of_a_database_counts_what_the_log_lists(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], does: str, finds: list[str]
) -> None:
    loaded_rows(tmp_path)
    change(tmp_path, does)

    where = ["--dest", f"sqlite:{tmp_path}/warehouse.db", "--sink", "jdbc", "--name", "test"]
    assert main(["verify", *where]) == 3

    lines = capsys.readouterr().out.splitlines()[:-1]
    assert len(lines) == len(finds)
    assert all(line.startswith(one) for line, one in zip(lines, finds, strict=True))


def test_topic_recreated_is_not_loaded_into_the_table_of_the_older_one(tmp_path: Path) -> None:
    """Its offsets exist already: the database would reject the commit after all the work."""
    load(MadeUp.of({"a": [20]}, ids={"a": "A" * 22}), database(tmp_path))
    anew = MadeUp.of({"a": [50]}, ids={"a": "B" * 22})

    with pytest.raises(LoadError, match="Load into another --table under another --name"):
        load(anew, database(tmp_path), allow_loss=True)

    assert not list(database(tmp_path).verify())


def test_rows_that_are_there_already_are_refused_with_a_way_out(tmp_path: Path) -> None:
    load(MadeUp.of({"a": [20]}), database(tmp_path))
    other = Database(f"sqlite:{tmp_path}/warehouse.db", "rows", "other")

    with pytest.raises(LoadError, match=r"from another load\. Load into another --table"):
        load(MadeUp.of({"a": [50]}), other)


# -- records that are deleted between planning and reading


class Deletes(MadeUp):
    """Retention deletes offsets below 350 when 200 is read, and a whole range before it."""

    def read(self, one: OffsetRange) -> Iterator[pa.RecordBatch]:
        for first in range(one.start, one.end, BATCH_ROWS):
            if 200 <= first < 350:
                raise OffsetOutOfRange(one.topic, one.partition, first, 350, 900)
            yield from super().read(replace(one, start=first, end=min(first + BATCH_ROWS, one.end)))


@pytest.mark.parametrize("where", ["dir", "delta", "iceberg", "sqlite"])
def test_records_that_are_deleted_before_they_are_read_are_a_gap(
    tmp_path: Path, where: str
) -> None:
    if where in LIBRARIES:
        pytest.importorskip(LIBRARIES[where])
    to = where if where != "sqlite" else f"sqlite:{tmp_path}/warehouse.db"
    source = Deletes({"a": [(0, 900), (250, 300)]})
    with pytest.raises(LoadError, match=r"offsets 200 to 350 were deleted .* --allow-data-loss"):
        load(source, destination_of(str(tmp_path), to))

    (made,) = load(source, destination_of(str(tmp_path), to), allow_loss=True)

    assert made.gaps == (Gap("a", 0, 200, 350), Gap("a", 1, 250, 300))
    assert made.ends == {"a": {0: 900, 1: 300}}
    assert made.rows == 750
    assert destination_of(str(tmp_path), to).log.state().skipped == {"a": {0: 150, 1: 50}}
    if where == "dir":
        assert set(rows_in(tmp_path)) == {("a", 0, n) for n in (*range(200), *range(350, 900))}


def test_range_whose_beginning_is_gone_can_be_loaded_again_from_what_there_was(
    tmp_path: Path,
) -> None:
    load(Deletes({"a": [(200, 900)]}), Directory(tmp_path), allow_loss=True)

    job = Load(
        MadeUp({"a": [(350, 900)]}), Directory(tmp_path), InlineRunner(), LoadSettings("test")
    )
    made = job.rewind({("a", 0): 400})

    assert made is not None and made.rows == 550
    assert sum(rows_in(tmp_path).values()) == 550


def test_log_that_is_cut_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    """A new plan sees the current log, and what was loaded from the old end."""

    class Cut(MadeUp):
        def read(self, one: OffsetRange) -> Iterator[pa.RecordBatch]:
            raise OffsetOutOfRange(one.topic, one.partition, one.start, 0, 50)

    with pytest.raises(OffsetOutOfRange):
        load(Cut({"a": [(100, 900)]}), Directory(tmp_path), allow_loss=True)
