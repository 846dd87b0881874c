"""The commands of docs/security.md, from PLAINTEXT to SASL_SSL with ACLs, run as written there."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer

from kbroker.testing.ports import HeldPort
from kbroker.testing.waiting import wait_until

pytestmark = pytest.mark.integration

PAGE = Path(__file__).resolve().parents[2] / "docs" / "security.md"
START = "kbroker-supervisor -c server.properties\n"


def blocks(ports: dict[str, str]) -> list[str]:
    """The shell commands of the first section, with other ports."""
    section = PAGE.read_text().split("\n## ")[1]
    found = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    return [re.sub("909[23]", lambda port: ports[port[0]], block) for block in found]


class Shell:
    """Runs blocks in a directory; a block that ends by starting a broker leaves it running."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.broker: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        bin_directory = str(Path(sys.executable).parent)
        self._environment = {**os.environ, "PATH": f"{bin_directory}:{os.environ['PATH']}"}

    def run(self, block: str) -> str:
        starts = block.endswith(START)
        commands = block.removesuffix(START)
        done = subprocess.run(
            ["bash", "-euc", commands], cwd=self.directory, env=self._environment,
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, f"{commands}\n{done.stdout}\n{done.stderr}"
        if starts:
            self.stop()
            command = [*START.split(), "--override", "metrics.port=-1"]
            with (self.directory / "log").open("ab") as log:
                self._log_start = log.tell()
                self.broker = subprocess.Popen(
                    command, cwd=self.directory, env=self._environment, stdout=log, stderr=log
                )
        return done.stdout

    def is_ready(self) -> bool:
        """Whether all processes of the broker that was started last are ready."""
        return "processes are ready" in (self.directory / "log").read_text()[self._log_start :]

    def stop(self) -> None:
        if self.broker is not None:
            self.broker.send_signal(signal.SIGTERM)
            self.broker.wait()


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    yield made
    made.stop()


def listens(port: str) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", int(port))) == 0


def wait_until_served(shell: Shell, port: str) -> None:
    """Clients may come earlier, but a start may take longer than they wait: on a busy disk each
    sync takes its time.
    """
    wait_until(lambda: listens(port) and shell.is_ready(), 60, "the broker serves")


def test_commands_of_the_page_lead_to_a_closed_broker(shell: Shell) -> None:
    held = HeldPort(), HeldPort()
    ports = {"9092": str(held[0].number), "9093": str(held[1].number)}
    certificates, users, close, allow = blocks(ports)

    shell.run(certificates)
    wait_until_served(shell, ports["9092"])
    shown = shell.run(users)
    assert [line.split()[0] for line in shown.splitlines()[-4:]] == ["admin"] * 2 + ["alice"] * 2

    shell.run(close)
    wait_until_served(shell, ports["9093"])
    assert not listens(ports["9092"])
    assert "User:alice" in shell.run(allow)

    settings = {
        "bootstrap.servers": f"localhost:{ports['9093']}",
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(shell.directory / "certs" / "ca.crt"),
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": "alice-secret",
    }
    errors: list[object] = []
    producer = Producer(settings)
    producer.produce("orders", b"hello", callback=lambda error, _: errors.append(error))
    assert producer.flush(60) == 0
    assert errors == [None]
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        raise_for(producer, "others")


def raise_for(producer: Producer, topic: str) -> None:
    found = producer.list_topics(topic, timeout=30).topics[topic].error
    if found is not None:
        raise KafkaException(found)
