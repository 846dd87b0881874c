"""DescribeAcls (29), CreateAcls (30), DeleteAcls (31): versions 0 to 3.

All are rejected, because there is no authorizer.
"""

from __future__ import annotations

from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.context import RequestContext
from kbroker.handlers.registry import api
from kbroker.handlers.support.requirements import on_cluster
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.create_acls import CreateAclsRequest, CreateAclsResponse
from kbroker.protocol.messages.delete_acls import DeleteAclsRequest, DeleteAclsResponse
from kbroker.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from kbroker.security.operations import AclOperation


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


@api(ApiKey.DESCRIBE_ACLS, versions=(0, 3), authorize=on_cluster(AclOperation.DESCRIBE))
async def handle_describe_acls(
    ctx: RequestContext, request: DescribeAclsRequest
) -> DescribeAclsResponse:
    raise WireError(ErrorCode.SECURITY_DISABLED)


@api(
    ApiKey.CREATE_ACLS,
    versions=(0, 3),
    fail=fail_creation,
    authorize=on_cluster(AclOperation.ALTER),
)
async def handle_create_acls(ctx: RequestContext, request: CreateAclsRequest) -> CreateAclsResponse:
    raise WireError(ErrorCode.SECURITY_DISABLED)


@api(
    ApiKey.DELETE_ACLS,
    versions=(0, 3),
    fail=fail_deletion,
    authorize=on_cluster(AclOperation.ALTER),
)
async def handle_delete_acls(ctx: RequestContext, request: DeleteAclsRequest) -> DeleteAclsResponse:
    raise WireError(ErrorCode.SECURITY_DISABLED)
