"""The cells of perf/compare.py, and its options."""

import pytest

from perf import compare, runner
from perf.bars import Cell
from perf.cells import CELLS, QUICK, Size, cpu_figures

pytestmark = pytest.mark.unit


def test_cells_with_settings_of_their_own_have_brokers_of_their_own():
    plain, other, same = (
        Cell(name, name, dict, (), {}, settings)
        for name, settings in (("a", {}), ("b", {"num.network.threads": "2"}), ("c", {}))
    )

    assert compare.by_settings([plain, other, same]) == [
        ({}, [plain, same]),
        ({"num.network.threads": "2"}, [other]),
    ]


def test_machine_without_java_and_git_is_described(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))

    assert runner.machine()["java"] == "none"
    assert runner.commit_text() == "unknown"


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
