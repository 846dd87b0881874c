"""The ends of processes: producers that were not closed."""

from __future__ import annotations

import atexit
import logging
import os
import time
import weakref
from typing import Protocol

logger = logging.getLogger(__name__)

# BOUND: how long a program takes to end for the sake of its producers, of all of them.
_CLOSE_S = 5.0
# All of them are served in turns of this.
_TURN_S = 0.05


class EndingProducer(Protocol):
    """A producer."""

    client_id: str

    def is_flushed(self, seconds: float) -> bool:
        """Send what is buffered; whether all of it has ended within ``seconds``."""

    def close(self, timeout: float | None = None) -> None: ...

    def forget(self) -> None:
        """It belongs to another process."""


_alive: weakref.WeakSet[EndingProducer] = weakref.WeakSet()
add, discard = _alive.add, _alive.discard


def _close_all() -> None:
    """COMPAT: as kafka-python, do not lose what a program has sent before it ends."""
    deadline = time.monotonic() + _CLOSE_S
    waiting = list(_alive)
    while waiting and time.monotonic() < deadline:
        waiting = [producer for producer in waiting if not _is_flushed(producer)]
    for producer in list(_alive):
        try:
            producer.close(0.0)
        except Exception as error:
            logger.warning("cannot close producer %s: %s", producer.client_id, error)


def _is_flushed(producer: EndingProducer) -> bool:
    try:
        return producer.is_flushed(_TURN_S)
    except Exception as error:
        logger.warning("cannot flush producer %s: %s", producer.client_id, error)
        return True


def _forget_all() -> None:
    for producer in list(_alive):
        producer.forget()
    _alive.clear()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_forget_all)
