"""Transactions in a log: what is appended, where committed records end, and what survives."""

import os
import struct
from pathlib import Path

import pytest
from support.storage.log_store import (
    NOW_MS,
    append,
    append_error,
    batch,
    end_transaction,
    sent,
)

from kbroker._ext.log.producer_state import ProducerState
from kbroker.storage.log.log_lookup import list_offsets
from kbroker.storage.segments.txn_index import AbortedTransaction, read_entries

pytestmark = pytest.mark.unit

OUT_OF_ORDER_SEQUENCE_NUMBER = 45
INVALID_PRODUCER_EPOCH = 47
INVALID_TXN_STATE = 48
TRANSACTION_COORDINATOR_FENCED = 52
KAFKA_STORAGE_ERROR = 56
INVALID_RECORD = 87


def entries(log):
    """All aborted transactions in the log's indexes."""
    return [
        entry
        for segment in log.segments
        for entry in read_entries(
            segment.path(".txnindex"), segment.base_offset, segment.next_offset
        )
    ]


def stable(store):
    return store.slot()["last_stable"]


def marker_code(log, producer_id, epoch, coordinator_epoch=0, version=0, *, commit=True):
    code, offset = log.appender.append_marker(
        producer_id, epoch, commit, coordinator_epoch, NOW_MS, version
    )
    assert (offset >= 0) == (code == 0)
    return code


# ---- the last stable offset ----


def test_last_stable_stays_at_the_first_batch_of_the_oldest_open_transaction(store):
    log = store.open()
    append(log, batch(3))
    start = log.appender.position
    append(log, sent(1, 0, 2))
    later = log.appender.position
    append(log, sent(2, 0))
    append(log, sent(1, 2))

    assert stable(store) == (3, 0, start)
    end_transaction(log, 1, commit=True)
    assert stable(store) == (5, 0, later)
    end_transaction(log, 2, commit=True)
    assert stable(store) == store.slot()["log_end"] == (9, 0, log.appender.position)


def test_last_stable_in_a_sealed_segment_is_a_place_there(store):
    log = store.open(**{"segment.bytes": 300})
    append(log, sent(1, 0))
    for sequence in range(1, 12):
        append(log, sent(1, sequence))

    assert len(log.segments) > 2
    assert stable(store) == (0, 0, 0)
    end_transaction(log, 1, commit=False)
    assert stable(store) == store.slot()["log_end"]


def test_last_stable_is_never_above_a_high_watermark_that_is_held(store):
    log = store.open()
    append(log, sent(1, 0))
    append(log, batch(2))
    log.set_high_watermark(1)
    end_transaction(log, 1, commit=True)

    assert stable(store)[0] == 0, "the marker is not replicated yet"
    log.set_high_watermark(3)
    log.publish()
    assert stable(store)[0] == 0
    log.set_high_watermark(4)
    log.publish()
    assert stable(store) == store.slot()["log_end"]


def test_last_stable_follows_a_log_start_that_passes_the_transaction(store):
    log = store.open(**{"segment.bytes": 300})
    for sequence in range(0, 18, 2):
        append(log, sent(1, sequence, 2))
    log.delete_records(7)

    segment, position = log.segments.locate(7)
    assert stable(store) == (7, segment.base_offset, position)
    end_transaction(log, 1, commit=True)
    assert stable(store)[0] == 19


# ---- what may be appended ----


def test_batch_outside_an_open_transaction_is_rejected(store):
    log = store.open()
    append(log, sent(1, 0))

    plain = batch(producer_id=1, producer_epoch=0, base_sequence=1)
    assert append_error(log, plain)[0] == INVALID_TXN_STATE
    append(log, batch())
    end_transaction(log, 1, commit=True)
    append(log, plain)


def test_transactional_batch_without_a_producer_is_rejected(store):
    log = store.open()

    assert append_error(log, batch(transactional=True))[0] == INVALID_RECORD


def test_batch_of_the_next_epoch_continues_with_the_open_transaction(store):
    log = store.open()
    append(log, sent(1, 0))

    append(log, sent(1, 0, epoch=1))

    assert stable(store)[0] == 0
    assert append_error(log, sent(1, 1))[0] == INVALID_PRODUCER_EPOCH
    end_transaction(log, 1, commit=False, epoch=1)
    assert entries(log) == [AbortedTransaction(1, 0, 2, 3)]


