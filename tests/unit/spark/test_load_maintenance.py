"""Verify, compact, recover, and a log that grows long."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.spark.load_source import FIRST_MS, MadeUp, destination_of, expected, load, rows_in

from kbroker.spark.direct import InlineRunner, Result, T, Work
from kbroker.spark.load.commits import (
    LOAD,
    Commit,
    CorruptLogError,
    LoadedRange,
    LoadError,
    LostRaceError,
)
from kbroker.spark.load.directory import Directory
from kbroker.spark.load.engine import Load, LoadSettings
from kbroker.spark.load.footers import recover
from kbroker.spark.load.log import CHECKPOINT_EVERY, CommitLog, DirectoryStore
from kbroker.spark.load.maintenance import compact, verify
from kbroker.spark.load.writer import FileOptions
from kbroker.spark.plan import OffsetRange

pytestmark = pytest.mark.unit

SOURCE = MadeUp.of({"a": [2000, 30]})


def loaded(root: Path) -> Directory:
    """Many small files."""
    for records in (300, 500, 700, None):
        load(SOURCE, Directory(root), records_max=records)
    return Directory(root)


def data_files(root: Path) -> list[Path]:
    return sorted(root.glob("data/**/*.parquet"))


def test_verify_of_a_sound_destination_finds_nothing(tmp_path: Path) -> None:
    assert list(verify(loaded(tmp_path))) == []


def test_verify_names_each_file_that_is_wrong(tmp_path: Path) -> None:
    destination = loaded(tmp_path)
    missing, longer, changed, extra = data_files(tmp_path)[:4]
    missing.unlink()
    with longer.open("ab") as file:
        file.write(b"!")
    content = bytearray(changed.read_bytes())
    content[100] ^= 1
    changed.write_bytes(content)
    shutil.copy(extra, extra.with_name("stray.parquet"))

    found = "\n".join(verify(destination))

    assert f"{missing.name}: missing" in found
    assert f"{longer.name}: {len(longer.read_bytes())} bytes, but the log says" in found
    assert f"{changed.name}: its checksum" in found
    assert "stray.parquet: no commit lists it" in found
    assert len(found.splitlines()) == 4


@pytest.mark.parametrize("does", ["load", "rewind", "compact"])
def test_verify_beside_a_run_finds_nothing(tmp_path: Path, does: str) -> None:
    """Reading every file takes long: a following load adds new ones meanwhile."""

    class Overtaken(Directory):
        def out_of_place(self, files):  # type: ignore[no-untyped-def]
            while meanwhile:
                meanwhile.pop()()
            return super().out_of_place(files)

    def act() -> None:
        job = Load(SOURCE, Directory(tmp_path), InlineRunner(), LoadSettings(load="test"))
        if does == "load":
            load(MadeUp.of({"a": [2500, 40]}), Directory(tmp_path))
        elif does == "rewind":
            job.rewind({("a", 0): 900})
        else:
            compact(Directory(tmp_path), "test", InlineRunner(), file_bytes=1 << 30)

    loaded(tmp_path)
    meanwhile = [act]

    assert list(verify(Overtaken(tmp_path))) == []
    assert not meanwhile


@pytest.mark.parametrize("kind", ["dir", "delta"])
def test_verify_finds_of_an_unpublished_commit_what_is_lost_for_good(
    tmp_path: Path, kind: str
) -> None:
    """As after a kill: the next run publishes staged files, and reports the missing ones."""
    if kind == "delta":
        pytest.importorskip("deltalake")
    load(SOURCE, destination_of(str(tmp_path), kind), records_max=300)

    destination = destination_of(str(tmp_path), kind)
    with pytest.raises(LoadError, match="killed"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(destination), "publish", stop)
        load(SOURCE, destination)
    assert isinstance(destination, Directory)

    assert list(verify(destination)) == []
    lost, *_ = (tmp_path / "_kbroker/staging").rglob("*.parquet")
    lost.unlink()
    (found,) = verify(destination)
    assert lost.name in found


def stop(destination: Directory, commit: Commit) -> None:
    raise LoadError("killed")


def test_compact_merges_each_hour_and_keeps_every_record(tmp_path: Path) -> None:
    destination = loaded(tmp_path)
    before = len(data_files(tmp_path))

    made = compact(destination, "test", InlineRunner(), file_bytes=1 << 30)

    folders = {path.parent for path in data_files(tmp_path)}
    assert made is not None and made.ends == {"a": {0: 2000, 1: 30}}
    assert before > len(data_files(tmp_path))
    assert len(data_files(tmp_path)) == len(folders) + 1  # partition 1 is in one of them
    assert rows_in(tmp_path) == expected(SOURCE)
    assert list(verify(destination)) == []
    assert compact(destination, "test", InlineRunner(), file_bytes=1 << 30) is None


class Counting(InlineRunner):
    """Records how many batches each task has."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks: list[int] = []

    def run(self, tasks: Sequence[Sequence[T]], work: Work[T], label: str) -> list[Result]:
        self.tasks += map(len, tasks)
        return super().run(tasks, work, label)


