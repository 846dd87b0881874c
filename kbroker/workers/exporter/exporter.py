"""The exporter: a small HTTP server for metrics and health (``PATHS``).

Figures are read from shared memory, so a scrape costs other processes nothing but what it asks io
workers of groups, and it is answered while they are stuck. ``/waiting`` asks the controller
process. What figures there are is in ``figures``, and how they are kept in
docs/decisions/0026-metrics.md.
"""

from __future__ import annotations

import json
import logging
import select
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from kbroker._ext.shared.client_figures import read_clients
from kbroker._ext.shared.request_times import TimesView
from kbroker.cluster.image import ClusterImage
from kbroker.errors import NO_ROOM_TO_ACCEPT, WireError
from kbroker.exposition.http import (
    DISCARDED_BYTES_MAX,
    REQUEST_BYTES_MAX,
    HttpConnection,
    HttpError,
    HttpRequest,
    host_of,
    http_response,
    streamed,
    without_body,
)
from kbroker.exposition.jmx import pattern_of
from kbroker.exposition.mbeans import NO_TAGS, plain_lines
from kbroker.exposition.own_hosts import is_own_host, refusal
from kbroker.exposition.text import CONTENT_TYPE
from kbroker.heap import return_freed_memory
from kbroker.ipc.calls import (
    HELLO,
    IMAGE,
    LIST_WAITING,
    QUOTA_FIGURES,
    ImageChange,
    ImageDocument,
    ImageTaken,
    Nothing,
    QuotaFigure,
    WaitingWork,
)
from kbroker.ipc.health_facts import HealthFacts
from kbroker.ipc.log_dir_table import LogDirTable
from kbroker.ipc.pending import Pending, run
from kbroker.ipc.process_table import (
    CONTROLLER,
    Address,
    ProcessKind,
)
from kbroker.logcontext import RateLimit
from kbroker.metrics.catalog import ACCEPT_PAUSES, ZOOKEEPER_DISCONNECTED
from kbroker.metrics.export import prometheus_text
from kbroker.metrics.measured import FREE
from kbroker.metrics.slots import Counters
from kbroker.workers.base import (
    NO_DESCRIPTORS_PAUSE_MS,
    SLOW_TICK_MS,
    ProcessContext,
    Worker,
    now_ms,
    raise_failure,
)
from kbroker.workers.exporter.console import (
    CLUSTER_METRICS,
    ConsoleDoor,
    own_names,
    refusal_response,
)
from kbroker.workers.exporter.health import Health
from kbroker.workers.exporter.history import MetricHistory
from kbroker.workers.exporter.lag_history import ASKED_OFFSETS_MAX, EVERY_MS, LagHistory
from kbroker.workers.exporter.lag_questions import LagQuestions
from kbroker.workers.exporter.recorder import Recorder
from kbroker.workers.plugged import reporter_names

if TYPE_CHECKING:
    from kbroker.workers.exporter.figures import Figures
    from kbroker.workers.exporter.reporters import Reporters

logger = logging.getLogger(__name__)

# BOUND: how long who asks for figures waits for the image, which a busy controller process has yet
# to send.
JOIN_TIMEOUT_MAX_MS = 10_000

CONNECTIONS_MAX = 64  # BOUND: beyond it new connections are closed at once
# BOUND: what is made in pieces for so many clients at a time. The oldest makes room: a client that
# reads as slowly as it may keeps nobody from the figures.
SCRAPES_MAX = 8
CONNECTION_TIMEOUT_MS = 5000
SCRAPE_TIMEOUT_MS = 30_000
# How long a turn may make and send pieces for one client.
WRITE_MS = 10

PATHS = (
    "/groups",
    "/health",
    "/healthz?verbose",
    "/jmx",
    "/livez",
    "/metrics",
    CLUSTER_METRICS,
    "/quotas",
    "/readyz",
    "/readyz?for=writes",
    "/waiting",
)
# /metrics takes any: scrapers send parameters that are meant for other exporters.
WITHOUT_QUERY = ("/groups", "/health", "/quotas", "/waiting")


