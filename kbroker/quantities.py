"""Sizes and durations, as people write them for commands and settings.

Each caller says in its own words what is wrong with a text.
"""

from __future__ import annotations

import re

# A letter alone counts by 1,024, as for Spark and the JVM (-Xmx512m); with a B behind it, it is the
# unit that is written: MB is a million bytes, MiB is 1,048,576.
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_SIZE = re.compile(
    r"(?P<number>[\d_.]+(?:e\+?\d{1,2})?) ?(?P<prefix>[kmgt]?)(?P<unit>i?b?)", re.ASCII
)

# Milliseconds of a unit; Spark calls a minute both m and min.
UNIT_MS = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
_PART = re.compile(r"(\d{1,12})(ms|[smhdw])", re.ASCII)
_ISO = re.compile(
    r"(?P<sign>[+-]?)P(?:(?P<w>[+-]?\d{1,18})W)?(?:(?P<d>[+-]?\d{1,18})D)?"
    r"(?:T(?:(?P<h>[+-]?\d{1,18})H)?(?:(?P<m>[+-]?\d{1,18})M)?"
    r"(?:(?P<s>[+-]?\d{1,18})(?:[.,](?P<fraction>\d{0,9}))?S)?)?",
    re.IGNORECASE | re.ASCII,
)


def size_bytes(text: str) -> int | None:
    """Bytes of ``512m``, ``50MB``, ``10MiB`` or ``1000000``; None if it is no size from 1 up."""
    match = _SIZE.fullmatch(text.strip().lower())
    if match is None:
        return None
    base = 1000 if match["prefix"] and match["unit"] == "b" else 1024
    number = match["number"]
    try:
        size = int(
            (int(number) if number.isdigit() else float(number)) * base ** _POWERS[match["prefix"]]
        )
    except ValueError:
        return None
    return size if size > 0 else None


def span_ms(text: str) -> int | None:
    """Milliseconds of ``500ms``, ``90s`` or ``1h30m``; None if it is none."""
    parts = _PART.findall(text)
    if not text or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(int(number) * UNIT_MS[unit] for number, unit in parts)


def iso_duration_ms(text: str, *, has_weeks: bool = False) -> int | None:
    """Milliseconds of ``PT1H30M`` or ``-P1DT0.5S``, as Java reads them; None if it is none.

    has_weeks: ``P2W`` is one, too, as in ISO 8601.
    """
    match = _ISO.fullmatch(text)
    if match is None or text[-1] in "PTpt" or (match["w"] and not has_weeks):
        return None
    whole = sum(int(match[unit] or 0) * UNIT_MS[unit] for unit in ("w", "d", "h", "m", "s"))
    fraction = round(int((match["fraction"] or "").ljust(9, "0")) / 1_000_000)
    total = whole + (-fraction if (match["s"] or "").startswith("-") else fraction)
    return -total if match["sign"] == "-" else total
