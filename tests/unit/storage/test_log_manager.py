"""What time brings to logs: flushes, checkpoints, deletion; and where partitions go."""

import errno
import os
from pathlib import Path

import pytest
from doubles.log_store import NOW_MS, TOPIC_ID, LogStore, append, batch, small, stored_values

from kbroker._ext.partition_table import CLOSED, FREE
from kbroker.storage import checkpoint as checkpoint_module
from kbroker.storage import files
from kbroker.storage.background import BackgroundDisk
from kbroker.storage.checkpoint import OffsetCheckpoint, parse_checkpoint
from kbroker.storage.log_dir import LogDir
from kbroker.storage.log_lookup import end_offset_for_epoch, list_offsets, offsets_before

pytestmark = pytest.mark.unit


def checkpoint(store, name="recovery-point-offset-checkpoint"):
    return (Path(store.dirs[0]) / name).read_text()


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


def test_checkpoint_keeps_the_line_of_a_partition_that_another_worker_has_now(tmp_path):
    key, name = ("t", 0), "recovery-point-offset-checkpoint"
    first, second = LogDir(0, str(tmp_path)), LogDir(0, str(tmp_path))
    first.create(key, bytes(16))
    first.set_deleted_aside([key])
    second.create(key, TOPIC_ID)
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


def test_new_partition_goes_to_the_directory_with_the_fewest(tmp_path):
    store = LogStore(tmp_path, dirs=2)
    os.makedirs(Path(store.dirs[0]) / "x-0")
    os.makedirs(Path(store.dirs[0]) / "x-1")
    store.start()
    for number in range(2):
        store.open("x", number, slot=8 + number)

    found = [store.open("t", i, slot=i).log_dir for i in range(4)]

    assert found == [store.dirs[1], store.dirs[1], store.dirs[0], store.dirs[1]]
    store.stop(clean=True)


def test_partition_is_found_in_the_directory_that_has_it(tmp_path):
    store = LogStore(tmp_path, dirs=3)
    places = {i: store.open("t", i, slot=i).log_dir for i in range(3)}
    store.stop(clean=True)

    store.start(clean=True)

    assert {i: store.open("t", i, slot=i).log_dir for i in range(3)} == places
    store.stop(clean=True)


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


def test_deleted_partitions_cost_one_write_of_each_checkpoint(store, monkeypatch):
    """One for each partition held up the io worker of thousands until it was taken for stuck."""
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


def test_deleted_partition_is_remembered_until_no_checkpoint_can_speak_of_it(store):
    """A worker that remembers each grows with every topic that was ever made."""
    store.open("t", 0, slot=0)
    store.open("other", 0, slot=1)
    log_dir = store.manager.dirs.at(store.dirs[0])
    log_dir.given_up(("moved", 0))  # its lines go once its files have gone
    store.manager.remove_partitions([0])
    assert log_dir.died(("t", 0))

    store.manager.checkpoint()
    store.manager.tick()

    assert not log_dir.died(("t", 0))
    assert log_dir.died(("moved", 0))


def test_recreated_partitions_do_not_read_every_line_of_the_others(store, monkeypatch):
    """A topic of thousands of partitions, deleted and made again, cost the square of them."""
    for partition in range(10):
        append(store.open("t", partition, slot=partition), batch())
    append(store.open("other", 0, slot=10), batch())
    store.manager.checkpoint()
    store.manager.remove_partitions(range(10))
    assert checkpoint(store) == "0\n1\nother 0 0\n"
    parsed = []
    monkeypatch.setattr(
        checkpoint_module,
        "parse_checkpoint",
        lambda data, path: parsed.append(path) or parse_checkpoint(data, path),
    )

    for partition in range(10):
        store.open("t", partition, slot=partition)

    assert parsed == []
    OffsetCheckpoint(store.dirs[0], "recovery-point-offset-checkpoint").merge({}, [("other", 0)])
    assert checkpoint(store) == "0\n0\n"


