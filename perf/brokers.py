"""Start, watch and stop the two brokers of the comparison.

    with KafkaBroker(place) as broker:
        before = broker.cpu_seconds()

A broker listens on a free loopback port and keeps its data below ``place``, which ``stop``
removes. Each is run with its defaults; what differs from them is written in its ``configuration``.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import IO, Self

from kbroker.uuids import new_uuid, uuid_text
from perf import process_tree
from perf.checkouts import python_of
from perf.frames import random_values, record_batch
from perf.kafka_distribution import ROOT, VERSION, kafka_libraries
from perf.raw_client import RawClient

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 20.0
READY_TOPIC = "perf-ready"


_held: list[socket.socket] = []


def free_ports(count: int) -> list[int]:
    """Free ports that the system assigns to no other process while this one lives.

    They stay bound. Brokers can bind them anyway, for kbroker and Java set SO_REUSEADDR.
    """
    sockets = [socket.socket() for _ in range(count)]
    _held.extend(sockets)
    for one in sockets:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(("127.0.0.1", 0))
    return [int(one.getsockname()[1]) for one in sockets]


class Running:
    """What runs within a ``with``: started, and stopped whatever happens."""

    def start(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Broker(Running):
    """One broker process tree.

    ``start`` waits until a metadata request is answered; ``stop`` may be repeated. overrides:
    settings beside ``defaults``, for brokers that have settings.
    """

    name = "broker"
    replicas = 1  # of topics that are loaded
    topic_timeout_s = 30.0

    def __init__(
        self, place: Path | str | None = None, overrides: dict[str, str] | None = None
    ) -> None:
        self.home = Path(tempfile.mkdtemp(prefix=f"perf-{self.name}-", dir=place))
        self.port = free_ports(1)[0]
        self.process: subprocess.Popen[bytes] | None = None
        self.exec_at = 0.0
        self._log: IO[bytes] | None = None
        self.configuration = {**self.defaults(), **(overrides or {})}

    def defaults(self) -> dict[str, str]:
        return {
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "log.dirs": str(self.home / "data"),
        }

    @property
    def address(self) -> tuple[str, int]:
        return ("127.0.0.1", self.port)

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def log_path(self) -> Path:
        return self.home / "output.log"

    def prepare(self) -> None:
        """Prepare what the process needs before it starts; not part of the measured start."""

    def command(self) -> list[str]:
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    def launch(self) -> None:
        """Start the process and return at once."""
        self.prepare()
        self._log = self.log_path.open("ab")
        self.exec_at = time.monotonic()
        self.process = subprocess.Popen(
            self.command(),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            cwd=self.home,
            env=self.environment(),
            start_new_session=True,
        )

    def start(self) -> None:
        self.launch()
        self.wait_until(lambda client: client.metadata(READY_TOPIC).error_code >= 0)

    def wait_until(
        self, is_so: Callable[[RawClient], bool], timeout: float = START_TIMEOUT_S
    ) -> float:
        """Try ``is_so(client)`` every 2 ms until it is true; returns the time.monotonic() of
        that.
        """
        deadline = time.monotonic() + timeout
        last: object = "no connection"
        while time.monotonic() < deadline:
            try:
                with RawClient(self.address, timeout=5) as client:
                    while time.monotonic() < deadline:
                        if is_so(client):
                            return time.monotonic()
                        last = "not yet true"
                        time.sleep(0.002)
            except OSError as error:
                last = error
            if self.process is None or self.process.poll() is not None:
                raise RuntimeError(f"{self.name} ended at start:\n{self.tail()}")
            time.sleep(0.002)
        raise TimeoutError(f"{self.name} not ready within {timeout} s ({last}):\n{self.tail()}")

    def wait_first_acknowledged_record(self) -> float:
        """Auto-create a topic, write one record with acks=1; seconds from exec to the response."""
        batch = record_batch(random_values(1, 100, seed=1))
        topic = f"first-{uuid.uuid4().hex[:8]}"

        def acknowledged(client: RawClient) -> bool:
            found = client.metadata(topic, auto_create=True)
            return bool(
                found.error_code == 0
                and found.leaders.get(0) is not None
                and client.produce(topic, 0, batch) == 0
            )

        return self.wait_until(acknowledged) - self.exec_at

    def tail(self, size: int = 3000) -> str:
        """The last lines that the broker printed."""
        return self.log_path.read_text(errors="replace")[-size:] if self.log_path.exists() else ""

    def _pid(self) -> int:
        if self.process is None:
            raise RuntimeError(f"{self.name} is not running")
        return self.process.pid

    def process_named(self, name: str) -> int:
        """One of its processes. Raises RuntimeError."""
        return process_tree.named(self._pid(), name)

    def wait_until_in_sync(self, topic: str) -> None:
        """The only replica is."""

    def cpu_seconds(self) -> float:
        return process_tree.cpu_seconds(self._pid())

    def pss_bytes(self) -> int:
        return process_tree.pss_bytes(self._pid())

    def stop(self) -> None:
        """``halt``, and remove the data."""
        self.halt()
        shutil.rmtree(self.home, ignore_errors=True)

    def halt(self) -> None:
        """SIGTERM, then SIGKILL to the rest of the tree; ``launch`` continues from there."""
        if self.process is not None:
            left = process_tree.descendants(self.process.pid)
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process_tree.kill_all(left)
                self.process.wait()
        self._gone()

    def kill(self) -> None:
        """SIGKILL to the whole tree at once; ``launch`` continues from there."""
        process_tree.kill_all(process_tree.descendants(self._pid()))
        self._gone()

    def _gone(self) -> None:
        if self.process is not None:
            self.process.wait()
            self.process = None
        if self._log is not None:
            self._log.close()
            self._log = None


class KbrokerBroker(Broker):
    """kbroker, on its embedded metadata store. ``checkout``: this one, or another that is built."""

    name = "kbroker"
    checkout = ROOT

    def prepare(self) -> None:
        (self.home / "server.properties").write_text("")

    def command(self) -> list[str]:
        settings = [f"--override={key}={value}" for key, value in self.configuration.items()]
        file = str(self.home / "server.properties")
        python = sys.executable if self.checkout == ROOT else python_of(self.checkout)
        return [python, "-m", "kbroker.cli.start", "-c", file, *settings]

    def environment(self) -> dict[str, str]:
        # The broker runs in its own directory; the package of its checkout is the one to measure.
        paths = [str(self.checkout)]
        if self.checkout == ROOT:
            paths.append(os.environ.get("PYTHONPATH", ""))
        found = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
        # An installed package has its byte code; compiling it is not part of a start.
        found.pop("PYTHONDONTWRITEBYTECODE", None)
        return found


LOG4J = """log4j.rootLogger=WARN, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=[%d] %p %m (%c)%n
"""


class KafkaBroker(Broker):
    """Apache Kafka, broker and controller in one process; the JVM options of its start script."""

    name = "kafka"
    version = VERSION
    JVM_OPTIONS = (
        "-Xms1G -Xmx1G -server -XX:+UseG1GC -XX:MaxGCPauseMillis=20"
        " -XX:InitiatingHeapOccupancyPercent=35 -XX:+ExplicitGCInvokesConcurrent"
        " -XX:MaxInlineLevel=15 -Djava.awt.headless=true"
    )

    def __init__(
        self, place: Path | str | None = None, overrides: dict[str, str] | None = None
    ) -> None:
        super().__init__(place, overrides)
        self.libraries = kafka_libraries(version=self.version)
        self.cluster_id = uuid_text(new_uuid())

    def defaults(self) -> dict[str, str]:
        controller = free_ports(1)[0]
        return super().defaults() | {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
        }

    @property
    def _java(self) -> list[str]:
        log4j = f"-Dlog4j.configuration=file:{self.home / 'log4j.properties'}"
        return ["java", *self.JVM_OPTIONS.split(), log4j, "-cp", f"{self.libraries}/*"]

    def prepare(self) -> None:
        (self.home / "log4j.properties").write_text(LOG4J)
        text = "".join(f"{name}={value}\n" for name, value in self.configuration.items())
        (self.home / "server.properties").write_text(text)
        if not (self.home / "data" / "meta.properties").exists():  # or it runs on what it has
            self.format()

    def format(self) -> None:
        """Prepare the data directory."""
        file = str(self.home / "server.properties")
        tool = [*self._java, "kafka.tools.StorageTool", "format", "-t", self.cluster_id, "-c", file]
        done = subprocess.run(tool, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"kafka's storage tool failed:\n{done.stdout}{done.stderr}")

    def command(self) -> list[str]:
        return [*self._java, "kafka.Kafka", str(self.home / "server.properties")]


BROKERS: dict[str, type[Broker]] = {"kbroker": KbrokerBroker, "kafka": KafkaBroker}
