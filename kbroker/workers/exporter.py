"""The exporter: a small HTTP server with ``/health``, ``/metrics``, ``/quotas`` and ``/waiting``.

Serves people and monitoring, not clients: one answer a connection, bounded in number, size and
time. For the first two it reads shared memory only, so a scrape costs no other process anything,
and it answers while the rest is stuck. The others ask network processes, and the controller.
"""

from __future__ import annotations

import json
import logging
import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import ClassVar

from kbroker.errors import NO_ROOM_TO_ACCEPT, WireError
from kbroker.ipc.calls import LIST_WAITING, QUOTA_FIGURES, Nothing, QuotaFigure, WaitingWork
from kbroker.ipc.pending import Pending
from kbroker.ipc.process_table import (
    CONNECTIONS,
    CONTROLLER,
    HEARTBEAT_NS,
    PID,
    READY,
    STARTING,
    STATE,
    STOPPING,
    ProcessKind,
)
from kbroker.logcontext import RateLimit
from kbroker.metrics.catalog import ACCEPT_PAUSES, ZOOKEEPER_DISCONNECTED
from kbroker.metrics.export import CONTENT_TYPE, prometheus_text
from kbroker.metrics.slots import Counters
from kbroker.workers.base import NO_DESCRIPTORS_PAUSE_MS, ProcessContext, Worker, now_ms
from kbroker.workers.quota_page import quotas_text

logger = logging.getLogger(__name__)

CONNECTIONS_MAX = 64  # BOUND: beyond it new connections are closed at once
REQUEST_BYTES_MAX = 8192
CONNECTION_TIMEOUT_MS = 5000
DISCARDED_BYTES_MAX = 65536

STATE_NAMES = {STARTING: "starting", READY: "ready", STOPPING: "stopping"}
_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


class HttpConnection:
    """One client: read its request, write the response, close."""

    __slots__ = ("deadline", "is_asking", "request", "response", "sock")

    def __init__(self, sock: socket.socket, deadline: int) -> None:
        self.sock = sock
        self.deadline = deadline
        self.request = bytearray()
        self.response: memoryview | None = None
        self.is_asking = False


