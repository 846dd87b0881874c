"""Followers' connections, and the messages to owners that result from them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest
from support.network.net_loop_harness import ENVELOPE, Harness, framed, received
from support.security.authorizers import Rules

from kbroker._ext.shared import lane_layout
from kbroker._ext.shared.lane_layout import ATTACHED, LEFT, PROGRESS
from kbroker._ext.shared.partition_table import LEADER, LOADING, ONLINE
from kbroker.errors import ErrorCode
from kbroker.protocol import codec, header
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.security.operations import AclOperation, Kind
from kbroker.security.principal import KafkaPrincipal

pytestmark = pytest.mark.unit

REPORT = struct.Struct(lane_layout.FOLLOWER_FORMAT)
BROKER = KafkaPrincipal("User", "broker-2")


@pytest.fixture
def harness() -> Iterator[Harness]:
    made = Harness()
    for slot, incarnation in ((0, 7), (1, 8)):
        made.table.reset(slot, state=ONLINE, role=LEADER, slot_incarnation=incarnation)
    yield made
    made.loop.close_all()


class Follower:
    """Another broker's connection."""

    def __init__(self, harness: Harness, replica: int = 2, version: int = 11, **names: Any) -> None:
        self.harness, self.replica, self.version = harness, replica, version
        self.client = harness.connect(**names)
        self.session = self.epoch = 0

    def send(
        self, wanted: dict[int, int], forget: list[int] | None = None, wait_ms: int = 0
    ) -> None:
        topics = [
            FetchRequest.FetchTopic(
                topic="t",
                partitions=[
                    FetchRequest.FetchPartition(
                        partition=index, fetch_offset=offset, partition_max_bytes=1 << 20
                    )
                    for index, offset in wanted.items()
                ],
            )
        ]
        gone = [FetchRequest.ForgottenTopic(topic="t", partitions=forget)] if forget else []
        request = FetchRequest(
            replica_id=self.replica,
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=1 << 20,
            session_id=self.session,
            session_epoch=self.epoch,
            topics=topics if wanted else [],
            forgotten_topics_data=gone,
        )
        head = header.encode_request_header(ApiKey.FETCH, self.version, 1, "broker-2-fetcher-0")
        self.client.send(framed(head + codec.encode(request, self.version)))
        self.harness.turn()
        self.epoch += 1

    def fetch(self, wanted: dict[int, int], forget: list[int] | None = None) -> Any:
        self.send(wanted, forget)
        response = self.response()
        self.session = self.session or response.session_id
        return response

    def response(self) -> Any:
        data = received(self.client)
        (size,) = struct.unpack_from(">i", data)
        assert len(data) == size + 4
        _, at = header.decode_response_header(data[4:], ApiKey.FETCH, self.version)
        return codec.decode_exact(FetchResponse, self.version, data[4 + at :])


def reports(harness: Harness) -> list[tuple[int, int, int, int]]:
    """(slot, replica, offset, flags) in the messages to the io worker."""
    found = []
    while True:
        try:
            data = harness.worker.recv(1 << 20)
        except BlockingIOError:
            return found
        kind, _, _, sender, target, count = ENVELOPE.unpack_from(data)
        assert (kind, sender, target) == (lane_layout.FOLLOWER, 3, harness.cells[0])
        body = data[ENVELOPE.size :]
        assert len(body) == count * REPORT.size
        found += [(row[0], row[2], row[4], row[12]) for row in REPORT.iter_unpack(body)]


def test_position_of_a_follower_reaches_the_owner_in_the_same_turn(harness: Harness) -> None:
    follower = Follower(harness)

    response = follower.fetch({0: 0, 1: 0})

    assert [p.error_code for p in response.responses[0].partitions] == [0, 0]
    both = ATTACHED | PROGRESS
    assert reports(harness) == [(0, 2, 0, both), (1, 2, 0, both)]
    follower.fetch({})
    assert reports(harness) == []


def test_closed_connection_has_left(harness: Harness) -> None:
    follower = Follower(harness)
    follower.fetch({0: 0, 1: 0})
    reports(harness)

    follower.client.close()
    harness.turn()

    assert reports(harness) == [(0, 2, -1, LEFT), (1, 2, -1, LEFT)]
    assert harness.fetch.counts()["followers"] == 0


def test_connection_closed_while_its_first_fetch_waits_has_left(harness: Harness) -> None:
    follower = Follower(harness)
    follower.send({0: 0}, wait_ms=60_000)
    assert harness.fetch.counts()["parked"] == 1

    follower.client.close()
    harness.turn()

    assert reports(harness) == [(0, 2, 0, ATTACHED | PROGRESS), (0, 2, -1, LEFT)]
    assert harness.fetch.counts()["parked"] == 0


