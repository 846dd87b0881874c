"""The targets that hold one case of perf.spark_compare against another."""

from typing import Any

import pytest

from perf.spark_bounds import BOUNDS, bound_lines


def rows(**figures: float) -> list[dict[str, Any]]:
    return [{"case": name.replace("_", "-"), "kbroker": one} for name, one in figures.items()]


@pytest.mark.unit
def test_bound_is_judged_once_its_cases_are_measured() -> None:
    """A run of some cases says nothing about targets that need others."""
    assert bound_lines(rows(trigger_p50=0.1)) == []
    (line,) = bound_lines(rows(trigger_p50=0.1, trigger_empty=0.08))
    assert line.startswith("P7") and "1.25" in line and line.endswith("pass")


@pytest.mark.unit
def test_bound_on_the_wrong_side_is_named_missed() -> None:
    (time,) = bound_lines(rows(trigger_p50=0.2, trigger_empty=0.1))
    assert time.endswith("MISSED")
    lines = bound_lines(rows(write_cached=0.5, write_raw=1.0, write_discard=0.5))
    assert [line.endswith("pass") for line in lines] == [False, True]


@pytest.mark.unit
def test_read_is_held_against_the_slower_of_raw_and_generator() -> None:
    found = rows(read_1KB=0.7, raw_1KB=2.0, ceiling_1KB=1.0)
    (line,) = bound_lines(found)
    assert "0.70" in line and line.endswith("pass")


@pytest.mark.unit
def test_every_bound_names_cases_that_exist() -> None:
    pytest.importorskip("pyspark")
    from perf.spark_compare import CASES

    names = {case.name for case in CASES}
    for bound in BOUNDS:
        assert set(bound.needs) <= names, bound.name
        assert (bound.at_least is None) != (bound.at_most is None), bound.name
