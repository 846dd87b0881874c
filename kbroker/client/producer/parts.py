"""What a producer is made of, and the plug-ins that it calls."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Any

from kbroker._ext.client.appender import Appender
from kbroker._ext.client.record_futures import RecordFuture
from kbroker.client.errors import SerializationFailed
from kbroker.client.producer.failures import Failures
from kbroker.client.producer.records import ProducerRecord, RecordMetadata
from kbroker.client.settings.client_settings import ClientSettings
from kbroker.record.compression import CODEC_NAMES

logger = logging.getLogger(__name__)


def pool(settings: ClientSettings, waits: bool) -> Appender:
    codec = CODEC_NAMES.index(settings["compression.type"])
    level = f"compression.{settings['compression.type']}.level"
    failures = Failures(settings)
    in_flight = settings["max.in.flight.requests.per.connection"]
    return Appender(
        failures,
        RecordMetadata,
        batch_bytes=settings["batch.size"],
        buffer_bytes=settings["buffer.memory"],
        record_bytes_max=failures.record_bytes_max(),
        linger_us=settings["linger.ms"] * 1000,
        delivery_us=settings["delivery.timeout.ms"] * 1000,
        block_us=settings["max.block.ms"] * 1000 if waits else 0,
        in_flight_max=in_flight,
        codec=codec,
        level=settings[level] if level in settings.given else None,
        idempotent=settings["enable.idempotence"],
        transactional=settings["transactional.id"] is not None,
        ignore_keys=settings["partitioner.ignore.keys"],
        adaptive=settings["partitioner.adaptive.partitioning.enable"],
        round_robin=settings["partitioner.class"] == "round_robin",
        seed=random.getrandbits(63),
    )


def serializer(given: Any) -> Callable[[str, Any], Any] | None:
    """``(topic, field) -> bytes`` from a callable or an object with ``serialize``."""
    if given is None:
        return None
    serialize = getattr(given, "serialize", None)
    if serialize is not None:
        return serialize  # type: ignore[no-any-return]
    return lambda topic, field: given(field)


def serialized(serialize: Callable[[str, Any], Any] | None, topic: str, field: Any) -> Any:
    if serialize is None or field is None:
        return field
    try:
        return serialize(topic, field)
    except Exception as error:
        raise failed_in("the serializer", error) from error


def intercepted(interceptor: Any, record: ProducerRecord) -> ProducerRecord:
    """COMPAT: as in Java, an interceptor that fails is left out."""
    try:
        changed = interceptor.on_send(record)
    except Exception:
        logger.exception("on_send of %r raised an error; the record is sent as it was", interceptor)
        return record
    return record if changed is None else changed


def failed_in(what: str, error: Exception) -> SerializationFailed:
    return SerializationFailed(f"{what} raised {type(error).__name__}: {error}")


def refused(error: Exception, topic: object) -> RecordFuture:
    """The future of a record that cannot be encoded."""
    if not isinstance(topic, str):
        raise error
    return RecordFuture.refused(error)
