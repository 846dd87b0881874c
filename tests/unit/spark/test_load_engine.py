"""One run after another into a directory, without Spark and without a broker."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow.dataset import dataset
from support.spark.load_source import MadeUp, expected, load, rows_in

from kbroker.client.errors import RejectedError
from kbroker.spark.direct import InlineRunner
from kbroker.spark.load import directory
from kbroker.spark.load import log as commit_log
from kbroker.spark.load.commits import (
    LOAD,
    OPEN,
    RELOAD,
    CommitState,
    Ends,
    LoadError,
    LostRaceError,
)
from kbroker.spark.load.directory import BusyError, Directory
from kbroker.spark.load.engine import Load, LoadSettings, Step
from kbroker.spark.load.footers import recover
from kbroker.spark.load.maintenance import compact, verify
from kbroker.spark.load.positions import DataLossError
from kbroker.spark.load.writer import FileOptions
from kbroker.spark.plan import OffsetRange

pytestmark = pytest.mark.unit

SMALL = FileOptions(file_bytes=1)


def test_load_of_two_topics_has_every_record_once(tmp_path: Path) -> None:
    source = MadeUp.of({"a": [1000, 20], "b": [0, 1]})

    made = load(source, Directory(tmp_path))

    assert rows_in(tmp_path) == expected(source)
    assert [one.kind for one in made] == [LOAD]
    assert made[0].ends == {"a": {0: 1000, 1: 20}, "b": {1: 1}}
    assert sum(made[0].counts["a"].values()) == 1020


def test_second_load_brings_only_what_is_new(tmp_path: Path) -> None:
    load(MadeUp.of({"a": [500]}), Directory(tmp_path))

    made = load(MadeUp.of({"a": [700, 5]}), Directory(tmp_path))

    assert rows_in(tmp_path) == expected(MadeUp.of({"a": [700, 5]}))
    assert made[0].rows == 205
    assert load(MadeUp.of({"a": [700, 5]}), Directory(tmp_path)) == []


def test_limits_stop_a_run_and_the_next_continues(tmp_path: Path) -> None:
    source = MadeUp.of({"a": [1000, 10]})

    first = load(source, Directory(tmp_path), records_max=300)
    load(source, Directory(tmp_path))

    assert sum(one.rows for one in first) == 300
    assert rows_in(tmp_path) == expected(source)


def test_limits_hold_for_all_that_a_run_does(tmp_path: Path) -> None:
    """Also in follow mode: it catches up again and again."""
    destination = Directory(tmp_path)
    destination.prepare()
    settings = LoadSettings(load="test", records_max=150)
    job = Load(MadeUp.of({"a": [100]}), destination, InlineRunner(), settings)
    job.catch_up()
    assert not job.is_over
    job._source = MadeUp.of({"a": [300]})

    job.catch_up()

    assert job.is_over and job.catch_up() == []
    assert rows_in(tmp_path) == expected(MadeUp.of({"a": [150]}))


def test_time_of_a_run_is_by_a_clock_that_nobody_sets(tmp_path: Path) -> None:
    """A wall clock that was set forward ended a following load; commits contain the time of day."""
    begun_ms = time.time() * 1000
    seconds = [5.0]
    destination = Directory(tmp_path)
    destination.prepare()
    settings = LoadSettings(load="test", seconds_max=60)
    source = MadeUp.of({"a": [10]})
    job = Load(source, destination, InlineRunner(), settings, clock=lambda: seconds[0])

    (made,) = job.catch_up()
    seconds[0] = 64.9
    assert not job.is_over
    seconds[0] = 65.0

    assert job.is_over
    assert int(begun_ms) <= made.written_ms <= time.time() * 1000


def test_topic_of_the_longest_name_is_loaded(tmp_path: Path) -> None:
    source = MadeUp.of({"t" * 249: [300]})

    load(source, Directory(tmp_path))

    assert rows_in(tmp_path) == expected(source)
    shutil.rmtree(tmp_path / "_kbroker")
    assert recover(Directory(tmp_path), "test").rows == 300


@pytest.mark.parametrize("topic", ["_events", ".events", "__", "a_b.c"])
def test_no_file_of_a_topic_is_hidden_from_readers_of_tables(tmp_path: Path, topic: str) -> None:
    """Spark, Hive and Arrow skip files that begin with ``_`` or ``.``: no row, no error."""
    load(MadeUp.of({topic: [300]}), Directory(tmp_path))

    assert dataset(tmp_path / "data", partitioning="hive").count_rows() == 300
    shutil.rmtree(tmp_path / "_kbroker")
    assert recover(Directory(tmp_path), "test").rows == 300
    assert not list(verify(Directory(tmp_path)))


def test_group_gets_offsets_of_what_this_run_is_about(tmp_path: Path) -> None:
    """Other topics of the destination may be deleted, or belong to another cluster."""
    groups = []

    class Noted(MadeUp):
        def commit_group(self, group: str, ends: Ends) -> None:
            groups.append(ends)

    load(MadeUp.of({"gone": [10]}), Directory(tmp_path))
    load(Noted.of({"a": [20, 30]}), Directory(tmp_path), group="g")

    assert groups == [{"a": {0: 20, 1: 30}}]
    assert Directory(tmp_path).log.state().ends == {"gone": {0: 10}, "a": {0: 20, 1: 30}}


def test_refused_offsets_of_a_group_are_told_and_the_run_continues(tmp_path: Path) -> None:
    """The records are loaded: a failed run would be repeated for nothing."""

    class Refusing(MadeUp):
        def commit_group(self, group: str, ends: Ends) -> None:
            raise RejectedError(30, f"commit offsets of {group}")

    steps: list[Step] = []
    destination = Directory(tmp_path)
    destination.prepare()
    settings = LoadSettings(load="test", group="g", commit_bytes=256 * 10)
    source = Refusing.of({"a": [20]})
    job = Load(source, destination, InlineRunner(), settings, report=steps.append)

    job.catch_up()
    job.rewind({("a", 0): 15})

    assert [one.commit.kind for one in steps] == [LOAD, LOAD, RELOAD]
    assert all("commit offsets of g: GROUP_AUTHOR" in one.not_stored for one in steps)
    assert rows_in(tmp_path) == expected(source)


def test_run_whose_tasks_fail_leaves_nothing_on_the_disk(tmp_path: Path) -> None:
    """On a full disk the next run could not take its number, and so not remove it either."""

    class Full(MadeUp):
        def read(self, one: OffsetRange) -> Iterator[pa.RecordBatch]:
            if one.partition == 1:
                assert list((tmp_path / "_kbroker/staging").rglob("*.parquet"))
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().read(one)

    with pytest.raises(OSError, match="No space"):
        load(Full.of({"a": [300, 20]}), Directory(tmp_path))

    assert not list((tmp_path / "_kbroker/staging").iterdir())


def test_run_whose_commit_fills_the_disk_leaves_nothing_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(path: Path, content: bytes) -> None:
        path.write_bytes(content[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(commit_log, "write_synced", fill)
    with pytest.raises(OSError, match="No space"):
        load(MadeUp.of({"a": [300]}), Directory(tmp_path))

    assert not list((tmp_path / "_kbroker/staging").iterdir())
    assert not list((tmp_path / "_kbroker/commits").iterdir())


def test_commit_that_is_written_on_a_full_disk_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sync of its folder fails."""
    source = MadeUp.of({"a": [300]})

    def fill(path: Path) -> None:
        if path.name == "commits":
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(commit_log, "sync_directory", fill)
    with pytest.raises(OSError, match="No space"):
        load(source, Directory(tmp_path))
    monkeypatch.undo()
    load(source, Directory(tmp_path))

    assert rows_in(tmp_path) == expected(source)


