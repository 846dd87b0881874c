"""Encodes and decodes control requests and responses: APIs 4, 5 and 6. Pure.

Values from the wire are checked here and nowhere else, because control requests create and delete
logs. An impossible value rejects the whole request with INVALID_REQUEST.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from kbroker.cluster.control_requests import (
    EPOCH_DURING_DELETE,
    LEADER_DURING_DELETE,
    NO_LEADER,
    ControlRequest,
    ControlResponse,
    KnownPartition,
    LeaderAndIsr,
    LedPartition,
    LiveBroker,
    PartitionKey,
    Sender,
    StoppedPartition,
    StopReplica,
    UpdateMetadata,
)
from kbroker.cluster.topic_ids import NO_TOPIC_ID, local_topic_id
from kbroker.cluster.topic_names import PARTITIONS_MAX, name_fault
from kbroker.config.table.rules import SECURITY_PROTOCOLS
from kbroker.errors import ErrorCode, WireError
from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message
from kbroker.protocol.messages.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse
from kbroker.protocol.messages.stop_replica import StopReplicaRequest, StopReplicaResponse
from kbroker.protocol.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse

P = TypeVar("P", LedPartition, KnownPartition, StoppedPartition)

PORT_MAX = 65_535
# BOUND: partitions of a cluster, including those before a named one: an image lists them all.
CLUSTER_PARTITIONS_MAX = 200_000
API_OF: dict[type[ControlRequest], ApiKey] = {
    LeaderAndIsr: ApiKey.LEADER_AND_ISR,
    StopReplica: ApiKey.STOP_REPLICA,
    UpdateMetadata: ApiKey.UPDATE_METADATA,
}
# The first versions in which partitions are grouped by topic, topics have ids, and so on.
LEADER_GROUPED, LEADER_IDS = 2, 5
METADATA_GROUPED, METADATA_IDS = 5, 7
METADATA_LISTENERS, METADATA_RACKS, METADATA_ENDPOINTS = 3, 2, 1
STOP_GROUPED, STOP_EPOCHS = 1, 3


def impossible(what: str) -> WireError:
    return WireError(ErrorCode.INVALID_REQUEST, what)


# -- requests to the wire ------------------------------------------------------------------------


def to_wire(request: ControlRequest, version: int) -> Message:
    """Convert a request to a version of its API. In StopReplica below version 3 all partitions must
    have the same ``delete``: see ``sendable``.
    """
    if isinstance(request, LeaderAndIsr):
        return _leader_and_isr(request, version)
    if isinstance(request, UpdateMetadata):
        return _update_metadata(request, version)
    return _stop_replica(request, version)


def sendable(request: ControlRequest, version: int) -> list[ControlRequest]:
    """Split a request if the version requires it: old ones have one ``delete`` per request."""
    if not isinstance(request, StopReplica) or version >= STOP_EPOCHS:
        return [request]
    deleted = [one for one in request.partitions if one.delete]
    kept = [one for one in request.partitions if not one.delete]
    return [request._replace(partitions=some) for some in (deleted, kept) if some]


def _by_topic(partitions: Iterable[P]) -> dict[str, list[P]]:
    grouped: dict[str, list[P]] = {}
    for one in partitions:
        grouped.setdefault(one.topic, []).append(one)
    return grouped


def _grouped(
    partitions: Iterable[P],
    topic_ids: Mapping[str, bytes],
    topic_state: Callable[..., Any],
    state: Callable[[P], Any],
) -> list[Any]:
    """Partition states grouped by topic."""
    return [
        topic_state(
            topic_name=name,
            topic_id=topic_ids.get(name, NO_TOPIC_ID),
            partition_states=list(map(state, some)),
        )
        for name, some in _by_topic(partitions).items()
    ]


def _leader_and_isr(request: LeaderAndIsr, version: int) -> Message:
    cls = LeaderAndIsrRequest

    def state(partition: LedPartition) -> Any:
        return cls.LeaderAndIsrPartitionState(
            topic_name=partition.topic,
            partition_index=partition.partition,
            controller_epoch=partition.controller_epoch,
            leader=partition.leader,
            leader_epoch=partition.leader_epoch,
            isr=list(partition.isr),
            partition_epoch=partition.partition_epoch,
            replicas=list(partition.replicas),
            adding_replicas=list(partition.adding_replicas),
            removing_replicas=list(partition.removing_replicas),
            is_new=partition.is_new,
        )

    made = cls(**request.sender._asdict())
    if version < LEADER_GROUPED:
        made.ungrouped_partition_states = list(map(state, request.partitions))
    else:
        made.topic_states = _grouped(
            request.partitions, request.topic_ids, cls.LeaderAndIsrTopicState, state
        )
    return made


def _update_metadata(request: UpdateMetadata, version: int) -> Message:
    cls = UpdateMetadataRequest

    def state(partition: KnownPartition) -> Any:
        return cls.UpdateMetadataPartitionState(
            topic_name=partition.topic,
            partition_index=partition.partition,
            controller_epoch=partition.controller_epoch,
            leader=partition.leader,
            leader_epoch=partition.leader_epoch,
            isr=list(partition.isr),
            zk_version=partition.partition_epoch,
            replicas=list(partition.replicas),
            offline_replicas=list(partition.offline_replicas),
        )

    made = cls(**request.sender._asdict())
    if version < METADATA_GROUPED:
        made.ungrouped_partition_states = list(map(state, request.partitions))
    else:
        made.topic_states = _grouped(
            request.partitions, request.topic_ids, cls.UpdateMetadataTopicState, state
        )
    made.live_brokers = [
        _broker(number, broker, version) for number, broker in request.live_brokers.items()
    ]
    return made


def _broker(number: int, broker: LiveBroker, version: int) -> Any:
    cls = UpdateMetadataRequest
    made = cls.UpdateMetadataBroker(id=number, rack=broker.rack)
    if version < METADATA_ENDPOINTS:
        plain = (end for end in broker.endpoints if end[3] == SECURITY_PROTOCOLS[0])
        _, made.v0_host, made.v0_port, _ = next(plain, ("", "", 0, ""))
        return made
    made.endpoints = [
        cls.UpdateMetadataEndpoint(
            port=port,
            host=host,
            listener=listener,
            security_protocol=SECURITY_PROTOCOLS.index(protocol),
        )
        for listener, host, port, protocol in broker.endpoints
    ]
    return made


def _stop_replica(request: StopReplica, version: int) -> Message:
    cls = StopReplicaRequest
    made = cls(**request.sender._asdict())
    if version < STOP_EPOCHS:
        (made.delete_partitions,) = {one.delete for one in request.partitions} or {False}
    if version < STOP_GROUPED:
        made.ungrouped_partitions = [
            cls.StopReplicaPartitionV0(topic_name=one.topic, partition_index=one.partition)
            for one in request.partitions
        ]
        return made
    grouped = _by_topic(request.partitions).items()
    if version < STOP_EPOCHS:
        made.topics = [
            cls.StopReplicaTopicV1(name=name, partition_indexes=[one.partition for one in some])
            for name, some in grouped
        ]
        return made
    state = cls.StopReplicaPartitionState
    made.topic_states = [
        cls.StopReplicaTopicState(
            topic_name=name,
            partition_states=[
                state(
                    partition_index=one.partition,
                    leader_epoch=one.leader_epoch,
                    delete_partition=one.delete,
                )
                for one in some
            ],
        )
        for name, some in grouped
    ]
    return made


# -- requests from the wire ----------------------------------------------------------------------


def from_wire(message: Message, version: int, cluster_id: str) -> ControlRequest:
    """The request in a decoded message. Raises INVALID_REQUEST for impossible values."""
    read: Callable[[Any, int, str], ControlRequest] = _READERS[type(message)]
    return read(message, version, cluster_id)


def _sender(message: Any) -> Sender:
    return Sender(message.controller_id, message.controller_epoch, message.broker_epoch)


def _states(message: Any, version: int, grouped_from: int) -> Iterator[tuple[str, Any]]:
    """All partition states with their topic names."""
    if version < grouped_from:
        yield from ((state.topic_name, state) for state in message.ungrouped_partition_states)
        return
    for topic in message.topic_states:
        yield from ((topic.topic_name, state) for state in topic.partition_states)


def _topic_ids(
    message: Any, version: int, with_ids_from: int, names: Iterable[str], cluster_id: str
) -> dict[str, bytes]:
    ids = {name: local_topic_id(cluster_id, name) for name in dict.fromkeys(names)}
    if version >= with_ids_from:
        topic_ids = {topic.topic_name: topic.topic_id for topic in message.topic_states}
        ids |= {name: topic_ids[name] for name in ids if topic_ids[name] != NO_TOPIC_ID}
    return ids


def _read_leader_and_isr(message: Any, version: int, cluster_id: str) -> LeaderAndIsr:
    partitions = [
        LedPartition(
            name,
            state.partition_index,
            state.controller_epoch,
            state.leader,
            state.leader_epoch,
            state.isr,
            state.partition_epoch,
            state.replicas,
            state.is_new,
            state.adding_replicas,
            state.removing_replicas,
        )
        for name, state in _states(message, version, LEADER_GROUPED)
    ]
    _check_keys(partitions)
    for partition in partitions:
        if (
            partition.leader_epoch < 0
            or partition.leader < NO_LEADER
            or partition.partition_epoch < 0
        ):
            raise impossible(
                f"{partition.topic}-{partition.partition} has leader {partition.leader}, leader"
                f" epoch {partition.leader_epoch} and partition epoch {partition.partition_epoch}"
            )
        _check_brokers(
            partition,
            partition.replicas,
            partition.isr,
            partition.adding_replicas,
            partition.removing_replicas,
        )
    names = (partition.topic for partition in partitions)
    topic_ids = _topic_ids(message, version, LEADER_IDS, names, cluster_id)
    return LeaderAndIsr(_sender(message), partitions, topic_ids)


def _read_update_metadata(message: Any, version: int, cluster_id: str) -> UpdateMetadata:
    partitions = [
        KnownPartition(
            name,
            state.partition_index,
            state.controller_epoch,
            state.leader,
            state.leader_epoch,
            state.isr,
            state.zk_version,
            state.replicas,
            state.offline_replicas,
        )
        for name, state in _states(message, version, METADATA_GROUPED)
    ]
    _check_keys(partitions)
    for partition in partitions:
        if partition.leader < LEADER_DURING_DELETE:
            raise impossible(
                f"{partition.topic}-{partition.partition} has leader {partition.leader}"
            )
        _check_brokers(partition, partition.replicas, partition.isr, partition.offline_replicas)
    brokers = {broker.id: _read_broker(broker, version) for broker in message.live_brokers}
    if len(brokers) != len(message.live_brokers) or min(brokers, default=0) < 0:
        raise impossible("a live broker is named twice or has a negative id")
    names = (partition.topic for partition in partitions)
    topic_ids = _topic_ids(message, version, METADATA_IDS, names, cluster_id)
    return UpdateMetadata(_sender(message), partitions, topic_ids, brokers)


def _read_broker(broker: Any, version: int) -> LiveBroker:
    if version < METADATA_ENDPOINTS:
        plain = SECURITY_PROTOCOLS[0]
        endpoints = [[plain, broker.v0_host, broker.v0_port, plain]]
    else:
        endpoints = []
        for end in broker.endpoints:
            if not 0 <= end.security_protocol < len(SECURITY_PROTOCOLS):
                raise impossible(f"there is no security protocol {end.security_protocol}")
            protocol = SECURITY_PROTOCOLS[end.security_protocol]
            listener = protocol if version < METADATA_LISTENERS else end.listener
            endpoints.append([listener, end.host, end.port, protocol])
    for _, host, port, _ in endpoints:
        if not host or not 0 < port <= PORT_MAX:
            raise impossible(f"broker {broker.id} cannot have the address {host!r}, port {port}")
    return LiveBroker(endpoints, broker.rack if version >= METADATA_RACKS else None)


def _read_stop_replica(message: Any, version: int, cluster_id: str) -> StopReplica:
    if version < STOP_GROUPED:
        delete = message.delete_partitions
        partitions = [
            StoppedPartition(one.topic_name, one.partition_index, -1, delete)
            for one in message.ungrouped_partitions
        ]
    elif version < STOP_EPOCHS:
        delete = message.delete_partitions
        partitions = [
            StoppedPartition(topic.name, number, -1, delete)
            for topic in message.topics
            for number in topic.partition_indexes
        ]
    else:
        partitions = [
            StoppedPartition(name, one.partition_index, one.leader_epoch, one.delete_partition)
            for name, one in _states(message, version, STOP_GROUPED)
        ]
    _check_keys(partitions)
    for one in partitions:
        if one.leader_epoch < EPOCH_DURING_DELETE:
            raise impossible(f"{one.topic}-{one.partition} has leader epoch {one.leader_epoch}")
    return StopReplica(_sender(message), partitions)


_READERS: dict[type[Message], Callable[[Any, int, str], ControlRequest]] = {
    LeaderAndIsrRequest: _read_leader_and_isr,
    UpdateMetadataRequest: _read_update_metadata,
    StopReplicaRequest: _read_stop_replica,
}


def _check_keys(partitions: Collection[P]) -> None:
    """Check topic names and partition numbers, and that none is named twice."""
    for name in dict.fromkeys(one.topic for one in partitions):
        fault = name_fault(name)
        if fault is not None:
            raise impossible(f"topic name {name!r} {fault}")
    for one in partitions:
        if not 0 <= one.partition < PARTITIONS_MAX:
            raise impossible(f"topic {one.topic} cannot have a partition {one.partition}")
    if len({one.key for one in partitions}) != len(partitions):
        raise impossible("a partition is named twice")
    counts: dict[str, int] = {}
    for one in partitions:
        counts[one.topic] = max(counts.get(one.topic, 0), one.partition + 1)
    total = sum(counts.values())
    if total > CLUSTER_PARTITIONS_MAX:
        raise impossible(f"its topics have {total} partitions, {CLUSTER_PARTITIONS_MAX} at most")


def _check_brokers(partition: LedPartition | KnownPartition, *lists: Iterable[int]) -> None:
    for brokers in lists:
        for number in brokers:
            if number < 0:
                raise impossible(f"{partition.topic}-{partition.partition} names broker {number}")
    if len(set(partition.replicas)) != len(partition.replicas) or len(set(partition.isr)) != len(
        partition.isr
    ):
        raise impossible(f"{partition.topic}-{partition.partition} names a replica twice")


# -- responses -----------------------------------------------------------------------------------


def response_to_wire(response: ControlResponse, request: ControlRequest, version: int) -> Message:
    """Build the response. It names every partition, because controllers need successes too."""
    error = int(response.error)
    if isinstance(request, UpdateMetadata):
        return UpdateMetadataResponse(error_code=error)
    codes = {} if error else {one.key: int(ErrorCode.NONE) for one in request.partitions}
    codes |= {key: int(code) for key, code in response.partitions.items()}
    if isinstance(request, StopReplica):
        return StopReplicaResponse(
            error_code=error,
            partition_errors=_partition_errors(
                StopReplicaResponse.StopReplicaPartitionError, codes
            ),
        )
    made = LeaderAndIsrResponse(error_code=error)
    entry = LeaderAndIsrResponse.LeaderAndIsrPartitionError
    if version < LEADER_IDS:
        made.partition_errors = _partition_errors(entry, codes)
        return made
    grouped: dict[str, dict[PartitionKey, int]] = {}
    for key, code in codes.items():
        grouped.setdefault(key[0], {})[key] = code
    made.topics = [
        LeaderAndIsrResponse.LeaderAndIsrTopicError(
            topic_id=request.topic_ids.get(name, NO_TOPIC_ID),
            partition_errors=_partition_errors(entry, of_topic),
        )
        for name, of_topic in grouped.items()
    ]
    return made


def _partition_errors(entry: Any, codes: Mapping[PartitionKey, int]) -> list[Any]:
    return [
        entry(topic_name=name, partition_index=number, error_code=code)
        for (name, number), code in codes.items()
    ]


def response_from_wire(message: Any, request: ControlRequest, version: int) -> ControlResponse:
    """The result in a decoded response to ``request``."""
    codes: dict[PartitionKey, ErrorCode] = {}
    if isinstance(request, LeaderAndIsr) and version >= LEADER_IDS:
        names = {topic_id: name for name, topic_id in request.topic_ids.items()}
        for topic in message.topics:
            name = names.get(topic.topic_id)
            if name is not None:
                codes |= _read_errors(topic.partition_errors, name)
    elif not isinstance(request, UpdateMetadata):
        codes = _read_errors(message.partition_errors)
    return ControlResponse(known_code(message.error_code), codes)


def _read_errors(errors: Iterable[Any], name: str | None = None) -> dict[PartitionKey, ErrorCode]:
    return {
        (name or one.topic_name, one.partition_index): known_code(one.error_code)
        for one in errors
        if one.error_code
    }


def known_code(code: int) -> ErrorCode:
    """The error for a code from another broker, whose version may be newer."""
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def merged(responses: Iterable[ControlResponse]) -> ControlResponse:
    """Merge the responses to the parts of one request, with the first error if there is any."""
    responses = list(responses)
    error = next((a.error for a in responses if a.error), ErrorCode.NONE)
    codes: dict[PartitionKey, ErrorCode] = {}
    for response in responses:
        codes |= response.partitions
    return ControlResponse(error, codes)
