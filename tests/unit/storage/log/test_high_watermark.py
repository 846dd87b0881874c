"""The initial high watermark of a replica with others in the ISR, and the leader epochs in its
slot.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.storage.log_store import NOW_MS, LogStore, append, batch, checkpoint
from support.storage.message_sets import OldMessage, set_bytes

from kbroker._ext.record.record_batch import stamp_for_append
from kbroker._ext.shared.partition_table import FOLLOWER, LEADER, ONLINE
from kbroker.replication.fetched_run import append_fetched
from kbroker.storage.log.partition_log import PartitionLog

pytestmark = pytest.mark.unit

NAME = "replication-offset-checkpoint"
SHARED: dict[str, Any] = {"role": FOLLOWER, "is_alone": False, "leader_epoch": 3}


@pytest.fixture
def store(tmp_path: Path) -> LogStore:
    return LogStore(tmp_path)


def log_of_batches(store: LogStore, count: int = 4) -> PartitionLog:
    """Each has two records."""
    log = store.open()
    for _ in range(count):
        append(log, batch(2))
    return log


def reopened(store: LogStore, line: int | None, *, clean: bool = True, **more: Any) -> PartitionLog:
    """The log of a restarted broker whose checkpoint has that line."""
    store.stop(clean=clean)
    path = Path(store.dirs[0]) / NAME
    if line is None:
        path.unlink(missing_ok=True)
    else:
        path.write_text(f"0\n1\nt 0 {line}\n")
    store.start(clean=clean)
    return store.open(**SHARED, **more)


@pytest.mark.parametrize(
    ("line", "begins"),
    [(4, 4), (8, 8), (99, 8), (0, 0), (None, 0), (5, 4)],
    ids=["known", "the end", "beyond the end", "nothing", "no file", "within a batch"],
)
def test_replica_that_is_not_alone_begins_at_what_is_known_to_be_committed(
    store: LogStore, line: int | None, begins: int
) -> None:
    """Records above it may be truncated again: no reader may see them, not even once."""
    log_of_batches(store)

    log = reopened(store, line)

    slot = store.slot()
    assert (slot["state"], slot["role"]) == (ONLINE, FOLLOWER)
    assert slot["high_watermark"] == (begins, 0, begins // 2 * len(batch(2)))
    assert slot["last_stable"] == slot["high_watermark"]
    assert (slot["log_end"][0], log.high_watermark) == (8, begins)


def test_high_watermark_is_never_below_the_log_start(store: LogStore) -> None:
    log_of_batches(store).delete_records(5)

    log = reopened(store, 2)

    assert (log.log_start_offset, log.high_watermark) == (5, 5)
    assert store.slot()["high_watermark"] == (5, 0, 2 * len(batch(2)))


def test_high_watermark_is_that_of_the_last_run(store: LogStore) -> None:
    log = log_of_batches(store)
    log.set_high_watermark(6)
    store.stop(clean=True)
    assert checkpoint(store, NAME).splitlines()[2:] == ["t 0 6"]

    store.start(clean=True)

    assert store.open(**SHARED).high_watermark == 6


@pytest.mark.parametrize(("incarnation", "begins"), [(1, 6), (2, 4)])
def test_high_watermark_that_readers_have_seen_outlives_its_process(
    store: LogStore, incarnation: int, begins: int
) -> None:
    """The checkpoint is some seconds old when an io worker is killed; the slot is not."""
    log = log_of_batches(store)
    log.set_high_watermark(4)
    store.manager.checkpoint()
    log.set_high_watermark(6)
    log.publish()
    if incarnation != 1:
        store.table.reset(0, state=ONLINE, slot_incarnation=incarnation)

    store.start_after_kill()

    assert store.open(**SHARED).high_watermark == begins


def test_replica_that_is_alone_has_all_committed_that_its_log_has(store: LogStore) -> None:
    log_of_batches(store)
    store.stop(clean=True)
    (Path(store.dirs[0]) / NAME).write_text("0\n1\nt 0 2\n")
    store.start(clean=True)

    log = store.open()

    assert log.high_watermark == store.slot()["high_watermark"][0] == 8


def test_new_log_of_a_name_does_not_begin_where_an_earlier_one_was(store: LogStore) -> None:
    log_of_batches(store)
    log = reopened(store, 4)
    store.manager.remove_partitions([log.slot])

    assert store.open(topic_id=b"\7" * 16, **SHARED).high_watermark == 0


def test_cut_below_the_high_watermark_takes_it_along(store: LogStore) -> None:
    """A follower of a leader that was elected without having all committed records."""
    log_of_batches(store)
    log = reopened(store, 8)

    assert log.truncate_to(4, NOW_MS) == 4

    slot = store.slot()
    assert slot["log_end"] == slot["high_watermark"] == slot["last_stable"] == (
        4, 0, 2 * len(batch(2)),
    )  # fmt: skip


# ---- leader epochs -----------------------------------------------------------------------------


def epochs(store: LogStore) -> tuple[int, int, int]:
    slot = store.slot()
    return slot["latest_epoch"], slot["latest_epoch_start"], slot["previous_epoch"]


def test_slot_has_the_last_two_epochs_of_the_log(store: LogStore) -> None:
    log = log_of_batches(store, 1)
    assert epochs(store) == (0, 0, -1)

    log.take_role(LEADER, 2, 5)
    assert epochs(store) == (2, 2, 0)
    append(log, batch())
    log.take_role(LEADER, 3, 6)
    append(log, batch())
    assert epochs(store) == (3, 3, 2)

    store.stop(clean=True)
    store.start(clean=True)
    store.open(leader_epoch=3)
    assert epochs(store) == (3, 3, 2)


def test_slot_forgets_epochs_whose_records_are_gone(store: LogStore) -> None:
    log = log_of_batches(store, 1)
    log.take_role(LEADER, 2, 5)
    append(log, batch(2))

    log.delete_records(3)
    assert epochs(store) == (2, 3, -1)


def test_slot_forgets_epochs_that_are_cut_off(store: LogStore) -> None:
    log = log_of_batches(store, 1)
    log.take_role(LEADER, 2, 5)
    append(log, batch(2))

    log.truncate_to(2, NOW_MS)
    assert epochs(store) == (0, 0, -1)


def test_slot_forgets_an_epoch_in_which_nothing_was_written(store: LogStore) -> None:
    log = log_of_batches(store, 1)
    log.take_role(LEADER, 2, 5)

    log.truncate_to(2, NOW_MS)
    assert epochs(store) == (0, 0, -1)


def test_slot_follows_the_epochs_that_a_follower_gets(store: LogStore) -> None:
    log = store.open(**SHARED)
    for offset, epoch in ((0, 1), (2, 3)):
        data = bytearray(batch(2))
        stamp_for_append(data, offset, epoch)
        append_fetched(log, data, 3, NOW_MS)

    assert epochs(store) == (3, 2, 1)


def test_follower_without_a_record_knows_no_epoch(store: LogStore) -> None:
    store.open(**SHARED)
    assert epochs(store) == (-1, -1, -1)


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_slot_of_a_new_leader_has_where_its_epoch_begins_in_every_format(
    store: LogStore, magic: int
) -> None:
    """Until the high watermark is there, consumers hear of no end of the log (KIP-207)."""
    log = store.open(**SHARED)
    data = bytearray(batch(2))
    stamp_for_append(data, 0, 3)
    if magic < 2:
        data = bytearray(set_bytes(magic, [OldMessage(n, NOW_MS, b"k", b"v") for n in (0, 1)]))
    append_fetched(log, data, 3, NOW_MS)
    assert epochs(store)[0] == (3 if magic == 2 else -1)

    log.take_role(LEADER, 4, 6)

    slot = store.slot()
    assert (slot["leader_epoch"], slot["latest_epoch"], slot["latest_epoch_start"]) == (4, 4, 2)
    assert slot["high_watermark"][0] == 0


def test_slot_of_a_leader_has_its_epoch_though_the_log_knows_a_later_one(store: LogStore) -> None:
    """Metadata that were restored have older epochs."""
    log = store.open(**SHARED)
    data = bytearray(batch(2))
    stamp_for_append(data, 0, 3)
    append_fetched(log, data, 3, NOW_MS)

    log.take_role(LEADER, 2, 6)

    assert epochs(store) == (2, 2, -1)
