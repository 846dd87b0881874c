"""Periodic work on logs: flushes, checkpoints, deletion; and removed partitions."""

import errno
import os
from pathlib import Path

import pytest
from support.storage.log_store import NOW_MS, TOPIC_ID, append, batch, checkpoint, small

from kbroker._ext.shared.partition_table import CLOSED, FREE
from kbroker.storage import checkpoint as checkpoint_module
from kbroker.storage import files
from kbroker.storage.dirs import log_dir as log_dir_module
from kbroker.storage.dirs.log_dir import LocalLogDir
from kbroker.storage.dirs.ownership import DirOwner
from kbroker.storage.formats import HIGH_WATERMARK_CHECKPOINT
from kbroker.storage.manager import checkpoint_writer

pytestmark = pytest.mark.unit


# ---- flushing ----


def test_tick_flushes_what_is_older_than_flush_ms(store):
    log = store.open(**{"flush.ms": 500})
    append(log, batch())

    store.clock.advance(499)
    store.manager.tick()
    assert log.recovery_point == 0
    assert store.manager.has_unflushed

    store.clock.advance(1)
    store.manager.tick()
    assert log.recovery_point == 1
    assert not store.manager.has_unflushed


def test_sealed_segment_is_synced_at_once(store):
    log = store.open(**small())
    append(log, batch())
    append(log, batch())

    assert log.recovery_point == 1


def test_checkpoint_is_written_at_its_interval_and_at_close(store):
    log = store.open()
    append(log, batch())
    store.clock.advance(60_000)
    store.manager.tick()
    assert checkpoint(store) == "0\n1\nt 0 1\n"

    append(log, batch())
    assert store.manager.close(clean=True)

    assert checkpoint(store) == "0\n1\nt 0 2\n"
    assert checkpoint(store, "replication-offset-checkpoint") == "0\n1\nt 0 2\n"
    assert checkpoint(store, "log-start-offset-checkpoint") == "0\n1\nt 0 0\n"
    assert store.slot()["state"] == CLOSED


def test_logs_are_looked_at_for_a_checkpoint_only_if_a_slot_was_published(store, monkeypatch):
    """An idle io worker has thousands, and the high watermarks are due every five seconds."""
    log = store.open()
    append(log, batch())
    looked = []
    monkeypatch.setitem(
        checkpoint_writer._VALUES,
        HIGH_WATERMARK_CHECKPOINT,
        lambda one: looked.append(one) or one.high_watermark,
    )

    def wait():
        looked.clear()
        for _ in range(20):
            store.clock.advance(5_000)
            store.manager.tick()

    wait()
    assert looked == [log]
    assert checkpoint(store, HIGH_WATERMARK_CHECKPOINT) == "0\n1\nt 0 1\n"
    wait()
    assert looked == []

    append(log, batch())
    wait()
    assert looked == [log]
    assert checkpoint(store, HIGH_WATERMARK_CHECKPOINT) == "0\n1\nt 0 2\n"


def test_checkpoint_keeps_the_line_of_a_partition_that_another_worker_has_now(tmp_path):
    key, name = ("t", 0), "recovery-point-offset-checkpoint"
    first, second = LocalLogDir(0, str(tmp_path)), LocalLogDir(0, str(tmp_path))
    first.create(key, DirOwner(bytes(16)))
    first.set_deleted_aside([key])
    second.create(key, DirOwner(TOPIC_ID))
    second.write_checkpoint(name, {key: 7})

    first.write_checkpoint(name, {("other", 0): 1})

    assert (second.line(name, key), second.line(name, ("other", 0))) == (7, 1)
    first.close()
    second.close()


def test_checkpoint_keeps_lines_of_other_workers(store):
    path = Path(store.dirs[0]) / "recovery-point-offset-checkpoint"
    path.write_text("0\n2\nother 3 77\nt 0 5\n")
    log = store.open()
    append(log, batch())

    store.manager.close(clean=True)

    assert sorted(path.read_text().splitlines()[2:]) == ["other 3 77", "t 0 1"]


# ---- deletion ----


def test_deleted_segment_stays_readable_for_the_delay(store):
    log = store.open(**small(**{"file.delete.delay.ms": 1000}))
    for _ in range(3):
        append(log, batch())
    reader = os.open(store.path("0" * 20 + ".log"), os.O_RDONLY)

    log.delete_records(2)

    assert len(os.pread(reader, 1000, 0)) == len(batch())
    os.close(reader)
    assert store.path("0" * 20 + ".log.deleted").exists()
    store.clock.advance(1000)
    store.manager.tick()
    assert not list(store.path().glob("*.deleted"))
    assert sorted(p.name for p in store.path().glob("*.log")) == ["00000000000000000002.log"]


def test_delete_records_raises_the_start_and_survives_a_restart(store):
    log = store.open()
    append(log, batch(5))

    assert log.delete_records(3) == 3
    assert log.delete_records(1) == 3
    assert log.delete_records(99) == 5
    store.manager.tick()
    log = store.restart(clean=False)

    assert log.log_start_offset == 5


# ---- partitions and directories ----


