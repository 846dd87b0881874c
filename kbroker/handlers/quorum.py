"""DescribeQuorum (55): versions 0 to 2, UnregisterBroker (64): version 0, AddRaftVoter (80):
versions 0 and 1, and RemoveRaftVoter (81): version 0.

A broker without others is the quorum, and its leader; the versions of the cluster image stand for
the offsets of Kafka's metadata log. In a cluster, whose quorum is ZooKeeper, these APIs are not
announced, as in a Kafka with ZooKeeper.
"""

from __future__ import annotations

import time

from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.context import RequestContext
from kbroker.handlers.registry import api
from kbroker.handlers.support.requirements import on_cluster
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from kbroker.protocol.messages.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse
from kbroker.protocol.messages.remove_raft_voter import (
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
)
from kbroker.protocol.messages.unregister_broker import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from kbroker.security.operations import AclOperation

METADATA_PARTITION = ("__cluster_metadata", 0)
# The epoch of the controller is in the upper half of a version (persistence.register).
EPOCH_SHIFT = 32
ALONE = "The quorum consists of this node only and cannot be changed."


@api(
    ApiKey.DESCRIBE_QUORUM, versions=(0, 2), authorize=on_cluster(AclOperation.DESCRIBE), alone=True
)
async def handle_describe_quorum(
    ctx: RequestContext, request: DescribeQuorumRequest
) -> DescribeQuorumResponse:
    """Describe the only partition."""
    cls = DescribeQuorumResponse
    response = cls(
        topics=[
            cls.TopicData(
                topic_name=topic.topic_name,
                partitions=[
                    described(ctx, topic.topic_name, entry.partition_index)
                    async for entry in ctx.each(topic.partitions)
                ],
            )
            async for topic in ctx.each(request.topics)
        ]
    )
    if ctx.api_version >= 2:
        response.nodes = [
            cls.Node(
                node_id=broker.broker_id,
                listeners=[
                    cls.Listener(name=endpoint.listener, host=endpoint.host, port=endpoint.port)
                ],
            )
            for broker in ctx.image.brokers.values()
            if (endpoint := ctx.endpoint(broker)) is not None
        ]
    return response


def described(ctx: RequestContext, topic: str, number: int) -> DescribeQuorumResponse.PartitionData:
    """A partition of the response."""
    cls = DescribeQuorumResponse.PartitionData
    if (topic, number) != METADATA_PARTITION:
        error = WireError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return cls(partition_index=number, error_code=int(error.code), error_message=error.message)
    version, now_ms = ctx.image.version, time.time_ns() // 1_000_000
    voter = DescribeQuorumResponse.ReplicaState(
        replica_id=ctx.image.controller_id,
        log_end_offset=version,
        last_fetch_timestamp=now_ms,
        last_caught_up_timestamp=now_ms,
    )
    return cls(
        partition_index=number,
        leader_id=ctx.image.controller_id,
        leader_epoch=version >> EPOCH_SHIFT,
        high_watermark=version,
        current_voters=[voter],
    )


@api(
    ApiKey.UNREGISTER_BROKER, versions=(0, 0), authorize=on_cluster(AclOperation.ALTER), alone=True
)
async def handle_unregister_broker(
    ctx: RequestContext, request: UnregisterBrokerRequest
) -> UnregisterBrokerResponse:
    """Reject the request: no broker can be unregistered."""
    if request.broker_id not in ctx.image.brokers:
        raise WireError(
            ErrorCode.BROKER_ID_NOT_REGISTERED,
            f"Broker ID {request.broker_id} is not currently registered",
        )
    raise WireError(
        ErrorCode.INVALID_REQUEST,
        f"Broker {request.broker_id} is running and is the only broker of this cluster.",
    )


@api(ApiKey.ADD_RAFT_VOTER, versions=(0, 1), authorize=on_cluster(AclOperation.ALTER), alone=True)
async def handle_add_raft_voter(
    ctx: RequestContext, request: AddRaftVoterRequest
) -> AddRaftVoterResponse:
    raise WireError(ErrorCode.INVALID_REQUEST, ALONE)


@api(
    ApiKey.REMOVE_RAFT_VOTER, versions=(0, 0), authorize=on_cluster(AclOperation.ALTER), alone=True
)
async def handle_remove_raft_voter(
    ctx: RequestContext, request: RemoveRaftVoterRequest
) -> RemoveRaftVoterResponse:
    raise WireError(ErrorCode.INVALID_REQUEST, ALONE)
