"""Super users, wildcards, hosts and prefixes: what an operator writes, and what it means."""

from __future__ import annotations

import pytest

from kbroker.security.access import AccessTable
from kbroker.security.acl_authorizer import AclAuthorizer, super_users
from kbroker.security.acl_index import AclIndex
from kbroker.security.acls import (
    AccessControlEntry,
    PatternType,
    Permission,
    ResourcePattern,
    to_document,
)
from kbroker.security.operations import AclOperation, Kind
from kbroker.security.principal import ANONYMOUS, KafkaPrincipal

pytestmark = pytest.mark.unit

O = AclOperation  # noqa: E741
ALICE, BOB = KafkaPrincipal("User", "alice"), KafkaPrincipal("User", "bob")
HOST = "192.0.2.1"


def entry(
    who: str = "User:alice",
    operation: AclOperation = O.READ,
    host: str = "*",
    permission: Permission = Permission.ALLOW,
) -> AccessControlEntry:
    return AccessControlEntry(who, host, operation, permission)


def authorizer(
    *acls: tuple[str, AccessControlEntry],
    pattern: PatternType = PatternType.LITERAL,
    supers: str = "",
    allows_if_none: bool = False,
) -> AclAuthorizer:
    index = AclIndex()
    for name in dict(acls):
        entries = [one for of, one in acls if of == name]
        index.put(ResourcePattern(Kind.TOPIC, pattern, name), entries)
    return AclAuthorizer(index, super_users(supers), allows_if_none=allows_if_none)


def allows(
    made: AclAuthorizer, who: KafkaPrincipal, operation: AclOperation, name: str, host: str = HOST
) -> bool:
    (verdict,) = made.authorize(who, host, operation, Kind.TOPIC, [name])
    return verdict


def test_acl_of_everybody_at_every_host() -> None:
    made = authorizer(("t", entry("User:*", O.ALL)))

    assert allows(made, ANONYMOUS, O.WRITE, "t")
    assert not allows(made, ANONYMOUS, O.WRITE, "u")


def test_acl_of_one_host_is_of_no_other() -> None:
    made = authorizer(("t", entry(host=HOST)))

    assert allows(made, ALICE, O.READ, "t")
    assert not allows(made, ALICE, O.READ, "t", "192.0.2.2")
    assert not allows(made, BOB, O.READ, "t")


@pytest.mark.parametrize(
    ("written", "seen"),
    [("0:0:0:0:0:0:0:1", "::1"), ("2001:DB8::1", "2001:db8::1"), ("::ffff:192.0.2.1", HOST)],
)
def test_acl_of_a_host_in_another_form_is_the_same(written: str, seen: str) -> None:
    """Kafka knows addresses in the long form only; a connection here has the short one."""
    assert allows(authorizer(("t", entry(host=written))), ALICE, O.READ, "t", seen)


def test_acl_that_denies_comes_first() -> None:
    made = authorizer(
        ("t", entry(operation=O.ALL)), ("t", entry("User:*", permission=Permission.DENY))
    )

    assert not allows(made, ALICE, O.READ, "t")
    assert allows(made, ALICE, O.WRITE, "t")
    assert allows(made, ALICE, O.DESCRIBE, "t"), "only what allows implies more"


def test_acl_of_all_topics_and_of_a_prefix() -> None:
    prefixed = authorizer(("ab", entry()), pattern=PatternType.PREFIXED)

    assert [allows(prefixed, ALICE, O.READ, name) for name in ("ab", "abc", "a", "b")] == [
        True, True, False, False,
    ]  # fmt: skip
    assert allows(authorizer(("*", entry())), ALICE, O.READ, "any")


def test_super_users_may_do_everything_whatever_is_denied() -> None:
    deny = entry("User:*", O.ALL, permission=Permission.DENY)
    made = authorizer(("*", deny), supers="User:admin; User:CN=a,O=b;")
    table = AccessTable(made)

    for name in ("admin", "CN=a,O=b"):
        assert table.of(KafkaPrincipal("User", name), HOST).everything
    access = table.of(ALICE, HOST)
    assert not access.everything and not access.allows(O.READ, Kind.TOPIC, "t")


@pytest.mark.parametrize("text", ["admin", "User:", ":x", "User:a;b"])
def test_super_users_that_are_no_principals_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="type:name"):
        super_users(text)


def test_resource_without_acls_is_everybodys_if_configured() -> None:
    made = authorizer(("t", entry("User:bob")), allows_if_none=True)

    assert allows(made, ALICE, O.READ, "u")
    assert not allows(made, ALICE, O.READ, "t"), "it has an ACL, of another"
    assert made.authorize_any(ALICE, HOST, O.WRITE, Kind.TOPIC)
    assert made.authorize(ALICE, HOST, O.ALTER, Kind.CLUSTER, ["kafka-cluster"]) == [True]


def test_nobody_is_authorized_before_there_are_acls() -> None:
    made = authorizer()

    assert not allows(made, ALICE, O.READ, "t")
    assert not made.authorize_any(ALICE, HOST, O.WRITE, Kind.TOPIC)


def test_acls_of_the_image_replace_or_change_what_is_there() -> None:
    t, u = (ResourcePattern(Kind.TOPIC, PatternType.LITERAL, name) for name in "tu")
    index = AclIndex()

    assert index.take({"snapshot": True, "acls": [to_document(t, [entry()])]})
    assert index.take({"acls": [to_document(u, [entry()])]})
    assert set(index.resources) == {t, u}
    assert index.take({"acls": [to_document(t, [])]})
    assert set(index.resources) == {u}
    assert not index.take({"version": 2}), "a delta about something else"
    assert index.take({"snapshot": True, "acls": []})
    assert (set(index.resources), len(index), index._by_principal) == (set(), 0, {})
    with pytest.raises(ValueError, match="ACLs of the image"):
        index.take({"acls": [[2, 3]]})


def test_operations_that_are_authorized_are_bits() -> None:
    access = AccessTable(authorizer(("t", entry()))).of(ALICE, HOST)

    assert access.operations(Kind.TOPIC, "t") == 1 << O.READ | 1 << O.DESCRIBE