def test_hour_folders_hold_the_hours_of_their_records(tmp_path: Path) -> None:
    load(MadeUp.of({"a": [2000]}), Directory(tmp_path))

    hours = {path.parent.name for path in tmp_path.glob("data/topic=a/dt=2026-01-01/*/*.parquet")}

    assert hours == {"hr=00", "hr=01", "hr=02", "hr=03", "hr=04"}
    unknown = list(tmp_path.glob("data/topic=a/dt=__HIVE_DEFAULT_PARTITION__/*/*.parquet"))
    assert len(unknown) == 1


def test_retention_that_overtook_the_load_is_an_error_with_all_offsets(tmp_path: Path) -> None:
    load(MadeUp.of({"a": [100]}), Directory(tmp_path))
    moved = MadeUp({"a": [(150, 300)]})

    with pytest.raises(DataLossError, match=r"a partition 0: offset 100 .* 150 to 300"):
        load(moved, Directory(tmp_path))
    made = load(moved, Directory(tmp_path), allow_loss=True)

    assert (made[0].gaps[0].start, made[0].gaps[0].end) == (100, 150)
    assert len(rows_in(tmp_path)) == 250


def test_first_offset_that_retention_has_taken_is_an_error_and_0_is_the_start(
    tmp_path: Path,
) -> None:
    source = MadeUp({"a": [(150, 300)]})

    with pytest.raises(DataLossError, match=r"a partition 0: offset 100 .* 150 to 300"):
        load(source, Directory(tmp_path / "1"), first={("a", 0): 100})
    (allowed,) = load(source, Directory(tmp_path / "1"), first={("a", 0): 100}, allow_loss=True)
    (from_start,) = load(source, Directory(tmp_path / "2"), first={("a", 0): 0})

    assert [(one.start, one.end) for one in allowed.gaps] == [(100, 150)]
    assert (allowed.rows, from_start.rows, from_start.gaps) == (150, 150, ())


