"""Requests for many partitions in one call: each gets its own result, none blocks the process."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.network.call_documents import request
from support.running.descriptors import no_descriptors
from support.storage.log_store import NOW_MS, LogStore, append, batch, sent

from kbroker.cluster.image import ClusterImage
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc import calls
from kbroker.ipc.calls import CallOperation, Results
from kbroker.ipc.process_table import Address, ProcessKind
from kbroker.ipc.rpc import Pending, Rpc, run
from kbroker.storage.log import log_lookup
from kbroker.storage.segments.leader_epochs import LeaderEpochs
from kbroker.workers.io import partition_calls
from kbroker.workers.io.partition_calls import SLICE_MS, PartitionCalls

pytestmark = pytest.mark.unit

CALLER = Address(ProcessKind.NETWORK, 0)


class Process:
    """An io worker for PartitionCalls, over real logs: 0 and 2 in one directory."""

    def __init__(self, path: Path) -> None:
        self.store = LogStore(path, dirs=2)
        self.logs = self.store.manager
        self.clock = self.store.clock
        me: Any = SimpleNamespace(me=Address(ProcessKind.IO_WORKER, 0))
        nobody: Any = None
        self.rpc = Rpc(me, nobody, self.clock.monotonic_ms)
        self.image = ClusterImage()
        self.has_joined = True
        self.not_held: set[int] = set()
        self.woken: list[int] = []
        for slot in range(3):
            log = self.store.open(partition=slot, slot=slot, **{"segment.bytes": len(batch())})
            for _ in range(slot + 2):
                append(log, batch())
        PartitionCalls(self, self.logs)

    def led_log(self, slot: int) -> Any:
        return self.logs.log(slot)

    def held_log(self, slot: int) -> Any:
        return None if slot in self.not_held else self.logs.log(slot)

    def wake(self, slot: int) -> None:
        self.woken.append(slot)

    def on_storage_failure(self, slot: int) -> None:
        self.logs.fail_directory_of(slot)

    def call(self, operation: CallOperation[Any, Any], *asked: Any) -> Pending[Results[Any]]:
        """The result that a caller gets."""
        asking = request(operation, asked=[list(question) for question in asked])
        return self.ask(operation, asking)

    def ask(self, operation: CallOperation[Any, Any], asking: Any) -> Pending[Any]:
        return run(self.rpc._served[operation.name][1](CALLER, asking))


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    made = Process(tmp_path)
    monkeypatch.setattr(partition_calls, "now_ms", made.clock.monotonic_ms)
    yield made
    made.store.stop(clean=False)


def codes(outcome: Pending[Results[Any]]) -> list[int]:
    assert outcome.done
    failed = {failure.number: failure.error for failure in outcome.value.failures}
    return [failed.get(number, 0) for number in range(len(outcome.value.results))]


def test_partitions_get_results_in_request_order(process: Process) -> None:
    found = process.call(calls.LIST_OFFSETS, (2, -1, 1), (0, -1, 1), (1, NOW_MS, 1)).value.results

    assert [response.offset for response in found] == [4, 2, 0]
    before = process.call(calls.OFFSETS_BEFORE, (1, -1, 3), (0, -2, 2)).value.results
    assert [response.offsets for response in before] == [[3, 2, 1, 0], []]
    epochs = process.call(calls.OFFSET_FOR_LEADER_EPOCH, (0, 0, False), (1, 5, False)).value.results
    assert [response.end_offset for response in epochs] == [2, -1]


def test_follower_knows_the_end_of_an_epoch_for_what_is_read_from_it(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever truncates a log by the response asks the leader."""
    monkeypatch.setattr(process, "led_log", lambda slot: None)

    outcome = process.call(calls.OFFSET_FOR_LEADER_EPOCH, (0, 0, False), (0, 0, True))

    assert codes(outcome) == [ErrorCode.NOT_LEADER_OR_FOLLOWER, 0]
    assert outcome.value.results[1].end_offset == 2


