"""Expires offsets (KIP-211), and removes groups that have become empty.

Every ``offsets.retention.check.interval.ms`` all groups are checked, a few in each operation. An
offset expires when ``offsets.retention.minutes`` have passed since

- its group became empty; or since it was committed, if that moment is unknown;
- it was committed, for a group without members of its own, and for a topic that no member of a
  stable group of consumers subscribes to.

In other groups no offset expires, nor does one that an open transaction is about to replace. An
offset that was committed with a retention time of its own (OffsetCommit 2 to 4) expires by that.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kbroker.clock import ClockGuard
from kbroker.coordinator.group.group import CONSUMER, Group
from kbroker.coordinator.group.subscription import CONSUMER_PROTOCOL_TYPE
from kbroker.coordinator.machine import CoordinatorOperation
from kbroker.coordinator.offsets.batches import Tombstones
from kbroker.errors import WireError
from kbroker.metrics.catalog import OFFSETS_EXPIRED

if TYPE_CHECKING:
    from kbroker.coordinator.offsets.offsets import Offsets

logger = logging.getLogger(__name__)

TIMER = "offsets.expiry"
# BOUND: groups per operation, which takes a millisecond or two.
GROUPS_PER_STEP = 200
STEP_DELAY_MS, RETRY_MS = 1, 1_000
MINUTE_MS = 60_000

STABLE = "Stable"  # as every kind of group calls it
SINCE_COMMIT = -1


class OffsetExpiry:
    """Sweeps over the groups as long as the machine runs."""

    def __init__(self, offsets: Offsets) -> None:
        self._offsets = offsets
        self._store = offsets.store
        self._machine = offsets.machine
        self._host = offsets.host
        self._left: list[str] = []  # groups that this sweep has still to look at
        self._expired = 0
        self._guard: ClockGuard | None = None

    def start(self) -> None:
        """The first sweep runs one interval after the load."""
        if self._guard is None:
            self._guard = ClockGuard(self._host.wall_ms, self._host.now_ms)
        interval_ms = self._host.config["offsets.retention.check.interval.ms"]
        self._host.set_timer(TIMER, interval_ms, self._begin)

    def _begin(self, op: CoordinatorOperation) -> None:
        interval_ms = self._host.config["offsets.retention.check.interval.ms"]
        if self._guard is None or not self._guard.is_trusted(interval_ms):
            logger.warning("the wall clock jumped; no committed offset expires until it is stable")
            self.start()
            return
        self._left = list({*self._store.group_ids(), *self._machine.groups})
        self._expired = 0
        self._step(op)

    def _step(self, op: CoordinatorOperation) -> None:
        tombstones = Tombstones(op)
        for _ in range(GROUPS_PER_STEP):
            if not self._left:
                break
            if not self._look_at(op, tombstones, self._left[-1]):
                break  # no more room: the next step continues with this group
            self._left.pop()
        if tombstones.count:
            self._expired += tombstones.count
            self._host.count(OFFSETS_EXPIRED, tombstones.count)
        if self._left:
            # Expired offsets that cannot be removed now are found again, but not at once: the disk
            # may be full.
            self._host.set_timer(TIMER, RETRY_MS, self._step)
            op.then(lambda: self._host.set_timer(TIMER, STEP_DELAY_MS, self._step))
            return
        if self._expired:
            logger.info(
                "%s-%d: %d committed offsets have expired",
                self._host.topic,
                self._host.partition,
                self._expired,
            )
        self.start()

    def _look_at(self, op: CoordinatorOperation, tombstones: Tombstones, group_id: str) -> bool:
        """Expire a group's offsets; False if the operation has no room for all of them."""
        group = self._machine.groups.get(group_id)
        gone = 0
        for topic, partition in self._expired_of(group_id, group):
            if not tombstones.add(group_id, topic, partition):
                return False
            gone += 1
        if (
            group is not None
            and group.is_empty
            and gone == self._store.committed_of(group_id)
            and not self._store.has_pending(group_id)
        ):
            try:
                group.check_deletion()
            except WireError:
                return True
            logger.info("group %s is empty and has no offsets: deleted", group_id)
            group.delete(op)
        return True

    def _expired_of(self, group_id: str, group: Group | None) -> list[tuple[str, int]]:
        since_ms = idle_since_ms(group)
        if since_ms is None:
            return []
        retention_ms = self._host.config["offsets.retention.minutes"] * MINUTE_MS
        expired = self._store.expired(group_id, self._host.wall_ms(), retention_ms, since_ms)
        if expired and self._store.has_pending(group_id):
            pending = self._store.pending_of(group_id)
            expired = [key for key in expired if key not in pending]
        if expired and group is not None:
            wanted = {topic for topic in {key[0] for key in expired} if group.subscribes_to(topic)}
            expired = [key for key in expired if key[0] not in wanted]
        return expired


def idle_since_ms(group: Group | None) -> int | None:
    """When the group's offsets began to age; SINCE_COMMIT: each with its commit; None: never."""
    if group is None or group.protocol_type == "":
        return SINCE_COMMIT
    if group.is_empty:
        return group.empty_since_ms  # None: a member is about to join
    if group.kind == CONSUMER:
        return SINCE_COMMIT
    if group.protocol_type == CONSUMER_PROTOCOL_TYPE and group.state == STABLE:
        return SINCE_COMMIT
    return None
