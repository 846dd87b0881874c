"""Disk calls fail, one after the other, until each has failed once (exam E5 c).

Every trial is the life of a log: made, appended to, rolled, synced, compacted, cut at its start,
stopped, started again. Whatever fails, nothing that was accepted is lost, nothing but the directory
is affected, and no error but the one meant for it comes out. ``KBROKER_FAULT_SCALE=12`` tries every
call; otherwise every twelfth, beginning at a random one. Failures from which the disk recovers are
slow, but for one.
"""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.faults.shim import SHORT, FailingCall, shimmed
from support.running.grids import some_of

pytestmark = [pytest.mark.fault, pytest.mark.timeout(1200)]

TESTS = Path(__file__).resolve().parent.parent
STRIDE = 12
FAILURES = {
    "EIO-for-good": (errno.EIO, True),
    "EIO-once": (errno.EIO, False),
    "ENOSPC-once": (errno.ENOSPC, False),
    "short-once": (SHORT, False),
}


@pytest.fixture
def work() -> Iterator[Path]:
    """A directory in memory if there is one."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as path:
        yield Path(path)


@pytest.mark.parametrize("failure", some_of(FAILURES, ["EIO-for-good"]))
@pytest.mark.slow
def test_failing_call_costs_nothing_that_was_accepted(
    work: Path, failure: str, seed: int, scale: int
) -> None:
    error, lasting = FAILURES[failure]
    stride = max(1, STRIDE // scale)
    first = random.Random(seed).randint(1, stride)
    control = FailingCall(work / "control")
    store = work / "store"
    words = [str(store), str(control.path), str(error), str(int(lasting)), str(first), str(stride)]

    finished = subprocess.run(
        [sys.executable, "-m", "fault.failing_sweep", *words],
        env={**os.environ, "PYTHONPATH": f"{TESTS.parent}:{TESTS}",
             **shimmed(store / "logs-0", control=control)},
        capture_output=True, text=True, timeout=1200, check=False,
    )  # fmt: skip

    assert finished.returncode == 0, finished.stderr[-6000:]
    trials, calls = (int(word) for word in finished.stdout.split())
    print(f"{trials} trials, about {calls} calls")
    assert calls > 300, "the shim sees no calls"
