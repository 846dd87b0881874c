"""``AsyncProducer`` of 0.8: a queue, and a thread that sends in batches what is in it."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from kbroker.legacy.cluster_view import ClusterView
from kbroker.legacy.dispatcher import Dispatcher, ProducerStats
from kbroker.legacy.event_handlers import CallbackHandler, EventHandler
from kbroker.legacy.keyed_message import KeyedMessage
from kbroker.legacy.legacy_errors import ProducerClosed, QueueFull
from kbroker.legacy.producer_config import ProducerConfig

logger = logging.getLogger("kbroker.client.legacy.async_producer")


class MessageQueue:
    """BOUND: ``messages_max`` messages. Any thread may put, one takes."""

    def __init__(self, messages_max: int) -> None:
        self._max = messages_max
        self._items: deque[KeyedMessage] = deque()
        self._lock = threading.Lock()
        self._not_empty = threading.Condition(self._lock)
        self._not_full = threading.Condition(self._lock)
        self._closed = False
        self._failure = ""

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: KeyedMessage, timeout_s: float | None) -> bool:
        """False if there was no place for it within the time (None: for ever).

        Raises ProducerClosed.
        """
        with self._not_full:
            if len(self._items) >= self._max:
                self._not_full.wait_for(
                    lambda: self._closed or len(self._items) < self._max, timeout_s
                )
            if self._closed:
                raise ProducerClosed(self._failure)
            if len(self._items) >= self._max:
                return False
            self._items.append(item)
            self._not_empty.notify()
            return True

    def take(self, most: int, timeout_s: float) -> list[KeyedMessage] | None:
        """What there is; empty after the time; None once it is closed and empty."""
        with self._not_empty:
            self._not_empty.wait_for(lambda: self._closed or bool(self._items), timeout_s)
            if not self._items:
                return None if self._closed else []
            messages = [self._items.popleft() for _ in range(min(most, len(self._items)))]
            self._not_full.notify(len(messages))
            return messages

    def close(self, failure: str = "") -> None:
        """Nothing can be put any more. failure: of whoever took, which ``put`` tells."""
        with self._lock:
            self._closed = True
            self._failure = self._failure or failure
            self._not_empty.notify_all()
            self._not_full.notify_all()


class ProducerSendThread(threading.Thread):
    """Takes batches off the queue, by number and by time, and gives them to the event handler. An
    error ends a batch, which is lost, and not the thread. If the thread ends all the same, nothing
    can be put any more.
    """

    def __init__(
        self,
        config: ProducerConfig,
        queue: MessageQueue,
        handler: EventHandler,
        dispatcher: Dispatcher,
        callback: CallbackHandler | None,
    ) -> None:
        super().__init__(name=f"ProducerSendThread-{config['client.id']}", daemon=True)
        self._queue = queue
        self._handler = handler
        self._dispatcher = dispatcher
        self._encoder = config.encoder
        self._callback = callback
        self._batch: int = config["batch.num.messages"]
        self._time_s: float = config["queue.buffering.max.ms"] / 1000

    def run(self) -> None:
        """Until the queue is closed and empty."""
        try:
            self._send_all()
        except BaseException as error:
            self._queue.close(f"{type(error).__name__}: {error}")
            logger.exception(
                "%s has ended: %d messages are lost, and no more are taken",
                self.name,
                len(self._queue),
            )

    def _send_all(self) -> None:
        events: list[KeyedMessage] = []
        due = time.monotonic() + self._time_s
        while True:
            # One by one, if each may become several.
            room = self._batch - len(events) if self._callback is None else 1
            messages = self._queue.take(room, max(due - time.monotonic(), 0.0))
            if messages is None:
                break
            events += self._dequeued(messages)
            if len(events) >= self._batch or not messages:
                self._send(events)
                events = []
                due = time.monotonic() + self._time_s
        if self._callback is not None:
            events += self._called(self._callback.last_batch_before_close, instead=[])
        self._send(events)

    def _dequeued(self, messages: list[KeyedMessage]) -> list[KeyedMessage]:
        if self._callback is None:
            return messages
        each = self._callback.after_dequeuing_existing_data
        return [made for one in messages for made in self._called(each, one, instead=[one])]

    def _send(self, events: list[KeyedMessage]) -> None:
        if not events:
            return
        batch: Sequence[KeyedMessage] = events
        if self._callback is not None:
            batch = self._called(self._callback.before_sending_data, events, instead=events)
        try:
            self._handler.handle(batch, self._dispatcher, self._encoder)
        except BaseException:  # a handler that calls sys.exit() ends no thread
            logger.exception("a batch of %d messages is lost", len(batch))

    def _called(self, stage: Any, *values: Any, instead: Any) -> Any:
        try:
            return stage(*values)
        except BaseException:
            logger.exception("callback.handler: %s failed, and is left out", stage.__name__)
            return instead


class AsyncProducer:
    """config: a ProducerConfig, or the settings for one. event_handler, callback_handler: objects
    that come before those of the settings.

    ``send`` returns when the message is in the queue. Messages that cannot be sent are lost: the
    log says so. Any thread may call.
    """

    def __init__(
        self,
        config: ProducerConfig | Mapping[str, Any],
        event_handler: EventHandler | None = None,
        callback_handler: CallbackHandler | None = None,
    ) -> None:
        if not isinstance(config, ProducerConfig):
            config = ProducerConfig({**config, "producer.type": "async"})
        self.config = config
        self.stats = ProducerStats()
        self._handler: EventHandler = event_handler or config["event.handler"]
        self._callback: CallbackHandler | None = callback_handler or config["callback.handler"]
        self._handler.init(config)
        if self._callback is not None:
            self._callback.init(config)
        self._queue = MessageQueue(config["queue.buffering.max.messages"])
        timeout_ms = config["queue.enqueue.timeout.ms"]
        self._timeout_s = None if timeout_ms < 0 else timeout_ms / 1000
        self._dispatcher = Dispatcher(config, ClusterView(config), stats=self.stats)
        self._thread = ProducerSendThread(
            config, self._queue, self._handler, self._dispatcher, self._callback
        )
        self._closing = threading.Lock()
        self._is_closed = False
        self._thread.start()
        # What a program forgets to close is sent, too, at its end at the latest.
        self._end = weakref.finalize(self, _end, self._queue, self._thread)

    def __enter__(self) -> AsyncProducer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def send(self, topic: str, message: Any, partition: int | None = None, key: Any = None) -> None:
        """Raises QueueFull, as ``queue.enqueue.timeout.ms`` says, and ProducerClosed."""
        self.enqueue(KeyedMessage(topic=topic, message=message, partition=partition, key=key))

    def enqueue(self, item: KeyedMessage) -> None:
        """The same for a message that knows where it belongs."""
        if self._callback is not None:
            item = self._callback.before_enqueue(item)
        added = self._queue.put(item, self._timeout_s)
        if self._callback is not None:
            self._callback.after_enqueue(item, added)
        if not added:
            self.stats.dropped += 1
            waited_ms = int((self._timeout_s or 0) * 1000)
            raise QueueFull(item, self.config["queue.buffering.max.messages"], waited_ms)

    def close(self) -> None:
        """Send what is in the queue, then close the handlers and the connections."""
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
            self._end()
            if self._callback is not None:
                self._callback.close()
            self._handler.close()
            self._dispatcher.close()


def _end(queue: MessageQueue, thread: threading.Thread) -> None:
    """Wait until everything is sent."""
    queue.close()
    if thread is not threading.current_thread():
        thread.join()
