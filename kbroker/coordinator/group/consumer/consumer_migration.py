"""Groups move between the classic and the consumer protocol while they are in use (KIP-848).

Up: a consumer joins a group of classic members with the consumer protocol. The classic members keep
what they have, as members that speak the classic protocol in a group of the new kind. Down: the
last member that speaks the consumer protocol leaves, or a classic one takes its place.
``group.consumer.migration.policy`` says which direction is allowed.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from kbroker.coordinator.group import subscription
from kbroker.coordinator.group.assignors import Assignment
from kbroker.coordinator.group.classic.classic_group import ClassicGroup
from kbroker.coordinator.group.classic.classic_member import ClassicGroupMember as ClassicMember
from kbroker.coordinator.group.consumer import consumer_records
from kbroker.coordinator.group.consumer.consumer_group import ConsumerGroup
from kbroker.coordinator.group.consumer.consumer_member import ConsumerGroupMember, Owned
from kbroker.coordinator.records.offsets_topic import (
    ConsumerGroupMemberMetadataValue,
    GroupMetadataKey,
)
from kbroker.errors import ErrorCode, WireError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kbroker.cluster.image import ClusterImage
    from kbroker.coordinator.machine import Host

logger = logging.getLogger(__name__)

UPGRADE, DOWNGRADE = ("upgrade", "bidirectional"), ("downgrade", "bidirectional")


# -- up -------------------------------------------------------------------------------------------


def check_upgrade(host: Host, group: ClassicGroup) -> None:
    """Raise GROUP_ID_NOT_FOUND, Kafka's code for it, if the group cannot change its protocol."""
    reason = ""
    if host.config["group.consumer.migration.policy"] not in UPGRADE:
        reason = "group.consumer.migration.policy does not allow it"
    elif group.protocol_type != subscription.CONSUMER_PROTOCOL_TYPE:
        reason = f"its protocol type is {group.protocol_type!r}"
    elif len(group.members) > host.config["group.consumer.max.size"]:
        reason = f"{len(group.members)} members are more than group.consumer.max.size"
    if reason:
        text = f"group {group.group_id} does not migrate to the consumer protocol: {reason}"
        logger.info("%s", text, extra={"event": "consumer_migration.not-migrated"})
        raise WireError(ErrorCode.GROUP_ID_NOT_FOUND, text)


def upgraded(host: Host, group: ClassicGroup) -> ConsumerGroup:
    """The group as one of the consumer protocol, with the assignments its members have.

    The caller still has to keep it. Raises GROUP_ID_NOT_FOUND if a member's data cannot be read.
    """
    made = ConsumerGroup(group.group_id)
    made.epoch = made.target_epoch = group.generation
    taken: set[tuple[bytes, int]] = set()
    for old in group.members.values():
        metadata = old.protocols.get(group.protocol or "")
        if metadata is None:
            metadata = next(iter(old.protocols.values()), b"")
        subscribed = subscription.subscription(metadata)
        assigned = subscription.assignment(old.assignment)
        if subscribed is None or assigned is None:
            text = f"group {group.group_id} does not migrate to the consumer protocol: the data of "
            text += f"member {old.member_id} is not that of a consumer"
            logger.warning("%s", text, extra={"event": "consumer_migration.not-migrated"})
            raise WireError(ErrorCode.GROUP_ID_NOT_FOUND, text)
        owned = _owned(host.image, assigned.assigned_partitions, group.generation, taken)
        member = ConsumerGroupMember(old.member_id).with_(
            epoch=group.generation,
            previous_epoch=group.generation,
            instance_id=old.instance_id,
            rack_id=getattr(subscribed, "rack_id", None) or None,
            rebalance_timeout_ms=old.rebalance_timeout_ms,
            client_id=old.client_id,
            client_host=old.client_host,
            topics=frozenset(subscribed.topics),
            classic=classic_metadata(old.session_timeout_ms, old.protocols),
            assigned=owned,
        )
        made.put(member)
        made.targets[member.member_id] = {t: frozenset(p) for t, p in owned.items()}
    logger.info(
        "group %s: migrates to the consumer protocol with %d classic members",
        group.group_id,
        len(made.members),
    )
    return made


def upgrade_records(group: ConsumerGroup, wall_ms: int) -> list[consumer_records.Record]:
    """The records that replace the classic group's."""
    group_id = group.group_id
    members = group.members.values()
    return [
        (GroupMetadataKey(group=group_id), None),
        *(consumer_records.metadata(group_id, member) for member in members),
        consumer_records.group_epoch(group_id, group.epoch, group.metadata_hash),
        *(consumer_records.target(group_id, m, t) for m, t in group.targets.items()),
        consumer_records.target_epoch(group_id, group.target_epoch, wall_ms),
        *(consumer_records.assignment(group_id, member) for member in members),
    ]


def classic_metadata(session_timeout_ms: int, protocols: Mapping[str, bytes]) -> Any:
    """The fields of the classic protocol in a member's record."""
    cls = ConsumerGroupMemberMetadataValue
    return cls.ClassicMemberMetadata(
        session_timeout_ms=session_timeout_ms,
        supported_protocols=[
            cls.ClassicProtocol(name=name, metadata=bytes(metadata))
            for name, metadata in protocols.items()
        ],
    )


def _owned(
    image: ClusterImage, topics: Iterable[Any], epoch: int, taken: set[tuple[bytes, int]]
) -> Owned:
    """Partitions by topic id. A partition that the leader gave to two members is the first's."""
    owned: dict[bytes, dict[int, int]] = {}
    for topic in topics:
        known = image.topics.get(topic.topic)
        if known is None:
            continue
        for partition in topic.partitions:
            if (known.topic_id, partition) not in taken:
                taken.add((known.topic_id, partition))
                owned.setdefault(known.topic_id, {})[partition] = epoch
    return owned


# -- down -----------------------------------------------------------------------------------------


def may_downgrade(
    host: Host, group: ConsumerGroup, gone: list[ConsumerGroupMember], count: int
) -> bool:
    """Whether the group becomes a classic one of ``count`` members once these have left."""
    gone_classic = sum(member.is_classic for member in gone)
    if count < 1 or gone_classic == len(gone):
        return False
    if group.classic_count - gone_classic != len(group.members) - len(gone):
        return False
    reason = ""
    if host.config["group.consumer.migration.policy"] not in DOWNGRADE:
        reason = "group.consumer.migration.policy does not allow it"
    elif count > host.config["group.max.size"]:
        reason = f"{count} members are more than group.max.size"
    if reason:
        logger.info(
            "group %s: does not migrate to the classic protocol: %s", group.group_id, reason
        )
    return not reason


def downgraded_member(
    image: ClusterImage, member: ConsumerGroupMember, target: Assignment
) -> ClassicMember:
    """A member as one of a classic group, with its target as the assignment."""
    assert member.classic is not None, member.member_id
    protocols = {p.name: bytes(p.metadata) for p in member.classic.supported_protocols}
    return ClassicMember(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        max(member.rebalance_timeout_ms, 0),
        member.classic.session_timeout_ms,
        protocols,
        encoded(image, target, member),
    )


def encoded(
    image: ClusterImage, owned: Mapping[bytes, Iterable[int]], member: ConsumerGroupMember
) -> bytes:
    """Partitions as the classic protocol's assignment."""
    assert member.classic is not None, member.member_id
    topics = {
        image.topics_by_id[topic_id].name: sorted(partitions)
        for topic_id, partitions in owned.items()
        if topic_id in image.topics_by_id
    }
    first = next(iter(member.classic.supported_protocols), None)
    return subscription.encoded_assignment(topics, bytes(first.metadata) if first else b"")
