"""``Producer`` of 0.8, over ``SyncProducer`` or ``AsyncProducer``."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from kbroker.legacy.async_producer import AsyncProducer
from kbroker.legacy.cluster_view import ClusterView
from kbroker.legacy.dispatcher import Dispatcher, ProducerStats
from kbroker.legacy.event_handlers import EventHandler
from kbroker.legacy.keyed_message import flattened
from kbroker.legacy.legacy_errors import ProducerClosed
from kbroker.legacy.producer_config import ProducerConfig


class Producer:
    """config: a ProducerConfig, or the settings for one; keywords: more of them, with ``_`` for
    ``.``. event_handler: an object that comes before that of the settings.

    With ``producer.type=sync``, ``send`` returns when the brokers have acknowledged all its
    messages, and raises FailedToSendMessage and SerializationFailed. With ``async`` it returns when
    they are in a queue, and raises QueueFull; a thread sends them. Any thread may call.
    """

    def __init__(
        self,
        config: ProducerConfig | Mapping[str, Any] | None = None,
        event_handler: EventHandler | None = None,
        **keywords: Any,
    ) -> None:
        if not isinstance(config, ProducerConfig):
            config = ProducerConfig(config, **keywords)
        elif keywords:
            raise TypeError("settings are given as a ProducerConfig, or as keywords")
        self.config = config
        self._is_closed = False
        self._lock = threading.Lock()
        self._queued: AsyncProducer | None = None
        if config["producer.type"] == "async":
            self._queued = AsyncProducer(config, event_handler)
            self.stats = self._queued.stats
            return
        self.stats = ProducerStats()
        self._handler: EventHandler = event_handler or config["event.handler"]
        self._handler.init(config)
        self._dispatcher = Dispatcher(config, ClusterView(config), stats=self.stats)

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def send(self, *messages: Any) -> None:
        """Each a KeyedMessage, a ProducerData, or a list of them."""
        events = flattened(messages)
        if self._queued is not None:
            for event in events:
                self._queued.enqueue(event)
            return
        with self._lock:
            if self._is_closed:
                raise ProducerClosed
            self._handler.handle(events, self._dispatcher, self.config.encoder)

    def close(self) -> None:
        """Send what is in the queue, and close the connections."""
        if self._queued is not None:
            self._queued.close()
            return
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._handler.close()
                self._dispatcher.close()