def test_error_of_a_partition_stays_with_it(
    process: Process, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = process.led_log(1)
    list_offsets = log_lookup.list_offsets

    def fails(log: Any, timestamp: int, *, committed: bool) -> Any:
        if log is damaged:
            raise ValueError("damaged")
        return list_offsets(log, timestamp, committed=committed)

    monkeypatch.setattr(log_lookup, "list_offsets", fails)

    outcome = process.call(calls.LIST_OFFSETS, (9, -1, 0), (1, -1, 0), (0, -1, 0))

    assert codes(outcome) == [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.CORRUPT_MESSAGE,
        0,
    ]
    assert "damaged" in caplog.text
    assert not damaged.appender.closed


def test_long_call_lets_others_be_served(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow() -> int:
        process.clock.advance(SLICE_MS)
        return process.clock.monotonic_ms()

    monkeypatch.setattr(partition_calls, "now_ms", slow)

    outcome = process.call(calls.DELETE_RECORDS, (0, 1), (1, 1), (2, 1))

    for done in range(4):
        assert [process.led_log(slot).log_start_offset for slot in range(3)].count(1) == done
        assert outcome.done == (done == 3)
        process.rpc.tick(process.clock.monotonic_ms())
    assert [response.low_watermark for response in outcome.value.results] == [1] * 3


def test_failed_deletion_takes_the_directory_offline_and_the_others_are_done(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would only have rejected produces, and reported an unexpected error."""
    failing = process.led_log(0)
    truncate = LeaderEpochs.truncate_from_start

    def fails(epochs: LeaderEpochs, offset: int) -> None:
        if epochs is failing.epochs:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        truncate(epochs, offset)

    monkeypatch.setattr(LeaderEpochs, "truncate_from_start", fails)

    outcome = process.call(calls.DELETE_RECORDS, (0, 1), (1, 1), (2, 1))

    assert codes(outcome) == [
        ErrorCode.KAFKA_STORAGE_ERROR,
        0,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,  # it was in the same directory
    ]
    assert list(process.logs.dirs.failures()) == [failing.log_dir]


@pytest.mark.own_process
def test_lookup_without_descriptors_is_rejected_and_the_directory_stays_online(
    process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    with no_descriptors():
        outcome = process.call(calls.LIST_OFFSETS, (0, NOW_MS, 0), (1, -1, 0))

    assert codes(outcome) == [ErrorCode.KAFKA_STORAGE_ERROR, 0]
    assert "raise the limit on open files" in outcome.value.failures[0].message
    assert caplog.text.count("raise the limit on open files") == 1
    assert process.logs.dirs.failures() == {}


def test_producers_of_logs_are_described_in_one_call(process: Process) -> None:
    append(process.led_log(0), sent(7, 0, epoch=1))
    append(process.led_log(0), batch(producer_id=8, producer_epoch=0, base_sequence=4))
    process.led_log(0).appender.append_marker(9, 3, True, 6, NOW_MS)

    outcome = process.call(calls.DESCRIBE_PRODUCERS, (0,), (9,), (1,))

    assert codes(outcome) == [0, ErrorCode.NOT_LEADER_OR_FOLLOWER, 0]
    first, _, last = outcome.value.results
    rows = [tuple(getattr(row, name) for name in row.__slots__) for row in first.producers]
    assert rows == [(7, 1, 0, NOW_MS, -1, 2), (8, 0, 4, NOW_MS, -1, -1), (9, 3, -1, NOW_MS, 6, -1)]
    assert last.producers == []


def test_late_transactions_are_those_that_are_open_without_a_batch_since(process: Process) -> None:
    append(process.led_log(0), sent(7, 0, epoch=1))
    append(process.led_log(0), batch(producer_id=8, producer_epoch=0, base_sequence=4))
    append(process.led_log(2), sent(9, 0))
    append(process.led_log(2), sent(10, 0, timestamp=NOW_MS + 1000))
    append(process.led_log(1), sent(11, 0))
    process.led_log(1).appender.append_marker(11, 0, True, 6, NOW_MS)

    def late(before_ms: int) -> list[tuple[int, list[int]]]:
        rows = process.ask(calls.LATE_TRANSACTIONS, calls.LateQuestion(before_ms)).value
        assert {row.topic for row in rows} <= {"t"}
        return [(row.partition, [each.producer_id for each in row.producers]) for row in rows]

    assert late(NOW_MS) == []
    assert late(NOW_MS + 1) == [(0, [7]), (2, [9])]
    assert late(NOW_MS + 1001) == [(0, [7]), (2, [9, 10])]
    process.not_held.add(0)
    assert late(NOW_MS + 1) == [(2, [9])]


def test_late_transactions_are_unknown_while_logs_are_opened(process: Process) -> None:
    process.has_joined = False

    outcome = process.ask(calls.LATE_TRANSACTIONS, calls.LateQuestion(NOW_MS))

    assert isinstance(outcome.error, WireError)


def test_search_for_late_transactions_lets_others_be_served(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_calls, "SLICE_LOGS", 1)
    waits: list[Pending[None]] = []

    def sleep(delay_ms: int) -> Pending[None]:
        waits.append(Pending())
        return waits[-1]

    monkeypatch.setattr(process.rpc, "sleep", sleep)

    outcome = process.ask(calls.LATE_TRANSACTIONS, calls.LateQuestion(NOW_MS))

    for turn in range(3):
        assert (len(waits), outcome.done) == (turn + 1, False)
        waits[turn].resolve()
    assert outcome.value == []
