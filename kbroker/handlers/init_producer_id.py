"""InitProducerId (22): versions 0 to 6.

An idempotent producer gets a new id with epoch 0 every time, even when it names the one it had
(from version 3 on): such producers raise the epoch themselves.
"""

from __future__ import annotations

from kbroker.coordinator.partitioner import TRANSACTIONS_TOPIC
from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.context import RequestContext
from kbroker.handlers.registry import api
from kbroker.handlers.support.coordinated import forward
from kbroker.handlers.support.requirements import each, on_transaction
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from kbroker.security.operations import AclOperation, Kind

NO_PRODUCER_ID = NO_EPOCH = -1


def fail(
    ctx: RequestContext, request: InitProducerIdRequest, error: WireError
) -> InitProducerIdResponse:
    """The response without a producer id."""
    return InitProducerIdResponse(error_code=int(error.code), producer_epoch=NO_EPOCH)


@api(
    ApiKey.INIT_PRODUCER_ID,
    versions=(0, 6),
    fail=fail,
    authorize=(
        on_transaction(AclOperation.WRITE),
        each(AclOperation.IDEMPOTENT_WRITE, Kind.CLUSTER),
        each(AclOperation.WRITE, Kind.TOPIC),
    ),
)
async def handle_init_producer_id(
    ctx: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse | bytes:
    """Assign a producer id; one with a transactional id is assigned by its coordinator."""
    has_id = request.producer_id != NO_PRODUCER_ID
    if request.transactional_id == "" or has_id != (request.producer_epoch != NO_EPOCH):
        raise WireError(ErrorCode.INVALID_REQUEST)
    if request.transactional_id is not None:
        return await forward(ctx, TRANSACTIONS_TOPIC, request.transactional_id)
    # Permission to write to any topic includes idempotent writes.
    if not ctx.access.allows_any(AclOperation.WRITE, Kind.TOPIC):
        if not ctx.allows(AclOperation.IDEMPOTENT_WRITE, Kind.CLUSTER):
            raise WireError(Kind.CLUSTER.error)
    return InitProducerIdResponse(producer_id=await ctx.producer_ids.take(), producer_epoch=0)
