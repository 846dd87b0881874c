"""The consumer group protocol (KIP-848): the coordinator decides who consumes what.

A member says in its heartbeats what it wants and what it has, and is answered with its epoch and
what it may consume. Three epochs tell how far a group is: the group's (raised by every change of
members, subscriptions or topics), the target assignment's, and each member's.

Everything happens in the operation of one heartbeat: no other member is waited for. A new target is
computed by the first heartbeat after a change, once the last target has the age of
``group.consumer.assignment.interval.ms``.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from kbroker.cluster.features import CONSUMER_GROUPS, GROUP_VERSION
from kbroker.config.group_config import HEARTBEAT_INTERVAL_MS, SESSION_TIMEOUT_MS, value_of
from kbroker.coordinator.group.administration import GROUP_OPERATIONS
from kbroker.coordinator.group.batch_size import fits_batch
from kbroker.coordinator.group.classic.classic_group import ClassicGroup
from kbroker.coordinator.group.consumer import (
    consumer_migration,
    consumer_records,
    consumer_requests,
)
from kbroker.coordinator.group.consumer.consumer_classic import JOIN, SYNC, ClassicMembers
from kbroker.coordinator.group.consumer.consumer_gauges import ConsumerGauges
from kbroker.coordinator.group.consumer.consumer_group import ConsumerGroup
from kbroker.coordinator.group.consumer.consumer_member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    UNREVOKED_PARTITIONS,
    ConsumerGroupMember,
)
from kbroker.coordinator.group.consumer.consumer_replay import ConsumerReplay
from kbroker.coordinator.group.consumer.consumer_sight import Sight
from kbroker.coordinator.group.consumer.consumer_topics import TopicHashes
from kbroker.coordinator.group.consumer.consumer_update import (
    Update,
    offered_assignors,
    preferred_assignor,
)
from kbroker.coordinator.group.machine import GroupMachine, Part
from kbroker.coordinator.machine import Call, CoordinatorOperation
from kbroker.coordinator.records.offsets_topic import GroupMetadataKey
from kbroker.errors import ErrorCode, WireError
from kbroker.metrics.catalog import CONSUMER_REBALANCES
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.consumer_group_describe import ConsumerGroupDescribeResponse
from kbroker.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from kbroker.uuids import new_uuid, uuid_text

if TYPE_CHECKING:
    from kbroker.cluster.changes import ImageChanges

logger = logging.getLogger(__name__)

# Prefixes of timer names; the group and the member follow.
SESSION, REBALANCE = "consumer session", "consumer rebalance"


class ConsumerProtocol(Part):
    """Serves ConsumerGroupHeartbeat and ConsumerGroupDescribe."""

    def __init__(self, machine: GroupMachine) -> None:
        super().__init__(machine)
        machine.consumer = self
        self._gauges = ConsumerGauges(self.host, machine.groups)
        self.handlers = {
            ApiKey.CONSUMER_GROUP_HEARTBEAT: self.heartbeat,
            ApiKey.CONSUMER_GROUP_DESCRIBE: self.describe,
        }
        self.replayers = ConsumerReplay(machine.groups, self._gauges.count).replayers()
        self.hashes = TopicHashes(self.host)
        classic = ClassicMembers(self)
        # Called by ``machine.classic`` as handlers, for a group of this kind with members.
        self.classic_join = classic.join
        self.classic_sync = classic.sync
        self.classic_heartbeat = classic.heartbeat
        self.classic_leave = classic.leave

    # -- Part ------------------------------------------------------------------------------------

    def loaded(self, op: CoordinatorOperation) -> None:
        op.touch()
        self.hashes.look_at_racks()
        for group in self._groups():
            self._gauges.count(group.group_id)
            logger.info("group %s: loaded with %d members", group.group_id, len(group.members))
            for member in group.members.values():
                self.start_session(group.group_id, member)
                if member.state == UNREVOKED_PARTITIONS and not member.is_classic:
                    self.start_rebalance(group.group_id, member)

    def on_image(self, op: CoordinatorOperation, changes: ImageChanges) -> None:
        names = changes.reassigned()
        if self.hashes.look_at_racks():
            for group in self._groups():
                group.is_stale = True
        if not names:
            return
        op.touch()
        for name in names:
            self.hashes.forget(name)
        for group in self._groups():
            group.note_changed(names)

    def close(self, error: Exception) -> None:
        self._gauges.close()

    def _groups(self) -> list[ConsumerGroup]:
        return [g for g in self.machine.groups.values() if isinstance(g, ConsumerGroup)]

    # -- ConsumerGroupHeartbeat ------------------------------------------------------------------

    def heartbeat(self, op: CoordinatorOperation, call: Call) -> Any:
        request = call.request
        self._reject_if_disabled()
        consumer_requests.check_heartbeat(request, call.version, offered_assignors(self.host))
        if request.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
            return self._leave(op, request)
        group, conversion = self._group_to_join(request)
        if request.member_epoch == JOIN_EPOCH:
            self.reject_if_full(group, request.member_id)
        old, replaced = self._known_member(group, request)
        member = _updated(old, request, call)
        update = self.update(group, old, member, replaced, call)
        member = update.run(request.topic_partitions)
        records = conversion + self.replacement(group, replaced, old) + update.records
        if conversion or not consumer_records.surely_fit(records):
            self.reject_too_large(group.group_id, records)
        if records:
            self.ensure_writable(op, group, old)
        # Nothing can fail from here on.
        op.touch()
        if conversion:
            self._release(op, group)
        self.write(op, group, records)
        self.settle(op, update, member)
        self.start_session(group.group_id, member)
        interval_ms = self._setting(group.group_id, HEARTBEAT_INTERVAL_MS)
        if update.wait_ms:
            # The member sends another heartbeat when the target may be computed. COMPAT: in Kafka
            # it keeps its interval, so that a new group waits for a whole heartbeat interval.
            interval_ms = min(interval_ms, update.wait_ms)
        response = ConsumerGroupHeartbeatResponse(
            member_id=member.member_id,
            member_epoch=member.epoch,
            heartbeat_interval_ms=interval_ms,
        )
        if (
            request.member_epoch == JOIN_EPOCH
            or consumer_requests.is_full(request)
            or member.assigned != old.assigned
        ):
            response.assignment = consumer_requests.as_assignment(member.assigned)
        return response

    def ensure_writable(
        self, op: CoordinatorOperation, group: ConsumerGroup, member: ConsumerGroupMember
    ) -> None:
        """Raise the log's refusal; it is not the member's fault, whose session continues."""
        if op.refusal is not None and group.members.get(member.member_id) is member:
            self.start_session(group.group_id, member)
        op.ensure_writable()

    def _reject_if_disabled(self) -> None:
        if "consumer" not in self.host.config["group.coordinator.rebalance.protocols"]:
            text = "group.coordinator.rebalance.protocols does not include consumer"
            raise WireError(ErrorCode.UNSUPPORTED_VERSION, text)
        if self.host.image.features.level(GROUP_VERSION) < CONSUMER_GROUPS:
            # docs/decisions/0020: Kafka 2.7 could not load the partition any more.
            text = f"groups of the consumer protocol need the feature {GROUP_VERSION}"
            raise WireError(ErrorCode.UNSUPPORTED_VERSION, text)

    def _group_to_join(self, request: Any) -> tuple[ConsumerGroup, list[consumer_records.Record]]:
        """The group for a joining member: maybe a new one, or a classic one that is converted; and
        the records that this needs first.

        Raises GROUP_ID_NOT_FOUND.
        """
        group = self.machine.groups.get(request.group_id)
        if request.member_epoch != JOIN_EPOCH or isinstance(group, ConsumerGroup):
            return self.existing(request.group_id), []
        if group is None:
            return ConsumerGroup(request.group_id), []
        if not isinstance(group, ClassicGroup):
            return self.existing(request.group_id), []
        if group.is_empty:
            made = ConsumerGroup(request.group_id)
            return made, [(GroupMetadataKey(group=request.group_id), None)]
        consumer_migration.check_upgrade(self.host, group)
        made = consumer_migration.upgraded(self.host, group)
        return made, consumer_migration.upgrade_records(made, self.host.wall_ms())

    def _release(self, op: CoordinatorOperation, group: ConsumerGroup) -> None:
        """The classic group has become this one: complete its requests, continue its sessions."""
        before = self.machine.groups[group.group_id]
        assert isinstance(before, ClassicGroup), before
        self.machine.classic.release(op, before)
        for member in group.members.values():
            self.start_session(group.group_id, member)

    def update(
        self,
        group: ConsumerGroup,
        old: ConsumerGroupMember,
        member: ConsumerGroupMember,
        replaced: ConsumerGroupMember | None,
        call: Call,
    ) -> Update:
        """A change of one member by its request, to be executed."""
        access = None
        if member.regex:
            access = self.host.access(call.principal, call.client_host.removeprefix("/"))
        return Update(self.host, self.hashes, group, old, member, replaced, access)

    def existing(self, group_id: str) -> ConsumerGroup:
        """Raises GROUP_ID_NOT_FOUND."""
        group = self.machine.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return group
        raise WireError(ErrorCode.GROUP_ID_NOT_FOUND, _not_found(group_id, group is not None))

    def reject_if_full(self, group: ConsumerGroup, member_id: str) -> None:
        limit = self.host.config["group.consumer.max.size"]
        if len(group.members) >= limit and member_id not in group.members:
            text = f"the group already has its maximum of {limit} members"
            raise WireError(ErrorCode.GROUP_MAX_SIZE_REACHED, text)

    def reject_too_large(self, group_id: str, records: list[consumer_records.Record]) -> None:
        """Raise UNKNOWN_SERVER_ERROR, Kafka's code for it, unless the records fit one batch."""
        encode = self.machine.records.encode
        if not fits_batch(self.host, [encode(key, value) for key, value in records]):
            text = f"{len(records)} records are more than a batch of {self.host.topic} takes"
            logger.warning("group %s: unchanged, because %s", group_id, text)
            raise WireError(ErrorCode.UNKNOWN_SERVER_ERROR, text)

    def _known_member(
        self, group: ConsumerGroup, request: Any
    ) -> tuple[ConsumerGroupMember, ConsumerGroupMember | None]:
        """The member, a blank one if it is new; and the member that it replaces."""
        joins = request.member_epoch == JOIN_EPOCH
        member_id = request.member_id
        if joins and not member_id:
            member_id = uuid_text(new_uuid())
        if request.instance_id is not None:
            return self._known_static_member(group, request, member_id)
        known = group.members.get(member_id)
        if known is not None:
            consumer_requests.check_epoch(
                group.group_id, known, request.member_epoch, request.topic_partitions
            )
            return known, None
        if not joins:
            group.member(member_id)  # raises
        logger.info("group %s: member %s joins", group.group_id, member_id)
        return ConsumerGroupMember(member_id), None

    def _known_static_member(
        self, group: ConsumerGroup, request: Any, member_id: str
    ) -> tuple[ConsumerGroupMember, ConsumerGroupMember | None]:
        instance_id = request.instance_id
        if request.member_epoch != JOIN_EPOCH:
            member = group.static_member_or_raise(instance_id, member_id)
            consumer_requests.check_epoch(
                group.group_id, member, request.member_epoch, request.topic_partitions
            )
            return member, None
        known = group.static_member(instance_id)
        if known is None:
            logger.info("group %s: member %s joins as %s", group.group_id, member_id, instance_id)
            return group.members.get(member_id) or ConsumerGroupMember(member_id), None
        if known.member_id == member_id:
            return known, None
        if not known.is_classic and known.epoch != STATIC_LEAVE_EPOCH:
            text = f"{known.member_id} is the member of {instance_id} and has not left"
            raise WireError(ErrorCode.UNRELEASED_INSTANCE_ID, text)
        return group.successor(known, member_id), known

    def replacement(
        self, group: ConsumerGroup, known: ConsumerGroupMember | None, member: ConsumerGroupMember
    ) -> list[consumer_records.Record]:
        """The records by which a member replaces another one with the same instance id."""
        if known is None:
            return []
        group_id = group.group_id
        return [
            *consumer_records.without_member(group_id, known.member_id),
            consumer_records.metadata(group_id, member),
            consumer_records.target(group_id, member.member_id, group.target_of(known)),
            consumer_records.assignment(group_id, member),
        ]

    def write(
        self, op: CoordinatorOperation, group: ConsumerGroup, records: list[consumer_records.Record]
    ) -> None:
        for key, value in records:
            op.append(key, value)
        if records:
            op.then(lambda: self._gauges.count(group.group_id))

    def settle(self, op: CoordinatorOperation, update: Update, member: ConsumerGroupMember) -> None:
        """Apply an update to soft state."""
        op.touch()
        group = update.group
        if update.epoch != group.epoch:
            self.host.count(CONSUMER_REBALANCES)
        if update.has_checked:
            group.is_stale = False
        if update.has_matched:
            group.changed_topics = set()
            group.matched_ms = self.host.now_ms()
        if update.sight is not group.sights.get(member.member_id):
            op.then(lambda: self._see(group.group_id, member.member_id, update.sight))
        if update.replaced is not None:
            self.cancel_timers(group.group_id, update.replaced.member_id)
        if update.assigned_changed and not member.is_classic:
            if member.state == UNREVOKED_PARTITIONS:
                self.start_rebalance(group.group_id, member)
            else:
                self.host.cancel_timer((REBALANCE, group.group_id, member.member_id))

    def _see(self, group_id: str, member_id: str, sight: Sight | None) -> None:
        """Keep what a member sees, once its group is as its records say."""
        group = self.machine.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            group.sights.pop(member_id, None)
            if sight is not None and member_id in group.members:
                group.sights[member_id] = sight

    # -- leaving, and being put out --------------------------------------------------------------

    def _leave(self, op: CoordinatorOperation, request: Any) -> Any:
        group = self.existing(request.group_id)
        response = ConsumerGroupHeartbeatResponse(
            member_id=request.member_id, member_epoch=request.member_epoch
        )
        if request.instance_id is None:
            member = group.member(request.member_id)
        else:
            member = group.static_member_or_raise(request.instance_id, request.member_id)
            if request.member_epoch == STATIC_LEAVE_EPOCH:
                # The member keeps its place and its partitions until its session expires.
                logger.info(
                    "group %s: static member %s (%s) leaves temporarily",
                    group.group_id,
                    member.member_id,
                    member.instance_id,
                )
                left = member.with_(epoch=STATIC_LEAVE_EPOCH, revoking={})
                self.write(op, group, [consumer_records.assignment(group.group_id, left)])
                return response
        logger.info("group %s: member %s leaves", group.group_id, member.member_id)
        self.fence(op, group, [member])
        return response

    def fence(
        self, op: CoordinatorOperation, group: ConsumerGroup, members: list[ConsumerGroupMember]
    ) -> None:
        """Remove members; another member's next heartbeat reassigns their partitions.

        If only classic members stay, the group becomes a classic one.
        """
        op.ensure_writable()
        rest = [member for member in group.members.values() if member not in members]
        if consumer_migration.may_downgrade(self.host, group, members, len(rest)):
            try:
                self.downgrade(op, group, rest, "it migrated to the classic protocol")
                return
            except WireError:  # too large: stays a consumer group
                assert not op.records, group.group_id
        records: list[consumer_records.Record] = []
        name_counts, regex_counts = dict(group.name_counts), dict(group.regex_counts)
        for member in members:
            records += consumer_records.without_member(group.group_id, member.member_id)
            for name in member.topics:
                name_counts[name] -= 1
            if member.regex:
                regex_counts[member.regex] -= 1
        names = {name for name, count in name_counts.items() if count}
        for pattern in sorted(group.resolved):
            if regex_counts.get(pattern):
                names |= group.resolved[pattern].topics
            else:
                records.append(consumer_records.regex(group.group_id, pattern, None))
        epoch = group.epoch + 1
        metadata_hash = self.hashes.of(names)
        records.append(consumer_records.group_epoch(group.group_id, epoch, metadata_hash))
        if len(members) == len(group.members):
            # An empty group has nothing to assign.
            records.append(
                consumer_records.target_epoch(group.group_id, epoch, self.host.wall_ms())
            )
        if not consumer_records.surely_fit(records):
            self.reject_too_large(group.group_id, records)
        logger.info(
            "group %s: new epoch %d because %d members are gone",
            group.group_id,
            epoch,
            len(members),
        )
        self.write(op, group, records)
        op.touch()
        self.host.count(CONSUMER_REBALANCES)
        for member in members:
            self.cancel_timers(group.group_id, member.member_id)

    def downgrade(
        self,
        op: CoordinatorOperation,
        group: ConsumerGroup,
        members: list[ConsumerGroupMember],
        reason: str | None,
    ) -> ClassicGroup:
        """Convert it to a classic group of these members.

        reason: of the rebalance that follows; None if none is needed. Raises UNKNOWN_SERVER_ERROR,
        and changes nothing, if it is too large for that.
        """
        image = self.host.image
        adopted = [
            consumer_migration.downgraded_member(image, member, group.target_of(member))
            for member in members
        ]
        records = consumer_records.without_group(group, sorted(group.members))
        adoption = self.machine.classic.adoption(group.group_id, group.epoch, adopted)
        self.reject_too_large(group.group_id, [*records, adoption])
        op.ensure_writable()
        op.touch()
        for member_id in group.members:
            self.cancel_timers(group.group_id, member_id)
        self.write(op, group, records)
        logger.info(
            "group %s: migrates to the classic protocol with %d members",
            group.group_id,
            len(members),
        )
        return self.machine.classic.adopt(op, group.group_id, group.epoch, adopted, reason=reason)

    # -- timers ----------------------------------------------------------------------------------

    def start_session(self, group_id: str, member: ConsumerGroupMember) -> None:
        """The member has sent a request. Soft."""
        if member.classic is not None:
            timeout_ms = member.classic.session_timeout_ms
        else:
            timeout_ms = self._setting(group_id, SESSION_TIMEOUT_MS)
        name = (SESSION, group_id, member.member_id)
        self.host.set_timer(name, timeout_ms, self._on_session_end, group_id, member.member_id)

    def _setting(self, group_id: str, name: str) -> int:
        """A config of the group, or the broker's if it has none."""
        own = self.host.image.group_config.get(group_id)
        return value_of(name, own or {}, self.host.config)

    def start_rebalance(self, group_id: str, member: ConsumerGroupMember) -> None:
        """The member has to revoke partitions within this time. Soft."""
        name = (REBALANCE, group_id, member.member_id)
        timeout_ms = max(member.rebalance_timeout_ms, 0)
        epoch = member.epoch
        self.host.set_timer(
            name, timeout_ms, self._on_rebalance_end, group_id, member.member_id, epoch, timeout_ms
        )

    def cancel_timers(self, group_id: str, member_id: str) -> None:
        """Soft."""
        for kind in (SESSION, REBALANCE, JOIN, SYNC):
            self.host.cancel_timer((kind, group_id, member_id))

    def find(
        self, group_id: str, member_id: str
    ) -> tuple[ConsumerGroup, ConsumerGroupMember] | None:
        """Find a member for a timer; it may have been removed."""
        group = self.machine.groups.get(group_id)
        member = group.members.get(member_id) if isinstance(group, ConsumerGroup) else None
        return None if member is None else (group, member)  # type: ignore[return-value]

    def _on_session_end(self, op: CoordinatorOperation, group_id: str, member_id: str) -> None:
        self.expire(op, group_id, member_id, "its session has expired")

    def _on_rebalance_end(
        self, op: CoordinatorOperation, group_id: str, member_id: str, epoch: int, timeout_ms: int
    ) -> None:
        holder = self.find(group_id, member_id)
        if holder is not None and holder[1].epoch == epoch:
            reason = f"it did not revoke its partitions in epoch {epoch} within {timeout_ms} ms"
            self.expire(op, group_id, member_id, reason)

    def expire(self, op: CoordinatorOperation, group_id: str, member_id: str, reason: str) -> None:
        """Remove a member, if it is still there."""
        holder = self.find(group_id, member_id)
        if holder is not None:
            logger.info("group %s: member %s is fenced, %s", group_id, member_id, reason)
            self.fence(op, holder[0], [holder[1]])

    # -- ConsumerGroupDescribe -------------------------------------------------------------------

    def describe(self, op: CoordinatorOperation, call: Call) -> Any:
        self._reject_if_disabled()
        groups = []
        for group_id in call.request.group_ids:
            group = self.machine.groups.get(group_id)
            if isinstance(group, ConsumerGroup):
                assignor = preferred_assignor(self.host, group.server_assignors)
                topics = self.host.image.topics_by_id
                described = consumer_requests.describe(group, assignor, topics)
                if call.request.include_authorized_operations:
                    described.authorized_operations = GROUP_OPERATIONS
                groups.append(described)
            elif not group_id:
                groups.append(consumer_requests.describe_nameless())
            else:
                text = _not_found(group_id, group is not None)
                groups.append(consumer_requests.describe_missing(group_id, text))
        return ConsumerGroupDescribeResponse(groups=groups)


