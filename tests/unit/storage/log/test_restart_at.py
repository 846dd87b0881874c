"""``PartitionLog.restart_at``: a follower deletes its records and continues at its leader's
offset.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.storage.log_store import NOW_MS, LogStore, append, batch, produce, sent, stored_values

from kbroker._ext.shared.partition_table import FOLLOWER, LEADER
from kbroker.replication.fetched_run import Fault, append_fetched

pytestmark = pytest.mark.unit

EPOCH = 7


def at(offset: int, data: bytes, epoch: int = EPOCH) -> bytes:
    """The batch in the leader's log; no checksum covers offset and epoch."""
    return offset.to_bytes(8, "big") + data[8:12] + epoch.to_bytes(4, "big") + data[16:]


@pytest.mark.parametrize("records", [0, 5])
@pytest.mark.parametrize("offset", [1000, 3, 0])
def test_log_continues_at_any_offset_and_is_the_same_after_a_kill(
    tmp_path: Path, records: int, offset: int
) -> None:
    store = LogStore(tmp_path)
    log = store.open(segment_bytes=150)
    for sequence in range(records):
        produce(log, sequence)
        append(log, sent(5, sequence))
    log.take_role(FOLLOWER, EPOCH, 0)
    log.hold_high_watermark()
    version = store.slot()["segment_version"]

    log.restart_at(offset, NOW_MS)

    slot = store.slot()
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (offset,) * 3
    place = (offset, offset, 0)
    assert slot["log_start_offset"] == offset
    assert (slot["log_end"], slot["high_watermark"]) == (place, place)
    assert slot["segment_version"] != version
    assert log.epochs.entries == [] and log.producers() == []
    outcome = append_fetched(log, at(offset, batch([b"first"])), EPOCH, NOW_MS)
    assert outcome.fault is Fault.NONE
    log.publish()

    log = store.restart(clean=False, role=FOLLOWER, segment_bytes=150)

    assert stored_values(log) == [(offset, b"first")]
    assert (log.log_start_offset, log.log_end_offset) == (offset, offset + 1)
    assert log.epochs.entries == [(EPOCH, offset)]
    store.stop(clean=True)


def test_log_that_led_before_leads_again_from_there(tmp_path: Path) -> None:
    """Nothing that was dropped is left to collide with: no segment, no sequence number."""
    store = LogStore(tmp_path)
    log = store.open()
    for sequence in range(3):
        produce(log, sequence)

    log.restart_at(1, NOW_MS)
    log.take_role(LEADER, 8, 1)
    log.appender.follow_log_end()

    assert produce(log, 0) == (0, 1)
    assert log.epochs.entries == [(8, 1)]
    log = store.restart(clean=True, leader_epoch=8, role=LEADER, is_alone=True)
    assert [offset for offset, _ in stored_values(log)] == [1]
    store.stop(clean=True)
