"""The consumer of Kafka 0.8 that shares topics with its group by ZooKeeper."""

from __future__ import annotations

import logging
import secrets
import socket
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from kbroker.client.batches.offsets import TopicPartition
from kbroker.client.errors import ClientClosed, ClientError, ConsumerState
from kbroker.legacy.zookeeper_consumer.chunk_fetcher import ChunkFetcher
from kbroker.legacy.zookeeper_consumer.group_session import GroupSession
from kbroker.legacy.zookeeper_consumer.kafka_stream import KafkaStream
from kbroker.legacy.zookeeper_consumer.offset_storage import OffsetStorage
from kbroker.legacy.zookeeper_consumer.rebalancer import Rebalancer
from kbroker.legacy.zookeeper_consumer.topic_filters import StreamSubscription, TopicFilter
from kbroker.legacy.zookeeper_consumer.zookeeper_consumer_settings import (
    SETTINGS,
    ConsumerConfig,
)

logger = logging.getLogger("kbroker.client.legacy.zookeeper_consumer.consumer_connector")


class Consumer:
    """``Consumer.create(config)`` as in Java."""

    @staticmethod
    def create(
        config: ConsumerConfig | Mapping[str, Any] | None = None, **settings: Any
    ) -> ConsumerConnector:
        """Connect to ZooKeeper. config: settings under their names; keywords: with ``_`` for ``.``.

        Raises SettingRefused, UnreachableError.
        """
        if isinstance(config, ConsumerConfig):
            if settings:
                raise TypeError("a ConsumerConfig has all settings")
            return ConsumerConnector(config)
        return ConsumerConnector(ConsumerConfig(config, **settings))