def test_compact_merges_no_files_around_one_that_it_leaves_alone(tmp_path: Path) -> None:
    """Offsets of the merged file and of that one would not be consecutive."""
    year_us = 365 * 86_400_000_000

    class Later(MadeUp):
        def read(self, one: OffsetRange) -> Iterator[pa.RecordBatch]:
            for found in super().read(one):
                index = found.schema.get_field_index("timestamp")
                field = found.schema.field(index)
                times = pc.add(found.column(index).cast(pa.int64()), year_us).cast(field.type)
                yield found.set_column(index, field, times)

    destination = Directory(tmp_path, FileOptions("none"))
    for kind, end in ((MadeUp, 100), (MadeUp, 200), (Later, 300), (MadeUp, 400), (MadeUp, 500)):
        load(kind.of({"a": [end]}), destination)

    made = compact(
        destination,
        "test",
        InlineRunner(),
        file_bytes=1 << 30,
        older_than_ms=FIRST_MS + year_us // 2000,
    )

    assert made is not None
    assert [(one.start, one.end) for one in made.added] == [(0, 200), (300, 500)]
    assert list(verify(destination)) == []
    assert rows_in(tmp_path) == expected(MadeUp.of({"a": [500]}))


def test_many_small_merges_share_a_few_tasks(tmp_path: Path) -> None:
    """A task of Spark costs more than a merge of small files."""
    source = MadeUp.of({"a": [40] * 20})
    for records in (400, None):
        load(source, Directory(tmp_path), records_max=records)
    runner = Counting()

    made = compact(Directory(tmp_path), "test", runner, file_bytes=1 << 30)

    assert made is not None
    assert sum(runner.tasks) == len(made.added) > 3
    assert len(runner.tasks) == 3
    assert rows_in(tmp_path) == expected(source)


def test_rewind_into_a_compacted_file_begins_where_that_begins(tmp_path: Path) -> None:
    destination = loaded(tmp_path)
    compact(destination, "test", InlineRunner(), file_bytes=1 << 30)

    job = Load(SOURCE, destination, InlineRunner(), LoadSettings(load="test"))
    made = job.rewind({("a", 0): 1900})

    assert made is not None
    assert rows_in(tmp_path) == expected(SOURCE)
    assert list(verify(destination)) == []


@pytest.mark.parametrize("compacted", [False, True])
def test_recover_makes_the_log_from_the_files_alone(tmp_path: Path, compacted: bool) -> None:
    destination = loaded(tmp_path)
    Load(SOURCE, destination, InlineRunner(), LoadSettings(load="test")).rewind({("a", 0): 900})
    if compacted:
        compact(destination, "test", InlineRunner(), file_bytes=40_000)
        compact(destination, "test", InlineRunner(), file_bytes=1 << 30)
    before = destination.log.state()
    shutil.rmtree(tmp_path / "_kbroker")

    recover(destination, "test")

    after = destination.log.state()
    assert after.ends == before.ends
    assert {path: one.checksum for path, one in after.files.items()} == {
        path: one.checksum for path, one in before.files.items()
    }
    assert list(verify(destination)) == []
    assert load(SOURCE, destination) == []


