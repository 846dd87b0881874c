"""``kafka-features.sh`` of Kafka 3.9 on two brokers that have not enabled any feature yet."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from support.drivers.java import FIRST_TEST_TIMEOUT_S, java_missing, libraries
from support.drivers.kafka_tools import run_tool

from kbroker.testing import wait_until
from kbroker.testing.cluster import Cluster

pytestmark = [
    pytest.mark.interop,
    pytest.mark.java,
    pytest.mark.slow,
    pytest.mark.timeout(FIRST_TEST_TIMEOUT_S),
    pytest.mark.skipif(bool(java_missing()), reason=java_missing()),
]

FEATURES = "org.apache.kafka.tools.FeatureCommand"
Tool = Callable[..., str]


@pytest.fixture
def tool() -> Iterator[Tool]:
    """Bootstraps with both brokers, so that it has to find the controller."""
    jars = libraries("3.9.1", "kafka-tools")
    with Cluster(2, {"cluster.features.enable": "false"}) as cluster:
        yield lambda *arguments: run_tool(
            jars, FEATURES, "--bootstrap-server", cluster.bootstrap, *arguments
        )


def levels(tool: Tool) -> dict[str, int]:
    """What is finalized, by feature; 0 for what is supported only."""
    found = re.findall(r"Feature: (\S+)\s.*FinalizedVersionLevel: (\d+)", tool("describe"))
    return {name: int(level) for name, level in found}


def test_features_are_described_upgraded_and_downgraded(tool: Tool) -> None:
    assert levels(tool) == {"group.version": 0, "transaction.version": 0}
    both = ("--feature", "group.version=1", "--feature", "transaction.version=2")
    assert "group.version was upgraded to 1" in tool("upgrade", *both)
    wanted = {"group.version": 1, "transaction.version": 2}
    wait_until(lambda: levels(tool) == wanted, 30, "the brokers know both")
    with pytest.raises(AssertionError, match=r"supports versions 0 to 2"):
        tool("upgrade", "--feature", "transaction.version=3")
    with pytest.raises(AssertionError, match=r"only an unsafe downgrade disables it"):
        tool("downgrade", "--feature", "group.version=0")
    tool("downgrade", "--unsafe", "--feature", "group.version=0")
    wait_until(lambda: levels(tool)["group.version"] == 0, 30, "the brokers know the downgrade")
    assert levels(tool)["transaction.version"] == 2
