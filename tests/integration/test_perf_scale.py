"""The cells of ``perf/scale.py`` at toy size, so that they run when somebody wants figures."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.brokers.zookeeper import skip_without_zookeeper

pytest.importorskip("confluent_kafka")

from perf import scale

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

# How many figures there are at least: of what fails, there are none.
CELLS = {"site": 20, "connections": 14}


@pytest.mark.parametrize("cell", CELLS)
def test_cell_gets_all_its_figures(cell: str, tmp_path: Path) -> None:
    if cell == "site":
        skip_without_zookeeper()
    if cell == "connections" and not shutil.which("cc"):
        pytest.skip("a C compiler is not installed")
    output = tmp_path / "result.json"
    arguments = [cell, "--small", "--place", str(tmp_path), "--output", str(output)]
    options, size = scale.parse_arguments(arguments)
    chosen = scale.CELLS[cell]

    results = chosen.cell.measure(size, Path(options.place), {})

    figures = results["kbroker"]
    assert len(figures) >= CELLS[cell]
    assert {bar.figure for bar in chosen.cell.bars} <= figures.keys()
    assert figures.get("records_wrong", 0) == 0
