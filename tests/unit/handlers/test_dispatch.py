"""From frames to responses: rejections, announced versions, failing handlers."""

from __future__ import annotations

import pkgutil
import struct
from types import SimpleNamespace
from typing import Any

import pytest
from support.network.network_process import CORRELATION_ID, NetworkProcess, decode
from support.running.in_one import in_one

from kbroker import handlers
from kbroker.coordinator.partitioner import OFFSETS_TOPIC
from kbroker.errors import ErrorCode, WireError
from kbroker.handlers import registry
from kbroker.handlers.api_versions import TELEMETRY
from kbroker.protocol import codec
from kbroker.protocol.api import ApiKey, request_class, response_class
from kbroker.protocol.header import encode_request_header
from kbroker.protocol.messages.api_versions import ApiVersionsRequest
from kbroker.protocol.messages.delete_topics import DeleteTopicsRequest
from kbroker.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from kbroker.protocol.messages.metadata import MetadataRequest

pytestmark = pytest.mark.unit

EVERY_VERSION = [
    (ApiKey(key), version)
    for key, handler in registry.HANDLERS.items()
    for version in range(handler.first_version, handler.last_version + 1)
]


def new_process() -> NetworkProcess:
    process = NetworkProcess()
    process.set_response("allocate_producer_ids", lambda to: {"first": 0, "count": 10})
    process.set_response("describe_log_dirs", lambda to, topics: [])
    return process


@pytest.fixture
def process() -> NetworkProcess:
    return new_process()


def minimal_request(key: ApiKey) -> Any:
    """A request of defaults that every version can encode."""
    values: dict[str, Any] = {}
    if key is ApiKey.API_VERSIONS:
        values = {"client_software_name": "a", "client_software_version": "1"}
    elif key is ApiKey.PRODUCE:
        values = {"acks": 1}
    return request_class(key)(**values)


def frame_of(request: Any, version: int) -> bytes:
    header = encode_request_header(request.API_KEY, version, CORRELATION_ID, "a-client")
    return header + codec.encode(request, version)


def test_handler_modules_without_an_api_are_in_support() -> None:
    """Modules are found automatically: one without an API is misplaced, or support code."""
    frame = {"context", "dispatch", "registry"}
    modules = {module.name for module in pkgutil.iter_modules(handlers.__path__)} - {"support"}
    answering = {h.handle.__module__.rpartition(".")[2] for h in registry.HANDLERS.values()}
    assert answering == modules - frame


@in_one("key version", EVERY_VERSION, process=new_process)
def test_dispatch_every_announced_version_gets_a_response(
    process: NetworkProcess, key: ApiKey, version: int
) -> None:
    assert process.ask(minimal_request(key), version) is not None


@in_one("key version", EVERY_VERSION, process=new_process)
def test_dispatch_response_to_a_muted_connection_says_how_long_to_wait(
    process: NetworkProcess, key: ApiKey, version: int
) -> None:
    process.connection.throttle_time_ms = 1234

    response = process.ask(minimal_request(key), version)

    has_it = any(
        field.name == "throttle_time_ms" and field.in_version(version)
        for field in type(response).STRUCT.fields
    )
    assert getattr(response, "throttle_time_ms", 0) == (1234 if has_it else 0)


@pytest.mark.parametrize("key", [ApiKey.HEARTBEAT, ApiKey.OFFSET_DELETE])
def test_dispatch_response_that_was_forwarded_says_how_long_to_wait(
    process: NetworkProcess, key: ApiKey
) -> None:
    """The coordinator has encoded it. In one response another field comes first."""
    process.add_topic(OFFSETS_TOPIC, b"o" * 16, [0], internal=True)
    process.coordinators.answer = lambda slot, key, version, body: codec.encode(
        response_class(key)(error_code=27), version
    )
    process.connection.throttle_time_ms = 1234
    version = key.versions[1]

    response = process.ask(request_class(key)(group_id="g"), version)

    assert (response.throttle_time_ms, response.error_code) == (1234, 27)