def _updated(old: ConsumerGroupMember, request: Any, call: Call) -> ConsumerGroupMember:
    """The member with the values of its heartbeat."""
    changes: dict[str, Any] = {}
    if request.instance_id is not None and request.instance_id != old.instance_id:
        changes["instance_id"] = request.instance_id
    if request.rack_id is not None:
        changes["rack_id"] = request.rack_id
    if request.rebalance_timeout_ms != -1:
        changes["rebalance_timeout_ms"] = request.rebalance_timeout_ms
    if request.server_assignor is not None:
        changes["server_assignor"] = request.server_assignor
    if request.subscribed_topic_names is not None:
        changes["topics"] = frozenset(request.subscribed_topic_names)
    if request.subscribed_topic_regex is not None:
        changes["regex"] = request.subscribed_topic_regex
    if call.client_id != old.client_id:
        changes["client_id"] = call.client_id
    if call.client_host != old.client_host:
        changes["client_host"] = call.client_host
    if old.classic is not None:
        changes["classic"] = None
    return old.with_(**changes) if changes else old


def _not_found(group_id: str, is_other: bool) -> str:
    """COMPAT: Kafka's texts, which scripts look for."""
    if is_other:
        return f"Group {group_id} is not a consumer group."
    return f"Group {group_id} not found."
