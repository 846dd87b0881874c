"""Stand-ins for the workers that own data, to test the supervisor without them.

A network stand-in replies to every byte of a client with its own pid. Stalls, refusals and crashes
are asked for with files in the data directory.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from pathlib import Path
from typing import ClassVar

from kbroker.errors import EXIT_CANNOT_START, ConfigError
from kbroker.ipc import calls, fdpass
from kbroker.ipc.process_kinds import WORKERS
from kbroker.ipc.process_table import CONNECTIONS, ProcessKind
from kbroker.workers.base import Worker

# Size, correlation id 1, pid: enough of a response for a client that waits for one.
ANSWER = struct.Struct(">iiI")


class _Obedient(Worker):
    """Obeys files in the data directory, named after its title and a verb."""

    def wants(self, what: str) -> bool:
        name = f"{self.address.title}.{what}"
        return os.path.exists(os.path.join(self.config.log_dirs[0], name))

    def setup(self) -> None:
        if self.wants("refuse"):
            raise SystemExit(EXIT_CANNOT_START)
        if self.wants("misconfigured"):
            raise ConfigError("some.key", "x", "something else")
        while self.wants("slow"):
            time.sleep(0.01)
        self.ready()

    def tick(self, now: int) -> None:
        while self.wants("stall"):
            time.sleep(0.01)

    def on_reload(self) -> None:
        open(os.path.join(self.config.log_dirs[0], f"{self.address.title}.reloaded"), "w").close()

    def shutdown(self) -> None:
        while self.wants("linger"):
            time.sleep(0.01)


class ControllerDouble(_Obedient):
    kind: ClassVar[ProcessKind] = ProcessKind.CONTROLLER

    def setup(self) -> None:
        self.rpc.serve(calls.HELLO, lambda sender, _: {"version": 1, "broker_config": {}})
        super().setup()


class IoDouble(_Obedient):
    kind: ClassVar[ProcessKind] = ProcessKind.IO_WORKER


class NetworkDouble(_Obedient):
    kind: ClassVar[ProcessKind] = ProcessKind.NETWORK

    def setup(self) -> None:
        self._handoff = self.context.handoffs[self.address.index][1]
        self._clients: dict[int, socket.socket] = {}
        self._closed: list[str] = []
        self.add_reader(self._handoff.fileno(), self._take)
        super().setup()

    def _take(self) -> None:
        for fd, _, _ in fdpass.receive_connections(self._handoff):
            client = socket.socket(fileno=fd)
            self._clients[fd] = client
            self.add_reader(fd, lambda client=client: self._answer(client))
        self.processes.set(self.address, CONNECTIONS, len(self._clients))

    def _answer(self, client: socket.socket) -> None:
        if client.recv(4096):
            client.send(ANSWER.pack(8, 1, os.getpid()))
            return
        self.remove_reader(client.fileno())
        self._closed.append(fdpass.host_of(client.getpeername()))
        del self._clients[client.fileno()]
        client.close()
        self.processes.set(self.address, CONNECTIONS, len(self._clients))
        fdpass.send_closed(self._handoff, self._closed)


_DOUBLES = {
    ProcessKind.CONTROLLER: "ControllerDouble",
    ProcessKind.IO_WORKER: "IoDouble",
    ProcessKind.NETWORK: "NetworkDouble",
}

ROWS = {
    kind: row._replace(worker=f"{__name__}:{_DOUBLES[kind]}") if kind in _DOUBLES else row
    for kind, row in WORKERS.items()
    if kind != ProcessKind.CLEANER  # it has integration tests of its own
}

if __name__ == "__main__":
    # kbroker-supervisor with these workers in place of the real ones.
    import sys

    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from support.brokers import process_doubles

    from kbroker.cli import start
    from kbroker.supervisor import launch

    launch.BrokerRun.__init__.__defaults__ = (process_doubles.ROWS,)
    sys.exit(start.main())