def test_where_to_begin_is_kept_also_when_nothing_is_loaded_from_there(tmp_path: Path) -> None:
    """The next run, without the argument, started at the beginning."""
    (first,) = load(MadeUp({"a": [(0, 100)]}), Directory(tmp_path), first={("a", 0): 100})
    again = load(MadeUp({"a": [(0, 100)]}), Directory(tmp_path), first={("a", 0): 100})
    (made,) = load(MadeUp({"a": [(0, 120)]}), Directory(tmp_path))

    assert (first.rows, first.ends) == (0, {"a": {0: 100}})
    assert again == []
    assert [(one.start, one.end) for one in made.ranges] == [(100, 120)]


def test_where_to_begin_is_kept_of_partitions_that_limits_left_out(tmp_path: Path) -> None:
    source = MadeUp({"a": [(0, 100), (0, 40)]})

    (first,) = load(source, Directory(tmp_path), first={("a", 0): 90, ("a", 1): 30}, records_max=1)
    (made,) = load(source, Directory(tmp_path))

    assert first.rows == 1
    assert first.rows + made.rows == 10 + 10


def test_skipped_offsets_are_counted_in_the_log_also_once_commits_have_expired(
    tmp_path: Path,
) -> None:
    load(MadeUp.of({"a": [100, 10], "b": [5]}), Directory(tmp_path))
    load(MadeUp({"a": [(150, 300), (10, 10)], "b": [(0, 5)]}), Directory(tmp_path), allow_loss=True)
    load(MadeUp({"a": [(400, 500), (12, 20)], "b": [(0, 5)]}), Directory(tmp_path), allow_loss=True)
    log = Directory(tmp_path).log
    found = log.state().skipped

    log.expire(1 << 60)

    assert found == {"a": {0: 150, 1: 2}}
    assert log.state().skipped == found
    text = json.loads(log.state().to_json())
    del text["skipped"]
    assert CommitState.from_json(json.dumps(text)).skipped == {}, "a sum that was written before"


def test_rewind_replaces_whole_files_from_the_offset_on(tmp_path: Path) -> None:
    source = MadeUp.of({"a": [400]})
    load(source, Directory(tmp_path), records_max=200)
    load(source, Directory(tmp_path))
    before = {path.name for path in tmp_path.glob("data/**/*.parquet")}

    job = Load(source, Directory(tmp_path), InlineRunner(), LoadSettings(load="test"))
    made = job.rewind({("a", 0): 250})

    after = {path.name for path in tmp_path.glob("data/**/*.parquet")}
    assert made is not None and made.kind == RELOAD
    assert made.ranges[0].start == 200  # where the file that holds 250 begins
    assert {name for name in before if "-00000000000000000000-" in name} == before & after
    assert rows_in(tmp_path) == expected(source)
    assert len(Directory(tmp_path).log.state().files) == len(after)


