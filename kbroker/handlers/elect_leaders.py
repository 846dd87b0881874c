"""ElectLeaders (43), versions 0 to 2. The controller elects; other brokers say NOT_CONTROLLER."""

from __future__ import annotations

from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.context import CALL_MARGIN_MS, CHANGE_MIN_MS, RequestContext
from kbroker.handlers.registry import api
from kbroker.handlers.support.requirements import on_cluster
from kbroker.ipc.calls import ELECT_LEADERS, ElectLeaders, NamedPartition, PartitionResult
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from kbroker.security.operations import AclOperation

PREFERRED, UNCLEAN = 0, 1


def fail(
    ctx: RequestContext, request: ElectLeadersRequest, error: WireError
) -> ElectLeadersResponse:
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
    """Have leaders elected. The response to a request without a list, which is for all partitions,
    has only those that needed an election.
    """
    if request.election_type not in (PREFERRED, UNCLEAN):
        text = "The election type must be preferred or unclean."
        raise WireError(ErrorCode.INVALID_REQUEST, text)
    wanted: list[NamedPartition] | None = None
    if request.topic_partitions is not None:
        wanted = [
            NamedPartition(entry.topic, number)
            async for entry in ctx.each(request.topic_partitions)
            for number in entry.partitions
        ]
    within_ms = max(request.timeout_ms, CHANGE_MIN_MS)
    asked = ElectLeaders(request.election_type == UNCLEAN, wanted, within_ms)
    results = await ctx.controller(ELECT_LEADERS, asked, within_ms + CALL_MARGIN_MS)
    by_topic: dict[str, list[PartitionResult]] = {}
    async for result in ctx.each(results):
        by_topic.setdefault(result.topic, []).append(result)
    cls = ElectLeadersResponse
    return cls(
        replica_election_results=[
            cls.ReplicaElectionResult(
                topic=topic,
                partition_result=[
                    cls.PartitionResult(
                        partition_id=one.partition,
                        error_code=one.error,
                        error_message=one.message,
                    )
                    for one in rows
                ],
            )
            async for topic, rows in ctx.each(by_topic.items())
        ]
    )
