"""The end of the controller process, with which the broker's session ends."""

from __future__ import annotations

import logging
import os
import select
import signal

from kbroker.ipc.process_table import ProcessKind, ProcessTable
from kbroker.metastore.store import Store
from kbroker.workers.base import now_ms, raise_failure
from kbroker.workers.controller.leaving import CLOSE_MS
from kbroker.workers.controller.process_ends import await_end

logger = logging.getLogger(__name__)

# BOUND: seconds that this process outlives its supervisor.
ORPHAN_S = 10


def others_have_ended(processes: ProcessTable, parent_pid: int) -> bool:
    """Whether the session may end: without a supervisor, once the other processes have."""
    if os.getppid() == parent_pid:
        return True
    # Others may lead as soon as the session has ended: nothing may be written here by then.
    signal.alarm(ORPHAN_S)
    if not await_end(processes, [ProcessKind.IO_WORKER, ProcessKind.NETWORK], ORPHAN_S - 2):
        logger.error(
            "the supervisor was killed, but other processes still run; the session expires"
        )
        return False
    logger.warning("the supervisor was killed; ending this broker's session")
    return True


def close(store: Store) -> None:
    """End the session, and wait for that, but not for long."""
    closed, until = store.close(), now_ms() + CLOSE_MS
    if store.fd is not None:
        with select.epoll() as poll:
            poll.register(store.fd, select.EPOLLIN)
            while not closed.done and now_ms() < until:
                poll.poll((until - now_ms()) / 1000)
                store.drain()
    if not closed.done:
        logger.warning("cannot tell ZooKeeper that this broker stops; its session expires later")
    closed.then(raise_failure)
