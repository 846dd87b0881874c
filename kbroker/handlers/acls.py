"""DescribeAcls (29), CreateAcls (30), DeleteAcls (31): versions 0 to 3.

Without an authorizer that has ACLs, all are rejected.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.context import RequestContext
from kbroker.handlers.registry import api
from kbroker.handlers.support.requirements import on_cluster
from kbroker.ipc.calls import CREATE_ACLS, DELETE_ACLS, AclResult, CreateAcls, DeleteAcls
from kbroker.metastore.acl_nodes import is_storable
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.create_acls import CreateAclsRequest, CreateAclsResponse
from kbroker.protocol.messages.delete_acls import DeleteAclsRequest, DeleteAclsResponse
from kbroker.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from kbroker.security.acl_index import AclIndex
from kbroker.security.acls import (
    ANY_KIND,
    AccessControlEntry,
    AclBinding,
    AclFilter,
    PatternType,
    Permission,
    ResourcePattern,
)
from kbroker.security.operations import CLUSTER_NAME, AclOperation, Kind
from kbroker.security.principal import parse

NOT_OLD = "Version 0 only supports literal resource pattern types"


def fail_creation(
    ctx: RequestContext, request: CreateAclsRequest, error: WireError
) -> CreateAclsResponse:
    """The same error for every ACL."""
    entry = CreateAclsResponse.AclCreationResult
    code = int(error.code)
    return CreateAclsResponse(
        results=[entry(error_code=code, error_message=error.message) for _ in request.creations]
    )


def fail_deletion(
    ctx: RequestContext, request: DeleteAclsRequest, error: WireError
) -> DeleteAclsResponse:
    """The same error for every filter."""
    entry = DeleteAclsResponse.DeleteAclsFilterResult
    code = int(error.code)
    return DeleteAclsResponse(
        filter_results=[
            entry(error_code=code, error_message=error.message) for _ in request.filters
        ]
    )


def known_acls(ctx: RequestContext, text: str) -> AclIndex:
    """The ACLs that this process decides by. SECURITY_DISABLED."""
    acls = ctx.process.acls
    if acls is None:
        raise WireError(ErrorCode.SECURITY_DISABLED, text)
    return acls


# -- describe ------------------------------------------------------------------------------------


@api(ApiKey.DESCRIBE_ACLS, versions=(0, 3), authorize=on_cluster(AclOperation.DESCRIBE))
async def handle_describe_acls(
    ctx: RequestContext, request: DescribeAclsRequest
) -> DescribeAclsResponse:
    """The ACLs that this broker decides by; another's changes arrive a moment later."""
    acls = known_acls(ctx, "No Authorizer is configured on the broker")
    asked = checked_filter(ctx, request)
    cls = DescribeAclsResponse
    described: dict[ResourcePattern, DescribeAclsResponse.DescribeAclsResource] = {}
    for resource, entries in list(acls.resources.items()):
        if not asked.matches_resource(resource):
            continue
        async for entry in ctx.each(entries):
            if asked.matches_entry(entry):
                row = described.get(resource)
                if row is None:
                    row = described[resource] = cls.DescribeAclsResource(
                        resource_type=resource.kind,
                        resource_name=resource.name,
                        pattern_type=resource.pattern,
                        acls=[],
                    )
                row.acls.append(cls.AclDescription(**entry_fields(entry)))
    return cls(resources=list(described.values()))


def entry_fields(entry: AccessControlEntry) -> dict[str, Any]:
    return {
        "principal": entry.principal,
        "host": entry.host,
        "operation": entry.operation,
        "permission_type": entry.permission,
    }


def checked_filter(
    ctx: RequestContext, asked: DescribeAclsRequest | DeleteAclsRequest.DeleteAclsFilter
) -> AclFilter:
    """The filter of a request. INVALID_REQUEST, or UNSUPPORTED_VERSION."""
    pattern = asked.pattern_type_filter
    if ctx.api_version == 0 and pattern == PatternType.ANY:
        pattern = PatternType.LITERAL
    if ctx.api_version == 0 and pattern != PatternType.LITERAL:
        raise WireError(ErrorCode.UNSUPPORTED_VERSION, NOT_OLD)
    if asked.resource_type_filter != ANY_KIND:
        known(Kind, "resource type", asked.resource_type_filter)
    known(PatternType, "pattern type", pattern)
    known(AclOperation, "operation", asked.operation)
    known(Permission, "permission type", asked.permission_type)
    return AclFilter(
        asked.resource_type_filter,
        asked.resource_name_filter,
        pattern,
        asked.principal_filter,
        asked.host_filter,
        asked.operation,
        asked.permission_type,
    )