def test_malformed_fetch_ends_the_session_with_its_connection(harness: Harness) -> None:
    follower = Follower(harness)
    follower.fetch({0: 0})
    reports(harness)

    head = header.encode_request_header(ApiKey.FETCH, 11, 1, "broker-2-fetcher-0")
    follower.client.send(framed(head + b"\0\0\0\2\0\0"))
    harness.turn()

    assert reports(harness) == [(0, 2, -1, LEFT)]


def test_connection_has_one_session(harness: Harness) -> None:
    """A follower that keeps opening new sessions holds only one cell."""
    follower = Follower(harness)
    for _ in range(3):
        follower.session = follower.epoch = 0
        follower.fetch({0: 0})

    assert harness.fetch.counts()["followers"] == 1
    both = ATTACHED | PROGRESS
    assert reports(harness) == [
        (0, 2, 0, both), (0, 2, 0, both), (0, 2, -1, LEFT), (0, 2, 0, both), (0, 2, -1, LEFT),
    ]  # fmt: skip


def test_consumer_on_the_same_connection_does_not_end_it(harness: Harness) -> None:
    follower = Follower(harness)
    follower.fetch({0: 0})
    reports(harness)

    session, follower.session, follower.epoch, follower.replica = follower.session, 0, 0, -1
    follower.fetch({1: 0})
    follower.session, follower.epoch, follower.replica = session, 1, 2

    assert follower.fetch({}).error_code == 0
    assert reports(harness) == []


def test_restarted_owner_is_told_again_and_not_of_the_time_before(harness: Harness) -> None:
    follower = Follower(harness)
    follower.fetch({0: 0, 1: 0})
    reports(harness)

    harness.cells[0] = 6
    harness.turn()

    both = ATTACHED | PROGRESS
    assert reports(harness) == [(0, 2, 0, both), (1, 2, 0, both)]


def test_log_that_its_new_owner_is_loading_is_told_with_the_next_fetch(harness: Harness) -> None:
    follower = Follower(harness)
    follower.fetch({0: 0, 1: 0})
    reports(harness)
    harness.table.set_state(0, LOADING)

    harness.cells[0] = 6
    harness.turn()
    assert reports(harness) == [(1, 2, 0, ATTACHED | PROGRESS)]
    harness.table.set_state(0, ONLINE)
    follower.fetch({})

    assert reports(harness) == [(0, 2, 0, ATTACHED | PROGRESS)]


# ---- a full lane -------------------------------------------------------------------------------


def fill(harness: Harness) -> int:
    """Fill the lane to the io worker; returns the number of messages."""
    count = 0
    while True:
        try:
            harness.ours.send(b"x" * 2048)
        except BlockingIOError:
            return count
        count += 1


def empty(harness: Harness, count: int) -> None:
    for _ in range(count):
        assert harness.worker.recv(4096) == b"x" * 2048


def test_full_lane_merges_by_partition_and_drops_nothing(harness: Harness) -> None:
    harness.table.publish(0, log_start_offset=0, log_end=(50, 0, 5000))
    first, second = Follower(harness, 2), Follower(harness, 3)
    count = fill(harness)

    first.fetch({0: 50, 1: 0})
    second.fetch({0: 50})
    for offset in (50, 60, 70):
        harness.table.publish(0, log_start_offset=0, log_end=(offset, 0, 100 * offset))
        first.fetch({0: offset})
    first.fetch({}, forget=[1])
    empty(harness, count)
    harness.turn()

    both = ATTACHED | PROGRESS
    assert sorted(reports(harness)) == [
        (0, 2, 70, both), (0, 3, 50, both), (1, 2, 0, both | LEFT),
    ]  # fmt: skip


def test_partition_that_leaves_and_comes_back_behind_a_full_lane_is_there(harness: Harness) -> None:
    harness.table.publish(0, log_start_offset=0, log_end=(50, 0, 5000))
    follower = Follower(harness)
    count = fill(harness)

    follower.fetch({0: 40, 1: 0})
    follower.fetch({}, forget=[0])
    follower.fetch({0: 50})
    empty(harness, count)
    harness.turn()

    both = ATTACHED | PROGRESS
    assert sorted(reports(harness)) == [(0, 2, 50, both), (1, 2, 0, both)]


