"""When a client asks what to push of its metrics, and when it pushes (KIP-714), without I/O."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kbroker.errors import ErrorCode

NO_ID = bytes(16)
# COMPAT: Java's, where a broker has not told another one.
DEFAULT_INTERVAL_S = 300.0
# BOUND: no broker is asked more often, whatever it says.
INTERVAL_MIN_S = 0.1
# BOUND: of one push, where a broker tells none; that of brokers by default.
BYTES_MAX = 1 << 20
_CODECS = range(5)  # none, gzip, snappy, lz4, zstd
_ALL = ("", "*")
# After these the same request would only be rejected again.
_FOR_GOOD = frozenset(
    {ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_RECORD, ErrorCode.UNSUPPORTED_VERSION}
)
# What a broker asks for has changed.
_ASK_AGAIN = frozenset({ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE})
_PAUSE_S = 1.0


class MetricSubscription(NamedTuple):
    """What brokers ask for. prefixes: of names of metrics, ("",): all. codec: a number of Kafka's.
    is_delta: totals are what was added since the last push.
    """

    number: int
    codec: int
    bytes_max: int
    is_delta: bool
    prefixes: tuple[str, ...]


class PushState:
    """subscription: None if it is to be asked for next, else a push is next. due_at: when that is.

    is_over: nothing is asked for or pushed any more. is_slim: only metrics without tags are pushed,
    as a broker has found a push too large. uniform: replaces ``random.uniform`` in tests.
    """

    def __init__(
        self, now: float, uniform: Callable[[float, float], float] = random.uniform
    ) -> None:
        self.instance_id = NO_ID
        self.subscription: MetricSubscription | None = None
        self.due_at = now
        self.is_over = False
        self.is_slim = False
        self._interval_s = DEFAULT_INTERVAL_S
        self._uniform = uniform
        self._refused_codecs: set[int] = set()
        self._in_vain = 0  # requests in a row that say no more than that the next one may

    def subscribed(
        self,
        instance_id: bytes,
        number: int,
        interval_ms: int,
        prefixes: Sequence[str],
        codecs: Sequence[int],
        bytes_max: int,
        is_delta: bool,
        now: float,
    ) -> None:
        """A broker has told what it asks for."""
        if instance_id != NO_ID:
            self.instance_id = instance_id
        self._interval_s = (
            max(interval_ms / 1000, INTERVAL_MIN_S) if interval_ms > 0 else DEFAULT_INTERVAL_S
        )
        if not prefixes:  # nothing: whether that has changed is asked after the same time
            self.subscription = None
            self._in_vain = 0
            self.due_at = now + self._interval_s
            return
        usable = [one for one in codecs if one in _CODECS and one not in self._refused_codecs]
        self.subscription = MetricSubscription(
            number,
            usable[0] if usable else 0,
            bytes_max if bytes_max > 0 else BYTES_MAX,
            is_delta,
            ("",) if any(one in _ALL for one in prefixes) else tuple(prefixes),
        )
        # Clients that were started together do not push together.
        self.due_at = now + self._interval_s * self._uniform(0.5, 1.5)

    def pushed(self, now: float) -> None:
        """A broker has taken a push."""
        self._in_vain = 0
        self.due_at = now + self._interval_s

    def rejected(self, code: int, now: float) -> None:
        """A broker has answered either request with an error."""
        if code in _FOR_GOOD:
            self.is_over = True
        elif code in _ASK_AGAIN:
            if self.subscription is not None and code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE:
                self._refused_codecs.add(self.subscription.codec)
            self.subscription = None
            pause_s = _PAUSE_S * 2.0 ** min(self._in_vain - 1, 10) if self._in_vain else 0.0
            self._in_vain += 1
            self.due_at = now + min(pause_s, self._interval_s)
        else:
            self.is_slim = self.is_slim or code == ErrorCode.TELEMETRY_TOO_LARGE
            self.due_at = now + self._interval_s

    def lost(self, now: float) -> None:
        """There was no answer: another broker is asked, which may ask for something else."""
        self.subscription = None
        pause_s = _PAUSE_S * 2.0 ** min(self._in_vain, 10) * self._uniform(0.5, 1.5)
        self._in_vain += 1
        self.due_at = now + min(pause_s, DEFAULT_INTERVAL_S)

    def throttled(self, seconds: float, now: float) -> None:
        """Nothing is sent before these have passed."""
        self.due_at = max(self.due_at, now + max(0.0, seconds))
