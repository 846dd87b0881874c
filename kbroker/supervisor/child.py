"""A child process, as seen by the supervisor.

When it may start, what its end means, how often it failed. No process is touched here: ``arbiter``
acts on these decisions and ``spawn`` forks.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from enum import Enum

from kbroker.errors import EXIT_BAD_CONFIG, EXIT_CANNOT_START
from kbroker.ipc.process_table import Address

RESTART_JITTER = 0.2
# A child that served for this long was not in a crash loop: its next restart is immediate again.
STABLE_AFTER_S = 30.0
# After a shorter run, the delay is at most this, as clients miss it. If it then ends before it
# serves again, only such ends count for the delay.
SERVED_REST_S = 1.0
# BOUND: failed starts in a row (exit code 3) after which the broker stops; the cause needs an
# operator.
CANNOT_START_MAX = 5


class Verdict(Enum):
    """The consequence of a child's exit for the broker."""

    RESTART = "restart"
    STOP_BAD_CONFIG = "stopping the broker: the configuration is wrong"
    STOP_CANNOT_START = "stopping the broker: this process cannot start"


class RestartPolicy:
    """Computes the delay before a restart.

    Not at all the first time, then ``first_s``, doubling up to ``max_s``.
    """

    def __init__(
        self,
        first_s: float = 0.1,
        max_s: float = 10.0,
        jitter: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._first_s = first_s
        self._max_s = max_s
        self._jitter = jitter

    def delay_s(self, failure_count: int) -> float:
        """The delay after ``failure_count`` failures before this one.

        Spread, so that children do not return at once.
        """
        if failure_count == 0:
            return 0.0
        delay = min(self._max_s, self._first_s * 2.0 ** min(failure_count - 1, 60))
        return delay * self._jitter(1 - RESTART_JITTER, 1 + RESTART_JITTER)


class Child:
    """A row of the process table and the process that currently fills it."""

    __slots__ = (
        "_policy",
        "abort_deadline",
        "address",
        "cannot_start_count",
        "exit_code",
        "failure_count",
        "pid",
        "serving_since",
        "start_at",
        "unserved_count",
    )

    def __init__(self, address: Address, policy: RestartPolicy) -> None:
        self.address = address
        self.pid = 0  # 0: not running
        self.serving_since: float | None = None  # when it was first seen to serve
        self.start_at = 0.0  # when it may start next, on the arbiter's clock
        self.abort_deadline: float | None = None  # got ABRT because it stalled; KILL follows
        self.exit_code: int | None = None  # of the last one that ended; negative: by that signal
        self.failure_count = 0  # since it last served for long
        self.unserved_count = 0  # the last one after it served, and those that followed
        self.cannot_start_count = 0
        self._policy = policy

    def on_started(self, pid: int) -> None:
        self.pid = pid
        self.serving_since = None
        self.exit_code = None
        self.abort_deadline = None

    def on_serving(self, now: float) -> None:
        """The child is serving; only the first call counts."""
        if self.serving_since is None:
            self.serving_since = now

    def on_not_started(self, now: float) -> None:
        """The process could not be started; ``start_at`` is the time of the next attempt."""
        self._wait_unserved(now)

    def _wait_unserved(self, now: float) -> None:
        self.start_at = now + self._policy.delay_s(self.unserved_count)
        self.unserved_count += 1
        self.failure_count += 1

    def _wait_served(self, now: float, served_s: float) -> None:
        if served_s >= STABLE_AFTER_S:
            self.failure_count = 0
        self.start_at = now + min(self._policy.delay_s(self.failure_count), SERVED_REST_S)
        self.unserved_count = 1
        self.failure_count += 1

    def on_ended(self, exit_code: int, now: float) -> Verdict:
        """Handle the end of the process; with RESTART, ``start_at`` is the time of the restart."""
        self.pid = 0
        self.exit_code = exit_code
        self.abort_deadline = None
        if self.serving_since is None:
            self._wait_unserved(now)
        else:
            self._wait_served(now, now - self.serving_since)
        if exit_code == EXIT_BAD_CONFIG:
            return Verdict.STOP_BAD_CONFIG
        self.cannot_start_count = (
            self.cannot_start_count + 1 if exit_code == EXIT_CANNOT_START else 0
        )
        if self.cannot_start_count >= CANNOT_START_MAX:
            return Verdict.STOP_CANNOT_START
        return Verdict.RESTART
