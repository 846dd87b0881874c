"""Bars, table and result file of perf/compare.py, with brokers that only return figures."""

import json

import pytest

from perf import compare
from perf.cells import CELLS, QUICK, Bar, Cell, CellFailed, Size, at_least, cpu_figures

pytestmark = pytest.mark.unit


class Claimed:
    """A broker whose every run yields the next of these figures."""

    def __init__(self, *values):
        self.values = list(values)


def measure_claimed(broker, parameters, size):
    value = broker.values.pop(0)
    if isinstance(value, Exception):
        raise value
    return {"rate": value}


@pytest.fixture
def cell():
    return Cell("toy", "a toy", measure_claimed, (at_least("rate", "rate/s", 1.5),), {"size": 1})


@pytest.fixture(autouse=True)
def no_settling(monkeypatch):
    monkeypatch.setattr(compare, "SETTLE_S", 0)


@pytest.mark.parametrize(
    ("bar", "kbroker", "passes"),
    [
        (at_least("x", "x", 1.6), 160, True),
        (at_least("x", "x", 1.6), 159, False),
        (Bar("x", "x", 0.5), 50, True),
        (Bar("x", "x", 0.5), 51, False),
        (Bar("x", "x", 0.5, limit=40), 40, True),
        (Bar("x", "x", 0.5, limit=40), 41, False),
    ],
)
def test_bar_against_kafka_at_100_passes_on_its_edge(bar, kbroker, passes):
    assert bar.passes(kbroker, 100) is passes


def test_measured_cells_alternate_and_take_the_median(cell, capsys):
    running = {"kbroker": Claimed(10.0, 30.0, 20.0), "kafka": Claimed(10.0, 11.0, 9.0)}

    results = compare.measure_cells([cell], running, 3, QUICK)

    assert compare.middle(results["toy"]["kbroker"], "rate") == 20
    printed = capsys.readouterr().out
    assert "2.00x  >= 1.5x          pass" in printed


def test_peer_is_a_column_behind_the_verdict_and_has_no_bar(cell, capsys):
    running = {"kbroker": Claimed(20.0), "kafka": Claimed(10.0), "kfake": Claimed(77.0)}

    compare.measure_cells([cell], running, 1, QUICK)

    row = capsys.readouterr().out.splitlines()[-1]
    assert row[: compare.VERDICT_END].rstrip().endswith("pass")
    assert row[compare.VERDICT_END :].split() == ["77"]


def test_measured_cell_below_its_bar_is_a_miss(cell, capsys):
    compare.measure_cells([cell], {"kbroker": Claimed(1.4), "kafka": Claimed(1.0)}, 1, QUICK)

    assert capsys.readouterr().out.rstrip().endswith("MISS")


def test_measured_cell_with_one_failed_run_has_no_figure(cell, capsys):
    running = {
        "kbroker": Claimed(10.0, CellFailed("refused")),
        "kafka": Claimed(10.0, 10.0),
    }

    results = compare.measure_cells([cell], running, 2, QUICK)

    assert compare.middle(results["toy"]["kbroker"], "rate") is None
    printed = capsys.readouterr().out
    assert "not measured" in printed
    assert "kbroker FAILED: CellFailed: refused" in printed


def test_measured_cell_with_a_bug_in_it_raises(cell):
    with pytest.raises(ZeroDivisionError):
        compare.measure_cells([cell], {"kafka": Claimed(ZeroDivisionError())}, 1, QUICK)


def test_cells_of_one_measurement_without_parameters_share_its_runs():
    cells = [
        Cell(name, name, measure_claimed, (Bar("rate", "rate", 1),)) for name in ("start", "memory")
    ]

    results = compare.measure_cells(cells, {"kafka": Claimed(1.0)}, 1, QUICK)

    assert results["start"] is results["memory"]


def test_report_holds_what_a_reader_needs_and_is_json(cell, monkeypatch, capsys):
    monkeypatch.setattr(compare, "CELLS", (cell,))
    options = compare.parse_arguments(["--cells", "toy", "--runs", "2"])
    running = {"kbroker": Claimed(3.0, 5.0), "kafka": Claimed(2.0, 2.0)}
    results = compare.measure_cells([cell], running, 2, QUICK)

    written = json.loads(json.dumps(compare.report(options, QUICK, results)))

    assert {"commit", "machine", "parameters", "date", "kafka"} <= written.keys()
    toy = written["cells"]["toy"]
    assert toy["samples"] == {"kbroker": 2, "kafka": 2}
    assert toy["spread"]["kbroker"]["rate"] == 0.5
    assert toy["bars"] == [{"figure": "rate", "bar": ">= 1.5x", "ratio": 2.0, "pass": True}]


def test_machine_without_java_and_git_is_described(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))

    assert compare.machine()["java"] == "none"
    assert compare.commit_text() == "unknown"


def test_cpu_figures_are_per_gigabyte_and_per_request():
    assert cpu_figures(2.0, 4e9, 1000) == {
        "cpu_s": 2.0,
        "cpu_s_per_gb": 0.5,
        "cpu_us_per_request": 2000.0,
    }


def test_cells_are_those_of_the_table_and_named_once():
    names = [cell.name for cell in CELLS]

    assert (
        names
        == (
            "sat16k sat160k one16 one1 produce100 produce1k_lz4 consume100 e2e1000 start memory"
            " commits transactions group300 stored1m compact2g oldfetch_lz4 sat16k_v1 sat16k_v0"
        ).split()
    )
    assert set(compare.WARM_CELLS) <= set(names)


def test_arguments_by_default_are_five_runs_of_every_cell_on_a_warm_jvm():
    options = compare.parse_arguments([])

    assert (options.runs, options.warm_seconds) == (5, 30)
    assert options.cells == [cell.name for cell in CELLS]


def test_arguments_for_a_quick_look_are_small():
    options = compare.parse_arguments(["--quick", "--cells", "one1, sat16k"])

    assert (options.runs, options.warm_seconds, options.cells) == (1, 1, ["one1", "sat16k"])
    assert QUICK.seconds < Size().seconds


@pytest.mark.parametrize(
    "bad",
    [["--cells", "nope"], ["--brokers", "nope"], ["--runs", "0"], ["--kbroker-override", "x"]],
)
def test_arguments_that_cannot_work_end_the_program(bad, capsys):
    with pytest.raises(SystemExit):
        compare.parse_arguments(bad)

    assert "error: " in capsys.readouterr().err
