"""ACLs, of any Kafka from 2.7: their words, lists, creation, deletion."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from kbroker.client.connections.cluster import Cluster
from kbroker.client.connections.controller_calls import ask_controller, check
from kbroker.protocol.messages.create_acls import CreateAclsRequest
from kbroker.protocol.messages.delete_acls import DeleteAclsRequest
from kbroker.protocol.messages.describe_acls import DescribeAclsRequest
from kbroker.security.acls import ANY_KIND, PatternType, Permission
from kbroker.security.operations import CLUSTER_NAME as CLUSTER_NAME
from kbroker.security.operations import AclOperation, Kind

# The words of filters and ACLs, with their numbers.
RESOURCE_TYPES = {"ANY": ANY_KIND, **{kind.name: kind.value for kind in Kind}}
PATTERN_TYPES = {pattern.name: pattern.value for pattern in PatternType}
OPERATIONS = {operation.name: operation.value for operation in AclOperation}
PERMISSIONS = {permission.name: permission.value for permission in Permission}


class Acl(NamedTuple):
    """An ACL, with the words of Kafka; as a filter, ANY and None match everything."""

    resource_type: str = "ANY"
    name: str | None = None
    pattern: str = "ANY"
    principal: str | None = None
    host: str | None = None
    operation: str = "ANY"
    permission: str = "ANY"


def create_acls(cluster: Cluster, acls: Iterable[Acl]) -> None:
    """Raises RejectedError of the first that is rejected; others may have been created."""
    rows = list(acls)
    row = CreateAclsRequest.AclCreation
    request = CreateAclsRequest(
        creations=[
            row(
                resource_type=RESOURCE_TYPES[acl.resource_type],
                resource_name=acl.name or "",
                resource_pattern_type=PATTERN_TYPES[acl.pattern],
                principal=acl.principal or "",
                host=acl.host or "",
                operation=OPERATIONS[acl.operation],
                permission_type=PERMISSIONS[acl.permission],
            )
            for acl in rows
        ]
    )
    response = ask_controller(
        cluster, request, "create ACLs", lambda found: [each.error_code for each in found.results]
    )
    for acl, result in zip(rows, response.results, strict=True):
        check(result, f"ACL {acl_text(acl)}")


def list_acls(cluster: Cluster, acl_filter: Acl) -> list[Acl]:
    """Those that match, sorted. Raises RejectedError."""
    request = DescribeAclsRequest(**_filter_fields(acl_filter))
    response = cluster.call(None, request, what="describe ACLs")
    check(response, "describe ACLs")
    return sorted(_acl(resource, acl) for resource in response.resources for acl in resource.acls)


def delete_acls(cluster: Cluster, filters: Iterable[Acl]) -> list[Acl]:
    """Delete those that match; returns them. Raises RejectedError."""
    row = DeleteAclsRequest.DeleteAclsFilter
    rows = [row(**_filter_fields(each)) for each in filters]
    response = ask_controller(
        cluster,
        DeleteAclsRequest(filters=rows),
        "delete ACLs",
        lambda found: [each.error_code for each in found.filter_results],
    )
    deleted = set()
    for result in response.filter_results:
        check(result, "delete ACLs")
        for matching in result.matching_acls:
            acl = _acl(matching, matching)
            check(matching, f"ACL {acl_text(acl)}")
            deleted.add(acl)
    return sorted(deleted)


def acl_text(acl: Acl) -> str:
    """In words, for messages."""
    resource = f"{acl.resource_type.lower()} {acl.name}"
    if acl.pattern == "PREFIXED":
        resource += "*"
    return f"{acl.principal} {acl.permission.lower()} {acl.operation.lower()} on {resource}"


def _filter_fields(acl: Acl) -> dict[str, Any]:
    return {
        "resource_type_filter": RESOURCE_TYPES[acl.resource_type],
        "resource_name_filter": acl.name,
        "pattern_type_filter": PATTERN_TYPES[acl.pattern],
        "principal_filter": acl.principal,
        "host_filter": acl.host,
        "operation": OPERATIONS[acl.operation],
        "permission_type": PERMISSIONS[acl.permission],
    }


def _acl(resource: Any, acl: Any) -> Acl:
    return Acl(
        _word(RESOURCE_TYPES, resource.resource_type),
        resource.resource_name,
        _word(PATTERN_TYPES, resource.pattern_type),
        acl.principal,
        acl.host,
        _word(OPERATIONS, acl.operation),
        _word(PERMISSIONS, acl.permission_type),
    )


def _word(words: dict[str, int], number: int) -> str:
    return next((word for word, code in words.items() if code == number), f"UNKNOWN({number})")