def known(cls: type[IntEnum], what: str, value: int, *, but: IntEnum | None = None) -> None:
    """INVALID_REQUEST for a number that means nothing, or ``but``.

    COMPAT: Kafka closes the connection for the first.
    """
    try:
        if cls(value) is not but:
            return
        text = f"{what} {value} ({cls(value).name}) is for filters only"
    except ValueError:
        text = f"{what} {value} is unknown"
    raise WireError(ErrorCode.INVALID_REQUEST, text[0].upper() + text[1:] + ".")


# -- create --------------------------------------------------------------------------------------


@api(
    ApiKey.CREATE_ACLS,
    versions=(0, 3),
    fail=fail_creation,
    authorize=on_cluster(AclOperation.ALTER),
)
async def handle_create_acls(ctx: RequestContext, request: CreateAclsRequest) -> CreateAclsResponse:
    """Have the ACLs stored, whichever broker this is; they are in effect here with the response."""
    known_acls(ctx, "No Authorizer is configured.")
    results: list[AclResult | None] = []
    valid: list[AclBinding] = []
    async for creation in ctx.each(request.creations):
        try:
            valid.append(checked_creation(ctx, creation))
            results.append(None)
        except WireError as error:
            results.append(AclResult(int(error.code), error.message))
    stored = await ctx.controller(CREATE_ACLS, CreateAcls(valid)) if valid else []
    rest = iter(stored)
    entry = CreateAclsResponse.AclCreationResult
    made = [next(rest) if result is None else result for result in results]
    return CreateAclsResponse(
        results=[entry(error_code=one.error, error_message=one.message or "") for one in made]
    )


def checked_creation(ctx: RequestContext, asked: CreateAclsRequest.AclCreation) -> AclBinding:
    """INVALID_REQUEST or UNSUPPORTED_VERSION for an ACL that cannot be."""
    kind, name, pattern = asked.resource_type, asked.resource_name, asked.resource_pattern_type
    if ctx.api_version == 0 and pattern != PatternType.LITERAL:
        raise WireError(ErrorCode.UNSUPPORTED_VERSION, NOT_OLD)
    known(Kind, "resource type", kind)
    known(PatternType, "pattern type", pattern, but=PatternType.ANY)
    known(PatternType, "pattern type", pattern, but=PatternType.MATCH)
    known(AclOperation, "operation", asked.operation, but=AclOperation.ANY)
    known(Permission, "permission type", asked.permission_type, but=Permission.ANY)
    text = ""
    if kind == Kind.CLUSTER and name != CLUSTER_NAME:
        text = f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    elif not name:
        text = "Invalid empty resource name"
    elif not is_storable(name):
        # COMPAT: AclAuthorizer of Kafka cannot store them either.
        text = f"ACL binding contains invalid resource name: {name[:100]}"
    elif not asked.host:
        text = "The host must not be empty: * is any host"
    else:
        try:
            parse(asked.principal)
        except ValueError as error:
            text = str(error)
    if text:
        raise WireError(ErrorCode.INVALID_REQUEST, text)
    entry = AccessControlEntry(asked.principal, asked.host, asked.operation, asked.permission_type)
    return AclBinding(ResourcePattern(kind, pattern, name), entry)


# -- delete --------------------------------------------------------------------------------------


@api(
    ApiKey.DELETE_ACLS,
    versions=(0, 3),
    fail=fail_deletion,
    authorize=on_cluster(AclOperation.ALTER),
)
async def handle_delete_acls(ctx: RequestContext, request: DeleteAclsRequest) -> DeleteAclsResponse:
    """Have the ACLs removed that match any of the filters.

    COMPAT: as in Kafka, one filter that is invalid rejects the whole request.
    """
    known_acls(ctx, "No Authorizer is configured.")
    filters = [checked_filter(ctx, one) for one in request.filters]
    cls = DeleteAclsResponse
    deleted = await ctx.controller(DELETE_ACLS, DeleteAcls(filters)) if filters else []
    results = []
    for of_filter in deleted:
        rows = []
        async for row in ctx.each(of_filter.acls):
            resource, entry = row.acl
            rows.append(
                cls.DeleteAclsMatchingAcl(
                    error_code=row.error,
                    error_message=row.message,
                    resource_type=resource.kind,
                    resource_name=resource.name,
                    pattern_type=resource.pattern,
                    **entry_fields(entry),
                )
            )
        results.append(cls.DeleteAclsFilterResult(error_message=None, matching_acls=rows))
    return cls(filter_results=results)
