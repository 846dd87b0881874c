"""The exceptions that the extensions raise for records that they do not take."""

from __future__ import annotations

from kbroker.client.errors import BufferExhausted, NoSuchPartition, RecordTooLarge
from kbroker.client.settings.client_settings import ClientSettings


class Failures:
    """Called by ``Accumulator`` and ``Appender``."""

    def __init__(self, settings: ClientSettings) -> None:
        self._request_bytes: int = settings["max.request.size"]
        self._buffer_bytes: int = settings["buffer.memory"]

    def record_bytes_max(self) -> int:
        """The largest record that both settings allow."""
        return min(self._request_bytes, self._buffer_bytes)

    def too_large(self, size: int) -> RecordTooLarge:
        if size > self._request_bytes:
            return RecordTooLarge(size, self._request_bytes, "max.request.size")
        return RecordTooLarge(size, self._buffer_bytes, "buffer.memory")

    def exhausted(self, size: int, buffer_bytes: int, waited_ms: int) -> BufferExhausted:
        return BufferExhausted(size, buffer_bytes, waited_ms)

    def no_partition(self, topic: str, partition: int, partitions: int) -> NoSuchPartition:
        return NoSuchPartition(topic, partition, partitions)
