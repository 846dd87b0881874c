"""One call's deadline, and the pauses between its attempts."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kbroker.client.errors import (
    ClientError,
    RejectedError,
    SettingRefused,
    Timeout,
    UnreachableError,
)

if TYPE_CHECKING:
    from kbroker.logcontext import RateLimit

FIRST_PAUSE_S = 0.02
PAUSE_MAX_S = 1.0
PAUSES_AT_LEAST = 8
"""No pause exceeds this part of the deadline, so that a late response of the broker is still
received.
"""
ATTEMPT_MIN_S = 0.5
TELL_AFTER_S = 5.0
"""A caller that waits for a deadline is told the reason after this time: a wrong port looks like a
slow broker.
"""
LOGGER = "kbroker.client.retry"
"""Programs set its level: docs/spark.md names it."""
_TELL_AGAIN_AFTER_S = 30.0  # many calls wait for the same broker
_told: RateLimit | None = None


def pause_after(failures: int) -> float:
    """Seconds before another attempt after so many in vain: from 20 ms to a second, with jitter."""
    grown = FIRST_PAUSE_S * 2.0 ** min(max(failures - 1, 0), 30)
    return min(grown, PAUSE_MAX_S) * random.uniform(0.7, 1.3)


class _Settings(Protocol):
    def __getitem__(self, name: str, /) -> Any: ...


class Backoff(NamedTuple):
    """The pauses between attempts in vain, in seconds: each twice the one before (KIP-580)."""

    first_s: float
    most_s: float

    @classmethod
    def of(cls, settings: _Settings, name: str) -> Backoff:
        """As the settings have it. name: ``retry.backoff`` or ``reconnect.backoff``."""
        first_s = settings[f"{name}.ms"] / 1000
        return cls(first_s, max(settings[f"{name}.max.ms"] / 1000, first_s))

    def after(self, failures: int) -> float:
        """The pause after so many failures in a row, from 1 on."""
        return min(self.first_s * 2.0 ** min(failures - 1, 30), self.most_s)


class Retry:
    """Backoff grows from 20 ms to a second, with jitter; ``progress`` resets it.

    What still fails after ``TELL_AFTER_S`` is a warning in the log, once.

    what: what the call is for, in words. seconds: until its deadline. sleep: instead of
    ``time.sleep``, for who may be interrupted.
    """

    clock = staticmethod(time.monotonic)

    def __init__(
        self, what: str, seconds: float, sleep: Callable[[float], object] | None = None
    ) -> None:
        self._interruptible = sleep
        self.what = what
        self.seconds = seconds
        self.deadline = self.clock() + seconds
        self.attempts = 0
        self.asked = ""  # the address of whom was asked last
        self._pause_s = FIRST_PAUSE_S
        self._pause_max_s = min(PAUSE_MAX_S, seconds / PAUSES_AT_LEAST)
        self._last: Exception | None = None
        self._tell_at = self.deadline - seconds + TELL_AFTER_S

    def sleep(self, seconds: float) -> None:
        """Before the next attempt."""
        (self._interruptible or time.sleep)(seconds)

    def step(self, request_timeout: float) -> float:
        """The deadline of one request."""
        return min(self.deadline, self.clock() + request_timeout)

    def attempt(self, most: float) -> float:
        """The deadline of one attempt, which leaves time to ask somebody else: ``most`` seconds,
        twice that for each attempt before, and a third of what is left at most.
        """
        seconds = min(most * 2.0 ** min(self.attempts, 10), max(self.left() / 3, ATTEMPT_MIN_S))
        return min(self.deadline, self.clock() + seconds)

    def left(self) -> float:
        """Seconds until the deadline; negative after it."""
        return self.deadline - self.clock()

    def pause(self, error: Exception) -> None:
        """Sleep before the next attempt; raise instead when that is past the deadline.

        error: why the last one failed. Raises it, if it will not change or says all there is to
        say, else Timeout.
        """
        if isinstance(error, ClientError) and not error.retriable:
            raise error
        self.attempts += 1
        earlier, self._last = self._last, error
        # An attempt ended by the deadline may only report that: the error before it is reported,
        # too.
        if self.clock() < self.deadline or str(earlier) == str(error):
            earlier = None
        pause_s = self._pause_s * random.uniform(0.7, 1.3)
        self._pause_s = min(2 * self._pause_s, self._pause_max_s)
        if self.clock() + pause_s >= self.deadline:
            if isinstance(error, UnreachableError):
                tried = _both(earlier, error)
                raise UnreachableError(tried, self.seconds) from error
            last = f"{earlier}, then {error}" if earlier is not None else str(error)
            if isinstance(error, RejectedError) and self.asked:
                last += f" (by {self.asked})"
            raise Timeout(self.what, self.seconds, last) from error
        self._maybe_tell(error)
        self.sleep(pause_s)

    def _maybe_tell(self, error: Exception) -> None:
        if self.clock() >= self._tell_at:
            self._tell_at = float("inf")
            _tell(self.what, error, self.left())

    def progress(self) -> None:
        """There was progress: restart the deadline."""
        self.deadline = self.clock() + self.seconds
        self._pause_s = FIRST_PAUSE_S
        self._last = None
        self._tell_at = self.deadline - self.seconds + TELL_AFTER_S
        self.attempts = 0


def milliseconds(name: str, value: object) -> float:
    try:
        number = int(str(value))
    except ValueError:
        number = 0
    if number <= 0:
        raise SettingRefused(name, f"{value!r} is not a positive number of milliseconds")
    return number / 1000


def _tell(what: str, error: Exception, left_s: float) -> None:
    import logging  # only this needs it, and it takes 8 ms

    from kbroker.logcontext import RateLimit

    global _told
    _told = _told or RateLimit(_TELL_AGAIN_AFTER_S)
    if _told.due(str(error)):
        logger = logging.getLogger(LOGGER)
        logger.warning("%s: %s; retrying for another %.0f s", what, error, left_s)


def _both(earlier: Exception | None, error: UnreachableError) -> dict[str, str]:
    """The reason for each address that could not be reached, now and in earlier attempts."""
    tried = dict(error.tried)
    if isinstance(earlier, UnreachableError):
        for address, why in earlier.tried.items():
            tried[address] = f"{why}, then {tried[address]}" if address in tried else why
    return tried
