"""A broker with a class of ``metric.reporters``."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from kbroker.client import KafkaProducer
from kbroker.testing import Broker, wait_until

pytestmark = pytest.mark.integration

COMMAND = [sys.executable, "-m", "kbroker.cli.start"]
TESTS = Path(__file__).resolve().parents[1]


def test_reporter_sees_what_producers_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "told"
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    )
    settings = {
        "metric.reporters": "support.brokers.metric_reporters.FileReporter",
        "kafka.metrics.polling.interval.secs": 1,
    }
    options = ["--override", f"reporter.file={path}"]
    with Broker(settings, command=[*COMMAND, *options]) as broker:
        wait_until(lambda: "KafkaController" in path.read_text() if path.exists() else False)
        with KafkaProducer({"bootstrap.servers": broker.bootstrap}) as producer:
            producer.send("orders", value=b"x").result(30)

        def told() -> list[dict[str, Any]]:
            return [json.loads(line) for line in path.read_text().splitlines()]

        wait_until(lambda: any(row.get("tags") == {"topic": "orders"} for row in told()))

    rows = told()
    assert rows[0] == {"what": "init"}
    assert rows[-1] == {"what": "close"}
    [messages] = [
        row for row in rows
        if row.get("name") == "MessagesInPerSec" and row["tags"] == {"topic": "orders"}
    ]  # fmt: skip
    assert messages["value"] == 1
