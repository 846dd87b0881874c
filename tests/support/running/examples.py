"""How many examples a property has: fewer in ``make test`` than in ``make test-all``."""

from __future__ import annotations

from hypothesis import settings

# Of a property that does not say how many it needs.
USUAL = settings.get_profile("default").max_examples


def examples(count: int) -> int:
    """So many in ``make test-all``, and the same share of the usual ones in any other profile."""
    assert settings.default is not None
    return max(1, count * settings.default.max_examples // USUAL)
