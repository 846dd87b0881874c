"""Turns, table and result file of comparisons, with contestants that only return figures."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perf import runner
from perf.bars import Bar, Cell, CellFailed, Figures, bars, middle
from perf.runner import Report, measure_cell, turns

pytestmark = pytest.mark.unit

COLUMNS = {"kbroker": "kbroker", "kafka": "Kafka 3.9.1"}


class Claimed:
    """Contestants whose every run yields the next of their figures."""

    def __init__(self, **values: list[Any]) -> None:
        self.names = list(values)
        self.order: list[str] = []
        self._values = {name: list(own) for name, own in values.items()}

    def take(self, _: Cell, name: str) -> Figures:
        self.order.append(name)
        value = self._values[name].pop(0)
        if isinstance(value, Exception):
            raise value
        return {"rate": value}


@pytest.fixture
def cell() -> Cell:
    rows = (Bar("rate", ">= 1.5x", "rate/s"),)
    return Cell("toy", "a toy", dict, rows, {"size": 1}, {"num.io.threads": "1"})


@pytest.fixture
def told(cell: Cell) -> Callable[..., str]:
    """What a comparison with such figures prints."""

    def text(columns: dict[str, str] | None = COLUMNS, **values: list[Any]) -> str:
        said: list[str] = []
        claimed, rounds = Claimed(**values), len(next(iter(values.values())))
        report = Report(Namespace(output=None), columns, unjudged=["kfake"], say=said.append)
        report.measure([cell], claimed.names, rounds, claimed.take)
        return "\n".join(said)

    return text


def test_contestants_take_turns_in_beginning() -> None:
    assert list(turns(["new", "old"], 3)) == [["new", "old"], ["old", "new"], ["new", "old"]]
    assert list(turns(["a", "b", "c"], 2)) == [["a", "b", "c"], ["b", "c", "a"]]


def test_measured_cells_alternate_and_take_the_median(cell: Cell, told: Callable[..., str]) -> None:
    values = {"kbroker": [10.0, 30.0, 20.0], "kafka": [10.0, 11.0, 9.0]}
    claimed = Claimed(**values)

    results = measure_cell(cell, claimed.names, 3, claimed.take)

    assert middle(results["kbroker"], "rate") == 20
    assert claimed.order == ["kbroker", "kafka", "kafka", "kbroker", "kbroker", "kafka"]
    row = told(**values).splitlines()[-1]
    assert row.split() == ["rate/s", "20", "10", "2.00x", ">=", "1.5x", "met"]


def test_peer_is_a_column_and_has_no_bar(told: Callable[..., str]) -> None:
    columns = {**COLUMNS, "kfake": "kfake"}

    row = told(columns, kbroker=[20.0], kafka=[10.0], kfake=[77.0]).splitlines()[-1]

    assert row.split() == ["rate/s", "20", "10", "77", "2.00x", ">=", "1.5x", "met"]


def test_measured_cell_below_its_bar_is_a_miss(told: Callable[..., str]) -> None:
    assert told(kbroker=[1.4], kafka=[1.0]).rstrip().endswith("MISSED")


def test_measured_cell_with_one_failed_run_has_no_figure(told: Callable[..., str]) -> None:
    printed = told(kbroker=[10.0, CellFailed("refused")], kafka=[10.0, 10.0])

    assert "not measured" in printed
    assert "kbroker FAILED: CellFailed: refused" in printed


def test_failure_of_a_library_or_a_wait_becomes_its_text(cell: Cell) -> None:
    claimed = Claimed(kafka=[TimeoutError("not within 3 s")])

    results = measure_cell(cell, ["kafka"], 1, claimed.take)

    assert results["kafka"] == {"runs": [], "failures": ["TimeoutError: not within 3 s"]}


def test_measured_cell_with_a_bug_in_it_raises(cell: Cell) -> None:
    with pytest.raises(ZeroDivisionError):
        measure_cell(cell, ["kafka"], 1, Claimed(kafka=[ZeroDivisionError()]).take)


def test_cells_of_one_measurement_without_parameters_share_its_runs() -> None:
    def measure() -> Figures:
        return {}

    cells = [Cell(name, name, measure, bars("rate <= 1x")) for name in ("start", "memory")]
    report = Report(Namespace(output=None))

    report.measure(cells, ["kafka"], 1, Claimed(kafka=[1.0]).take)

    assert report.cells["start"]["results"] is report.cells["memory"]["results"]


def test_contestants_as_rows_have_all_figures_and_bars_below(told: Callable[..., str]) -> None:
    printed = told(None, kbroker=[3.0, 5.0], kafka=[2.0, 2.0]).splitlines()

    assert printed[0] == "toy: a toy"
    assert printed[1].split() == ["kbroker", "4", "(3", "to", "5)", "rate"]
    assert printed[-1].split() == ["rate/s", "4", "2.00x", ">=", "1.5x", "met"]


def test_rows_name_figures_bars_and_failures(told: Callable[..., str]) -> None:
    columns = {**COLUMNS, "kafka-2.7.2": "kafka-2.7.2"}
    old = {"kafka-2.7.2": [CellFailed("rejected: 19")]}

    printed = told(columns, kbroker=[300.0], kafka=[100.0], **old)

    assert "3.00x" in printed and ">= 1.5x" in printed and "met" in printed
    assert "kafka-2.7.2 FAILED: CellFailed: rejected: 19" in printed


def test_report_holds_what_a_reader_needs_and_is_json(cell: Cell, tmp_path: Path) -> None:
    output = tmp_path / "new" / "result.json"
    report = Report(Namespace(output=str(output)), COLUMNS, parameters={"runs": 2})
    claimed = Claimed(kbroker=[3.0, 5.0], kafka=[2.0, 2.0])

    report.measure([cell], claimed.names, 2, claimed.take)

    written = json.loads(output.read_text())
    assert {"commit", "machine", "parameters", "date", "kafka"} <= written.keys()
    toy = written["cells"]["toy"]
    assert toy["parameters"] == {"size": 1, "num.io.threads": "1"}
    assert toy["samples"] == {"kbroker": 2, "kafka": 2}
    assert toy["median"] == {"kbroker": {"rate": 4.0}, "kafka": {"rate": 2.0}}
    assert toy["spread"]["kbroker"]["rate"] == 0.5
    (condition,) = toy["conditions"]
    assert condition == {
        "figure": "rate", "text": "rate/s", "condition": ">= 1.5x", "kbroker": 4.0,
        "other": 2.0, "other_name": "", "ratio": 2.0, "met": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"kbroker": [3.0], "kafka": [2.0]}, 0),
        ({"kbroker": [3.0]}, 0),
        ({"kbroker": [2.0], "kafka": [2.0]}, 1),
        ({"kbroker": [3.0], "kafka": [CellFailed("x")]}, 1),
    ],
)
def test_exit_code_tells_of_failures_and_missed_bars(
    cell: Cell, values: dict[str, list[Any]], code: int
) -> None:
    report = Report(Namespace(output=None), say=runner.silent)
    claimed = Claimed(**values)

    report.measure([cell], claimed.names, 1, claimed.take)

    assert report.end() == code


@pytest.mark.parametrize(
    ("options", "folder", "is_there"),
    [
        ({"output": None, "quick": False}, "cluster", True),
        ({"output": None, "quick": True}, "cluster", False),
        ({"output": None, "quick": False}, None, False),
    ],
)
def test_file_has_its_place_unless_the_size_is_a_toy(
    cell: Cell, options: dict[str, Any], folder: str | None, is_there: bool,
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.setattr(runner, "RESULTS", tmp_path)
    report = Report(Namespace(**options), None, folder, "-more", say=runner.silent)

    report.measure([cell], ["kafka"], 1, Claimed(kafka=[1.0]).take)

    written = [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.json")]
    assert len(written) == is_there
    assert all(name.startswith("cluster/") and name.endswith("-more.json") for name in written)