@in_one("key version", EVERY_VERSION, process=new_process)
def test_dispatch_truncated_frames_close_the_connection(
    process: NetworkProcess, key: ApiKey, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    frame = frame_of(minimal_request(key), version)
    for bad in [frame[:size] for size in range(len(frame))]:
        process.connection.close_reason = None
        assert process.send_bytes(bad).value is None, bad
        assert process.connection.close_reason
    assert caplog.records == [], "it is logged once, when the connection is closed"
    assert process.rpc.calls == [] or registry.HANDLERS[key].undecoded


@pytest.mark.parametrize(
    ("key", "version", "reason"),
    [
        (ApiKey.FETCH, 19, "Fetch version 19 is not served, only 0 to 18"),
        (ApiKey.PRODUCE, 14, "Produce version 14 is not served, only 0 to 13"),
        (ApiKey.METADATA, 14, "Metadata version 14 is not served, only 0 to 13"),
        (ApiKey.SHARE_FETCH, 1, "ShareFetch is not served by this broker"),
    ],
)
def test_dispatch_version_or_api_not_served_closes_with_the_reason(
    process: NetworkProcess,
    key: ApiKey,
    version: int,
    reason: str,
) -> None:
    frame = encode_request_header(key, version, 1, "c") + b"\0" * 20
    outcome = process.send_bytes(frame)
    assert outcome.done
    assert outcome.value is None
    assert reason in process.connection.close_reason


def test_dispatch_api_key_that_does_not_exist_closes(process: NetworkProcess) -> None:
    assert process.send_bytes(struct.pack(">hhih", 999, 0, 1, -1)).value is None
    assert "999" in process.connection.close_reason


def test_dispatch_random_bytes_after_a_header_never_raise(process: NetworkProcess) -> None:
    bodies = [b"", b"\xff" * 40, b"\x7f\xff\xff\xff" * 10, bytes(range(256))]
    for key, first, last in registry.announced():
        for version in (first, last):
            header = encode_request_header(ApiKey(key), version, 1, None)
            for body in bodies:
                assert process.send_bytes(header + body).done


@pytest.mark.parametrize("version", [5, 9, 0x7FFF])
def test_api_versions_newer_than_ours_gets_version_0(process: NetworkProcess, version: int) -> None:
    header = struct.pack(">hhih", 18, version, CORRELATION_ID, -1) + b"\0"
    data = process.send_bytes(header + b"\x05name\x02v\0new fields").value
    response = decode(ApiKey.API_VERSIONS, 0, data)
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    ranges = [(k.api_key, k.min_version, k.max_version) for k in response.api_keys]
    assert ranges == [(18, 0, 4)]


@pytest.mark.parametrize("version", range(5))
def test_api_versions_lists_what_is_served_and_nothing_else(
    process: NetworkProcess, version: int
) -> None:
    response = process.ask(minimal_request(ApiKey.API_VERSIONS), version)
    listed = {k.api_key: (k.min_version, k.max_version) for k in response.api_keys}
    assert listed[ApiKey.PRODUCE] == (0, 13)
    assert listed[ApiKey.FETCH] == (0, 18)
    assert listed[ApiKey.METADATA] == (0, 13)
    served = set(registry.HANDLERS) | {ApiKey.PRODUCE, ApiKey.FETCH}
    assert set(listed) == served - TELEMETRY - {ApiKey.PEER_STATUS}  # what kbrokers alone ask
    assert listed[ApiKey.JOIN_GROUP] == (0, 9)
    assert listed[ApiKey.INIT_PRODUCER_ID] == (0, 5), "6 is in development in Kafka 4.3"


def test_api_versions_lists_telemetry_while_somebody_asks_for_metrics(
    process: NetworkProcess,
) -> None:
    """librdkafka tells of it at the start of every program, and Java asks every few minutes."""

    def listed() -> set[int]:
        response = process.ask(minimal_request(ApiKey.API_VERSIONS), 4)
        return {each.api_key for each in response.api_keys} & TELEMETRY

    assert listed() == set()
    process.apply(client_metrics={"rates": {"metrics": "*"}})
    assert listed() == TELEMETRY
    process.apply(client_metrics={"rates": None})
    assert listed() == set()


def test_api_versions_lists_what_is_in_development_if_asked_to() -> None:
    process = NetworkProcess(unstable_api_versions_enable="true")
    response = process.ask(minimal_request(ApiKey.API_VERSIONS), 4)
    listed = {k.api_key: (k.min_version, k.max_version) for k in response.api_keys}
    assert listed[ApiKey.INIT_PRODUCER_ID] == (0, 6)


def test_api_versions_is_counted_though_it_is_encoded_once(process: NetworkProcess) -> None:
    request, noted = minimal_request(ApiKey.API_VERSIONS), []
    process.times = SimpleNamespace(note_error=lambda *found: noted.append(found))
    assert process.ask(request, 3) == process.ask(request, 3)
    assert noted == [(ApiKey.API_VERSIONS, 0)] * 2


def test_api_versions_has_a_throttle_time_if_a_quota_is_exceeded(process: NetworkProcess) -> None:
    request = minimal_request(ApiKey.API_VERSIONS)
    assert process.ask(request, 3).throttle_time_ms == 0
    process.loop.limits = SimpleNamespace(on=True, charge_handler=lambda *_: None)
    process.connection.throttle_time_ms = 70
    assert process.ask(request, 3).throttle_time_ms == 70


@pytest.mark.parametrize(
    ("name", "software_version", "code"),
    [
        ("librdkafka", "2.16.0-RC1", 0),
        ("a", "1", 0),
        ("", "1", ErrorCode.INVALID_REQUEST),
        ("a b", "1", ErrorCode.INVALID_REQUEST),
        ("-a", "1", ErrorCode.INVALID_REQUEST),
        ("a", "1.", ErrorCode.INVALID_REQUEST),
        ("a\n", "1", ErrorCode.INVALID_REQUEST),
    ],
)
def test_api_versions_checks_the_name_of_the_client(
    process: NetworkProcess, name: str, software_version: str, code: int
) -> None:
    values = {"client_software_name": name, "client_software_version": software_version}
    response = process.ask(ApiVersionsRequest(**values), 3)
    assert response.error_code == code
    assert bool(response.api_keys) == (code == 0)


def test_dispatch_handler_that_raises_returns_unknown_server_error_with_one_traceback(
    process: NetworkProcess, caplog: pytest.LogCaptureFixture
) -> None:
    def break_down(to: Any, **args: Any) -> Any:
        raise ZeroDivisionError("a mistake")

    process.set_response("describe_log_dirs", break_down)
    response = process.ask(DescribeLogDirsRequest(topics=None), 4)
    assert response.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert [record.exc_info is not None for record in caplog.records] == [True]


def test_dispatch_error_that_the_version_cannot_carry_closes(process: NetworkProcess) -> None:
    def restarting(to: Any, **args: Any) -> Any:
        raise WireError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "io-0 is restarting")

    process.set_response("describe_log_dirs", restarting)
    assert process.ask(DescribeLogDirsRequest(topics=None), 2) is None
    assert "io-0 is restarting" in process.connection.close_reason


