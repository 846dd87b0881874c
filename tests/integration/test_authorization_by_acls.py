"""ACLs with real processes. Clients differ by their address (``support.security.acl_requests``)."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.clients.wire_client import WireClient, batch_of, produce_request
from support.security.acl_requests import ADMIN, acl, admin_acls, create, delete, describe

from kbroker.errors import EXIT_BAD_CONFIG, ErrorCode
from kbroker.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kbroker.protocol.messages.create_topics import CreateTopicsRequest
from kbroker.protocol.messages.describe_groups import DescribeGroupsRequest
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.messages.find_coordinator import FindCoordinatorRequest
from kbroker.protocol.messages.init_producer_id import InitProducerIdRequest
from kbroker.protocol.messages.metadata import MetadataRequest
from kbroker.security.acls import PatternType, Permission
from kbroker.security.operations import AclOperation, Kind
from kbroker.testing import Broker, wait_until

pytestmark = pytest.mark.integration

O = AclOperation  # noqa: E741
ACLS = {
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    # Until there are ACLs, anybody may create some.
    "allow.everyone.if.no.acl.found": "true",
}
TESTS = Path(__file__).resolve().parent.parent
COMMAND = [sys.executable, "-m", "kbroker.cli.start"]  # a new process, with its own sys.path
TOPIC_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
Connect = Callable[[str], WireClient]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(ACLS) as broker:
        with client_of(broker, ADMIN) as admin:
            create(admin, *admin_acls())
        yield broker


def client_of(broker: Broker, host: str) -> WireClient:
    return WireClient((broker.host, broker.port), from_host=host)


@pytest.fixture
def connect(broker: Broker) -> Iterator[Connect]:
    """Connects from an address."""
    clients: list[WireClient] = []

    def connected(host: str) -> WireClient:
        clients.append(client_of(broker, host))
        return clients[-1]

    yield connected
    for client in clients:
        client.close()


@pytest.fixture
def admin(connect: Connect) -> WireClient:
    return connect(ADMIN)


def produced(client: WireClient, topic: str) -> int:
    (part,) = client.produce(topic, {0: batch_of([b"v"])}).values()
    return int(part.error_code)


def test_acls_are_in_effect_with_their_response_in_every_network_process(
    connect: Connect, admin: WireClient
) -> None:
    """The verdicts of connections that were denied before are forgotten, too."""
    admin.create_topic("given")
    clients = [connect("127.0.0.2") for _ in range(4)]  # of two network processes
    before = [(produced(one, "given"), one.fetch("given", 0, 0).error_code) for one in clients]
    rights = [acl("127.0.0.2", O.WRITE, Kind.TOPIC, "giv", PatternType.PREFIXED),
              acl("127.0.0.2", O.READ, Kind.TOPIC, "given")]  # fmt: skip

    create(admin, *rights)
    allowed = [(produced(one, "given"), one.fetch("given", 0, 0).error_code) for one in clients]
    delete(admin, *rights)
    after = [(produced(one, "given"), one.fetch("given", 0, 0).error_code) for one in clients]

    assert before == after == [(TOPIC_DENIED, TOPIC_DENIED)] * 4
    assert allowed == [(0, 0)] * 4


def test_acl_that_denies_dominates(connect: Connect, admin: WireClient) -> None:
    admin.create_topic("denied")
    client = connect("127.0.0.3")
    create(admin, acl("127.0.0.3", O.ALL, Kind.TOPIC, "*"))
    assert produced(client, "denied") == 0

    create(admin, acl("*", O.WRITE, Kind.TOPIC, "den", PatternType.PREFIXED, Permission.DENY,
                      "User:*"))  # fmt: skip

    assert produced(client, "denied") == TOPIC_DENIED
    assert client.fetch("denied", 0, 0).error_code == 0
    assert produced(admin, "denied") == TOPIC_DENIED, "only super users are exempt"


def test_topics_that_a_client_may_not_describe_do_not_exist_for_it(
    connect: Connect, admin: WireClient
) -> None:
    """The same answer for a topic that is there and one that is not."""
    admin.create_topic("hidden")
    create(admin, acl("127.0.0.4", O.DESCRIBE, Kind.TOPIC, "shown"))
    admin.create_topic("shown")
    client = connect("127.0.0.4")

    named = client.metadata("hidden", "not-there", "shown").topics
    everything = client.call(MetadataRequest(topics=None), 9).topics

    assert {t.name: t.error_code for t in named} == {
        "hidden": TOPIC_DENIED, "not-there": TOPIC_DENIED, "shown": 0,
    }  # fmt: skip
    assert {bytes(t.topic_id) for t in named if t.error_code} <= {bytes(16)}
    assert [t.name for t in everything] == ["shown"]


def test_fetch_with_a_forged_replica_id_needs_cluster_action(
    connect: Connect, admin: WireClient
) -> None:
    """CVE-2018-1288: a consumer that fetches as a follower."""
    admin.create_topic("followed")
    create(admin, acl("127.0.0.5", O.READ, Kind.TOPIC, "followed"))
    client = connect("127.0.0.5")
    assert client.fetch("followed", 0, 0).error_code == 0
    cls = FetchRequest
    part = cls.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topics = [cls.FetchTopic(topic="followed", partitions=[part])]
    request = cls(replica_id=1, max_bytes=1 << 20, topics=topics)

    (topic,) = client.call(request, 11).responses

    assert topic.partitions[0].error_code == TOPIC_DENIED


def test_transactional_and_idempotent_writes_are_authorized(
    connect: Connect, admin: WireClient
) -> None:
    """CVE-2018-17196, and KIP-679: who may write to any topic may write idempotently."""
    admin.create_topic("written")
    client = connect("127.0.0.6")
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    assert client.call(request, 4).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED

    create(admin, acl("127.0.0.6", O.WRITE, Kind.TOPIC, "wr", PatternType.PREFIXED))
    response = client.call(request, 4)
    assert response.error_code == 0
    of_transaction = InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=60_000)
    denied = client.call(of_transaction, 4).error_code
    batch = batch_of([b"v"], producer_id=response.producer_id, producer_epoch=0, base_sequence=0,
                     transactional=True)  # fmt: skip
    forged = produce_request("written", {0: batch})
    forged.transactional_id = "tx"

    assert denied == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    codes = [p.error_code for t in client.call(forged, 8).responses for p in t.partition_responses]
    assert codes == [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED]


def test_automatic_creation_needs_create(connect: Connect, admin: WireClient) -> None:
    client = connect("127.0.0.7")
    create(admin, acl("127.0.0.7", O.WRITE, Kind.TOPIC, "auto-", PatternType.PREFIXED))
    cls = MetadataRequest
    request = cls(topics=[cls.MetadataRequestTopic(name="auto-1")], allow_auto_topic_creation=True)

    (denied,) = client.call(request, 9).topics
    create(admin, acl("127.0.0.7", O.CREATE, Kind.TOPIC, "auto-", PatternType.PREFIXED))

    assert denied.error_code == TOPIC_DENIED
    wait_until(lambda: client.call(request, 9).topics[0].error_code == 0, 30, "it is created")


def test_consumer_with_a_pattern_is_assigned_what_it_may_describe(
    connect: Connect, admin: WireClient
) -> None:
    """The coordinator, in an io worker, decides by the same ACLs."""
    for name in ("pattern-seen", "pattern-hidden"):
        admin.create_topic(name)
    create(admin, acl("127.0.0.11", O.READ, Kind.GROUP, "patterns"),
           acl("127.0.0.11", O.DESCRIBE, Kind.TOPIC, "pattern-seen"))  # fmt: skip
    client = connect("127.0.0.11")
    ids = {bytes(topic.topic_id): topic.name for topic in topics_of(admin)}
    member = ConsumerGroupHeartbeatRequest(
        group_id="patterns", member_id="m" * 22, rebalance_timeout_ms=60_000,
        subscribed_topic_regex="pattern-.*", topic_partitions=[],
    )  # fmt: skip

    def assigned() -> set[str]:
        response = client.call(member, 1)
        assert response.error_code == 0, response
        found = response.assignment.topic_partitions if response.assignment else ()
        member.member_epoch = 0
        return {ids[bytes(topic.topic_id)] for topic in found}

    wait_until(lambda: has_coordinator(admin, "patterns"), 30, "there is a coordinator")
    before = assigned()
    create(admin, acl("127.0.0.11", O.DESCRIBE, Kind.TOPIC, "pattern-hidden"))

    assert before == {"pattern-seen"}
    wait_until(lambda: assigned() == {"pattern-seen", "pattern-hidden"}, 30, "it has both")


def topics_of(client: WireClient) -> list[Any]:
    found: list[Any] = client.call(MetadataRequest(topics=None), 12).topics
    return found


def has_coordinator(client: WireClient, group: str) -> bool:
    """Its coordinator has loaded its groups."""
    if client.call(FindCoordinatorRequest(key=group), 1).error_code:
        return False
    response = client.call(DescribeGroupsRequest(groups=[group]), 0)
    return not response.groups[0].error_code


def test_denials_are_in_the_log_in_kafkas_words(
    broker: Broker, connect: Connect, admin: WireClient
) -> None:
    admin.create_topic("audited")
    client = connect("127.0.0.8")
    for _ in range(20):
        assert produced(client, "audited") == TOPIC_DENIED

    text = (
        "Principal = User:ANONYMOUS is Denied Operation = Write from host = 127.0.0.8 on resource "
        "= Topic:LITERAL:audited for request = Produce"
    )
    wait_until(lambda: text in broker.log_text, 30, "the line is in the log")
    assert broker.log_text.count(text) == 1


def test_acls_survive_the_broker_and_its_controller_process(tmp_path: Path) -> None:
    with Broker(ACLS, directory=tmp_path) as broker:
        with client_of(broker, ADMIN) as admin:
            create(admin, *admin_acls(), acl("127.0.0.2", O.READ, Kind.TOPIC, "t"))
            before = describe(admin)
        broker.kill("controller")
        with client_of(broker, ADMIN) as admin:
            wait_until(lambda: created(admin, "t"), 30, "the controller process is back")
            assert describe(admin) == before
    with Broker(ACLS, directory=tmp_path) as broker, client_of(broker, ADMIN) as admin:
        assert describe(admin) == before
        with client_of(broker, "127.0.0.2") as client:
            assert client.await_open("t", [0])[0].error_code == 0
            assert produced(client, "t") == TOPIC_DENIED


def created(admin: WireClient, topic: str) -> bool:
    try:
        create(admin, acl("127.0.0.3", O.READ, Kind.TOPIC, topic))
        delete(admin, acl("127.0.0.3", O.READ, Kind.TOPIC, topic))
        if topic not in {t.name for t in admin.call(MetadataRequest(topics=None), 9).topics}:
            admin.create_topic(topic)
    except AssertionError:
        return False
    return True


REFUSED = [
    ("authorizer.class.name=org.example.Authorizer", "Java classes are never loaded"),
    (
        "authorizer.class.name=support.brokers.plugged_in.RefusingAuthorizer",
        "cannot reach the directory",
    ),
]


@pytest.fixture
def short_dir() -> Iterator[str]:
    """Paths of sockets are short."""
    with tempfile.TemporaryDirectory(prefix="kbroker-", dir="/tmp") as path:
        yield path


@pytest.mark.parametrize(("setting", "words"), REFUSED, ids=[s for s, _ in REFUSED])
def test_rules_that_do_not_load_refuse_the_start(
    tmp_path: Path, short_dir: str, setting: str, words: str
) -> None:
    arguments = [f"log.dirs={tmp_path / 'data'}", f"runtime.dir={short_dir}",
                 "listeners=PLAINTEXT://127.0.0.1:0", "metrics.port=-1", setting]  # fmt: skip
    command = list(COMMAND)
    for argument in arguments:
        command += ["--override", argument]
    environment = {**os.environ, "PYTHONPATH": f"{TESTS.parent}{os.pathsep}{TESTS}"}

    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)

    assert done.returncode == EXIT_BAD_CONFIG, done.stderr
    assert words in done.stderr


def test_policies_reject_with_their_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    settings = {
        "create.topic.policy.class.name": "support.brokers.plugged_in.TopicPolicy",
        "alter.config.policy.class.name": "support.brokers.plugged_in.ConfigPolicy",
        "num.partitions": "2",
    }
    with Broker(settings, command=COMMAND) as broker, client_of(broker, ADMIN) as client:
        cls = CreateTopicsRequest
        topics = [
            cls.CreatableTopic(name=f"t{count}", num_partitions=count, replication_factor=1)
            for count in (2, 3)
        ]
        found = client.call(cls(topics=topics, timeout_ms=30_000), 5).topics
        codes = {t.name: (t.error_code, t.error_message) for t in found}

        assert codes["t2"][0] == 0
        assert codes["t3"] == (ErrorCode.POLICY_VIOLATION, "t3: at most 2 partitions")
