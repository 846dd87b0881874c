"""Faces of the clients for asyncio: the same cores, whose calls are awaited.

``AsyncKafkaConsumer`` is in ``async_consumer``.
"""

from __future__ import annotations

from kbroker.client.aio.async_consumer import AsyncKafkaConsumer

__all__ = ["AsyncKafkaConsumer"]
