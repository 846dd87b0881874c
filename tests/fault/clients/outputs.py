"""What the programs of a cell have printed, for whoever looks into one that failed: lines of what
they were told, and all else, as logs and tracebacks. What is too long is cut in its middle.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

LINE_CHARS = 400
LINES_CHARS = 1 << 20  # of each program
PRINTED_CHARS = 1 << 18


def cut(text: str, most: int) -> str:
    """At most so many characters of it, most of them from the end."""
    if len(text) <= most:
        return text
    first = most // 4
    return f"{text[:first]}\n... {len(text) - most} characters ...\n{text[first - most :]}"


def output_of(name: str, lines: Iterable[dict[str, Any]], printed: Iterable[str]) -> str:
    """Of one program. printed: what it and its commands have written elsewhere."""
    told = "\n".join(json.dumps(line)[:LINE_CHARS] for line in lines)
    parts = [f"== {name}: was told", cut(told, LINES_CHARS)]
    for text in filter(None, printed):
        parts += [f"== {name}: printed", cut(text, PRINTED_CHARS)]
    return "\n".join(parts) + "\n"
