"""Clients for any Kafka.

``KafkaProducer`` is the producer for applications (docs/clients.md). Below it is a wire client of
whole record batches: blocking, driven by the caller, every call with a deadline, without record
objects (docs/decisions/0007-client-and-spark.md); ``kbroker.client.arrow`` is the part of that
which needs pyarrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import kbroker.record  # noqa: F401 - extensions need its codecs

if TYPE_CHECKING:
    from kbroker.client.producer.kafka_producer import KafkaProducer as KafkaProducer
    from kbroker.client.producer.kafka_producer import RecordMetadata as RecordMetadata

__all__ = ["KafkaProducer", "RecordMetadata"]

_PLACES = {
    "KafkaProducer": "kbroker.client.producer.kafka_producer",
    "RecordMetadata": "kbroker.client.producer.kafka_producer",
}


def __getattr__(name: str) -> Any:
    """Loads what is asked for, so that tools start without the rest."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_PLACES[name]), name)
