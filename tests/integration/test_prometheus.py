"""Prometheus itself reads ``/metrics``: Debian's package ``prometheus`` has it and promtool."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.brokers.process_harness import http_get
from support.surfaces.dashboards import NEEDED, Needed

from kbroker.cli.monitoring import alert_rules, prometheus_config
from kbroker.testing import Broker, wait_until

confluent_kafka = pytest.importorskip("confluent_kafka")

from test_dashboards import RECORDS, load  # noqa: E402

pytestmark = [pytest.mark.integration, pytest.mark.slow]

# What promtool minds in names that others have chosen, and that cells hold whole units.
OF_OTHERS = re.compile(r"^(kafka_|process_)|use base unit|abbreviated units")


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"offsets.topic.num.partitions": 2, "num.partitions": 1}) as running:
        load(running)
        yield running


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def test_promtool_takes_the_rules_that_are_shipped(tmp_path: Path) -> None:
    rules = tmp_path / "kbroker-rules.yml"
    rules.write_text(alert_rules())
    config = tmp_path / "prometheus.yml"
    config.write_text(prometheus_config(["127.0.0.1:9644"]))

    for arguments in (["rules", str(rules)], ["config", str(config)]):
        done = subprocess.run(
            [tool("promtool"), "check", *arguments], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr


def test_promtool_takes_the_text_and_finds_nothing_wrong_with_own_names(broker: Broker) -> None:
    text = http_get(broker, "/metrics")[1]

    done = subprocess.run(
        [tool("promtool"), "check", "metrics"], input=text, capture_output=True, text=True
    )

    assert done.returncode in (0, 3), done.stderr  # 3: remarks on names
    own = [line for line in done.stderr.splitlines() if not OF_OTHERS.search(line)]
    assert own == []


def expression(needed: Needed) -> str:
    """A query that has an answer if there is a series with the labels."""
    selectors = ",".join(f'{label}!=""' for label in needed.labels)
    return f"sum by ({','.join(needed.labels)}) ({needed.name}{{{selectors}}})"


def query(url: str, text: str) -> list[dict[str, object]]:
    query = urllib.parse.urlencode({"query": text})
    with urllib.request.urlopen(f"{url}/api/v1/query?{query}", timeout=30) as response:
        found: list[dict[str, object]] = json.load(response)["data"]["result"]
    return found


def unused_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
    return port


def test_prometheus_has_an_answer_to_every_expression(broker: Broker, tmp_path: Path) -> None:
    target = broker.metrics_url.removeprefix("http://")
    config = tmp_path / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 1s}\n"
        f"scrape_configs: [{{job_name: kafka, static_configs: [{{targets: ['{target}']}}]}}]\n"
    )
    address = f"127.0.0.1:{unused_port()}"
    url = f"http://{address}"
    arguments = [
        f"--config.file={config}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address={address}",
    ]
    process = subprocess.Popen([tool("prometheus"), *arguments], stderr=subprocess.DEVNULL)
    try:

        def has_scraped() -> bool:
            try:
                found = query(
                    url, 'kafka_server_brokertopicmetrics_messagesin_total{topic="orders"}'
                )
            except OSError:
                return False
            return [row["value"][1] for row in found] == [str(RECORDS)]  # type: ignore[index]

        wait_until(has_scraped, timeout=60)
        missing = [needed for needed in NEEDED if not query(url, expression(needed))]
    finally:
        process.terminate()
        process.wait(30)

    assert missing == []
