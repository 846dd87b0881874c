"""Requests of random values, some of them damaged, through the real handlers.

Every request ends: answered with a response that decodes, or with a closed connection and a reason
in the log. None makes a handler raise. A failure prints the seed and the number of the request.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from support.network.network_process import CORRELATION_ID, NetworkProcess, decode

from kbroker.handlers import registry
from kbroker.protocol import codec
from kbroker.protocol.api import ApiKey, request_class
from kbroker.protocol.header import encode_request_header
from kbroker.protocol.message import Message
from kbroker.protocol.schema import Field, StructSchema

pytestmark = pytest.mark.property

REQUESTS = 1500
TEXTS = ["t", "u", "", ".", "x" * 300, "0", "ä", "a b", "retention.ms"]
IDS = [bytes(16), b"t" * 16, b"?" * 16]
BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


def random_value(random: Random, message: type[Message], field: Field, version: int) -> Any:
    """A possible value of the field, often a meaningful one."""
    if field.nullable_in(version) and random.random() < 0.3:
        return None
    if field.is_array:
        return [random_item(random, message, field, version) for _ in range(random.randrange(4))]
    return random_item(random, message, field, version)


def random_item(random: Random, message: type[Message], field: Field, version: int) -> Any:
    if field.struct is not None:
        return random_struct(random, message, getattr(message, field.type), field.struct, version)
    if field.type in BITS:
        limit = 1 << BITS[field.type] - 1
        return random.choice([0, 1, 2, 4, -1, -2, -3, -6, limit - 1, -limit])
    choices: dict[str, list[Any]] = {
        "string": TEXTS,
        "uuid": IDS,
        "bool": [False, True],
        "float64": [0.0, -1.5, float("inf"), float("nan")],
        "uint16": [0, 1, 9092, 65535],
        "records": [b"", b"records"],
        "bytes": [b"", b"bytes"],
    }
    return random.choice(choices[field.type])


def random_struct(
    random: Random, message: type[Message], cls: Any, struct: StructSchema, version: int
) -> Any:
    fields = [field for field in struct.fields if field.in_version(version)]
    return cls(**{f.name: random_value(random, message, f, version) for f in fields})


def busy_process(random: Random) -> NetworkProcess:
    """Two topics, and a controller and io workers that reply to everything."""

    def reject_or_succeed(to: Any, topics: list[Any], **args: Any) -> list[Any]:
        return [
            {
                "name": topic.get("name", "t"),
                "topic_id": topic.get("topic_id", (b"t" * 16).hex()),
                "error": 36 if "configs" in topic else random.choice([0, 3]),
                "message": random.choice([None, "a reason"]),
            }
            for topic in topics
        ]

    process = NetworkProcess()
    process.add_topic("t", b"t" * 16, [0, 1])
    process.add_topic("u", b"u" * 16, [2], leader=1, leader_epoch=3)
    process.put_log(0, 0, 100)
    process.put_log(1, 50, 60)
    for operation in ("create_topics", "delete_topics", "create_partitions"):
        process.set_response(operation, reject_or_succeed)
    for operation in ("alter_configs", "incremental_alter_configs"):
        process.set_response(
            operation,
            lambda to, resources, **args: [{"error": 0, "message": None}] * len(resources),
        )
    process.set_response(
        "alter_scram",
        lambda to, changes, **args: [
            [user, 0, None] for user in dict.fromkeys(user for user, *_ in changes)
        ],
    )
    process.set_response("describe_scram", lambda to, users: [[user, []] for user in users or ()])
    found = {"offset": 3, "timestamp": 5, "leader_epoch": 0}
    process.set_each_response("list_offsets", lambda to, *args: found)
    process.set_each_response(
        "offset_for_leader_epoch", lambda to, *args: {"end_offset": 3, "leader_epoch": 0}
    )
    process.set_each_response("offsets_before", lambda to, *args: {"offsets": [3]})
    process.set_each_response("delete_records", lambda to, *args: {"low_watermark": 3})
    process.set_each_response("await_deletion", lambda to, *args: {"low_watermark": 3})
    process.set_response("describe_log_dirs", lambda to, **args: [])
    process.set_response("alter_replica_log_dirs", lambda to, replicas: [0] * len(replicas))
    process.set_response("commit_stored_offsets", lambda to, **args: None)
    process.set_response(
        "fetch_stored_offsets", lambda to, group, partitions: [None] * len(partitions)
    )
    process.set_response("write_markers", lambda to, markers: [0] * len(markers))
    process.set_each_response("describe_producers", lambda to, slot: {"producers": []})
    process.set_response("late_transactions", lambda to, before_ms: [])
    process.set_response("commit_stored_offsets", lambda to, **args: None)
    process.set_response(
        "fetch_stored_offsets", lambda to, group, partitions: [None] * len(partitions)
    )
    process.set_response("write_markers", lambda to, markers: [0] * len(markers))
    process.set_response("allocate_producer_ids", lambda to: {"first": 0, "count": 1000})

    def each_partition(to: Any, partitions: list[Any] | None, **args: Any) -> list[Any]:
        return [[*named[:2], random.choice([0, 3]), None] for named in partitions or []]

    process.set_response("alter_reassignments", each_partition)
    process.set_response("elect_leaders", each_partition)
    process.set_response("list_reassignments", lambda to, **args: [["t", 0, [1, 2], [1], []]])
    return process


def random_requests(random: Random) -> Iterator[tuple[ApiKey, int, bytes]]:
    handlers = list(registry.HANDLERS.values())
    for _ in range(REQUESTS):
        handler = random.choice(handlers)
        version = random.randint(handler.first_version, handler.last_version)
        message = request_class(handler.key)
        request = random_struct(random, message, message, message.SCHEMA.root, version)
        body = codec.encode(request, version)
        header = encode_request_header(handler.key, version, CORRELATION_ID, "a-client")
        yield handler.key, version, header + body


@pytest.mark.parametrize("seed", [1, 2])
def test_handlers_random_requests_get_responses_or_are_closed_with_a_reason(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    random = Random(seed)
    process = busy_process(random)
    for number, (key, version, frame) in enumerate(random_requests(random)):
        caplog.clear()
        outcome = process.send_bytes(frame)
        place = f"request {number}: {key.name} version {version}: {frame!r}"
        assert outcome.done, place
        assert outcome.error is None, place
        assert not [record for record in caplog.records if record.exc_info], place
        if outcome.value is None:
            # Logged here, or when the connection is closed.
            said = [record.levelno for record in caplog.records] == [logging.WARNING]
            assert said != bool(process.connection.close_reason), place
            process.connection.close_reason = None
        else:
            decode(key, version, outcome.value)


@pytest.mark.parametrize("seed", [1, 2])
def test_handlers_damaged_requests_never_raise(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    random = Random(seed)
    process = busy_process(random)
    for number, (key, version, frame) in enumerate(random_requests(random)):
        damaged = bytearray(frame)
        for _ in range(random.randrange(1, 4)):
            damaged[random.randrange(len(damaged))] = random.randrange(256)
        caplog.clear()
        outcome = process.send_bytes(bytes(damaged))
        place = f"request {number}: {key.name} version {version}: {bytes(damaged)!r}"
        assert outcome.done, place
        assert outcome.error is None, place
        assert not [record for record in caplog.records if record.exc_info], place
