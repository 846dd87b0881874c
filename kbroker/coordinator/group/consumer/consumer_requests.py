"""Checks of heartbeats and descriptions of groups, without state."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from kbroker.coordinator.group.consumer.consumer_member import (
    JOIN_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerGroupMember,
    Owned,
)
from kbroker.errors import ErrorCode, WireError
from kbroker.protocol.messages.consumer_group_describe import ConsumerGroupDescribeResponse
from kbroker.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kbroker.cluster.image import TopicImage
    from kbroker.coordinator.group.consumer.consumer_group import ConsumerGroup

logger = logging.getLogger(__name__)

# From this version on members choose their own id (KIP-1082).
FIRST_OWN_ID = 1

MEMBER_TYPE_CLASSIC, MEMBER_TYPE_CONSUMER = 0, 1


def check_heartbeat(
    request: ConsumerGroupHeartbeatRequest, version: int, offered_assignors: list[str]
) -> None:
    """Raise INVALID_REQUEST or UNSUPPORTED_ASSIGNOR for a heartbeat that no group accepts."""
    epoch = request.member_epoch
    if version >= FIRST_OWN_ID or epoch != JOIN_EPOCH:
        _reject_blank(request.member_id, "MemberId")
    _reject_blank(request.group_id, "GroupId")
    _reject_blank(request.instance_id, "InstanceId")
    _reject_blank(request.rack_id, "RackId")
    if epoch == JOIN_EPOCH:
        if request.rebalance_timeout_ms == -1:
            raise _invalid("a joining member must set RebalanceTimeoutMs")
        if request.topic_partitions is None or request.topic_partitions:
            raise _invalid("a joining member must set TopicPartitions to an empty list")
        # Both may be empty: such a member joins and gets no partitions.
        if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            text = "a joining member must set SubscribedTopicNames or SubscribedTopicRegex"
            raise _invalid(text)
    elif epoch == STATIC_LEAVE_EPOCH:
        if request.instance_id is None:
            raise _invalid("only a static member leaves with epoch -2, but InstanceId is missing")
    elif epoch < STATIC_LEAVE_EPOCH:
        raise _invalid(f"MemberEpoch {epoch} is not valid")
    wanted = request.server_assignor
    if wanted is not None and wanted not in offered_assignors:
        text = f"unknown assignor {wanted!r}; offered are {', '.join(offered_assignors)}"
        raise WireError(ErrorCode.UNSUPPORTED_ASSIGNOR, text)


def _invalid(text: str) -> WireError:
    return WireError(ErrorCode.INVALID_REQUEST, text)


def _reject_blank(value: str | None, name: str) -> None:
    if value is not None and not value.strip():
        raise _invalid(f"{name} is blank")


def check_epoch(
    group_id: str, member: ConsumerGroupMember, epoch: int, reported: list[Any] | None
) -> None:
    """Raise FENCED_MEMBER_EPOCH unless the request has the member's epoch.

    Allowed besides: 0, by which it says that it has given up everything and starts over; and its
    previous epoch, when it has nothing but what it was assigned since: the response that told it of
    its new epoch may have been lost.
    """
    if epoch in (member.epoch, JOIN_EPOCH):
        return
    if epoch == member.previous_epoch and epoch < member.epoch:
        if reported is not None and _is_within(reported, member.assigned):
            return
    text = f"epoch {epoch} is not the member's ({member.epoch}); it must revoke all its partitions "
    text += "and join again"
    logger.info("group %s: member %s is fenced, %s", group_id, member.member_id, text)
    raise WireError(ErrorCode.FENCED_MEMBER_EPOCH, text)


def _is_within(reported: list[Any], owned: Owned) -> bool:
    return all(
        topic.topic_id in owned and owned[topic.topic_id].keys() >= set(topic.partitions)
        for topic in reported
    )


def is_full(request: ConsumerGroupHeartbeatRequest) -> bool:
    """Whether the heartbeat is complete, as after a lost response."""
    return (
        request.rebalance_timeout_ms != -1
        and (
            request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
        )
        and request.topic_partitions is not None
    )


def as_assignment(owned: Owned) -> Any:
    """An assignment in the form of a heartbeat's response."""
    cls = ConsumerGroupHeartbeatResponse
    return cls.Assignment(
        topic_partitions=[
            cls.TopicPartitions(topic_id=topic_id, partitions=sorted(owned[topic_id]))
            for topic_id in sorted(owned)
        ]
    )


def _with(assigned: Owned, revoking: Owned) -> Owned:
    owned = dict(assigned)
    for topic_id, partitions in revoking.items():
        owned[topic_id] = {**owned.get(topic_id, {}), **partitions}
    return owned


def describe(group: ConsumerGroup, assignor: str, topics_by_id: Mapping[bytes, TopicImage]) -> Any:
    """A group as ConsumerGroupDescribe shows it."""
    cls = ConsumerGroupDescribeResponse

    def shown(owned: Mapping[bytes, Iterable[int]]) -> Any:
        return cls.Assignment(
            topic_partitions=[
                cls.TopicPartitions(
                    topic_id=topic_id,
                    topic_name=topics_by_id[topic_id].name,
                    partitions=sorted(owned[topic_id]),
                )
                for topic_id in sorted(owned)
                if topic_id in topics_by_id
            ]
        )

    members = [
        cls.Member(
            member_id=member.member_id,
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            member_epoch=member.epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=sorted(member.topics),
            # COMPAT: for a member without a pattern Kafka returns an empty one.
            subscribed_topic_regex=member.regex or "",
            # Partitions to revoke belong to the member until it reports that it has revoked them.
            assignment=shown(_with(member.assigned, member.revoking)),
            target_assignment=shown(group.target_of(member)),
            member_type=MEMBER_TYPE_CLASSIC if member.is_classic else MEMBER_TYPE_CONSUMER,
        )
        for member in group.members.values()
    ]
    return cls.DescribedGroup(
        group_id=group.group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=assignor,
        members=members,
    )


def describe_nameless() -> Any:
    """The response for the empty name."""
    return ConsumerGroupDescribeResponse.DescribedGroup(
        group_id="", error_code=int(ErrorCode.INVALID_GROUP_ID)
    )


def describe_missing(group_id: str, text: str) -> Any:
    """The response for a group that is not of the consumer protocol."""
    return ConsumerGroupDescribeResponse.DescribedGroup(
        group_id=group_id, error_code=int(ErrorCode.GROUP_ID_NOT_FOUND), error_message=text
    )
