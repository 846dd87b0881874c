"""Apache Kafka, 3.9 in KRaft mode and 2.7 with ZooKeeper, on directories of a test.

    with Kafka39(tmp_path) as kafka:
        kafka.bootstrap

Each is started, stopped cleanly or killed, and started again on what it has. The jars are Maven's,
in ``.cache``.
"""

from __future__ import annotations

import re
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from kbroker.testing import ProcessEnded, wait_until
from kbroker.uuids import new_uuid, uuid_text
from perf.brokers import LOG4J, free_ports
from perf.kafka_distribution import kafka_libraries
from perf.maven import MavenUnreachable

JVM = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
START_S = 120.0
STOP_S = 60.0
# Small internal topics: their partitions are created and loaded at each start.
INTERNAL = {
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.num.partitions": "3",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.dedupe.buffer.size": "2097152",
    "log.retention.check.interval.ms": "3600000",
    "log.cleaner.backoff.ms": "300",
    "log.flush.start.offset.checkpoint.interval.ms": "100",
}


# What differs on three brokers.
REPLICATED = {
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
}


class Server:
    """One JVM with a main class of Kafka."""

    version = "2.7.2"
    host = "127.0.0.1"

    def __init__(self, home: Path, port: int | None = None) -> None:
        self.home = home
        home.mkdir(parents=True, exist_ok=True)
        self.port = port or free_ports(1)[0]
        self._process: subprocess.Popen[bytes] | None = None
        (home / "log4j.properties").write_text(LOG4J)

    @property
    def log_path(self) -> Path:
        return self.home / f"{type(self).__name__}.log"

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"

    def java(self, main: str, *arguments: str, options: Sequence[str] = ()) -> list[str]:
        log4j = f"-Dlog4j.configuration=file:{self.home / 'log4j.properties'}"
        try:
            path = f"{kafka_libraries(version=self.version)}/*"
        except MavenUnreachable:
            raise  # tests/conftest.py leaves the test out, unless it is CI's
        except RuntimeError as error:
            pytest.skip(str(error))
        return ["java", *JVM, log4j, *options, "-cp", path, main, *arguments]

    def run(self, main: str, *arguments: str) -> str:
        """Run one of Kafka's tools to its end; returns its output."""
        done = subprocess.run(
            self.java(main, *arguments), capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, f"{main}:\n{done.stdout}{done.stderr}"
        return done.stdout

    def command(self) -> list[str]:
        raise NotImplementedError

    def start(self) -> Any:
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            wait_until(self._answers, START_S, f"{type(self).__name__} answers")
        except BaseException:
            self.kill()
            raise
        return self

    def refused_start(self) -> str:
        """Start it where it must end by itself, with an error; returns its log."""
        with self.log_path.open("ab") as log:
            done = subprocess.run(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=START_S
            )
        text = self.log_path.read_text()
        assert done.returncode, text
        return text

    def _answers(self) -> bool:
        self.check()
        return _listens(self.host, self.port)

    def check(self) -> None:
        """Raises ProcessEnded if it has ended since it was started, and nobody has stopped it."""
        if self._process is not None and self._process.poll() is not None:
            name, log = type(self).__name__, self.log_path.read_text()[-4000:]
            raise ProcessEnded(f"{name} ended:\n{log}")

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        if self._process is None:
            return
        self._process.send_signal(number)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise
        finally:
            self._process = None

    def __enter__(self) -> Any:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill() if error else self.stop()


class Kafka(Server):
    """A Kafka broker; ``log_dirs`` are its data directories, new or existing."""

    def __init__(
        self, home: Path, log_dirs: Sequence[Path] = (), port: int | None = None, **config: str
    ) -> None:
        super().__init__(home, port)
        self.log_dirs = list(log_dirs) or [home / "data"]
        self.config = {
            **INTERNAL,
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "log.dirs": ",".join(map(str, self.log_dirs)),
            **{key.replace("_", "."): value for key, value in config.items()},
        }

    @property
    def properties(self) -> Path:
        path = self.home / f"{type(self).__name__}.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in self.config.items()))
        return path

    def command(self) -> list[str]:
        return self.java("kafka.Kafka", str(self.properties))


class Kafka27(Kafka):
    """Apache Kafka 2.7 on a ZooKeeper."""

    def __init__(
        self,
        home: Path,
        zookeeper: str,
        log_dirs: Sequence[Path] = (),
        **config: str,
    ) -> None:
        """zookeeper: its address, with a path or not."""
        super().__init__(home, log_dirs, **config)
        self.config.setdefault("broker.id", "0")
        self.config["zookeeper.connect"] = zookeeper

    def verified_replicas(self, topic: str) -> str:
        """What Kafka's tool says first after it has compared the replicas of a topic."""
        command = self.java(
            "kafka.tools.ReplicaVerificationTool",
            "--broker-list", self.bootstrap, "--topic-white-list", topic,
            "--report-interval-ms", "100",
        )  # fmt: skip
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as tool:
            assert tool.stdout is not None
            try:
                for line in tool.stdout:
                    if found := re.search(r"max lag is \d+", line):
                        return found[0]
            finally:
                tool.kill()
        raise AssertionError("ReplicaVerificationTool ended without a report")


class Kafka39(Kafka):
    """Apache Kafka 3.9, broker and controller in one, formatted at its first start."""

    version = "3.9.1"

    def __init__(self, home: Path, log_dirs: Sequence[Path] = (), **config: str) -> None:
        super().__init__(home, log_dirs, **config)
        controller = free_ports(1)[0]
        self.config.setdefault("node.id", "1")
        node = self.config["node.id"]
        self.config |= {
            "process.roles": "broker,controller",
            "controller.quorum.voters": f"{node}@127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
        }

    def format(self) -> None:
        """Format the directories, as a user does before the first start."""
        cluster_id = uuid_text(new_uuid())
        self.run("kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(self.properties))

    def start(self) -> Any:
        if not (self.log_dirs[0] / "meta.properties").exists():
            self.format()
        return super().start()


class Kafka39Voter(Kafka39):
    """Broker and controller of a quorum of several, which ``join_quorum`` makes."""

    cluster_id = uuid_text(new_uuid())

    def format(self) -> None:
        """With the cluster id of the others."""
        properties = str(self.properties)
        self.run("kafka.tools.StorageTool", "format", "-t", self.cluster_id, "-c", properties)


def join_quorum(servers: Sequence[Kafka39Voter], voters: Sequence[Kafka39Voter]) -> None:
    """Before their first start. voters: those of the servers that are controllers."""
    quorum = ",".join(server.config["controller.quorum.voters"] for server in voters)
    for server in servers:
        server.config["controller.quorum.voters"] = quorum


class SecuredKafka39(Kafka39):
    """Kafka 3.9 with StandardAuthorizer, and clients that log in by PLAIN on a second listener.

    ``secured_port`` is that listener's. Without a login, everybody may do everything.
    """

    def __init__(self, home: Path, users: Mapping[str, str], super_user: str) -> None:
        super().__init__(home)
        self.secured_port = free_ports(1)[0]
        entries = " ".join(f'user_{name}="{word}"' for name, word in users.items())
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        secured = f"SASL_PLAINTEXT://127.0.0.1:{self.secured_port}"
        for name in ("listeners", "advertised.listeners"):
            self.config[name] += f",{secured}"
        self.config["listener.security.protocol.map"] += ",SASL_PLAINTEXT:SASL_PLAINTEXT"
        self.config |= {
            "inter.broker.listener.name": "PLAINTEXT",
            "group.coordinator.rebalance.protocols": "classic,consumer",
            "delegation.token.secret.key": "secret of tokens",
            "unstable.feature.versions.enable": "true",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{module} required {entries};",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:ANONYMOUS;User:{super_user}",
        }

    def _answers(self) -> bool:
        """Kafka opens its listeners one after the other."""
        return super()._answers() and _listens(self.host, self.secured_port)


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True
