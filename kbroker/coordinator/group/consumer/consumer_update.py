"""One pending change of a consumer group: its outcome, and the records for it.

A heartbeat or a join makes at most one new group epoch, and computes the target at once. The group
itself is not changed here: that happens when the records are replayed.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from kbroker.config.group_config import ASSIGNMENT_INTERVAL_MS, value_of
from kbroker.coordinator.group import assignors
from kbroker.coordinator.group.assignors import Assignment, MemberSpec
from kbroker.coordinator.group.consumer import consumer_records, consumer_regex, consumer_sight
from kbroker.coordinator.group.consumer.consumer_group import (
    ConsumerGroup,
    ResolvedRegex,
    matched_topics,
    subscribed_names,
)
from kbroker.coordinator.group.consumer.consumer_member import ConsumerGroupMember
from kbroker.coordinator.group.consumer.consumer_reconcile import reconcile
from kbroker.errors import ErrorCode, WireError

if TYPE_CHECKING:
    from kbroker.coordinator.group.consumer.consumer_topics import TopicHashes
    from kbroker.coordinator.machine import Host
    from kbroker.security.access import Access

logger = logging.getLogger(__name__)

# Patterns are matched against new topics at the next heartbeat, but not more often than this.
MATCH_INTERVAL_MS = 1_000


class Update:
    """A change of one member: ``old``, None if it is new, becomes ``member``.

    replaced: the member of the same instance that it takes the place of. access: what its client
    may do, if it subscribes by a pattern.
    resolved, epoch, metadata_hash: of the group, as they will be.
    has_checked, has_matched, sight: soft state to set (``ConsumerGroup.is_stale`` and others).
    wait_ms: until a target of the new epoch may be computed; 0 if it has been, or none is due.
    """

    def __init__(
        self,
        host: Host,
        hashes: TopicHashes,
        group: ConsumerGroup,
        old: ConsumerGroupMember,
        member: ConsumerGroupMember,
        replaced: ConsumerGroupMember | None,
        access: Access | None,
    ) -> None:
        self.host = host
        self.group = group
        self.old = old
        self.member = member
        self.records: list[consumer_records.Record] = []
        self.resolved = group.resolved
        self.epoch = group.epoch
        self.has_checked = False
        self.has_matched = False
        self.assigned_changed = False
        self.wait_ms = 0
        self._hashes = hashes
        self.replaced = replaced
        self._access = access
        self.sight: consumer_sight.Sight | None = None
        self._reasons: list[str] = []

    def run(self, reported: list[Any] | None) -> ConsumerGroupMember:
        """Run all steps; returns the resulting member. Raises WireError."""
        group, member, old = self.group, self.member, self.old
        if member is not old and not member.has_same_metadata(old):
            self.records.append(consumer_records.metadata(group.group_id, member))
        names_changed = member.topics != old.topics
        if names_changed:
            self._reasons.append(f"member {member.member_id} subscribes to other topics")
        elif not group.epoch:
            self._reasons.append(f"member {member.member_id} is the first")
        regex_changed = self._resolve()
        sight_changed = self._look()
        if self._reasons or group.is_stale:
            self._check_topics()
        if self.epoch > group.target_epoch:
            self.wait_ms = assignment_wait_ms(self.host, group)
        if self.epoch > group.target_epoch and not self.wait_ms:
            target_epoch, target = self.epoch, self._assign()
        else:
            target_epoch, target = group.target_epoch, group.target_of(member)
        is_new_subscription = names_changed or regex_changed or sight_changed
        return self._reconcile(target_epoch, target, is_new_subscription, reported)

    # -- patterns --------------------------------------------------------------------------------

    def _resolve(self) -> bool:
        """Match new patterns, and those whose topics may have changed; returns whether the member's
        have.
        """
        group, old_regex, regex = self.group, self.old.regex, self.member.regex
        regex_changed = old_regex != regex
        patterns = set(group.regex_counts)
        if regex_changed:
            self._reasons.append(f"member {self.member.member_id} subscribes to another pattern")
            if old_regex and group.regex_counts.get(old_regex, 0) <= 1:
                patterns.discard(old_regex)
                self._forget(old_regex)
            if regex and regex not in self.resolved:
                patterns.discard(regex)
                self._match(regex, None)
        if patterns and self._has_to_match():
            changed = None if self._is_match_old() else group.changed_topics
            self.has_matched = True
            for pattern in sorted(patterns):
                if self._match_again(pattern, changed):
                    self._reasons.append(f"other topics match {pattern!r}")
        return regex_changed

    def _is_match_old(self) -> bool:
        """Whether the last match was too long ago to know which topics have changed since."""
        matched_ms = self.group.matched_ms
        interval_ms = self.host.config["group.consumer.regex.refresh.interval.ms"]
        return matched_ms is None or self.host.now_ms() - matched_ms >= interval_ms

    def _has_to_match(self) -> bool:
        matched_ms = self.group.matched_ms
        if matched_ms is None or self._is_match_old():
            return True
        elapsed_ms = self.host.now_ms() - matched_ms
        return self.group.changed_topics != set() and elapsed_ms >= MATCH_INTERVAL_MS

    def _match_again(self, pattern: str, changed: set[str] | None) -> bool:
        """Match a pattern, perhaps of another member; returns whether its topics have changed."""
        try:
            return self._match(pattern, changed)
        except WireError as error:
            # It was valid when it was accepted. Its members keep its meaning.
            logger.warning("group %s: %s", self.group.group_id, error.message)
            return False

    def _match(self, pattern: str, changed: set[str] | None) -> bool:
        """Match a pattern with the changed topics, None for all; returns whether its topics have
        changed.

        Raises INVALID_REGULAR_EXPRESSION.
        """
        known = self.resolved.get(pattern)
        topics = self.host.image.topics
        if known is None or changed is None:
            matches = consumer_regex.matching(pattern, topics)
        else:
            there = changed & topics.keys()
            matches = (known.topics - changed) | consumer_regex.matching(pattern, there)
        if known is not None and known.topics == matches:
            return False
        resolved = ResolvedRegex(matches, self.host.image.version, self.host.wall_ms())
        self.resolved = {**self.resolved, pattern: resolved}
        self.records.append(consumer_records.regex(self.group.group_id, pattern, resolved))
        return True

    def _forget(self, pattern: str) -> None:
        if pattern in self.resolved:
            self.resolved = {p: r for p, r in self.resolved.items() if p != pattern}
            self.records.append(consumer_records.regex(self.group.group_id, pattern, None))

    def _look(self) -> bool:
        """See what of its pattern's topics the member may describe; returns whether that has
        changed without a new pattern.
        """
        if self._access is None:
            return False
        before = self.group.sights.get(self.member.member_id)
        matched = matched_topics(self.member, self.resolved)
        self.sight = consumer_sight.look(self._access, matched, before)
        hidden = consumer_sight.NOTHING if before is None else before.hidden
        if self.sight.hidden == hidden:
            return False
        self._reasons.append(f"member {self.member.member_id} may describe other topics")
        return True

    def _names(self, member: ConsumerGroupMember) -> frozenset[str]:
        """Names of the topics that a member subscribes to, and sees."""
        if not member.regex:
            return member.topics
        sight = self.group.sights.get(member.member_id)
        if member.member_id == self.member.member_id:
            sight = self.sight
        matched = matched_topics(member, self.resolved)
        hidden = consumer_sight.hidden_from(sight, matched)
        return subscribed_names(member, self.resolved, hidden)

    # -- epoch and target ------------------------------------------------------------------------

    def _check_topics(self) -> None:
        """Compute the metadata hash; a new group epoch if it or anything else has changed."""
        group = self.group
        names = set(group.name_counts)
        if self.member.topics != self.old.topics:
            counts = group.name_counts
            names.difference_update(n for n in self.old.topics if counts.get(n, 0) <= 1)
            names |= self.member.topics
        for resolved in self.resolved.values():
            names |= resolved.topics
        metadata_hash = self._hashes.of(names)
        self.has_checked = True
        if metadata_hash != group.metadata_hash and not self._reasons:
            self._reasons.append("topics have changed")
        if not self._reasons:
            return
        self.epoch += 1
        self.records.append(consumer_records.group_epoch(group.group_id, self.epoch, metadata_hash))
        if group.has_partition_metadata:
            self.records.append(consumer_records.without_partition_metadata(group.group_id))
        logger.info(
            "group %s: new epoch %d because %s", group.group_id, self.epoch, self._reasons[0]
        )

    def _assign(self) -> Assignment:
        """Compute the target of the new epoch and write its changes."""
        group, member = self.group, self.member
        members = dict(group.members)
        if self.replaced is not None:
            members.pop(self.replaced.member_id, None)
        members[member.member_id] = member
        topics = self.host.image.topics
        ids: dict[frozenset[str], frozenset[bytes]] = {}
        specs = {}
        for member_id, one in members.items():
            names = self._names(one)
            subscribed = ids.get(names)
            if subscribed is None:
                subscribed = ids[names] = self._topic_ids(names)
            specs[member_id] = MemberSpec(subscribed, one.instance_id, group.target_of(one))
        counts = {
            topic_id: len(topics[name].partitions)
            for names in ids
            for name in names
            if name in topics
            for topic_id in (topics[name].topic_id,)
        }
        name = self._preferred_assignor()
        assign = assignors.find(name)
        assert assign is not None, name
        try:
            result = assign(specs, counts)
        except Exception as error:
            logger.exception("group %s: assignor %s failed", group.group_id, name)
            text = f"the assignor {name} failed"
            raise WireError(ErrorCode.UNKNOWN_SERVER_ERROR, text) from error
        for member_id, assignment in result.items():
            before = specs[member_id].assigned
            if assignment is not before and assignment != before:
                self.records.append(consumer_records.target(group.group_id, member_id, assignment))
        self.records.append(
            consumer_records.target_epoch(group.group_id, self.epoch, self.host.wall_ms())
        )
        return result[member.member_id]

    def _preferred_assignor(self) -> str:
        """The assignor that most members name; the first of the settings if none is named."""
        counts = dict(self.group.server_assignors)
        if self.old.server_assignor is not None and self.old.server_assignor in counts:
            counts[self.old.server_assignor] -= 1
        if self.member.server_assignor is not None:
            counts[self.member.server_assignor] = counts.get(self.member.server_assignor, 0) + 1
        return preferred_assignor(self.host, counts)

    def _topic_ids(self, names: frozenset[str]) -> frozenset[bytes]:
        topics = self.host.image.topics
        return frozenset(topics[name].topic_id for name in names if name in topics)

    # -- the member ------------------------------------------------------------------------------

    def _reconcile(
        self,
        target_epoch: int,
        target: Assignment,
        is_new_subscription: bool,
        reported: list[Any] | None,
    ) -> ConsumerGroupMember:
        group, member = self.group, self.member
        if member.is_reconciled(target_epoch) and not is_new_subscription:
            return member
        own = [member.member_id]
        if self.replaced is not None:
            own.append(self.replaced.member_id)
        updated = reconcile(
            member,
            target_epoch,
            target,
            subscribed=self._topic_ids(self._names(member)),
            is_new_subscription=is_new_subscription,
            is_free=lambda topic_id, partition: group.is_free_for(topic_id, partition, own),
            reported=reported,
        )
        if updated is not member and not updated.has_same_assignment(member):
            self.records.append(consumer_records.assignment(group.group_id, updated))
            self.assigned_changed = True
            return updated
        return member


def assignment_wait_ms(host: Host, group: ConsumerGroup) -> int:
    """The time until a new target assignment may be computed; 0: now."""
    own = host.image.group_config.get(group.group_id)
    interval_ms = value_of(ASSIGNMENT_INTERVAL_MS, own or {}, host.config)
    if not interval_ms or not group.target_ms or not group.members:
        return 0
    elapsed_ms = host.wall_ms() - group.target_ms
    # A clock that was set back must not delay anything.
    return interval_ms - elapsed_ms if 0 <= elapsed_ms < interval_ms else 0


def offered_assignors(host: Host) -> list[str]:
    """Names of the assignors that members may ask for, the default first."""
    offered = [name for name in host.config["group.consumer.assignors"] if name in assignors.NAMES]
    return offered or [assignors.NAMES[0]]


def preferred_assignor(host: Host, counts: dict[str, int]) -> str:
    """The offered assignor with most votes, the first of several."""
    return max(offered_assignors(host), key=lambda name: counts.get(name, 0))