def test_recreated_partition_does_not_inherit_a_recovery_point(store):
    log = store.open()
    append(log, batch(5))
    log.flush()
    store.manager.checkpoint()
    store.manager.remove_partitions([0])
    store.open(topic_id=bytes(16))

    log = store.restart(clean=False, topic_id=bytes(16))

    assert log.log_end_offset == 0


def test_interrupted_deletion_is_finished_by_the_next_start_after_the_delay(store):
    """If only io worker 0 was started again, another worker's readers may be at the files."""
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


def test_directory_of_another_topic_id_is_kept_aside(store):
    log = store.open()
    append(log, batch([b"old"]))
    store.stop(clean=True)
    store.start(clean=True)

    log = store.open(topic_id=bytes(16))

    assert log.log_end_offset == 0
    (stray,) = Path(store.dirs[0]).glob("t-0.*-stray")
    assert (stray / ("0" * 20 + ".log")).stat().st_size == len(batch([b"old"]))


def test_directory_without_a_topic_id_is_not_that_of_a_new_topic(tmp_path):
    """Of a broker before 2.8, and a topic that its metadata did not know: kbroker-adopt says that
    it is not served.
    """
    store = LogStore(tmp_path)
    log = store.open()
    append(log, batch([b"old"]))
    store.stop(clean=True)
    store.path("partition.metadata").unlink()
    store.start(clean=True)

    log = store.open(topic_id=bytes(16))

    assert stored_values(log) == []
    (stray,) = Path(store.dirs[0]).glob("t-0.*-stray")
    assert (stray / f"{0:020}.log").stat().st_size > 0
    store.stop(clean=True)


def test_directory_without_a_topic_id_is_adopted(store):
    log = store.open()
    append(log, batch([b"old"]))
    store.stop(clean=True)
    store.path("partition.metadata").unlink()
    store.start(clean=True)

    log = store.open(is_new=False)

    assert stored_values(log) == [(0, b"old")]
    assert store.path("partition.metadata").exists()


@pytest.mark.parametrize("left", [b"", bytes(43), b"version: 0\ntopic_id: AAEC"])
def test_new_partition_whose_id_a_power_cut_has_torn_keeps_its_records(store, left):
    """The file is not synced; its records may be, before it is known that it was ever opened."""
    append(store.open(), batch([b"kept"]))
    store.stop(clean=False)
    store.path("partition.metadata").write_bytes(left)
    store.start()

    assert stored_values(store.open(is_new=True)) == [(0, b"kept")]


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


def test_end_offset_for_epoch_answers_from_the_epochs(store):
    log = store.open(leader_epoch=2)
    append(log, batch(3))
    log.set_leader_epoch(5)
    append(log, batch(2))

    assert end_offset_for_epoch(log, 2) == (2, 3)
    assert end_offset_for_epoch(log, 3) == (2, 3)
    assert end_offset_for_epoch(log, 5) == (5, 5)
    assert end_offset_for_epoch(log, 6) == (-1, -1)
    assert end_offset_for_epoch(log, 1) == (1, 0)


def test_list_offsets_finds_the_first_record_in_time(store):
    log = store.open(**small())
    for timestamp in (100, 300, 200, 300):
        append(log, batch(timestamp=timestamp))

    def find(timestamp):
        found = list_offsets(log, timestamp)
        return found["offset"], found["timestamp"]

    assert find(50) == (0, 100)
    assert find(101) == (1, 300)
    assert find(300) == (1, 300)
    assert find(301) == (-1, -1)
    assert find(-1) == (4, -1)
    assert find(-2) == (0, -1)
    assert find(-3) == (1, 300)
    log.delete_records(2)
    assert find(-2) == (2, -1)
    assert find(101) == (2, 200)


def test_list_offsets_looks_into_a_compressed_batch(store):
    from kbroker.record.builder import BatchBuilder

    log = store.open()
    builder = BatchBuilder(1)
    for timestamp in (10, 30, 20):
        builder.append(b"v", b"k", timestamp)
    append(log, builder.build())

    assert list_offsets(log, 15) == {"offset": 1, "timestamp": 30, "leader_epoch": 0}


