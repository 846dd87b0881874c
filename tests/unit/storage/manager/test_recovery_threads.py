"""Logs recovered in parallel equal those recovered one after another."""

import shutil
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.storage.kraft_dirs import all_files
from support.storage.log_store import TOPIC_ID, LogStore, append, batch, sent, topic_config

from kbroker._ext.shared.partition_table import OFFLINE, ONLINE
from kbroker.storage.manager import recovery_threads
from kbroker.storage.manager.recovery_threads import OpenRequest, threads_per_dir

pytestmark = pytest.mark.unit

LOGS = 8
BATCHES = 20
# How many are recovered at once.
AT_ONCE = pytest.mark.parametrize("threads", [1, 4])


def request(number, **config):
    return OpenRequest("t", TOPIC_ID, number, number, 1, 0, topic_config(**config))


def open_all(store):
    requests = [request(number, segment_bytes=600) for number in range(LOGS)]
    with store.manager.opening.recovering(requests):
        return [store.manager.open_partition(entry) for entry in requests]


def restarted(store, threads):
    """Killed, and started again with that config."""
    store.stop(clean=False)
    store.config["num.recovery.threads.per.data.dir"] = threads
    store.start()


@pytest.fixture
def store(tmp_path):
    """Eight logs of several segments, each with different content; a torn end in three."""
    store = LogStore(tmp_path)
    for number, log in enumerate(open_all(store)):
        for _ in range(BATCHES - 1):
            append(log, batch(1 + number))
        append(log, sent(1000 + number, 0))
    store.manager.tick()
    return store


def tear(store, number):
    newest = max(store.path(partition=number).glob("*.log"))
    newest.write_bytes(newest.read_bytes()[:-1])


def state_of(log):
    producers = sorted(log.appender.producers.entries)
    return log.log_end_offset, log.log_start_offset, log.recovery_point, producers


def let_loads_meet(monkeypatch, count):
    """Each load waits until this many are in progress: with fewer at once none would ever
    return.
    """
    together = threading.Barrier(count, timeout=60)
    load = recovery_threads.load_log

    def load_together(*arguments):
        together.wait()
        return load(*arguments)

    monkeypatch.setattr(recovery_threads, "load_log", load_together)


@contextmanager
def no_threads(monkeypatch):
    def reject(*_arguments):
        raise AssertionError("a thread was about to be started")

    with monkeypatch.context() as patch:
        patch.setattr(recovery_threads, "ThreadPoolExecutor", reject)
        yield


@pytest.mark.parametrize(
    ("configured", "workers", "expected"), [(1, 1, 1), (1, 8, 1), (8, 8, 1), (8, 1, 8), (9, 4, 3)]
)
def test_io_workers_share_the_threads_of_a_directory(configured, workers, expected):
    assert threads_per_dir(configured, workers) == expected


def test_as_many_logs_are_recovered_at_once_as_the_setting_says(store, monkeypatch):
    let_loads_meet(monkeypatch, 4)
    restarted(store, 4)

    assert None not in open_all(store)
    assert not [one for one in threading.enumerate() if one.name.startswith("kb-recovery")]


def test_logs_come_out_as_they_do_one_after_another(store, tmp_path):
    """Ends, producers, every file; a torn end is truncated only in its own log."""
    torn = {0, 3, 7}
    for number in torn:
        tear(store, number)
    store.stop(clean=False)
    directory = Path(store.dirs[0])
    shutil.copytree(directory, tmp_path / "killed")
    found = {}
    for threads in (4, 1):
        shutil.rmtree(directory)
        shutil.copytree(tmp_path / "killed", directory)
        restarted(store, threads)
        states = [state_of(log) for log in open_all(store)]
        found[threads] = states, all_files(directory)

    assert found[1] == found[4]
    assert [end for end, *_ in found[4][0]] == [
        (BATCHES - 1) * (1 + number) + (number not in torn) for number in range(LOGS)
    ]


@AT_ONCE
def test_progress_is_told_for_each_log(store, threads):
    told = []
    restarted(store, threads)
    store.manager.opening._progress = lambda: told.append(threading.current_thread())

    open_all(store)

    assert len(told) >= LOGS
    assert (threading.main_thread() in told) == (threads == 1)


@AT_ONCE
def test_damaged_log_is_offline_alone(store, threads):
    log = store.manager.log(5)
    log.sync.begin().run(lambda: True)
    store.stop(clean=True)
    oldest = min(store.path(partition=5).glob("*.log"))
    data = bytearray(oldest.read_bytes())
    data[-1] ^= 1
    oldest.write_bytes(data[:-3])
    restarted(store, threads)

    opened = open_all(store)

    assert [number for number, log in enumerate(opened) if log is None] == [5]
    assert "damaged" in store.manager.offline_reason(5)
    assert store.path("quarantine.txt", partition=5).exists()
    assert store.slot(5)["state"] == OFFLINE
    assert {store.slot(number)["state"] for number in range(LOGS) if number != 5} == {ONLINE}
    assert not store.manager.dirs.failures()


@AT_ONCE
def test_log_that_cannot_be_read_takes_its_directory_along_and_no_other(
    tmp_path, monkeypatch, threads
):
    store = LogStore(tmp_path, dirs=2)
    for log in open_all(store):
        append(log, batch())
    bad = store.manager.log(2).log_dir
    in_bad = {number for number in range(LOGS) if store.manager.log(number).log_dir == bad}
    path = store.manager.log(2).path
    load = recovery_threads.load_log

    def load_or_fail(directory, options):
        if directory == path:
            raise OSError(5, "Input/output error")
        return load(directory, options)

    monkeypatch.setattr(recovery_threads, "load_log", load_or_fail)
    restarted(store, threads)

    opened = open_all(store)

    # Logs that were open already are known by their slots.
    online = {number for number in range(LOGS) if store.slot(number)["state"] == ONLINE}
    assert online == set(range(LOGS)) - in_bad
    assert {number for number, log in enumerate(opened) if log is None} == {
        number for number in in_bad if number >= 2
    }
    assert set(store.manager.dirs.failures()) == {bad}


def test_nothing_starts_a_thread_with_the_defaults_or_after_a_clean_stop(store, monkeypatch):
    with no_threads(monkeypatch):
        restarted(store, 1)
        assert None not in open_all(store)
        store.stop(clean=True)
        store.config["num.recovery.threads.per.data.dir"] = 4
        store.start(clean=True)
        assert None not in open_all(store)


def test_several_directories_are_recovered_at_once(tmp_path, monkeypatch):
    """With one thread each: they may be on separate disks."""
    store = LogStore(tmp_path, dirs=2)
    for log in open_all(store):
        append(log, batch())
    let_loads_meet(monkeypatch, 2)
    restarted(store, 1)

    assert None not in open_all(store)
