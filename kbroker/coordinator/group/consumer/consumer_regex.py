"""Subscriptions by pattern. Compiled patterns are cached, since members repeat them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from kbroker.coordinator.patterns import PatternError, compile_pattern
from kbroker.errors import ErrorCode, WireError

# BOUND: cached patterns; they are dropped together when there are more.
_KEPT_MAX = 256
# BOUND: memory of each of them.
_PATTERN_BYTES_MAX = 1 << 20

_compiled: dict[str, Callable[[str], Any]] = {}


def matching(pattern: str, names: Iterable[str]) -> frozenset[str]:
    """The names that match the pattern as a whole.

    Raises INVALID_REGULAR_EXPRESSION, with the reason, for what RE2 does not take.
    """
    matches = _matcher(pattern)
    return frozenset(name for name in names if matches(name))


def _matcher(pattern: str) -> Callable[[str], Any]:
    matcher = _compiled.get(pattern)
    if matcher is None:
        if len(_compiled) >= _KEPT_MAX:
            _compiled.clear()
        matcher = _compiled[pattern] = _compile(pattern)
    return matcher


def _compile(pattern: str) -> Callable[[str], Any]:
    try:
        return compile_pattern(pattern, bytes_max=_PATTERN_BYTES_MAX)
    except PatternError as error:
        raise WireError(ErrorCode.INVALID_REGULAR_EXPRESSION, str(error)) from error
