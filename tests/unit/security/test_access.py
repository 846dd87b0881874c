"""Which verdicts of an authorizer are cached, and how long."""

from __future__ import annotations

import gc

import pytest
from support.security.authorizers import Rules, deny_all, deny_names

from kbroker.security.access import EVERYTHING, AccessTable
from kbroker.security.authorizer import AllowAll
from kbroker.security.operations import CLUSTER_NAME, AclOperation, Kind
from kbroker.security.principal import ANONYMOUS, KafkaPrincipal

pytestmark = pytest.mark.unit

ALICE = KafkaPrincipal("User", "alice")
HOST = "192.0.2.1"


def test_access_is_shared_by_the_connections_of_a_principal_and_address() -> None:
    table = AccessTable(AllowAll())

    access = table.of(ALICE, HOST)

    assert table.of(ALICE, HOST) is access
    assert table.of(ANONYMOUS, HOST) is not access
    assert table.of(ALICE, "192.0.2.2") is not access


def test_access_goes_with_the_last_connection() -> None:
    """A process may see millions of addresses in its life."""
    table = AccessTable(AllowAll())
    kept = table.of(ALICE, HOST)
    table.of(ALICE, "192.0.2.2")
    gc.collect()

    assert len(table._kept) == 1
    assert table.of(ALICE, HOST) is kept


def test_access_without_an_authorizer_allows_everything_and_makes_no_lists() -> None:
    access = AccessTable(AllowAll()).of(ALICE, HOST)

    assert access.everything
    assert access.allowed(AclOperation.READ, Kind.TOPIC, iter([])) is EVERYTHING
    assert access.allows(AclOperation.ALTER, Kind.CLUSTER)
    assert access.allows_any(AclOperation.WRITE, Kind.TOPIC)
    assert access.operations(Kind.GROUP) == 0x0D48


def test_access_asks_with_principal_and_address_once_for_a_repeated_name() -> None:
    rules = deny_names("b")
    access = AccessTable(rules).of(ALICE, HOST)

    allowed = access.allowed(AclOperation.READ, Kind.TOPIC, ["a", "b", "a"])

    assert ("a" in allowed, "b" in allowed, "c" in allowed) == (True, False, False)
    assert rules.asked == [
        (ALICE, HOST, AclOperation.READ, Kind.TOPIC, "a"),
        (ALICE, HOST, AclOperation.READ, Kind.TOPIC, "b"),
    ]


def test_access_to_the_cluster_is_to_its_one_resource() -> None:
    rules = deny_all()
    access = AccessTable(rules).of(ALICE, HOST)

    assert not access.allows(AclOperation.ALTER, Kind.CLUSTER)
    assert rules.asked == [(ALICE, HOST, AclOperation.ALTER, Kind.CLUSTER, CLUSTER_NAME)]


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.name)
def test_access_operations_are_those_that_are_allowed(kind: Kind) -> None:
    first = kind.operations[0]
    access = AccessTable(Rules(lambda operation, *_: operation is first)).of(ALICE, HOST)

    assert access.operations(kind, "x") == 1 << first


def test_access_follows_the_authorizer_of_its_table() -> None:
    table = AccessTable(AllowAll())
    access = table.of(ALICE, HOST)
    before = access.version, access.cache_key

    table.follow(deny_all())

    assert not access.everything
    assert access.version > before[0]
    assert access.cache_key != before[1]
    table.follow(AllowAll())
    assert access.cache_key == before[1], "whoever may do everything is shown the same"


def test_access_of_different_principals_has_different_cache_keys() -> None:
    table = AccessTable(deny_all())

    keys = {table.of(who, HOST).cache_key for who in (ALICE, ANONYMOUS)}

    assert len(keys) == 2