def test_dispatch_request_that_awaits_completes_when_its_call_ends(
    process: NetworkProcess,
) -> None:
    result = {"name": "t", "topic_id": None, "error": 0, "message": None}
    process.set_response("delete_topics", lambda to, **args: [result])
    process.rpc.is_holding = True
    outcome = process.send(DeleteTopicsRequest(topic_names=["t"], timeout_ms=5000), 1)
    assert not outcome.done
    process.rpc.release()
    assert outcome.done
    assert decode(ApiKey.DELETE_TOPICS, 1, outcome.value).responses[0].error_code == 0


@in_one("key version", EVERY_VERSION, process=new_process)
def test_every_handler_can_say_that_it_failed_or_closes(
    process: NetworkProcess, key: ApiKey, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def break_down(ctx: Any, request: Any) -> Any:
        raise WireError(ErrorCode.UNKNOWN_SERVER_ERROR, "a mistake")

    handler = registry.HANDLERS[key]._replace(handle=break_down)
    monkeypatch.setitem(registry.HANDLERS, key, handler)
    outcome = process.send(minimal_request(key), version)
    assert outcome.done
    assert outcome.error is None
    if outcome.value is not None:
        decode(key, version, outcome.value)


def test_dispatch_bytes_behind_a_request_are_ignored(process: NetworkProcess) -> None:
    # librdkafka 2.16 requests all topics like this: its array count is four bytes long.
    header = encode_request_header(ApiKey.METADATA, 13, CORRELATION_ID, "rdkafka")
    process.add_topic("t", b"t" * 16, [0])
    data = process.send_bytes(header + b"\0\0\0\0\1\0\0").value
    assert [topic.name for topic in decode(ApiKey.METADATA, 13, data).topics] == ["t"]


def test_metadata_null_client_id_is_accepted(process: NetworkProcess) -> None:
    frame = encode_request_header(ApiKey.METADATA, 9, CORRELATION_ID, None)
    data = process.send_bytes(frame + codec.encode(MetadataRequest(topics=None), 9)).value
    assert decode(ApiKey.METADATA, 9, data).cluster_id == "cluster-1"


@pytest.mark.parametrize(("version", "lowest"), [(3, 1), (4, 0)])
def test_api_versions_announces_features_to_those_who_can_read_them(
    process: NetworkProcess, version: int, lowest: int
) -> None:
    request = ApiVersionsRequest(client_software_name="a", client_software_version="1")
    response = process.ask(request, version)
    supported = {f.name: (f.min_version, f.max_version) for f in response.supported_features}
    finalized = {f.name: f.max_version_level for f in response.finalized_features}
    assert supported == {
        "group.version": (lowest, 1),
        "metadata.version": (30, 30),
        "transaction.version": (lowest, 2),
    }
    assert finalized == {"group.version": 1, "metadata.version": 30, "transaction.version": 2}
    assert response.finalized_features_epoch >= 0
    assert process.ask(request, 2).finalized_features == []


def test_api_versions_announces_the_features_that_are_finalized_in_a_cluster() -> None:
    """Metadata in ZooKeeper have no version."""
    process = NetworkProcess(zookeeper_connect="z:2181")
    request = ApiVersionsRequest(client_software_name="a", client_software_version="1")
    for finalized, epoch in (({}, 0), ({"group.version": 1}, 4)):
        process.image.apply({"version": 9, "features": {"levels": finalized, "epoch": epoch}})
        response = process.ask(request, 4)
        assert {f.name: f.max_version for f in response.supported_features} == {
            "group.version": 1, "transaction.version": 2
        }  # fmt: skip
        levels = {f.name: f.max_version_level for f in response.finalized_features}
        assert (levels, response.finalized_features_epoch) == (finalized, epoch)
