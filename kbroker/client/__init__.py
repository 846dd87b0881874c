"""Clients for any Kafka.

``KafkaProducer``, ``KafkaConsumer`` and ``KafkaAdminClient`` are for applications
(docs/clients.md). Below them is a wire client of whole record batches: blocking, driven by the
caller, every call with a deadline, without record objects
(docs/decisions/0007-client-and-spark.md), in ``batches``; ``batches.arrow`` is the part of that
which needs pyarrow.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import kbroker.record  # noqa: F401 - extensions need its codecs

if TYPE_CHECKING:
    from kbroker._ext.client.consumer_record import ConsumerRecord as ConsumerRecord
    from kbroker.client.admin.kafka_admin_client import (
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
    "KafkaAdminClient": "kbroker.client.admin.kafka_admin_client",
    "KafkaConsumer": "kbroker.client.consumer.kafka_consumer",
    "OffsetAndMetadata": "kbroker.client.consumer.partitions",
    "RebalanceListener": "kbroker.client.consumer.membership",
    "TopicPartition": "kbroker.client.consumer.partitions",
    "KafkaProducer": "kbroker.client.producer.kafka_producer",
    "ProducerRecord": "kbroker.client.producer.records",
    "RecordMetadata": "kbroker.client.producer.records",
}

# Where modules are by the names that they had before there were rooms: programs may import them.
_EARLIER = {
    "addresses": "connections.addresses",
    "arrow": "batches.arrow",
    "arrow_sets": "consumer.arrow_sets",
    "client_metrics": "monitoring.client_metrics",
    "client_settings": "settings.client_settings",
    "cluster": "connections.cluster",
    "cluster_admin": "admin.cluster",
    "common_settings": "settings.common_settings",
    "config_admin": "admin.configs",
    "connection": "connections.connection",
    "controller_calls": "connections.controller_calls",
    "counts": "batches.counts",
    "feature_admin": "admin.features",
    "fetch": "batches.fetch",
    "flushed": "batches.flushed",
    "group_admin": "admin.groups",
    "hosts": "connections.hosts",
    "kerberos": "connections.kerberos",
    "oauth": "connections.oauth",
    "offsets": "batches.offsets",
    "partition_admin": "admin.partitions",
    "produce": "batches.produce",
    "producer.answers": "batches.answers",
    "producer.producer_metadata": "batches.producer_metadata",
    "producer.sender": "batches.sender",
    "producer.splitting": "batches.splitting",
    "quota_admin": "admin.quotas",
    "reassignment_admin": "admin.reassignments",
    "record_arrays": "batches.record_arrays",
    "replica_reads": "admin.replica_reads",
    "retry": "connections.retry",
    "security": "connections.security",
    "stores": "connections.stores",
    "token_admin": "admin.tokens",
    "topic_admin": "admin.topics",
    "topic_reader": "batches.topic_reader",
    "transaction_admin": "admin.transactions",
    "transactions": "batches.transactions",
}
_OF_ZOOKEEPER = {"group_nodes", "registered_brokers", "znodes", "zookeeper_link", "zookeeper_tls"}


def __getattr__(name: str) -> Any:
    """Loads what is asked for, so that tools start without the rest."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_PLACES[name]), name)


class _EarlierNames:
    """Finds modules by the names of ``_EARLIER``. A module is loaded once, whatever the name that
    it is imported by.
    """

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        of_here = name.removeprefix(__name__ + ".")
        if of_here == name or _now(of_here) is None:
            return None
        return type(__spec__)(name, self)  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> Any:
        import importlib
        from functools import partial

        module = importlib.import_module(str(_now(spec.name.removeprefix(__name__ + "."))))
        spec.loader_state = module.__spec__
        if not hasattr(module, "__path__"):
            return module
        # Not the package itself: its modules would be found in its folder, and loaded again.
        stand_in = type(module)(spec.name, module.__doc__)
        stand_in.__path__ = []
        stand_in.__getattr__ = partial(getattr, module)  # type: ignore[method-assign]
        stand_in.__dir__ = partial(dir, module)  # type: ignore[method-assign]
        return stand_in

    def exec_module(self, module: Any) -> None:
        if module.__name__ != module.__spec__.name:
            module.__spec__ = module.__spec__.loader_state  # its own again


def _now(earlier: str) -> str | None:
    """Where a module of this package is now, by its earlier name."""
    if earlier in _EARLIER:
        return f"{__name__}.{_EARLIER[earlier]}"
    package, _, rest = earlier.partition(".")
    if package != "legacy":
        return None
    return f"{__name__}.zookeeper.{rest}" if rest in _OF_ZOOKEEPER else f"kbroker.{earlier}"


sys.meta_path.append(_EarlierNames())
