"""Grids of parameters of which a run of all tests except the slow ones takes a part."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def some_of(values: Iterable[Any], shown: Collection[Any]) -> list[Any]:
    """The values in their order; those that are not in ``shown`` are for slow tests. A tuple is
    several parameters.
    """
    found = list(values)
    unknown = [value for value in shown if value not in found]
    assert not unknown, f"{unknown} are not in the grid"
    return [value if value in shown else _slow(value) for value in found]


def _slow(value: Any) -> Any:
    values = value if isinstance(value, tuple) else (value,)
    return pytest.param(*values, marks=pytest.mark.slow)