def test_duplicate_of_a_transactional_batch_gets_its_offset(store):
    log = store.open()
    append(log, batch(4))

    assert append(log, sent(1, 0, 2)) == 4
    assert append(log, sent(1, 0, 2)) == 4
    assert log.log_end_offset == 6


def test_records_of_a_coordinator_need_no_sequence_and_open_a_transaction(store):
    log = store.open()

    for _ in range(7):
        append(log, sent(5, -1, 2, epoch=3))

    assert (log.log_end_offset, stable(store)[0]) == (14, 0)
    assert append_error(log, sent(5, -1, epoch=2))[0] == INVALID_PRODUCER_EPOCH
    plain = batch(producer_id=5, producer_epoch=3, base_sequence=-1)
    assert append_error(log, plain)[0] == INVALID_RECORD, "a client must have one"
    end_transaction(log, 5, commit=False, epoch=3)
    assert entries(log) == [AbortedTransaction(5, 0, 14, 15)]


def test_records_of_a_coordinator_survive_a_kill(store):
    log = store.open()
    append(log, sent(5, -1, 2, epoch=3))

    log = store.restart(clean=False)

    assert stable(store) == (0, 0, 0)
    append(log, sent(5, -1, epoch=3))
    assert append_error(log, sent(5, -1, epoch=2))[0] == INVALID_PRODUCER_EPOCH


# ---- markers ----


def test_marker_of_an_older_epoch_is_rejected(store):
    log = store.open()
    append(log, sent(1, 0, epoch=4))

    assert marker_code(log, 1, 3) == INVALID_PRODUCER_EPOCH
    assert marker_code(log, 1, 4) == 0


def test_marker_of_an_older_coordinator_is_rejected(store):
    log = store.open()
    append(log, sent(1, 0))
    end_transaction(log, 1, commit=True, coordinator_epoch=6)
    append(log, sent(1, 1))

    assert marker_code(log, 1, 0, coordinator_epoch=5) == TRANSACTION_COORDINATOR_FENCED
    assert stable(store)[0] == 2
    assert marker_code(log, 1, 0, coordinator_epoch=6) == 0


def test_marker_of_version_2_must_be_above_the_epoch_it_ends(store):
    log = store.open()
    append(log, sent(1, 0))

    assert marker_code(log, 1, 0, version=2) == INVALID_PRODUCER_EPOCH
    assert marker_code(log, 1, 1, version=2) == 0
    assert marker_code(log, 1, 1, version=2) == 0, "the same once more"
    assert append_error(log, sent(1, 1))[0] == INVALID_PRODUCER_EPOCH
    assert append_error(log, sent(1, 1, epoch=1))[0] == OUT_OF_ORDER_SEQUENCE_NUMBER
    append(log, sent(1, 0, epoch=1))
    assert marker_code(log, 1, 1, version=2) == INVALID_PRODUCER_EPOCH, "a late one ends nothing"


def test_marker_without_a_transaction_fences_the_producer_and_aborts_nothing(store):
    log = store.open()

    end_transaction(log, 9, commit=False, epoch=5)

    assert entries(log) == []
    assert store.slot()["aborted_version"] == 0
    assert append_error(log, sent(9, 0, epoch=4))[0] == INVALID_PRODUCER_EPOCH


def test_marker_repeated_changes_nothing(store):
    log = store.open()
    append(log, sent(1, 0))
    end_transaction(log, 1, commit=False)
    version = store.slot()["aborted_version"]

    end_transaction(log, 1, commit=False)

    assert entries(log) == [AbortedTransaction(1, 0, 1, 2)]
    assert store.slot()["aborted_version"] == version


def test_marker_in_a_closed_log_is_a_storage_error(store):
    log = store.open()
    log.appender.reject_all()

    assert marker_code(log, 1, 0) == KAFKA_STORAGE_ERROR


def test_marker_of_a_topic_with_append_time_carries_it(store):
    log = store.open(**{"message.timestamp.type": "LogAppendTime"})
    append(log, sent(1, 0))
    end_transaction(log, 1, commit=True)

    data = Path(log.segments.active.path(".log")).read_bytes()[-78:]
    assert struct.unpack_from(">h", data, 21)[0] == 0x38
    assert struct.unpack_from(">q", data, 35)[0] == NOW_MS


