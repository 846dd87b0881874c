"""Produce, Fetch and undecoded requests of clients with restricted permissions."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from support.network.net_loop_harness import (
    TOPIC_ID,
    Harness,
    answers,
    framed,
    partitions_of,
    produce,
    received,
    result,
)
from support.security.authorizers import Rules, deny_all, deny_kind, deny_names

from kbroker._ext.shared.partition_table import LEADER, ONLINE
from kbroker.errors import ErrorCode
from kbroker.protocol import codec, header
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.protocol.messages.heartbeat import HeartbeatRequest
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.security.authorizer import AllowAll
from kbroker.security.operations import AclOperation, Kind
from kbroker.security.principal import KafkaPrincipal

pytestmark = pytest.mark.unit

DENIED = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
ALICE, BOB = KafkaPrincipal("User", "alice"), KafkaPrincipal("User", "bob")


@pytest.fixture
def harness() -> Harness:
    harness = Harness()
    for slot, incarnation in ((0, 7), (1, 8)):
        harness.table.reset(slot, state=ONLINE, role=LEADER, slot_incarnation=incarnation)
    return harness


def produced(harness: Harness, frame: bytes, version: int) -> list[int]:
    """The error codes of a produce that is rejected at once."""
    client = harness.connect(principal=ALICE)
    client.send(frame)
    harness.turn()
    [(_, response)] = answers(received(client), version)
    return [part.error_code for part in partitions_of(response)]


@pytest.mark.parametrize("version", range(14))
def test_produce_to_a_topic_that_is_denied_reaches_no_log(harness: Harness, version: int) -> None:
    harness.accesses.follow(deny_all())

    assert produced(harness, produce(version), version) == [DENIED]
    assert harness.descriptors() == []


@pytest.mark.parametrize("version", [7, 9])
def test_produce_denied_does_not_say_whether_there_is_such_a_topic(
    harness: Harness, version: int
) -> None:
    harness.accesses.follow(deny_all())

    assert produced(harness, produce(version, topic="none"), version) == [DENIED]


def test_produce_to_an_id_that_nobody_knows_is_told_so(harness: Harness) -> None:
    harness.accesses.follow(deny_all())

    found = produced(harness, produce(13, topic_id=b"?" * 16), 13)

    assert found == [ErrorCode.UNKNOWN_TOPIC_ID]


def test_produce_to_an_allowed_topic_reaches_its_log_beside_a_denied_one(harness: Harness) -> None:
    harness.fetch.put_topic("secret", b"s" * 16, [1], [8])
    harness.accesses.follow(deny_names("secret"))
    topic = ProduceRequest.TopicProduceData
    partition = ProduceRequest.PartitionProduceData(index=0, records=b"x" * 61)
    request = ProduceRequest(
        acks=1,
        topic_data=[topic(name=n, partition_data=[partition]) for n in ("t", "secret")],
    )
    client = harness.connect(principal=ALICE)

    client.send(
        framed(header.encode_request_header(ApiKey.PRODUCE, 7, 1, "me") + codec.encode(request, 7))
    )
    harness.turn()
    [descriptor] = harness.descriptors()
    harness.answer(result(descriptor, base_offset=5))
    harness.turn()

    [(_, response)] = answers(received(client), 7)
    found = {t.name: t.partition_responses[0] for t in response.responses}
    assert descriptor[2] == 0, "the slot of t"
    assert (found["t"].error_code, found["t"].base_offset) == (0, 5)
    assert found["secret"].error_code == DENIED


@pytest.mark.parametrize("version", [3, 9, 13])
def test_produce_with_a_transactional_id_that_is_denied_fails_as_a_whole(
    harness: Harness, version: int
) -> None:
    harness.accesses.follow(deny_kind(Kind.TRANSACTIONAL_ID))
    named = {"topic_id": TOPIC_ID} if version >= 13 else {"name": "t"}
    request = ProduceRequest(
        acks=-1,
        transactional_id="tx",
        topic_data=[
            ProduceRequest.TopicProduceData(
                **named,
                partition_data=[
                    ProduceRequest.PartitionProduceData(index=i, records=b"x" * 61) for i in (0, 1)
                ],
            )
        ],
    )
    head = header.encode_request_header(ApiKey.PRODUCE, version, 1, "me")

    found = produced(harness, framed(head + codec.encode(request, version)), version)

    assert found == [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED] * 2
    assert harness.descriptors() == []


def test_produce_asks_once_until_the_rules_change(harness: Harness) -> None:
    """A verdict costs a dict lookup from then on."""
    rules = Rules(lambda operation, kind, name: True)
    harness.accesses.follow(rules)
    client = harness.connect(principal=ALICE)

    for number in range(3):
        client.send(produce(9, correlation_id=number))
        harness.turn()

    assert [question[2:] for question in rules.asked] == [(AclOperation.WRITE, Kind.TOPIC, "t")]
    assert len(harness.descriptors()) == 3
    harness.accesses.follow(deny_all())
    assert produced(harness, produce(9), 9) == [DENIED]


def fetch_frame(
    version: int, session_id: int = 0, epoch: int = -1, topics: tuple[str, ...] = ("t",)
) -> bytes:
    made = []
    for name in topics:
        partition = FetchRequest.FetchPartition(partition=0, partition_max_bytes=1000)
        named = {"topic_id": TOPIC_ID} if version >= 13 else {"topic": name}
        made.append(FetchRequest.FetchTopic(**named, partitions=[partition]))
    values: dict[str, Any] = {"session_id": session_id, "session_epoch": epoch}
    request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1000, topics=made)
    if version >= 7:
        for name, value in values.items():
            setattr(request, name, value)
    if version < 15:
        request.replica_id = -1
    head = header.encode_request_header(ApiKey.FETCH, version, 1, "me")
    return framed(head + codec.encode(request, version))


def fetched(harness: Harness, client: Any, frame: bytes, version: int) -> Any:
    client.send(frame)
    harness.turn()
    data = received(client)
    (size,) = struct.unpack_from(">i", data)
    assert len(data) == size + 4
    _, at = header.decode_response_header(data[4:], ApiKey.FETCH, version)
    return codec.decode_exact(FetchResponse, version, data[4 + at :])


def fetch_codes(response: Any) -> list[int]:
    return [p.error_code for topic in response.responses for p in topic.partitions]


@pytest.mark.parametrize("version", range(19))
def test_fetch_of_a_topic_that_is_denied_has_no_records(harness: Harness, version: int) -> None:
    harness.accesses.follow(deny_all())
    client = harness.connect(principal=ALICE)

    response = fetched(harness, client, fetch_frame(version), version)

    assert fetch_codes(response) == [DENIED]


@pytest.mark.parametrize("version", [4, 12])
def test_fetch_denied_does_not_say_whether_there_is_such_a_topic(
    harness: Harness, version: int
) -> None:
    harness.accesses.follow(deny_all())
    client = harness.connect(principal=ALICE)

    response = fetched(harness, client, fetch_frame(version, topics=("none",)), version)

    assert fetch_codes(response) == [DENIED]


def test_fetch_session_follows_a_change_of_the_rules(harness: Harness) -> None:
    """A session lasts as long as its consumer, and was created under other ACLs."""
    client = harness.connect(principal=ALICE)
    first = fetched(harness, client, fetch_frame(7, epoch=0), 7)
    assert fetch_codes(first) == [0]

    harness.accesses.follow(deny_all())
    denied = fetched(harness, client, fetch_frame(7, first.session_id, 1, topics=()), 7)
    harness.accesses.follow(AllowAll())
    allowed = fetched(harness, client, fetch_frame(7, first.session_id, 2, topics=()), 7)

    assert fetch_codes(denied) == [DENIED]
    assert DENIED not in fetch_codes(allowed)


def test_fetch_session_of_one_client_gives_no_rights_to_another(harness: Harness) -> None:
    """Its id can be guessed."""
    harness.accesses.follow(Rules(lambda operation, kind, name: False, super_users=[ALICE]))
    alice, bob = harness.connect(principal=ALICE), harness.connect(principal=BOB)
    first = fetched(harness, alice, fetch_frame(7, epoch=0), 7)

    stolen = fetched(harness, bob, fetch_frame(7, first.session_id, 1, topics=()), 7)

    assert fetch_codes(first) == [0]
    assert fetch_codes(stolen) == [DENIED]


def test_request_to_a_coordinator_goes_through_its_handler_unless_all_is_allowed(
    harness: Harness,
) -> None:
    """It is forwarded undecoded only if no authorization is needed."""
    harness.fetch.put_topic("__consumer_offsets", b"o" * 16, [0], [7])
    harness.accesses.follow(Rules(lambda *_: True, super_users=[ALICE]))
    request = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    head = header.encode_request_header(ApiKey.HEARTBEAT, 3, 1, "me")
    frame = framed(head + codec.encode(request, 3))

    harness.connect(principal=ALICE).send(frame)
    harness.turn()
    assert harness.dispatched == []
    harness.connect(principal=BOB).send(frame)
    harness.turn()

    assert [sent for _, sent in harness.dispatched] == [frame[4:]]
