"""Nodes of ACLs, where and as AclAuthorizer of Apache Kafka 2.7 has them.

Each resource with ACLs has a node; whoever changes one creates a notification that names it.
Literal and prefixed resources have a tree of their own, and notifications of their own, because
Kafkas before 2.0 know no prefixes. What any client may have written is checked: ValueError, or
KeyError for a key that is missing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from kbroker.metastore.json_values import as_list, as_object, as_text, load_object
from kbroker.security.acls import (
    AccessControlEntry,
    PatternType,
    Permission,
    ResourcePattern,
    by_title,
    title,
)
from kbroker.security.operations import AclOperation, Kind
from kbroker.security.principal import parse

ACLS = "/kafka-acl"
EXTENDED_ACLS = "/kafka-acl-extended"
PREFIXED_ACLS = "/kafka-acl-extended/prefixed"
LITERAL_CHANGES = "/kafka-acl-changes"
EXTENDED_CHANGES = "/kafka-acl-extended-changes"
CHANGE = "acl_changes_"  # with a number after it

_TREES = {PatternType.LITERAL: ACLS, PatternType.PREFIXED: PREFIXED_ACLS}
CHANGES = {PatternType.LITERAL: LITERAL_CHANGES, PatternType.PREFIXED: EXTENDED_CHANGES}
VERSION = 1

# Created once per cluster, parents first.
PERSISTENT_PATHS = (
    ACLS,
    EXTENDED_ACLS,
    PREFIXED_ACLS,
    *(f"{tree}/{title(kind)}" for tree in _TREES.values() for kind in Kind),
    LITERAL_CHANGES,
    EXTENDED_CHANGES,
)
# What ZooKeeper takes in no path.
_UNSTORABLE = re.compile("[/\0-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")


class StoredAcls(NamedTuple):
    """The content of a node. others: what is no ACL that kbroker knows; it is kept as it is."""

    entries: frozenset[AccessControlEntry]
    others: list[Any]


NONE = StoredAcls(frozenset(), [])


def path_of(resource: ResourcePattern) -> str:
    return f"{parent_of(resource)}/{resource.name}"


def parent_of(resource: ResourcePattern) -> str:
    return f"{_TREES[PatternType(resource.pattern)]}/{title(Kind(resource.kind))}"


def resource_at(path: str) -> ResourcePattern | None:
    """The resource whose ACLs a node has; None for other nodes. ValueError for an unknown kind."""
    for pattern, tree in _TREES.items():
        kind, slash, name = path.removeprefix(tree + "/").partition("/")
        if path.startswith(tree + "/") and slash and "/" not in name:
            return ResourcePattern(_kind(kind), pattern, name)
    return None


def is_storable(name: str) -> bool:
    """Whether a resource can have this name: it is part of a path."""
    return name not in ("", ".", "..") and _UNSTORABLE.search(name) is None


def encode(acls: StoredAcls) -> bytes:
    rows = [
        {
            "principal": entry.principal,
            "permissionType": title(Permission(entry.permission)),
            "operation": title(AclOperation(entry.operation)),
            "host": entry.host,
        }
        for entry in sorted(acls.entries)
    ]
    return _dump({"version": VERSION, "acls": rows + acls.others})


def decode(data: bytes) -> StoredAcls:
    if not data:
        return NONE
    document = load_object(data)
    if document["version"] != VERSION:
        raise ValueError(f"version {document['version']!r} of ACLs is unknown")
    entries, others = set(), []
    for row in map(as_object, as_list(document["acls"])):
        principal, host = as_text(row["principal"]), as_text(row["host"])
        parse(principal)
        operation = by_title(AclOperation, as_text(row["operation"]))
        permission = by_title(Permission, as_text(row["permissionType"]))
        if operation in (None, AclOperation.ANY) or permission in (None, Permission.ANY):
            others.append(row)
        else:
            assert operation is not None and permission is not None
            entries.add(AccessControlEntry(principal, host, int(operation), int(permission)))
    return StoredAcls(frozenset(entries), others)


def encode_change(resource: ResourcePattern) -> bytes:
    """The notification that the ACLs of a resource have changed."""
    kind = Kind(resource.kind).name
    if resource.pattern == PatternType.LITERAL:
        return f"{kind}:{resource.name}".encode()
    pattern = PatternType(resource.pattern).name
    return _dump(
        {"version": 1, "resourceType": kind, "name": resource.name, "patternType": pattern}
    )


def decode_change(parent: str, data: bytes) -> ResourcePattern:
    """The resource whose ACLs have changed. parent: ``LITERAL_CHANGES`` or ``EXTENDED_CHANGES``."""
    if parent == LITERAL_CHANGES:
        kind, colon, name = data.decode().partition(":")
        if not colon:
            raise ValueError(f"{kind[:100]!r} is not kind:name")
        return ResourcePattern(_kind(kind), PatternType.LITERAL, name)
    document = load_object(data)
    pattern = as_text(document["patternType"]).upper()
    if pattern != PatternType.PREFIXED.name:
        raise ValueError(f"pattern type {pattern[:100]!r} is unknown")
    kind, name = as_text(document["resourceType"]), as_text(document["name"])
    return ResourcePattern(_kind(kind), PatternType.PREFIXED, name)


def _kind(text: str) -> int:
    kind = by_title(Kind, text)
    if kind is None:
        raise ValueError(f"resource type {text[:100]!r} is unknown")
    return int(kind)


def names(resources: Iterable[ResourcePattern]) -> str:
    """For a log line."""
    return ", ".join(map(str, resources))


def _dump(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
