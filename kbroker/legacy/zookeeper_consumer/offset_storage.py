"""Where a group's offsets are: in ZooKeeper, with the brokers' coordinator, or both."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping

from kbroker.client.batches.offsets import Committed, TopicPartition, commit, committed
from kbroker.client.connections.cluster import GROUP, Cluster
from kbroker.client.errors import ClientError
from kbroker.legacy.zookeeper_consumer.group_session import GroupSession
from kbroker.legacy.zookeeper_consumer.zookeeper_consumer_settings import (
    KAFKA,
    ConsumerConfig,
)

logger = logging.getLogger("kbroker.client.legacy.zookeeper_consumer.offset_storage")


class OffsetStorage:
    """One thread at a time. addresses: of the brokers, when they are needed. closing: set when
    nothing is to be waited for any more.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        session: GroupSession,
        addresses: Callable[[], Iterable[str]],
        closing: threading.Event,
    ) -> None:
        self._config = config
        self._group: str = config["group.id"]
        self._session = session
        self._addresses = addresses
        self._closing = closing
        in_kafka = config["offsets.storage"] == KAFKA
        # COMPAT: true is the default, which means nothing to 0.8.2 without offsets.storage=kafka.
        is_meant = in_kafka or "dual.commit.enabled" in config.settings.given
        self._in_both = is_meant and config["dual.commit.enabled"]
        self._in_kafka = in_kafka or self._in_both
        self._backoff_s = config.seconds("offsets.channel.backoff.ms")
        self._request_s = config.seconds("offsets.channel.socket.timeout.ms")
        self._retries: int = config["offsets.commit.max.retries"]
        self._cluster: Cluster | None = None

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()

    def read(self, keys: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offsets that the group has committed; of both storages the larger one."""
        wanted = list(keys)
        if not self._in_kafka:
            return self._session.offsets(wanted)
        offsets = {key: row.offset for key, row in self._read_brokers(wanted).items()}
        if self._in_both:
            for key, offset in self._session.offsets(wanted).items():
                offsets[key] = max(offset, offsets.get(key, offset))
        return offsets

    def _read_brokers(self, wanted: list[TopicPartition]) -> dict[TopicPartition, Committed]:
        while True:
            try:
                return committed(
                    self._coordinated(),
                    self._group,
                    wanted,
                    stable=False,
                    once=True,
                    deadline=self._request_s,
                )
            except ClientError as error:
                self._pause(error)

    def commit(self, offsets: Mapping[TopicPartition, int], *, retry: bool) -> None:
        """retry: ``offsets.commit.max.retries`` times. Raises ClientError."""
        if not offsets:
            return
        left = self._retries if retry else 0
        trouble: ClientError | None = None
        if self._in_both or not self._in_kafka:
            try:
                self._session.commit(offsets)
            except ClientError as error:
                if not self._in_kafka:
                    raise
                trouble = error
        while self._in_kafka:
            try:
                cluster = self._coordinated()
                rows = {key: (offset, "") for key, offset in offsets.items()}
                commit(cluster, self._group, rows, once=True, deadline=self._request_s)
                break
            except ClientError as error:
                if not left or not error.retriable:
                    raise
                left -= 1
                logger.info("cannot commit: %s; trying again, %d times at most", error, left + 1)
                time.sleep(self._backoff_s)  # also at the end, which this is for
        if trouble is not None:
            raise trouble

    def _coordinated(self) -> Cluster:
        """With the group's coordinator, whose lookup is repeated without counting, unless the
        consumer is closing.
        """
        while True:
            try:
                cluster = self._brokers()
                cluster.coordinator(
                    self._group, GROUP, cluster.retry("the coordinator", self._request_s)
                )
                return cluster
            except ClientError as error:
                self._pause(error)

    def _pause(self, error: ClientError) -> None:
        if self._closing.is_set() or not error.retriable:
            raise error
        logger.info("group %s: %s; asking again", self._group, error)
        self._closing.wait(self._backoff_s)

    def _brokers(self) -> Cluster:
        addresses = ",".join(sorted(self._addresses()))
        if self._cluster is None or self._cluster.bootstrap != addresses:
            self.close()
            self._cluster = Cluster(
                addresses,
                self._config.settings.security,
                client_id=self._config["client.id"],
                request_timeout=self._request_s,
                deadline=self._request_s,
            )
        return self._cluster
