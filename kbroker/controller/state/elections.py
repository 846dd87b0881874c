"""Leader election: leader and ISR of a partition after brokers have joined or failed. Pure.

Each function takes a partition as it is and returns what it becomes, None if that is no change.
Whatever changes here begins a leader epoch, also when the leader stays: replicas that have not
heard of the change are told apart from those that have. The partition epoch is for who writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from kbroker.cluster.control_requests import NO_LEADER, PartitionKey
from kbroker.controller.state.state import ClusterState, PartitionState, without_state
from kbroker.controller.state.topics import Assignment

# Whether a broker may lead.
IsLive = Callable[[int], bool]
FIRST_LEADER_EPOCH = 0


def first_state(replicas: list[int], is_live: IsLive) -> PartitionState:
    """The state of a new partition: its first live replica leads, and all live replicas are in
    sync. Without a live replica it gets no state.
    """
    live = [broker_id for broker_id in replicas if is_live(broker_id)]
    if not live:
        return without_state(replicas)
    return PartitionState(live[0], FIRST_LEADER_EPOCH, live, replicas)


def first_states(
    state: ClusterState, name: str, assignment: Assignment
) -> dict[int, PartitionState]:
    """The first states of new partitions, by number."""
    return {
        number: first_state(replicas, _live_at(state, (name, number)))
        for number, replicas in assignment.items()
    }


def settle(
    state: ClusterState, key: PartitionKey, old: PartitionState, *, may_be_unclean: bool
) -> PartitionState | None:
    """Elect a leader and shrink the ISR according to which replicas are live.

    A leader that has failed is replaced, and failed replicas leave the ISR. While no member of the
    ISR is live, the ISR stays as it is: the first member to return has all committed records.
    may_be_unclean: any live replica may lead then, and records that it lacks are lost.
    """
    is_live = _live_at(state, key)
    if not old.is_stored:
        new = first_state(old.replicas, is_live)
        return new if new.is_stored else None
    if state.has_replica(old.leader, key):
        return _without_absent(state, key, old)
    if _is_only_failed(state, old):
        return None
    in_sync = [broker_id for broker_id in old.isr if is_live(broker_id)]
    candidates = [broker_id for broker_id in old.replicas if broker_id in in_sync]
    if candidates:
        # One that may have lost records would ask the others for them first.
        leader = min(candidates, key=lambda broker_id: state.brokers[broker_id].is_suspect)
        return _next(old, leader, in_sync)
    if may_be_unclean:
        live = [broker_id for broker_id in old.replicas if is_live(broker_id)]
        if live:
            return _next(old, live[0], live[:1])
    if old.leader == NO_LEADER:
        return None
    return _next(old, NO_LEADER, _still_in_sync(state, key, old))


def _without_absent(
    state: ClusterState, key: PartitionKey, old: PartitionState
) -> PartitionState | None:
    """Shrink the ISR to live replicas; the leader stays."""
    isr = _still_in_sync(state, key, old)
    return None if isr == old.isr else _next(old, old.leader, isr)


def _still_in_sync(state: ClusterState, key: PartitionKey, old: PartitionState) -> list[int]:
    return [b for b in old.isr if state.has_replica(b, key)] or old.isr


def _is_only_failed(state: ClusterState, old: PartitionState) -> bool:
    """Whether the only replica is in a failed log directory of a live broker.

    No other replica could lead; the broker itself tells clients that the directory is offline.
    """
    return old.replicas == [old.leader] and old.leader in state.brokers


def prefer(state: ClusterState, key: PartitionKey, old: PartitionState) -> PartitionState | None:
    """Elect the preferred leader, if it is in sync."""
    preferred = old.replicas[0]
    if old.leader == preferred or preferred not in old.isr:
        return None
    if not state.is_live(preferred, key):
        return None
    return _next(old, preferred, old.isr)


def hand_over(
    state: ClusterState, key: PartitionKey, old: PartitionState, leaving: Collection[int]
) -> PartitionState | None:
    """Move leadership away from brokers that shut down, and remove them from the ISR.

    If no other replica can lead, the leader stays until it has stopped.
    """
    isr = [broker_id for broker_id in old.isr if broker_id not in leaving]
    if old.leader not in leaving:
        return None if not isr or isr == old.isr else _next(old, old.leader, isr)
    heirs = [b for b in old.replicas if b in isr and state.has_replica(b, key)]
    return _next(old, heirs[0], isr) if heirs else None


def among(
    state: ClusterState, key: PartitionKey, old: PartitionState, targets: Iterable[int]
) -> PartitionState | None:
    """The first of ``targets`` that is in sync becomes leader; the ISR does not change."""
    for broker_id in targets:
        if broker_id in old.isr and state.is_live(broker_id, key):
            return _next(old, broker_id, old.isr)
    return None


def renew(old: PartitionState) -> PartitionState:
    """The same state in a new leader epoch, so that the leader receives it again."""
    return _next(old, old.leader, old.isr)


def _next(old: PartitionState, leader: int, isr: list[int]) -> PartitionState:
    return old._replace(leader=leader, leader_epoch=old.leader_epoch + 1, isr=isr)


def _live_at(state: ClusterState, key: PartitionKey) -> IsLive:
    return lambda broker_id: state.is_live(broker_id, key)
