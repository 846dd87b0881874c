"""Kafka's own tool for client metrics, and Java clients that push them (KIP-714)."""

from __future__ import annotations

import re
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.drivers.java import FIRST_TEST_TIMEOUT_S, java_missing, libraries
from support.drivers.kafka_tools import run_tool

from kbroker.testing import Broker, wait_until

pytestmark = [
    pytest.mark.interop,
    pytest.mark.slow,
    pytest.mark.java,
    pytest.mark.timeout(FIRST_TEST_TIMEOUT_S),
    pytest.mark.skipif(bool(java_missing()), reason=java_missing()),
]

CLIENT_METRICS = "org.apache.kafka.tools.ClientMetricsCommand"
SENT = "kbroker_client_producer_record_send_total"
PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"


@pytest.mark.parametrize("version", ["4.3.0", "3.9.1"])
def test_java_producer_pushes_what_kafkas_tool_asks_for(version: str) -> None:
    jars = libraries(version, "kafka-tools")
    with Broker() as broker:
        address = ("--bootstrap-server", broker.bootstrap)

        def tool(main: str, *words: str) -> str:
            return run_tool(jars, main, *address, *words)

        name = ("--name", "rates")
        metrics = "org.apache.kafka.producer.record.send,org.apache.kafka.producer.request"
        match = ("--match", "client_id=billing-.*,client_software_name=apache-kafka-java")
        tool(CLIENT_METRICS, "--alter", *name, "--interval", "200", "--metrics", metrics, *match)
        assert tool(CLIENT_METRICS, "--list").split() == ["rates"]
        described = tool(CLIENT_METRICS, "--describe", *name)
        assert "interval.ms=200" in described
        assert "client_id=billing-.*" in described

        def pushed() -> dict[str, float]:
            with urllib.request.urlopen(f"{broker.metrics_url}/metrics", timeout=60) as response:
                text = response.read().decode()
            return {
                found[1]: float(found[2])
                for found in re.finditer(
                    r'^(kbroker_client_\w+)\{client_id="billing-1".*\} (\S+)$', text, re.MULTILINE
                )
            }

        settings = (f"bootstrap.servers={broker.bootstrap}", "client.id=billing-1")
        load = ("--num-records", "150", "--throughput", "10", "--record-size", "10")
        words = ("--topic", "orders", *load, "--producer-props", *settings)
        with ThreadPoolExecutor() as pool:
            done = pool.submit(run_tool, jars, PERFORMANCE, *words)
            wait_until(lambda: pushed() or done.done(), timeout=60)
            found = pushed()
            wait_until(lambda: done.done() or pushed().get(SENT, 0) > found.get(SENT, 0))
            done.result()

        assert found, "the producer has ended and has not pushed"
        assert all(name.startswith("kbroker_client_producer_re") for name in found)
        assert SENT in found
        tool(CLIENT_METRICS, "--delete", *name)
        assert tool(CLIENT_METRICS, "--list").split() == []
        assert pushed() == {}
