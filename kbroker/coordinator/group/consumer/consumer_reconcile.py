"""Moves a member from its current assignment to its target assignment.

A member first gives up what it should no longer have, and says so in a heartbeat. Only then does it
move to the target's epoch and get the partitions that are free. Partitions that other members still
hold it gets later, each when its holder has released it. So no partition ever has two owners, and
no member stops consuming what it keeps. Source: KIP-848, "Reconciliation of the group".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from typing import Any

from kbroker.coordinator.group.assignors import Assignment
from kbroker.coordinator.group.consumer.consumer_member import (
    STABLE,
    UNRELEASED_PARTITIONS,
    UNREVOKED_PARTITIONS,
    ConsumerGroupMember,
    Owned,
)
from kbroker.errors import ErrorCode, WireError


def reconcile(
    member: ConsumerGroupMember,
    target_epoch: int,
    target: Assignment,
    *,
    subscribed: AbstractSet[bytes],
    is_new_subscription: bool,
    is_free: Callable[[bytes, int], bool],
    reported: Iterable[Any] | None,
) -> ConsumerGroupMember:
    """The member after its next step; the same object if there is no step.

    subscribed: ids of the existing topics it subscribes to. is_new_subscription: that has just
        changed, so it must revoke partitions of other topics without waiting for a new target.
    is_free: whether a partition (topic id, number) has no owner, or this member is its owner.
    reported: what the member says it owns, None if it did not say.

    Raises FENCED_MEMBER_EPOCH for a member in a state that a newer broker wrote.
    """
    if member.state == STABLE:
        if member.epoch == target_epoch:
            if is_new_subscription:
                return _drop_unsubscribed(member, subscribed, reported)
            return member
    elif member.state == UNREVOKED_PARTITIONS:
        if _owns_any(reported, member.revoking):
            if is_new_subscription:
                return _drop_unsubscribed(member, subscribed, reported)
            return member
    elif member.state != UNRELEASED_PARTITIONS:
        if reported is None or any(True for _ in reported):
            text = "the state of the member is unknown; it must revoke all its partitions"
            raise WireError(ErrorCode.FENCED_MEMBER_EPOCH, text)
        member = member.with_(epoch=target_epoch)
    return _advance(member, target_epoch, target, subscribed, is_free, reported)


def _advance(
    member: ConsumerGroupMember,
    target_epoch: int,
    target: Assignment,
    subscribed: AbstractSet[bytes],
    is_free: Callable[[bytes, int], bool],
    reported: Iterable[Any] | None,
) -> ConsumerGroupMember:
    assigned: dict[bytes, dict[int, int]] = {}
    revoking: dict[bytes, dict[int, int]] = {}
    gained: dict[bytes, list[int]] = {}
    waits = False
    for topic_id in target.keys() | member.assigned.keys():
        wanted = target.get(topic_id, frozenset()) if topic_id in subscribed else frozenset()
        had = member.assigned.get(topic_id, {})
        kept = {p: epoch for p, epoch in had.items() if p in wanted}
        if kept:
            assigned[topic_id] = kept
        if len(kept) < len(had):
            revoking[topic_id] = {p: epoch for p, epoch in had.items() if p not in wanted}
        if len(kept) < len(wanted):
            missing = [p for p in wanted if p not in kept]
            free = [p for p in missing if is_free(topic_id, p)]
            waits = waits or len(free) < len(missing)
            if free:
                gained[topic_id] = free
    if revoking and _owns_any(reported, revoking):
        # The member stays in its epoch until it has revoked its partitions.
        return member.with_(
            state=UNREVOKED_PARTITIONS,
            previous_epoch=member.epoch,
            assigned=assigned,
            revoking=revoking,
        )
    for topic_id, free in gained.items():
        assigned.setdefault(topic_id, {}).update(dict.fromkeys(free, target_epoch))
    return member.with_(
        state=UNRELEASED_PARTITIONS if waits else STABLE,
        epoch=target_epoch,
        previous_epoch=member.epoch,
        assigned=assigned,
        revoking={},
    )


def _drop_unsubscribed(
    member: ConsumerGroupMember, subscribed: AbstractSet[bytes], reported: Iterable[Any] | None
) -> ConsumerGroupMember:
    """Revoke partitions of topics that the member no longer subscribes to; it keeps its epoch."""
    dropped = {t: p for t, p in member.assigned.items() if t not in subscribed}
    if not dropped:
        return member
    assigned = {t: p for t, p in member.assigned.items() if t in subscribed}
    revoking = dict(member.revoking)
    for topic_id, partitions in dropped.items():
        revoking[topic_id] = {**revoking.get(topic_id, {}), **partitions}
    if _owns_any(reported, revoking):
        return member.with_(
            state=UNREVOKED_PARTITIONS,
            previous_epoch=member.epoch,
            assigned=assigned,
            revoking=revoking,
        )
    # The member has revoked them before it was asked to.
    return member.with_(previous_epoch=member.epoch, assigned=assigned)


def _owns_any(reported: Iterable[Any] | None, revoking: Owned) -> bool:
    """Whether the member still owns any of these partitions; True if it does not report them."""
    if reported is None:
        return True
    for topic in reported:
        held = revoking.get(topic.topic_id)
        if held and not held.keys().isdisjoint(topic.partitions):
            return True
    return False
