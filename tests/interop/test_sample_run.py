"""The quick start of Kafka's documentation for several brokers: a copy of ``server.properties`` for
each, a topic with three replicas, and the leader killed. Kafka 2.7's tools, with ``--zookeeper``
where they have it.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from support.drivers.java import FIRST_TEST_TIMEOUT_S, java_missing
from support.drivers.kafka_tools import run_tool

from kbroker.testing import wait_until
from kbroker.testing.zookeeper import ZooKeeperServer
from perf.brokers import free_ports
from perf.kafka_distribution import kafka_libraries

pytestmark = [
    pytest.mark.interop,
    pytest.mark.java,
    pytest.mark.timeout(FIRST_TEST_TIMEOUT_S),
    pytest.mark.skipif(bool(java_missing()), reason=java_missing()),
]

SHIPPED = Path(__file__).resolve().parents[2] / "config" / "server.properties"
TOPICS = "kafka.admin.TopicCommand"
TOPIC = "my-replicated-topic"


class Brokers:
    """0, 1 and 2, each with a copy of the shipped file. ``processes``: supervisors, by id."""

    def __init__(self, directory: Path, sockets: str, zookeeper_connect: str) -> None:
        self.zookeeper_connect = zookeeper_connect
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self._ports = free_ports(3)
        for number, port in enumerate(self._ports):
            changed = {
                "broker.id": number,
                "port": port,
                "log.dir": directory / f"logs-{number}",
            }
            text = SHIPPED.read_text()
            for name, value in changed.items():
                text, count = re.subn(f"(?m)^{name}=.*$", f"{name}={value}", text)
                assert count == 1, name
            text += "metrics.port=0\n"
            text, count = re.subn("(?m)^#(zookeeper.connect)=.*$", rf"\1={zookeeper_connect}", text)
            assert count == 1
            path = directory / f"server-{number}.properties"
            path.write_text(text)
            runtime_dir = f"{sockets}/{number}"  # a short path
            command = [sys.executable, "-m", "kbroker.cli.start", "-c", str(path)]
            with (directory / f"broker-{number}.log").open("ab") as log:
                self.processes[number] = subprocess.Popen(
                    [*command, "--exit-with-parent", "--override", f"runtime.dir={runtime_dir}"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=os.environ,
                )

    def bootstrap(self, number: int) -> str:
        return f"127.0.0.1:{self._ports[number]}"

    def tool(self, main: str, *arguments: str, stdin: str = "") -> str:
        return run_tool(kafka_libraries(version="2.7.2"), main, *arguments, stdin=stdin)

    def state(self) -> tuple[int, str, set[str]]:
        """Leader, replicas, in-sync replicas."""
        where = ("--zookeeper", self.zookeeper_connect)
        text = self.tool(TOPICS, *where, "--describe", "--topic", TOPIC)
        found = re.search(r"Partition: 0\tLeader: (-?\d+)\tReplicas: (\S+)\tIsr: (\S+)", text)
        assert found is not None, text
        return int(found[1]), found[2], set(found[3].split(","))

    def consume(self, number: int) -> list[str]:
        """What a consumer gets that starts at the beginning, by way of one broker."""
        where = ("--bootstrap-server", self.bootstrap(number), "--topic", TOPIC)
        limits = ("--from-beginning", "--max-messages", "2", "--timeout-ms", "30000")
        text = self.tool("kafka.tools.ConsoleConsumer", *where, *limits)
        return text.splitlines()

    def stop(self) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            process.wait(60)


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    with (
        ZooKeeperServer(tmp_path / "zookeeper") as zookeeper,
        tempfile.TemporaryDirectory(prefix="kbroker-", dir="/tmp") as sockets,
    ):
        nodes = KazooClient(zookeeper.connect)
        nodes.start()
        started = Brokers(tmp_path, sockets, zookeeper.connect)
        try:
            wait_until(
                lambda: (
                    nodes.exists("/brokers/ids") and len(nodes.get_children("/brokers/ids")) == 3
                ),
                60,
                "three brokers have registered",
            )
            yield started
        finally:
            started.stop()
            nodes.stop()
            nodes.close()


@pytest.mark.slow
def test_topic_survives_the_kill_of_its_leader(brokers: Brokers) -> None:
    size = ("--replication-factor", "3", "--partitions", "1")
    where = ("--zookeeper", brokers.zookeeper_connect)
    brokers.tool(TOPICS, *where, "--create", *size, "--topic", TOPIC)
    wait_until(lambda: brokers.state()[2] == {"0", "1", "2"}, 60, "it is led")
    leader, replicas, _ = brokers.state()
    other = (leader + 1) % 3

    brokers.tool(
        "kafka.tools.ConsoleProducer",
        *("--broker-list", brokers.bootstrap(other), "--topic", TOPIC),
        *("--request-required-acks", "all"),
        stdin="my test message 1\nmy test message 2\n",
    )
    assert brokers.consume(other) == ["my test message 1", "my test message 2"]

    brokers.processes[leader].kill()
    others = {"0", "1", "2"} - {str(leader)}
    wait_until(lambda: brokers.state()[2] == others, 60, "the others are in sync")
    next_leader, present, _ = brokers.state()
    assert str(next_leader) in others and present == replicas
    assert brokers.consume(other) == ["my test message 1", "my test message 2"]
