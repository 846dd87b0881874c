"""Which tests a run selects."""

from __future__ import annotations

import pytest


def is_without_slow(config: pytest.Config) -> bool:
    """Whether this is ``make test``, which leaves the slow ones to ``make test-all``."""
    return bool(config.getoption("markexpr") == "not slow")
