"""A text that counts how often it is compared: this reveals quadratic cost."""

from __future__ import annotations


class CountingText(str):
    """Set ``CountingText.compared`` to 0 before counting."""

    __slots__ = ()

    compared = 0

    def __eq__(self, other: object) -> bool:
        CountingText.compared += 1
        return str.__eq__(self, other) is True

    __hash__ = str.__hash__