def test_what_a_full_lane_keeps_dies_with_its_owner(harness: Harness) -> None:
    follower = Follower(harness)
    count = fill(harness)
    follower.fetch({0: 0, 1: 0})
    follower.fetch({}, forget=[1])

    harness.cells[0] = 6
    harness.turn()
    empty(harness, count)
    harness.turn()

    assert reports(harness) == [(0, 2, 0, ATTACHED | PROGRESS)]


def test_full_lane_asks_for_another_turn_soon(harness: Harness) -> None:
    follower = Follower(harness)
    count = fill(harness)
    follower.fetch({0: 0})

    assert harness.loop.end_turn()
    empty(harness, count)
    assert not harness.loop.end_turn()


# ---- who may -----------------------------------------------------------------------------------


def test_follower_needs_cluster_action_and_nothing_else(harness: Harness) -> None:
    rules = Rules(lambda operation, kind, name: operation == AclOperation.CLUSTER_ACTION)
    harness.accesses.follow(rules)

    response = Follower(harness, principal=BROKER).fetch({0: 0})

    assert [p.error_code for p in response.responses[0].partitions] == [0]
    assert [asked[2:] for asked in rules.asked] == [
        (AclOperation.CLUSTER_ACTION, Kind.CLUSTER, "kafka-cluster")
    ]


def test_reader_of_all_topics_is_no_follower(harness: Harness) -> None:
    harness.accesses.follow(Rules(lambda operation, kind, name: kind == Kind.TOPIC))

    response = Follower(harness, principal=BROKER).fetch({0: 0})

    denied = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    assert [p.error_code for p in response.responses[0].partitions] == [denied]
    assert reports(harness) == []


def test_replica_id_minus_three_needs_what_a_consumer_needs(harness: Harness) -> None:
    rules = Rules(lambda operation, kind, name: operation == AclOperation.READ)
    harness.accesses.follow(rules)

    response = Follower(harness, -3, principal=BROKER).fetch({0: 0})

    assert [p.error_code for p in response.responses[0].partitions] == [0]
    assert [asked[2:] for asked in rules.asked] == [(AclOperation.READ, Kind.TOPIC, "t")]


def test_follower_that_lost_its_right_has_left(harness: Harness) -> None:
    rights = {AclOperation.CLUSTER_ACTION}
    rules = Rules(lambda operation, kind, name: operation in rights)
    harness.accesses.follow(rules)
    follower = Follower(harness, principal=BROKER)
    follower.fetch({0: 0})
    reports(harness)

    rights.clear()
    harness.accesses.follow(rules)
    response = follower.fetch({})

    denied = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    assert [p.error_code for p in response.responses[0].partitions] == [denied]
    assert reports(harness) == [(0, 2, -1, LEFT)]


# ---- old epochs --------------------------------------------------------------------------------


def test_loop_asks_for_epochs_and_responds_when_it_knows(harness: Harness) -> None:
    asked: list[Any] = []
    harness.loop.on_epoch_questions = lambda: asked.extend(harness.fetch.take_epoch_questions())
    harness.table.set_role(0, LEADER, 5, 0)
    harness.table.set_epochs(0, 5, 0, 4)
    follower = Follower(harness, version=12)
    partition = FetchRequest.FetchPartition(
        partition=0, fetch_offset=9, last_fetched_epoch=1, partition_max_bytes=1 << 20
    )
    topic = FetchRequest.FetchTopic(topic="t", partitions=[partition])
    request = FetchRequest(
        replica_id=2, max_wait_ms=60_000, min_bytes=1, max_bytes=1 << 20, session_epoch=0,
        topics=[topic],
    )  # fmt: skip
    head = header.encode_request_header(ApiKey.FETCH, 12, 1, "me")
    follower.client.send(framed(head + codec.encode(request, 12)))
    harness.turn()
    assert asked == [(0, 7, 5, 1)]
    assert received(follower.client) == b""

    harness.loop.put_epoch_ends([(asked[0], (1, 0))])
    harness.turn()

    (answer,) = follower.response().responses[0].partitions
    assert (answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset) == (1, 0)


def test_waiting_fetch_of_a_follower_that_has_more_to_fetch_is_answered(harness: Harness) -> None:
    """It fetches a partition that this broker has come to lead with its next request only."""
    hurried, other = Follower(harness, replica=2), Follower(harness, replica=3)
    for follower, slot in ((hurried, 0), (other, 1)):
        follower.fetch({slot: 0})
        follower.send({}, wait_ms=60_000)

    harness.loop.hurry_followers(frozenset({2}))
    harness.turn()

    assert hurried.response().responses == []
    assert received(other.client) == b""
    hurried.fetch({1: 0})
