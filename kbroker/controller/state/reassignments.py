"""How a partition gets from its replicas to others (KIP-455). Pure.

A reassignment is in the topic's document: ``replicas`` are the target replicas and then those to
remove, ``adding`` and ``removing`` say which of them are new and which will go. Without these two a
partition is not being reassigned. As in Kafka, it ends when all target replicas are in sync; until
then another target, or the original replicas, may take its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kbroker.cluster.control_requests import NO_LEADER, PartitionKey
from kbroker.controller.state.state import ClusterState, PartitionState
from kbroker.errors import ErrorCode, WireError


def is_reassigned(partition: PartitionState) -> bool:
    """Whether the partition is being reassigned."""
    return bool(partition.adding or partition.removing)


def origin(partition: PartitionState) -> list[int]:
    """The replicas before the reassignment."""
    return [broker_id for broker_id in partition.replicas if broker_id not in partition.adding]


def target(partition: PartitionState) -> list[int]:
    """The replicas after the reassignment."""
    return [broker_id for broker_id in partition.replicas if broker_id not in partition.removing]


def assign(partition: PartitionState, replicas: Sequence[int]) -> PartitionState:
    """The partition with this target instead of any earlier one."""
    before = origin(partition)
    every = list(dict.fromkeys([*replicas, *before]))
    return partition._replace(
        replicas=every,
        adding=[broker_id for broker_id in every if broker_id not in before],
        removing=[broker_id for broker_id in every if broker_id not in replicas],
    )


def is_complete(partition: PartitionState) -> bool:
    """Whether all target replicas are in sync."""
    return set(target(partition)) <= set(partition.isr)


def left_in_sync(
    state: ClusterState, key: PartitionKey, replicas: Sequence[int] | None
) -> list[int]:
    """The in-sync replicas that stay if the next step to ``replicas`` (None: the original ones)
    removes others from the ISR; none if it removes nobody.
    """
    old = state.partition(key)
    if old is None:
        return []
    new = step(state, key, old, origin(old) if replicas is None else replicas)
    return new.isr if new is not None and len(new.isr) < len(old.isr) else []


def step(
    state: ClusterState, key: PartitionKey, old: PartitionState, replicas: Sequence[int]
) -> PartitionState | None:
    """The next state of a partition whose target is ``replicas``; None if that is the present one,
    or none of the remaining replicas can lead.

    Each step begins a leader epoch. The step that completes the reassignment removes the replicas
    that are not among the target from the ISR, too.
    """
    new = assign(old, replicas)
    if not old.is_stored:
        # Nobody has a log of it.
        return _unless_same(old, _completed(new))
    is_last = is_complete(new) or not is_reassigned(new)
    if is_last:
        new = _completed(new)
    new = new._replace(isr=[broker_id for broker_id in new.isr if broker_id in new.replicas])
    if _unless_same(old, new) is None:
        return None
    must_elect = old.leader not in new.replicas or not state.has_replica(old.leader, key)
    if must_elect and old.leader != NO_LEADER:
        heirs = [b for b in target(new) + new.replicas if b in new.isr and state.is_live(b, key)]
        if not heirs:
            return None
        new = new._replace(leader=heirs[0])
    return new._replace(leader_epoch=old.leader_epoch + 1) if new.isr else None


def _completed(partition: PartitionState) -> PartitionState:
    return partition._replace(replicas=target(partition), adding=(), removing=())


def _unless_same(old: PartitionState, new: PartitionState) -> PartitionState | None:
    is_same = (
        (old.replicas, list(old.adding), list(old.removing), old.isr)
        == (new.replicas, list(new.adding), list(new.removing), new.isr)
    )  # fmt: skip
    return None if is_same else new


def reason_against(
    state: ClusterState,
    key: PartitionKey,
    replicas: Sequence[int] | None,
    *,
    must_live: bool = True,
) -> WireError | None:
    """Why the partition cannot be reassigned to ``replicas`` (None: to cancel).

    must_live: reject new replicas on brokers that are not live. COMPAT: Kafka does so for requests,
    and not for ``/admin/reassign_partitions``.
    """
    partition, topic = state.partition(key), state.topic(key[0])
    text = ""
    if replicas is not None:
        known = [] if partition is None else origin(partition)
        dead = [b for b in replicas if b not in known and b not in state.brokers]
        if not replicas:
            text = "Empty replica list specified in partition reassignment."
        elif len(set(replicas)) < len(replicas):
            text = f"Duplicate replica ids in partition reassignment replica list: {replicas}"
        elif min(replicas) < 0:
            text = f"Invalid broker id in replica list: {replicas}"
        elif dead and must_live:
            text = (
                f"Replica assignment has brokers that are not alive. Replica list: {dead}, "
                f"live broker list: {sorted(state.brokers)}"
            )
    if text:
        return WireError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
    if replicas is None and (partition is None or not is_reassigned(partition)):
        return WireError(
            ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"{key[0]}-{key[1]} is not being reassigned."
        )
    if partition is None or topic is None:
        return WireError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
    if topic.deleting:
        return WireError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The topic is being deleted.")
    return None


def resized(
    state: ClusterState, wanted: Mapping[PartitionKey, Sequence[int] | None]
) -> dict[PartitionKey, WireError | None]:
    """The errors of partitions that would have more or fewer replicas."""
    errors: dict[PartitionKey, WireError | None] = {}
    for key, replicas in wanted.items():
        partition = state.partition(key)
        if replicas is None or partition is None or len(replicas) == len(origin(partition)):
            continue
        count = len(origin(partition))
        text = f"The replication factor is changed from {count} to {len(replicas)}"
        errors[key] = WireError(ErrorCode.INVALID_REPLICATION_FACTOR, text)
    return errors
