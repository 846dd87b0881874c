"""Subscriptions by pattern, in RE2's syntax: matched in time linear in the topic's name.

The library is loaded when the first pattern comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from kbroker.errors import ErrorCode, WireError

# BOUND: compiled patterns that are kept; they are dropped together when there are more.
_KEPT_MAX = 256
# BOUND: memory of one compiled pattern, which RE2 refuses to exceed.
_PATTERN_BYTES_MAX = 1 << 20
# BOUND: characters of a pattern. Time is linear in the name, but not in the pattern: 30,000 took
# half a minute for one name of 249.
PATTERN_CHARS_MAX = 1_000

_compiled: dict[str, Callable[[str], Any]] = {}


def matching(pattern: str, names: Iterable[str]) -> frozenset[str]:
    """The names that match the pattern as a whole.

    Raises INVALID_REGULAR_EXPRESSION, with the reason, for what RE2 does not take.
    """
    matches = _matcher(pattern)
    return frozenset(name for name in names if matches(name))


def _matcher(pattern: str) -> Callable[[str], Any]:
    found = _compiled.get(pattern)
    if found is None:
        if len(_compiled) >= _KEPT_MAX:
            _compiled.clear()
        found = _compiled[pattern] = _compile(pattern)
    return found


def _compile(pattern: str) -> Callable[[str], Any]:
    if len(pattern) > PATTERN_CHARS_MAX:
        text = f"A pattern of {len(pattern)} characters: use {PATTERN_CHARS_MAX} or less."
        raise WireError(ErrorCode.INVALID_REGULAR_EXPRESSION, text)
    import re2

    options = re2.Options()
    options.log_errors = False
    options.max_mem = _PATTERN_BYTES_MAX
    try:
        return re2.compile(pattern, options).fullmatch
    except (re2.error, ValueError) as error:  # ValueError: characters that are no text
        reason = error.args[0] if error.args else ""
        reason = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        text = f"{pattern!r} is no regular expression of RE2: {reason}"
        raise WireError(ErrorCode.INVALID_REGULAR_EXPRESSION, text) from error
