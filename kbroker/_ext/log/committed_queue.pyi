from collections.abc import Callable
from typing import Any

from kbroker.types import Offset

class Sink: ...

class CallSink(Sink):
    def __init__(
        self,
        on_committed: Callable[[Any], object],
        on_failed: Callable[[Any, Any], object],
        on_expired: Callable[[Any], object] | None = None,
        limit_ms: Callable[[], int] | None = None,
        on_too_few: Callable[[Any], object] | None = None,
    ) -> None: ...

class CommittedQueue:
    is_under_min_isr: bool
    is_maximal_under_min_isr: bool
    @property
    def offset(self) -> Offset: ...
    @property
    def count(self) -> int: ...
    def wait(self, end: int, sink: CallSink, item: object, since_ms: int = 0) -> None: ...
    def advance(self, offset: int) -> None: ...
    def fail(self, error: Exception, sink: Sink | None = None) -> None: ...
    def expire(self, now_ms: int) -> int: ...
