"""ACLs by request, of clients that differ by the address that they connect from: on a listener
without authentication all are ``User:ANONYMOUS``, and ACLs name hosts.
"""

from __future__ import annotations

from typing import Any

from support.clients.wire_client import WireClient

from kbroker.protocol.messages.create_acls import CreateAclsRequest
from kbroker.protocol.messages.delete_acls import DeleteAclsRequest
from kbroker.protocol.messages.describe_acls import DescribeAclsRequest
from kbroker.security.acls import (
    AccessControlEntry,
    AclBinding,
    PatternType,
    Permission,
    ResourcePattern,
)
from kbroker.security.operations import CLUSTER_NAME, AclOperation, Kind

ANYBODY = "User:ANONYMOUS"
ADMIN = "127.0.0.9"


def acl(
    host: str,
    operation: AclOperation,
    kind: Kind,
    name: str = CLUSTER_NAME,
    pattern: PatternType = PatternType.LITERAL,
    permission: Permission = Permission.ALLOW,
    principal: str = ANYBODY,
) -> AclBinding:
    return AclBinding(
        ResourcePattern(kind, pattern, name),
        AccessControlEntry(principal, host, operation, permission),
    )


def admin_acls() -> list[AclBinding]:
    """The client at ADMIN may do everything; nobody else anything."""
    return [
        acl(ADMIN, AclOperation.ALL, kind, CLUSTER_NAME if kind is Kind.CLUSTER else "*")
        for kind in Kind
    ]


def creation(one: AclBinding) -> Any:
    return CreateAclsRequest.AclCreation(
        resource_type=one.resource.kind,
        resource_name=one.resource.name,
        resource_pattern_type=one.resource.pattern,
        principal=one.entry.principal,
        host=one.entry.host,
        operation=one.entry.operation,
        permission_type=one.entry.permission,
    )


def create(client: WireClient, *acls: AclBinding) -> None:
    """Create ACLs. Raises AssertionError."""
    response = client.call(CreateAclsRequest(creations=list(map(creation, acls))), 2)
    found = [(row.error_code, row.error_message) for row in response.results]
    assert not any(code for code, _ in found), found


def delete(client: WireClient, *acls: AclBinding) -> None:
    """Delete exactly these."""
    filters = [
        DeleteAclsRequest.DeleteAclsFilter(
            resource_type_filter=one.resource.kind,
            resource_name_filter=one.resource.name,
            pattern_type_filter=one.resource.pattern,
            principal_filter=one.entry.principal,
            host_filter=one.entry.host,
            operation=one.entry.operation,
            permission_type=one.entry.permission,
        )
        for one in acls
    ]
    response = client.call(DeleteAclsRequest(filters=filters), 2)
    assert [len(row.matching_acls) for row in response.filter_results] == [1] * len(acls)


def describe(client: WireClient) -> set[AclBinding]:
    """All ACLs."""
    request = DescribeAclsRequest(
        resource_type_filter=1, resource_name_filter=None, pattern_type_filter=PatternType.ANY,
        principal_filter=None, host_filter=None, operation=1, permission_type=1,
    )  # fmt: skip
    response = client.call(request, 2)
    assert response.error_code == 0, response
    return {
        AclBinding(
            ResourcePattern(row.resource_type, row.pattern_type, row.resource_name),
            AccessControlEntry(one.principal, one.host, one.operation, one.permission_type),
        )
        for row in response.resources
        for one in row.acls
    }
