"""Points in time and durations, as people write them."""

from __future__ import annotations

import argparse
import re
from datetime import UTC, datetime

_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PART = re.compile(r"(\d{1,12})(ms|[smhdw])")
_ISO = re.compile(
    r"P(?:(?P<w>\d{1,9})W)?(?:(?P<d>\d{1,9})D)?"
    r"(?:T(?:(?P<h>\d{1,9})H)?(?:(?P<m>\d{1,9})M)?(?:(?P<s>\d{1,9})(?:\.\d+)?S)?)?",
    re.IGNORECASE,
)
# BOUND: what the protocol can carry and people can mean: until the year 9999.
TIME_MS_MAX = 253_402_300_799_999


def time_ms(text: str) -> int:
    """Milliseconds since 1970, of such a number or of an ISO time, in UTC if it has no zone.

    Raises ArgumentTypeError.
    """
    if text.isascii() and text.isdigit() and len(text) < 16:
        number = int(text)
    else:
        try:
            found = datetime.fromisoformat(text)
            found = found if found.tzinfo else found.replace(tzinfo=UTC)
            number = round(found.timestamp() * 1000)
        except (ValueError, OverflowError):
            number = -1
    if not 0 <= number <= TIME_MS_MAX:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no time: write 2026-11-27T08:00:00, or milliseconds since 1970"
        )
    return number


def duration_ms(text: str) -> int:
    """Milliseconds of ``90s``, ``1h30m``, or ISO's ``PT1H30M``. Raises ArgumentTypeError."""
    total = None
    if (iso := _ISO.fullmatch(text)) and any(iso.groups()):
        total = sum(int(value) * _MS[unit] for unit, value in iso.groupdict().items() if value)
    elif text and "".join(part[0] + part[1] for part in _PART.findall(text)) == text:
        total = sum(int(number) * _MS[unit] for number, unit in _PART.findall(text))
    if total is None or total > TIME_MS_MAX:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no duration: write 30s, 15m, 2h, 7d, 1h30m or PT1H30M"
        )
    return total


def time_text(ms: int) -> str:
    """ISO time in UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
