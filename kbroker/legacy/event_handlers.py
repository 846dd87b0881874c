"""What is done with messages on their way, where an application may put something of its own."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kbroker.client.errors import SerializationFailed
from kbroker.legacy.encoders import EncoderOf
from kbroker.legacy.keyed_message import KeyedMessage, Outgoing
from kbroker.legacy.message_set import Message

if TYPE_CHECKING:
    from kbroker.legacy.dispatcher import Dispatcher
    from kbroker.legacy.producer_config import ProducerConfig

logger = logging.getLogger("kbroker.client.legacy.event_handlers")


class EventHandler(ABC):
    """Gets what was given to ``send``, or in asynchronous mode a batch of it (``event.handler``).

    One call at a time. What it raises is raised by ``send``, or in asynchronous mode logged, and
    the batch is lost.
    """

    def init(self, config: ProducerConfig) -> None:  # noqa: B027 - there may be nothing to do
        """Called once, before anything else."""

    @abstractmethod
    def handle(
        self, events: Sequence[KeyedMessage], producer: Dispatcher, encoder: EncoderOf
    ) -> None:
        """Send the events, or what is to be sent instead of them.

        encoder: that of ``serializer.class``. producer: sends messages that are encoded.
        """

    def close(self) -> None:  # noqa: B027 - there may be nothing to do
        """Called once, when the producer is closed and everything is handled."""


class DefaultEventHandler(EventHandler):
    """Encodes the events and sends them. One that cannot be encoded ends ``send`` before anything
    is sent; in asynchronous mode it is logged, and the others are sent.
    """

    def init(self, config: ProducerConfig) -> None:
        """Takes the encoder of keys."""
        self._key_encoder = config.key_encoder
        self._is_sync = config["producer.type"] == "sync"

    def handle(
        self, events: Sequence[KeyedMessage], producer: Dispatcher, encoder: EncoderOf
    ) -> None:
        """Encode and send."""
        outgoing = []
        for event in events:
            try:
                outgoing.append(self._encoded(event, encoder))
            except Exception as error:
                producer.stats.serialization_errors += 1
                if self._is_sync:
                    raise SerializationFailed(
                        f"a message for topic {event.topic} cannot be encoded: {error}"
                    ) from error
                logger.exception("a message for topic %s cannot be encoded: lost", event.topic)
        producer.dispatch(outgoing)

    def _encoded(self, event: KeyedMessage, encoder: EncoderOf) -> Outgoing:
        key = None if event.key is None else self._key_encoder.to_bytes(event.key)
        message = Message(encoder.to_bytes(event.message), key)
        return Outgoing(event.topic, event.partition_key, event.partition, message)


class CallbackHandler:
    """Called at the stages of the queue of an asynchronous producer (``callback.handler``): to log,
    to trace, to count, or to change what is sent. A subclass has those that it needs.

    ``before_enqueue`` and ``after_enqueue`` are called by the threads that send, the others by the
    one that takes from the queue.
    """

    def init(self, config: ProducerConfig) -> None:
        """Called once, before anything else."""

    def before_enqueue(self, item: KeyedMessage) -> KeyedMessage:
        """Returns what is put into the queue."""
        return item

    def after_enqueue(self, item: KeyedMessage, added: bool) -> None:
        """added: False if there was no place for it."""

    def after_dequeuing_existing_data(self, item: KeyedMessage) -> Sequence[KeyedMessage]:
        """Returns what is added to the batch for it."""
        return [item]

    def before_sending_data(self, items: list[KeyedMessage]) -> Sequence[KeyedMessage]:
        """Returns the batch that the event handler gets."""
        return items

    def last_batch_before_close(self) -> Sequence[KeyedMessage]:
        """Returns what is sent in addition, at the end."""
        return []

    def close(self) -> None:
        """Called once, after the last batch."""
