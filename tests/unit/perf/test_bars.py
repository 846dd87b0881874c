"""Bars of cells: when one is cleared, what it is compared with, and what a result file says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from perf.bars import Bar, bars, judge, meets, middle

pytestmark = pytest.mark.unit

RATE = Bar("rate", ">= 1.5x, aim 2x", "requests/s")
CPU = Bar("cpu", "<= 0.5x", "CPU us/request")
LIMIT = Bar("stop", "<= 3", "stop, s")


def runs(**figures: list[float]) -> dict[str, Any]:
    count = len(next(iter(figures.values())))
    return {
        "runs": [{name: values[n] for name, values in figures.items()} for n in range(count)],
        "failures": [],
    }


def results(kbroker: float, kafka: float, old_kafka: float, figure: str) -> dict[str, Any]:
    return {
        "kbroker": runs(**{figure: [kbroker]}),
        "kafka-3.9.1": runs(**{figure: [kafka]}),
        "kafka-2.7.2": runs(**{figure: [old_kafka]}),
    }


@pytest.mark.parametrize(
    ("rule", "kbroker", "passes"),
    [
        (">= 1.6x", 160, True),
        (">= 1.6x", 159, False),
        ("<= 0.5x", 50, True),
        ("<= 0.5x", 51, False),
        ("<= 0.5x, <= 40", 40, True),
        ("<= 0.5x, <= 40", 41, False),
        (">= 1.5x, aim 2x", 150, True),
        ("<= 150, aim 100", 120, True),
    ],
)
def test_rule_beside_kafka_at_100_is_met_on_its_edge(
    rule: str, kbroker: float, passes: bool
) -> None:
    assert meets(rule, kbroker, kbroker / 100) is passes


@pytest.mark.parametrize("rule", ["", "aim 2x"])
def test_rule_without_a_bound_judges_nothing(rule: str) -> None:
    assert meets(rule, 1.0, 1.0) is None


def test_rate_is_compared_with_the_faster_kafka() -> None:
    judged = judge(RATE, results(290, 100, 200, "rate"))

    assert (judged["other"], judged["ratio"], judged["met"]) == (200, 1.45, False)


def test_cost_is_compared_with_the_cheaper_kafka() -> None:
    judged = judge(CPU, results(50, 100, 200, "cpu"))

    assert (judged["other"], judged["met"]) == (100, True)


def test_limit_needs_no_kafka() -> None:
    assert judge(LIMIT, {"kbroker": runs(stop=[2.0])})["met"] is True
    assert judge(LIMIT, {"kbroker": runs(stop=[3.5])})["met"] is False


def test_ratio_without_a_kafka_is_not_judged() -> None:
    assert judge(RATE, {"kbroker": runs(rate=[1.0])})["met"] is None
    assert judge(Bar("s", "<= 0.5x, <= 3"), {"kbroker": runs(s=[4.0])})["met"] is None


def test_contestant_that_is_unjudged_is_no_reference() -> None:
    judged = judge(RATE, results(290, 100, 200, "rate"), unjudged=["kafka-2.7.2"])

    assert judged["other"] == 100


def test_named_contestants_are_compared_with_each_other() -> None:
    bar = Bar("rate", ">= 2x", ours="send", other="confluent-kafka")
    found = {
        "send": runs(rate=[3.0]), "poll": runs(rate=[9.0]), "confluent-kafka": runs(rate=[2.0])
    }  # fmt: skip

    judged = judge(bar, found)

    assert judged["text"] == "send, rate"
    assert (judged["kbroker"], judged["other"], judged["other_name"]) == (3, 2, "confluent-kafka")
    assert (judged["ratio"], judged["met"]) == (1.5, False)


def test_paired_ratio_is_that_of_the_rounds() -> None:
    """If the machine becomes slower for the last rounds of both, nothing changes."""
    found = {"kbroker": runs(cpu=[2.0, 4.0, 8.0]), "bare": runs(cpu=[4.0, 4.0, 4.0])}

    assert judge(CPU, found)["ratio"] == 1.0
    assert judge(replace(CPU, is_paired=True), found)["ratio"] == 1.0
    found = {"kbroker": runs(cpu=[1.0, 1.0, 8.0]), "bare": runs(cpu=[2.0, 8.0, 8.0])}
    assert judge(CPU, found)["ratio"] == 0.125
    assert judge(replace(CPU, is_paired=True), found)["ratio"] == 0.5


def test_least_counts_where_other_load_only_adds() -> None:
    bar = Bar("us", "<= 1.05x", ours="with", other="without", middle=min)

    judged = judge(bar, {"with": runs(us=[9.0, 2.0, 7.0]), "without": runs(us=[2.0, 2.0, 2.0])})

    assert (judged["kbroker"], judged["met"]) == (2, True)


def test_median_counts_and_a_failure_leaves_nothing_to_judge() -> None:
    found = runs(rate=[1.0, 9.0, 3.0])
    assert middle(found, "rate") == 3.0
    found["failures"].append("rejected")
    assert middle(found, "rate") is None


def test_rows_of_bars_are_figures_with_rules() -> None:
    barred, shown = bars("start_s <= 0.15x, <= 0.6", "p99_us")

    assert (barred.figure, barred.rule, barred.label) == ("start_s", "<= 0.15x, <= 0.6", "s")
    assert (shown.figure, shown.rule, shown.label) == ("p99_us", "", "p99 µs")
