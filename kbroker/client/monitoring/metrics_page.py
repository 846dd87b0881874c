"""A client's metrics by HTTP: Prometheus's text, and MBeans as JSON.

Clients of a process that name the same port have one page together.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from kbroker.client.errors import SettingRefused
from kbroker.client.monitoring.client_metrics import MetricGroup, Values
from kbroker.exposition.http import HttpError, HttpRequest, streamed
from kbroker.exposition.jmx import jmx_pieces, pattern_of
from kbroker.exposition.mbeans import (
    ATTRIBUTE,
    GAUGE,
    METER,
    Bean,
    Sample,
    Tags,
    jmx_lines,
    jmx_name,
    label,
    plain_lines,
)
from kbroker.exposition.meter_rates import MeterRates
from kbroker.exposition.own_hosts import is_own_host, refusal
from kbroker.exposition.server import PageServer
from kbroker.exposition.text import CONTENT_TYPE

PATHS = ("/jmx", "/metrics")


class ShownClient(NamedTuple):
    """A client whose metrics are on a page. domain: ``kafka.producer`` or ``kafka.consumer``."""

    domain: str
    client_id: str
    groups: Callable[[], Iterable[MetricGroup]]


# MBeans of the clients of 0.8: (name, kind, help) of the metric of a group.
_OLD = {
    ("consumer-fetch-manager-metrics", "records-lag-max"): Bean(
        "kafka.consumer", "ConsumerFetcherManager", "MaxLag", GAUGE,
        "The largest number of records by which the consumer is behind, of its partitions.",
    ),
    ("consumer-fetch-manager-metrics", "records-lag"): Bean(
        "kafka.consumer", "FetcherLagMetrics", "ConsumerLag", GAUGE,
        "Records of a partition by which the consumer is behind.",
    ),
    ("consumer-fetch-manager-metrics", "records-consumed-total"): Bean(
        "kafka.consumer", "ConsumerTopicMetrics", "MessagesPerSec", METER, "Records read.",
    ),
    ("consumer-fetch-manager-metrics", "bytes-consumed-total"): Bean(
        "kafka.consumer", "ConsumerTopicMetrics", "BytesPerSec", METER, "Bytes read.",
    ),
    ("producer-topic-metrics", "record-send-total"): Bean(
        "kafka.producer", "ProducerTopicMetrics", "MessagesPerSec", METER, "Records acknowledged.",
    ),
    ("producer-topic-metrics", "byte-total"): Bean(
        "kafka.producer", "ProducerTopicMetrics", "BytesPerSec", METER, "Bytes of batches sent.",
    ),
}  # fmt: skip


def samples(clients: Iterable[ShownClient]) -> dict[Bean, list[Sample]]:
    """The MBeans of Java's clients and those of 0.8, each once, with what all clients have."""
    by_bean: dict[Bean, list[Sample]] = {}
    for domain, client_id, groups in clients:
        for group in groups():
            _add(by_bean, domain, group, _tags(("client-id", client_id), *group.tags))
            _add_old(by_bean, group, _tags(("clientId", client_id), *group.tags))
    return by_bean


def _add(by_bean: dict[Bean, list[Sample]], domain: str, group: MetricGroup, tags: Tags) -> None:
    for name, value in group.values.items():
        bean = Bean(domain, group.name, name, ATTRIBUTE, f"{name} of {group.name}.")
        by_bean.setdefault(bean, []).append((tags, value))


def _add_old(by_bean: dict[Bean, list[Sample]], group: MetricGroup, tags: Tags) -> None:
    for name, value in _known(group.values, group.name):
        by_bean.setdefault(_OLD[group.name, name], []).append((tags, value))


def _known(values: Values, group: str) -> Iterator[tuple[str, float]]:
    return ((name, value) for name, value in values.items() if (group, name) in _OLD)


def _tags(*pairs: tuple[str, str]) -> Tags:
    """Labels of Prometheus have no dashes."""
    text = ",".join(label(name.replace("-", "_"), value) for name, value in pairs)
    return Tags.of_labels(pairs, text)


def metrics_text(by_bean: dict[Bean, list[Sample]]) -> Iterator[str]:
    """Prometheus's, in pieces, under the names of the family ``jmx``."""
    for bean, rows in by_bean.items():
        if bean.kind == ATTRIBUTE:
            kind = "counter" if bean.name.endswith("-total") else "gauge"
            yield from plain_lines(jmx_name(bean), kind, bean.help, rows)
        else:
            yield from jmx_lines(bean, rows)


class MetricsPage:
    """Serves what the clients in ``told`` tell. hosts: names that a request may call it by."""

    def __init__(self, host: str, port: int) -> None:
        """Raises SettingRefused."""
        listener = _listen(host, port)
        self.address: tuple[str, int] = listener.getsockname()[:2]
        self.told: list[ShownClient] = []
        self.hosts = {host.lower(), socket.gethostname().lower()} - {""}
        self._rates = MeterRates(time.monotonic())
        self._server = PageServer(listener, self._serve, self._refusal)

    def _refusal(self, host: str) -> str | None:
        if is_own_host(host, frozenset(self.hosts)):
            return None
        return refusal(host, "client", "kbroker.metrics.hosts")

    def _serve(self, request: HttpRequest) -> Iterator[bytes]:
        """Raises HttpError."""
        if request.path == "/metrics":
            return streamed(request, CONTENT_TYPE, metrics_text(samples(list(self.told))))
        if request.path == "/jmx":
            by_bean = samples(list(self.told)).items()
            pieces = jmx_pieces(by_bean, self._rates, pattern_of(request))
            return streamed(request, "application/json", pieces)
        raise HttpError(404, f"try {' or '.join(PATHS)}")

    def close(self) -> None:
        self._server.close()

    def forget(self) -> None:
        """In a new process, whose thread is another's."""
        self._server.forget()


def _listen(host: str, port: int) -> socket.socket:
    try:
        rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = rows[0]
        return socket.create_server(address[:2], family=family)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise SettingRefused(
            "kbroker.metrics.port",
            f"cannot listen at {host}:{port}: {why}; 0 takes any free port",
        ) from error


# -- the pages of this process

_lock = threading.Lock()
_pages: dict[tuple[str, int], MetricsPage] = {}


def join(host: str, port: int, names: Iterable[str], told: ShownClient) -> MetricsPage:
    """The page at an address, with one client more. Port 0: a page for it alone. Raises
    SettingRefused.
    """
    with _lock:
        page = _pages.get((host, port)) if port else None
        if page is None:
            page = MetricsPage(host, port)
            _pages[host, page.address[1]] = page
        page.hosts.update(name.lower() for name in chain(names))
        page.told.append(told)
        return page


def leave(page: MetricsPage, told: ShownClient) -> None:
    """Without the client; the last one closes the page."""
    with _lock:
        if told not in page.told:
            return
        page.told.remove(told)
        if page.told:
            return
        for key in [key for key, one in _pages.items() if one is page]:
            del _pages[key]
    page.close()


def _forget_all() -> None:
    global _lock
    _lock = threading.Lock()  # that of the parent may be held
    for page in _pages.values():
        page.forget()
    _pages.clear()


os.register_at_fork(after_in_child=_forget_all)
