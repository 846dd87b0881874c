"""Requests with thousands of elements: others are served meanwhile, and other processes are called
for a part at a time. Time is counted in readings of the clock.
"""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from support.network.network_process import CORRELATION_ID, NetworkProcess, decode

from kbroker.coordinator.partitioner import OFFSETS_TOPIC
from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.context import CALL_TOPICS_MAX, GIVEN_AWAY_BYTES_MAX
from kbroker.handlers.groups import CALL_MEMBERS_MAX
from kbroker.handlers.support import owner_calls
from kbroker.handlers.support.altered_configs import CALL_RESOURCES_MAX
from kbroker.ipc.rpc import Pending
from kbroker.ipc.slices import SLICE_NS, Slices
from kbroker.protocol import codec
from kbroker.protocol.api import ApiKey
from kbroker.protocol.header import encode_request_header
from kbroker.protocol.message import Message
from kbroker.protocol.messages.alter_configs import AlterConfigsRequest
from kbroker.protocol.messages.alter_user_scram_credentials import AlterUserScramCredentialsRequest
from kbroker.protocol.messages.api_versions import ApiVersionsRequest
from kbroker.protocol.messages.create_topics import CreateTopicsRequest
from kbroker.protocol.messages.delete_records import DeleteRecordsRequest
from kbroker.protocol.messages.describe_configs import DescribeConfigsRequest
from kbroker.protocol.messages.describe_quorum import DescribeQuorumRequest
from kbroker.protocol.messages.join_group import JoinGroupRequest
from kbroker.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from kbroker.protocol.messages.metadata import MetadataRequest

pytestmark = pytest.mark.unit

MANY = 5_000
# The number of clock readings in a slice.
READINGS = 100


@pytest.fixture
def process() -> NetworkProcess:
    return NetworkProcess(auto_create_topics_enable="false")