class ConsumerConnector:
    """Reads topics as a member of its group.

        with Consumer.create(group_id="billing", zookeeper_connect="localhost:2181") as connector:
            (stream,) = connector.create_message_streams({"orders": 1})["orders"]
            for row in stream:
                print(row.topic, row.partition, row.offset, row.key, row.message)

    Each stream is for one thread; any thread may call the connector's methods. Streams are created
    once. It does not survive a fork.
    """

    def __init__(self, config: ConsumerConfig) -> None:
        for name in config.settings.without_effect(SETTINGS):
            logger.warning("the setting %s has no effect: %s", name, SETTINGS[name].no_effect)
        self.config = config
        unique = config["consumer.id"] or _unique_id()
        self.consumer_id = f"{config['group.id']}_{unique}"
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._streams: list[KafkaStream] = []
        self._closed = False
        self._committer: threading.Thread | None = None
        self._session = GroupSession(
            config["zookeeper.connect"],
            config["group.id"],
            session_s=config.seconds("zookeeper.session.timeout.ms"),
            connection_s=config.seconds("zookeeper.connection.timeout.ms"),
            protocol=config.settings.security.protocol,
            on_change=self._changed,
        )
        self._fetcher = ChunkFetcher(config, self.consumer_id)
        self._storage = OffsetStorage(
            config, self._session, lambda: self._session.brokers().values(), self._closing
        )
        self._rebalancer = Rebalancer(
            config, self.consumer_id, self._session, self._storage, self._fetcher, self._closing
        )
        try:
            self._session.start()
        except BaseException:
            self._session.close()
            raise

    def __enter__(self) -> ConsumerConnector:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Messages that a program has failed with were not handled: they are read again.
        self._end(commit=error is None)

    def _changed(self) -> None:
        self._rebalancer.changed()

    # -- streams

    def create_message_streams(
        self, topic_count_map: Mapping[str, int], key_decoder: Any = None, value_decoder: Any = None
    ) -> dict[str, list[KafkaStream]]:
        """Topic -> so many streams, which share its partitions with those of other consumers.

        Decoders: objects with ``from_bytes(data)``, or callables; None: bytes. Raises
        RebalanceFailed.
        """
        if not topic_count_map:
            raise ValueError("no topic: a mapping of topics to numbers of streams")
        counts = {topic: _count(count) for topic, count in topic_count_map.items()}
        made = {
            (topic, number): self._stream(f"{topic}-{number}", key_decoder, value_decoder)
            for topic, count in counts.items()
            for number in range(count)
        }
        self._begin(
            StreamSubscription(counts),
            list(made.values()),
            lambda topic, number: made[topic, number],
        )
        return {
            topic: [made[topic, number] for number in range(count)]
            for topic, count in counts.items()
        }

    def create_message_streams_by_filter(
        self,
        topic_filter: TopicFilter,
        num_streams: int = 1,
        key_decoder: Any = None,
        value_decoder: Any = None,
    ) -> list[KafkaStream]:
        """Streams over all topics that the filter allows, also those that are created later."""
        if not isinstance(topic_filter, TopicFilter):
            raise TypeError(f"a Whitelist or a Blacklist, not {topic_filter!r}")
        streams = [
            self._stream(f"{topic_filter.regex}-{number}", key_decoder, value_decoder)
            for number in range(_count(num_streams))
        ]
        subscription = StreamSubscription({"": len(streams)}, topic_filter)
        self._begin(subscription, streams, lambda _, number: streams[number])
        return streams

    def _stream(self, name: str, key_decoder: Any, value_decoder: Any) -> KafkaStream:
        timeout_ms: int = self.config["consumer.timeout.ms"]
        return KafkaStream(
            name,
            chunks_max=self.config["queued.max.message.chunks"],
            timeout_s=None if timeout_ms < 0 else timeout_ms / 1000,
            key_decoder=key_decoder,
            value_decoder=value_decoder,
            client_id=self.config["client.id"],
        )

    def _begin(
        self, subscription: StreamSubscription, streams: list[KafkaStream], stream_of: Any
    ) -> None:
        with self._lock:
            if self._closed:
                raise ClientClosed("the consumer is shut down")
            if self._streams:
                raise ConsumerState("this consumer has its streams: create another one for more")
            self._streams = streams
            self._rebalancer.begin(subscription, streams, stream_of)
            if self.config["auto.commit.enable"]:
                self._committer = threading.Thread(
                    target=self._commit_regularly, name=f"{self.consumer_id}-commits", daemon=True
                )
                self._committer.start()

    # -- offsets

    def commit_offsets(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commit the offsets of all messages that streams have returned; or other ones, by (topic,
        partition), which count when the partition is taken next. Raises ClientError.
        """
        if self._closed:
            raise ClientClosed("the consumer is shut down")
        self._rebalancer.commit(offsets, retry=True)

    def lags(self) -> dict[TopicPartition, int]:
        """How many messages of each partition, of those that this consumer owns, its streams have
        not returned yet, as of the last fetch from it. The largest is what Java's MaxLag tells of.
        """
        return self._rebalancer.lags()

    def metrics(self) -> dict[str, int]:
        """The figures of this consumer by the names of Java's MBeans: of each partition that it
        owns the lag, and the largest.
        """
        lags, client = self.lags(), self.config["client.id"]
        of_partition = "kafka.consumer:type=FetcherLagMetrics,name=ConsumerLag"
        counts = {
            f"{of_partition},clientId={client},topic={topic},partition={partition}": lag
            for (topic, partition), lag in lags.items()
        }
        largest = f"kafka.consumer:type=ConsumerFetcherManager,name=MaxLag,clientId={client}"
        return {largest: max(lags.values(), default=0), **counts}

    def _commit_regularly(self) -> None:
        seconds = self.config.seconds("auto.commit.interval.ms")
        while not self._closing.wait(seconds):
            try:
                self._rebalancer.commit(retry=False)
            except ClientError as error:
                logger.warning(
                    "cannot commit automatically: %s; trying again in %.3g s", error, seconds
                )
            except BaseException:
                logger.exception("a commit failed unexpectedly; trying again in %.3g s", seconds)

    # -- the end

    def shutdown(self) -> None:
        """Commit, if that is automatic, end the streams, and leave the group."""
        self._end(commit=True)

    def _end(self, commit: bool) -> None:
        self._closing.set()
        self._rebalancer.close()
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._committer is not None:
            self._committer.join()
        for stream in self._streams:
            stream.end()
        self._fetcher.close()
        try:
            if commit and self.config["auto.commit.enable"]:
                self._rebalancer.commit(retry=True)
        except ClientError as error:
            logger.warning("cannot commit at the end: %s", error)
        finally:
            self._storage.close()
            self._session.close()


def _count(value: Any) -> int:
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"{value!r} is no number of streams: at least 1")
    return value


def _unique_id() -> str:
    host = "".join(c if c.isalnum() or c in "._-" else "_" for c in socket.gethostname())
    return f"{host}-{int(time.time() * 1000)}-{secrets.token_hex(4)}"