@pytest.mark.parametrize("log", [(100, 500), (0, 300)])
def test_rewind_to_what_the_broker_has_lost_keeps_what_is_loaded(
    tmp_path: Path, log: tuple[int, int]
) -> None:
    """Even with allow_loss: that is for records that exist nowhere any more."""
    load(MadeUp.of({"a": [400]}), Directory(tmp_path))
    source = MadeUp({"a": [log]})
    settings = LoadSettings(load="test", allow_loss=True)
    job = Load(source, Directory(tmp_path), InlineRunner(), settings)

    with pytest.raises(DataLossError, match=f"0 to 400, but the broker has {log[0]} to {log[1]}"):
        job.rewind({("a", 0): 250})

    assert rows_in(tmp_path) == expected(MadeUp.of({"a": [400]}))
    assert [one.kind for one in Directory(tmp_path).log.after(0)] == [LOAD]


OLD = MadeUp.of({"a": [300, 20]}, {"a": "old"})
NEW = MadeUp.of({"a": [400]}, {"a": "new"})


def test_rewind_to_before_all_that_was_ever_loaded_begins_with_what_there_is(
    tmp_path: Path,
) -> None:
    """Retention had deleted the beginning before the first load, so there is nothing to lose. The
    command asks for offset 0 for partitions that a commit did not have yet (--from-commit).
    """
    source = MadeUp({"a": [(150, 300)]})
    load(source, Directory(tmp_path))

    job = Load(source, Directory(tmp_path), InlineRunner(), LoadSettings(load="test"))
    made = job.rewind({("a", 0): 0})

    assert made is not None and made.kind == RELOAD and made.rows == 150
    assert rows_in(tmp_path) == expected(source)


def test_topic_recreated_is_refused_however_long_it_is(tmp_path: Path) -> None:
    load(OLD, Directory(tmp_path))

    with pytest.raises(
        DataLossError, match=r"a partition 0: loaded up to offset 300, .* has 0 to 400"
    ):
        load(NEW, Directory(tmp_path))

    assert rows_in(tmp_path) == expected(OLD)


def test_topic_recreated_without_a_partition_that_is_loaded_is_refused(tmp_path: Path) -> None:
    """Even if it lacks all of them: records written to those since are lost."""
    load(MadeUp({"a": [(0, 0), (0, 30)]}, ids={"a": "old"}), Directory(tmp_path))
    made = MadeUp.of({"a": [20]}, ids={"a": "new"})
    steps: list[Step] = []

    with pytest.raises(
        DataLossError, match="a partition 1: loaded up to offset 30, then the topic"
    ):
        load(made, Directory(tmp_path))
    settings = LoadSettings(load="test", allow_loss=True)
    Load(made, Directory(tmp_path), InlineRunner(), settings, report=steps.append).catch_up()

    assert [one.lost[0].partition(":")[0] for one in steps] == ["a partition 1"]
    assert Directory(tmp_path).log.state().ends == {"a": {0: 20}}


def test_loss_that_is_allowed_is_kept_also_when_nothing_is_loaded_then(tmp_path: Path) -> None:
    """A later run does not report it again, and needs no permission."""
    load(OLD, Directory(tmp_path))

    load(MadeUp.of({"a": [0]}, ids=NEW.ids), Directory(tmp_path), allow_loss=True)
    load(NEW, Directory(tmp_path))

    assert rows_in(tmp_path) == expected(OLD) + expected(NEW)


def test_topic_recreated_is_loaded_beside_the_old_one_where_loss_is_allowed(
    tmp_path: Path,
) -> None:
    """In several commits: a partition missing in the first of them starts over as well."""
    load(OLD, Directory(tmp_path))

    load(NEW, Directory(tmp_path), allow_loss=True, records_max=10)
    load(NEW, Directory(tmp_path))

    destination = Directory(tmp_path)
    assert rows_in(tmp_path) == expected(OLD) + expected(NEW)
    assert destination.log.state().ends == {"a": {0: 400}}
    assert list(verify(destination)) == []
    compact(destination, "test", InlineRunner(), file_bytes=1 << 30)
    assert rows_in(tmp_path) == expected(OLD) + expected(NEW)
    assert list(verify(destination)) == []
    shutil.rmtree(tmp_path / "_kbroker")
    recover(destination, "test")
    assert destination.log.state().ends == {"a": {0: 400}}
    assert load(NEW, destination) == []


