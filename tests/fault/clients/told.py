"""What a client has told its program, written down as it happens: a line of JSON each, with the
time of the machine, so that the lines of several processes have an order.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, TextIO

from kbroker.client.errors import ClientError


class Leave(BaseException):
    """What a callback of the program raises: such as sys.exit, or Ctrl-C."""


class Told:
    """Any thread may tell. calls: how often each method was called."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._lock = threading.Lock()
        self.calls: Counter[str] = Counter()
        self.longest: tuple[float, str] = (-1e9, "")
        self._errors: Counter[str] = Counter()

    def tell(self, what: str, **fields: Any) -> None:
        line = json.dumps({"at": time.monotonic(), "what": what, **fields})
        with self._lock:
            self._out.write(line + "\n")
            self._out.flush()

    def call(self, name: str, limit_s: float, call: Callable[[], Any]) -> Any:
        """Its result. Tells if it took longer than it may, and which errors it raised."""
        self.calls[name] += 1
        began = time.monotonic()
        try:
            return call()
        except (ClientError, Leave) as error:
            if self._errors[f"{name} {type(error).__name__}"] < 5:
                self._errors[f"{name} {type(error).__name__}"] += 1
                self.tell("error", call=name, error=f"{type(error).__name__}: {error}"[:500])
            raise
        finally:
            over = time.monotonic() - began - limit_s
            self.longest = max(self.longest, (over, name))
            if over > 1:
                self.tell("late", call=name, limit=limit_s, over=round(over, 2))

    def end(self, **left: Any) -> None:
        """The last line."""
        over, call = self.longest
        self.tell("end", calls=self.calls, over=over, longest=call, **left)
