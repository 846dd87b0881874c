"""Where the partitions of topics are, as a producer of 0.8 knows it, and its connections there."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable

from kbroker.client.connections.addresses import parse_addresses
from kbroker.client.errors import ClientError, ConnectionLost, RejectedError, UnreachableError
from kbroker.errors import ErrorCode
from kbroker.legacy.broker_watch import BrokerWatch
from kbroker.legacy.producer_config import ProducerConfig
from kbroker.legacy.sync_producer import REQUEST_ROWS, SyncProducer
from kbroker.legacy.topic_metadata import (
    Broker,
    PartitionMetadata,
    TopicMetadata,
    TopicMetadataRequest,
)

logger = logging.getLogger("kbroker.client.legacy.cluster_view")


class ClusterView:
    """Asked by one thread at a time. With ``zk.connect``, changes of brokers and topics are noticed
    in ZooKeeper; else when something fails, or metadata is refreshed.
    """

    def __init__(self, config: ProducerConfig) -> None:
        self._config = config
        self._brokers: dict[int, Broker] = {}
        self._topics: dict[str, TopicMetadata] = {}
        self._pool: dict[int, SyncProducer] = {}
        place: str | None = config["zk.connect"]
        self._watch = BrokerWatch(place) if place else None

    def close(self) -> None:
        """Close the connections."""
        for producer in self._pool.values():
            producer.close()
        self._pool.clear()
        if self._watch is not None:
            self._watch.close()

    def partitions(self, topic: str) -> list[PartitionMetadata]:
        """By number. Raises RejectedError, UnreachableError."""
        if self._watch is not None and self._watch.changed:
            self._topics.clear()
        if topic not in self._topics:
            self.update([topic])
        return self._topics[topic].partitions_metadata

    def update(self, topics: Iterable[str]) -> None:
        """Ask a broker about topics. Raises UnreachableError, and RejectedError for a topic that
        cannot be written to now.
        """
        wanted = sorted(set(topics))
        rows = {row.topic: row for row in self._asked(wanted)}
        for name in wanted:
            row = rows.get(name)
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if row is None else row.error_code
            if row is None or code:
                self._topics.pop(name, None)
                rows.pop(name, None)
                logger.warning("topic %s: %s", name, ErrorCode(code).name)
        self._topics.update(rows)
        for name in wanted:
            if name not in rows:
                raise RejectedError(ErrorCode.LEADER_NOT_AVAILABLE, f"metadata of topic {name}")

    def _asked(self, topics: list[str]) -> list[TopicMetadata]:
        request = TopicMetadataRequest(topics)
        tried: dict[str, str] = {}
        for host, port in self._places(topics):
            try:
                with self._connected(host, port) as producer:
                    response = producer.send(request)
            except ClientError as error:
                tried[f"{host}:{port}"] = getattr(error, "why", str(error))
                continue
            # COMPAT: before its first topic is there, a broker of 0.8.2 names none.
            if response.brokers:
                self._adopt(response.brokers)
            return response.topics_metadata
        raise UnreachableError(tried)

    def _places(self, topics: list[str]) -> list[tuple[str, int]]:
        """Those of the settings in any order, then the brokers that are known."""
        seeds = list(self._config.seeds)
        if self._watch is not None:
            try:
                seeds = parse_addresses(",".join(self._watch.addresses({*self._topics, *topics})))
            except ClientError:
                if not self._brokers:
                    raise
        random.shuffle(seeds)
        others = [(broker.host, broker.port) for broker in self._brokers.values()]
        return seeds + [place for place in others if place not in seeds]

    def _adopt(self, brokers: list[Broker]) -> None:
        self._brokers = {broker.id: broker for broker in brokers}
        for number, producer in list(self._pool.items()):
            broker = self._brokers.get(number)
            if broker is None or (broker.host, broker.port) != (producer.host, producer.port):
                self._pool.pop(number).close()

    def producer(self, broker_id: int) -> SyncProducer:
        """The one for a broker. Raises ConnectionLost if the broker is gone."""
        if broker_id not in self._pool:
            broker = self._brokers.get(broker_id)
            if broker is None:
                raise ConnectionLost(f"broker {broker_id}", "no broker has that id anymore")
            self._pool[broker_id] = self._connected(broker.host, broker.port)
        return self._pool[broker_id]

    def _connected(self, host: str, port: int) -> SyncProducer:
        settings = {row.name: self._config[row.name] for row in REQUEST_ROWS}
        return SyncProducer(host, port, settings, security=self._config.security)
