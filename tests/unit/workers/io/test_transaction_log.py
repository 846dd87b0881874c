"""Markers written by coordinators, and when they get the result."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.storage.log_store import LogStore, append, batch, sent

from kbroker._ext.io.io_loop import IoLoop
from kbroker.config.loader import BrokerConfig
from kbroker.errors import ErrorCode
from kbroker.ipc.calls import SlotMarker
from kbroker.metrics.catalog import MetricRow
from kbroker.workers.io.transaction_log import TransactionLog

pytestmark = pytest.mark.unit


class Process:
    """An io worker for a TransactionLog, over real logs in slots 0 and 1.

    verify: what the TransactionLog asks about batches that begin a transaction.
    """

    def __init__(self, path: Path) -> None:
        self.store = LogStore(path)
        self.logs = self.store.manager
        self.clock = self.store.clock
        self.loop = IoLoop(self.store.table, [], [], self.on_storage_failure)
        for slot in (0, 1):
            self.loop.put(self.store.open(partition=slot, slot=slot).appender)
        self.rpc = SimpleNamespace(serve=lambda operation, function: None)
        self.markers: list[tuple[int, int, int, int, bool]] = []
        self.config = BrokerConfig({})
        self.counted: Counter[str] = Counter()
        self.failed: list[int] = []
        self.not_led: set[int] = set()
        self.verify: Any = None

    def transaction_log(self) -> TransactionLog:
        return TransactionLog(self, self.logs, self.loop, verify=self.verify)

    def on_marker(self, *marker: Any) -> None:
        self.markers.append(marker)

    def count_own(self, slot: int, records: int, size: int) -> None: ...

    def count(self, metric: MetricRow, amount: int) -> None:
        self.counted[metric.name] += amount

    def on_storage_failure(self, slot: int) -> None:
        self.failed += self.logs.fail_directory_of(slot)

    def led_log(self, slot: int) -> Any:
        return None if slot in self.not_led else self.logs.log(slot)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    made = Process(tmp_path)
    yield made
    made.store.stop(clean=False)


def test_markers_complete_when_they_are_published(process):
    transactions = process.transaction_log()
    append(process.led_log(0), batch(2))
    append(process.led_log(0), sent(7, 0))

    call = transactions.write_markers(
        [SlotMarker(0, 7, 0, True, 3, 1), SlotMarker(1, 7, 0, True, 3, 1)]
    )

    assert not call.done
    assert process.store.slot(0)["last_stable"][0] == 2
    assert process.markers == [(0, 3, 7, 0, True), (1, 0, 7, 0, True)]
    process.loop.end_turn()
    assert (call.done, call.value) == (True, [0, 0])
    assert process.store.slot(0)["last_stable"][0] == process.store.slot(0)["log_end"][0] == 4


def test_markers_wait_for_the_replicas_of_every_log(process):
    """A completed transaction must stay complete when another replica leads."""
    process.led_log(1).set_high_watermark(0)
    call = process.transaction_log().write_markers(
        [SlotMarker(0, 7, 0, True, 3, 1), SlotMarker(1, 7, 0, True, 3, 1)]
    )
    process.loop.end_turn()
    assert not call.done

    process.led_log(1).set_high_watermark(1)
    process.loop.touch(process.led_log(1).appender)
    process.loop.end_turn()

    assert call.value == [0, 0]


def test_marker_is_not_written_while_too_few_replicas_are_in_sync(process):
    """The coordinator of the transaction asks again until it is."""
    process.led_log(1).appender.committed.is_under_min_isr = True

    call = process.transaction_log().write_markers(
        [SlotMarker(0, 7, 0, True, 3, 1), SlotMarker(1, 7, 0, True, 3, 1)]
    )
    process.loop.end_turn()

    assert call.value == [0, ErrorCode.NOT_ENOUGH_REPLICAS]
    assert process.led_log(1).log_end_offset == 0
    assert process.markers == [(0, 0, 7, 0, True)]


def test_marker_that_too_few_replicas_have_is_not_acknowledged(process):
    process.led_log(1).set_high_watermark(0)
    call = process.transaction_log().write_markers(
        [SlotMarker(0, 7, 0, True, 3, 1), SlotMarker(1, 7, 0, True, 3, 1)]
    )
    process.loop.end_turn()
    process.led_log(1).appender.committed.is_maximal_under_min_isr = True

    process.led_log(1).set_high_watermark(1)
    process.loop.touch(process.led_log(1).appender)
    process.loop.end_turn()

    assert call.value == [0, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND]


def test_marker_of_a_log_whose_lead_is_lost_is_to_be_written_elsewhere(process):
    process.led_log(0).set_high_watermark(0)
    call = process.transaction_log().write_markers(
        [SlotMarker(0, 7, 0, True, 3, 1), SlotMarker(1, 7, 0, True, 3, 1)]
    )
    process.loop.end_turn()

    process.loop.fail_waiting(0, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    assert call.value == [ErrorCode.NOT_LEADER_OR_FOLLOWER, 0]


def test_markers_fail_one_by_one(process):
    transactions = process.transaction_log()
    append(process.led_log(0), sent(7, 0, epoch=5))

    call = transactions.write_markers(
        [
            SlotMarker(0, 7, 4, True, 0, 1),
            SlotMarker(9, 7, 5, True, 0, 1),
            SlotMarker(1, 7, 5, False, 0, 1),
        ]
    )
    process.loop.end_turn()

    assert call.value == [
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NONE,
    ]
    assert [marker[0] for marker in process.markers] == [1]


def test_marker_whose_disk_fails_before_it_is_published_is_not_acknowledged(process, monkeypatch):
    transactions = process.transaction_log()
    log = process.led_log(0)
    append(log, sent(7, 0))
    call = transactions.write_markers([SlotMarker(0, 7, 0, True, 0, 1)])

    process.logs.fail_log_dir(log.log_dir, OSError(5, "broken"))
    process.loop.end_turn()
    again = transactions.write_markers([SlotMarker(0, 7, 0, True, 0, 1)])

    assert call.value == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert again.value == [ErrorCode.KAFKA_STORAGE_ERROR]


def test_abort_whose_index_cannot_be_written_takes_the_directory_offline(process, monkeypatch):
    def broken(*_: object) -> int:
        raise OSError(5, "Input/output error")

    transactions = process.transaction_log()
    append(process.led_log(0), sent(7, 0))
    stable = process.store.slot(0)["last_stable"]
    monkeypatch.setattr(os, "pwrite", broken)
    call = transactions.write_markers([SlotMarker(0, 7, 0, False, 0, 1)])

    assert call.value == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert process.failed == [0, 1]
    assert process.store.slot(0)["last_stable"] == stable


def test_marker_for_a_log_that_is_not_led_is_not_written(process):
    process.not_led.add(1)
    call = process.transaction_log().write_markers([SlotMarker(1, 7, 0, True, 0, 0)])
    process.loop.end_turn()

    assert process.logs.log(1).log_end_offset == 0
    assert call.value == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_verifier_follows_the_setting(process):
    given: list[tuple[Any, bool]] = []
    process.loop = SimpleNamespace(
        verification=SimpleNamespace(set_verifier=lambda *told: given.append(told))
    )
    process.verify = print
    transactions = process.transaction_log()

    process.config = BrokerConfig({"transaction.partition.verification.enable": "false"})
    transactions.take_settings()

    assert given == [(print, True), (print, False)]


def hanging(process: Process) -> int:
    return process.counted["kbroker_transactions_hanging"]


def test_transaction_that_nobody_ends_is_counted_as_hanging(process, caplog):
    """As kafka-transactions find-hanging does: open for five minutes longer than any timeout."""
    transactions = process.transaction_log()
    append(process.led_log(0), sent(7, 0))
    append(process.led_log(1), sent(8, 0))
    process.clock.advance(900_000)
    transactions.tick()
    append(process.led_log(1), sent(8, 1, timestamp=process.clock.now_ms()))
    process.clock.advance(290_000)
    transactions.tick()
    assert hanging(process) == 0

    process.clock.advance(20_000)
    transactions.tick()
    transactions.tick()
    assert hanging(process) == 0, "looked for once a minute"
    process.clock.advance(60_000)
    transactions.tick()
    assert hanging(process) == 1
    (line,) = [one.getMessage() for one in caplog.records]
    assert "t-0: hanging transaction of producer 7, epoch 0, since offset 0" in line

    process.clock.advance(60_000)
    transactions.tick()
    assert hanging(process) == 1
    assert len(caplog.records) == 1
    transactions.write_markers([SlotMarker(0, 7, 0, False, 0, 1)])
    process.clock.advance(60_000)
    transactions.tick()
    assert hanging(process) == 0
