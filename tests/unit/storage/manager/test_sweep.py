"""What retention deletes, when, and at which cost."""

import os
from pathlib import Path

import pytest
from support.storage.log_store import (
    NOW_MS,
    LogStore,
    append,
    batch,
    end_transaction,
    sent,
    small,
    stored_values,
)

from kbroker.storage.log.log_lookup import list_offsets
from kbroker.storage.log.partition_log import PartitionLog
from kbroker.storage.manager import sweep as sweep_module
from kbroker.storage.manager.sweep import SLICE_MS

pytestmark = pytest.mark.unit

DAY_MS = 86_400_000
HOUR_MS = 3_600_000


def sweep(store, minutes=5):
    store.clock.advance(minutes * 60_000)
    return store.manager.tick()


def test_retention_by_time_goes_by_the_newest_record(store):
    log = store.open(**small(**{"retention.ms": HOUR_MS}))
    for age in (3 * HOUR_MS, 2 * HOUR_MS, 0, 5 * HOUR_MS):
        append(log, batch(timestamp=NOW_MS - age))

    changed = sweep(store)

    assert changed == [0]
    assert log.log_start_offset == 2  # the fourth is older, but the third before it is kept
    assert store.slot()["log_start_offset"] == 2


def test_retention_rolls_an_active_segment_that_is_due(store):
    log = store.open(**{"retention.ms": HOUR_MS})
    append(log, batch(timestamp=NOW_MS - 2 * HOUR_MS))

    sweep(store)

    assert log.log_start_offset == log.log_end_offset == 1
    assert [segment.base_offset for segment in log.segments] == [1]


def test_retention_of_a_whole_log_syncs_nothing_of_what_goes(store, monkeypatch):
    """It sealed and synced the segment first: five syncs for each of thousands of logs."""
    log = store.open(**{"retention.ms": HOUR_MS})
    append(log, sent(7, 0, timestamp=NOW_MS - 2 * HOUR_MS))
    end_transaction(log, 7, commit=True)
    log.flush()
    store.clock.advance(2 * HOUR_MS)
    calls = []
    for name in ("fdatasync", "fsync"):
        monkeypatch.setattr(os, name, lambda fd: calls.append(os.readlink(f"/proc/self/fd/{fd}")))

    sweep(store)

    assert log.log_start_offset == log.log_end_offset == 2
    assert [path for path in calls if "/t-0" in path] == []
    store.clock.advance(1000)
    store.manager.tick()
    assert str(store.path()) in calls  # the names, as after any other change
    assert log.recovery_point == 2
    log = store.restart(clean=False)
    assert (log.log_start_offset, log.log_end_offset) == (2, 2)
    assert [entry.producer_id for entry in log.producers()] == [7]
    append(log, batch())


def test_kill_in_the_middle_of_a_deletion_leaves_a_log_that_is_sound(store):
    """The removed segment is not sealed: its indexes have their allocated size."""
    log = store.open(**{"index.interval.bytes": 1})
    for step in range(5):
        append(log, batch(timestamp=NOW_MS + step))
    log.flush()
    store.manager.checkpoint()
    log.roll(NOW_MS, is_kept=False)

    log = store.restart(clean=False)

    assert [segment.base_offset for segment in log.segments] == [0, 5]
    assert [offset for offset, _ in stored_values(log)] == list(range(5))
    assert list_offsets(log, NOW_MS + 3)["offset"] == 3
    assert list_offsets(log, NOW_MS + 9)["offset"] == -1
    assert log.segments.locate(2)[1] == 2 * len(batch())
    assert log.recovery_point == 5
    log.delete_records(5)
    assert [segment.base_offset for segment in log.segments] == [5]


def test_start_that_retention_raised_is_found_again_without_the_checkpoint(tmp_path):
    """Its checkpoint is due later. In a sweep over many logs it was written for every few of
    them.
    """
    store = LogStore(tmp_path, **{"log.flush.start.offset.checkpoint.interval.ms": DAY_MS})
    log = store.open(**small(**{"retention.ms": HOUR_MS}))
    sweep(store)
    for age in (2 * HOUR_MS, 2 * HOUR_MS, 0):
        append(log, batch(timestamp=NOW_MS - age))

    sweep(store)

    assert log.log_start_offset == 2
    assert Path(store.dirs[0], "log-start-offset-checkpoint").read_text() == "0\n1\nt 0 0\n"
    assert store.restart(clean=False, **small()).log_start_offset == 2
    store.stop(clean=False)


