"""Interactions of groups, offsets, transactions and processes: crashes halfway, deleted topics."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.clients.coordinator_client import (
    AWAY,
    NOTHING,
    Client,
    Writer,
    code_in,
    response_to_join,
)
from support.running.grids import some_of
from support.running.pace import hold

from kbroker.errors import ErrorCode
from kbroker.protocol.messages.delete_groups import DeleteGroupsRequest
from kbroker.protocol.messages.delete_topics import DeleteTopicsRequest
from kbroker.protocol.messages.describe_groups import DescribeGroupsRequest
from kbroker.protocol.messages.find_coordinator import FindCoordinatorRequest
from kbroker.protocol.messages.sync_group import SyncGroupRequest
from kbroker.testing import Broker, wait_until

pytestmark = pytest.mark.integration

SETTINGS = {
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
    "group.initial.rebalance.delay.ms": 100,
}


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(SETTINGS) as running:
        yield running


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    client = Client(broker)
    client.wire.create_topic("t")
    yield client
    client.wire.close()


@pytest.mark.parametrize("commit", some_of([True, False], [True]))
def test_offsets_of_an_open_transaction_outlive_the_processes_that_hold_them(
    client: Client, commit: bool
) -> None:
    assert client.commit(1) == 0
    writer = Writer(client, "tx")
    writer.commit_offset(5)
    for index in range(2):
        client.broker.kill("io", index)

    assert client.fetch() == (NOTHING, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    assert writer.end(commit) == 0

    wait_until(lambda: client.fetch()[1] == 0, 30, "the marker has come")
    assert client.fetch()[0] == (5 if commit else 1)
    client.broker.kill_all()
    client.broker.start()
    client.again()
    assert client.fetch() == (5 if commit else 1, 0)


def test_deleted_group_is_not_brought_back_by_the_end_of_a_transaction(client: Client) -> None:
    assert client.commit(1) == 0
    writer = Writer(client, "tx")
    writer.commit_offset(5)

    assert code_in(client.ask(DeleteGroupsRequest(groups_names=["g"]), 1)) == 0
    assert client.fetch() == (NOTHING, 0)
    assert writer.end(True) == 0

    hold(0.5)  # for what must not come
    assert client.fetch() == (NOTHING, 0)
    client.broker.restart()
    client.again()
    assert client.fetch() == (NOTHING, 0)


def test_member_joins_again_when_its_network_process_dies(client: Client) -> None:
    first, second = client, Client(client.broker)
    first.join()
    leader = response_to_join(first)
    first.ask(SyncGroupRequest(group_id="g", generation_id=1, member_id=leader.member_id), 2)

    def members() -> int:
        return len(first.ask(DescribeGroupsRequest(groups=["g"]), 0).groups[0].members)

    second.join()
    wait_until(lambda: members() == 2, 30, "the second waits for the first")
    for index in range(2):
        client.broker.kill("network", index)
    for waiting in (first, second):
        waiting.again()
    second.join()
    wait_until(lambda: members() == 3, 30, "the second waits again")
    first.join(leader.member_id)
    answers = [response_to_join(first), response_to_join(second)]

    # The id that was never returned has no member; its session expires.
    assert [response.error_code for response in answers] == [0, 0]
    assert answers[0].generation_id == answers[1].generation_id > 1
    second.wire.close()


def test_deleted_offsets_topic_completes_who_waits_and_is_recreated(client: Client) -> None:
    assert client.commit(1) == 0
    waiting = Client(client.broker)
    first = Client(client.broker)
    first.join()
    response_to_join(first)
    waiting.join()
    request = DeleteTopicsRequest(topic_names=["__consumer_offsets"], timeout_ms=30_000)
    deleted = client.wire.call(request, 3).responses[0].error_code

    assert deleted == 0
    assert response_to_join(waiting).error_code in AWAY
    assert client.wire.call(FindCoordinatorRequest(key="g"), 2).error_code == 0
    assert client.fetch() == (NOTHING, 0)
    assert client.commit(2) == 0
    assert client.fetch() == (2, 0)
    for one in (first, waiting):
        one.wire.close()
