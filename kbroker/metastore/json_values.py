"""Values in documents of the metadata store. Any client can write one, so every value is checked
before anything is done with it; what is not as it should be raises ValueError.
"""

from __future__ import annotations

import json
from typing import Any

INT_MAX, LONG_MAX = 2**31 - 1, 2**63 - 1


def load_object(data: bytes) -> dict[str, Any]:
    """The document, which is an object."""
    try:
        document = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return as_object(document)


def as_object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{_shown(value)} is no object")
    return value


def as_list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{_shown(value)} is no list")
    return value


def as_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{_shown(value)} is no string")
    return value


def as_integer(value: Any, low: int = 0, high: int = INT_MAX) -> int:
    """An integer in these bounds, or its digits: Kafka writes some as strings."""
    if isinstance(value, str) and value.isascii() and value.removeprefix("-").isdigit():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{_shown(value)} is no integer from {low} to {high}")
    return value


def as_brokers(value: Any) -> list[int]:
    """The ids of different brokers."""
    brokers = [as_integer(one) for one in as_list(value)]
    if len(set(brokers)) < len(brokers):
        raise ValueError(f"{_shown(value)} names a broker twice")
    return brokers


def _shown(value: Any) -> str:
    return repr(value)[:100]
