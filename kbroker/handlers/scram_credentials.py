"""DescribeUserScramCredentials (50) and AlterUserScramCredentials (51): version 0.

Users cannot log in with SCRAM yet, so no user has credentials.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.context import RequestContext
from kbroker.handlers.registry import api
from kbroker.handlers.support.requirements import on_cluster
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)
from kbroker.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from kbroker.security.operations import AclOperation


@api(
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
    versions=(0, 0),
    authorize=on_cluster(AclOperation.DESCRIBE),
)
async def handle_describe_user_scram_credentials(
    ctx: RequestContext, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    """No user has credentials; named users are not found."""
    named = Counter(user.name for user in request.users or ())
    cls = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult
    results = []
    for name, count in named.items():
        error = WireError(
            ErrorCode.RESOURCE_NOT_FOUND,
            f"Attempt to describe a user credential that does not exist: {name}",
        )
        if count > 1:
            error = WireError(
                ErrorCode.DUPLICATE_RESOURCE,
                f"The user {name} appears more than once in the request.",
            )
        results.append(cls(user=name, error_code=int(error.code), error_message=error.message))
    return DescribeUserScramCredentialsResponse(results=results)


def alter_failed(
    ctx: RequestContext, request: AlterUserScramCredentialsRequest, error: WireError
) -> AlterUserScramCredentialsResponse:
    """The same error for every user."""
    users = dict.fromkeys(entry.name for entry in [*request.deletions, *request.upsertions])
    return AlterUserScramCredentialsResponse(results=[rejected(user, error) for user in users])


@api(
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    versions=(0, 0),
    fail=alter_failed,
    authorize=on_cluster(AclOperation.ALTER),
)
async def handle_alter_user_scram_credentials(
    ctx: RequestContext, request: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    """A deletion finds no credential; setting one is rejected."""
    missing = WireError(
        ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist"
    )
    unsupported = WireError(
        ErrorCode.UNSUPPORTED_VERSION, "This broker does not support SCRAM credentials yet."
    )
    errors = dict.fromkeys((entry.name for entry in request.deletions), missing)
    errors |= dict.fromkeys((entry.name for entry in request.upsertions), unsupported)
    return AlterUserScramCredentialsResponse(
        results=[rejected(user, error) for user, error in errors.items()]
    )


def rejected(user: str, error: WireError) -> Any:
    return AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult(
        user=user, error_code=int(error.code), error_message=error.message
    )
