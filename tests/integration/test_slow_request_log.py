"""A broker that logs as JSON, and its slow requests."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from kbroker.client.admin import topics as topic_admin
from kbroker.client.connections.cluster import Cluster
from kbroker.testing import Broker, wait_until

pytestmark = pytest.mark.integration

COMMAND = [sys.executable, "-m", "kbroker.cli.start"]


def test_every_line_of_a_broker_is_json_and_slow_requests_have_their_stages() -> None:
    with Broker({"log.format": "json", "slow.request.log.ms": 0}, command=COMMAND) as broker:
        with Cluster(broker.bootstrap, client_id="tester") as cluster:
            topic_admin.create_topics(cluster, [topic_admin.NewTopic("orders", 1)])
        wait_until(lambda: '"api": "CreateTopics"' in broker.log_text)
        broker.kill("io", 0)
        wait_until(lambda: '"process": "io-0"' in broker.log_text)
        text = broker.log_text

    lines = [json.loads(line) for line in text.splitlines()]

    assert lines[0]["message"].startswith("kbroker ")
    assert {"supervisor", "io-0", "network-0"} <= {line["process"] for line in lines}
    names = {"ts", "level", "pid", "logger", "event", "message"}
    assert all(names <= line.keys() for line in lines)
    slow = [line["args"] for line in lines if line["event"].startswith("slow_requests.a-slow")]
    [created] = [fields for fields in slow if fields["api"] == "CreateTopics"]
    assert created["total_ms"] >= created["local_ms"] > 0
    assert "tester" in created["client"]


def test_wrong_format_is_refused_with_what_is_allowed() -> None:
    found = subprocess.run(
        [*COMMAND, "--override", "log.format=xml"], capture_output=True, text=True, timeout=60
    )

    assert found.returncode == 2
    assert "text, json" in found.stderr
