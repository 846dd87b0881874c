"""Documents of the metadata store that any client may have written: a reader gets what it expects,
or an error that every user of the store handles.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.controller.store.topic_nodes import DAMAGED
from kbroker.metastore import paths

pytestmark = pytest.mark.property

DEEP = b'{"version":1,"partitions":' + b"[" * 100_000
ENDPOINTS = [["PLAINTEXT", "host", 9092, "PLAINTEXT"]]
REST = {"adding_replicas": {"0": [3]}, "removing_replicas": {"1": [2]}}


def reassigned(data: bytes) -> Any:
    return paths.reassigned_of_topic(paths.rest_of_topic(data))


READERS = {
    "broker": (paths.decode_broker, paths.encode_broker(ENDPOINTS, "rack", 0)),
    "old broker": (paths.decode_broker, b'{"version":1,"host":"h","port":9092}'),
    "suspect broker": (paths.is_suspect_broker, paths.encode_broker(ENDPOINTS, None, 0)),
    "features of a broker": (
        paths.decode_broker_features,
        paths.encode_broker(ENDPOINTS, None, 0, features={"group.version": 1}),
    ),
    "features": (paths.decode_features, paths.encode_features({"group.version": 1})),
    "topic": (paths.decode_topic, paths.encode_topic(bytes(16), {0: [1, 2], 1: [2]}, REST)),
    "reassigned": (reassigned, paths.encode_topic(bytes(16), {0: [1, 2], 1: [2]}, REST)),
    "state": (paths.decode_partition_state, paths.encode_partition_state(1, 2, [1, 3], 4)),
    "isr change": (paths.decode_isr_change, paths.encode_isr_change([("t", 1)])),
    "log dir event": (paths.decode_log_dir_event, paths.encode_log_dir_event(3)),
    "config": (paths.decode_config, paths.encode_config({"retention.ms": "5"})),
    "config change": (paths.decode_config_change, paths.encode_config_change("/config/topics/t")),
    "old config change": (
        paths.decode_config_change,
        b'{"version":1,"entity_type":"topics","entity_name":"t"}',
    ),
    "reassignment": (paths.decode_reassignment, paths.encode_reassignment({("t", 0): [1, 2]})),
    "election": (paths.decode_preferred_election, b'{"partitions":[{"topic":"t","partition":0}]}'),
    "controller": (paths.decode_controller, paths.encode_controller(1, 0)),
    "cluster id": (paths.decode_cluster_id, paths.encode_cluster_id("id")),
    "producer ids": (paths.decode_producer_id_block, paths.encode_producer_id_block(1, 0, 999)),
    "gone": (paths.decode_gone_topic, paths.encode_gone_topic([bytes(range(16))])),
}

strange = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["-5", "5", "1e3", "٣", "²"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


def places(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values."""
    found = [path]
    if isinstance(document, dict):
        found += [p for key, value in document.items() for p in places(value, (*path, key))]
    elif isinstance(document, list):
        found += [p for at, value in enumerate(document) for p in places(value, (*path, at))]
    return found


def replaced(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copy = dict(document) if isinstance(document, dict) else list(document)
    copy[path[0]] = replaced(copy[path[0]], path[1:], value)
    return copy


@pytest.mark.parametrize("kind", READERS)
@given(data=st.data())
def test_strange_value_is_an_error_or_of_the_expected_type(kind: str, data: Any) -> None:
    read, document = READERS[kind]
    sound = json.loads(document)
    place = data.draw(st.sampled_from(places(sound)))
    written = json.dumps(replaced(sound, place, data.draw(strange))).encode()
    try:
        found = read(written)
    except DAMAGED:
        return
    assert_sound(kind, found)


@pytest.mark.parametrize("kind", READERS)
@given(data=st.binary(max_size=40))
def test_bytes_that_are_no_document_are_an_error(kind: str, data: bytes) -> None:
    read, _ = READERS[kind]
    for written in (data, DEEP):
        try:
            found = read(written)
        except DAMAGED:
            continue
        assert_sound(kind, found)


def is_integer(value: Any, low: int = 0, high: int = 2**31 - 1) -> bool:
    return type(value) is int and low <= value <= high


def are_brokers(value: Any) -> bool:
    return type(value) is list and all(map(is_integer, value)) and len(set(value)) == len(value)


def are_keys(value: Any) -> bool:
    return all(type(topic) is str and is_integer(number) for topic, number in value)


def are_endpoints(found: Any) -> bool:
    endpoints, rack = found
    return (rack is None or type(rack) is str) and all(
        type(name) is str
        and type(host) is str
        and is_integer(port, 1, 65_535)
        and protocol in ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
        for name, host, port, protocol in endpoints
    )


def is_assignment(found: Any) -> bool:
    return all(is_integer(number) and are_brokers(some) for number, some in found.items())


def are_texts(found: Any) -> bool:
    return all(type(key) is str and type(value) is str for key, value in found.items())


def are_levels(found: Any) -> bool:
    return found is None or all(
        type(key) is str and is_integer(value) for key, value in found.items()
    )


CHECKS: dict[str, Any] = {
    "broker": are_endpoints,
    "old broker": are_endpoints,
    "suspect broker": lambda found: type(found) is bool,
    "features of a broker": are_levels,
    "features": are_levels,
    "topic": lambda found: is_assignment(found[1]),
    "reassigned": lambda found: all(map(is_assignment, found)),
    "state": lambda found: (
        is_integer(found[0], -1) and is_integer(found[1]) and are_brokers(found[2])
    ),
    "isr change": are_keys,
    "log dir event": is_integer,
    "config": are_texts,
    "config change": lambda found: type(found) is str,
    "old config change": lambda found: type(found) is str,
    "reassignment": lambda found: (
        are_keys(found)
        and all(is_integer(broker, -(2**31)) for some in found.values() for broker in some)
    ),
    "election": are_keys,
    "controller": is_integer,
    "cluster id": lambda found: type(found) is str,
    "producer ids": lambda found: found is None or is_integer(found, -1, 2**63 - 1),
    "gone": lambda found: all(type(one) is bytes for one in found),
}


def assert_sound(kind: str, found: Any) -> None:
    assert CHECKS[kind](found), found
