"""ACLs in a store shared by several brokers: who changes them, and when they take effect."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pytest
from support.controller.controllers import resolved

from kbroker.controller.access.stored_acls import AT_ONCE, BadAcls, BrokerAcls
from kbroker.controller.store.notices import KEPT_MS
from kbroker.ipc.calls import CreateAcls, DeleteAcls
from kbroker.ipc.pending import Pending, run
from kbroker.ipc.process_table import Address, ProcessKind
from kbroker.metastore import acl_nodes
from kbroker.metastore.acl_nodes import StoredAcls
from kbroker.metastore.settled import SettledStore
from kbroker.metastore.simulated import Faults, SimulatedEnsemble
from kbroker.metastore.store import StoreOperation
from kbroker.security.acls import (
    AccessControlEntry,
    AclBinding,
    AclFilter,
    PatternType,
    Permission,
    ResourcePattern,
)
from kbroker.security.operations import AclOperation, Kind

pytestmark = pytest.mark.unit

CALLER = Address(ProcessKind.NETWORK, 0)
TOPIC = ResourcePattern(Kind.TOPIC, PatternType.LITERAL, "t")
PREFIX = ResourcePattern(Kind.GROUP, PatternType.PREFIXED, "g-")
ALICE = AccessControlEntry("User:alice", "*", AclOperation.READ, Permission.ALLOW)
BOB = AccessControlEntry("User:bob", "192.0.2.1", AclOperation.WRITE, Permission.DENY)
ANYTHING = AclFilter(1, None, PatternType.ANY, None, None, AclOperation.ANY, Permission.ANY)


class Host:
    """A broker that gets its ACLs from the ensemble."""

    def __init__(self, cluster: Cluster, *, refuses_damage: bool = True) -> None:
        self.used: dict[ResourcePattern, set[AccessControlEntry]] = {}
        self.store = cluster.ensemble.connect()
        self.acls = BrokerAcls(
            self.store,
            SettledStore(self.store),
            self,
            cluster.ensemble.sleep,
            lambda: cluster.ensemble.now_ms + cluster.wall_ahead_ms,
            refuses_damage=refuses_damage,
        )
        self.started = self.acls.start()

    def set_acls(
        self, acls: Mapping[ResourcePattern, Collection[AccessControlEntry]]
    ) -> Pending[dict[str, int]]:
        for resource, entries in acls.items():
            self.used[resource] = set(entries)
        self.used = {resource: entries for resource, entries in self.used.items() if entries}
        return resolved({})


class Cluster:
    def __init__(self, hosts: int = 2) -> None:
        self.ensemble = SimulatedEnsemble(1, Faults(delay_max_ms=5))
        self.wall_ahead_ms = 0
        self.session_id = self.ensemble.begin_session()
        self.hosts = [self.join() for _ in range(hosts)]

    def join(self, **options: bool) -> Host:
        host = Host(self, **options)
        self.ensemble.run_until(lambda: host.started.done)
        return host

    def apply(self, *operations: StoreOperation) -> None:
        self.ensemble.apply(list(operations), self.session_id)

    def write(
        self, resource: ResourcePattern, *entries: AccessControlEntry, notifies: bool = True
    ) -> None:
        """Write as AclAuthorizer of Kafka does."""
        self.write_bytes(resource, acl_nodes.encode(StoredAcls(frozenset(entries), [])))
        if notifies:
            self.notify(resource)

    def write_bytes(self, resource: ResourcePattern, data: bytes) -> None:
        path = acl_nodes.path_of(resource)
        kind = "create" if self.ensemble.tree.exists(path) is None else "set"
        self.apply(StoreOperation(kind, path, data))

    def notify(self, resource: ResourcePattern) -> None:
        parent = acl_nodes.CHANGES[PatternType(resource.pattern)]
        notice = acl_nodes.encode_change(resource)
        self.apply(StoreOperation("create", f"{parent}/acl_changes_", notice, sequential=True))

    def stored(self, resource: ResourcePattern) -> set[AccessControlEntry]:
        path = acl_nodes.path_of(resource)
        if self.ensemble.tree.exists(path) is None:
            return set()
        return set(acl_nodes.decode(self.ensemble.tree.get(path).data).entries)

    def notices(self) -> int:
        return sum(len(self.ensemble.tree.children(p)) for p in acl_nodes.CHANGES.values())

    def settle(self, within_ms: int = 400) -> None:
        waited = self.ensemble.sleep(within_ms)
        self.ensemble.run_until(lambda: waited.done)

    def outcome(self, *coroutines: Any) -> list[Any]:
        """The results of requests that run at the same time."""
        outcomes = [run(one) for one in coroutines]
        self.ensemble.run_until(lambda: all(one.done for one in outcomes))
        for one in outcomes:
            if one.error is not None:
                raise one.error
        return [one.value for one in outcomes]

    def create(self, number: int, *acls: AclBinding) -> list[int]:
        (results,) = self.outcome(self.hosts[number].acls.create(CALLER, CreateAcls(list(acls))))
        return [result.error for result in results]

    def delete(self, number: int, *filters: AclFilter) -> list[list[AclBinding]]:
        (found,) = self.outcome(self.hosts[number].acls.delete(CALLER, DeleteAcls(list(filters))))
        assert not any(row.error for deleted in found for row in deleted.acls)
        return [[row.acl for row in deleted.acls] for deleted in found]


def test_acls_that_one_broker_creates_are_used_by_all() -> None:
    cluster = Cluster()

    assert cluster.create(
        1, AclBinding(TOPIC, ALICE), AclBinding(PREFIX, BOB), AclBinding(TOPIC, BOB)
    ) == [0, 0, 0]
    assert cluster.hosts[1].used == {TOPIC: {ALICE, BOB}, PREFIX: {BOB}}, "with the response"
    cluster.settle()

    assert cluster.hosts[0].used == cluster.hosts[1].used
    assert (cluster.stored(TOPIC), cluster.stored(PREFIX)) == ({ALICE, BOB}, {BOB})
    assert cluster.notices() == 2


def test_acls_are_read_when_a_broker_starts() -> None:
    cluster = Cluster(1)
    cluster.write(TOPIC, ALICE)
    cluster.write(PREFIX, BOB)

    assert cluster.join().used == {TOPIC: {ALICE}, PREFIX: {BOB}}


def test_acls_written_by_kafkas_tool_take_effect() -> None:
    """kafka-acls.sh with --authorizer-properties writes into ZooKeeper, and notifies."""
    cluster = Cluster()
    cluster.write(TOPIC, ALICE)
    cluster.settle()
    before = [dict(host.used) for host in cluster.hosts]
    cluster.apply(StoreOperation("delete", acl_nodes.path_of(TOPIC)))
    cluster.notify(TOPIC)
    cluster.settle()

    assert before == [{TOPIC: {ALICE}}] * 2
    assert [host.used for host in cluster.hosts] == [{}, {}]


def test_acls_that_exist_are_created_again_without_a_change() -> None:
    cluster = Cluster()
    cluster.create(0, AclBinding(TOPIC, ALICE))

    assert cluster.create(1, AclBinding(TOPIC, ALICE)) == [0]
    assert cluster.notices() == 1


def test_acls_created_by_two_brokers_at_once_are_all_there() -> None:
    cluster = Cluster()
    entries = [
        [
            AccessControlEntry(f"User:{n}-{host}", "*", AclOperation.READ, Permission.ALLOW)
            for n in range(5)
        ]
        for host in (0, 1)
    ]
    requests = [
        cluster.hosts[host].acls.create(CALLER, CreateAcls([AclBinding(TOPIC, entry)]))
        for n in range(5)
        for host, entry in ((0, entries[0][n]), (1, entries[1][n]))
    ]
    results = cluster.outcome(*requests)
    cluster.settle()

    assert [[row.error for row in result] for result in results] == [[0]] * 10
    assert cluster.stored(TOPIC) == {*entries[0], *entries[1]}
    assert [host.used for host in cluster.hosts] == [{TOPIC: cluster.stored(TOPIC)}] * 2


def test_acls_of_many_resources_are_created_in_parts() -> None:
    cluster = Cluster()
    resources = [
        ResourcePattern(Kind.TOPIC, PatternType.LITERAL, f"t{n}") for n in range(2 * AT_ONCE + 10)
    ]

    assert not any(cluster.create(0, *(AclBinding(resource, ALICE) for resource in resources)))
    cluster.settle(2000)

    assert all(host.used == {one: {ALICE} for one in resources} for host in cluster.hosts)


def test_acls_that_filters_match_are_deleted_and_named_once() -> None:
    cluster = Cluster()
    cluster.create(0, AclBinding(TOPIC, ALICE), AclBinding(TOPIC, BOB), AclBinding(PREFIX, BOB))
    cluster.settle()
    of_alice = ANYTHING._replace(principal="User:alice")
    of_topic = ANYTHING._replace(kind=Kind.TOPIC, name="t", pattern=PatternType.LITERAL)

    deleted = cluster.delete(1, of_alice, of_topic, of_alice)
    cluster.settle()

    assert deleted == [[AclBinding(TOPIC, ALICE)], [AclBinding(TOPIC, BOB)], []]
    assert [host.used for host in cluster.hosts] == [{PREFIX: {BOB}}] * 2
    assert cluster.ensemble.tree.exists(acl_nodes.path_of(TOPIC)) is None


def test_acls_that_a_broker_has_not_heard_of_are_deleted_by_their_resource() -> None:
    """COMPAT: a filter that can match one resource only looks into the store."""
    cluster = Cluster()
    cluster.write(TOPIC, ALICE, notifies=False)
    named = ANYTHING._replace(kind=Kind.TOPIC, name="t")

    assert cluster.delete(0, named) == [[AclBinding(TOPIC, ALICE)]]
    assert cluster.stored(TOPIC) == set()


def test_acls_of_a_newer_kafka_survive_a_change_of_others() -> None:
    cluster = Cluster()
    row = (
        b'{"principal": "User:a", "permissionType": "Allow", "operation": "Teleport", "host": "*"}'
    )
    cluster.write_bytes(TOPIC, b'{"version": 1, "acls": [' + row + b"]}")

    cluster.create(0, AclBinding(TOPIC, ALICE))
    cluster.delete(0, ANYTHING)

    assert b"Teleport" in cluster.ensemble.tree.get(acl_nodes.path_of(TOPIC)).data


def test_acls_that_cannot_be_read_end_a_start() -> None:
    cluster = Cluster(1)
    cluster.write_bytes(TOPIC, b"damaged")

    host = cluster.join()

    assert isinstance(host.started.error, BadAcls)
    assert "/kafka-acl/Topic/t" in str(host.started.error)


def test_acls_that_cannot_be_read_later_leave_what_was_known() -> None:
    cluster = Cluster(1)
    cluster.create(0, AclBinding(TOPIC, ALICE))
    cluster.write_bytes(TOPIC, b"damaged")
    cluster.notify(TOPIC)
    cluster.settle()

    assert cluster.hosts[0].used == {TOPIC: {ALICE}}
    (error,) = cluster.create(0, AclBinding(TOPIC, BOB))
    assert error != 0


def test_acls_that_cannot_be_read_and_were_never_known_deny() -> None:
    """They may have denied something."""
    cluster = Cluster(1)
    cluster.write_bytes(TOPIC, b"damaged")
    cluster.notify(TOPIC)
    restarted = cluster.join(refuses_damage=False)
    cluster.settle()

    deny = AccessControlEntry("User:*", "*", AclOperation.ALL, Permission.DENY)
    assert [host.used for host in (*cluster.hosts, restarted)] == [{TOPIC: {deny}}] * 2


def test_acl_notifications_that_are_odd_are_ignored_and_old_ones_removed() -> None:
    cluster = Cluster(1)
    parent = acl_nodes.LITERAL_CHANGES
    cluster.apply(
        StoreOperation("create", f"{parent}/acl_changes_", b"Planet:x", sequential=True),
        StoreOperation("create", f"{parent}/odd", b""),
    )
    cluster.write(TOPIC, ALICE)
    cluster.settle()
    assert cluster.hosts[0].used == {TOPIC: {ALICE}}

    cluster.wall_ahead_ms = KEPT_MS + 1
    cluster.write(TOPIC, ALICE, BOB)
    cluster.settle()

    assert cluster.hosts[0].used == {TOPIC: {ALICE, BOB}}
    assert [n for n in cluster.ensemble.tree.children(parent) if n != "odd"] == []


def test_acls_changed_while_the_connection_was_away_are_read_again() -> None:
    cluster = Cluster(1)
    host = cluster.hosts[0]
    cluster.create(0, AclBinding(TOPIC, ALICE))
    host.store.lose(1000)
    cluster.write(TOPIC, BOB)
    cluster.write(PREFIX, BOB, notifies=False)
    cluster.settle(5000)

    assert host.used == {TOPIC: {BOB}, PREFIX: {BOB}}
