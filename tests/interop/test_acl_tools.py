"""kafka-acls of Kafka 2.7.2, 3.9.1 and 4.3.0: through a broker, and in ZooKeeper."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from support.clients.wire_client import WireClient
from support.drivers.java import FIRST_TEST_TIMEOUT_S, java_missing, libraries
from support.drivers.kafka_tools import run_tool
from support.security.acl_requests import describe

from kbroker.testing import Broker, wait_until
from kbroker.testing.cluster import Cluster
from perf.kafka_distribution import kafka_libraries

pytestmark = [
    pytest.mark.interop,
    pytest.mark.java,
    pytest.mark.slow,
    pytest.mark.timeout(FIRST_TEST_TIMEOUT_S),
    pytest.mark.skipif(bool(java_missing()), reason=java_missing()),
]

SETTINGS = {
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "super.users": "User:ANONYMOUS",
}
RESOURCE = re.compile(r"ResourcePattern\(resourceType=(\w+), name=(\S+), patternType=(\w+)\)")
ENTRY = re.compile(r"principal=(\S+), host=(\S+), operation=(\w+), permissionType=(\w+)\)")
CURRENT = "Current ACLs for resource `ResourcePattern"
ALICE, MALLORY = "User:alice", "User:CN=mallory,O=x"


class Tool(NamedTuple):
    main: str
    jars: Callable[[], Path]


CORE = "kafka.admin.AclCommand"
TOOLS = {
    "2.7.2": Tool(CORE, lambda: kafka_libraries(version="2.7.2")),
    "3.9.1": Tool(CORE, lambda: kafka_libraries(version="3.9.1")),
    "4.3.0": Tool("org.apache.kafka.tools.AclCommand", lambda: libraries("4.3.0", "kafka-tools")),
}
Acls = Callable[..., str]
Row = tuple[str, ...]


def runner(version: str, *where: str) -> Acls:
    tool = TOOLS[version]
    return lambda *arguments: run_tool(tool.jars(), tool.main, *where, *arguments)


def rows(text: str) -> set[Row]:
    """(type, name, pattern, principal, host, operation, permission) of each ACL that is printed."""
    found: set[Row] = set()
    resource: Row = ()
    for line in text.splitlines():
        if match := RESOURCE.search(line):
            resource = match.groups()
        if match := ENTRY.search(line):
            found.add((*resource, *match.groups()))
    return found


def of(kind: str, name: str, *operations: str, pattern: str = "LITERAL") -> set[Row]:
    return {(kind, name, pattern, ALICE, "*", one, "ALLOW") for one in operations}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(SETTINGS) as broker:
        yield broker


@pytest.fixture
def clean(broker: Broker) -> Iterator[None]:
    """No ACLs are left to the next test."""
    yield
    with WireClient((broker.host, broker.port)) as client:
        assert describe(client) == set()


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize("version", TOOLS)
def test_acls_are_added_listed_and_removed(broker: Broker, version: str) -> None:
    acls = runner(version, "--bootstrap-server", broker.bootstrap)
    literal = ("--operation", "Read", "--operation", "Describe", "--topic", "orders")
    prefixed = ("--operation", "All", "--topic", "ord", "--resource-pattern-type", "prefixed")
    denied = ("--deny-principal", MALLORY, "--deny-host", "192.0.2.9")
    read = of("TOPIC", "orders", "READ", "DESCRIBE")
    deny = {("TOPIC", "ord", "PREFIXED", MALLORY, "192.0.2.9", "ALL", "DENY")}

    added = acls("--add", "--allow-principal", ALICE, *literal)
    acls("--add", *denied, *prefixed)

    assert "Adding ACLs for resource `ResourcePattern(resourceType=TOPIC, name=orders" in added
    listed = acls("--list")
    assert rows(listed) == read | deny
    assert CURRENT in listed
    assert rows(acls("--list", "--topic", "orders")) == read, "literal ones"
    matching = acls("--list", "--topic", "orders", "--resource-pattern-type", "match")
    assert rows(matching) == read | deny
    of_alice = acls("--list", "--principal", ALICE)
    assert rows(of_alice) == read
    acls("--remove", "--force", "--allow-principal", ALICE, *literal[:2], "--topic", "orders")
    assert rows(acls("--list", "--topic", "orders")) == of("TOPIC", "orders", "DESCRIBE")
    acls("--remove", "--force", "--topic", "orders")
    acls("--remove", "--force", "--topic", "ord", "--resource-pattern-type", "prefixed")
    assert rows(acls("--list")) == set()


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize("version", TOOLS)
def test_convenience_options_of_producers_and_consumers(broker: Broker, version: str) -> None:
    acls = runner(version, "--bootstrap-server", broker.bootstrap)
    producer = ("--producer", "--idempotent", "--topic", "orders", "--transactional-id", "tx")
    consumer = ("--consumer", "--topic", "orders", "--group", "billing")
    cluster = ("--operation", "Alter", "--cluster")

    for options in (producer, consumer, cluster):
        acls("--add", "--allow-principal", ALICE, *options)

    assert rows(acls("--list")) == (
        of("TOPIC", "orders", "WRITE", "DESCRIBE", "CREATE", "READ")
        | of("TRANSACTIONAL_ID", "tx", "WRITE", "DESCRIBE")
        | of("CLUSTER", "kafka-cluster", "IDEMPOTENT_WRITE", "ALTER")
        | of("GROUP", "billing", "READ")
    )
    for options in (producer, consumer, cluster):
        acls("--remove", "--force", "--allow-principal", ALICE, *options)


def test_principal_that_is_none_is_refused_with_the_reason(broker: Broker) -> None:
    acls = runner("3.9.1", "--bootstrap-server", broker.bootstrap)
    with pytest.raises(AssertionError, match="principalType:principalName"):
        acls("--add", "--allow-principal", "alice", "--operation", "Read", "--topic", "t")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(2, {**SETTINGS, "controlled.shutdown.enable": "false"}) as cluster:
        yield cluster


@pytest.mark.parametrize("version", ["2.7.2", "3.9.1"])
def test_acls_in_zookeeper_are_seen_both_ways(cluster: Cluster, version: str) -> None:
    """What the tool writes there is in effect on every broker, and it reads what they write."""
    where = ("--authorizer-properties", f"zookeeper.connect={cluster.zookeeper_connect}")
    stored = runner(version, *where)
    brokers = [runner(version, "--bootstrap-server", one.bootstrap) for one in cluster.brokers]
    prefixed = ("--topic", "lo", "--resource-pattern-type", "prefixed")

    stored("--add", "--allow-principal", ALICE, "--producer", "--topic", "stored")
    stored("--add", "--allow-principal", ALICE, "--operation", "Read", *prefixed)
    expected = of("TOPIC", "stored", "WRITE", "DESCRIBE", "CREATE") | of(
        "TOPIC", "lo", "READ", pattern="PREFIXED"
    )
    for broker in cluster.brokers:
        wait_until(lambda b=broker: len(known(b)) == len(expected), 60, "the broker has them")
    assert [rows(acls("--list")) for acls in brokers] == [expected] * 2

    brokers[0]("--add", "--allow-principal", ALICE, "--operation", "Read", "--group", "written")
    written = of("GROUP", "written", "READ") | expected
    assert rows(stored("--list")) == written
    brokers[1]("--remove", "--force", "--topic", "stored")
    stored("--remove", "--force", *prefixed)
    stored("--remove", "--force", "--group", "written")
    assert rows(stored("--list")) == set()
    for broker in cluster.brokers:
        wait_until(lambda b=broker: not known(b), 60, "the broker has none any more")


def known(broker: Broker) -> set[object]:
    with WireClient((broker.host, broker.port)) as client:
        return set(describe(client))
