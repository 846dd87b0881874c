"""The measurement of Arrow conversion, at toy size."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow")

from perf import arrow_rates

pytestmark = pytest.mark.unit


def test_arrow_rates_are_measured_over_all_rows():
    rates = arrow_rates.measure(10_000, 20, codec=3, rounds=1)

    assert all(rate > 0 for rate in rates)
