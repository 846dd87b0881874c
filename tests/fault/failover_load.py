"""Clients of a cluster whose brokers are killed, and when each of them last succeeded.

Each client notes the times of its successes under a role; the longest pause between two of them
that touches a kill is what that kill has cost it.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from fault.failover_clients import CLIENTS


class Successes:
    """When something has succeeded, by what it was."""

    def __init__(self) -> None:
        self._times: dict[str, list[float]] = {}
        self._lock = threading.Lock()

    def note(self, what: str, at_s: float) -> None:
        with self._lock:
            self._times.setdefault(what, []).append(at_s)

    def count(self, what: str) -> int:
        """How often it has succeeded, with the beginning of its name."""
        with self._lock:
            return sum(len(times) for name, times in self._times.items() if name.startswith(what))

    def longest(self, since: float, until: float) -> dict[str, float]:
        """The longest pause of each between two successes, of which one is in that time."""
        with self._lock:
            times = {what: list(found) for what, found in self._times.items()}
        pauses = {}
        for what, found in times.items():
            pairs = zip(found, [*found[1:], until], strict=True)
            pauses[what] = max((b - a for a, b in pairs if b >= since and a <= until), default=0.0)
        return pauses


class FailoverLoad:
    """Threads with these clients, until ``stop``. directory: for their logs. problems: what they
    were told that must not be. acked, committed: values, by client. at_stop: called then.
    """

    def __init__(self, bootstrap: str, clients: Sequence[str], directory: Path) -> None:
        self.bootstrap = bootstrap
        self.directory = directory
        self.successes = Successes()
        self.acked: dict[str, list[bytes]] = {name: [] for name in clients}
        self.committed: dict[str, list[bytes]] = {name: [] for name in clients}
        self.problems: list[str] = []
        self.at_stop: list[Callable[[], None]] = []
        self._stopping = threading.Event()
        works = [work for name in clients for work in CLIENTS[name](self).works()]
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), daemon=True) for work in works
        ]
        for thread in self._threads:
            thread.start()

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def stop(self) -> None:
        self._stopping.set()
        for act in self.at_stop:
            act()
        for thread in self._threads:
            thread.join(90)
            assert not thread.is_alive(), "a client does not end"

    def succeeded(
        self, client: str, what: str, where: int, value: bytes = b"", at_s: float | None = None
    ) -> None:
        if what == "produce":
            self.acked[client].append(value)
        elif what == "transaction":
            self.committed[client].append(value)
        self.successes.note(f"{client} {what} {where}", time.monotonic() if at_s is None else at_s)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self.problems.append(f"{work}: {error!r}")


def doubled(values: Iterable[bytes]) -> list[bytes]:
    return [value for value, count in Counter(values).items() if count > 1]
