"""Kafka's own tools and Python's admin clients move replicas between log directories."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.clients.log_dir_moves import replicas
from support.clients.wire_client import WireClient, batch_of
from support.drivers.java import FIRST_TEST_TIMEOUT_S, java_missing, libraries
from support.drivers.kafka_tools import run_tool

from kbroker.testing import Broker, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.interop,
    pytest.mark.java,
    pytest.mark.timeout(FIRST_TEST_TIMEOUT_S),
    pytest.mark.skipif(bool(java_missing()), reason=java_missing()),
]

REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
TOPIC = "tools"
COUNT = 40


@pytest.fixture
def dirs(tmp_path: Path) -> list[str]:
    return [str(tmp_path / name) for name in ("a", "b")]


@pytest.fixture
def broker(dirs: list[str]) -> Iterator[Broker]:
    with Broker({"log.dirs": ",".join(dirs)}) as started:
        yield started


@pytest.fixture
def client(broker: Broker) -> Iterator[WireClient]:
    with WireClient((broker.host, broker.port)) as connected:
        connected.create_topic(TOPIC, 2)
        for number in range(COUNT):
            connected.produce(TOPIC, {p: batch_of([b"%d" % number]) for p in range(2)})
        yield connected


@pytest.fixture(params=["3.9.1", "4.3.0"])
def script(request: pytest.FixtureRequest, broker: Broker) -> Callable[..., str]:
    """Runs a main class of that version's tools with ``--bootstrap-server``."""
    jars = libraries(request.param, "kafka-tools")

    def run(main: str, *arguments: str) -> str:
        return run_tool(jars, main, *arguments, "--bootstrap-server", broker.bootstrap)

    return run


def test_reassignment_tool_moves_replicas_throttled_and_verifies(
    script: Callable[..., str], client: WireClient, dirs: list[str], tmp_path: Path
) -> None:
    before = replicas(client)
    wanted = {key: dirs[1 - dirs.index(path)] for key, path in before.items()}
    plan = {
        "version": 1,
        "partitions": [
            {"topic": name, "partition": number, "replicas": [0], "log_dirs": [path]}
            for (name, number), path in wanted.items()
        ],
    }
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan))
    of_plan = ("--reassignment-json-file", str(path))

    text = script(REASSIGN, *of_plan, "--execute", "--replica-alter-log-dirs-throttle", "100000000")

    assert text.count("Successfully started moving log directory to") == 2
    wait_until(lambda: replicas(client) == wanted, 20, "all are moved")
    text = script(REASSIGN, *of_plan, "--verify")
    assert f"Reassignment of replica {TOPIC}-0-0 completed successfully." in text
    assert len(client.read_all(TOPIC, 1)) == COUNT
    described = json.loads(
        next(line for line in script(LOG_DIRS, "--describe").splitlines() if line[0] == "{")
    )
    (of_broker,) = described["brokers"]
    assert {
        (partition["partition"], directory["logDir"])
        for directory in of_broker["logDirs"]
        for partition in directory["partitions"]
    } == {(f"{name}-{number}", path) for (name, number), path in wanted.items()}


def test_kafka_python_moves_replicas(broker: Broker, client: WireClient, dirs: list[str]) -> None:
    from kafka import KafkaAdminClient

    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        places = replicas(client)
        wanted = {key: dirs[1 - dirs.index(path)] for key, path in places.items()}
        asked = {(*key, 0): path for key, path in wanted.items()}
        admin.alter_replica_log_dirs(asked)
        wait_until(lambda: replicas(client) == wanted, 20, "all are moved")
    finally:
        admin.close()
