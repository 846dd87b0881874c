"""What an io worker answers to a cleaner that asks for a swap."""

from types import SimpleNamespace
from typing import Any

import pytest
from doubles.log_store import NOW_MS, LogStore, append, batch

from kbroker.ipc.calls import CleanableSegments, ReplacedSegment, SwapOutcome, SwapSegments
from kbroker.ipc.process_table import Address, ProcessKind
from kbroker.ipc.rpc import run
from kbroker.workers.log_cleaning import LogCleaningService

pytestmark = pytest.mark.unit

CLEANER = Address(ProcessKind.CLEANER, 0)


@pytest.fixture
def store(tmp_path):
    return LogStore(tmp_path)


class FakeWorker:
    """An io worker as far as the service looks at it; publishes at the end of a turn."""

    def __init__(self, store: LogStore) -> None:
        self.logs = store.manager
        self.table = store.table
        self.touched: list[Any] = []
        self.loop = SimpleNamespace(touch=self.touched.append, wake=lambda _slot: None)
        self.coordinators = SimpleNamespace(is_loading=lambda _slot: False)
        self.rpc = SimpleNamespace(serve=lambda _name, _function: None)
        self.log_of = store.manager.log

    def end_turn(self) -> None:
        for appender in self.touched:
            appender.publish_now()
        self.touched.clear()


def swap_of_first(log):
    """Nobody has cleaned it, so that a refusal is the best answer."""
    first = log.segments[0]
    return SwapSegments(
        log.slot,
        base_offset=0,
        size=first.size,
        largest_timestamp=NOW_MS,
        replaced=[ReplacedSegment(0, first.size)],
        cuts=log.cuts,
    )


def asked_for_a_swap(worker, log):
    service = LogCleaningService(worker)
    return run(service.serve_swap_segments(CLEANER, swap_of_first(log))).value


def test_swap_waits_until_readers_know_that_the_segment_has_ended(store):
    """After a roll whose append found no room, the published end is in the segment that was sealed:
    they would read a cleaned one up to the size of the old, and break the connection off.
    """
    log = store.open()
    append(log, batch())
    assert log.roll(NOW_MS) is None
    assert store.slot(0)["log_end"][1] == 0, "nothing has published the roll"
    worker = FakeWorker(store)

    busy = SwapOutcome(busy="its active segment is not published yet")
    assert asked_for_a_swap(worker, log) == busy
    worker.end_turn()

    assert store.slot(0)["log_end"][1] == 1
    assert asked_for_a_swap(worker, log) == SwapOutcome(
        refused="the cleaned segment has -1 bytes instead of 79"
    )
    assert not worker.touched


def test_log_is_not_described_while_an_earlier_swap_is_under_way(store, monkeypatch):
    """A cleaner that was killed after asking for it is back within the time it takes, and would
    read files of other sizes than it was told.
    """
    log = store.open()
    append(log, batch())
    log.roll(NOW_MS)
    worker = FakeWorker(store)
    log.appender.publish_now()
    service = LogCleaningService(worker)
    asked = CleanableSegments([log.slot], timestamps=False)
    background = []
    monkeypatch.setattr(store.manager, "in_background", lambda *job: background.append(job))
    assert [one.slot for one in service.serve_cleanable_segments(CLEANER, asked)] == [log.slot]

    first = run(service.serve_swap_segments(CLEANER, swap_of_first(log)))

    assert not first.done
    assert service.serve_cleanable_segments(CLEANER, asked) == []
    second = run(service.serve_swap_segments(CLEANER, swap_of_first(log)))
    assert second.value == SwapOutcome(busy="an earlier swap is not finished")
    ((job, on_done),) = background
    on_done(job(), None)
    assert first.value == SwapOutcome(refused="the cleaned segment has -1 bytes instead of 79")
    assert [one.slot for one in service.serve_cleanable_segments(CLEANER, asked)] == [log.slot]
