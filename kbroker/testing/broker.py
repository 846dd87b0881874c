"""A real broker in a temporary directory: the same processes as in production, on free ports.

A ``Broker`` is started and stopped by its ``with`` block (or ``start`` and ``stop``), may be
stopped, killed and started again with its data in between, and leaves nothing behind: no process,
no file, no socket. It stops by itself when the process that started it is gone.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from glob import glob
from pathlib import Path
from typing import IO, Any, Self

from kbroker.config.loader import check_name
from kbroker.ipc.named_memory import noted_run, remove_run
from kbroker.ipc.process_kinds import WORKERS
from kbroker.storage.formats import LOCK_NAME
from kbroker.testing import processes, template
from kbroker.testing.ports import HeldPort
from kbroker.testing.running import RunningInBlock
from kbroker.testing.waiting import ProcessEnded, wait_until

# Small, so that a start is fast, but two of each kind that can have several.
DEFAULTS = {
    "broker.id": "0",
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "metrics.port": "0",
    "num.io.threads": "2",
    "num.network.threads": "2",
    # Instead of 50, each with files of its own.
    "offsets.topic.num.partitions": "6",
    "transaction.state.log.num.partitions": "6",
    # A stop takes a tenth of a second; a machine stalled for two seconds must not make it unclean.
    "shutdown.timeout.ms": "20000",
}

# Kinds of processes: the prefixes of their titles.
KINDS = sorted(row.title for row in WORKERS.values())

COMMAND = (sys.executable, "-m", "kbroker.cli.start")
POLL_S = 0.005
# The time a shutdown may take beyond shutdown.timeout.ms.
STOP_SLACK_S = 30.0
RUNTIME_DIR_BYTES_MAX = 50  # a Unix socket's path is short
# WIRE: ApiVersions (key 18) version 0, correlation id 1, no client id; the response repeats the
# correlation id.
_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)
_PACKAGE_ROOT = str(Path(__file__).resolve().parent.parent.parent)


class BrokerFailed(Exception):
    """The broker did not start or did not stop; the text contains its log."""


class Broker(RunningInBlock):
    """One broker. Settings are Kafka's: ``Broker({"log.segment.bytes": 4096})`` or, with
    underscores for dots, ``Broker(log_segment_bytes=4096)``."""

    def __init__(
        self,
        config: Mapping[str, object] | None = None,
        *,
        directory: str | os.PathLike[str] | None = None,
        start_timeout: float = 60.0,
        command: list[str] | None = None,
        **settings: object,
    ) -> None:
        """Raises ValueError for a config that does not exist; a broker would only log a warning.

        directory: for data and log, kept; without one a temporary directory that ``close`` removes.
        start_timeout: seconds until the broker must respond. command: runs instead of
        ``kbroker-supervisor``, which is otherwise forked from a process that has imported it
        already (``kbroker.testing.template``); may be changed between a stop and a start."""
        self.config: dict[str, str] = dict(DEFAULTS)
        for name, value in (config or {}).items():
            self.config[name] = _text(value)
        for name, value in settings.items():
            self.config[name.replace("_", ".")] = _text(value)
        for name in self.config:
            check_name(name)
        self._keeps_directory = directory is not None
        self.directory = Path(directory or tempfile.mkdtemp(prefix="kbroker-test-"))
        self.directory.mkdir(parents=True, exist_ok=True)
        self._runtime_dir = str(self.directory / "run")
        self._removes_runtime_dir = False
        if len(os.fsencode(self._runtime_dir)) > RUNTIME_DIR_BYTES_MAX:
            self._runtime_dir = tempfile.mkdtemp(prefix="kbroker-run-", dir="/tmp")
            self._removes_runtime_dir = True
        self.config.setdefault("log.dirs", str(self.directory / "data"))
        self.config.setdefault("runtime.dir", self._runtime_dir)
        self.log_path = self.directory / "broker.log"
        self._start_timeout = start_timeout
        self.command = command
        self._process: subprocess.Popen[bytes] | template.ForkedProcess | None = None
        self._status: dict[str, Any] = {}
        self._held_port: HeldPort | None = None

    # -- start and stop

    def start(self) -> Self:
        """Start it and return once it serves requests.

        The port that the system chose stays this broker's until ``close``.
        """
        if self.running:
            raise BrokerFailed("the broker is already running")
        self._hold_port()
        arguments = ["--exit-with-parent"]
        for name, value in self.config.items():
            arguments += ["--override", f"{name}={value}"]
        path = os.pathsep.join(filter(None, [_PACKAGE_ROOT, os.environ.get("PYTHONPATH")]))
        with open(self.log_path, "ab") as log_file:
            self._process = self._run(arguments, {**os.environ, "PYTHONPATH": path}, log_file)
        try:
            self._await_response(time.monotonic() + self._start_timeout)
        except BaseException:
            self.kill_all()
            raise
        return self

    def _run(
        self, arguments: list[str], environment: dict[str, str], log_file: IO[bytes]
    ) -> subprocess.Popen[bytes] | template.ForkedProcess:
        if self.command is None:
            with suppress(template.NoTemplate):
                return template.fork(arguments, environment, log_file.fileno())
        return subprocess.Popen(
            [*(self.command or COMMAND), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=log_file,
            env=environment,
        )

    def _await_response(self, deadline: float) -> None:
        assert self._process is not None
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise BrokerFailed(
                    f"the broker exited with {self._process.returncode}:\n{self.log_text}"
                )
            status = self._read_status()
            if status is not None and status["pid"] == self._process.pid:
                self._status = status
                if _responds(self.host, self.port, deadline - time.monotonic()):
                    return
            time.sleep(POLL_S)
        raise BrokerFailed(f"no response within {self._start_timeout:g} s:\n{self.log_text}")

    def _read_status(self) -> dict[str, Any] | None:
        for path in glob(os.path.join(self.config["runtime.dir"], "kbroker-*", "broker.json")):
            with suppress(OSError, ValueError), open(path, encoding="utf-8") as file:
                status: dict[str, Any] = json.load(file)
                return status
        return None

    def _hold_port(self) -> None:
        """Keep the port while the broker is down, so that the system does not reassign it."""
        if self.config["listeners"] == DEFAULTS["listeners"]:
            self._held_port = HeldPort()
            self.config["listeners"] = f"PLAINTEXT://{self._held_port.address}"

    def stop(self, timeout: float | None = None) -> int:
        """SIGTERM, and wait; returns the exit code. Does nothing when it is not running.

        timeout: seconds; without it the broker's own limit and a little more.
        """
        if self._process is None:
            return 0
        if timeout is None:
            timeout = int(self.config["shutdown.timeout.ms"]) / 1000 + STOP_SLACK_S
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill_all()
                raise BrokerFailed(
                    f"the broker did not stop within {timeout:g} s:\n{self.log_text}"
                ) from None
        return self._process.wait()

    def kill_all(self) -> None:
        """SIGKILL to the supervisor; the kernel kills the other processes.

        Returns when all are gone.
        """
        if self._process is None:
            return
        self._process.send_signal(signal.SIGSTOP)  # so that it starts no more
        pids = processes.child_pids(self.pid)
        self._process.kill()
        self._process.wait()
        wait_until(lambda: not any(map(processes.exists, pids)), 10, "the broker's processes end")

    def kill_at_once(self) -> None:
        """SIGKILL to all processes: unlike after ``kill_all``, nobody ends the broker's session in
        ZooKeeper, as when a container or a machine ends.
        """
        if self._process is None:
            return
        self._process.send_signal(signal.SIGSTOP)
        pids = processes.child_pids(self.pid)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        wait_until(lambda: not any(map(processes.exists, pids)), 10, "the broker's processes end")

    def restart(self) -> Self:
        """Shut it down and start it again with the same data and port."""
        self.stop()
        return self.start()

    def close(self) -> None:
        """Stop it and remove its files, unless it was given a directory to keep."""
        try:
            self.stop()
        finally:
            if self._held_port is not None:
                self._held_port.release()
            self._remove_shared_memory()
            if self._removes_runtime_dir:
                shutil.rmtree(self._runtime_dir, ignore_errors=True)
            if not self._keeps_directory:
                shutil.rmtree(self.directory, ignore_errors=True)

    def _remove_shared_memory(self) -> None:
        """What a killed broker has left, and its next start would remove."""
        for path in self.config["log.dirs"].split(","):
            with suppress(OSError), open(os.path.join(path.strip(), LOCK_NAME), "rb") as file:
                nonce = noted_run(file.fileno())
                if nonce is not None:
                    remove_run(nonce)

    # -- what a test asks

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id of the supervisor."""
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def bootstrap(self) -> str:
        """``host:port``, for a client's bootstrap servers."""
        address: str = self._status["bootstrap"]
        return address

    @property
    def host(self) -> str:
        return self.bootstrap.split(",")[0].rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.bootstrap.split(",")[0].rpartition(":")[2])

    @property
    def listeners(self) -> dict[str, str]:
        """``host:port`` for clients on this machine, by listener name."""
        addresses: dict[str, str] = self._status["listeners"]
        return dict(addresses)

    @property
    def metrics_url(self) -> str:
        """``http://host:port``; below it are ``/health`` and ``/metrics``."""
        return f"http://{self._status['metrics']}"

    @property
    def data_dir(self) -> Path:
        """The first of its data directories."""
        return Path(self.config["log.dirs"].split(",")[0])

    @property
    def runtime_dir(self) -> Path:
        return Path(self.config["runtime.dir"])

    @property
    def log_text(self) -> str:
        """Everything it has logged, over all its starts."""
        with suppress(FileNotFoundError):
            return self.log_path.read_text(encoding="utf-8", errors="replace")
        return ""

    @property
    def pids(self) -> dict[str, int]:
        """Its processes by title: ``{"controller-0": 4711, "io-0": 4712, ...}``."""
        return processes.children_of(self.pid)

    def kill(
        self, kind: str, index: int = 0, signal_number: int = signal.SIGKILL, timeout: float = 30.0
    ) -> int:
        """Send a signal to one process, ``kill("io", 1)``; returns its pid.

        It is waited for to be there first: one that died often rests for up to
        ``worker.restart.backoff.max.ms`` before it runs again. Raises ValueError for a kind that
        does not exist.
        """
        if kind not in KINDS:
            raise ValueError(f"unknown kind of process {kind!r}; there are {', '.join(KINDS)}")
        title = f"{kind}-{index}"

        def running() -> int:
            if not self.running:
                raise ProcessEnded(f"the broker ended:\n{self.log_text[-4000:]}")
            pids = self.pids
            assert title in pids, f"running: {', '.join(pids)}"
            return pids[title]

        pid = wait_until(running, timeout, f"{title} runs")
        os.kill(pid, signal_number)
        return pid


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _responds(host: str, port: int, timeout: float) -> bool:
    """Whether a request gets a response.

    The connection waits in the backlog until there is a process to serve it.
    """
    if timeout <= 0:
        return False
    try:
        with socket.create_connection((host, port), timeout=timeout) as sock:
            sock.sendall(_API_VERSIONS)
            response = b""
            while len(response) < 8:
                data = sock.recv(4096)
                if not data:
                    return False
                response += data
    except OSError:
        return False
    return response[4:8] == struct.pack(">i", 1)
