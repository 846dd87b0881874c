"""The table of perf/README.md: which result is the newest, and the content of a row."""

import json
import re

import pytest

from perf import results_table
from perf.kafka_distribution import ROOT

pytestmark = pytest.mark.unit

MACHINE = {"cpu": "Intel(R) Xeon(R) Processor", "cores": 2}


def cells(date, commit, ours, theirs=100.0, passes=True):
    bar = {"figure": "p99_us", "bar": "<= 0.5x", "ratio": ours / theirs, "pass": passes}
    cell = {
        "title": "a load",
        "median": {"kbroker": {"p99_us": ours}, "kafka": {"p99_us": theirs}},
        "bars": [bar],
    }
    return {"date": date, "commit": commit, "machine": MACHINE, "cells": {"one1": cell}}


def cases(date, commit, **runs):
    found = [
        {"case": name.replace("_", "-"), "runs": {"kbroker": rates}, "at_least": None}
        for name, rates in runs.items()
    ]
    return {"date": date, "commit": commit, "machine": {"cores": 2}, "cases": found}


def cluster(date, commit, ours, ratio=None, met=True):
    condition = {
        "figure": "stop_s",
        "text": "stop, s",
        "condition": "<= 3",
        "kbroker": ours,
        "kafka": ours / ratio if ratio else None,
        "ratio": ratio,
        "met": met,
    }
    cell = {"title": "orderly stop", "conditions": [condition]}
    return {"date": date, "commit": commit, "machine": MACHINE, "cells": {"shutdown": cell}}


@pytest.fixture
def table(tmp_path):
    """Writes result files and returns the rows of their table."""

    def rows(*reports):
        for number, report in enumerate(reports):
            (tmp_path / f"{number}.json").write_text(json.dumps(report))
        return results_table.results_table(tmp_path).splitlines()[2:]

    return rows


def test_row_has_figure_ratio_bar_commit_and_machine(table):
    assert table(cells("2026-11-21", "aaa", 20.0)) == [
        "| a load (`one1`) | p99 µs | 20 | 100 | 0.20× | ≤ 0.5× | aaa | Intel Xeon, 2 cores |"
    ]


def test_newest_date_wins_whatever_the_file_is_called(table):
    (row,) = table(cells("2026-11-23", "new", 30.0), cells("2026-11-21", "old", 20.0))

    assert "| new |" in row and "0.30×" in row


def test_missed_bar_is_bold(table):
    (row,) = table(cells("2026-11-21", "aaa", 60.0, passes=False))

    assert "**0.60×**" in row


def test_run_that_failed_does_not_replace_an_older_figure(table):
    failed = cells("2026-11-23", "new", 30.0)
    failed["cells"]["one1"]["bars"][0] |= {"ratio": None, "pass": None}

    (row,) = table(cells("2026-11-21", "old", 20.0), failed)

    assert "| old |" in row


def test_cells_of_one_broker_are_read_as_they_are_written_today(table):
    """Older files have bars and medians apart; the newest file wins whichever form it has."""
    new = cluster("2026-11-23", "new", 20.0, 0.2)
    new["cells"]["one1"] = new["cells"].pop("shutdown")
    new["cells"]["one1"]["conditions"][0]["other_name"] = ""
    new["cells"]["one1"]["conditions"][0]["other"] = 100.0
    del new["cells"]["one1"]["conditions"][0]["kafka"]

    (row,) = table(cells("2026-11-21", "old", 30.0), new)

    assert "| stop, s | 20 | 100 | 0.20× | ≤ 3 | new |" in row


def test_cluster_has_rows_behind_one_broker(table, tmp_path):
    (tmp_path / "cluster").mkdir()
    for number, one in enumerate(
        [cluster("2026-11-27", "new", 2.0, 0.25), cluster("2026-11-26", "old", 1.0)]
    ):
        (tmp_path / "cluster" / f"{number}.json").write_text(json.dumps(one))

    _, row = table(cells("2026-11-28", "aaa", 20.0))

    assert row == (
        "| three brokers: orderly stop (`shutdown`) | stop, s | 2 | 8 | 0.25× | ≤ 3 "
        "| new | Intel Xeon, 2 cores |"
    )


def test_what_watches_a_broker_has_rows_of_its_own(table, tmp_path):
    (tmp_path / "monitoring").mkdir()
    one = cluster("2026-11-27", "new", 2.0)
    (tmp_path / "monitoring" / "1.json").write_text(json.dumps(one))

    assert table() == [
        "| orderly stop (`shutdown`) | stop, s | 2 | - | – | ≤ 3 | new | Intel Xeon, 2 cores |"
    ]


def test_clients_have_rows_that_name_the_other_library(table, tmp_path):
    (tmp_path / "client").mkdir()
    condition = {
        "text": "kbroker send, records/s",
        "condition": ">= 0.7x, aim 1.2x",
        "kbroker": 30.0,
        "other": 60.0,
        "other_name": "confluent-kafka",
        "ratio": 0.5,
        "met": False,
    }
    cell = {"title": "produce values of 100 B", "conditions": [condition]}
    one = {"date": "2026-11-27", "commit": "new", "machine": MACHINE, "cells": {"produce100": cell}}
    (tmp_path / "client" / "1.json").write_text(json.dumps(one))

    assert table() == [
        "| Python clients: produce values of 100 B (`produce100`) | kbroker send, records/s | 30 "
        "| 60 (confluent-kafka) | **0.50×** | ≥ 0.7×, aim 1.2× | new | Intel Xeon, 2 cores |"
    ]


def test_missed_limit_without_a_ratio_has_a_bold_figure(table, tmp_path):
    (tmp_path / "cluster").mkdir()
    one = cluster("2026-11-27", "new", 4.0, met=False)
    (tmp_path / "cluster" / "1.json").write_text(json.dumps(one))

    (row,) = table()

    assert "| **4** | - | – | ≤ 3 |" in row


def test_cluster_that_was_not_judged_has_no_row(table, tmp_path):
    (tmp_path / "cluster").mkdir()
    one = cluster("2026-11-27", "new", 4.0, met=None)
    (tmp_path / "cluster" / "1.json").write_text(json.dumps(one))

    assert table() == []


def test_bound_is_taken_from_one_run_that_has_all_its_cases(table):
    whole = cases("2026-11-21", "old", write_cached=[8.0], write_raw=[10.0])
    part = cases("2026-11-23", "new", write_cached=[1.0])

    (row,) = table(whole, part)

    assert row.startswith("| P8 ") and "0.80×" in row and "| old |" in row


def test_every_missed_bar_has_a_line_that_says_why():
    """A reader who sees a bold ratio finds out why."""
    missed = (ROOT / "perf" / "notes" / "missed-bars.md").read_text(encoding="utf-8")

    for row in results_table.newest_rows():
        if row.passes is False:
            name = f"`{row.name}`" if row.name else row.title.split()[0]
            assert re.search(rf"^- {re.escape(name)}[:,]", missed, re.MULTILINE), name
