"""The way from the exporter to the console: who is served, and when it is loaded.

``kbroker.console`` and its libraries are imported with the first request for it, in a
thread: a broker whose console nobody opens has no memory of it, and probes are not held up.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from kbroker.exposition.http import http_response
from kbroker.hosts import address_here, is_loopback
from kbroker.workers.base import now_ms
from kbroker.workers.exporter.lag_history import EVERY_MS, POINTS_MAX, LagHistory

if TYPE_CHECKING:
    from kbroker.config.loader import BrokerConfig, Listener
    from kbroker.console.local_broker import Door, LocalBroker
    from kbroker.console.server import ConsoleServer
    from kbroker.workers.exporter.history import MetricHistory
    from kbroker.workers.exporter.lag_history import LagCurves

logger = logging.getLogger(__name__)

# Metrics of the whole cluster, for which brokers are asked as for the console's pages.
CLUSTER_METRICS = "/metrics/cluster"
PATHS = (b"/", b"/login", b"/logout", b"/console", b"/console/", b"/api", b"/api/")
# As many of a request as say whether it is to the API.
PATH_BYTES = 32
# Of SASL, the mechanisms that a user name and a password are enough for, the safest first.
PASSWORD_MECHANISMS = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")
_TRUST = (
    "ssl.truststore.type",
    "ssl.truststore.location",
    "ssl.truststore.password",
    "ssl.truststore.certificates",
    "ssl.endpoint.identification.algorithm",
)


class ConsoleDoor:
    """listeners: as bound. processes: their state, for the overview. lags: of a group over time.
    exact_lags: of groups now, as far as this broker knows them. lags_elsewhere: of all groups, as
    the console finds them.
    """

    def __init__(
        self,
        config: BrokerConfig,
        broker_id: int,
        listeners: list[Listener],
        processes: Callable[[], Mapping[str, Any]],
        lags: Callable[[str], LagCurves],
        exact_lags: Callable[[], Mapping[str, int]],
        history: MetricHistory,
    ) -> None:
        self._config = config
        self._broker_id = broker_id
        self._listeners = listeners
        self._processes = processes
        self._lags = lags
        self._exact_lags = exact_lags
        self._history = history
        self.lags_elsewhere = LagHistory()
        self._asked_at_ms: int | None = None
        self._lock = threading.Lock()
        self._server: ConsoleServer | None = None
        # Connections that came while it is being loaded; None: it is loaded, or nobody has asked.
        self._waiting: list[tuple[socket.socket, bytes]] | None = None

    @staticmethod
    def wants(request: bytes | bytearray) -> bool:
        """Whether a request is for the console."""
        path = _path(request)
        return path in PATHS or path.startswith((b"/console/", b"/api/")) or _is_scrape(request)

    def refusal(self, request: bytes | bytearray) -> bytes | None:
        """The response of a broker without a console; None if it has one."""
        enabled = self._config["console.enable"]
        if _is_scrape(request):
            return None
        if enabled == "false" or (
            enabled == "loopback" and not is_loopback(self._config["metrics.host"])
        ):
            text = "the console is off; set console.enable=true to serve it"
            return refusal_response(request, 404, "NO_CONSOLE", text)
        return None

    def is_in_use(self, now: int) -> bool:
        """Whether somebody may still want what is kept for the console."""
        asked_at = self._asked_at_ms
        return asked_at is not None and now - asked_at < POINTS_MAX * EVERY_MS

    def take(self, sock: socket.socket, received: bytes) -> None:
        """Serve this connection, on which this was received."""
        if not _is_scrape(received):
            self._asked_at_ms = now_ms()
        with self._lock:
            if self._server is not None:
                self._server.take(sock, received)
            elif self._waiting is not None:
                self._waiting.append((sock, received))  # BOUND: the backlog of the exporter
            else:
                self._waiting = [(sock, received)]
                threading.Thread(target=self._load, name="console-load", daemon=True).start()

    def close(self) -> None:
        with self._lock:
            server, self._server = self._server, None
        if server is not None:
            server.close()

    def _load(self) -> None:
        try:
            from kbroker.console.server import ConsoleServer

            server = ConsoleServer(self._local_broker())
        except Exception:
            logger.exception("cannot start the console; /metrics and /health are served without it")
            with self._lock:
                waiting, self._waiting = self._waiting or [], None
            for sock, _ in waiting:
                sock.close()
            return
        with self._lock:
            waiting, self._waiting = self._waiting or [], None
            self._server = server
            for sock, received in waiting:
                server.take(sock, received)

    # -- what the console has to know

    def _local_broker(self) -> LocalBroker:
        from kbroker import __version__
        from kbroker.console.local_broker import LocalBroker

        advertised = {each.name: each for each in self._config.advertised_listeners}
        shown = []
        for each in self._listeners:
            public = advertised.get(each.name)
            host, port = (public.host, public.port or each.port) if public else ("", each.port)
            shown.append((each.name, each.security_protocol, address_here(host or each.host, port)))
        doors = [door for each in self._listeners for door in self._door(each)]
        return LocalBroker(
            self._broker_id,
            __version__,
            tuple(sorted(doors, key=lambda door: door.by_name)),
            tuple(shown),
            self._processes,
            own_names(self._config, self._listeners),
            self._config["console.read.only"],
            self._registry(),
            self._lags,
            self._exact_lags,
            self.lags_elsewhere,
            self._history.of,
            self._config["metrics.partitions.max"],
            self._config["metrics.group.partitions.max"],
        )

    def _registry(self) -> dict[str, str] | None:
        url = self._config["console.schema.registry.url"]
        if not url:
            return None
        login = self._config["console.schema.registry.basic.auth.user.info"]
        return {"url": url} | ({"basic.auth.user.info": str(login)} if login else {})

    def _door(self, listener: Listener) -> list[Door]:
        """The listener as the console may use it; none if it may not: it has no certificate of its
        own, and sends a password to nobody whom it cannot verify.
        """
        from kbroker.console.local_broker import Door

        config = self._config.of_listener(listener.name)
        settings = {"security.protocol": listener.security_protocol}
        mechanisms: tuple[str, ...] = ()
        if listener.uses_sasl:
            enabled = config["sasl.enabled.mechanisms"]
            mechanisms = tuple(name for name in PASSWORD_MECHANISMS if name in enabled)
            if not mechanisms:
                return []
        if listener.uses_tls:
            if config["ssl.client.auth"] == "required":
                return []
            settings |= {name: str(value) for name in _TRUST if (value := config[name]) is not None}
            if not settings.keys() & {"ssl.truststore.location", "ssl.truststore.certificates"}:
                return []
        host, port = listener.host, listener.port
        if listener.uses_tls:
            public = {each.name: each for each in self._config.advertised_listeners}
            if listener.name in public and public[listener.name].host:
                host = public[listener.name].host
                port = public[listener.name].port or port
        address = address_here(host, port)
        return [Door(listener.name, address, mechanisms, settings, listener.uses_tls)]


def _path(request: bytes | bytearray) -> bytes:
    """Empty if it is no request of HTTP."""
    words = bytes(request).split(b"\n", 1)[0].split()
    return words[1].partition(b"?")[0] if len(words) == 3 else b""


def _is_scrape(request: bytes | bytearray) -> bool:
    return _path(request) == CLUSTER_METRICS.encode()


def refusal_response(request: bytes | bytearray, status: int, code: str, text: str) -> bytes:
    """Of a request that is not served, as far as it was received. Of one to the API, it is a
    problem document (RFC 9457).
    """
    path = bytes(request[:PATH_BYTES]).partition(b" ")[2]
    if not path.startswith(b"/api/"):
        return http_response(status, "text/plain", f"{text}\n".encode())
    import json

    from kbroker.console.problems import MEDIA_TYPE, Problem

    body = json.dumps(Problem(status, code, text).document).encode()
    return http_response(status, MEDIA_TYPE, body)


def own_names(config: BrokerConfig, listeners: Iterable[Listener]) -> frozenset[str]:
    """The names by which browsers may call the HTTP port, besides addresses and localhost."""
    names = {each.host.lower() for each in (*listeners, *config.advertised_listeners)}
    names |= {socket.gethostname().lower(), config["metrics.host"].lower()}
    names |= {name.lower() for name in config["console.hosts"]}
    return frozenset(names - {""})
