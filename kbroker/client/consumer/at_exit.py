"""The ends of processes: consumers that were not closed."""

from __future__ import annotations

import atexit
import logging
import os
import time
import weakref
from typing import Protocol

logger = logging.getLogger(__name__)

# BOUND: how long a program takes to end for the sake of its consumers: all of them, and each after
# that.
_AT_EXIT_S = 5.0
_AT_EXIT_EACH_S = 0.1


class EndingConsumer(Protocol):
    """A consumer."""

    client_id: str

    def stop_auto_commit(self) -> None: ...

    def close(self, timeout: float | None = None) -> None: ...

    def forget(self) -> None:
        """It belongs to another process."""


_alive: weakref.WeakSet[EndingConsumer] = weakref.WeakSet()
add, discard = _alive.add, _alive.discard


def _close_all() -> None:
    """A program that ends leaves its groups. What it has handled is unknown, so nothing is
    committed.
    """
    deadline = time.monotonic() + _AT_EXIT_S
    for consumer in list(_alive):
        try:
            consumer.stop_auto_commit()
            consumer.close(max(_AT_EXIT_EACH_S, deadline - time.monotonic()))
        except Exception as error:
            logger.warning("cannot close consumer %s: %s", consumer.client_id, error)


def _forget_all() -> None:
    for consumer in list(_alive):
        consumer.forget()
    _alive.clear()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_forget_all)
