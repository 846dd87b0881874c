"""Where groups, offsets, transactions and processes meet: crashes in the middle, topics deleted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from fault.wire_client import WireClient

from kbroker.errors import ErrorCode
from kbroker.protocol import codec
from kbroker.protocol.message import Message
from kbroker.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from kbroker.protocol.messages.delete_groups import DeleteGroupsRequest
from kbroker.protocol.messages.delete_topics import DeleteTopicsRequest
from kbroker.protocol.messages.end_txn import EndTxnRequest
from kbroker.protocol.messages.find_coordinator import FindCoordinatorRequest
from kbroker.protocol.messages.init_producer_id import InitProducerIdRequest
from kbroker.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from kbroker.protocol.messages.offset_commit import OffsetCommitRequest
from kbroker.protocol.messages.offset_fetch import OffsetFetchRequest
from kbroker.protocol.messages.sync_group import SyncGroupRequest
from kbroker.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from kbroker.testing import Broker, wait_until

pytestmark = pytest.mark.integration

SETTINGS = {
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
    "group.initial.rebalance.delay.ms": 100,
}
AWAY = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
}
NOTHING = -1


class Client:
    """One connection after the other; asks again while a coordinator is away."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.wire = WireClient((broker.host, broker.port))
        for key_type in (0, 1):
            wait_until(lambda kind=key_type: self.finds(kind), 20, "there are coordinators")

    def finds(self, key_type: int) -> bool:
        request = FindCoordinatorRequest(key="g", key_type=key_type)
        return bool(self.wire.call(request, 2).error_code == 0)

    def again(self) -> None:
        """Connect to a network process that lives."""

        def connects() -> bool:
            self.wire.close()
            try:
                self.wire = WireClient((self.broker.host, self.broker.port))
                return self.finds(0)
            except OSError:
                return False  # handed to one that was killed just before

        wait_until(connects, 20, "a network process serves")

    def ask(self, request: Message, version: int) -> Any:
        """The first answer of a coordinator that serves."""
        found: list[Any] = []

        def served() -> bool:
            found.append(self.wire.call(request, version))
            return code_in(found[-1]) not in AWAY

        wait_until(served, 20, lambda: f"an answer to {request}, not {found[-1]}")
        return found[-1]

    def join(self, member_id: str = "") -> int:
        """Send a JoinGroup; it is answered when the others have joined."""
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")
        return self.wire.send(
            JoinGroupRequest(
                group_id="g",
                session_timeout_ms=10_000,
                rebalance_timeout_ms=60_000,
                member_id=member_id,
                protocol_type="consumer",
                protocols=[protocol],
            ),
            3,
        )

    def commit(self, offset: int, group: str = "g") -> int:
        cls = OffsetCommitRequest
        partition = cls.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        topic = cls.OffsetCommitRequestTopic(name="t", partitions=[partition])
        return code_in(self.ask(cls(group_id=group, topics=[topic]), 7))

    def fetch(self, group: str = "g") -> tuple[int, int]:
        """Offset and error of what is committed for sure."""
        topic = OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=[0])
        request = OffsetFetchRequest(group_id=group, topics=[topic], require_stable=True)
        (found,) = self.ask(request, 7).topics[0].partitions
        return found.committed_offset, found.error_code


def code_in(answer: Any) -> int:
    """The error of an answer, or of the first part of it that has one."""
    if hasattr(answer, "error_code") and answer.error_code:
        return int(answer.error_code)
    for name in ("topics", "results", "partitions"):
        for part in getattr(answer, name, None) or ():
            if code := code_in(part):
                return code
    return 0


class Writer:
    """A transaction that commits offsets in the first protocol."""

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.name = name
        request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
        answer = client.ask(request, 2)
        assert answer.error_code == 0
        self.producer = {"producer_id": answer.producer_id, "producer_epoch": answer.producer_epoch}

    def commit_offset(self, offset: int, group: str = "g") -> None:
        add = AddOffsetsToTxnRequest(transactional_id=self.name, group_id=group, **self.producer)
        assert self.client.ask(add, 2).error_code == 0
        cls = TxnOffsetCommitRequest
        partition = cls.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        request = cls(
            transactional_id=self.name,
            group_id=group,
            topics=[cls.TxnOffsetCommitRequestTopic(name="t", partitions=[partition])],
            **self.producer,
        )
        assert code_in(self.client.ask(request, 2)) == 0

    def end(self, commit: bool) -> int:
        request = EndTxnRequest(transactional_id=self.name, committed=commit, **self.producer)
        return int(self.client.ask(request, 2).error_code)


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


@pytest.mark.parametrize("commit", [True, False])
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

    wait_until(lambda: client.fetch()[1] == 0, 10, "the marker has come")
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

    time.sleep(0.5)
    assert client.fetch() == (NOTHING, 0)
    client.broker.restart()
    client.again()
    assert client.fetch() == (NOTHING, 0)


def test_member_joins_again_when_its_network_process_dies(client: Client) -> None:
    first, second = client, Client(client.broker)
    first.join()
    leader = answer_to_join(first)
    first.ask(SyncGroupRequest(group_id="g", generation_id=1, member_id=leader.member_id), 2)
    second.join()  # waits for the first
    for index in range(2):
        client.broker.kill("network", index)
    for waiting in (first, second):
        waiting.again()
    second.join()
    first.join(leader.member_id)
    answers = [answer_to_join(first), answer_to_join(second)]

    # The id that was never delivered has no one behind it; its session ends by itself.
    assert [answer.error_code for answer in answers] == [0, 0]
    assert answers[0].generation_id == answers[1].generation_id > 1
    second.wire.close()


def test_deleted_offsets_topic_answers_who_waits_and_is_created_anew(client: Client) -> None:
    assert client.commit(1) == 0
    waiting = Client(client.broker)
    first = Client(client.broker)
    first.join()
    answer_to_join(first)
    waiting.join()
    request = DeleteTopicsRequest(topic_names=["__consumer_offsets"], timeout_ms=10_000)
    deleted = client.wire.call(request, 3).responses[0].error_code

    assert deleted == 0
    assert answer_to_join(waiting).error_code in AWAY
    assert client.wire.call(FindCoordinatorRequest(key="g"), 2).error_code == 0
    assert client.fetch() == (NOTHING, 0)
    assert client.commit(2) == 0
    assert client.fetch() == (2, 0)
    for one in (first, waiting):
        one.wire.close()


def answer_to_join(client: Client) -> Any:
    """The next answer on the connection, to a JoinGroup 3."""
    return codec.decode_exact(JoinGroupResponse, 3, client.wire.receive(), 4)
