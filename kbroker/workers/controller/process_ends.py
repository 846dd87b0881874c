"""Waits for the end of other processes of the broker, of which this one is not the parent."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterable
from contextlib import suppress

from kbroker.ipc.process_table import PID, ProcessKind, ProcessTable


def await_end(processes: ProcessTable, kinds: Iterable[ProcessKind], within_s: float) -> bool:
    """Whether every process of these kinds has ended. A process that was killed ends once the
    kernel has nothing more to do for it, such as a write.
    """
    until = time.monotonic() + within_s
    fds = []
    for kind in kinds:
        for address in processes.of_kind(kind):
            pid = processes.get(address, PID)
            if pid:
                with suppress(ProcessLookupError):
                    fds.append(os.pidfd_open(pid))
    try:
        return all(_is_readable(fd, until - time.monotonic()) for fd in fds)
    finally:
        for fd in fds:
            os.close(fd)


def _is_readable(fd: int, within_s: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(max(0, int(within_s * 1000))))
