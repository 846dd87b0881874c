"""The owner of a log checks in the background what it has not written itself."""

from pathlib import Path

import pytest
from support.storage.log_store import NOW_MS, LogStore, append, batch, small

from kbroker.storage.background import BackgroundDisk
from kbroker.storage.manager import log_check
from kbroker.storage.manager.log_check import RATE_KEY

pytestmark = pytest.mark.unit

BATCHES = 5
SIZE = len(batch())


@pytest.fixture
def store(tmp_path):
    store = LogStore(tmp_path)
    store.config[RATE_KEY] = 10 * SIZE
    yield store
    store.stop(clean=False)


def stopped_and_started(store: LogStore, *, clean: bool = True, **config):
    """A log of one batch in each segment, opened again after a stop."""
    log = store.open(**small(**config))
    for _ in range(BATCHES):
        append(log, batch())
    store.stop(clean=clean)
    return lambda: (store.start(clean=clean), store.open(**small(**config)))[1]


class Threaded(LogStore):
    """With an io worker's thread."""

    def make_background(self) -> BackgroundDisk:
        return BackgroundDisk()


def tick(store: LogStore, count: int = 1) -> None:
    for _ in range(count):
        store.clock.advance(100)
        store.manager.tick()


def spoil(store: LogStore, base: int, at: int = -1) -> Path:
    path = store.path(f"{base:020}.log")
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(bytes(data))
    return path


def test_log_that_was_recovered_or_written_is_checked(store):
    log = stopped_and_started(store, clean=False)()

    assert log.appender.checked_from == (0, 0) == store.slot()["checked_from"]
    assert store.slot()["gapless"]


def test_log_of_a_clean_stop_is_checked_from_the_newest_segment_on(store):
    log = stopped_and_started(store)()
    assert store.slot()["checked_from"] == (BATCHES - 1, SIZE)
    places = []

    for _ in range(20):
        tick(store)
        if log.appender.checked_from not in places:
            places.append(log.appender.checked_from)

    assert places == [(base, 0) for base in range(BATCHES - 1, -1, -1)]
    assert store.slot()["checked_from"] == (0, 0)


def test_rate_of_zero_checks_nothing(store):
    open_again = stopped_and_started(store)
    store.config[RATE_KEY] = 0
    log = open_again()

    tick(store, 100)

    assert log.appender.checked_from == (BATCHES - 1, SIZE)


def test_damaged_segment_is_said_once_and_holds_the_place(store, caplog):
    open_again = stopped_and_started(store)
    path = spoil(store, 2)
    also = spoil(store, 1)
    log = open_again()

    tick(store, 50)
    store.manager.check.damage_found(log, 2, 0, "a reader met it, too")

    assert log.appender.checked_from == (3, 0)
    assert store.manager.check.damaged_count == 2
    lines = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    assert len(lines) == 2 and str(path) in lines[0] and str(also) in lines[1]
    assert "checksum" in lines[0]


def test_damage_that_is_deleted_counts_no_more(store):
    open_again = stopped_and_started(store)
    spoil(store, 1)
    log = open_again()
    tick(store, 50)
    assert store.manager.check.damaged_count == 1

    log.delete_records(3)

    assert store.manager.check.damaged_count == 0


def test_segment_that_is_missing_or_short_is_said(store, caplog):
    open_again = stopped_and_started(store)
    store.path(f"{2:020}.log").unlink()
    open_again()

    tick(store, 50)

    assert store.manager.check.damaged_count == 1
    assert "ends at offset 2, but the next segment begins at 3" in caplog.text


def test_log_that_was_compacted_may_have_gaps(store):
    open_again = stopped_and_started(store, **{"cleanup.policy": ("compact",)})
    store.path(f"{2:020}.log").unlink()
    log = open_again()

    tick(store, 50)

    assert not store.slot()["gapless"]
    assert store.manager.check.damaged_count == 0 and log.appender.checked_from == (0, 0)


def test_log_that_is_cut_is_checked_up_to_there_at_most(store):
    log = stopped_and_started(store)()

    log.truncate_to(2, NOW_MS)

    assert log.appender.checked_from <= (2, 0)


def test_log_that_is_closed_meanwhile_is_left(store):
    log = stopped_and_started(store)()
    store.manager.remove_partitions([log.slot])

    tick(store, 5)

    assert store.manager.check.damaged_count == 0


def test_segment_that_is_appended_to_and_sealed_meanwhile_is_no_damage(store):
    """The check ends where the owner began to write."""
    config = {"segment.bytes": 3 * SIZE}
    log = store.open(**config)
    for _ in range(4):
        append(log, batch())
    store.stop(clean=True)
    store.start(clean=True)
    log = store.open(**config)
    for _ in range(4):
        append(log, batch())
    assert len(log.segments) == 3

    tick(store, 50)

    assert store.manager.check.damaged_count == 0
    assert log.appender.checked_from == (0, 0) == store.slot()["checked_from"]


def test_zeros_behind_the_last_batch_of_a_sealed_segment_are_left_to_readers(store):
    open_again = stopped_and_started(store)
    with store.path(f"{2:020}.log").open("ab") as file:
        file.write(bytes(100))
    log = open_again()

    tick(store, 50)

    assert store.manager.check.damaged_count == 0
    assert log.appender.checked_from == (3, 0)


def test_segment_with_the_batches_of_another_is_said(store):
    open_again = stopped_and_started(store)
    one, other = store.path(f"{1:020}.log"), store.path(f"{2:020}.log")
    one.write_bytes(other.read_bytes())
    open_again()

    tick(store, 50)

    assert store.manager.check.damaged_count == 1


def test_stop_in_the_middle_of_a_check_is_a_clean_one(tmp_path):
    store = Threaded(tmp_path)
    store.config[RATE_KEY] = 100 * SIZE
    log = store.open()
    append(log, batch())
    store.stop(clean=True)
    store.start(clean=True)
    store.open()
    tick(store)

    assert store.manager.close(clean=True)


def test_disk_that_fails_during_a_check_is_told_by_its_readers(store, monkeypatch):
    log = stopped_and_started(store)()

    def failing(path):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(log_check, "read_if_present", failing)
    tick(store, 50)

    assert store.manager.check.damaged_count == 0
    assert log.appender.checked_from == (BATCHES - 1, 0)
