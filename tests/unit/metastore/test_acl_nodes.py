"""The nodes of ACLs are those of AclAuthorizer in Apache Kafka 2.7."""

from __future__ import annotations

import json

import pytest

from kbroker.metastore import acl_nodes
from kbroker.metastore.acl_nodes import StoredAcls
from kbroker.security.acls import AccessControlEntry, PatternType, Permission, ResourcePattern
from kbroker.security.operations import AclOperation, Kind

pytestmark = pytest.mark.unit

LITERAL = ResourcePattern(Kind.TRANSACTIONAL_ID, PatternType.LITERAL, "*")
PREFIXED = ResourcePattern(Kind.TOPIC, PatternType.PREFIXED, "team:a-")
ENTRY = AccessControlEntry("User:CN=a,O=b", "*", AclOperation.ALTER_CONFIGS, Permission.DENY)


def test_acl_paths_are_kafkas() -> None:
    assert acl_nodes.path_of(LITERAL) == "/kafka-acl/TransactionalId/*"
    assert acl_nodes.path_of(PREFIXED) == "/kafka-acl-extended/prefixed/Topic/team:a-"
    for resource in (LITERAL, PREFIXED):
        assert acl_nodes.resource_at(acl_nodes.path_of(resource)) == resource
    for path in ("/kafka-acl/Topic", "/kafka-acl-changes/acl_changes_0000000001"):
        assert acl_nodes.resource_at(path) is None
    with pytest.raises(ValueError, match="Planet"):
        acl_nodes.resource_at("/kafka-acl/Planet/x")
    assert "/kafka-acl/DelegationToken" in acl_nodes.PERSISTENT_PATHS


def test_acls_of_a_node_are_kafkas_document() -> None:
    data = acl_nodes.encode(StoredAcls(frozenset({ENTRY}), []))

    assert json.loads(data) == {
        "version": 1,
        "acls": [
            {
                "principal": "User:CN=a,O=b",
                "permissionType": "Deny",
                "operation": "AlterConfigs",
                "host": "*",
            }
        ],
    }
    assert acl_nodes.decode(data).entries == {ENTRY}
    assert acl_nodes.decode(b"").entries == set()


def test_acls_of_a_newer_version_of_kafka_are_kept_as_they_are() -> None:
    row = {"principal": "User:a", "permissionType": "Allow", "operation": "Teleport", "host": "*"}
    data = json.dumps({"version": 1, "acls": [row]}).encode()

    found = acl_nodes.decode(data)

    assert (found.entries, found.others) == (frozenset(), [row])
    assert json.loads(acl_nodes.encode(found))["acls"] == [row]


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b'{"version": 2, "acls": []}',
        b'{"version": 1}',
        b'{"version": 1, "acls": [{"principal": "alice"}]}',
        b'{"version": 1, "acls": [{"principal": "alice", "host": "*", "operation": "Read", '
        b'"permissionType": "Deny"}]}',
    ],
)
def test_acls_that_are_damaged_are_no_acls(data: bytes) -> None:
    with pytest.raises((ValueError, KeyError)):
        acl_nodes.decode(data)


def test_acl_notifications_are_kafkas() -> None:
    assert acl_nodes.encode_change(LITERAL) == b"TRANSACTIONAL_ID:*"
    assert json.loads(acl_nodes.encode_change(PREFIXED)) == {
        "version": 1,
        "resourceType": "TOPIC",
        "name": "team:a-",
        "patternType": "PREFIXED",
    }
    for resource in (LITERAL, PREFIXED):
        parent = acl_nodes.CHANGES[PatternType(resource.pattern)]
        assert acl_nodes.decode_change(parent, acl_nodes.encode_change(resource)) == resource
    found = acl_nodes.decode_change(acl_nodes.LITERAL_CHANGES, b"Topic:a:b")  # of Kafka 1.0
    assert found == ResourcePattern(Kind.TOPIC, PatternType.LITERAL, "a:b")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\0", "a\n", "\ud800", "\uffff"])
def test_acl_of_a_name_that_is_no_part_of_a_path_cannot_be_stored(name: str) -> None:
    assert not acl_nodes.is_storable(name)