def test_offsets_before_are_where_segments_begin(store):
    """ListOffsets 0 goes by the times of files: here 1, 2, 3 s; the active one 9 s."""
    log = store.open(**{"segment.bytes": 100})
    for _ in range(4):
        append(log, batch())
    for at, second in enumerate((1, 2, 3, 9)):
        os.utime(store.path(f"{at:020}.log"), (second, second))

    def before(timestamp, bound=4):
        return offsets_before(log, timestamp, bound, now_ms=10_000)

    assert before(-1) == before(10_000) == [4, 3, 2, 1, 0]
    assert before(9_999) == before(9_000) == [3, 2, 1, 0]
    assert before(8_999) == before(3_000) == [2, 1, 0]
    assert before(2_999) == [1, 0]
    assert before(999) == []
    # An older segment was touched later: what follows it decides.
    os.utime(store.path(f"{0:020}.log"), (8, 8))
    assert before(3_000) == [2, 1, 0]
    assert before(-1, bound=2) == [2, 1, 0]

    log.roll(NOW_MS)
    assert before(-1) == [4, 3, 2, 1, 0]
    log.delete_records(2)
    assert before(-1) == [4, 3, 2]


def test_topic_id_of_the_directory_is_kept(store):
    store.open()

    text = store.path("partition.metadata").read_text()

    assert text == "version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw"
    assert TOPIC_ID == bytes(range(16))


def test_clean_stop_of_untouched_logs_writes_and_syncs_nothing_of_them(store, monkeypatch):
    append(store.open("t", 0, slot=0), batch())
    store.open("t", 1, slot=1)
    store.stop(clean=True)
    store.start(clean=True)
    written, unwritten = store.open("t", 0, slot=0), store.open("t", 1, slot=1)
    before = {path: path.stat() for path in Path(store.dirs[0]).glob("t-*/*")}

    assert written.sync.seal() is None and unwritten.sync.seal() is None
    assert store.manager.close(clean=True)

    after = {path: path.stat() for path in Path(store.dirs[0]).glob("t-*/*")}
    same = {path: (s.st_ino, s.st_size, s.st_mtime_ns) for path, s in before.items()}
    assert {path: (s.st_ino, s.st_size, s.st_mtime_ns) for path, s in after.items()} == same
    store.start(clean=True)
    assert stored_values(store.open("t", 0, slot=0)) == [(0, b"v" * 10)]


def test_clean_stop_of_many_written_logs_leaves_what_a_clean_start_needs(tmp_path):
    store = LogStore(tmp_path, slots=40)
    for partition in range(40):
        append(store.open("t", partition, slot=partition), batch([b"%d" % partition]))

    assert store.manager.close(clean=True)

    store.start(clean=True)
    for partition in range(40):
        log = store.open("t", partition, slot=partition)
        assert log.recovery_point == 1
        assert stored_values(log) == [(0, b"%d" % partition)]
        assert store.path(f"{1:020d}.snapshot", partition=partition).exists()
    store.stop(clean=False)


def test_clean_stop_after_a_recovery_seals_the_log_again(store):
    append(store.open(), batch())
    log = store.restart(clean=False)

    job = log.sync.seal()

    assert job is not None and job.end_offset == 1
    log.close(job)
    assert store.path(f"{1:020d}.snapshot").exists()


# ---- a stop with many logs ----


@pytest.fixture
def many(tmp_path):
    made = LogStore(tmp_path, slots=20)
    for number in range(20):
        append(made.open("t", number, slot=number), batch())
    yield made
    made.stop(clean=False)


def count_calls(monkeypatch, name):
    calls = []
    real = getattr(os, name)
    monkeypatch.setattr(os, name, lambda fd: (calls.append(fd), real(fd))[1])
    return calls


