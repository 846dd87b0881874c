"""Wording that several commands share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

# BOUND: characters of a name, an id or a value from a client in a log line.
SHOWN_CHARS_MAX = 256
# Characters that move the cursor, start a line or reverse the direction of text: C0 and C1
# controls, line separators, direction marks; and surrogates, which cannot be written to a terminal.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]"
)
_UNSAFE_IN_LINES = re.compile(_UNSAFE.pattern.replace("\x00-\x1f", "\x00-\x09\x0b-\x1f"))


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()


def shown(text: str, limit: int = SHOWN_CHARS_MAX) -> str:
    """Text from elsewhere as a line may show it: it stays in the line, and is not long."""
    if len(text) > limit:
        text = f"{text[:limit]}... ({len(text):,} characters)"
    return _UNSAFE.sub(_escaped, text)


def shown_lines(text: str) -> str:
    """Like ``shown``, but unabridged and with line ends."""
    return _UNSAFE_IN_LINES.sub(_escaped, text)


def counted(count: int, noun: str, ending: str = "s") -> str:
    """``1 file``, ``2,000 files``; ending: of the plural, if it is not an s."""
    return f"{count:,} {noun}{'' if count == 1 else ending}"


BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def size_text(size: float, units: Sequence[str] = BYTE_UNITS) -> str:
    """``1.5 GiB``, ``512 B``: of bytes. units: each is 1,024 of the one before."""
    for unit in units:
        if abs(size) < 1024 or unit == units[-1]:
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == units[0] else f"{size:.1f} {unit}"


def named_brokers(ids: Iterable[int]) -> str:
    """``broker 1``, ``brokers 1, 2``."""
    present = sorted(ids)
    return f"broker{'s' if len(present) > 1 else ''} {', '.join(map(str, present))}"
