"""The clients of Kafka 0.8: programs that were written for them find the same classes, settings and
behaviour here (docs/clients.md). Also what tools of that time do by ZooKeeper.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import kbroker.record  # noqa: F401 - extensions need its codecs

if TYPE_CHECKING:
    from kbroker.legacy.async_producer import AsyncProducer as AsyncProducer
    from kbroker.legacy.async_producer import ProducerSendThread as ProducerSendThread
    from kbroker.legacy.dispatcher import Dispatcher as Dispatcher
    from kbroker.legacy.dispatcher import ProducerStats as ProducerStats
    from kbroker.legacy.encoders import DefaultEncoder as DefaultEncoder
    from kbroker.legacy.encoders import Encoder as Encoder
    from kbroker.legacy.encoders import IntegerEncoder as IntegerEncoder
    from kbroker.legacy.encoders import LongEncoder as LongEncoder
    from kbroker.legacy.encoders import NullEncoder as NullEncoder
    from kbroker.legacy.encoders import StringEncoder as StringEncoder
    from kbroker.legacy.event_handlers import CallbackHandler as CallbackHandler
    from kbroker.legacy.event_handlers import DefaultEventHandler as DefaultEventHandler
    from kbroker.legacy.event_handlers import EventHandler as EventHandler
    from kbroker.legacy.fetching import FetchRequest as FetchRequest
    from kbroker.legacy.fetching import FetchRequestBuilder as FetchRequestBuilder
    from kbroker.legacy.fetching import FetchResponse as FetchResponse
    from kbroker.legacy.fetching import FetchResponsePartition as FetchResponsePartition
    from kbroker.legacy.keyed_message import KeyedMessage as KeyedMessage
    from kbroker.legacy.keyed_message import Outgoing as Outgoing
    from kbroker.legacy.keyed_message import ProducerData as ProducerData
    from kbroker.legacy.legacy_errors import FailedToSendMessage as FailedToSendMessage
    from kbroker.legacy.legacy_errors import InvalidMessage as InvalidMessage
    from kbroker.legacy.legacy_errors import ProducerClosed as ProducerClosed
    from kbroker.legacy.legacy_errors import QueueFull as QueueFull
    from kbroker.legacy.message_set import Message as Message
    from kbroker.legacy.message_set import MessageAndOffset as MessageAndOffset
    from kbroker.legacy.message_set import MessageSet as MessageSet
    from kbroker.legacy.offset_channel import OffsetChannel as OffsetChannel
    from kbroker.legacy.offset_requests import EARLIEST_TIME as EARLIEST_TIME
    from kbroker.legacy.offset_requests import IN_BROKERS as IN_BROKERS
    from kbroker.legacy.offset_requests import IN_ZOOKEEPER as IN_ZOOKEEPER
    from kbroker.legacy.offset_requests import LATEST_TIME as LATEST_TIME
    from kbroker.legacy.offset_requests import (
        ConsumerMetadataRequest as ConsumerMetadataRequest,
    )
    from kbroker.legacy.offset_requests import (
        ConsumerMetadataResponse as ConsumerMetadataResponse,
    )
    from kbroker.legacy.offset_requests import OffsetAndMetadata as OffsetAndMetadata
    from kbroker.legacy.offset_requests import OffsetCommitRequest as OffsetCommitRequest
    from kbroker.legacy.offset_requests import OffsetCommitResponse as OffsetCommitResponse
    from kbroker.legacy.offset_requests import OffsetFetchRequest as OffsetFetchRequest
    from kbroker.legacy.offset_requests import OffsetFetchResponse as OffsetFetchResponse
    from kbroker.legacy.offset_requests import (
        OffsetMetadataAndError as OffsetMetadataAndError,
    )
    from kbroker.legacy.offset_requests import OffsetRequest as OffsetRequest
    from kbroker.legacy.offset_requests import OffsetResponse as OffsetResponse
    from kbroker.legacy.offset_requests import (
        PartitionOffsetRequestInfo as PartitionOffsetRequestInfo,
    )
    from kbroker.legacy.old_producer import Producer as Producer
    from kbroker.legacy.partitioners import ByteArrayPartitioner as ByteArrayPartitioner
    from kbroker.legacy.partitioners import DefaultPartitioner as DefaultPartitioner
    from kbroker.legacy.partitioners import Partitioner as Partitioner
    from kbroker.legacy.partitioners import RoundRobinPartitioner as RoundRobinPartitioner
    from kbroker.legacy.producer_config import ProducerConfig as ProducerConfig
    from kbroker.legacy.simple_consumer import SimpleConsumer as SimpleConsumer
    from kbroker.legacy.sync_producer import ProducerRequest as ProducerRequest
    from kbroker.legacy.sync_producer import ProducerResponse as ProducerResponse
    from kbroker.legacy.sync_producer import SyncProducer as SyncProducer
    from kbroker.legacy.topic_metadata import Broker as Broker
    from kbroker.legacy.topic_metadata import PartitionMetadata as PartitionMetadata
    from kbroker.legacy.topic_metadata import TopicMetadata as TopicMetadata
    from kbroker.legacy.topic_metadata import TopicMetadataRequest as TopicMetadataRequest
    from kbroker.legacy.topic_metadata import TopicMetadataResponse as TopicMetadataResponse

_PLACES = {
    "async_producer": ("AsyncProducer", "ProducerSendThread"),
    "dispatcher": ("Dispatcher", "ProducerStats"),
    "encoders": (
        "DefaultEncoder",
        "Encoder",
        "IntegerEncoder",
        "LongEncoder",
        "NullEncoder",
        "StringEncoder",
    ),
    "event_handlers": ("CallbackHandler", "DefaultEventHandler", "EventHandler"),
    "fetching": ("FetchRequest", "FetchRequestBuilder", "FetchResponse", "FetchResponsePartition"),
    "keyed_message": ("KeyedMessage", "Outgoing", "ProducerData"),
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
    "old_producer": ("Producer",),
    "partitioners": (
        "ByteArrayPartitioner",
        "DefaultPartitioner",
        "Partitioner",
        "RoundRobinPartitioner",
    ),
    "producer_config": ("ProducerConfig",),
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
