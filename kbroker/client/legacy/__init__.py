"""The clients of Kafka 0.8: programs that were written for them find the same classes, settings and
behaviour here (docs/clients.md). Also what tools of that time do by ZooKeeper.
"""

from __future__ import annotations

from typing import Any

_PLACES = {
    "fetching": ("FetchRequest", "FetchRequestBuilder", "FetchResponse", "FetchResponsePartition"),
    "legacy_errors": ("FailedToSendMessage", "InvalidMessage", "ProducerClosed", "QueueFull"),
    "message_set": ("Message", "MessageAndOffset", "MessageSet"),
    "offset_channel": ("OffsetChannel",),
    "offset_requests": (
        "ConsumerMetadataRequest",
        "ConsumerMetadataResponse",
        "EARLIEST_TIME",
        "IN_BROKERS",
        "IN_ZOOKEEPER",
        "LATEST_TIME",
        "OffsetAndMetadata",
        "OffsetCommitRequest",
        "OffsetCommitResponse",
        "OffsetFetchRequest",
        "OffsetFetchResponse",
        "OffsetMetadataAndError",
        "OffsetRequest",
        "OffsetResponse",
        "PartitionOffsetRequestInfo",
    ),
    "simple_consumer": ("SimpleConsumer",),
    "sync_producer": ("ProducerRequest", "ProducerResponse", "SyncProducer"),
    "topic_metadata": (
        "Broker",
        "PartitionMetadata",
        "TopicMetadata",
        "TopicMetadataRequest",
        "TopicMetadataResponse",
    ),
}


_MODULE_OF = {name: module for module, names in _PLACES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Loads what is asked for, so that tools start without the rest."""
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return sorted(_MODULE_OF)