def test_recover_after_a_crash_between_new_files_and_old_keeps_the_new(tmp_path: Path) -> None:
    destination = loaded(tmp_path / "live")
    shutil.copytree(tmp_path / "live/data", tmp_path / "old")
    compact(destination, "test", InlineRunner(), file_bytes=1 << 30)
    shutil.copytree(tmp_path / "old", tmp_path / "live/data", dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "live/_kbroker")

    recover(destination, "test")

    assert rows_in(tmp_path / "live") == expected(SOURCE)


def test_recover_refuses_a_range_that_lacks_a_file(tmp_path: Path) -> None:
    destination = loaded(tmp_path)
    shutil.rmtree(tmp_path / "_kbroker")
    data_files(tmp_path)[0].unlink()

    with pytest.raises(LoadError, match="is missing, which is a part of a partition"):
        recover(destination, "test")


def test_recover_refuses_a_destination_that_has_its_log(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="has its log"):
        recover(loaded(tmp_path), "test")


# -- the log


def commit(number: int, run: str = "r") -> Commit:
    ranges = (LoadedRange("t", 0, number - 1, number, 1, 10),)
    return Commit(number, LOAD, "test", run, number * 1000, {"t": {0: number}}, ranges)


def test_commit_survives_its_own_text() -> None:
    made = replace(commit(3), counts={"t": {600_000: 4}})

    assert Commit.from_json(made.to_json()) == made


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b"null", b'{"format":1}', b'{"format":9}'])
def test_text_that_is_no_commit_is_a_typed_error(text: bytes) -> None:
    with pytest.raises(CorruptLogError):
        Commit.from_json(text)


def test_number_is_taken_once(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    store.put(commit(1, "first"))

    with pytest.raises(LostRaceError, match="another run has written commit 1"):
        store.put(commit(1, "second"))

    newest = CommitLog(store).newest()
    assert newest is not None and newest.run == "first"
    assert [path.name for path in (tmp_path / "commits").iterdir()] == ["000000000001.json"]


def test_missing_commit_is_an_error_not_a_shorter_sum(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    for number in (1, 2, 3):
        store.put(commit(number))
    store.drop("commits", 2)

    with pytest.raises(CorruptLogError, match="commit 3 follows 1"):
        CommitLog(store).state()


def test_expire_keeps_the_sum_and_the_newest(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    for number in range(1, 11):
        store.put(commit(number))
    log = CommitLog(store)

    dropped = log.expire(before_ms=8000)

    assert dropped == 7
    assert log.state().ends == {"t": {0: 10}}
    assert log.expire(before_ms=1 << 60) == 2
    assert log.numbers() == [10]
    assert log.state().ends == {"t": {0: 10}}


@pytest.mark.slow
def test_state_of_ten_thousand_commits_is_read_in_a_second(tmp_path: Path) -> None:
    """P12 of the targets: a start does not get slower with the age of a load."""
    store = DirectoryStore(tmp_path)
    log = CommitLog(store)
    folder = tmp_path / "commits"
    folder.mkdir()
    for number in range(1, 10_051):  # written without syncs, which would distort the measurement
        (folder / f"{number:012d}.json").write_text(commit(number).to_json())
        if number == 10_000:
            assert log.maybe_checkpoint(number) and number % CHECKPOINT_EVERY == 0

    begun = time.process_time()
    newest, state = log.newest(), log.state()
    took = time.process_time() - begun

    assert newest is not None and newest.number == state.number == 10_050
    assert took < 1.0
