"""The first steps of Kafka's documents by its scripts: ZooKeeper, a broker, a topic, the end."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.brokers.zookeeper import skip_without_zookeeper

from kbroker.testing import wait_until
from kbroker.testing.ports import HeldPort

pytestmark = pytest.mark.integration

JAVA = "-Xmx256m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
BIN = Path(__file__).resolve().parents[2] / "bin"


class Scripts:
    """Runs a script in a directory of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def start(self, name: str, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(BIN / f"{name}.sh"), *words], cwd=self.home, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, "LOG_DIR": str(self.home / "logs"), "KAFKA_HEAP_OPTS": JAVA},
        )  # fmt: skip

    def __call__(self, name: str, *words: str, stdin: str = "") -> tuple[int, str]:
        process = self.start(name, *words)
        text, _ = process.communicate(stdin, timeout=60)
        return process.returncode, text


@pytest.fixture
def scripts(tmp_path: Path) -> Iterator[Scripts]:
    skip_without_zookeeper()
    found = Scripts(tmp_path)
    try:
        yield found
    finally:
        found("kafka-server-stop", str(tmp_path))
        found("zookeeper-server-stop", str(tmp_path))


class QuickStart:
    """A ZooKeeper and a broker, behind the terminal, on free ports."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts, home = scripts, scripts.home
        self._ports = [HeldPort(), HeldPort()]
        self.zookeeper, self.broker = (f"localhost:{port.number}" for port in self._ports)
        files = home / "zookeeper.properties", home / "server.properties"
        files[0].write_text(
            f"dataDir={home}/zookeeper\nclientPort={self._ports[0].number}\ntickTime=500\n"
        )
        files[1].write_text(
            f"broker.id=1\nlisteners=PLAINTEXT://{self.broker}\n"
            f"zookeeper.connect={self.zookeeper}/chroot\nlog.dirs={home}/data\nmetrics.port=0\n"
            "num.io.threads=1\nnum.network.threads=1\noffsets.topic.replication.factor=1\n"
        )
        assert scripts("zookeeper-server-start", "-daemon", str(files[0])) == (0, "")
        self._await_server(self.zookeeper)
        wait_until(lambda: self.shell("ls", "/")[0] == 0, 60, "ZooKeeper runs")
        words = ("-daemon", str(files[1]), "--override", "num.partitions=2")
        assert scripts("kafka-server-start", *words) == (0, "")
        self._await_server(self.broker)
        where = ("--bootstrap-server", self.broker)
        wait_until(lambda: scripts("kafka-topics", *where, "--list")[0] == 0, 60, "it serves")

    @staticmethod
    def _await_server(address: str) -> None:
        """Before a tool asks it: each attempt of a tool is a process."""
        host, _, port = address.rpartition(":")

        def is_there() -> bool:
            with suppress(OSError), socket.create_connection((host, int(port)), timeout=30):
                return True
            return False

        wait_until(is_there, 60, f"{address} is connected")

    def shell(self, *words: str, chroot: str = "", stdin: str = "") -> tuple[int, list[str]]:
        where = self.zookeeper + chroot
        code, text = self._scripts("zookeeper-shell", where, *words, stdin=stdin)
        return code, text.splitlines()

    def release(self) -> None:
        for port in self._ports:
            port.release()


def test_zookeeper_and_broker_start_and_stop(scripts: Scripts) -> None:
    started = QuickStart(scripts)

    assert started.shell("ls", "/brokers/ids", chroot="/chroot")[1][-1] == "[1]"
    stop(started, scripts)


def stop(started: QuickStart, scripts: Scripts) -> None:
    data = str(scripts.home / "data")
    assert scripts("kafka-server-stop", data) == (0, "")
    left = (1, "No kafka server to stop\n")
    wait_until(lambda: scripts("kafka-server-stop", data) == left, 60, "the broker has ended")
    assert started.shell("ls", "/brokers/ids", chroot="/chroot")[1][-1] == "[]"
    assert scripts("zookeeper-server-stop", str(scripts.home)) == (0, "")
    assert "kbroker" in (scripts.home / "logs" / "kafkaServer.out").read_text()
    started.release()


@pytest.mark.slow
def test_zookeeper_and_broker_start_serve_and_stop(scripts: Scripts) -> None:
    started = QuickStart(scripts)

    assert started.shell("ls", "/brokers/ids", chroot="/chroot") == (
        0,
        [
            f"Connecting to {started.zookeeper}/chroot",
            "",
            "WATCHER::",
            "",
            "WatchedEvent state:SyncConnected type:None path:null",
            "[1]",
        ],
    )
    typed = "create /a one\nset /a two\nget -s /a\ngetAcl /a\ndelete /a\nls /\nget /a\nquit\n"
    code, lines = started.shell(stdin=typed)
    assert code == 0
    assert "Created /a" in lines and "two" in lines and "dataVersion = 1" in lines
    assert "[chroot, zookeeper]" in lines and "Node does not exist: /a" in lines
    assert ": cdrwa" in lines
    code, lines = started.shell("ls", "-R", "/brokers/topics", chroot="/chroot")
    assert lines[-1].startswith("/brokers/topics")
    create = ("--create", "--zookeeper", f"{started.zookeeper}/chroot", "--topic", "test",
              "--partitions", "1", "--replication-factor", "1")  # fmt: skip
    assert scripts("kafka-run-class", "kafka.admin.TopicCommand", *create) == (
        0,
        'Created topic "test".\n',
    )
    assert scripts("kafka-topics", "--list", *create[1:3]) == (0, "test\n")
    lines = "This is a message\nThis is another message\n"
    topic = ("--topic", "test")
    producer = ("kafka-console-producer", "--broker-list", started.broker, *topic)
    assert scripts(*producer, stdin=lines) == (0, "")
    reader = ("kafka-console-consumer", *create[1:3], *topic, "--from-beginning")
    code, text = scripts(*reader, "--max-messages", "2")
    assert (code, text) == (0, f"{lines}Processed a total of 2 messages\n")

    stop(started, scripts)
