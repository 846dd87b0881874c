"""All versions announced in ApiVersions work: every API in every version, with an existing
resource.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.clients.wire_client import WireClient

from kbroker.errors import ErrorCode
from kbroker.protocol.api import ApiKey, request_class
from kbroker.protocol.messages.api_versions import ApiVersionsRequest
from kbroker.protocol.messages.find_coordinator import FindCoordinatorRequest
from kbroker.record.builder import BatchBuilder
from kbroker.testing import Broker

pytestmark = pytest.mark.integration

TOPIC = "topic"
# Errors that no announced version may return: that it does not exist, or that the broker has
# failed.
BROKEN = {int(ErrorCode.UNSUPPORTED_VERSION), int(ErrorCode.UNKNOWN_SERVER_ERROR)}
VALUES: dict[str, Any] = {
    "name": TOPIC,
    "topic": TOPIC,
    "topic_name": TOPIC,
    "topics": TOPIC,
    "topic_names": TOPIC,
    "group_id": "group",
    "transactional_id": "tx",
    "v3_and_below_transactional_id": "tx",
    "protocol_type": "consumer",
    "client_software_name": "test",
    "client_software_version": "1",
    "resource_name": TOPIC,
    "timeout_ms": 1000,
    "resource_type": 2,
    "acks": 1,
    "num_partitions": 1,
    "replication_factor": 1,
    "count": 1,
    "session_timeout_ms": 10_000,
    "rebalance_timeout_ms": 10_000,
    "transaction_timeout_ms": 10_000,
    "timestamp": -1,
    "offset": 0,
    "validate_only": True,
    "include_denied_brokers": False,
    "mechanism": "PLAIN",
    "entity_type": "user",
}


class Speaker:
    """Sends requests on a connection."""

    def __init__(self, broker: Broker) -> None:
        self.wire = WireClient((broker.host, broker.port))
        self.announced = {
            ApiKey(row.api_key): range(row.min_version, row.max_version + 1)
            for row in self.wire.call(ApiVersionsRequest(), 0).api_keys
        }

    def ask(self, key: ApiKey, version: int) -> set[int]:
        """The error codes in the response."""
        cls: Any = request_class(key)
        request = filled(cls, cls.STRUCT, cls, version)
        if key == ApiKey.JOIN_GROUP:
            request.group_id += str(version)  # which no other member is waited for in
        if key == ApiKey.DELETE_TOPICS:
            named = {"topics": [cls.DeleteTopicState(name="none")]}
            request = cls(**named if version >= 6 else {"topic_names": ["none"]}, timeout_ms=1000)
        return set(codes(self.wire.call(request, version)))


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    settings = {
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.num.partitions": 1,
        "group.initial.rebalance.delay.ms": 0,
    }
    with Broker(settings) as running:
        with WireClient((running.host, running.port)) as wire:
            wire.create_topic(TOPIC)
            for kind in (0, 1):
                assert wire.call(FindCoordinatorRequest(key="k", key_type=kind), 1).error_code == 0
        yield running


def test_announced_versions_are_served(broker: Broker) -> None:
    speaker = Speaker(broker)

    for key, versions in speaker.announced.items():
        for version in versions:
            found = speaker.ask(key, version) & BROKEN
            assert found == set(), (key.name, version)

    assert len(speaker.announced) > 40
    log = broker.log_text
    assert "Traceback" not in log, log[log.index("Traceback") - 300 :][:3000]


def filled(message: Any, struct: Any, cls: Any, version: int) -> Any:
    """A request with the topic, group and transactional id in every field for one."""
    values: dict[str, Any] = {}
    for field in struct.fields:
        if not field.in_version(version):
            continue
        if field.struct is not None and field.is_array:
            inner = getattr(message, field.type)
            values[field.name] = [filled(message, field.struct, inner, version)]
        elif field.name == "records":
            builder = BatchBuilder(0)
            builder.append(b"value", b"key", 1)
            values[field.name] = builder.build()
        elif field.is_array:
            values[field.name] = [VALUES.get(field.name, "group")] if field.type == "string" else []
        elif field.name in VALUES and (field.name, field.type) != ("mechanism", "int8"):
            values[field.name] = VALUES[field.name]
    return cls(**values)


def codes(value: Any) -> Iterator[int]:
    """Every error code in a response."""
    for field in type(value).STRUCT.fields:
        inner = getattr(value, field.name)
        if field.name.endswith("error_code"):
            yield inner
        for item in inner if isinstance(inner, list) else [inner]:
            if hasattr(type(item), "STRUCT"):
                yield from codes(item)
