"""The comparison with a minimal broker, at toy size."""

import re

import pytest

from perf import limit

pytestmark = pytest.mark.integration


@pytest.mark.slow
def test_every_load_yields_a_ratio_to_the_bare_server(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(limit, "CHUNKS", 2)

    code = limit.main(["--runs", "1", "--seconds", "0.2", "--place", str(tmp_path)])

    head, *lines = capsys.readouterr().out.splitlines()
    assert code in (0, 1)  # machines that run tests are busy
    assert head.split()[1:3] == ["bare", "kbroker"]
    titles, ratios = lines[::2], lines[1::2]
    assert titles == [f"{cell.name}: {cell.title}" for cell in limit.CELLS]
    assert all(re.search(r" [\d.]+x  <= ", ratio) for ratio in ratios), ratios
    assert list(tmp_path.iterdir()) == []
