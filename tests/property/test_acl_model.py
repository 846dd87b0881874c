"""The index of ACLs compared with a walk over all of them, as Kafka's authorizer is described."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import product

import pytest
from support.running.in_one import in_one

from kbroker.security.acl_authorizer import AclAuthorizer
from kbroker.security.acl_index import AclIndex
from kbroker.security.acls import (
    AccessControlEntry,
    AclBinding,
    AclFilter,
    PatternType,
    Permission,
    ResourcePattern,
)
from kbroker.security.operations import AclOperation, Kind
from kbroker.security.principal import KafkaPrincipal

pytestmark = pytest.mark.property

O = AclOperation  # noqa: E741
SEEDS = range(60)
NAMES = ["a", "ab", "abc", "b", "ba", "bab", "c"]
KINDS = [Kind.TOPIC, Kind.GROUP]
PRINCIPALS = ["User:alice", "User:bob", "User:*"]
HOSTS = ["*", "192.0.2.1", "2001:db8::1"]
OPERATIONS = [O.ALL, O.READ, O.WRITE, O.DESCRIBE, O.DELETE, O.ALTER_CONFIGS, O.DESCRIBE_CONFIGS]
IMPLIED = {
    O.DESCRIBE: {O.DESCRIBE, O.READ, O.WRITE, O.DELETE, O.ALTER},
    O.DESCRIBE_CONFIGS: {O.DESCRIBE_CONFIGS, O.ALTER_CONFIGS},
}


def random_acl(rng: random.Random) -> AclBinding:
    pattern = rng.choice([PatternType.LITERAL, PatternType.PREFIXED])
    names = [*NAMES, "*"] if pattern is PatternType.LITERAL else NAMES
    permission = rng.choice([Permission.ALLOW, Permission.ALLOW, Permission.DENY])
    return AclBinding(
        ResourcePattern(rng.choice(KINDS), pattern, rng.choice(names)),
        AccessControlEntry(
            rng.choice(PRINCIPALS), rng.choice(HOSTS), rng.choice(OPERATIONS), permission
        ),
    )


def covers(resource: ResourcePattern, kind: int, name: str) -> bool:
    if resource.kind != kind:
        return False
    if resource.pattern == PatternType.PREFIXED:
        return name.startswith(resource.name)
    return resource.name in (name, "*")


def concerns(entry: AccessControlEntry, who: str, host: str) -> bool:
    return entry.principal in (who, "User:*") and entry.host in (host, "*")


def model(
    acls: Iterable[AclBinding], who: str, host: str, op: AclOperation, kind: int, name: str
) -> bool:
    matching = [e for r, e in acls if covers(r, kind, name) and concerns(e, who, host)]
    if any(e.permission == Permission.DENY and e.operation in (op, O.ALL) for e in matching):
        return False
    allowing = IMPLIED.get(op, {op}) | {O.ALL}
    return any(e.permission == Permission.ALLOW and e.operation in allowing for e in matching)


def model_any(acls: Iterable[AclBinding], who: str, host: str, op: AclOperation, kind: int) -> bool:
    """KIP-679: is there a pattern that allows and is not dominated by one that denies?"""
    mine = [
        (r, e.permission)
        for r, e in acls
        if r.kind == kind and concerns(e, who, host) and e.operation in (op, O.ALL)
    ]
    denied = {r for r, permission in mine if permission == Permission.DENY}
    if ResourcePattern(kind, PatternType.LITERAL, "*") in denied:
        return False

    def is_dominated(r: ResourcePattern) -> bool:
        if r.pattern == PatternType.LITERAL and r.name == "*":
            return False
        by_prefix = any(
            d.pattern == PatternType.PREFIXED and r.name.startswith(d.name) for d in denied
        )
        return by_prefix or (r.pattern == PatternType.LITERAL and r in denied)

    return any(p == Permission.ALLOW and not is_dominated(r) for r, p in mine)


def filled(rng: random.Random) -> tuple[AclIndex, set[AclBinding]]:
    """An index that has been changed many times, and what is in it."""
    index, present = AclIndex(), set[AclBinding]()
    for _ in range(rng.choice([3, 12, 40])):
        if present and rng.random() < 0.35:
            present.discard(rng.choice(sorted(present)))
        else:
            present.add(random_acl(rng))
        for resource in {r for r, _ in present} | set(index.resources):
            index.put(resource, [e for r, e in present if r == resource])
    return index, present


@in_one("seed allows_if_none", product(SEEDS, [False, True]))
def test_acl_verdicts_are_those_of_a_walk_over_all_acls(seed: int, allows_if_none: bool) -> None:
    rng = random.Random(seed)
    index, present = filled(rng)
    authorizer = AclAuthorizer(index, [], allows_if_none=allows_if_none)

    for who in ("alice", "carol"):
        for host in ("192.0.2.1", "192.0.2.2", "2001:db8::1"):
            for operation in OPERATIONS[1:]:
                for kind in KINDS:
                    found = authorizer.authorize(
                        KafkaPrincipal("User", who), host, operation, kind, NAMES
                    )
                    for name, verdict in zip(NAMES, found, strict=True):
                        expected = model(present, f"User:{who}", host, operation, kind, name)
                        if not any(covers(r, kind, name) for r, _ in present):
                            expected = allows_if_none
                        assert verdict == expected, (who, host, operation, kind, name, present)
    assert len(index) == len(present)


@in_one("seed", SEEDS)
def test_acl_for_any_resource_is_that_of_a_walk_over_all_acls(seed: int) -> None:
    rng = random.Random(1000 + seed)
    index, present = filled(rng)
    authorizer = AclAuthorizer(index, [], allows_if_none=False)

    for who in ("alice", "carol"):
        for host in ("192.0.2.1", "192.0.2.2"):
            for operation in (O.WRITE, O.READ):
                for kind in KINDS:
                    found = authorizer.authorize_any(
                        KafkaPrincipal("User", who), host, operation, kind
                    )
                    expected = model_any(present, f"User:{who}", host, operation, kind)
                    assert found == expected, (who, host, operation, kind, present)


@in_one("seed", SEEDS)
def test_acl_filters_match_what_their_fields_say(seed: int) -> None:
    rng = random.Random(2000 + seed)
    index, present = filled(rng)
    for _ in range(30):
        some = random_acl(rng)
        asked = AclFilter(
            rng.choice([1, some.resource.kind]),
            rng.choice([None, some.resource.name, "abcd"]),
            rng.choice(list(PatternType)),
            rng.choice([None, some.entry.principal]),
            rng.choice([None, some.entry.host]),
            rng.choice([O.ANY, some.entry.operation]),
            rng.choice([Permission.ANY, some.entry.permission]),
        )

        def matches(acl: AclBinding, asked: AclFilter = asked) -> bool:
            (kind, pattern, name), entry = acl
            if asked.kind != 1 and asked.kind != kind:
                return False
            if asked.pattern in (PatternType.LITERAL, PatternType.PREFIXED):
                if asked.pattern != pattern:
                    return False
            if asked.name is not None:
                if asked.pattern == PatternType.MATCH:
                    if not covers(acl.resource, kind, asked.name):
                        return False
                elif asked.name != name:
                    return False
            return (
                (asked.principal is None or asked.principal == entry.principal)
                and (asked.host is None or asked.host == entry.host)
                and (asked.operation == O.ANY or asked.operation == entry.operation)
                and (asked.permission == Permission.ANY or asked.permission == entry.permission)
            )

        assert set(index.matching(asked)) == {acl for acl in present if matches(acl)}
