"""What is sent through a producer of 0.8."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from kbroker.legacy.message_set import Message

_MISSING: Any = object()


class KeyedMessage:
    """A message for a topic.

    Written as in 0.8, ``KeyedMessage(topic, message)``, ``KeyedMessage(topic, key, message)`` and
    ``KeyedMessage(topic, key, part_key, message)``, or with keywords.

    key: is stored with the message. part_key: decides instead of the key where the message goes,
    and is not stored. partition: its number, so that neither of them decides.
    """

    __slots__ = ("key", "message", "part_key", "partition", "topic")

    topic: str
    key: Any
    part_key: Any
    message: Any
    partition: int | None

    def __init__(
        self,
        topic: str,
        *values: Any,
        key: Any = None,
        part_key: Any = None,
        message: Any = _MISSING,
        partition: int | None = None,
    ) -> None:
        count = len(values)
        if (count and message is not _MISSING) or (count > 1 and key is not None):
            count = 0
        elif count == 1:
            (message,) = values
        elif count == 2:
            key, message = values
        elif count == 3 and part_key is None:
            key, part_key, message = values
        if message is _MISSING or count > 3 or len(values) != count:
            raise TypeError("KeyedMessage(topic, message), (topic, key, message), or keywords")
        if not isinstance(topic, str) or not topic:
            raise TypeError(f"a message needs a topic, and not {topic!r}")
        self.topic = topic
        self.key = key
        self.part_key = part_key
        self.message = message
        self.partition = partition

    @property
    def partition_key(self) -> Any:
        """What decides where it goes; None: anywhere."""
        return self.key if self.part_key is None else self.part_key

    @property
    def has_key(self) -> bool:
        return self.key is not None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeyedMessage) and all(
            getattr(self, name) == getattr(other, name) for name in self.__slots__
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"KeyedMessage(topic={self.topic!r}, key={self.key!r}, message={self.message!r})"


class ProducerData:
    """One message, or a list of them, for a topic. key: where they go, and stored with each."""

    def __init__(self, topic: str, key: Any = None, data: Any = None) -> None:
        self.topic = topic
        self.key = key
        self.data = data

    def messages(self) -> Iterator[KeyedMessage]:
        """One for each."""
        for one in self.data if isinstance(self.data, list | tuple) else (self.data,):
            yield KeyedMessage(topic=self.topic, key=self.key, message=one)


class Outgoing(NamedTuple):
    """An encoded message. part_key: decides where it goes, unless there is a partition."""

    topic: str
    part_key: Any
    partition: int | None
    message: Message


def flattened(given: Iterable[Any]) -> list[KeyedMessage]:
    """The messages of all that was given: KeyedMessage, ProducerData, and lists of them."""
    messages: list[KeyedMessage] = []
    for one in given:
        if isinstance(one, KeyedMessage):
            messages.append(one)
        elif isinstance(one, ProducerData):
            messages.extend(one.messages())
        elif isinstance(one, list | tuple):
            messages.extend(flattened(one))
        else:
            raise TypeError(f"a KeyedMessage, a ProducerData or a list of them, and not {one!r}")
    return messages
