"""Faces of the clients for asyncio: the same cores, whose calls are awaited.

``AsyncKafkaConsumer`` is in ``async_consumer``, ``AsyncKafkaProducer`` in ``async_producer``.
"""

from __future__ import annotations

from kbroker.client.aio.async_consumer import AsyncKafkaConsumer
from kbroker.client.aio.async_producer import AsyncKafkaProducer

__all__ = ["AsyncKafkaConsumer", "AsyncKafkaProducer"]
