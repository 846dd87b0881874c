"""Brokers that fall silent or go: who is asked then, and what is forgotten (decision 0032)."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from support.brokers.fake_broker import FakeBroker

from kbroker.client import KafkaAdminClient, KafkaConsumer
from kbroker.client.admin import configs as config_admin
from kbroker.client.admin import partitions as partition_admin
from kbroker.client.admin import users as admin
from kbroker.client.connections.cluster import GROUP, Cluster
from kbroker.client.connections.retry import Retry
from kbroker.client.consumer.lanes import Inbox, Lane
from kbroker.client.consumer.member_thread import Ask, End, MemberThread, WaitUntil
from kbroker.client.errors import ClientError, ConnectionLost, RejectedError, Timeout
from kbroker.errors import ErrorCode
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.alter_user_scram_credentials import AlterUserScramCredentialsResponse
from kbroker.protocol.messages.delete_records import DeleteRecordsResponse
from kbroker.protocol.messages.find_coordinator import FindCoordinatorResponse
from kbroker.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from kbroker.protocol.messages.list_config_resources import ListConfigResourcesResponse
from kbroker.protocol.messages.metadata import MetadataResponse
from kbroker.testing import wait_until

pytestmark = pytest.mark.unit


class Pair:
    """Two brokers. leader, coordinator: of everything. silent: those that answer nothing but
    ApiVersions. closing: those that close the connection instead.
    """

    def __init__(self) -> None:
        self.leader = self.coordinator = 0
        self.silent: set[int] = set()
        self.closing: set[int] = set()
        self.released = threading.Event()
        self.asked: list[tuple[int, str]] = []
        answers = {
            ApiKey.METADATA: self.metadata,
            ApiKey.FIND_COORDINATOR: self.find_coordinator,
            ApiKey.HEARTBEAT: lambda node, request: HeartbeatResponse(),
            ApiKey.DELETE_RECORDS: self.delete_records,
            ApiKey.ALTER_USER_SCRAM_CREDENTIALS: self.alter_users,
            ApiKey.LIST_CONFIG_RESOURCES: self.list_resources,
        }
        versions = {int(key): key.versions for key in ApiKey}
        versions[ApiKey.LIST_CONFIG_RESOURCES] = 0, 0
        self.brokers = [
            FakeBroker(
                {key: self._answer(node, call) for key, call in answers.items()}, dict(versions)
            )
            for node in (0, 1)
        ]
        self.bootstrap = ",".join(broker.bootstrap for broker in self.brokers)

    def _answer(self, node: int, call: Any) -> Any:
        def answer(request: Any, state: Any) -> Any:
            self.asked.append((node, type(request).__name__))
            if node in self.silent:
                self.released.wait(30)
                return None
            if node in self.closing:
                return None
            return call(node, request)

        return answer

    def metadata(self, node: int, request: Any) -> MetadataResponse:
        part = MetadataResponse.MetadataResponsePartition(partition_index=0, leader_id=self.leader)
        return MetadataResponse(
            controller_id=self.leader,
            brokers=[
                MetadataResponse.MetadataResponseBroker(node_id=n, host="127.0.0.1", port=one.port)
                for n, one in enumerate(self.brokers)
            ],
            topics=[
                MetadataResponse.MetadataResponseTopic(name=row.name, partitions=[part])
                for row in request.topics or ()
            ],
        )

    def find_coordinator(self, node: int, request: Any) -> FindCoordinatorResponse:
        port = self.brokers[self.coordinator].port
        return FindCoordinatorResponse(node_id=self.coordinator, host="127.0.0.1", port=port)

    def delete_records(self, node: int, request: Any) -> DeleteRecordsResponse:
        part = DeleteRecordsResponse.DeleteRecordsPartitionResult
        error = ErrorCode.NONE if node == self.leader else ErrorCode.NOT_LEADER_OR_FOLLOWER
        rows = [part(partition_index=0, low_watermark=7, error_code=error)]
        topic = DeleteRecordsResponse.DeleteRecordsTopicResult(name="t", partitions=rows)
        return DeleteRecordsResponse(topics=[topic])

    def alter_users(self, node: int, request: Any) -> AlterUserScramCredentialsResponse:
        """As KRaft's controller: a user once in a request."""
        names = [row.name for row in (*request.deletions, *request.upsertions)]
        code = ErrorCode.DUPLICATE_RESOURCE if len(set(names)) < len(names) else ErrorCode.NONE
        row = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
        return AlterUserScramCredentialsResponse(
            results=[row(user=name, error_code=code) for name in set(names)]
        )

    def list_resources(self, node: int, request: Any) -> ListConfigResourcesResponse:
        row = ListConfigResourcesResponse.ConfigResource(resource_name="mine")
        return ListConfigResourcesResponse(config_resources=[row])


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    with made.brokers[0], made.brokers[1]:
        yield made
        made.released.set()