def test_removed_partition_is_set_aside_and_deleted_later(store):
    log = store.open(**{"file.delete.delay.ms": 1000})
    append(log, batch())

    store.manager.remove_partitions([0])

    assert (store.slot()["state"], store.slot()["slot_incarnation"]) == (FREE, 1)
    assert store.manager.log(0) is None
    assert not store.path().exists()
    (doomed,) = Path(store.dirs[0]).glob("t-0.*-delete")
    store.clock.advance(1000)
    store.manager.tick()
    assert not doomed.exists()


def test_removed_partition_that_is_kept_becomes_a_stray_with_its_records(store, caplog):
    """Whoever has it now, nobody has said that these records may go; an empty log may."""
    append(store.open("t", 0, slot=0), batch())
    store.open("t", 1, slot=1)
    store.manager.checkpoint()

    store.manager.remove_partitions([0, 1], kept=[0, 1])

    assert (store.slot()["state"], store.manager.log(0)) == (FREE, None)
    assert list(Path(store.dirs[0]).glob("t-1.*-delete"))
    (stray,) = Path(store.dirs[0]).glob("t-*-stray")
    assert stray.name.startswith("t-0.") and not store.path().exists()
    assert (stray / f"{0:020}.log").stat().st_size == len(batch())
    assert str(stray) in caplog.text
    assert "t 0 " not in checkpoint(store, "replication-offset-checkpoint")
    assert store.open("t", 0, slot=2).log_end_offset == 0
    store.clock.advance(600_000)
    store.manager.tick()
    assert stray.exists()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_partition_that_cannot_be_renamed_is_not_removed(store, monkeypatch, caplog, error):
    """A full disk fails nothing else; a failing one goes offline."""
    log = store.open()
    append(log, batch())

    def fail(path, key):
        raise OSError(error, os.strerror(error), path)

    monkeypatch.setattr(log_dir_module, "rename_to_stray", fail)
    store.manager.remove_partitions([0], kept=[0])

    assert (store.path() / f"{0:020}.log").stat().st_size == len(batch())
    assert store.manager.log(0) is None
    assert f"cannot set aside {log.path}" in caplog.text
    assert (store.manager.dirs.at(store.dirs[0]).error is None) == (error == errno.ENOSPC)


def test_deleted_partitions_cost_one_write_of_each_checkpoint(store, monkeypatch):
    """One for each partition blocked the io worker of thousands until it counted as stalled."""
    for partition in range(10):
        append(store.open("t", partition, slot=partition), batch())
    store.manager.checkpoint()
    assert "t 9 " in checkpoint(store, "replication-offset-checkpoint")
    written = []
    monkeypatch.setattr(
        checkpoint_module,
        "replace_file",
        lambda path, data: written.append(path) or files.replace_file(path, data),
    )

    store.manager.remove_partitions(range(9))

    assert written and len(written) == len(set(written)), written
    lines = checkpoint(store, "replication-offset-checkpoint").splitlines()
    assert [line.split()[:2] for line in lines[2:]] == [["t", "9"]]


def test_deleted_partition_is_remembered_until_no_checkpoint_can_name_it(store):
    """A worker that remembered each of them would grow with every topic ever created."""
    store.open("t", 0, slot=0)
    store.open("other", 0, slot=1)
    log_dir = store.manager.dirs.at(store.dirs[0])
    log_dir.given_up(("moved", 0))  # its lines are removed after its files
    store.manager.remove_partitions([0])
    assert log_dir.died(("t", 0))

    store.manager.checkpoint()
    store.manager.tick()

    assert not log_dir.died(("t", 0))
    assert log_dir.died(("moved", 0))


def test_interrupted_deletion_is_finished_by_the_next_start_after_the_delay(store):
    """If only io worker 0 was restarted, readers of another worker may still use the files."""
    store.open()
    store.manager.remove_partitions([0])
    store.stop(clean=True)

    store.start()
    store.clock.advance(59_999)
    store.manager.tick()
    assert list(Path(store.dirs[0]).glob("*-delete"))
    store.clock.advance(1)
    store.manager.tick()

    assert not list(Path(store.dirs[0]).glob("*-delete"))


def test_open_again_only_updates_epoch_and_configuration(store):
    log = store.open()
    append(log, batch())

    again = store.open(leader_epoch=4, **{"max.message.bytes": 10})

    assert again is log
    assert store.slot()["leader_epoch"] == 4
    assert log.epochs.entries == [(0, 0), (4, 1)]
    assert log.appender.append_batch(batch(), NOW_MS)[0] == 10


def test_describe_names_directories_logs_and_sizes(store):
    log = store.open()
    append(log, batch())

    (described,) = store.manager.describe()

    assert described["path"] == store.dirs[0]
    assert described["error"] is None
    assert described["logs"] == [{"topic": "t", "partition": 0, "size": len(batch())}]
    assert described["total_bytes"] > described["usable_bytes"] > 0


def test_high_watermark_is_published_at_its_batch(store):
    log = store.open(**small())
    for _ in range(3):
        append(log, batch())

    log.set_high_watermark(1)
    log.publish()

    slot = store.slot()
    assert slot["high_watermark"] == slot["last_stable"] == (1, 1, 0)
    assert slot["log_end"][0] == 3
    assert log.delete_records(3) == 1
