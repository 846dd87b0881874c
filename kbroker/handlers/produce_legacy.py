"""Produce (0), versions 0 to 2: refused for each partition. Later versions have a hot path.

They are announced nevertheless (see ``registry.HOT_RANGES``), and carry message formats 0 and 1.
"""

from __future__ import annotations

from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.context import RequestContext
from kbroker.handlers.registry import api
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.produce import ProduceRequest, ProduceResponse


def fail(ctx: RequestContext, request: ProduceRequest, error: WireError) -> ProduceResponse:
    """The same error for every partition."""
    topic_response = ProduceResponse.TopicProduceResponse
    partition_response = ProduceResponse.PartitionProduceResponse
    return ProduceResponse(
        responses=[
            topic_response(
                name=topic.name,
                partition_responses=[
                    partition_response(
                        index=partition.index, error_code=int(error.code), base_offset=-1
                    )
                    for partition in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )


@api(ApiKey.PRODUCE, versions=(0, 2), fail=fail)
async def handle_produce_legacy(
    ctx: RequestContext, request: ProduceRequest
) -> ProduceResponse | None:
    """Refuse; with acks=0, which has no answer, by closing the connection."""
    if request.acks == 0:
        ctx.connection.close_reason = (
            f"Produce version {ctx.api_version} carries message formats 0 and 1, which are not"
            " taken yet"
        )
        return None
    return fail(ctx, request, WireError(ErrorCode.UNSUPPORTED_VERSION))
