"""FindCoordinator, and the routing of requests to coordinators."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from support.network.network_process import NetworkProcess, decode

from kbroker.coordinator.partitioner import coordinator_partition, java_hash
from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.support.coordinated import CALL_KEYS_MAX, CALLS_MAX
from kbroker.ipc.rpc import Pending
from kbroker.protocol import codec
from kbroker.protocol.api import ApiKey, request_class
from kbroker.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from kbroker.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kbroker.protocol.messages.describe_groups import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from kbroker.protocol.messages.describe_transactions import DescribeTransactionsRequest
from kbroker.protocol.messages.find_coordinator import FindCoordinatorRequest
from kbroker.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from kbroker.protocol.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from kbroker.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from kbroker.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from kbroker.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse

pytestmark = pytest.mark.unit

OFFSETS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"
COORDINATED = [
    ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.HEARTBEAT, ApiKey.LEAVE_GROUP,
    ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH, ApiKey.OFFSET_DELETE,
    ApiKey.TXN_OFFSET_COMMIT, ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.DESCRIBE_GROUPS,
    ApiKey.CONSUMER_GROUP_DESCRIBE, ApiKey.DELETE_GROUPS, ApiKey.INIT_PRODUCER_ID,
    ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN,
    ApiKey.DESCRIBE_TRANSACTIONS,
]  # fmt: skip


@pytest.fixture
def process() -> NetworkProcess:
    return NetworkProcess()


@pytest.fixture
def coordinated(process: NetworkProcess) -> NetworkProcess:
    process.add_topic(OFFSETS, b"o" * 16, [0, 1, 2], internal=True)
    process.add_topic(TRANSACTIONS, b"x" * 16, [3, 4], internal=True)
    return process


@pytest.mark.parametrize(
    ("text", "value"),
    [("", 0), ("a", 97), ("my-group", -1906497762), ("ÄÖÜ", 195210), ("😀", 1772899),
     ("a-very-long-group-name-that-wraps", 1758466033)],
)  # fmt: skip
def test_java_hash_is_that_of_java(text: str, value: int) -> None:
    assert java_hash(text) == value


def test_coordinator_partition_of_a_negative_hash_is_that_of_its_absolute_value() -> None:
    """Kafka 2.7.2 and 3.9.1: Utils.abs. Otherwise half of the groups are not found after a move."""
    assert coordinator_partition("my-group", 50) == 1906497762 % 50


def test_coordinator_partition_of_the_smallest_hash_is_the_first() -> None:
    """Its absolute value does not fit an int; Kafka uses 0."""
    smallest = "polygenelubricants"

    assert java_hash(smallest) == -(2**31)
    assert coordinator_partition(smallest, 50) == 0


class TestFindCoordinator:
    @pytest.mark.parametrize("version", range(4))
    def test_find_coordinator_names_the_leader_of_the_partition(
        self, coordinated: NetworkProcess, version: int
    ) -> None:
        response = coordinated.ask(FindCoordinatorRequest(key="group"), version)
        assert (response.error_code, response.node_id) == (0, 0)
        assert response.error_message == ("NONE" if version else "")  # kafkajs rejects ""
        assert (response.host, response.port) == ("192.0.2.7", 9092)

    @pytest.mark.parametrize("version", range(4, 7))
    def test_find_coordinator_of_several_keys_returns_each(
        self, coordinated: NetworkProcess, version: int
    ) -> None:
        request = FindCoordinatorRequest(key_type=1, coordinator_keys=["a", "b"])
        response = coordinated.ask(request, version)
        assert [(c.key, c.error_code, c.node_id) for c in response.coordinators] == [
            ("a", 0, 0),
            ("b", 0, 0),
        ]

    @pytest.mark.parametrize(("key_type", "topic"), [(0, OFFSETS), (1, TRANSACTIONS)])
    def test_find_coordinator_has_the_topic_created_first(
        self, process: NetworkProcess, key_type: int, topic: str
    ) -> None:
        def create(to: Any, topics: list[Any], **args: Any) -> list[Any]:
            assert (topics, args["auto"]) == ([{"name": topic}], True)
            process.add_topic(topic, b"o" * 16, [0, 1], internal=True)
            return [{"name": topic, "error": 0, "message": None}]

        process.set_response("create_topics", create)
        response = process.ask(FindCoordinatorRequest(key="k", key_type=key_type), 2)
        assert (response.error_code, response.node_id) == (0, 0)

    @pytest.mark.parametrize("how", ["rejected", "away"])
    def test_find_coordinator_without_its_topic_is_not_available(
        self, process: NetworkProcess, how: str
    ) -> None:
        def create(to: Any, **args: Any) -> list[Any]:
            if how == "away":
                raise WireError(ErrorCode.REQUEST_TIMED_OUT, "late")
            return [{"name": OFFSETS, "error": 38, "message": "too few brokers"}]

        process.set_response("create_topics", create)
        response = process.ask(FindCoordinatorRequest(key="k"), 1)
        assert response.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (response.node_id, response.host, response.port) == (-1, "", -1)
        assert response.error_message in ("late", "too few brokers")

    def test_find_coordinator_led_by_a_broker_that_is_away_is_not_available(
        self, process: NetworkProcess
    ) -> None:
        process.add_topic(OFFSETS, b"o" * 16, [0], internal=True, leader=9)
        response = process.ask(FindCoordinatorRequest(key="k"), 1)
        assert response.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE

    @pytest.mark.parametrize(("version", "key_type"), [(5, 2), (6, 3), (4, -1)])
    def test_find_coordinator_kind_that_does_not_exist_is_invalid_request(
        self, process: NetworkProcess, version: int, key_type: int
    ) -> None:
        request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=["a"])
        coordinator = process.ask(request, version).coordinators[0]
        assert coordinator.error_code == ErrorCode.INVALID_REQUEST


class TestForward:
    @pytest.mark.parametrize("version", range(5))
    def test_request_goes_to_the_slot_of_its_group_as_it_came(
        self, coordinated: NetworkProcess, version: int
    ) -> None:
        request = HeartbeatRequest(group_id="my-group", generation_id=4, member_id="m")
        link = coordinated.coordinators
        link.answer = lambda slot, key, v, body: codec.encode(HeartbeatResponse(error_code=27), v)
        assert coordinated.ask(request, version).error_code == 27
        (call,) = link.calls
        assert call["slot"] == coordinator_partition("my-group", 3)
        assert call["incarnation"] == 1
        assert call["body"] == codec.encode(request, version)
        assert (call["client_id"], call["client_host"]) == ("a-client", "198.51.100.4")

    def test_transactional_id_goes_to_the_other_topic(self, coordinated: NetworkProcess) -> None:
        answer = InitProducerIdResponse(producer_id=5, producer_epoch=0)
        coordinated.coordinators.answer = lambda slot, key, v, body: codec.encode(answer, v)
        request = InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=1000)
        assert coordinated.ask(request, 4).producer_id == 5
        assert coordinated.coordinators.calls[0]["slot"] == 3 + coordinator_partition("tx", 2)

    @pytest.mark.parametrize(
        ("request_class", "code"),
        [
            (HeartbeatRequest, ErrorCode.INVALID_GROUP_ID),
            (ConsumerGroupHeartbeatRequest, ErrorCode.INVALID_REQUEST),
        ],
    )
    def test_request_without_a_group_is_rejected_as_kafka_does(
        self, coordinated: NetworkProcess, request_class: Any, code: ErrorCode
    ) -> None:
        assert coordinated.ask(request_class(), 1).error_code == code
        assert coordinated.coordinators.calls == []

    @pytest.mark.parametrize("key", COORDINATED)
    def test_no_coordinator_is_said_in_every_version(
        self, process: NetworkProcess, key: ApiKey
    ) -> None:
        for version in coordinated_versions(key):
            response = process.ask(request_naming_something(key, version), version)
            assert codes(response) - {0} == {ErrorCode.NOT_COORDINATOR}, version

    @pytest.mark.parametrize("key", [*COORDINATED, ApiKey.LIST_GROUPS, ApiKey.LIST_TRANSACTIONS])
    def test_loading_is_said_in_every_version(
        self, coordinated: NetworkProcess, key: ApiKey
    ) -> None:
        def loading(*_: Any) -> bytes:
            raise WireError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

        coordinated.coordinators.answer = loading
        for version in coordinated_versions(key):
            expected = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            if key == ApiKey.TXN_OFFSET_COMMIT and version < 2:
                expected = ErrorCode.COORDINATOR_NOT_AVAILABLE  # what these clients try again
            response = coordinated.ask(request_naming_something(key, version), version)
            assert codes(response) - {0} == {expected}, version


class TestSplit:
    def test_describe_asks_each_coordinator_once_and_keeps_the_order(
        self, coordinated: NetworkProcess
    ) -> None:
        ids = [f"g{i}" for i in range(12)]

        def describe(slot: int, key: ApiKey, version: int, body: bytes) -> bytes:
            asked = codec.decode_exact(DescribeGroupsRequest, version, body).groups
            assert {coordinator_partition(group, 3) for group in asked} == {slot}
            if slot == 1:
                raise WireError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            row = DescribeGroupsResponse.DescribedGroup
            rows = [row(group_id=group, group_state="Stable") for group in asked]
            return codec.encode(DescribeGroupsResponse(groups=rows), version)

        coordinated.coordinators.answer = describe
        response = coordinated.ask(DescribeGroupsRequest(groups=ids), 5)
        assert [g.group_id for g in response.groups] == ids
        for group in response.groups:
            loading = coordinator_partition(group.group_id, 3) == 1
            expected = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if loading else 0
            assert (group.error_code, group.group_state) == (
                expected, "" if loading else "Stable")  # fmt: skip
        assert len(coordinated.coordinators.calls) == 3

    def test_describe_of_many_groups_goes_in_calls_of_a_few(
        self, coordinated: NetworkProcess, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A coordinator serves no other request during a call; with all groups at once it was
        killed as stalled.
        """
        ids = [f"g{i}" for i in range(4000)]
        under_way: deque[tuple[list[str], Pending]] = deque()
        sizes, most = [], 0

        def call(slot: int, incarnation: int, key: int, version: int, body: bytes, *_: Any) -> Any:
            asked = codec.decode_exact(DescribeGroupsRequest, version, body).groups
            under_way.append((asked, Pending()))
            return under_way[-1][1]

        monkeypatch.setattr(coordinated.coordinators, "call", call)
        outcome = coordinated.send(DescribeGroupsRequest(groups=ids), 5)
        while under_way:
            most = max(most, len(under_way))
            asked, pending = under_way.popleft()
            sizes.append(len(asked))
            rows = [DescribeGroupsResponse.DescribedGroup(group_id=group) for group in asked]
            pending.resolve(codec.encode(DescribeGroupsResponse(groups=rows), 5))

        response = decode(ApiKey.DESCRIBE_GROUPS, 5, outcome.value)
        assert [group.group_id for group in response.groups] == ids
        assert (max(sizes), most) == (CALL_KEYS_MAX, CALLS_MAX)

    @pytest.mark.parametrize(
        "request_class", [DescribeGroupsRequest, ConsumerGroupDescribeRequest,
                          DescribeTransactionsRequest],
    )  # fmt: skip
    def test_what_is_named_again_is_described_once(
        self, coordinated: NetworkProcess, request_class: Any
    ) -> None:
        """Names are short, and the members of one group may be megabytes."""
        field = request_class.STRUCT.fields[0].name

        response = coordinated.ask(request_class(**{field: ["a", "b", "a", "a"]}), 0)

        (rows,) = (getattr(response, f.name) for f in response.STRUCT.fields if f.is_array)
        assert len(rows) == 2

    def test_offsets_of_a_group_that_is_named_again_are_rejected(
        self, coordinated: NetworkProcess
    ) -> None:
        """30 kB for one group with 8,000 offsets, 5,000 times, got the io worker killed."""
        asked: list[str] = []

        def fetch(slot: int, key: ApiKey, version: int, body: bytes) -> bytes:
            groups = codec.decode_exact(OffsetFetchRequest, version, body).groups
            asked.extend(group.group_id for group in groups)
            row = OffsetFetchResponse.OffsetFetchResponseGroup
            rows = [row(group_id=group.group_id) for group in groups]
            return codec.encode(OffsetFetchResponse(groups=rows), version)

        coordinated.coordinators.answer = fetch
        group = OffsetFetchRequest.OffsetFetchRequestGroup
        names = ["a", "b", "a", "c", "a"]
        request = OffsetFetchRequest(groups=[group(group_id=n, topics=None) for n in names])

        response = coordinated.ask(request, 8)

        rejected = ErrorCode.INVALID_REQUEST
        assert [(g.group_id, g.error_code) for g in response.groups] == list(
            zip(names, [0, 0, rejected, 0, rejected], strict=True)
        )
        assert sorted(asked) == ["a", "b", "c"]

    def test_list_groups_joins_all_coordinators_and_says_if_one_is_loading(
        self, coordinated: NetworkProcess
    ) -> None:
        def listed(slot: int, key: ApiKey, version: int, body: bytes) -> bytes:
            if slot == 2:
                raise WireError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            row = ListGroupsResponse.ListedGroup(group_id=f"g{slot}", protocol_type="consumer")
            return codec.encode(ListGroupsResponse(groups=[row]), version)

        coordinated.coordinators.answer = listed
        response = coordinated.ask(ListGroupsRequest(), 4)
        assert [g.group_id for g in response.groups] == ["g0", "g1"]
        assert response.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def test_list_groups_keeps_long_filters_from_the_coordinators(
        self, coordinated: NetworkProcess
    ) -> None:
        """Each of 50 coordinators read them: 40,000 names in half a MB took an io worker 1.3 s."""
        wanted = [f"state-{number}" for number in range(5000)]
        row = ListGroupsResponse.ListedGroup
        rows = [
            row(group_id=f"{state} {kind}", group_state=state, group_type=kind)
            for state in ("Empty", "Stable")
            for kind in ("classic", "consumer")
        ]
        answer = ListGroupsResponse(groups=rows)
        coordinated.coordinators.answer = lambda slot, key, v, body: codec.encode(answer, v)

        asked = [ListGroupsRequest(states_filter=[*wanted, " stable"], types_filter=["CLASSIC"]),
                 ListGroupsRequest(states_filter=wanted)]  # fmt: skip
        found = [[g.group_id for g in coordinated.ask(r, 5).groups] for r in asked]

        assert found == [["Stable classic"] * 3, []]
        assert max(len(call["body"]) for call in coordinated.coordinators.calls) < 20

    def test_list_transactions_keeps_long_filters_from_the_coordinators(
        self, coordinated: NetworkProcess
    ) -> None:
        row = ListTransactionsResponse.TransactionState
        answer = ListTransactionsResponse(
            transaction_states=[
                row(transactional_id=f"{state} {number}", transaction_state=state,
                    producer_id=number)
                for state in ("Ongoing", "Empty")
                for number in (7, 70_000)
            ]
        )  # fmt: skip
        asked: list[Any] = []

        def listed(slot: int, key: ApiKey, version: int, body: bytes) -> bytes:
            asked.append(codec.decode_exact(ListTransactionsRequest, version, body))
            return codec.encode(answer, version)

        coordinated.coordinators.answer = listed
        request = ListTransactionsRequest(
            state_filters=["Ongoing", "odd"],
            producer_id_filters=list(range(5000)),
            duration_filter=5,
            transactional_id_pattern="O.*",
        )

        response = coordinated.ask(request, 2)

        assert [t.transactional_id for t in response.transaction_states] == ["Ongoing 7"] * 2
        assert response.unknown_state_filters == ["odd"]
        assert {(r.duration_filter, r.transactional_id_pattern) for r in asked} == {(5, "O.*")}
        assert [(r.state_filters, r.producer_id_filters) for r in asked] == [([], [])] * 2

    @pytest.mark.parametrize("key", [ApiKey.LIST_GROUPS, ApiKey.LIST_TRANSACTIONS])
    def test_list_is_asked_for_again_while_a_coordinator_is_away(
        self, coordinated: NetworkProcess, key: ApiKey
    ) -> None:
        """Java's admin client gives up on errors that make a member look up its coordinator."""

        def away(*_: Any) -> bytes:
            raise WireError(ErrorCode.NOT_COORDINATOR)

        coordinated.coordinators.answer = away
        for version in coordinated_versions(key):
            response = coordinated.ask(request_naming_something(key, version), version)
            assert codes(response) - {0} == {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}, version

    def test_list_groups_without_an_offsets_topic_is_empty(self, process: NetworkProcess) -> None:
        response = process.ask(ListGroupsRequest(), 4)
        assert (response.error_code, response.groups) == (0, [])