@pytest.fixture
def paced(process: NetworkProcess) -> NetworkProcess:
    """Nothing runs before ``process.slices.run()``."""
    readings = count(step=SLICE_NS // READINGS)
    process.slices = Slices(lambda: next(readings))
    return process


def connection(process: NetworkProcess) -> SimpleNamespace:
    return SimpleNamespace(**{**vars(process.connection), "turn": None})


def send(process: NetworkProcess, request: Message, version: int) -> Pending:
    """Send it on its own connection."""
    assert request.API_KEY is not None
    header = encode_request_header(request.API_KEY, version, CORRELATION_ID, "a-client")
    frame = header + codec.encode(request, version)
    return process.dispatcher.handle(connection(process), frame)  # type: ignore[arg-type]


def delete_records(topics: int) -> DeleteRecordsRequest:
    cls = DeleteRecordsRequest
    return cls(
        topics=[
            cls.DeleteRecordsTopic(
                name=f"t{number}",
                partitions=[cls.DeleteRecordsPartition(partition_index=0, offset=0)],
            )
            for number in range(topics)
        ]
    )


def describe_configs(topics: int) -> DescribeConfigsRequest:
    cls = DescribeConfigsRequest
    return cls(
        resources=[
            cls.DescribeConfigsResource(resource_type=2, resource_name=f"t{number}")
            for number in range(topics)
        ]
    )


def metadata(topics: int) -> MetadataRequest:
    entry = MetadataRequest.MetadataRequestTopic
    return MetadataRequest(topics=[entry(name=f"t{number}") for number in range(topics)])


def alter_scram(users: int) -> AlterUserScramCredentialsRequest:
    deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion
    return AlterUserScramCredentialsRequest(
        deletions=[deletion(name=f"u{number}", mechanism=9) for number in range(users)]
    )


def describe_quorum(topics: int) -> DescribeQuorumRequest:
    cls = DescribeQuorumRequest
    partition = cls.PartitionData(partition_index=0)
    return cls(
        topics=[
            cls.TopicData(topic_name=f"t{number}", partitions=[partition])
            for number in range(topics)
        ]
    )


@pytest.mark.parametrize(
    ("make", "version"),
    [
        (delete_records, 1),
        (describe_configs, 2),
        (metadata, 9),
        (alter_scram, 0),
        (describe_quorum, 2),
    ],
)
def test_others_are_served_while_a_long_request_is_worked_on(
    paced: NetworkProcess, make: Any, version: int
) -> None:
    """A single DeleteRecords of 100,000 unknown topics stopped all others for 4.4 s."""
    long = send(paced, make(MANY), version)
    for _ in range(3):  # until it is known to be long
        paced.slices.run()
    runs = 3
    while not long.done:
        quick = send(paced, ApiVersionsRequest(), 0)
        paced.slices.run()
        runs += 1

        assert quick.done or long.done

    assert runs > MANY // READINGS
    assert long.value is not None


def test_long_request_of_a_client_that_left_is_given_up(paced: NetworkProcess) -> None:
    long = send(paced, delete_records(MANY), 1)
    left = connection(paced)
    header = encode_request_header(ApiKey.DELETE_RECORDS, 1, CORRELATION_ID, "a-client")
    frame = header + codec.encode(delete_records(MANY), 1)
    given_up = paced.dispatcher.handle(left, frame)  # type: ignore[arg-type]
    paced.slices.run()
    left.turn.is_gone = True
    while paced.slices.has_work:
        paced.slices.run()

    assert given_up.value is None
    assert long.value is not None


def test_owner_of_many_partitions_is_asked_a_few_parts_at_a_time(process: NetworkProcess) -> None:
    """A thousand calls of each of a hundred clients filled the queue to an io worker."""
    process.add_topic("t", b"t" * 16, [0])
    process.put_log(0, 0, 10)
    process.set_each_response("delete_records", lambda to, slot, offset: {"low_watermark": offset})
    cls = DeleteRecordsRequest
    request = cls(
        topics=[
            cls.DeleteRecordsTopic(
                name="t",
                partitions=[cls.DeleteRecordsPartition(partition_index=0, offset=n % 10)
                            for n in range(MANY)],
            )
        ]
    )  # fmt: skip
    process.rpc.is_holding = True
    outcome = process.send(request, 1)
    most = 0
    while not outcome.done:
        most = max(most, len(process.rpc.held))
        process.rpc.release()

    answered = decode(ApiKey.DELETE_RECORDS, 1, outcome.value).topics[0].partitions
    assert most == owner_calls.CALLS_MAX
    assert [p.low_watermark for p in answered] == [n % 10 for n in range(MANY)]


def test_owner_that_does_not_respond_is_waited_for_once(process: NetworkProcess) -> None:
    process.add_topic("t", b"t" * 16, [0])
    process.put_log(0, 0, 10)

    def late(to: Any, **args: Any) -> None:
        raise WireError(ErrorCode.REQUEST_TIMED_OUT)

    process.set_response("delete_records", late)
    cls = DeleteRecordsRequest
    partitions = [cls.DeleteRecordsPartition(partition_index=0, offset=0)] * MANY
    request = cls(topics=[cls.DeleteRecordsTopic(name="t", partitions=partitions)])

    answered = process.ask(request, 1).topics[0].partitions

    assert {p.error_code for p in answered} == {ErrorCode.REQUEST_TIMED_OUT}
    assert len(process.calls("delete_records")) <= owner_calls.CALLS_MAX


def create(names: list[str]) -> CreateTopicsRequest:
    topic = CreateTopicsRequest.CreatableTopic
    return CreateTopicsRequest(
        topics=[topic(name=name, num_partitions=1, replication_factor=1) for name in names]
    )


def test_controller_is_asked_for_a_part_of_many_topics_at_a_time(process: NetworkProcess) -> None:
    """A call with 160 MB of names blocked it, and it kept their memory. Duplicate names are in one
    call, so that they can be rejected.
    """
    asked: list[list[str]] = []

    def answer(to: Any, topics: list[Any], **args: Any) -> list[Any]:
        asked.append([topic["name"] for topic in topics])
        return [{"name": t["name"], "error": 41, "message": "no"} for t in topics]

    process.set_response("create_topics", answer)
    names = [f"t{number}" for number in range(3 * CALL_TOPICS_MAX)]

    response = process.ask(create([*names, "t0", "t0"]), 4)

    assert [len(part) for part in asked] == [CALL_TOPICS_MAX + 1, *[CALL_TOPICS_MAX] * 2]
    assert asked[0].count("t0") == 2
    assert [topic.name for topic in response.topics] == names


def test_controller_that_leaves_in_the_middle_fails_the_rest(process: NetworkProcess) -> None:
    def answer(to: Any, topics: list[Any], **args: Any) -> list[Any]:
        if topics[0]["name"] != "t0":
            raise WireError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return [{"name": t["name"], "error": 41, "message": "no"} for t in topics]

    process.set_response("create_topics", answer)
    names = [f"t{number}" for number in range(2 * CALL_TOPICS_MAX)]

    response = process.ask(create(names), 4)

    codes = [topic.error_code for topic in response.topics]
    failed = int(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert codes == [41] * CALL_TOPICS_MAX + [failed] * CALL_TOPICS_MAX


def test_settings_that_were_changed_before_the_controller_left_are_told_as_such(
    process: NetworkProcess,
) -> None:
    calls = count()

    def answer(to: Any, resources: list[Any], **args: Any) -> list[Any]:
        if next(calls):
            raise WireError(ErrorCode.REQUEST_TIMED_OUT)
        return [{"error": 0, "message": None}] * len(resources)

    process.set_response("alter_configs", answer)
    resource = AlterConfigsRequest.AlterConfigsResource
    names = [f"g{number}" for number in range(CALL_RESOURCES_MAX + 1)]
    request = AlterConfigsRequest(
        resources=[resource(resource_type=32, resource_name=name) for name in names]
    )

    codes = [entry.error_code for entry in process.ask(request, 1).responses]

    assert codes == [0] * CALL_RESOURCES_MAX + [int(ErrorCode.REQUEST_TIMED_OUT)]


def test_many_members_leave_a_part_at_a_time(process: NetworkProcess) -> None:
    process.add_topic(OFFSETS_TOPIC, b"o" * 16, [0], internal=True)
    sizes = []

    def answer(slot: int, key: ApiKey, version: int, body: bytes) -> bytes:
        members = codec.decode_exact(LeaveGroupRequest, version, body).members
        sizes.append(len(members))
        entry = LeaveGroupResponse.MemberResponse
        left = [entry(member_id=m.member_id, group_instance_id=None) for m in members]
        return codec.encode(LeaveGroupResponse(members=left), version)

    process.coordinators.answer = answer
    member = LeaveGroupRequest.MemberIdentity
    members = [member(member_id=str(number)) for number in range(CALL_MEMBERS_MAX + 1)]

    response = process.ask(LeaveGroupRequest(group_id="g", members=members), 4)

    assert sizes == [CALL_MEMBERS_MAX, 1]
    assert [m.member_id for m in response.members] == [m.member_id for m in members]


def join(size: int) -> JoinGroupRequest:
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"x" * size)
    return JoinGroupRequest(
        group_id="g", protocol_type="consumer", session_timeout_ms=6000, protocols=[protocol]
    )


def test_requests_that_wait_for_others_take_only_so_much_memory(process: NetworkProcess) -> None:
    """A member waits for up to an hour, and its request with it."""
    process.add_topic(OFFSETS_TOPIC, b"o" * 16, [0], internal=True)
    process.coordinators.call = lambda *args: Pending()  # type: ignore[assignment]
    size = GIVEN_AWAY_BYTES_MAX // 3
    first = [send(process, join(size), 7) for _ in range(2)]

    rejected = process.ask(join(size), 7)

    assert rejected.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not any(outcome.done for outcome in first)
    assert len(process.lightened) == 2


def test_request_that_completed_makes_room_for_others(process: NetworkProcess) -> None:
    process.add_topic(OFFSETS_TOPIC, b"o" * 16, [0], internal=True)
    process.coordinators.answer = lambda *args: b"\0" * 4

    for _ in range(3):
        process.send(join(GIVEN_AWAY_BYTES_MAX // 2), 7)

    assert process.given_away_bytes == 0
    assert len(process.lightened) == 3
