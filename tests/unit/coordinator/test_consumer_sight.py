"""Members that subscribe by a pattern, and may not describe every topic that matches it."""

from __future__ import annotations

import pytest
from support.coordinators.consumer_member import FakeConsumer, describe, make_host, settle
from support.coordinators.coordinator_host import CoordinatorHost
from support.security.acl_requests import acl

from kbroker.coordinator.group.consumer.consumer_sight import hidden_from, look
from kbroker.security.access import AccessTable
from kbroker.security.acl_authorizer import AclAuthorizer
from kbroker.security.acl_index import AclIndex
from kbroker.security.acls import PatternType
from kbroker.security.operations import AclOperation, Kind
from kbroker.security.principal import KafkaPrincipal

pytestmark = pytest.mark.unit

ADMIN, ALICE, BOB = (KafkaPrincipal("User", name) for name in ("admin", "alice", "bob"))


class Rules:
    """ACLs that allow principals to describe topics whose names begin so."""

    def __init__(self, host: CoordinatorHost) -> None:
        self._index = AclIndex()
        self._authorizer = AclAuthorizer(self._index, [ADMIN], allows_if_none=False)
        self._host = host
        host.accesses = AccessTable(self._authorizer)

    def describe(self, prefix: str, *principals: KafkaPrincipal) -> None:
        """Only these may."""
        acls = [
            acl("*", AclOperation.DESCRIBE, Kind.TOPIC, prefix, PatternType.PREFIXED,
                principal=str(principal))
            for principal in principals
        ]  # fmt: skip
        resource = acl("*", AclOperation.DESCRIBE, Kind.TOPIC, prefix, PatternType.PREFIXED)
        self._index.put(resource.resource, [one.entry for one in acls])
        self._host.accesses.follow(self._authorizer)


@pytest.fixture
def host() -> CoordinatorHost:
    made = make_host()
    for name in ("foo", "foobar", "bar"):
        made.add_topic(name, 2)
    return made


@pytest.fixture
def rules(host: CoordinatorHost) -> Rules:
    made = Rules(host)
    made.describe("foo", ALICE)
    made.describe("bar", ALICE, BOB)
    return made


def subscriber(host: CoordinatorHost, principal: KafkaPrincipal, regex: str = ".*") -> FakeConsumer:
    options = {"subscribed_topic_regex": regex}
    return FakeConsumer(host, principal.name, None, principal=principal, **options)


def topics(member: FakeConsumer) -> set[bytes]:
    return {topic.rstrip(b"-") for topic, _ in member.owned}


@pytest.mark.usefixtures("rules")
def test_member_is_assigned_what_it_may_describe(host: CoordinatorHost) -> None:
    member = subscriber(host, BOB)

    member.join()

    assert topics(member) == {b"bar"}
    assert describe(host).group_epoch == 1


@pytest.mark.usefixtures("rules")
def test_each_member_of_a_group_sees_its_own_topics(host: CoordinatorHost) -> None:
    """Whoever comes first: the topics of the pattern are the same for both."""
    alice, bob, admin = (subscriber(host, one) for one in (ALICE, BOB, ADMIN))
    for member in (bob, alice, admin):
        member.join()
    settle(bob, alice, admin)

    assert topics(bob) <= {b"bar"}
    owned = [partition for member in (alice, bob, admin) for partition in member.owned]
    assert len(owned) == len(set(owned)) == 6, "nothing is left to nobody"


def test_change_of_acls_after_the_first_heartbeat_is_followed(
    host: CoordinatorHost, rules: Rules
) -> None:
    """The group came to be with that heartbeat."""
    member = subscriber(host, BOB)
    member.join()

    rules.describe("foo", BOB)
    settle(member)

    assert topics(member) == {b"foo", b"foobar", b"bar"}


def test_change_of_acls_is_followed_at_the_next_heartbeat(
    host: CoordinatorHost, rules: Rules
) -> None:
    member = subscriber(host, BOB)
    member.join()
    settle(member)
    before = describe(host).group_epoch

    rules.describe("foo", ALICE, BOB)
    settle(member)
    given = topics(member), describe(host).group_epoch
    rules.describe("foo", ALICE)
    rules.describe("bar", ALICE)
    settle(member)

    assert given == ({b"foo", b"foobar", b"bar"}, before + 1)
    assert topics(member) == set()


@pytest.mark.usefixtures("rules")
def test_new_topic_that_a_member_may_not_describe_is_not_assigned(host: CoordinatorHost) -> None:
    alice, bob = subscriber(host, ALICE), subscriber(host, BOB)
    for member in (alice, bob):
        member.join()
    settle(alice, bob)

    host.advance(1_000)
    host.add_topic("food", 4)
    host.add_topic("barn", 1)
    settle(bob, alice)

    assert topics(bob) <= {b"bar", b"barn"}
    assert {topic for one in (alice, bob) for topic in topics(one)} >= {b"food", b"barn"}


@pytest.mark.usefixtures("rules")
def test_sight_is_as_before_after_a_load(host: CoordinatorHost) -> None:
    alice, bob = subscriber(host, ALICE), subscriber(host, BOB)
    for member in (alice, bob):
        member.join()
    settle(alice, bob)

    host.reload()
    settle(alice, bob)

    assert topics(bob) <= {b"bar"}
    assert topics(alice) >= {b"foo", b"foobar"}
    assert len(alice.owned | bob.owned) == 6


@pytest.mark.usefixtures("rules")
def test_names_that_a_member_gives_are_its_own_affair(host: CoordinatorHost) -> None:
    """A heartbeat with a name that its client may not describe does not come this far."""
    member = FakeConsumer(host, "m", ["foo"], principal=BOB, subscribed_topic_regex="foo.*|bar")

    member.join()

    assert topics(member) == {b"foo", b"bar"}


def test_sight_is_looked_up_when_something_has_changed(host: CoordinatorHost, rules: Rules) -> None:
    matched = frozenset({"foo", "bar"})
    access = host.access(BOB, "127.0.0.1")
    first = look(access, matched, None)

    again = look(access, matched, first)
    rules.describe("foo", BOB)
    changed = look(access, matched, first)

    assert again is first
    assert (first.hidden, changed.hidden) == ({"foo"}, set())
    assert hidden_from(first, matched) == hidden_from(None, matched) == set()
    assert look(host.access(ADMIN, "127.0.0.1"), matched, None).hidden == set()
