"""What classes of ``metric.reporters`` are told."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from kbroker.config.loader import load_properties
from kbroker.errors import ConfigError
from kbroker.exposition.mbeans import GAUGE, METER, NO_TAGS, TIMES, Bean, Distribution, Tags
from kbroker.testing import wait_until
from kbroker.workers import plugged
from kbroker.workers.exporter.reporters import Reporters

pytestmark = pytest.mark.unit

COUNT = Bean("kafka.server", "BrokerTopicMetrics", "BytesInPerSec", METER, "Bytes.")
SIZE = Bean("kafka.log", "Log", "Size", GAUGE, "Bytes of a log.")
TOOK = Bean("kafka.network", "RequestMetrics", "TotalTimeMs", TIMES, "Time.")


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def reporters(path: Path, *classes: str) -> Reporters:
    names = [f"support.brokers.metric_reporters.{name}" for name in classes]
    return Reporters(names, {"reporter.file": str(path)})


def test_reporter_is_told_of_metrics_as_they_come_and_go(tmp_path: Path) -> None:
    path = tmp_path / "told"
    made = reporters(path, "FileReporter")
    size = Tags(("topic", "orders"), ("partition", "0"))

    made.look([(COUNT, [(NO_TAGS, 5)]), (SIZE, [(size, 100)])])
    wait_until(lambda: len(rows(path)) == 3)
    made.look([(COUNT, [(NO_TAGS, 6)]), (TOOK, [(NO_TAGS, Distribution(3, 1.5, [1.0] * 6))])])
    wait_until(lambda: [row["what"] for row in rows(path)].count("removal") == 1)
    made.close()

    told = rows(path)
    assert told[0] == {"what": "init"}
    assert told[1] | {"what": ""} == {
        "what": "", "name": "BytesInPerSec", "group": "BrokerTopicMetrics", "tags": {},
        "domain": "kafka.server", "attribute": "Count", "value": 5,
    }  # fmt: skip
    assert told[2]["tags"] == {"topic": "orders", "partition": "0"}
    later = {row["attribute"]: row["value"] for row in told[3:-2]}
    assert later == {"Count": 3, "Mean": 1.5} | {
        f"{text}thPercentile": 1.0 for text in ("50", "75", "95", "98", "99", "999")
    }
    assert told[-2]["what"] == "removal"
    assert told[-2]["value"] is None
    assert told[-1] == {"what": "close"}


def test_reporter_that_hangs_or_raises_delays_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "told"
    made = reporters(path, "HangingReporter", "RaisingReporter", "FileReporter")

    for value in range(20):
        made.look([(COUNT, [(Tags(("topic", str(value))), value)])])

    wait_until(lambda: any(row["what"] == "change" for row in rows(path)))
    wait_until(lambda: "metric_change" in caplog.text)


def test_classes_that_are_not_pythons_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    config, _ = load_properties(
        [("metric.reporters", "io.confluent.metrics.reporter.ConfluentMetricsReporter,"
          "org.apache.kafka.common.metrics.JmxReporter,"
          "support.brokers.metric_reporters.FileReporter")], {},
    )  # fmt: skip

    with caplog.at_level(logging.WARNING):
        assert plugged.reporter_names(config) == ["support.brokers.metric_reporters.FileReporter"]
    assert "ConfluentMetricsReporter has no effect" in caplog.text
    assert "JmxReporter" not in caplog.text


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"metric.reporters": "support.brokers.metric_reporters.Incomplete"}, "metric_change"),
        ({"metric.reporters": "support.brokers.metric_reporters.Nothing"}, "Nothing"),
        (
            {
                "metric.reporters": "support.brokers.metric_reporters.FileReporter",
                "metrics.port": "-1",
            },
            "metrics.port is -1",
        ),
    ],
)
def test_class_that_cannot_be_a_reporter_refuses_the_start(
    settings: dict[str, str], reason: str
) -> None:
    config, _ = load_properties(list(settings.items()), {})

    with pytest.raises(ConfigError, match=reason):
        plugged.check(config)


def test_class_that_cannot_be_made_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"reporter\.file"):
        Reporters(["support.brokers.metric_reporters.FileReporter"], {})
