"""A test in a forked process of its own: nothing that earlier tests left behind in the test
process (threads that end, sockets that garbage holds) opens or closes descriptors meanwhile.
"""

from __future__ import annotations

import gc
import os
import signal
import traceback
from collections.abc import Callable
from contextlib import suppress

import pytest


def run_in_own_process(test: Callable[[], object]) -> None:
    """Run ``test`` in a fork; fails with the traceback of what it raises there."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _report(test, writing)
    os.close(writing)
    try:
        with open(reading, encoding="utf-8") as pipe:
            text = pipe.read()
    finally:
        # The test has ended, or took longer than its timeout allows.
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
    if text != "passed":
        pytest.fail(text or f"the process of the test ended with status {status}", pytrace=False)


def _report(test: Callable[[], object], writing: int) -> None:
    """Write "passed" or a traceback to the pipe, and end the process."""
    gc.disable()  # the garbage belongs to the parent
    try:
        test()
        text = "passed"
    except BaseException:
        text = traceback.format_exc()
    with suppress(OSError), open(writing, "w", encoding="utf-8") as pipe:
        pipe.write(text)
    os._exit(0)
