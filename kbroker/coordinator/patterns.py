"""Regular expressions of clients, in RE2's syntax: matched in time linear in the text.

The library is loaded when the first pattern comes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# BOUND: characters of a pattern. Time is linear in the text, but not in the pattern: 30,000 took
# half a minute for one name of 249.
PATTERN_CHARS_MAX = 1_000
# BOUND: memory of one compiled pattern, which RE2 never exceeds; its own default.
_PATTERN_BYTES_MAX = 8 << 20


class PatternError(ValueError):
    """Why a pattern is rejected."""


def compile_pattern(pattern: str, *, bytes_max: int = _PATTERN_BYTES_MAX) -> Callable[[str], Any]:
    """Compile to a function that tells whether a whole text matches. bytes_max: of the compiled
    pattern.

    Raises PatternError.
    """
    if len(pattern) > PATTERN_CHARS_MAX:
        raise PatternError(
            f"The pattern has {len(pattern)} characters: use at most {PATTERN_CHARS_MAX}."
        )
    import re2

    options = re2.Options()
    options.log_errors = False
    options.max_mem = bytes_max
    try:
        matches: Callable[[str], Any] = re2.compile(pattern, options).fullmatch
        return matches
    except (re2.error, ValueError) as error:  # ValueError: characters that are no text
        reason = error.args[0] if error.args else ""
        reason = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        text = f"{pattern!r} is not an RE2 regular expression: {reason}"
        raise PatternError(text) from error
