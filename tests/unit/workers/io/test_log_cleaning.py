"""How an io worker handles a cleaner's request for a swap."""

from types import SimpleNamespace
from typing import Any

import pytest
from support.storage.log_store import NOW_MS, LogStore, append, batch

from kbroker._ext.io.io_loop import IoLoop
from kbroker.ipc.calls import CleanableSegments, ReplacedSegment, SwapOutcome, SwapSegments
from kbroker.ipc.process_table import Address, ProcessKind
from kbroker.ipc.rpc import run
from kbroker.workers.io.log_cleaning import LogCleaningService

pytestmark = pytest.mark.unit

CLEANER = Address(ProcessKind.CLEANER, 0)


@pytest.fixture
def store(tmp_path):
    return LogStore(tmp_path)


class Process:
    """An io worker for the service, with the slots that a coordinator is loading."""

    def __init__(self, store: LogStore) -> None:
        self.table = store.table
        self.loading: set[int] = set()
        self.rpc: Any = SimpleNamespace(serve=lambda _operation, _function: None)

    def is_loading(self, slot: int) -> bool:
        return slot in self.loading

    def on_storage_failure(self, slot: int) -> None:
        raise AssertionError(slot)


@pytest.fixture
def loop(store):
    return IoLoop(store.table, [], [], pytest.fail)


def swap_of_first(log):
    """Nobody has cleaned it, so rejecting it is the best response."""
    first = log.segments[0]
    return SwapSegments(
        log.slot,
        base_offset=0,
        size=first.size,
        largest_timestamp=NOW_MS,
        replaced=[ReplacedSegment(0, first.size)],
        cuts=log.cuts,
    )


def asked_for_a_swap(service, log):
    return run(service.serve_swap_segments(CLEANER, swap_of_first(log))).value


def test_swap_waits_until_readers_know_that_the_segment_has_ended(store, loop):
    """After a roll whose append found no room, the published end is in the sealed segment: readers
    would read a cleaned one up to the old size, and close the connection.
    """
    log = store.open()
    append(log, batch())
    assert log.roll(NOW_MS) is None
    assert store.slot(0)["log_end"][1] == 0, "nothing has published the roll"
    service = LogCleaningService(Process(store), store.manager, loop)

    busy = SwapOutcome(busy="its active segment is not published yet")
    assert asked_for_a_swap(service, log) == busy
    loop.end_turn()

    assert store.slot(0)["log_end"][1] == 1
    assert asked_for_a_swap(service, log) == SwapOutcome(
        rejected="the cleaned segment has -1 bytes instead of 79"
    )
    assert not loop.has_news


def test_swap_waits_for_a_coordinator_that_reads_the_log(store, loop):
    log = store.open()
    append(log, batch())
    log.roll(NOW_MS)
    append(log, batch())
    process = Process(store)
    process.loading.add(log.slot)
    service = LogCleaningService(process, store.manager, loop)

    busy = SwapOutcome(busy="a coordinator is reading the log")
    assert asked_for_a_swap(service, log) == busy


def test_log_is_not_described_while_an_earlier_swap_is_under_way(store, loop, monkeypatch):
    """A cleaner that was killed after asking for it is back in the meantime, and would read files
    of other sizes than expected.
    """
    log = store.open()
    append(log, batch())
    log.roll(NOW_MS)
    log.appender.publish_now()
    service = LogCleaningService(Process(store), store.manager, loop)
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
    assert first.value == SwapOutcome(rejected="the cleaned segment has -1 bytes instead of 79")
    assert [one.slot for one in service.serve_cleanable_segments(CLEANER, asked)] == [log.slot]
