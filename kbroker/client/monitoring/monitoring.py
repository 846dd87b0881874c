"""What one producer or consumer tells of itself."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from kbroker.client.connections.cluster import Cluster
from kbroker.client.connections.connection import Connection
from kbroker.client.errors import ClientError, SettingRefused
from kbroker.client.monitoring.client_metrics import ClientMetrics
from kbroker.client.settings.client_settings import ClientSettings
from kbroker.protocol.api import ApiKey
from kbroker.uuids import uuid_text

if TYPE_CHECKING:
    from kbroker.client.monitoring.metrics_page import MetricsPage, ShownClient
    from kbroker.client.monitoring.metrics_push import MetricsPush

logger = logging.getLogger(__name__)

# Of the last push, where the end of a client may take any time.
_CLOSE_S = 2.0


class Monitoring:
    """domain: ``kafka.producer`` or ``kafka.consumer``. resource: what a push says of the client.

    cluster: makes one that tells ``connected`` of its connections. Raises SettingRefused. There is
    no thread and no socket, unless a port is set, or a broker asks for metrics.
    """

    def __init__(
        self,
        settings: ClientSettings,
        domain: str,
        client_id: str,
        metrics: ClientMetrics,
        resource: dict[str, str | None],
        cluster: Callable[[], Cluster],
    ) -> None:
        self._settings = settings
        self._client_id = client_id
        self._metrics = metrics
        self._resource = {key: text for key, text in resource.items() if text}
        self._cluster = cluster
        self._pushes: bool = settings["enable.metrics.push"]
        self._push: MetricsPush | None = None
        self._page: MetricsPage | None = None
        self._told: ShownClient | None = None
        self._closed = False
        self._lock = threading.Lock()
        if settings["kbroker.metrics.port"] is not None:
            self._open_page(domain)

    def _open_page(self, domain: str) -> None:
        from kbroker.client.monitoring import metrics_page  # few clients have one

        settings = self._settings
        self._told = metrics_page.ShownClient(domain, self._client_id, self._metrics.groups)
        self._page = metrics_page.join(
            settings["kbroker.metrics.host"],
            settings["kbroker.metrics.port"],
            settings["kbroker.metrics.hosts"],
            self._told,
        )

    @property
    def address(self) -> tuple[str, int] | None:
        """Where the page is."""
        return None if self._page is None else self._page.address

    def connected(self, connection: Connection) -> None:
        """There is a new connection to a broker. Any thread."""
        if ApiKey.GET_TELEMETRY_SUBSCRIPTIONS not in connection.versions or self._closed:
            return
        if not self._pushes or not connection.speaks(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS):
            return
        try:
            with self._lock:
                if self._push is None:
                    self._push = self._made_push()
            self._push.announced((connection.host, connection.port))
        except Exception as error:  # such as no thread left: the client has its connection
            logger.warning("the metrics of %s are not pushed: %s", self._client_id, error)

    def _made_push(self) -> MetricsPush:
        from kbroker.client.monitoring.metrics_push import MetricsPush  # few brokers ask

        return MetricsPush(
            self._client_id,
            self._settings.security,
            self._settings["socket.connection.setup.timeout.ms"] / 1000,
            self._resource,
            self._metrics.groups,
        )

    def instance_id(self, seconds: float) -> str | None:
        """The id that brokers have given this client, None if none asks for metrics. Raises
        SettingRefused.
        """
        if not self._pushes:
            raise SettingRefused("enable.metrics.push", "there is no id unless it is true")
        deadline = time.monotonic() + seconds
        if self._push is None:
            with suppress(ClientError), self._cluster() as cluster:
                cluster.nodes(deadline=seconds)  # it may be that nothing was asked before
        if self._push is None:
            return None
        instance_id = self._push.instance_id(max(0.0, deadline - time.monotonic()))
        return None if instance_id is None else uuid_text(instance_id)

    def close(self, seconds: float | None) -> None:
        """Push for the last time, in that time, and end the page."""
        self._closed = True
        if self._push is not None:
            self._push.close(_CLOSE_S if seconds is None else max(0.0, seconds))
        if self._page is not None and self._told is not None:
            from kbroker.client.monitoring import metrics_page

            page, self._page = self._page, None
            metrics_page.leave(page, self._told)

    def forget(self) -> None:
        """In a new process, whose threads are another's."""
        self._closed = True
        if self._push is not None:
            self._push.forget()
        self._page = None
