"""What figures were some time ago."""

from __future__ import annotations

import pytest

from kbroker.metrics.window import Window

pytestmark = pytest.mark.unit


def test_window_covers_as_many_samples_as_it_has() -> None:
    totals = iter(range(100))
    window = Window(lambda: next(totals), 0, 2, 10)
    seen = []

    for now_ms in (5, 10, 15, 20, 30):
        window.tick(now_ms * 1_000_000)
        seen.append(window.oldest.at_ns // 1_000_000)

    assert seen == [0, 0, 0, 10, 20]
    assert window.oldest.value == 2
