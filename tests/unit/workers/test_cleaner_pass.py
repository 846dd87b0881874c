"""What the errors of a compaction mean for its log."""

from __future__ import annotations

from errno import EIO, ENOENT, ENOSPC
from types import SimpleNamespace

import pytest

from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.rpc import run
from kbroker.storage.cleaner import CleaningStopped, Limits, UncleanableError
from kbroker.storage.txn_index import CorruptTxnIndexError
from kbroker.workers.cleaner_pass import CleanerPass, PassFailed, PassPostponed

pytestmark = pytest.mark.unit


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
    entry = SimpleNamespace(key=("t", 0))
    work = CleanerPass(SimpleNamespace(), entry, SimpleNamespace(), SimpleNamespace(), 0)

    async def fail() -> None:
        raise error

    work._run = fail
    ended = run(work.run())

    assert type(ended.error) is outcome
    assert str(error.args[-1]) in str(ended.error)


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

    assert limits == Limits(
        map_bytes=16 << 20,
        map_load_factor=0.7,
        read_bytes=128 << 10,  # the other half of a thread's share is for what it writes
        decompressed_bytes_max=5000,
        delete_retention_ms=60_000,
        index_bytes_max=4096,
        index_interval_bytes=100,
    )