# ---- the index of aborted transactions ----


def test_abort_writes_kafkas_entry_to_the_segment_of_the_marker(store):
    log = store.open(**{"segment.bytes": 300})
    append(log, sent(1, 0))
    append(log, sent(2, 0))
    for sequence in range(1, 9):
        append(log, sent(1, sequence))
    end_transaction(log, 1, commit=False)
    active = log.segments.active.base_offset
    assert active > 0

    data = store.path(f"{active:020d}.txnindex").read_bytes()

    assert data == struct.pack(">hqqqq", 0, 1, 0, 10, 1)
    assert [name for name in os.listdir(store.path()) if "txnindex" in name] == [
        f"{active:020d}.txnindex"
    ]


def test_abort_on_a_disk_without_room_leaves_the_transaction_open(store, monkeypatch):
    log = store.open()
    append(log, sent(1, 0))
    size = log.appender.position
    pwrite = os.pwrite

    def torn(fd, data, position):
        if len(data) == 34:
            return pwrite(fd, data[:20], position)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", torn)
    assert marker_code(log, 1, 0, commit=False) == KAFKA_STORAGE_ERROR
    monkeypatch.undo()
    log.publish()

    assert stable(store) == (0, 0, 0)
    assert (log.log_end_offset, os.stat(log.segments.active.path(".log")).st_size) == (1, size)
    assert os.stat(log.segments.active.path(".txnindex")).st_size == 0
    end_transaction(log, 1, commit=False)
    assert entries(log) == [AbortedTransaction(1, 0, 1, 2)]


def test_flush_covers_the_index(store, monkeypatch):
    log = store.open(**{"flush.messages": 1})
    append(log, sent(1, 0))
    log.appender.sync_now()
    synced = []
    fdatasync = os.fdatasync

    def note(fd):
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
        fdatasync(fd)

    monkeypatch.setattr(os, "fdatasync", note)

    end_transaction(log, 1, commit=False)
    log.appender.sync_now()

    assert synced == ["0" * 20 + ".txnindex"]


def test_retention_takes_the_index_with_its_segment(store):
    log = store.open(**{"segment.bytes": 300, "file.delete.delay.ms": 0})
    for sequence in range(9):
        append(log, sent(1, sequence))
        end_transaction(log, 1, commit=False)
    before = len(entries(log))
    log.delete_records(log.segments.active.base_offset)
    store.manager.tick()
    store.manager.tick()

    left = [name for name in os.listdir(store.path()) if "txnindex" in name]
    assert before == 9
    assert left == [f"{log.segments.active.base_offset:020d}.txnindex"] * bool(entries(log))


def test_truncation_takes_entries_and_opens_the_transaction_again(store):
    log = store.open()
    append(log, sent(1, 0, 2))
    end_transaction(log, 1, commit=False)
    append(log, sent(1, 2, 2))
    end_transaction(log, 1, commit=False)
    assert len(entries(log)) == 2

    log.truncate_to(4, NOW_MS)
    assert entries(log) == [AbortedTransaction(1, 0, 2, 3)]
    assert stable(store)[0] == 3

    log.truncate_to(2, NOW_MS)
    assert entries(log) == []
    assert stable(store) == (0, 0, 0)


# ---- restarts ----


@pytest.mark.parametrize("clean", [True, False])
def test_restart_keeps_open_transactions_and_the_last_stable_offset(store, clean):
    config = {"segment.bytes": 400}
    log = store.open(**config)
    append(log, batch(5))
    append(log, sent(1, 0, 2))
    append(log, sent(2, 0))
    for sequence in range(1, 9):
        append(log, sent(2, sequence))
    end_transaction(log, 2, commit=False, coordinator_epoch=3)
    before = store.slot()

    log = store.restart(clean=clean, **config)

    after = store.slot()
    assert after["last_stable"] == before["last_stable"]
    assert after["last_stable"][0] == 5
    assert after["aborted_version"] != 0
    assert entries(log) == [AbortedTransaction(2, 7, 16, 5)]
    assert marker_code(log, 2, 0, coordinator_epoch=2) == TRANSACTION_COORDINATOR_FENCED
    end_transaction(log, 1, commit=True)
    assert stable(store) == store.slot()["log_end"]


