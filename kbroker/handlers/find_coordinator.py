"""FindCoordinator (10): versions 0 to 6; from 4 on for several keys at once.

Groups and transactions are not served yet. The honest answer is the one that clients retry.
"""

from __future__ import annotations

from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.context import RequestContext
from kbroker.handlers.registry import api
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

# Kind of key -> what it is called, and the first version that may ask for it.
KINDS = {
    0: ("consumer groups", 0),
    1: ("transactions", 1),
    2: ("share groups", 6),
}
NOWHERE = {"node_id": -1, "host": "", "port": -1}


def fail(
    ctx: RequestContext, request: FindCoordinatorRequest, error: WireError
) -> FindCoordinatorResponse:
    """The same error for every key."""
    problem = {**NOWHERE, "error_code": int(error.code), "error_message": error.message}
    if ctx.api_version < 4:
        return FindCoordinatorResponse(**problem)
    coordinator = FindCoordinatorResponse.Coordinator
    return FindCoordinatorResponse(
        coordinators=[coordinator(key=key, **problem) for key in request.coordinator_keys]
    )


@api(ApiKey.FIND_COORDINATOR, versions=(0, 6), fail=fail)
async def handle_find_coordinator(
    ctx: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    """Say that there is none."""
    name, first_version = KINDS.get(request.key_type, ("", 0x7FFF))
    if ctx.api_version < first_version:
        error = WireError(
            ErrorCode.INVALID_REQUEST,
            f"Key type {request.key_type} does not exist in version {ctx.api_version}.",
        )
    else:
        error = WireError(
            ErrorCode.COORDINATOR_NOT_AVAILABLE, f"This broker does not serve {name} yet."
        )
    return fail(ctx, request, error)
