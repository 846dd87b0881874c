"""Leader epochs are written a moment after they have begun, and are not lost before that."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from support.storage.log_store import LogStore, append, batch, checkpoint

from kbroker._ext.shared.partition_table import LEADER
from kbroker.storage.manager.epoch_writes import DELAY_MS, FILES_AT_ONCE, SLICE_MS
from kbroker.storage.segments.leader_epochs import LeaderEpochs

pytestmark = pytest.mark.unit

NAME = "leader-epoch-checkpoint"


@pytest.fixture
def store(tmp_path: Path) -> LogStore:
    return LogStore(tmp_path, dirs=2, slots=64)


def lead(store: LogStore, count: int = 1, epoch: int = 5) -> None:
    """Begin a leader epoch in each of so many logs, after a record of epoch 0."""
    for number in range(count):
        log = store.open(partition=number, slot=number)
        append(log, batch())
        log.take_role(LEADER, epoch, 1)


def written(store: LogStore, count: int, epoch: int = 5) -> int:
    """The number of logs whose epoch is in their files."""
    found = 0
    for number in range(count):
        log = store.manager.log(number)
        assert log is not None
        found += f"\n{epoch} 1\n" in (Path(log.path) / NAME).read_text()
    return found


def test_epoch_is_written_after_a_moment_a_few_logs_at_a_time(store: LogStore) -> None:
    """A broker that comes to lead a thousand partitions does not wait for a thousand files."""
    count = FILES_AT_ONCE + 3
    lead(store, count)
    store.manager.tick()
    assert written(store, count) == 0
    assert [store.slot(n)["leader_epoch"] for n in range(count)] == [5] * count

    store.clock.advance(DELAY_MS)
    store.manager.tick()
    assert written(store, count) == FILES_AT_ONCE
    store.manager.tick()
    assert written(store, count) == count


def test_slow_disk_holds_up_the_loop_for_one_file(
    store: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    lead(store, 3)
    write = LeaderEpochs.write

    def slow(epochs: LeaderEpochs) -> None:
        store.clock.advance(SLICE_MS)
        write(epochs)

    monkeypatch.setattr(LeaderEpochs, "write", slow)
    store.clock.advance(DELAY_MS)

    for count in (1, 2, 3):
        store.manager.tick()
        assert written(store, 3) == count


def test_epoch_is_written_before_a_recovery_point(store: LogStore) -> None:
    """Recovery looks for epochs in the log only above the recovery point."""
    lead(store, 2)
    log = store.manager.log(0)
    assert log is not None
    append(log, batch())
    log.flush()

    store.manager.checkpoint()

    assert written(store, 2) == 2
    store.start_after_kill()
    assert store.open(leader_epoch=6).epochs.entries == [(0, 0), (5, 1), (6, 2)]


def test_recovery_points_that_are_due_wait_while_epochs_are_written_a_few_at_a_time(
    store: LogStore,
) -> None:
    """A broker that has come to lead a thousand partitions does not stop once a minute, either."""
    store.clock.advance(60_000)
    store.manager.tick()  # retention and the first checkpoints
    lead(store, FILES_AT_ONCE + 3)
    for number in range(FILES_AT_ONCE + 3):
        log = store.manager.log(number)
        assert log is not None
        log.flush()
    store.clock.advance(60_000)

    store.manager.tick()
    assert written(store, FILES_AT_ONCE + 3) == FILES_AT_ONCE
    assert "t 0 1\n" not in checkpoint(store)
    store.manager.tick()
    assert written(store, FILES_AT_ONCE + 3) == FILES_AT_ONCE + 3
    assert "t 0 1\n" in checkpoint(store)


def test_epoch_that_a_crash_kept_from_being_written_is_found_in_the_log(store: LogStore) -> None:
    lead(store)
    log = store.manager.log(0)
    assert log is not None
    append(log, batch())
    assert written(store, 1) == 0

    store.start_after_kill()

    assert store.open(leader_epoch=7).epochs.entries == [(0, 0), (5, 1), (7, 2)]


@pytest.mark.parametrize("records", [0, 1])
def test_epoch_is_written_by_a_clean_shutdown(store: LogStore, records: int) -> None:
    lead(store)
    log = store.manager.log(0)
    assert log is not None
    if records:
        append(log, batch())

    store.stop(clean=True)

    assert "\n5 1\n" in store.path(NAME).read_text()


def test_epoch_moves_with_its_log_to_another_directory(store: LogStore) -> None:
    lead(store)
    log = store.manager.log(0)
    assert log is not None
    elsewhere = next(path for path in store.dirs if path != log.log_dir)
    assert store.manager.moves.request(log.key, 0, elsewhere) == 0

    now_ms = store.clock.monotonic_ms()
    for turn in range(20):
        store.manager.moves.turn(now_ms + turn)

    assert log.log_dir == elsewhere
    assert log.epochs.entries == [(0, 0), (5, 1)]
    assert written(store, 1) == 1


def test_epoch_that_cannot_be_written_takes_its_directory_offline(
    store: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    lead(store)
    log = store.manager.log(0)
    assert log is not None

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr("kbroker.storage.segments.leader_epochs.replace_file", fail)
    store.clock.advance(DELAY_MS)
    store.manager.tick()

    assert store.manager.log(0) is None
    assert "broken" in str(store.manager.offline_reason(0))


def test_epoch_of_a_log_that_is_gone_is_not_written(store: LogStore) -> None:
    lead(store)
    store.manager.remove_partitions([0])

    store.clock.advance(DELAY_MS)
    store.manager.tick()

    assert not store.path(NAME).exists()
