"""DescribeClientQuotas and AlterClientQuotas: filters, checks, and what the controller is asked."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from support.network.network_process import NetworkProcess

from kbroker.errors import ErrorCode, WireError
from kbroker.protocol.api import ApiKey, request_class

pytestmark = pytest.mark.unit

DESCRIBE = request_class(ApiKey.DESCRIBE_CLIENT_QUOTAS)
ALTER = request_class(ApiKey.ALTER_CLIENT_QUOTAS)
EXACT, DEFAULT, SPECIFIED = range(3)
QUOTAS: dict[str, dict[str, float]] = {
    "users/alice": {"producer_byte_rate": 1.0, "request_percentage": 2.5},
    "users/<default>": {"producer_byte_rate": 2.0},
    "users/alice/clients/c": {"producer_byte_rate": 3.0},
    "users/alice/clients/<default>": {"producer_byte_rate": 4.0},
    "clients/c": {"producer_byte_rate": 5.0},
    "clients/<default>": {"producer_byte_rate": 6.0},
    "ips/192.0.2.1": {"connection_creation_rate": 7.0},
    "ips/<default>": {"connection_creation_rate": 8.0},
}


@pytest.fixture
def process() -> NetworkProcess:
    process = NetworkProcess()
    process.apply(quotas=QUOTAS)
    process.set_response("alter_quotas", lambda to, **_: None)
    return process


def describe(process: NetworkProcess, *parts: tuple[Any, ...], strict: bool = False) -> Any:
    """The first quota of each entity; or the error."""
    components = [DESCRIBE.ComponentData(entity_type=k, match_type=t, match=m) for k, t, m in parts]
    answer = process.ask(DESCRIBE(components=components, strict=strict), 1)
    if answer.error_code:
        assert answer.entries is None
        return ErrorCode(answer.error_code)
    return sorted(int(entry.values[0].value) for entry in answer.entries)


def altered(process: NetworkProcess, *entries: Any, validate_only: bool = False) -> list[Any]:
    answer = process.ask(ALTER(entries=list(entries), validate_only=validate_only), 1)
    return [(ErrorCode(entry.error_code), entry.error_message) for entry in answer.entries]


def change(entity: dict[str, str | None], **ops: float | None) -> Any:
    return ALTER.EntryData(
        entity=[ALTER.EntityData(entity_type=k, entity_name=n) for k, n in entity.items()],
        ops=[ALTER.OpData(key=k, value=v or 0.0, remove=v is None) for k, v in ops.items()],
    )


@pytest.mark.parametrize(
    ("parts", "strict", "expected"),
    [
        ([], False, [1, 2, 3, 4, 5, 6, 7, 8]),
        ([], True, []),
        ([("user", SPECIFIED, None)], False, [1, 2, 3, 4]),
        ([("user", SPECIFIED, None)], True, [1, 2]),
        ([("user", EXACT, "alice")], False, [1, 3, 4]),
        ([("user", EXACT, "alice")], True, [1]),
        ([("user", EXACT, "bob")], False, []),
        ([("user", DEFAULT, None)], True, [2]),
        ([("client-id", SPECIFIED, None)], False, [3, 4, 5, 6]),
        ([("client-id", EXACT, "c")], True, [5]),
        ([("user", EXACT, "alice"), ("client-id", DEFAULT, None)], True, [4]),
        ([("user", EXACT, "alice"), ("client-id", SPECIFIED, None)], False, [3, 4]),
        ([("ip", SPECIFIED, None)], False, [7, 8]),
        ([("ip", EXACT, "192.0.2.1")], True, [7]),
        ([("ip", DEFAULT, None)], True, [8]),
        ([("topic", SPECIFIED, None)], False, ErrorCode.UNSUPPORTED_VERSION),
        ([("user", 3, None)], False, ErrorCode.INVALID_REQUEST),
        ([("user", EXACT, None)], False, ErrorCode.INVALID_REQUEST),
        ([("user", DEFAULT, "alice")], False, ErrorCode.INVALID_REQUEST),
        ([("user", DEFAULT, None), ("user", EXACT, "a")], False, ErrorCode.INVALID_REQUEST),
        ([("user", DEFAULT, None), ("ip", DEFAULT, None)], False, ErrorCode.INVALID_REQUEST),
    ],
)
def test_filter(process: NetworkProcess, parts: Any, strict: bool, expected: Any) -> None:
    assert describe(process, *parts, strict=strict) == expected


@pytest.mark.parametrize("version", [0, 1])
def test_entity_is_described_with_all_of_its_quotas(process: NetworkProcess, version: int) -> None:
    components = [
        DESCRIBE.ComponentData(entity_type="user", match_type=EXACT, match="alice"),
        DESCRIBE.ComponentData(entity_type="client-id", match_type=DEFAULT, match=None),
    ]
    answer = process.ask(DESCRIBE(components=components, strict=True), version)
    (entry,) = answer.entries
    parts = [(part.entity_type, part.entity_name) for part in entry.entity]
    assert parts == [("user", "alice"), ("client-id", None)]
    answer = process.ask(DESCRIBE(components=components[:1], strict=True), version)
    values = {value.key: value.value for value in answer.entries[0].values}
    assert values == {"producer_byte_rate": 1.0, "request_percentage": 2.5}


@pytest.mark.parametrize(
    ("entity", "ops", "path", "settings"),
    [
        ({"user": "a/b"}, {"producer_byte_rate": 7.0}, "users/a%2Fb", ["producer_byte_rate", "7"]),
        ({"user": None}, {"request_percentage": 50.0}, "users/<default>",
         ["request_percentage", "50.0"]),
        ({"client-id": "c", "user": "u"}, {"consumer_byte_rate": None}, "users/u/clients/c",
         ["consumer_byte_rate", None]),
        ({"client-id": None}, {"controller_mutation_rate": 0.5}, "clients/<default>",
         ["controller_mutation_rate", "0.5"]),
        ({"ip": "2001:DB8::0:1"}, {"connection_creation_rate": 5.0}, "ips/2001%3Adb8%3A%3A1",
         ["connection_creation_rate", "5"]),
        ({"ip": None}, {"connection_creation_rate": 5.0}, "ips/<default>",
         ["connection_creation_rate", "5"]),
    ],
)  # fmt: skip
def test_change_of_an_entity(
    process: NetworkProcess, entity: Any, ops: Any, path: str, settings: list[Any]
) -> None:
    assert altered(process, change(entity, **ops)) == [(ErrorCode.NONE, None)]
    (call,) = process.calls("alter_quotas")
    assert call["changes"] == [[path, [settings]]]


@pytest.mark.parametrize(
    ("entity", "ops", "says"),
    [
        ({}, {}, "a user, a client-id"),
        ({"user": ""}, {}, "Empty user not supported"),
        ({"topic": "t"}, {}, "Unhandled client quota entity type: 'topic'"),
        ({"user": "u", "ip": None}, {}, "a user, a client-id"),
        ({"ip": "example.org"}, {"connection_creation_rate": 1.0}, "is not a valid IP"),
        ({"user": ".."}, {"producer_byte_rate": 1.0}, "cannot have quotas"),
        ({"user": "u" * 1001}, {"producer_byte_rate": 1.0}, "cannot have quotas"),
        ({"user": "u"}, {"nosuch": 1.0}, "Invalid configuration key 'nosuch'"),
        ({"user": "u"}, {"connection_creation_rate": 1.0}, "Invalid configuration key"),
        ({"user": "u"}, {"SCRAM-SHA-256": 1.0}, "Invalid configuration key"),
        ({"ip": None}, {"producer_byte_rate": 1.0}, "Invalid configuration key"),
        ({"user": "u"}, {"producer_byte_rate": 0.0}, "must be greater than 0"),
        ({"user": "u"}, {"producer_byte_rate": -5.0}, "must be greater than 0"),
        ({"user": "u"}, {"request_percentage": float("nan")}, "must be greater than 0"),
        ({"user": "u"}, {"request_percentage": float("inf")}, "must be greater than 0"),
        ({"user": "u"}, {"consumer_byte_rate": 1.5}, "cannot be a fractional value"),
        ({"user": "u"}, {"consumer_byte_rate": 1e19}, "too large"),
    ],
)
def test_change_that_is_rejected(process: NetworkProcess, entity: Any, ops: Any, says: str) -> None:
    ((code, message),) = altered(process, change(entity, **ops))
    assert code is ErrorCode.INVALID_REQUEST
    assert says in message
    assert process.calls("alter_quotas") == []


def test_key_that_is_named_twice_is_rejected(process: NetworkProcess) -> None:
    entry = change({"user": "u"}, producer_byte_rate=1.0)
    entry.ops.append(ALTER.OpData(key="producer_byte_rate", value=2.0))
    ((code, message),) = altered(process, entry)
    assert code is ErrorCode.INVALID_REQUEST
    assert "Duplicate quota key" in message


def test_entity_that_is_named_twice_is_rejected_alone(process: NetworkProcess) -> None:
    outcomes = altered(
        process,
        change({"user": "u", "client-id": "c"}, producer_byte_rate=1.0),
        change({"user": "v"}, producer_byte_rate=1.0),
        change({"client-id": "c", "user": "u"}, producer_byte_rate=2.0),
    )
    assert [code for code, _ in outcomes] == [
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NONE,
        ErrorCode.INVALID_REQUEST,
    ]
    (call,) = process.calls("alter_quotas")
    assert call["changes"] == [["users/v", [["producer_byte_rate", "1"]]]]


def test_removal_of_what_is_no_quota_leaves_it_there(process: NetworkProcess) -> None:
    """The node of a user has credentials, too."""
    entry = change({"user": "u"}, **{"SCRAM-SHA-256": None, "producer_byte_rate": None})
    assert altered(process, entry) == [(ErrorCode.NONE, None)]
    (call,) = process.calls("alter_quotas")
    assert call["changes"] == [["users/u", [["producer_byte_rate", None]]]]


def test_validation_changes_nothing(process: NetworkProcess) -> None:
    outcomes = altered(
        process,
        change({"user": "u"}, producer_byte_rate=1.0),
        change({"user": "v"}, producer_byte_rate=-1.0),
        validate_only=True,
    )
    assert [code for code, _ in outcomes] == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
    assert process.calls("alter_quotas") == []


def test_failure_of_the_store_is_the_error_of_what_was_to_change(process: NetworkProcess) -> None:
    def fail(to: Any, **_: Any) -> None:
        raise WireError(ErrorCode.KAFKA_STORAGE_ERROR)

    process.set_response("alter_quotas", fail)
    outcomes = altered(
        process,
        change({"user": "u"}, producer_byte_rate=1.0),
        change({"user": "v"}, producer_byte_rate=-1.0),
    )
    expected = [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.INVALID_REQUEST]
    assert [code for code, _ in outcomes] == expected


def test_rejected_entities_leave_nothing_to_the_garbage_collector(process: NetworkProcess) -> None:
    """A process under load collects garbage every 30 s: until then errors with tracebacks kept
    requests, of which each has up to 50,000 elements.
    """
    entries = [change({"ip": f"no-address-{number}"}, request_rate=1.0) for number in range(500)]
    altered(process, *entries)
    gc.collect()

    gc.set_debug(gc.DEBUG_SAVEALL)  # also of what is collected before the call ends
    try:
        results = altered(process, *entries)
        gc.collect()
        # What other tests have left to other threads may be there, too.
        kept = [one for one in gc.garbage if isinstance(one, (WireError, ALTER, ALTER.EntryData))]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    assert {code for code, _ in results} == {ErrorCode.INVALID_REQUEST}
    assert not kept
