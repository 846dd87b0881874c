"""DescribeClientQuotas (48) and AlterClientQuotas (49): versions 0 to 1.

The broker has no quotas yet: there are none to describe, and none can be set.
"""

from __future__ import annotations

from typing import Any

from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.context import RequestContext
from kbroker.handlers.registry import api
from kbroker.handlers.support.requirements import on_cluster
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
)
from kbroker.protocol.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from kbroker.security.operations import AclOperation

ENTITY_TYPES = {"user", "client-id", "ip"}


def describe_failed(
    ctx: RequestContext, request: DescribeClientQuotasRequest, error: WireError
) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse(
        error_code=int(error.code), error_message=error.message, entries=None
    )


@api(
    ApiKey.DESCRIBE_CLIENT_QUOTAS,
    versions=(0, 1),
    fail=describe_failed,
    authorize=on_cluster(AclOperation.DESCRIBE_CONFIGS),
)
async def handle_describe_client_quotas(
    ctx: RequestContext, request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse:
    """The response without quotas, for any entity that Kafka knows."""
    for component in request.components:
        check_entity_type(component.entity_type)
    return DescribeClientQuotasResponse()


def alter_failed(
    ctx: RequestContext, request: AlterClientQuotasRequest, error: WireError
) -> AlterClientQuotasResponse:
    return AlterClientQuotasResponse(entries=[rejected(entry, error) for entry in request.entries])


@api(
    ApiKey.ALTER_CLIENT_QUOTAS,
    versions=(0, 1),
    fail=alter_failed,
    authorize=on_cluster(AclOperation.ALTER_CONFIGS),
)
async def handle_alter_client_quotas(
    ctx: RequestContext, request: AlterClientQuotasRequest
) -> AlterClientQuotasResponse:
    """Accept what removes a quota, since there are none; reject what sets one."""
    return AlterClientQuotasResponse(entries=[altered(entry) for entry in request.entries])


def altered(entry: Any) -> Any:
    try:
        for part in entry.entity:
            check_entity_type(part.entity_type)
        if any(not op.remove for op in entry.ops):
            raise WireError(
                ErrorCode.UNSUPPORTED_VERSION, "This broker does not support client quotas yet."
            )
    except WireError as error:
        return rejected(entry, error)
    cls = AlterClientQuotasResponse.EntryData
    return cls(error_message=None, entity=entity_of(entry))


def rejected(entry: Any, error: WireError) -> Any:
    return AlterClientQuotasResponse.EntryData(
        error_code=int(error.code), error_message=error.message, entity=entity_of(entry)
    )


def entity_of(entry: Any) -> list[Any]:
    cls = AlterClientQuotasResponse.EntityData
    return [
        cls(entity_type=part.entity_type, entity_name=part.entity_name) for part in entry.entity
    ]


def check_entity_type(name: str) -> None:
    """UNSUPPORTED_VERSION, Kafka's code for it, unless such an entity can have quotas."""
    if name not in ENTITY_TYPES:
        raise WireError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {name[:100]!a}.")
