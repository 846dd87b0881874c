"""Words for people, as several commands say them."""

from __future__ import annotations


def counted(count: int, noun: str, ending: str = "s") -> str:
    """``1 file``, ``2,000 files``; ending: of the plural, where it is not an s."""
    return f"{count:,} {noun}{'' if count == 1 else ending}"
