"""The consequences of errors in a compaction for its log."""

from __future__ import annotations

from errno import EIO, ENOENT, ENOSPC
from types import SimpleNamespace

import pytest

from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.calls import CLEANABLE_SEGMENTS, CleanableLog, SealedSegment
from kbroker.ipc.rpc import run
from kbroker.storage.cleaning.cleaner import CleaningLimits, CleaningStopped, UncleanableError
from kbroker.storage.segments.txn_index import CorruptTxnIndexError
from kbroker.storage.topic_settings import NO_LIMIT
from kbroker.types import SlotId
from kbroker.workers.cleaner.cleaner_pass import CleanerPass, PassFailed, PassPostponed
from kbroker.workers.cleaner.cleaner_views import LogView

pytestmark = pytest.mark.unit

SLOT = SlotId(3)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (PassPostponed("the segments have been replaced"), PassPostponed),
        (CleaningStopped("stop"), PassPostponed),
        (WireError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "restarting"), PassPostponed),
        (OSError(ENOSPC, "full"), PassPostponed),
        (FileNotFoundError(ENOENT, "deleted"), PassPostponed),
        (OSError(EIO, "disk"), PassFailed),
        (UncleanableError("damaged"), PassFailed),
        (CorruptTxnIndexError("index"), PassFailed),
        (ZeroDivisionError("a mistake"), PassFailed),
    ],
)
def test_pass_that_fails_is_postponed_or_given_up(error, outcome):
    ended = failed_pass(error, lambda: described())

    assert type(ended.error) is outcome
    assert str(error.args[-1]) in str(ended.error)


def described(*, cuts=0, size=90, more=()):
    segments = [SealedSegment(0, 5, size, -1), *more]
    return [CleanableLog(SLOT, "/d", "/d/t-0", cuts, 100, segments)]


def failed_pass(error, response):
    """A pass over the log as ``described`` that fails with ``error``; ``answer``: the owner's reply
    after that.
    """
    rules = SimpleNamespace(lag_ms_min=0, lag_ms_max=NO_LIMIT)
    entry = SimpleNamespace(key=("t", 0), slot=SLOT, slot_incarnation=1, rules=rules)

    async def call(to, operation, request):
        assert (to, operation, request.slots) == ("owner", CLEANABLE_SEGMENTS, [SLOT])
        return response()

    worker = SimpleNamespace(io_worker=lambda _slot: "owner", rpc=SimpleNamespace(call=call))
    view = LogView(described()[0], 1, entry)
    work = CleanerPass(worker, entry, view, SimpleNamespace(), 0)

    async def fail() -> None:
        raise error

    work._run = fail
    return run(work.run())


def restarting():
    raise WireError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "restarting")


@pytest.mark.parametrize(
    ("response", "outcome"),
    [
        (lambda: described(more=[SealedSegment(5, 9, 50, -1)]), PassFailed),
        (lambda: described(size=80), PassPostponed),
        (lambda: described(cuts=1), PassPostponed),
        (list, PassPostponed),
        (restarting, PassPostponed),
    ],
    ids=["rolled", "swapped", "truncated", "closed or being swapped", "restarting"],
)
@pytest.mark.parametrize("error", [UncleanableError("damaged"), CorruptTxnIndexError("index")])
def test_damage_counts_only_in_files_that_are_still_those_of_the_log(error, response, outcome):
    """A swap of the previous cleaner, or a truncation, shortens a file that is being read; the log
    was then ignored until the next restart.
    """
    ended = failed_pass(error, response)

    assert type(ended.error) is outcome
    assert str(error) in str(ended.error)


def test_threads_share_the_buffers():
    broker = {
        "log.cleaner.threads": 4,
        "log.cleaner.dedupe.buffer.size": 64 << 20,
        "log.cleaner.io.buffer.load.factor": 0.7,
        "log.cleaner.io.buffer.size": 1 << 20,
        "max.decompressed.message.bytes": 5000,
    }
    topic = {
        "delete.retention.ms": 60_000,
        "index.interval.bytes": 100,
        "segment.index.bytes": 4096,
    }
    entry = SimpleNamespace(key=("t", 0), config=topic)
    worker = SimpleNamespace(config=broker)
    limits = CleanerPass(worker, entry, SimpleNamespace(), SimpleNamespace(), 0)._limits()

    assert limits == CleaningLimits(
        map_bytes=16 << 20,
        map_load_factor=0.7,
        read_bytes=128 << 10,  # the other half of a thread's share is for its writes
        decompressed_bytes_max=5000,
        delete_retention_ms=60_000,
        index_bytes_max=4096,
        index_interval_bytes=100,
    )