@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_restart_rebuilds_an_index_that_is_wrong(store, caplog, damage):
    config = {"segment.bytes": 400}
    log = store.open(**config)
    for sequence in range(0, 24, 3):
        for number in range(3):
            append(log, sent(1, sequence + number))
        end_transaction(log, 1, commit=False)
    before = entries(log)
    assert len(log.segments) > 3
    store.stop(clean=True)
    path = Path(log.segments[1].path(".txnindex"))
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[17] ^= 1  # the first offset: one record of the transaction more or less
    path.write_bytes(data[:-34] if damage == "cut" else data)
    if damage == "gone":
        path.unlink()

    store.start(clean=True)
    log = store.open(**config)

    assert entries(log) == before
    assert f"{path} does not match its segment; rebuilding" in caplog.text


def test_marker_without_a_transaction_that_kafka_noted_is_no_damage(store, caplog):
    """Kafka 2.7 writes it when a marker comes twice; kbroker on its directories takes it out."""
    log = store.open()
    append(log, sent(1, 0))
    end_transaction(log, 1, commit=False)
    end_transaction(log, 1, commit=False)
    append(log, sent(1, 1))
    end_transaction(log, 1, commit=False)
    before = entries(log)
    store.stop(clean=True)
    path = Path(log.segments[0].path(".txnindex"))
    as_written = path.read_bytes()
    marker = AbortedTransaction(1, 2, 2, 3).to_bytes()
    path.write_bytes(as_written[:34] + marker + as_written[34:])

    log = store.restart(clean=True)

    assert (
        entries(log) == before == [AbortedTransaction(1, 0, 1, 2), AbortedTransaction(1, 3, 4, 5)]
    )
    assert path.read_bytes() == as_written
    assert ".txnindex" not in caplog.text


def test_restart_walks_no_segment_whose_index_is_as_it_was_left(store, monkeypatch):
    log = store.open(**{"segment.bytes": 400})
    for sequence in range(9):
        append(log, sent(1, sequence))
        end_transaction(log, 1, commit=False)
    before = entries(log)
    monkeypatch.setattr("kbroker.storage.repair.txn_recovery._scan", None)

    log = store.restart(clean=True, **{"segment.bytes": 400})

    assert entries(log) == before


def test_restart_in_a_directory_of_another_broker_checks_its_indexes(store, caplog):
    log = store.open()
    append(log, sent(1, 0))
    end_transaction(log, 1, commit=False)
    store.stop(clean=True)
    store.path("txn-index-checkpoint").unlink()

    store.start(clean=True)
    log = store.open()

    assert entries(log) == [AbortedTransaction(1, 0, 1, 2)]
    assert store.path("txn-index-checkpoint").exists()
    assert "rebuilding" not in caplog.text


def test_restart_forgets_no_open_transaction_however_old(store):
    keep = {"retention.ms": -1}
    log = store.open(**keep)
    append(log, sent(1, 0, timestamp=NOW_MS - 10 * 86_400_000))
    append(log, batch(producer_id=2, producer_epoch=0, base_sequence=0, timestamp=1))

    log = store.restart(clean=True, **keep)
    store.clock.advance(600_000)
    store.manager.tick()

    assert set(log.appender.producers.entries) == {1}
    assert stable(store)[0] == 0


@pytest.mark.parametrize("clean", [True, False])
def test_clock_that_is_wrong_at_a_start_forgets_no_producer(store, clean):
    """A batch that is sent again across the restart would be stored twice."""
    sent_before = batch(producer_id=2, producer_epoch=0, base_sequence=0)
    append(store.open(), sent_before)
    store.stop(clean=clean)
    store.clock.jump(3650 * 86_400_000)
    store.start(clean=clean)
    log = store.open()

    store.clock.jump(-3650 * 86_400_000)
    append(log, sent_before)

    assert log.log_end_offset == 1