def test_rewind_of_a_topic_recreated_replaces_nothing_of_the_old_one(tmp_path: Path) -> None:
    load(OLD, Directory(tmp_path))
    settings = LoadSettings(load="test", allow_loss=True)
    job = Load(NEW, Directory(tmp_path), InlineRunner(), settings)
    with pytest.raises(DataLossError, match="the topic has been deleted and recreated"):
        job.rewind({("a", 0): 0})
    job.catch_up()

    made = job.rewind({("a", 0): 0})

    assert made is not None and made.rows == 400
    assert rows_in(tmp_path) == expected(OLD) + expected(NEW)


def test_topics_of_brokers_without_ids_are_told_by_their_offsets(tmp_path: Path) -> None:
    load(MadeUp.of({"a": [300]}), Directory(tmp_path))

    load(MadeUp.of({"a": [400]}, {"a": "x"}), Directory(tmp_path))
    load(MadeUp.of({"a": [500]}), Directory(tmp_path))
    with pytest.raises(DataLossError, match="offset 500 is requested, but the broker has 0 to 90"):
        load(MadeUp.of({"a": [90]}), Directory(tmp_path))

    assert rows_in(tmp_path) == expected(MadeUp.of({"a": [500]}))


def test_data_without_a_log_is_not_loaded_again(tmp_path: Path) -> None:
    source = MadeUp.of({"a": [300]})
    load(source, Directory(tmp_path))
    shutil.rmtree(tmp_path / "_kbroker")

    with pytest.raises(LoadError, match=r"has data files but no log of commits.* recover"):
        load(source, Directory(tmp_path))

    assert rows_in(tmp_path) == expected(source)


@pytest.mark.parametrize("is_late", [False, True])
def test_run_that_another_overtook_commits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    """The first run has staged its files when the second recovers: it must fail, even later, when
    it has synced them and reads their columns.
    """
    source = MadeUp.of({"a": [300]})
    slow = Directory(tmp_path)
    if is_late:
        monkeypatch.setattr(directory, "sync_directory", lambda path: None)
    slow.prepare()

    class Overtaken(InlineRunner):
        def run(self, tasks, work, label):  # type: ignore[no-untyped-def]
            answers = super().run(tasks, work, label)
            load(source, Directory(tmp_path))
            return answers

    with pytest.raises(LostRaceError):
        Load(source, slow, Overtaken(), LoadSettings(load="test")).catch_up()

    assert [one.kind for one in Directory(tmp_path).log.after(0)] == [OPEN, LOAD]
    assert rows_in(tmp_path) == expected(source)


def test_folders_deleted_by_hand_do_not_stop_a_load(tmp_path: Path) -> None:
    """As when old data is removed from a lake. An unpublished commit must still find its files."""
    load(MadeUp.of({"a": [500]}), Directory(tmp_path))
    shutil.rmtree(tmp_path / "data")

    load(MadeUp.of({"a": [600]}), Directory(tmp_path))

    assert len(rows_in(tmp_path)) == 100
    assert compact(Directory(tmp_path), "test", InlineRunner(), file_bytes=1) is None
    shutil.rmtree(tmp_path / "data")
    (tmp_path / "_kbroker/published").unlink()
    with pytest.raises(LoadError, match="is missing: commit"):
        load(MadeUp.of({"a": [600]}), Directory(tmp_path))


def test_log_recreated_does_not_take_its_commits_for_published(tmp_path: Path) -> None:
    """Numbers start again; the publications of an old log are irrelevant to them."""
    load(MadeUp.of({"a": [100]}), Directory(tmp_path))
    load(MadeUp.of({"a": [200]}), Directory(tmp_path))
    for kept in ("commits", "checkpoint"):
        shutil.rmtree(tmp_path / "_kbroker" / kept, ignore_errors=True)
    recover(Directory(tmp_path), "test")

    class Stops(Directory):
        def publish(self, commit):  # type: ignore[no-untyped-def]
            raise LoadError("killed")

    with pytest.raises(LoadError, match="killed"):
        load(MadeUp.of({"a": [300]}), Stops(tmp_path))
    load(MadeUp.of({"a": [300]}), Directory(tmp_path))

    assert rows_in(tmp_path) == expected(MadeUp.of({"a": [300]}))


def test_lock_refuses_a_second_run_and_names_the_first(tmp_path: Path) -> None:
    first, second = Directory(tmp_path), Directory(tmp_path)
    first.prepare()

    with (
        first.locked(),
        pytest.raises(BusyError, match=f"process {os.getpid()}"),
        second.locked(),
    ):
        pass
