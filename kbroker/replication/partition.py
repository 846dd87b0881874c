"""This broker's replica of one partition: its role, epochs and ISR.

Pure: ``take`` gets the controller's state and returns what to do; the io worker that owns the log
(``workers/io/hosted``) does it. Nothing here uses files, slots or clocks.

INVARIANT: a role is only replaced by one of the same or a later leader epoch, and within one leader
epoch by a later partition epoch. Outdated states are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from kbroker._ext.shared import partition_table

if TYPE_CHECKING:
    from kbroker.cluster.image import PartitionImage

NO_LEADER = -1
NO_EPOCH = -1


class Role(IntEnum):
    """The role of this broker, numbered as in a slot."""

    NONE = partition_table.NO_ROLE
    LEADER = partition_table.LEADER
    FOLLOWER = partition_table.FOLLOWER
    REPAIRING = partition_table.REPAIRING


class Change(NamedTuple):
    """The effect of new metadata on a partition.

    began: this broker leads in a new leader epoch, which begins at the log end offset. gained: it
    was not the leader before. lost: it is no longer the leader; clients that wait for a commit
    must look for the new one.
    """

    began: bool
    gained: bool
    lost: bool


def least_in_sync(min_in_sync: int, replicas: int) -> int:
    """How many of these replicas have to be in sync, by min.insync.replicas."""
    return min(min_in_sync, replicas)


class Partition:
    """One partition's replica on broker ``broker_id``.

    min_in_sync: min.insync.replicas, which the owner keeps up to date. is_suspect: the log may have
    lost its newest records in a power failure. Then the replica does not lead before it has asked
    the others for them: its role is REPAIRING until ``lead_repaired``. INVARIANT: a replica that
    leads is not suspect.
    """

    __slots__ = (
        "_broker_id",
        "is_suspect",
        "isr",
        "leader",
        "leader_epoch",
        "min_in_sync",
        "partition_epoch",
        "replicas",
        "role",
        "wanted_isr",
    )

    def __init__(self, broker_id: int, min_in_sync: int = 1) -> None:
        self._broker_id = broker_id
        self.min_in_sync = min_in_sync
        self.is_suspect = False
        self.role = Role.NONE
        self.leader = NO_LEADER
        self.leader_epoch = NO_EPOCH
        self.partition_epoch = NO_EPOCH
        self.isr: tuple[int, ...] = ()
        self.replicas: tuple[int, ...] = ()
        # The ISR proposed to the controller, which may already be in effect.
        self.wanted_isr: tuple[int, ...] | None = None

    @property
    def leads(self) -> bool:
        return self.role is Role.LEADER

    @property
    def is_alone(self) -> bool:
        """Whether appends are committed at once: it leads, and there is no other replica."""
        return self.leads and self.replicas == (self._broker_id,)

    @property
    def maximal_isr(self) -> frozenset[int]:
        """Every replica that may be in sync by now: what is committed has to be on all of them."""
        return frozenset(self.isr).union(self.wanted_isr or ())

    @property
    def least_in_sync(self) -> int:
        """min.insync.replicas, but not more than there are replicas, as in Kafka since 3.9."""
        return least_in_sync(self.min_in_sync, len(self.replicas))

    @property
    def is_under_min_isr(self) -> bool:
        """Whether a produce with acks=all, and what the broker writes, gets NOT_ENOUGH_REPLICAS."""
        return len(self.isr) < self.least_in_sync

    @property
    def is_maximal_under_min_isr(self) -> bool:
        """Whether what was appended before gets NOT_ENOUGH_REPLICAS_AFTER_APPEND."""
        return len(self.maximal_isr) < self.least_in_sync

    def adopt(self, isr: Sequence[int], partition_epoch: int) -> bool:
        """The controller has answered: these are in sync now, in the present leader epoch. False if
        something later is known; what was wanted is settled either way.
        """
        self.wanted_isr = None
        if partition_epoch <= self.partition_epoch:
            return False
        self.isr = tuple(isr)
        self.partition_epoch = partition_epoch
        return True

    def take(self, image: PartitionImage) -> Change | None:
        """Take the state from the controller; None if nothing has changed."""
        before = self.role, self.leader_epoch, self.partition_epoch, self.leader, self.isr
        if (image.leader_epoch, image.partition_epoch) < (self.leader_epoch, self.partition_epoch):
            return None
        wanted = self.wanted_isr
        self.replicas = tuple(image.replicas)
        if image.leader == self._broker_id:
            self.is_suspect = self.is_suspect and len(image.replicas) > 1
            self._become(Role.REPAIRING if self.is_suspect else Role.LEADER, image)
        elif self._broker_id in image.replicas:
            self._become(Role.FOLLOWER, image)
        else:
            self._become(Role.NONE, image)
        after = self.role, self.leader_epoch, self.partition_epoch, self.leader, self.isr
        if after == before:
            self.wanted_isr = wanted
            return None
        led_in = before[1] if before[0] is Role.LEADER else None
        return Change(
            began=self.leads and led_in != self.leader_epoch,
            gained=self.leads and led_in is None,
            lost=not self.leads and led_in is not None,
        )

    def _become(self, role: Role, image: PartitionImage) -> None:
        self.role = role
        self.leader = image.leader
        self.leader_epoch = image.leader_epoch
        self.partition_epoch = image.partition_epoch
        self.isr = tuple(image.isr)
        self.wanted_isr = None

    def lead_repaired(self) -> Change | None:
        """Lead, with what the other replicas had; None if the role is another by now."""
        if self.role is not Role.REPAIRING:
            return None
        self.role = Role.LEADER
        self.is_suspect = False
        return Change(began=True, gained=True, lost=False)

    def resign(self) -> Change | None:
        """The partition is no longer in the metadata: its log is kept but not served until the
        controller deletes it or assigns a role.
        """
        if self.role is Role.NONE:
            return None
        lost = self.leads
        self.role = Role.NONE
        self.leader = NO_LEADER
        return Change(began=False, gained=False, lost=lost)
