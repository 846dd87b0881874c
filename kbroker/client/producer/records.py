"""What is given to a producer, and what it says of a record in the end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

logger = logging.getLogger(__name__)

Headers = Iterable[tuple[str, bytes | None]] | Mapping[str, bytes | None]


class RecordMetadata(NamedTuple):
    """Where a record is. offset: -1 with acks=0. timestamp: ms; of the broker, if the topic has
    ``message.timestamp.type=LogAppendTime``. Sizes: in bytes, -1 for null.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    serialized_key_size: int
    serialized_value_size: int


Callback = Callable[[RecordMetadata | None, Exception | None], Any]


class ProducerRecord(NamedTuple):
    """A record, before it is serialized: for ``send``, and as interceptors see it."""

    topic: str
    value: Any = None
    key: Any = None
    headers: Any = None
    partition: int | None = None
    timestamp_ms: int | None = None

    def callback(self, rest: tuple[Any, ...], named: Callback | None) -> Callback | None:
        """That of ``send(record, callback)``. rest: all that was given besides the record, but a
        named callback. Raises TypeError.
        """
        first, *others = rest
        if any(one is not None for one in others) or (first is not None and named is not None):
            raise TypeError("beside a ProducerRecord there is a callback at most")
        callback: Callback | None = first if named is None else named
        if callback is not None and not callable(callback):
            raise TypeError(f"a callback, and not {callback!r}")
        return callback


def told(callback: Callback) -> Callable[[Any], None]:
    """A function of a future, which tells the callback how it has ended."""

    def tell(future: Any) -> None:
        error = future.exception()
        try:
            callback(None if error is not None else future.result(), error)
        except Exception:
            logger.exception("the callback %r raised an error", callback)

    return tell
