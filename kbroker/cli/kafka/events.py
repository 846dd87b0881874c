"""Events as JSON, a line each, and the end by a signal: what the verifiable clients share."""

from __future__ import annotations

import json
import signal
import threading
import time
from typing import Any

# How long what is under way may keep a signal waiting, such as a send that waits for metadata.
_HELD_S = 1.0


class Events:
    """Prints events, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __call__(self, name: str, **fields: Any) -> None:
        row = {"timestamp": time.time_ns() // 1_000_000, "name": name, **fields}
        with self._lock:
            print(json.dumps(row, separators=(",", ":"), ensure_ascii=False), flush=True)


class Stopped(Exception):
    """SIGTERM or SIGINT arrived."""


class StopSignals:
    """Raises Stopped in the main thread at SIGTERM or SIGINT; a second one ends the process.

    What runs with it as its context manager is finished first, unless that takes long: a record is
    sent and counted, or neither.
    """

    def __init__(self) -> None:
        self._held = self._arrived = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._arrive)

    def _arrive(self, number: int, frame: object) -> None:
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_DFL)
        if not self._held:
            raise Stopped
        self._arrived = True
        signal.signal(signal.SIGALRM, self._interrupt)
        signal.setitimer(signal.ITIMER_REAL, _HELD_S)

    def _interrupt(self, number: int, frame: object) -> None:
        self._arrived = False
        raise Stopped

    def __enter__(self) -> None:
        self._held = True

    def __exit__(self, *raised: object) -> None:
        self._held = False
        if self._arrived:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            raise Stopped
