"""ElectLeaders (43), versions 0 to 2.

On a single broker each partition has one replica, which leads: there is never another to elect.
"""

from __future__ import annotations

from typing import Any

from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.context import RequestContext
from kbroker.handlers.registry import api
from kbroker.handlers.support.requirements import on_cluster
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from kbroker.security.operations import AclOperation

_TYPES = (0, 1)  # preferred, unclean


def fail(ctx: RequestContext, request: ElectLeadersRequest, error: WireError) -> Any:
    """The same error for every partition, and at the top in versions that have it there."""
    cls = ElectLeadersResponse
    code = int(error.code)
    return cls(
        error_code=code if ctx.api_version >= 1 else 0,
        replica_election_results=[
            cls.ReplicaElectionResult(
                topic=entry.topic,
                partition_result=[
                    cls.PartitionResult(
                        partition_id=number, error_code=code, error_message=error.message
                    )
                    for number in entry.partitions
                ],
            )
            for entry in request.topic_partitions or ()
        ],
    )


@api(ApiKey.ELECT_LEADERS, versions=(0, 2), fail=fail, authorize=on_cluster(AclOperation.ALTER))
async def handle_elect_leaders(
    ctx: RequestContext, request: ElectLeadersRequest
) -> ElectLeadersResponse:
    """ELECTION_NOT_NEEDED for every partition that exists. The response to a request without a
    list, which is for all, names only those with an election: none, as in Kafka."""
    cls = ElectLeadersResponse
    bad_type = request.election_type not in _TYPES
    return cls(
        error_code=int(ErrorCode.INVALID_REQUEST) if bad_type else 0,
        replica_election_results=[
            cls.ReplicaElectionResult(
                topic=entry.topic,
                partition_result=[
                    _result(ctx, entry.topic, number, request.election_type)
                    async for number in ctx.each(entry.partitions)
                ],
            )
            async for entry in ctx.each(request.topic_partitions or ())
        ],
    )


def _result(ctx: RequestContext, topic: str, number: int, election_type: int) -> Any:
    if election_type not in _TYPES:
        error = WireError(
            ErrorCode.INVALID_REQUEST, "The election type must be preferred or unclean."
        )
    else:
        error = WireError(
            ErrorCode.ELECTION_NOT_NEEDED, f"{topic}-{number} already has that leader."
        )
        try:
            ctx.partition(topic, number)
        except WireError as unknown:
            error = unknown
    return ElectLeadersResponse.PartitionResult(
        partition_id=number, error_code=int(error.code), error_message=error.message
    )