def test_snapshot_keeps_the_order_of_open_transactions():
    state = ProducerState()
    state.append_batch(9, 0, 0, 0, 10, NOW_MS, True)
    state.append_batch(3, 0, 0, 0, 20, NOW_MS, True)
    state.append_batch(9, 0, 1, 0, 30, NOW_MS, True)
    read = ProducerState.from_snapshot(state.to_snapshot(), 31)

    assert read.unplaced_transactions() == [(9, 10), (3, 20)]
    read.finish_transaction(9, 0, 0, NOW_MS)
    assert read.first_open_transaction() == 20


# ---- verification (KIP-890) ----


def test_verified_batch_is_appended_once_its_number_is_given(store):
    log = store.open()
    number = log.appender.verify(1, 0, 0, NOW_MS)

    assert log.appender.append_batch(sent(1, 0), NOW_MS, 0)[0] == INVALID_TXN_STATE
    assert log.appender.append_batch(sent(1, 0), NOW_MS, number + 1)[0] == INVALID_TXN_STATE
    assert log.appender.append_batch(sent(1, 0), NOW_MS, number)[0] == 0
    assert log.appender.append_batch(sent(1, 1), NOW_MS, 0)[0] == 0, "its transaction is open"
    assert log.appender.verify(1, 0, 2, NOW_MS) == -1


def test_verification_from_before_a_marker_is_void(store):
    log = store.open()
    number = log.appender.verify(1, 0, 0, NOW_MS)
    end_transaction(log, 1, commit=False)
    again = log.appender.verify(1, 0, 0, NOW_MS)

    assert again != number
    assert log.appender.append_batch(sent(1, 0), NOW_MS, number)[0] == INVALID_TXN_STATE
    assert log.appender.append_batch(sent(1, 0), NOW_MS, again)[0] == 0


def test_verification_holds_back_a_later_batch_than_the_first_asked_for(store):
    log = store.open()
    number = log.appender.verify(1, 0, 3, NOW_MS)
    assert log.appender.verify(1, 0, 4, NOW_MS) == number

    code = log.appender.append_batch(sent(1, 4), NOW_MS, number)[0]
    assert code == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.appender.append_batch(sent(1, 3), NOW_MS, number)[0] == 0


def test_verification_of_a_new_epoch_starts_its_sequences_again(store):
    log = store.open()
    log.appender.verify(1, 0, 3, NOW_MS)
    number = log.appender.verify(1, 1, 7, NOW_MS)

    assert log.appender.append_batch(sent(1, 7, epoch=1), NOW_MS, number)[0] == 0


def test_verification_that_adds_the_partition_starts_at_sequence_0(store):
    log = store.open()
    number = log.appender.verify(1, 0, 3, NOW_MS, starts_at_zero=True)

    code = log.appender.append_batch(sent(1, 3), NOW_MS, number)[0]
    assert code == OUT_OF_ORDER_SEQUENCE_NUMBER


def test_verification_is_not_asked_of_a_fenced_producer(store):
    log = store.open()
    end_transaction(log, 1, commit=False, epoch=5)

    assert log.appender.verify(1, 4, 0, NOW_MS) == -1
    code = log.appender.append_batch(sent(1, 0, epoch=4), NOW_MS, -1)[0]
    assert code == INVALID_PRODUCER_EPOCH


def test_verification_that_led_to_nothing_expires(store):
    log = store.open()
    number = log.appender.verify(1, 0, 0, NOW_MS)

    log.appender.expire_producers(NOW_MS + 999, 1000)
    assert log.appender.verify(1, 0, 0, NOW_MS) == number
    log.appender.expire_producers(NOW_MS + 1000, 1000)
    assert log.appender.verify(1, 0, 0, NOW_MS) != number


# ---- lookups ----


def test_list_offsets_for_committed_records_ends_at_the_last_stable_offset(store):
    log = store.open()
    append(log, batch(2, timestamp=NOW_MS - 10))
    append(log, sent(1, 0, timestamp=NOW_MS))

    def ask(timestamp, *, committed):
        return list_offsets(log, timestamp, committed=committed)["offset"]

    assert (ask(-1, committed=False), ask(-1, committed=True)) == (3, 2)
    assert (ask(NOW_MS, committed=False), ask(NOW_MS, committed=True)) == (2, -1)
    assert (ask(-3, committed=False), ask(-3, committed=True)) == (2, -1)
    assert ask(NOW_MS - 10, committed=True) == 0
