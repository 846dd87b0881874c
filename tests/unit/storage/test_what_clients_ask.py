"""Names, numbers and sizes from clients may be rejected: no log directory goes offline."""

import errno
import os
import resource
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.storage.log_store import LogStore, append, append_error, batch, small, stored_values

from kbroker._ext.shared.partition_table import OFFLINE
from kbroker.cluster.topic_names import NAME_LENGTH_MAX, PARTITIONS_MAX
from kbroker.errors import ErrorCode
from kbroker.storage.formats import FUTURE_DIR_SUFFIX, aside_dir_name, partition_dir_name

LAST_PARTITION = PARTITIONS_MAX - 1


@pytest.fixture
def store(tmp_path):
    store = LogStore(tmp_path)
    yield store
    store.stop(clean=False)


def fail_with(monkeypatch, name: str, code: int) -> None:
    def failing(*args, **kwargs):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, name, failing)


@contextmanager
def file_size_limit(size: int):
    """Files of this process cannot grow beyond this."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def names(store: LogStore, pattern: str) -> list[str]:
    return [path.name for path in Path(store.dirs[0]).glob(pattern)]


@pytest.mark.parametrize("length", [1, 213, 214, 248, NAME_LENGTH_MAX])
def test_deleted_topic_of_any_name_costs_no_log_directory(store, length):
    name = "n" * length
    store.open(name, LAST_PARTITION)

    store.manager.remove_partitions([0])

    assert store.manager.dirs.all_online
    (doomed,) = names(store, "*-delete")
    assert len(doomed) <= 255
    assert not names(store, partition_dir_name(name, LAST_PARTITION))


def test_directory_of_an_older_topic_of_the_longest_name_is_kept_aside(store):
    name = "n" * NAME_LENGTH_MAX
    append(store.open(name, LAST_PARTITION), batch([b"old"]))
    store.stop(clean=True)
    store.start(clean=True)

    log = store.open(name, LAST_PARTITION, topic_id=bytes(16))

    assert log.log_end_offset == 0
    (stray,) = names(store, "*-stray")
    assert (Path(store.dirs[0]) / stray / f"{0:020}.log").stat().st_size == len(batch([b"old"]))


def test_name_for_a_directory_aside_is_cut_only_when_it_must_be():
    assert aside_dir_name("t", 0, "-delete").startswith("t-0.")
    assert aside_dir_name("n" * 249, 7, FUTURE_DIR_SUFFIX).startswith("n" * 213 + "-7.")
    assert len(aside_dir_name("n" * 249, 7, FUTURE_DIR_SUFFIX)) == 255


@pytest.mark.parametrize("code", [errno.ENAMETOOLONG, errno.EMLINK, errno.EFBIG, errno.EDQUOT])
def test_partition_that_a_file_system_does_not_take_is_rejected_alone(store, monkeypatch, code):
    other = store.open("other", 0, 1)
    fail_with(monkeypatch, "mkdir", code)

    assert store.try_open() is None

    assert store.slot()["state"] == OFFLINE
    assert append(other, batch()) == 0


def test_partition_whose_name_a_file_has_is_rejected_alone(store):
    other = store.open("other", 0, 1)
    (Path(store.dirs[0]) / "t-0").write_text("no directory")

    assert store.try_open() is None

    assert append(other, batch()) == 0


def test_batch_above_the_limit_of_file_sizes_is_rejected_and_reading_continues(store):
    log = store.open()
    append(log, batch([b"v" * 3000]))

    with file_size_limit(4000):
        code, _ = append_error(log, batch([b"v" * 3000]))
        text = log.appender.error_text

    assert code == ErrorCode.KAFKA_STORAGE_ERROR and "ulimit -f" in text
    assert store.full_disks == [(0, store.dirs[0], errno.EFBIG)]
    assert len(stored_values(log)) == 1
    assert append(log, batch([b"v" * 3000])) == 1


def test_records_are_deleted_on_a_disk_too_full_for_a_new_name(store, monkeypatch):
    log = store.open(**small())
    for _ in range(3):
        append(log, batch())
    fail_with(monkeypatch, "rename", errno.ENOSPC)

    assert log.delete_records(2) == 2

    assert store.manager.dirs.all_online
    assert len(list(store.path().glob("*.log"))) == 1


def test_topic_is_deleted_on_a_disk_too_full_for_a_new_name(store, monkeypatch):
    append(store.open(), batch())
    store.manager.checkpoint()
    with monkeypatch.context() as full:
        fail_with(full, "rename", errno.ENOSPC)

        store.manager.remove_partitions([0])

    assert store.manager.dirs.all_online
    assert not store.path().exists()
    assert store.open(topic_id=bytes(16)).log_end_offset == 0
