"""``KafkaAdminClient``: what administrators do with a cluster, for programs."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from kbroker.client.admin.access_calls import AccessCalls
from kbroker.client.admin.admin_settings import SETTINGS, admin_settings
from kbroker.client.admin.cluster_calls import ClusterCalls
from kbroker.client.admin.group_calls import GroupCalls
from kbroker.client.admin.topic_calls import TopicCalls
from kbroker.client.connections.cluster import Cluster

logger = logging.getLogger("kbroker.client.administration.kafka_admin_client")

_numbers = itertools.count(1)


class KafkaAdminClient(TopicCalls, GroupCalls, AccessCalls, ClusterCalls):
    """Topics, configs, groups, permissions and the cluster itself; any Kafka from 0.11, so far as
    it can what a call asks for (UnsupportedByBroker).

        with KafkaAdminClient(bootstrap_servers="localhost:9092") as admin:
            admin.create_topics([NewTopic("orders", partitions=3)])
            print([topic.name for topic in admin.list_topics()])

    config: settings under Java's names (docs/admin-settings.md); keywords: the same, with ``_`` or
    ``.``. Raises SettingRefused. Connects when it is first used. Any thread may call any method;
    one call is made after the other.

    A call takes ``default.api.timeout.ms`` at most and then raises Timeout, or UnreachableError if
    no broker could be reached. Those that change something are sent again after a lost connection,
    so an attempt may find that an earlier one has succeeded. The types of arguments and results
    are those of the modules ``topics``, ``configs``, ``groups``, ... of this package, which have
    the same calls for a ``Cluster``.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, **settings: Any) -> None:
        values = admin_settings(config, settings)
        for name in values.without_effect(SETTINGS):
            logger.warning("the setting %s has no effect: %s", name, SETTINGS[name].no_effect)
        self.client_id: str = values["client.id"] or f"adminclient-{next(_numbers)}"
        seconds = values["default.api.timeout.ms"] / 1000
        cluster = Cluster(
            ",".join(values["bootstrap.servers"]),
            values.security,
            client_id=self.client_id,
            request_timeout=values["request.timeout.ms"] / 1000,
            deadline=seconds,
        )
        super().__init__(cluster, threading.Lock(), seconds)
        self._origin = self
        self._closed = False

    def within(self, seconds: float) -> KafkaAdminClient:
        """The same client, whose calls may take so long: ``admin.within(5).list_topics()``."""
        made = KafkaAdminClient.__new__(KafkaAdminClient)
        TopicCalls.__init__(made, self._cluster, self._lock, seconds)
        made.client_id = self.client_id
        made._origin = self._origin
        return made

    def __enter__(self) -> KafkaAdminClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections, after the call that another thread is making. Later calls raise
        ClientClosed.
        """
        with self._lock:
            self._origin._closed = True
            self._cluster.close()

    def _is_closed(self) -> bool:
        return self._origin._closed