def test_retention_continues_between_ticks(store, monkeypatch):
    """With one slice per tick, an idle broker deleted from 30 logs a second."""
    logs = [store.open("t", n, slot=n, **{"retention.ms": HOUR_MS}) for n in range(3)]
    for log in logs:
        append(log, batch(timestamp=NOW_MS - 2 * HOUR_MS))
    real = PartitionLog.delete_old_segments

    def takes_a_slice(*args):
        store.clock.advance(SLICE_MS)
        return real(*args)

    monkeypatch.setattr(PartitionLog, "delete_old_segments", takes_a_slice)
    assert store.manager.next_deadline_ms is None

    assert sweep(store) == [0]
    assert store.manager.turn() == []
    for slot in (1, 2):
        store.clock.advance(store.manager.next_deadline_ms - store.clock.monotonic_ms())
        assert store.manager.turn() == [slot]

    assert store.manager.next_deadline_ms is None
    assert [log.log_start_offset for log in logs] == [1, 1, 1]


def test_retention_keeps_a_segment_from_the_future(store):
    log = store.open(**small(**{"retention.ms": HOUR_MS}))
    for timestamp in (NOW_MS + 100 * DAY_MS, NOW_MS - 2 * HOUR_MS, NOW_MS):
        append(log, batch(timestamp=timestamp))

    sweep(store)

    assert log.log_start_offset == 0


def test_retention_by_size_keeps_at_least_the_limit(store):
    size = len(batch())
    log = store.open(**small(**{"retention.bytes": 2 * size + 1}))
    for _ in range(5):
        append(log, batch())

    sweep(store)

    assert log.segments.size == 3 * size
    assert log.log_start_offset == 2


@pytest.mark.parametrize("jump", [2 * HOUR_MS, -2 * HOUR_MS, 3650 * DAY_MS])
def test_retention_waits_an_interval_after_a_clock_jump(store, jump):
    log = store.open(**small(**{"retention.ms": HOUR_MS}))
    append(log, batch(timestamp=NOW_MS))
    append(log, batch(timestamp=NOW_MS))
    store.clock.jump(jump)

    sweep(store)
    assert log.log_start_offset == 0

    store.clock.jump(-jump)
    sweep(store)
    assert log.log_start_offset == 0

    sweep(store)
    assert log.log_start_offset == 0


def test_clock_that_jumps_while_logs_are_looked_at_deletes_nothing(store, monkeypatch):
    """Many logs take several turns; the trusted time counts for all of them."""
    monkeypatch.setattr(sweep_module, "SLICE_MS", 0)
    logs = [store.open("t", number, number, **{"retention.ms": HOUR_MS}) for number in range(3)]
    for log in logs:
        append(log, batch(timestamp=NOW_MS))
    append(logs[2], batch(timestamp=NOW_MS))
    sweep(store, minutes=5)
    for _ in logs:
        store.manager.tick()
    store.clock.advance(5 * 60_000)
    store.manager.tick()  # the first log's

    store.clock.jump(3650 * DAY_MS)
    for _ in logs:
        store.manager.tick()

    assert [log.log_start_offset for log in logs] == [0, 0, 0]


def test_retention_does_not_believe_the_clock_of_a_start_at_once(store):
    log = store.open(**small(**{"retention.ms": HOUR_MS}))
    append(log, batch(timestamp=NOW_MS))
    store.stop(clean=True)
    store.clock.jump(3650 * DAY_MS)
    store.start(clean=True)
    log = store.open(**small(**{"retention.ms": HOUR_MS}))

    sweep(store, minutes=1)
    store.clock.jump(-3650 * DAY_MS)
    for _ in range(3):
        sweep(store)

    assert log.log_start_offset == 0


def test_record_from_the_future_keeps_its_segment_and_those_behind_it(store):
    log = store.open(**small(**{"retention.ms": HOUR_MS}))
    for timestamp in (NOW_MS - DAY_MS, NOW_MS + 3650 * DAY_MS, NOW_MS - DAY_MS):
        append(log, batch(timestamp=timestamp))

    sweep(store)

    assert log.log_start_offset == 1


def test_clock_that_steps_back_all_the_time_deletes_nothing(store):
    log = store.open(**small(**{"retention.ms": HOUR_MS}))
    append(log, batch(timestamp=NOW_MS))
    for _ in range(60):
        store.clock.jump(-5_000)
        sweep(store, minutes=1)

    assert log.log_start_offset == 0


def test_retention_follows_a_clock_that_stays(store):
    log = store.open(**small(**{"retention.ms": HOUR_MS}))
    append(log, batch(timestamp=NOW_MS))
    store.clock.jump(2 * HOUR_MS)
    sweep(store)

    sweep(store)

    assert log.log_start_offset == 1


def test_compacted_topic_is_not_deleted_by_age(store):
    log = store.open(**small(**{"retention.ms": HOUR_MS, "cleanup.policy": ("compact",)}))
    for _ in range(3):
        append(log, batch(timestamp=NOW_MS - DAY_MS))

    sweep(store)

    assert log.log_start_offset == 0


def test_idle_producer_is_forgotten(store):
    log = store.open()
    append(log, batch(producer_id=4, producer_epoch=0, base_sequence=0))
    sweep(store)
    assert 4 in log.appender.producers.entries

    sweep(store, minutes=24 * 60)

    assert 4 not in log.appender.producers.entries


# ---- roles ----
