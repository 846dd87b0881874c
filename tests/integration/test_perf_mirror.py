"""The comparison of mirror makers at toy size, without Kafka's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka")

from perf import client, mirror

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def test_mirror_cell_copies_all_records_and_tells_rates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = [way for way in mirror.WAYS if way.name.startswith("kbroker")]
    monkeypatch.setattr(mirror, "WAYS", (ours[0], ours[-1]))
    output = tmp_path / "result.json"
    words = ["--cells", "mirror", "--quick", "--place", str(tmp_path), "--output", str(output)]

    assert client.main(words) == 0

    said = capsys.readouterr().out
    assert said.count("MB/s") == 2
    results = json.loads(output.read_text())["cells"]["mirror"]["results"]
    assert set(results) == {way.name for way in mirror.WAYS}
    assert all(run["mb_per_s"] > 0 for some in results.values() for run in some["runs"])