class ExporterWorker(Worker):
    """Serves HTTP from the process table and the counters."""

    kind: ClassVar[ProcessKind] = ProcessKind.EXPORTER
    usual_tick_ms = SLOW_TICK_MS

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
        # Figures and the image are here from the first scrape on: a broker without one has no use
        # for them. The incarnation of the controller process that the image is from; 0: none.
        self._figures: Figures | None = None
        self._image = ClusterImage()
        self._joined = 0
        self._join_timeout_ms = HELLO.deadline_ms
        # Scrapes that wait for what other processes are asked.
        self._waiting: list[tuple[HttpConnection, Iterator[bytes]]] = []
        self._is_refreshing = False
        self._reporters: Reporters | None = None
        self._look_ms = 1000 * self.config["kafka.metrics.polling.interval.secs"]
        self._next_look_ms = 0
        self.lag_history = LagHistory()
        self._lag_questions = LagQuestions()
        self.history = MetricHistory()
        self._directories = LogDirTable(context.failed_log_dirs, len(context.config.log_dirs))
        self._next_lags_ms = 0

    def setup(self) -> None:
        return_freed_memory()
        self._counters = self.open_counters()
        self.health = self._make_health()
        self._recorder = self._make_recorder()
        self._console = ConsoleDoor(
            self.context.config,
            self.context.broker_id,
            [listener for listener, _ in self.context.listeners],
            self.health.state,
            self.lag_history.of,
            self._lag_questions.ask,
            self.history,
        )
        listeners = [listener for listener, _ in self.context.listeners]
        self._own_names = own_names(self.context.config, listeners)
        self.rpc.serve(IMAGE, self.serve_image)
        self.add_reader(self._listener.fileno(), self._accept)
        self.add_reader(self._lag_questions.fileno(), self._lags_wanted)
        names = reporter_names(self.config)
        if names:
            from kbroker.workers.exporter.reporters import Reporters

            self._reporters = Reporters(names, self.context.properties)
        self.ready()

    def _make_health(self) -> Health:
        context = self.context

        def is_connected() -> bool:
            return not any(row.get(ZOOKEEPER_DISCONNECTED) for _, row in self._rows)

        return Health(
            HealthFacts(
                self.processes,
                self.address,
                context.parent_pid,
                context.broker_id,
                self._directories,
                context.config.log_dirs,
            ),
            context.broker_id,
            context.cluster_id,
            is_connected if context.config.uses_zookeeper else None,
            lambda path: self.history.slope_per_s((FREE, path)),
        )

    def _make_recorder(self) -> Recorder:
        """The rates of the last day, which take nobody's time."""
        timed = sum(address.kind.row.times for address in self.processes.addresses)
        return Recorder(
            self.history,
            [counters for _, counters in self._rows],
            TimesView(self.context.request_times, timed),
            lambda: self.health.facts().directories,
            lambda: self._console.lags_elsewhere.by_group | self.lag_history.by_group,
            self._client_bytes,
        )

    def _client_bytes(self) -> Iterator[tuple[str, int, int]]:
        """Clients that have no row of their own are left out."""
        networks = len(self.processes.of_kind(ProcessKind.NETWORK))
        for row in read_clients(self.context.client_figures, networks):
            if row[1] >= 0:
                yield row[2].decode("utf-8", "replace"), row[7], row[8]

    def offline_dirs(self) -> int:
        """How many log directories are offline."""
        count = len(self.context.config.log_dirs)
        return sum(self._directories.has_failed(index) for index in range(count))

    def next_deadline_ms(self) -> int | None:
        return self._resume_at_ms

    def end_turn(self) -> None:
        if self._resume_at_ms is not None and now_ms() >= self._resume_at_ms:
            self._resume_at_ms = None
            self.add_reader(self._listener.fileno(), self._accept)

    def tick(self, now: int) -> None:
        for connection in [c for c in self._open.values() if c.deadline <= now]:
            self._close(connection)
        if self._figures is not None:
            self._figures.tick()
        if self._reporters is not None and now >= self._next_look_ms and not self._is_refreshing:
            self._next_look_ms = now + self._look_ms
            self._is_refreshing = True
            run(self._refresh(self._made_figures())).then(self._looked)
        wall_ms = int(time.time() * 1000)
        if self.history.is_due(wall_ms):
            figures = self._figures if self._console.is_in_use(now) else None
            self._recorder.step(None if figures is None else figures.seen, wall_ms)
        if self._console.is_in_use(now) and now >= self._next_lags_ms and not self._is_refreshing:
            self._next_lags_ms = now + EVERY_MS
            self._ask_for_lags(self._made_figures())

    def _ask_for_lags(self, figures: Figures) -> None:
        """For the curves of the console, unless that costs io workers much."""
        wall_ms = int(time.time() * 1000)
        if self.lag_history.is_due(wall_ms) and figures.committed_offsets <= ASKED_OFFSETS_MAX:
            self._is_refreshing = True
            run(self._refresh(figures)).then(self._refreshed)

    def _lags_wanted(self) -> None:
        self._lag_questions.heard()
        self._look_for_lags()

    def _look_for_lags(self) -> None:
        """For pages that wait, unless that costs io workers much."""
        if self._is_refreshing or not self._lag_questions.begin():
            return
        figures = self._made_figures()
        if figures.committed_offsets > ASKED_OFFSETS_MAX:
            self._lag_questions.answer({})
            return
        figures.forget_lags()
        self._is_refreshing = True
        run(self._refresh(figures)).then(self._refreshed)

    def shutdown(self) -> None:
        self._console.close()
        for connection in list(self._open.values()):
            self._close(connection)
        if self._reporters is not None:
            self._reporters.close()

    def _listener_name(self, index: int) -> str:
        """Further ones share the last cell."""
        listeners = self.context.listeners
        return listeners[index][0].name if index < len(listeners) else str(index)

    # -- the cluster image

    async def _refresh(self, figures: Figures) -> None:
        """Ask for what is not in shared memory. Without an image, nothing of topics is known."""
        incarnation = self.processes.incarnation(CONTROLLER)
        if incarnation != self._joined:
            await self._join(incarnation)
        await figures.refresh()

    async def _join(self, incarnation: int) -> None:
        """Whoever asks for figures waits for it, and after each failure twice as long."""
        try:
            self._take_image(
                await self.rpc.call(CONTROLLER, HELLO, Nothing(), self._join_timeout_ms)
            )
        except WireError as error:
            self._join_timeout_ms = min(2 * self._join_timeout_ms, JOIN_TIMEOUT_MAX_MS)
            if not self._joined:
                logger.warning(
                    "what topics there are is not known yet (%s): metrics and pages lack them",
                    error,
                    extra={"event": "exporter.topics-unknown"},
                )
        else:
            self._joined = incarnation
            self._join_timeout_ms = HELLO.deadline_ms

    def serve_image(self, sender: Address, change: ImageChange) -> ImageTaken:
        self._take_image(change.delta)
        return ImageTaken({})

    def _take_image(self, delta: ImageDocument) -> None:
        if self._image.apply(delta).settings:
            self.follow_settings(self._image.broker_config)
        if self._figures is not None:
            self._figures.image_changed()

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
        self._let_go(connection)
        connection.sock.close()

    def _let_go(self, connection: HttpConnection) -> None:
        fd = connection.sock.fileno()
        self.remove_reader(fd)
        del self._open[fd]

    def _turn(self, connection: HttpConnection) -> None:
        try:
            if connection.pieces is None:
                self._read(connection)
            if connection.pieces is not None:
                self._write(connection)
        except BlockingIOError:
            return
        except OSError:
            self._close(connection)
        except Exception:  # of one response: its client goes without, and nobody else
            logger.exception("closing a connection: cannot make its response")
            self._close(connection)

    def _read(self, connection: HttpConnection) -> None:
        data = connection.sock.recv(REQUEST_BYTES_MAX)
        if not data:
            raise ConnectionResetError
        connection.request += data
        if connection.is_asking:
            connection.request.clear()  # nothing that comes after a request counts
        elif b"\r\n\r\n" in connection.request or b"\n\n" in connection.request:
            self._serve(connection)
        elif len(connection.request) >= REQUEST_BYTES_MAX:
            text = f"the head of the request has more than {REQUEST_BYTES_MAX} bytes"
            request = connection.request
            connection.answer(refusal_response(request, 431, "HEAD_TOO_LARGE", text))

    def _write(self, connection: HttpConnection) -> None:
        """Send until the client is slow, or for as long as a turn may take."""
        until = now_ms() + WRITE_MS
        self.epoll.modify(connection.sock.fileno(), select.EPOLLOUT)
        while not connection.send_some():
            if now_ms() >= until:
                return
        # Data that the client sent after its request would turn the close into a reset, and it
        # would lose the response.
        with suppress(OSError):
            connection.sock.recv(DISCARDED_BYTES_MAX)
        self._close(connection)

    def _asking(self, path: str) -> Callable[[HttpConnection], None] | None:
        """What has to ask other processes for the response."""
        return {"/waiting": self._ask_controller, "/quotas": self._ask_for_quotas}.get(path)

    def _ask_for_quotas(self, connection: HttpConnection) -> None:
        asked = self.processes.of_kind(ProcessKind.NETWORK)
        answers: list[list[QuotaFigure]] = []

        def answered(outcome: Pending[list[QuotaFigure]]) -> None:
            # Of a process that does not answer, /health tells; others know its clients, too.
            answers.append([] if outcome.error is not None else outcome.value)
            from kbroker.workers.quota_page import quotas_text

            if len(answers) == len(asked):
                body = quotas_text(answers).encode()
                self._begin(connection, iter((http_response(200, CONTENT_TYPE, body),)))

        for network in asked:
            self.rpc.call(network, QUOTA_FIGURES, Nothing()).then(answered)

    def _ask_controller(self, connection: HttpConnection) -> None:
        def answered(outcome: Pending[list[WaitingWork]]) -> None:
            self._begin(connection, iter((waiting_response(outcome),)))

        self.rpc.call(CONTROLLER, LIST_WAITING, Nothing()).then(answered)

    # -- answers

    def _serve(self, connection: HttpConnection) -> None:
        """Begin with a response."""
        host = host_of(bytes(connection.request))
        if host is not None and not is_own_host(host, self._own_names):
            # Whatever is asked for: a page of another site must not read it (DNS rebinding).
            text = refusal(host)
            connection.answer(refusal_response(connection.request, 403, "FOREIGN_REQUEST", text))
            return
        if self._console.wants(connection.request):
            self._serve_console(connection)
            return
        try:
            request = HttpRequest(bytes(connection.request))
            check_query(request)
            ask = None if request.is_head else self._asking(request.path)
            if ask is not None:
                connection.is_asking = True
                ask(connection)
                return
            streams = self._stream(request)
            if streams is None:
                response = self.respond(request)
                connection.answer(without_body(response) if request.is_head else response)
                return
        except HttpError as error:
            connection.answer(error.response)
            return
        scrapes = [other for other in self._open.values() if other.is_scrape]
        if len(scrapes) >= SCRAPES_MAX:
            self._close(scrapes[0])
        connection.is_scrape = connection.is_asking = True
        connection.deadline = now_ms() + SCRAPE_TIMEOUT_MS
        self._waiting.append((connection, streams))
        if not self._is_refreshing:
            self._is_refreshing = True
            run(self._refresh(self._made_figures())).then(self._refreshed)

    def _serve_console(self, connection: HttpConnection) -> None:
        refusal = self._console.refusal(connection.request)
        if refusal is not None:
            connection.answer(refusal)
            return
        self._let_go(connection)
        self._console.take(connection.sock, bytes(connection.request))

    def _looked(self, outcome: Pending[None]) -> None:
        self._refreshed(outcome)
        if self._reporters is not None:
            self._reporters.look(self._made_figures().samples())

    def _refreshed(self, outcome: Pending[None]) -> None:
        raise_failure(outcome)
        self._is_refreshing = False
        waiting, self._waiting = self._waiting, []
        for connection, pieces in waiting:
            self._begin(connection, pieces)
        if self._lag_questions.is_answering:
            self._lag_questions.answer(self._made_figures().exact_lags())
        self._look_for_lags()

    def _begin(self, connection: HttpConnection, pieces: Iterator[bytes]) -> None:
        """The response is known: the next turn sends it, if the client is still there."""
        if self._open.get(connection.sock.fileno()) is connection:
            connection.pieces = pieces
            self.epoll.modify(connection.sock.fileno(), select.EPOLLOUT)

    def _made_figures(self) -> Figures:
        if self._figures is None:
            from kbroker.workers.exporter.sources import make_figures

            self._figures = make_figures(self, self._image, dict(self._rows), self._native_text)
        return self._figures

    def _stream(self, request: HttpRequest) -> Iterator[bytes] | None:
        """A response that is made in pieces; None if it is another one. Raises HttpError."""
        if request.path == "/metrics":
            return streamed(request, CONTENT_TYPE, self._made_figures().metrics())
        if request.path == "/jmx":
            beans = self._made_figures().jmx(pattern_of(request))
            return streamed(request, "application/json", beans)
        if request.path == "/groups":
            return streamed(request, "application/json", self._made_figures().groups())
        return None

    def respond(self, request: HttpRequest) -> bytes:
        """The response to a request that is answered as a whole. Raises HttpError."""
        if request.path == "/health":
            return self.health.document()
        probed = self.health.probe(request)
        if probed is not None:
            return probed
        raise HttpError(404, f"try {', '.join(PATHS)}")

    def _native_text(self) -> Iterator[str]:
        """All counters, and what health is made of."""
        yield from self.health.lines()
        yield from plain_lines(
            "kbroker_topics_known",
            "gauge",
            "Whether the controller process has said what topics there are; else they are absent.",
            [(NO_TAGS, int(self._joined > 0))],
        )
        yield prometheus_text(self._rows, self._labels)


def check_query(request: HttpRequest) -> None:
    """Raises HttpError for a query that a path does not take. Those of probes check their own."""
    if request.path == "/jmx":
        pattern_of(request)
    if request.path in WITHOUT_QUERY and request.query:
        raise HttpError(400, f"{request.path} takes no query")


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


def api_name(key: int) -> str:
    """``DescribeConfigs``, or the number of an unknown key."""
    from kbroker.protocol.api import ApiKey  # late: the definitions are not needed before a scrape

    try:
        return ApiKey(key).name.title().replace("_", "")
    except ValueError:
        return str(key)
