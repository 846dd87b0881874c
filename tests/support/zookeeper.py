"""A real ZooKeeper: a server of one, started from the jars that come with PySpark.

    with ZooKeeperServer(tmp_path) as zookeeper:
        zookeeper.connect

It can be stopped, killed or held and continued, and keeps port and data.
"""

from __future__ import annotations

import importlib.util
import re
import signal
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import pytest

from kbroker.spark.java import java_home
from kbroker.testing import wait_until
from perf.brokers import free_ports

# Without a logging back-end, which takes longer to start than the server does.
_JARS = re.compile(
    r"(zookeeper|slf4j-api|metrics-core|snappy-java|netty-(common|buffer|codec|codec-base|handler|"
    r"resolver|transport|transport-native-unix-common|transport-classes-epoll|"
    r"transport-native-epoll))-[\w.-]*\.jar"
)
_JVM = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
TICK_MS = 500  # sessions may be 2 to 20 of them long
START_S = 60.0


def jars() -> list[Path]:
    """What the server needs. Skips the test if PySpark or Java is not there."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        pytest.skip("PySpark, which brings ZooKeeper, is not installed")
    if java_home() is None:
        pytest.skip("there is no Java")
    found = sorted((Path(spec.origin).parent / "jars").iterdir())
    return [path for path in found if _JARS.fullmatch(path.name)]


class ZooKeeperServer:
    """settings: further lines of its configuration. jvm: further options of Java."""

    def __init__(
        self, home: Path, settings: Mapping[str, str] = {}, jvm: tuple[str, ...] = ()
    ) -> None:
        self.home = home
        self.port = free_ports(1)[0]
        self._settings = {
            "tickTime": str(TICK_MS),
            "dataDir": str(home / "data"),
            "clientPortAddress": "127.0.0.1",
            "clientPort": str(self.port),
            "maxClientCnxns": "0",
            "4lw.commands.whitelist": "*",
            "admin.enableServer": "false",
            **settings,
        }
        self._jvm = jvm
        self._process: subprocess.Popen[bytes] | None = None
        self._jars = jars()

    @property
    def connect(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> ZooKeeperServer:
        self.home.mkdir(parents=True, exist_ok=True)
        settings = self.home / "zookeeper.properties"
        lines = (f"{name}={value}\n" for name, value in self._settings.items())
        settings.write_text("".join(lines))
        java = Path(java_home() or "") / "bin" / "java"
        command = [str(java), *_JVM, *self._jvm, "-cp", ":".join(map(str, self._jars))]
        command += ["org.apache.zookeeper.server.ZooKeeperServerMain", str(settings)]
        with (self.home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            wait_until(self._serves, START_S, "ZooKeeper serves")
        except BaseException:
            self.kill()
            raise
        return self

    def _serves(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"it ended:\n{(self.home / 'log').read_text()[-4000:]}"
        try:
            return self.ask("ruok") == "imok"
        except OSError:
            return False

    def ask(self, words: str) -> str:
        """The answer to one of the four-letter words."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            connection.sendall(words.encode())
            answer = b""
            while part := connection.recv(65536):
                answer += part
        return answer.decode()

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def hold(self) -> None:
        """Have it stand still: connections stay, and nothing is answered."""
        self._send(signal.SIGSTOP)

    def release(self) -> None:
        self._send(signal.SIGCONT)

    def _send(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _end(self, number: int) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)
        process.wait()

    def __enter__(self) -> ZooKeeperServer:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
