r"""Patterns in rules that turn names into principals: RE2's, with replacements as in Java.

RE2 matches in time linear in the name, which others choose. It has no back-references and no
look-around; patterns with these are refused.
"""

from __future__ import annotations

import re
from typing import Any

# A named group in a replacement, one that is none, or an escaped sign, which is neither.
_NAMED = re.compile(r"\\.|\$\{(?P<name>[A-Za-z][A-Za-z0-9]*)\}|(?P<open>\$\{)", re.DOTALL)
# BOUND: of what a pattern compiles to.
_MEMORY_MAX = 1 << 20


class BadPattern(ValueError):
    """A pattern that is not understood; the message has it."""


def compiled(pattern: str, replacement: str = "") -> Any:
    r"""The pattern, whose groups the replacement names. Raises BadPattern.

    Java's \/ is a slash; RE2 takes that, too.
    """
    import re2  # only where it is used, as it takes much memory

    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MEMORY_MAX
    try:
        regex = re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0] if error.args else error
        if isinstance(reason, bytes):
            reason = reason.decode("utf-8", "replace")
        raise BadPattern(f"the pattern {pattern[:80]!r} is not supported: {reason}") from error
    wrong = _wrong_group(regex, replacement)
    if wrong:
        raise BadPattern(f"the replacement {replacement[:80]!r} is not supported: {wrong}")
    return regex


def replaced(pattern: Any, replacement: str, name: str, count: int = 0) -> str:
    """The name with the first ``count`` matches replaced, 0 for all."""
    return str(pattern.sub(lambda match: _filled(replacement, pattern.groups, match), name, count))


def _wrong_group(pattern: Any, replacement: str) -> str | None:
    """What is wrong with the named groups of a replacement; None if nothing is."""
    for match in _NAMED.finditer(replacement):
        if match["name"] is not None and match["name"] not in pattern.groupindex:
            return f"the pattern has no group {match['name']!r}"
        if match["open"] is not None:
            return "${ begins the name of a group, which ends with }"
    return None


def _filled(text: str, groups: int, match: Any) -> str:
    r"""The replacement as Java fills it in: $n and ${name} are groups, \ escapes what follows.

    COMPAT: of $12, the longest number counts that is a group; $n without such a group is text.
    """
    out, at = [], 0
    while at < len(text):
        char = text[at]
        at += 1
        named = _NAMED.match(text, at - 1)
        if named is not None and named["name"] is not None:
            out.append(match.group(named["name"]) or "")
            at = named.end()
            continue
        if char == "\\" and at < len(text):
            out.append(text[at])
            at += 1
        elif char == "$" and text[at : at + 1].isascii() and text[at : at + 1].isdigit():
            end = at + 1
            number = int(text[at])
            while end < len(text) and text[end].isascii() and text[end].isdigit():
                if number * 10 + int(text[end]) > groups:
                    break
                number = number * 10 + int(text[end])
                end += 1
            if number > groups:
                out.append(text[at - 1 : end])
            else:
                out.append(match.group(number) or "")
            at = end
        else:
            out.append(char)
    return "".join(out)
