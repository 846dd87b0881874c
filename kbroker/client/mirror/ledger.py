"""What a mirror has passed on and is not acknowledged yet, and what may be committed once it is."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

Key = tuple[str, int]


class SentFutures(Protocol):
    """As ``RecordFutures``."""

    def done(self) -> bool:
        """Whether all have been acknowledged or have failed."""

    def exceptions(self, timeout: float | None = None) -> Mapping[int, Exception]:
        """Why records have failed, by their place."""


class Several:
    """``SentFutures`` of single futures."""

    def __init__(self, futures: Sequence[Any]) -> None:
        self._futures = futures

    def done(self) -> bool:
        return all(future.done() for future in self._futures)

    def exceptions(self, timeout: float | None = None) -> dict[int, Exception]:
        errors = enumerate(future.exception(timeout) for future in self._futures)
        return {place: error for place, error in errors if error is not None}


class _Unacknowledged(NamedTuple):
    sent: SentFutures
    since: float


class Ledger:
    """In the order in which things happen: what is sent, and now and then where the consumer was.

    failed: records that were given up; errors: why, those that nobody has taken yet.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._rows: deque[_Unacknowledged | dict[Key, Any]] = deque()
        self.failed = 0
        self.errors: list[Exception] = []

    def add(self, sent: SentFutures) -> None:
        """These were passed on."""
        self._rows.append(_Unacknowledged(sent, self._clock()))

    def mark(self, positions: Mapping[Any, Any]) -> None:
        """All before these positions was passed on, or is not to be."""
        self._rows.append({(key[0], key[1]): row for key, row in positions.items()})

    def forget(self, keys: Iterable[Key]) -> None:
        """Partitions that others have now: nothing is to be committed for them."""
        gone = {(key[0], key[1]) for key in keys}
        for row in self._rows:
            if isinstance(row, dict):
                for key in gone & row.keys():
                    del row[key]

    def settle(self) -> dict[Key, Any]:
        """The newest positions before which everything is acknowledged, and was not before."""
        committable: dict[Key, Any] = {}
        while self._rows:
            row = self._rows[0]
            if isinstance(row, dict):
                committable.update(row)
            elif not row.sent.done():
                break
            else:
                self._count(row.sent.exceptions(0.0))
            self._rows.popleft()
        return committable

    def _count(self, errors: Mapping[int, Exception]) -> None:
        if errors:
            self.failed += len(errors)
            self.errors.append(errors[min(errors)])

    @property
    def waiting_since(self) -> float | None:
        """When the oldest of what is not acknowledged was passed on."""
        return next((row.since for row in self._rows if isinstance(row, _Unacknowledged)), None)
