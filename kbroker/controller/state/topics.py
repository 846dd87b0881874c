"""Validates and plans topics: names, partitions, assignments, configs. Raises WireError."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from kbroker.cluster.topic_names import NAME_LENGTH_MAX, PARTITIONS_MAX, name_fault
from kbroker.controller.state.state import ClusterState, TopicState
from kbroker.errors import ConfigError, ErrorCode, WireError
from kbroker.internal_topics import INTERNAL_TOPICS
from kbroker.ipc.calls import Assigned, SettingValue, TopicToCreate
from kbroker.replica_placement import Choose, place_replicas

CHOSEN_BY_BROKER = -1

Assignment = dict[int, list[int]]
ValidateConfig = Callable[[Mapping[str, str]], None]
# Raises WireError unless the topic may have so many partitions on this broker.
CheckRoom = Callable[[str, int], None]


class PlannedTopic(NamedTuple):
    name: str
    topic_id: bytes
    assignment: Assignment
    config: dict[str, str]


def check_name(name: str) -> None:
    """Raises INVALID_TOPIC_EXCEPTION for names that Kafka rejects."""
    fault = name_fault(name)
    if fault is None:
        return
    raise WireError(
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        f"Topic name '{name[:NAME_LENGTH_MAX]}' {fault}: use 1 to {NAME_LENGTH_MAX} letters,"
        " digits, '.', '_' or '-'",
    )


def plan_topic(
    state: ClusterState,
    request: TopicToCreate,
    defaults: Mapping[str, int],
    validate_config: ValidateConfig,
    new_topic_id: Callable[[], bytes],
    cordoned: Collection[int] = (),
    check_room: CheckRoom | None = None,
    choose: Choose = random.randrange,
) -> PlannedTopic:
    """Plan the topic of a CreateTopics entry.

    defaults: partitions and replication_factor of the broker. cordoned: brokers that get a replica
    only where the request names them. check_room: called before there is anything for each
    partition: a request of some bytes may ask for millions. choose: of ``place_replicas``.
    """
    name = request.name
    check_name(name)
    existing = state.topic(name)
    if existing is not None:
        text = f"Topic '{name}' already exists."
        if existing.deleting:
            text = f"Topic '{name}' is being deleted; try again shortly."
        raise WireError(ErrorCode.TOPIC_ALREADY_EXISTS, text)
    other = state.colliding_topic(name)
    if other is not None:
        raise WireError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic '{name}' collides with existing topic '{other}': '.' and '_' are not "
            "distinguished in metric names. Choose another name.",
        )
    if request.assignments:
        if request.num_partitions != -1 or request.replication_factor != -1:
            raise WireError(
                ErrorCode.INVALID_REQUEST,
                "Specify either the number of partitions and the replication factor, or the "
                "replica assignment, but not both.",
            )
        assignment = check_assignment(state, request.assignments, first_partition=0)
    else:
        count = request.num_partitions
        factor = request.replication_factor
        if count == CHOSEN_BY_BROKER:
            count = defaults["partitions"]
        if factor == CHOSEN_BY_BROKER:
            factor = defaults["replication_factor"]
        check_partition_count(count)
        racks = usable_brokers(state, factor, cordoned)
        if check_room is not None:
            check_room(name, count_hosted(state, racks, count, factor))
        assignment = dict(enumerate(place_replicas(racks, count, factor, choose=choose)))
    config = topic_config(request.configs, validate_config)
    return PlannedTopic(name, new_topic_id(), assignment, config)


def check_partition_count(count: int) -> None:
    """Raises INVALID_PARTITIONS if a topic must not have so many."""
    if count < 1:
        raise WireError(
            ErrorCode.INVALID_PARTITIONS,
            f"Number of partitions {count} is not larger than 0: give at least 1, or -1 for the"
            " broker's num.partitions.",
        )
    if count > PARTITIONS_MAX:
        raise WireError(
            ErrorCode.INVALID_PARTITIONS, f"A topic has at most {PARTITIONS_MAX} partitions."
        )


def usable_brokers(
    state: ClusterState, factor: int, cordoned: Collection[int]
) -> dict[int, str | None]:
    """Brokers that may get replicas, with their racks. Raises INVALID_REPLICATION_FACTOR if there
    are too few.
    """
    if factor < 1:
        raise WireError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Replication factor {factor} is not larger than 0: give at least 1, or -1 for the"
            " broker's default.replication.factor.",
        )
    available = len(state.brokers)
    if factor > available:
        raise WireError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Replication factor {factor} is larger than the number of available brokers,"
            f" {available}: use {available} or less, or start more brokers.",
        )
    usable = {
        broker_id: broker.live.rack
        for broker_id, broker in sorted(state.brokers.items())
        if broker_id not in cordoned
    }
    if factor > len(usable):
        # COMPAT: KIP-1066. As in Kafka 4.3, an assignment that names the broker is accepted.
        raise WireError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Replication factor {factor} is larger than the number of brokers with a log directory"
            f" that is not cordoned, {len(usable)}: change cordoned.log.dirs of"
            f" {sorted(set(state.brokers) & set(cordoned))}, or start more brokers.",
        )
    return usable


def topic_config(
    entries: Sequence[SettingValue], validate_config: ValidateConfig
) -> dict[str, str]:
    """The configs of a new topic. INVALID_CONFIG; INVALID_REQUEST if one is named twice."""
    config: dict[str, str] = {}
    for key, value in entries:
        if value is None:
            raise WireError(
                ErrorCode.INVALID_CONFIG,
                f"Null is not a value for '{key}': leave the setting out to use its default.",
            )
        if key in config:
            raise WireError(ErrorCode.INVALID_REQUEST, f"Setting '{key}' is given twice.")
        config[key] = value
    try:
        validate_config(config)
    except ConfigError as error:
        raise WireError(ErrorCode.INVALID_CONFIG, error.client_text) from error
    return config


def count_hosted(
    state: ClusterState, racks: Mapping[int, str | None], count: int, factor: int
) -> int:
    """How many of these partitions ``place_replicas`` puts on this broker, at least: those that it
    leads, and as a follower as many for each other replica if racks have no say in it.
    """
    if state.broker_id not in racks:
        return 0
    return count // len(racks) * (factor if len(set(racks.values())) == 1 else 1)


def check_assignment(
    state: ClusterState,
    assignments: Sequence[Assigned],
    first_partition: int,
    factor: int | None = None,
) -> Assignment:
    """Validate a client's own assignment. Raises INVALID_REPLICA_ASSIGNMENT with the reason."""

    def reject(text: str) -> WireError:
        return WireError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)

    assignment: Assignment = {}
    for number, replicas in assignments:
        if number in assignment:
            raise reject(f"Partition {number} is assigned twice.")
        if not replicas:
            raise reject(f"Partition {number} has no replica.")
        if len(set(replicas)) != len(replicas):
            raise reject(f"Partition {number} lists a broker twice: {replicas}.")
        unknown = [broker for broker in replicas if broker not in state.brokers]
        if unknown:
            raise reject(
                f"Partition {number} is assigned to brokers that are not available: {unknown};"
                f" available are {sorted(state.brokers)}."
            )
        if factor is None:
            factor = len(replicas)
        if len(replicas) != factor:
            raise reject(
                f"Partition {number} has {len(replicas)} replicas, but others have {factor}."
            )
        assignment[number] = list(replicas)
    expected = range(first_partition, first_partition + len(assignment))
    if sorted(assignment) != list(expected):
        raise reject(
            f"Partitions {expected.start} to {expected.stop - 1} must be assigned without gaps."
        )
    check_partition_count(expected.stop)
    return dict(sorted(assignment.items()))


