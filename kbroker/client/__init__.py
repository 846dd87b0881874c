"""Clients for any Kafka.

``KafkaProducer``, ``KafkaConsumer`` and ``KafkaAdminClient`` are for applications
(docs/clients.md). Below them is a wire client of whole record batches: blocking, driven by the
caller, every call with a deadline, without record objects
(docs/decisions/0007-client-and-spark.md); ``kbroker.client.arrow`` is the part of that which needs
pyarrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import kbroker.record  # noqa: F401 - extensions need its codecs

if TYPE_CHECKING:
    from kbroker._ext.client.consumer_record import ConsumerRecord as ConsumerRecord
    from kbroker.client.administration.kafka_admin_client import (
        KafkaAdminClient as KafkaAdminClient,
    )
    from kbroker.client.consumer.kafka_consumer import KafkaConsumer as KafkaConsumer
    from kbroker.client.consumer.membership import RebalanceListener as RebalanceListener
    from kbroker.client.consumer.partitions import OffsetAndMetadata as OffsetAndMetadata
    from kbroker.client.consumer.partitions import TopicPartition as TopicPartition
    from kbroker.client.producer.kafka_producer import KafkaProducer as KafkaProducer
    from kbroker.client.producer.records import ProducerRecord as ProducerRecord
    from kbroker.client.producer.records import RecordMetadata as RecordMetadata

__all__ = [
    "ConsumerRecord",
    "KafkaAdminClient",
    "KafkaConsumer",
    "KafkaProducer",
    "OffsetAndMetadata",
    "ProducerRecord",
    "RebalanceListener",
    "RecordMetadata",
    "TopicPartition",
]

_PLACES = {
    "ConsumerRecord": "kbroker._ext.client.consumer_record",
    "KafkaAdminClient": "kbroker.client.administration.kafka_admin_client",
    "KafkaConsumer": "kbroker.client.consumer.kafka_consumer",
    "OffsetAndMetadata": "kbroker.client.consumer.partitions",
    "RebalanceListener": "kbroker.client.consumer.membership",
    "TopicPartition": "kbroker.client.consumer.partitions",
    "KafkaProducer": "kbroker.client.producer.kafka_producer",
    "ProducerRecord": "kbroker.client.producer.records",
    "RecordMetadata": "kbroker.client.producer.records",
}


def __getattr__(name: str) -> Any:
    """Loads what is asked for, so that tools start without the rest."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_PLACES[name]), name)
