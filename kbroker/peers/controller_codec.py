"""Encodes and decodes requests to the controller and its responses: APIs 7 and 56. Pure.

As in ``control_codec``, what comes from the wire is checked here: INVALID_REQUEST for a request
that no broker asks, and DecodeError for a response that lacks partitions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kbroker.cluster.control_requests import PartitionKey
from kbroker.cluster.controller_requests import (
    AlterIsr,
    AlterIsrResponse,
    ControlledShutdown,
    ControllerRequest,
    ControllerResponse,
    ShutdownResponse,
)
from kbroker.errors import ErrorCode
from kbroker.ipc.calls import IsrResult, IsrState, WantedIsr
from kbroker.peers.control_codec import impossible, known_code
from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message
from kbroker.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from kbroker.protocol.messages.controlled_shutdown import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
)
from kbroker.protocol.primitives import DecodeError

API_OF: dict[type[ControllerRequest], ApiKey] = {
    ControlledShutdown: ApiKey.CONTROLLED_SHUTDOWN,
    AlterIsr: ApiKey.ALTER_PARTITION,
}


# -- requests ------------------------------------------------------------------------------------


def request_to_wire(request: ControllerRequest) -> Message:
    """Convert to the wire; the fields are the same in every version that is sent."""
    if isinstance(request, ControlledShutdown):
        return ControlledShutdownRequest(**request._asdict())
    cls = AlterPartitionRequest
    topics: dict[str, list[Any]] = {}
    for wanted in request.partitions:
        topics.setdefault(wanted.topic, []).append(
            cls.PartitionData(
                partition_index=wanted.partition,
                leader_epoch=wanted.leader_epoch,
                new_isr=list(wanted.isr),
                partition_epoch=wanted.partition_epoch,
            )
        )
    return cls(
        broker_id=request.broker_id,
        broker_epoch=request.broker_epoch,
        topics=[cls.TopicData(topic_name=name, partitions=some) for name, some in topics.items()],
    )


def request_from_wire(message: Any) -> ControllerRequest:
    """The request in a decoded message. Raises INVALID_REQUEST for impossible values."""
    if isinstance(message, ControlledShutdownRequest):
        return ControlledShutdown(message.broker_id, message.broker_epoch)
    wanted = [
        WantedIsr(
            topic.topic_name,
            one.partition_index,
            one.leader_epoch,
            one.new_isr,
            one.partition_epoch,
        )
        for topic in message.topics
        for one in topic.partitions
    ]
    if len({one.key for one in wanted}) != len(wanted):
        raise impossible("a partition is named twice")
    return AlterIsr(message.broker_id, message.broker_epoch, wanted)


# -- responses -----------------------------------------------------------------------------------


def response_to_wire(response: ControllerResponse) -> Message:
    """The response."""
    if isinstance(response, ShutdownResponse):
        row = ControlledShutdownResponse.RemainingPartition
        return ControlledShutdownResponse(
            error_code=int(response.error),
            remaining_partitions=[
                row(topic_name=name, partition_index=number) for name, number in response.remaining
            ],
        )
    cls = AlterPartitionResponse
    topics: dict[str, list[Any]] = {}
    for (name, number), (error, state) in response.partitions.items():
        made = cls.PartitionData(partition_index=number, error_code=int(error))
        if state is not None:
            made.leader_id = state.leader
            made.leader_epoch = state.leader_epoch
            made.isr = list(state.isr)
            made.partition_epoch = state.partition_epoch
        topics.setdefault(name, []).append(made)
    return cls(
        error_code=int(response.error),
        topics=[cls.TopicData(topic_name=name, partitions=some) for name, some in topics.items()],
    )


def response_from_wire(message: Any, request: ControllerRequest) -> ControllerResponse:
    """The result in a decoded response to ``request``. Raises DecodeError if it is incomplete."""
    error = known_code(message.error_code)
    if isinstance(request, ControlledShutdown):
        rows = message.remaining_partitions
        return ShutdownResponse(error, tuple((one.topic_name, one.partition_index) for one in rows))
    results = dict(_altered(message.topics))
    if error is ErrorCode.NONE:
        for wanted in request.partitions:
            if wanted.key not in results:
                raise DecodeError(
                    f"the AlterIsr response has no result for {wanted.topic}-{wanted.partition}"
                )
    return AlterIsrResponse(error, results)


def _altered(topics: Iterable[Any]) -> Iterable[tuple[PartitionKey, IsrResult]]:
    for topic in topics:
        for one in topic.partitions:
            key, error = (topic.topic_name, one.partition_index), known_code(one.error_code)
            state = IsrState(one.leader_id, one.leader_epoch, one.isr, one.partition_epoch)
            yield key, IsrResult(error, state if error is ErrorCode.NONE else None)