def plan_partitions(
    state: ClusterState,
    name: str,
    count: int,
    assignments: Sequence[list[int]] | None,
    cordoned: Collection[int] = (),
    check_room: CheckRoom | None = None,
    choose: Choose = random.randrange,
) -> Assignment:
    """The partitions to add to reach ``count``.

    assignments: the replicas of each new partition in order, None to have them chosen. cordoned,
    check_room, choose: as for ``plan_topic``.
    """
    topic = existing_topic(state, name)
    if name in INTERNAL_TOPICS:
        # Their number determines which partition has a group's offsets, or a transactional id's
        # state.
        raise WireError(
            ErrorCode.INVALID_PARTITIONS,
            f"The number of partitions of '{name}' cannot be changed: coordinators would no "
            "longer find their records.",
        )
    if any(partition.adding or partition.removing for partition in topic.partitions):
        raise WireError(
            ErrorCode.REASSIGNMENT_IN_PROGRESS,
            f"A partition reassignment is in progress for the topic '{name}'.",
        )
    current = len(topic.partitions)
    if count < current:
        raise WireError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {name} currently has {current} partition(s); {count} would not be an"
            " increase.",
        )
    if count == current:
        raise WireError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {current} partition(s).")
    check_partition_count(count)
    factor = len(topic.partitions[0].replicas)
    if assignments is None:
        racks = usable_brokers(state, factor, cordoned)
        if check_room is not None:
            check_room(name, count_hosted(state, racks, count - current, factor))
        existing = [partition.replicas for partition in topic.partitions]
        added = place_replicas(racks, count - current, factor, existing=existing, choose=choose)
        return dict(enumerate(added, current))
    if len(assignments) != count - current:
        raise WireError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{count - current} partitions would be added, but {len(assignments)} are assigned.",
        )
    numbered = [Assigned(current + index, replicas) for index, replicas in enumerate(assignments)]
    return check_assignment(state, numbered, current, factor)


def existing_topic(state: ClusterState, name: str) -> TopicState:
    """The topic. Raises UNKNOWN_TOPIC_OR_PARTITION if it is unknown or being deleted."""
    topic = state.topic(name)
    if topic is None or topic.deleting:
        raise WireError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"This server does not host topic '{name}'."
        )
    return topic
