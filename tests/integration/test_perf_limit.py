"""The comparison with a minimal broker, at toy size."""

import pytest

from perf import limit

pytestmark = pytest.mark.integration


@pytest.mark.slow
def test_every_load_yields_a_ratio_to_the_bare_server(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(limit, "CHUNKS", 2)

    code = limit.main(["--runs", "1", "--seconds", "0.2", "--place", str(tmp_path)])

    lines = capsys.readouterr().out.splitlines()
    assert code == 0
    assert [line.partition("bare")[0].strip() for line in lines] == [
        load.title for load in limit.LOADS.values()
    ]
    assert list(tmp_path.iterdir()) == []