def test_stop_of_many_logs_syncs_the_file_system_and_no_single_file(many, monkeypatch):
    calls = count_calls(monkeypatch, "fdatasync")
    monkeypatch.setattr(LogDir, "sync_everything", lambda self: True)

    assert many.manager.close(clean=True)

    assert calls == []
    assert "t 19 1\n" in checkpoint(many)
    assert not [p for p in many.path("", partition=3).iterdir() if p.stat().st_size > 4000]


def test_stop_of_any_number_of_logs_syncs_the_file_system_once(tmp_path, monkeypatch):
    store = LogStore(tmp_path, slots=600)
    for number in range(600):
        append(store.open("t", number, slot=number), batch())
    syncs = []
    monkeypatch.setattr(LogDir, "sync_everything", lambda self: not syncs.append(self.path))

    assert store.manager.close(clean=True)

    assert syncs == store.dirs


def test_stop_makes_no_file_in_logs_that_were_flushed(many, monkeypatch):
    for log in many.manager.logs():
        log.flush()
    made = []
    real = os.open

    def note(path, flags, *mode):
        if flags & os.O_CREAT and "/t-" in path:
            made.append(path)
        return real(path, flags, *mode)

    monkeypatch.setattr(os, "open", note)

    assert many.manager.close(clean=True)

    assert made == []
    for number in range(20):
        names = {path.name for path in many.path(partition=number).iterdir()}
        assert f"{1:020d}.snapshot" in names and not [n for n in names if n.endswith(".tmp")]
    many.start(clean=True)
    assert stored_values(many.open("t", 3, slot=3)) == [(0, b"v" * 10)]


def test_file_kept_for_a_stop_is_removed_by_a_start_after_a_kill(store):
    log = store.open()
    append(log, batch())
    log.flush()
    assert list(store.path().glob("*.tmp"))

    store.restart(clean=False)

    assert not list(store.path().glob("*.tmp"))


class Backlog(BackgroundDisk):
    """Runs its jobs when it is closed, as a slow disk does."""

    def __init__(self):
        super().__init__()
        self.waiting = []

    def submit(self, job, on_done):
        self.waiting.append((job, on_done))

    def close(self):
        for job, on_done in self.waiting:
            on_done(job(), None)


@pytest.mark.parametrize("clean", [True, False])
def test_clean_stop_does_not_wait_for_flushes_that_it_does_itself(tmp_path, monkeypatch, clean):
    monkeypatch.setattr(LogStore, "make_background", lambda self: Backlog())
    store = LogStore(tmp_path, slots=20)
    for number in range(20):
        append(store.open("t", number, slot=number), batch())
    for log in store.manager.logs():
        store.manager.on_sealed(log)
    monkeypatch.setattr(LogDir, "sync_everything", lambda self: True)
    calls = count_calls(monkeypatch, "fdatasync")

    assert store.manager.close(clean=clean) == clean

    assert len(calls) == (0 if clean else 20)
    if clean:
        assert "t 19 1\n" in checkpoint(store)


def test_stop_asks_each_file_where_the_kernel_does_not_tell_of_failures(many, monkeypatch):
    calls = count_calls(monkeypatch, "fdatasync")
    monkeypatch.setattr(LogDir, "sync_everything", lambda self: False)

    assert many.manager.close(clean=True)

    assert len(calls) == 20


def test_stop_whose_sync_fails_is_not_clean(many, monkeypatch):
    def fail(self):
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(LogDir, "sync_everything", fail)
    calls = count_calls(monkeypatch, "fdatasync")

    assert not many.manager.close(clean=True)

    assert calls == []
    assert many.manager.dirs._flags[0], "the supervisor marks other directories only"
    assert not (Path(many.dirs[0]) / "recovery-point-offset-checkpoint").exists()


def test_file_system_is_synced_and_a_wrong_descriptor_is_told(tmp_path):
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        assert files.sync_file_system(fd) == (files.linux_version() >= (5, 8))
    finally:
        os.close(fd)
    with pytest.raises(OSError):
        files.sync_file_system(-1)
