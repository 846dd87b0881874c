"""Points in time and durations, as people write them."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime

from kbroker.quantities import iso_duration_ms, span_ms

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
            time = datetime.fromisoformat(text)
            time = time if time.tzinfo else time.replace(tzinfo=UTC)
            number = round(time.timestamp() * 1000)
        except (ValueError, OverflowError):
            number = -1
    if not 0 <= number <= TIME_MS_MAX:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no time: write 2026-11-27T08:00:00, or milliseconds since 1970"
        )
    return number


def duration_ms(text: str) -> int:
    """Milliseconds of ``90s``, ``1h30m``, or ISO's ``PT1H30M``. Raises ArgumentTypeError."""
    total = iso_duration_ms(text, has_weeks=True)
    if total is None:
        total = span_ms(text)
    if total is None or not 0 <= total <= TIME_MS_MAX:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no duration: write 30s, 15m, 2h, 7d, 1h30m or PT1H30M"
        )
    return total


def time_text(ms: int) -> str:
    """ISO time in UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
