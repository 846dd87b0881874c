"""Events as JSON, a line each, and the end by a signal: what the verifiable clients share."""

from __future__ import annotations

import json
import signal
import threading
import time
from typing import Any


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


def stop_at_signals() -> None:
    """Raise Stopped in the main thread, once: a second signal ends the process."""

    def stop(number: int, frame: object) -> None:
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_DFL)
        raise Stopped

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