def coordinated_versions(key: ApiKey) -> range:
    # Version 0 of these is stored in the metadata store, not in a coordinator.
    is_stored = key in (ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH)
    return range(1 if is_stored else key.versions[0], key.versions[1] + 1)


def request_naming_something(key: ApiKey, version: int) -> Any:
    """A request with a group, a transactional id, a topic and a partition in every field for
    one.
    """
    cls: Any = request_class(key)
    return filled(cls, cls.STRUCT, cls, version)


def filled(message: Any, struct: Any, cls: Any, version: int) -> Any:
    values: dict[str, Any] = {}
    for field in struct.fields:
        if not field.in_version(version) or field.name in ("group_instance_id", "member_epoch"):
            continue
        if field.struct is not None and field.is_array:
            inner = getattr(message, field.type)
            values[field.name] = [filled(message, field.struct, inner, version)]
        elif field.is_array:
            values[field.name] = ["name"] if field.type == "string" else [0]
        elif field.type == "string":
            values[field.name] = "name"
    return cls(**values)


def codes(value: Any) -> set[int]:
    """Every error code in a response."""
    found: set[int] = set()
    for name in value.__slots__:
        inner = getattr(value, name)
        if name.endswith("error_code"):
            found.add(inner)
        for item in inner if isinstance(inner, list) else [inner]:
            if hasattr(item, "__slots__") and hasattr(type(item), "STRUCT"):
                found |= codes(item)
    return found