@pytest.fixture
def cluster(pair: Pair) -> Iterator[Cluster]:
    with Cluster(pair.bootstrap, deadline=20.0, connect_timeout=1.5) as made:
        yield made


def heartbeat(cluster: Cluster, seconds: float) -> Any:
    request = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    return cluster.call_coordinator(
        "g", GROUP, request, lambda response: 0, what="a heartbeat", deadline=seconds
    )


def test_one_that_was_silent_is_asked_last_for_every_purpose(pair, cluster):
    cluster.nodes()
    asked_first = pair.asked[0][0]
    pair.silent = {asked_first}

    cluster.nodes()  # the connection to it times out, long before the call does
    pair.asked.clear()
    for _ in range(5):
        cluster.topics(["t"])
        cluster.coordinator("g", GROUP, cluster.retry("it"))
        cluster.forget_coordinator("g", GROUP)

    assert {node for node, _ in pair.asked} == {1 - asked_first}


def test_a_silent_coordinator_costs_a_part_of_the_call(pair, cluster):
    heartbeat(cluster, 20.0)
    pair.silent, pair.coordinator = {0}, 1

    heartbeat(cluster, 20.0)

    assert pair.asked[-1] == (1, "HeartbeatRequest")


@pytest.mark.parametrize("how", ["silent", "closing"])
def test_what_a_lost_broker_led_and_coordinated_is_forgotten(pair, cluster, how):
    cluster.topics(["t"])
    cluster.coordinator("g", GROUP, cluster.retry("it"))
    connection = cluster.connection(0, cluster.retry("it"))
    setattr(pair, how, {0})
    pair.leader = pair.coordinator = 1
    with pytest.raises(ClientError):
        cluster.call(0, HeartbeatRequest(group_id="g"), deadline=0.2)
    assert connection.failed

    retry = cluster.retry("it")
    assert cluster.leader("t", 0, retry)[1] == 1
    assert cluster.coordinator("g", GROUP, retry) == 1


@pytest.mark.parametrize("how", ["moved", "silent"])
def test_records_are_deleted_by_who_leads_by_now(pair, cluster, how):
    cluster.topics(["t"])
    pair.leader = 1
    if how == "silent":
        cluster.request_timeout = 1.0
        pair.silent = {0}

    assert partition_admin.delete_records(cluster, {("t", 0): 7}) == {("t", 0): 7}


def test_a_password_of_several_mechanisms_is_set_one_by_one(pair, cluster):
    admin.set_password(cluster, "u", "secret", ["SCRAM-SHA-256", "SCRAM-SHA-512"], 4096)
    admin.delete_credentials(
        cluster, [admin.Credential("u", name, 4096) for name in admin.MECHANISMS]
    )

    sent = [one for broker in pair.brokers for one in broker.requests if hasattr(one, "upsertions")]
    assert len(sent) == 4


def test_client_metrics_are_listed_by_brokers_that_know_no_other_kind(pair, cluster):
    assert config_admin.list_resources(cluster, config_admin.CLIENT_METRICS) == ["mine"]
    with pytest.raises(ClientError, match="resource_types"):
        config_admin.list_resources(cluster, config_admin.TOPIC)


def test_the_requests_of_an_admin_call_share_its_time(pair, monkeypatch):
    """Some calls ask each broker, one after the other: each had the whole time to itself."""
    now = [100.0]
    monkeypatch.setattr(Retry, "clock", staticmethod(lambda: now[0]))
    seconds: list[float] = []

    def call(cluster: Cluster) -> None:
        for what in ("first", "second", "third"):
            seconds.append(cluster.retry(what).seconds)
            now[0] += 5.0

    with KafkaAdminClient(bootstrap_servers=pair.bootstrap, default_api_timeout_ms=8_000) as client:
        with pytest.raises(Timeout, match="third"):
            client._do(call)
        client._do(lambda cluster: seconds.append(cluster.retry("of another call").seconds))

    assert seconds == [8.0, 3.0, 8.0]


def test_the_error_of_a_call_names_who_has_refused_it_to_the_last(pair, cluster):
    request = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    with pytest.raises(Timeout, match=f"COORDINATOR_LOAD.*(by|before) {pair.brokers[0].bootstrap}"):
        cluster.call_coordinator(
            "g",
            GROUP,
            request,
            lambda response: int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
            what="a heartbeat",
            deadline=0.1,
        )


