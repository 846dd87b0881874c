"""Two builds loaded in turns, at toy size: this checkout beside itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from perf import builds
from perf.cells import QUICK
from perf.kafka_distribution import ROOT

pytestmark = pytest.mark.integration


@pytest.mark.slow
def test_each_cell_is_a_line_with_both_builds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(builds, "BURST", QUICK)

    builds.main([str(ROOT), "--cells", "one1", "--rounds", "2", "--place", str(tmp_path)])

    figures = (
        r"one1 +[\d.]+ +[\d.]+ us of CPU per request +[\d.]+x +p50 +[\d.]+ +[\d.]+ us +[\d.]+x"
    )
    assert re.fullmatch(figures, capsys.readouterr().out.splitlines()[1])
    assert list(tmp_path.iterdir()) == []


def test_total_counts_each_request_once() -> None:
    bursts = [
        {"cpu_s": 1.0, "cpu_us_per_request": 10.0, "p50_us": 5.0},  # 100,000 requests
        {"cpu_s": 1.0, "cpu_us_per_request": 30.0, "p50_us": 7.0},  # 33,333 requests
    ]

    assert builds.total(bursts) == (pytest.approx(15.0), 6.0)


@pytest.mark.parametrize("wrong", [["--cells", "one2"], ["--after", "/nowhere"]])
def test_unknown_cell_or_checkout_is_named(
    wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        builds.main([str(ROOT), *wrong])

    assert wrong[1] in capsys.readouterr().err
