"""What ``subscribe`` is given: checked by the call that gets it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from kbroker.client.consumer.membership import LISTENED


def names_of(topics: Iterable[str] | None) -> frozenset[str]:
    """Raises TypeError, ValueError."""
    if isinstance(topics, str | bytes):
        raise TypeError(f"a list of topics, not {topics!r}")
    names = list(topics or ())
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"the name of a topic, not {name!r}")
        if not name:
            raise ValueError("the name of a topic is empty")
    return frozenset(names)


def pattern_of(pattern: str | re.Pattern[str]) -> re.Pattern[str]:
    """Raises TypeError, ValueError."""
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from error


def check_listener(listener: Any) -> None:
    """Raises TypeError."""
    if listener is not None and not any(hasattr(listener, name) for name in LISTENED):
        raise TypeError(f"a listener has one of {', '.join(LISTENED)}, unlike {listener!r}")
