"""What the errors of a compaction mean for its log."""

from __future__ import annotations

from errno import EIO, ENOENT, ENOSPC
from types import SimpleNamespace

import pytest

from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.rpc import run
from kbroker.storage.cleaner import CleaningStopped, UncleanableError
from kbroker.storage.txn_index import CorruptTxnIndexError
from kbroker.workers.cleaner_pass import CleanerPass, PassFailed, PassPostponed

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (PassPostponed("the segments are others now"), PassPostponed),
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
