"""The targets that hold one case of perf.spark_compare against another."""

import re
from typing import Any

import pytest

from perf.bars import meets
from perf.spark_bounds import BOUNDS, bound_lines, in_turns


def rows(**figures: float | list[float]) -> list[dict[str, Any]]:
    """A figure stands for one round of itself."""
    runs = {name: one if isinstance(one, list) else [one] for name, one in figures.items()}
    return [{"case": name.replace("_", "-"), "runs": {"kbroker": r}} for name, r in runs.items()]


@pytest.mark.unit
def test_bound_is_judged_once_its_cases_are_measured() -> None:
    """A run of some cases is irrelevant for targets that need others."""
    assert bound_lines(rows(trigger_p50=0.1)) == []
    (line,) = bound_lines(rows(trigger_p50=0.1, trigger_empty=0.08))
    assert line.startswith("P7") and "1.25" in line and line.endswith("met")


@pytest.mark.unit
def test_bound_on_the_wrong_side_is_named_missed() -> None:
    (time,) = bound_lines(rows(trigger_p50=0.2, trigger_empty=0.1))
    assert time.endswith("MISSED")
    lines = bound_lines(rows(write_cached=0.5, write_raw=1.0, write_discard=0.5))
    assert [line.endswith("met") for line in lines] == [False, True]


@pytest.mark.unit
def test_read_is_held_against_the_slower_of_raw_and_generator() -> None:
    found = rows(read_1KB=0.7, raw_1KB=2.0, ceiling_1KB=1.0)
    (line,) = bound_lines(found)
    assert "0.70" in line and line.endswith("met")


@pytest.mark.unit
def test_rounds_are_compared_with_each_other() -> None:
    """If the machine becomes twice as fast for the last rounds of both, nothing changes."""
    (line,) = bound_lines(rows(trigger_p50=[0.4, 0.2, 0.2], trigger_empty=[0.4, 0.4, 0.2]))
    assert " 1.00" in line
    slower = {"raw_1KB": [2.0, 1.0, 4.0], "ceiling_1KB": [1.0, 2.0, 8.0]}
    (line,) = bound_lines(rows(read_1KB=[0.8, 0.8, 3.2], **slower))
    assert " 0.80" in line


@pytest.mark.unit
def test_cases_that_a_bound_compares_take_turns() -> None:
    names = ["read-100B", "read-1KB", "raw-100B", "raw-1KB", "status-10k", "load-skew-100B"]
    assert in_turns([*names, "load-100B"]) == [
        ["read-100B", "raw-100B", "load-skew-100B", "load-100B"],
        ["read-1KB", "raw-1KB"],
        ["status-10k"],
    ]
    assert in_turns([]) == []


@pytest.mark.unit
def test_every_bound_names_cases_that_exist() -> None:
    pytest.importorskip("pyspark")
    from perf.spark_compare import CASES

    names = {case.name for case in CASES}
    for bound in BOUNDS:
        assert set(bound.needs) <= names, bound.name
        assert meets(bound.rule, 1.0, 1.0) is not None, bound.name
        assert re.fullmatch(r"[<>]= [\d.]+x?", bound.rule), bound.name