class ExporterWorker(Worker):
    """Serves HTTP from the process table and the counters."""

    kind: ClassVar[ProcessKind] = ProcessKind.EXPORTER

    def __init__(self, context: ProcessContext) -> None:
        super().__init__(context)
        assert context.metrics_socket is not None, "an exporter without a port"
        self._listener = context.metrics_socket
        self._open: dict[int, HttpConnection] = {}
        # While accepting pauses, when it goes on.
        self._resume_at_ms: int | None = None
        self._warnings = RateLimit()
        self._rows = [
            (address.title, Counters(context.counters, row))
            for row, address in enumerate(self.processes.addresses)
        ]
        self._labels = {"api": api_name, "listener": self._listener_name}

    def setup(self) -> None:
        self._counters = self.open_counters()
        self.add_reader(self._listener.fileno(), self._accept)
        self.ready()

    def next_deadline_ms(self) -> int | None:
        return self._resume_at_ms

    def end_turn(self) -> None:
        if self._resume_at_ms is not None and now_ms() >= self._resume_at_ms:
            self._resume_at_ms = None
            self.add_reader(self._listener.fileno(), self._accept)

    def tick(self, now: int) -> None:
        for connection in [c for c in self._open.values() if c.deadline <= now]:
            self._close(connection)

    def shutdown(self) -> None:
        for connection in list(self._open.values()):
            self._close(connection)

    def _listener_name(self, index: int) -> str:
        """Further ones share the last cell."""
        listeners = self.context.listeners
        return listeners[index][0].name if index < len(listeners) else str(index)

    # -- connections

    def _accept(self) -> None:
        for _ in range(CONNECTIONS_MAX):
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return  # none is waiting
            except OSError as error:
                if error.errno in NO_ROOM_TO_ACCEPT:
                    self._pause(error)
                    return
                continue  # the client went away before it was accepted
            if len(self._open) >= CONNECTIONS_MAX:
                sock.close()
                continue
            sock.setblocking(False)
            connection = HttpConnection(sock, now_ms() + CONNECTION_TIMEOUT_MS)
            self._open[sock.fileno()] = connection
            self.add_reader(sock.fileno(), partial(self._turn, connection))

    def _pause(self, error: OSError) -> None:
        """Connections wait in the backlog, instead of waking this process again and again."""
        self.remove_reader(self._listener.fileno())
        self._resume_at_ms = now_ms() + NO_DESCRIPTORS_PAUSE_MS
        self._counters.add(ACCEPT_PAUSES)
        times = self._warnings.due()
        if times:
            logger.warning("cannot accept connections (%d times): %s", times, error.strerror)

    def _close(self, connection: HttpConnection) -> None:
        fd = connection.sock.fileno()
        self.remove_reader(fd)
        del self._open[fd]
        connection.sock.close()

    def _turn(self, connection: HttpConnection) -> None:
        try:
            if connection.response is None:
                self._read(connection)
            if connection.response is not None:
                self._write(connection)
        except BlockingIOError:
            return
        except OSError:
            self._close(connection)

    def _read(self, connection: HttpConnection) -> None:
        data = connection.sock.recv(REQUEST_BYTES_MAX)
        if not data:
            raise ConnectionResetError
        connection.request += data
        if connection.is_asking:
            connection.request.clear()  # nothing that comes after a request counts
        elif b"\r\n\r\n" in connection.request or b"\n\n" in connection.request:
            ask = self._asking(bytes(connection.request))
            if ask is not None:
                connection.is_asking = True
                ask(connection)
            else:
                connection.response = memoryview(self.respond(bytes(connection.request)))
        elif len(connection.request) >= REQUEST_BYTES_MAX:
            connection.response = memoryview(
                http_response(431, "text/plain", b"request too large\n")
            )

    def _write(self, connection: HttpConnection) -> None:
        assert connection.response is not None
        sent = connection.sock.send(connection.response)
        connection.response = connection.response[sent:]
        if connection.response:
            self.epoll.modify(connection.sock.fileno(), select.EPOLLOUT)
            return
        # Data that the client sent after its request would turn the close into a reset, and it
        # would lose the response.
        with suppress(OSError):
            connection.sock.recv(DISCARDED_BYTES_MAX)
        self._close(connection)

    def _asking(self, request: bytes) -> Callable[[HttpConnection], None] | None:
        """What has to ask other processes for the response."""
        if is_for(request, b"/waiting"):
            return self._ask_controller
        return self._ask_for_quotas if is_for(request, b"/quotas") else None

    def _ask_for_quotas(self, connection: HttpConnection) -> None:
        asked = self.processes.of_kind(ProcessKind.NETWORK)
        answers: list[list[QuotaFigure]] = []

        def answered(outcome: Pending[list[QuotaFigure]]) -> None:
            # Of a process that does not answer, /health tells; others know its clients, too.
            answers.append([] if outcome.error is not None else outcome.value)
            if len(answers) == len(asked) and self._open.get(fd) is connection:
                body = quotas_text(answers).encode()
                connection.response = memoryview(http_response(200, CONTENT_TYPE, body))
                self._turn(connection)

        fd = connection.sock.fileno()
        for network in asked:
            self.rpc.call(network, QUOTA_FIGURES, Nothing()).then(answered)

    def _ask_controller(self, connection: HttpConnection) -> None:
        def answered(outcome: Pending[list[WaitingWork]]) -> None:
            if self._open.get(connection.sock.fileno()) is connection:
                connection.response = memoryview(waiting_response(outcome))
                self._turn(connection)

        self.rpc.call(CONTROLLER, LIST_WAITING, Nothing()).then(answered)

    # -- answers

    def respond(self, request: bytes) -> bytes:
        """The response to a request whose head is complete."""
        words = request.split(b"\n", 1)[0].split()
        if len(words) != 3 or not words[2].startswith(b"HTTP/"):
            return http_response(400, "text/plain", b"not an HTTP request\n")
        method, target = words[0], words[1].partition(b"?")[0]
        if method not in (b"GET", b"HEAD"):
            return http_response(405, "text/plain", b"GET only\n", "Allow: GET, HEAD\r\n")
        if target == b"/metrics":
            response = http_response(200, CONTENT_TYPE, self.metrics_text().encode())
        elif target == b"/health":
            status, body = self.health()
            response = http_response(status, "application/json", body)
        else:
            response = http_response(
                404, "text/plain", b"try /health, /metrics, /quotas or /waiting\n"
            )
        if method == b"HEAD":
            return response[: response.index(b"\r\n\r\n") + 4]
        return response

    def health(self) -> tuple[int, bytes]:
        """200 when every process is serving, 503 otherwise; the body names those that are not."""
        now_ns = time.monotonic_ns()
        processes = []
        for address in self.processes.addresses:
            if address.kind == ProcessKind.SUPERVISOR:
                continue
            state = self.processes.get(address, STATE)
            entry = {
                "name": address.title,
                "pid": self.processes.get(address, PID),
                "state": STATE_NAMES.get(state, str(state)),
                "restarts": max(0, self.processes.incarnation(address) - 1),
                "heartbeat_age_ms": (now_ns - self.processes.get(address, HEARTBEAT_NS)) // 10**6,
            }
            if address.kind == ProcessKind.NETWORK:
                entry["connections"] = self.processes.get(address, CONNECTIONS)
            processes.append(entry)
        healthy = all(entry["state"] == "ready" for entry in processes)
        document = {
            "status": "ok" if healthy else "degraded",
            "broker_id": self.context.broker_id,
            "cluster_id": self.context.cluster_id,
            "processes": processes,
        }
        if self.context.config.uses_zookeeper:
            # Partitions are served without it, so the broker is not unhealthy.
            is_gone = any(row.get(ZOOKEEPER_DISCONNECTED) for _, row in self._rows)
            document["zookeeper"] = "disconnected" if is_gone else "connected"
        return 200 if healthy else 503, json.dumps(document, indent=1).encode() + b"\n"

    def metrics_text(self) -> str:
        """All counters, and the state of each process."""
        lines = [
            "# HELP kbroker_process_up Whether the process serves.",
            "# TYPE kbroker_process_up gauge",
        ]
        for address in self.processes.addresses:
            if address.kind != ProcessKind.SUPERVISOR:
                up = int(self.processes.is_ready(address))
                lines.append(f'kbroker_process_up{{process="{address.title}"}} {up}')
        return "\n".join(lines) + "\n" + prometheus_text(self._rows, self._labels)