def test_a_consumer_says_which_broker_refuses_to_the_last_to_tell_of_topics():
    def refused(request: Any, state: Any) -> MetadataResponse:
        return MetadataResponse(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)

    with FakeBroker({}) as broker:
        broker.answers[ApiKey.METADATA] = refused
        with KafkaConsumer(bootstrap_servers=broker.bootstrap) as consumer:
            with pytest.raises(Timeout, match=f"NOT_LEADER.*(by|before) {broker.bootstrap}"):
                consumer.partitions_for("t", 0.3)


def test_a_broker_that_has_spoken_kafka_is_asked_again_after_nonsense():
    """A response that came twice, for instance, was the end of a load."""
    asked: list[Any] = []

    def metadata(request: Any, state: Any) -> Any:
        asked.append(request)
        if len(asked) == 1:
            return struct.pack(">ii", 6, 99) + bytes(2)
        return broker.metadata(request, state)

    with FakeBroker({}) as broker:
        broker.answers[ApiKey.METADATA] = metadata
        with Cluster(broker.bootstrap, deadline=20.0) as cluster:
            cluster.nodes()
    assert len(asked) == 2


def test_a_call_behind_another_one_tells_what_that_waits_for(pair, cluster):
    pair.silent = {0, 1}
    inbox = Inbox()
    lane = Lane("lane", cluster, inbox)
    first = lane.run(lambda cluster, seconds: heartbeat(cluster, seconds), "a heartbeat", 10.0)
    second = lane.run(lambda cluster, seconds: None, "it", 1e-9)

    wait_until(lambda: "127.0.0.1" in second.doing(), 10, "it is asked")
    assert second.doing().startswith("a heartbeat, asked of 127.0.0.1:")
    assert not first.done
    pair.silent = set()
    pair.released.set()
    wait_until(lambda: second.done, 20, "both have ended")
    assert "a heartbeat, asked of 127.0.0.1:" in str(second.error)
    lane.close(5.0)
    inbox.close()


class Member:
    """One that waits for a heartbeat for a minute."""

    def __init__(self) -> None:
        self.asks = True
        self.failures: list[ClientError] = []
        self.responses = 0

    def next(self, now: float) -> Any:
        if self.responses:
            return End()
        if self.asks:
            self.asks = False
            return Ask(HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 60.0)
        return WaitUntil(now + 60)

    def take(self, response: Any, now: float) -> None:
        self.responses += 1

    def take_topics(self, topics: Any, now: float) -> None:
        raise AssertionError

    def failed(self, error: ClientError, now: float) -> None:
        self.failures.append(error)
        self.asks = True

    def is_leaving(self) -> bool:
        return False


def test_a_member_does_not_wait_for_a_silent_coordinator_that_was_replaced(pair, monkeypatch):
    monkeypatch.setattr("kbroker.client.consumer.member_thread._SILENT_S", 0.2)
    member = Member()
    pair.silent = {0}
    cluster = Cluster(pair.brokers[1].bootstrap, connect_timeout=1.5)
    thread = MemberThread("g", cluster, member)
    thread.start()
    wait_until(lambda: (0, "HeartbeatRequest") in pair.asked, 20)
    assert member.failures == []

    pair.coordinator = 1

    wait_until(lambda: member.responses, 20)
    assert [type(one) for one in member.failures] == [ConnectionLost]
    assert "another broker coordinates" in str(member.failures[0])
    assert thread.join(20)


def test_an_error_names_what_is_rejected(pair, cluster):
    pair.leader = 1
    cluster.topics(["t"])
    pair.brokers[1].answers[ApiKey.DELETE_RECORDS] = lambda request, state: DeleteRecordsResponse(
        topics=[
            DeleteRecordsResponse.DeleteRecordsTopicResult(
                name="t",
                partitions=[
                    DeleteRecordsResponse.DeleteRecordsPartitionResult(
                        partition_index=0, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED
                    )
                ],
            )
        ]
    )

    found = partition_admin.delete_records(cluster, {("t", 0): 7})["t", 0]

    assert isinstance(found, RejectedError)
    assert "t-0" in str(found)


def test_two_failed_connections_to_one_broker_are_both_forgotten():
    """One was made to its bootstrap address, one to its node."""
    cluster = Cluster("a:1")
    made = {
        node: SimpleNamespace(failed=True, host="a", port=1, in_flight=0, close=lambda: None)
        for node in (-1, 0)
    }
    cluster._connections.update(made)  # type: ignore[arg-type]

    cluster._note_failures()

    assert not cluster._connections