def is_for(request: bytes, target: bytes) -> bool:
    """Whether it is a GET of ``target``."""
    words = request.split(b"\n", 1)[0].split()
    is_http = len(words) == 3 and words[2].startswith(b"HTTP/")
    return is_http and words[0] == b"GET" and words[1].partition(b"?")[0] == target


def waiting_response(outcome: Pending[list[WaitingWork]]) -> bytes:
    """What the controller waits for; 503 and why where nobody knows it here."""
    error = outcome.error
    if error is None:
        rows = [row._asdict() for row in outcome.value]
        body = json.dumps({"waiting": rows}, indent=1).encode() + b"\n"
        return http_response(200, "application/json", body)
    if not isinstance(error, WireError):
        raise error
    return http_response(503, "text/plain", f"{error.message}\n".encode())


def http_response(status: int, content_type: str, body: bytes, extra: str = "") -> bytes:
    """A complete HTTP/1.1 response, after which the connection closes."""
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\n{extra}Connection: close\r\n\r\n"
    )
    return head.encode() + body


def api_name(key: int) -> str:
    """``DescribeConfigs``, or the number of an unknown key."""
    from kbroker.protocol.api import ApiKey  # late: the definitions are not needed before a scrape

    try:
        return ApiKey(key).name.title().replace("_", "")
    except ValueError:
        return str(key)
