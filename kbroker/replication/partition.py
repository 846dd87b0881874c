"""This broker's part in one partition: its role, the epochs, and the in-sync replicas.

Pure: ``take`` is given what the controller says and returns what follows from it; the io worker
that owns the log (``workers/io/hosted``) does it. Nothing here knows of files, slots or clocks.

INVARIANT: a role is only ever replaced by one of the same or a later leader epoch, and within one
leader epoch by a later partition epoch. What comes late changes nothing.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from kbroker._ext.shared import partition_table

if TYPE_CHECKING:
    from kbroker.cluster.image import PartitionImage

NO_LEADER = -1
NO_EPOCH = -1


class Role(IntEnum):
    """The numbers are those of a slot."""

    NONE = partition_table.NO_ROLE
    LEADER = partition_table.LEADER
    FOLLOWER = partition_table.FOLLOWER


class Change(NamedTuple):
    """What new metadata changes for a partition.

    began: this broker leads from now on, or leads on in a new leader epoch, which begins at the log
    end. gained: it did not lead before. lost: it does not lead any more; clients that wait for a
    commit look for the new leader.
    """

    began: bool
    gained: bool
    lost: bool


class Partition:
    """One partition's replica on broker ``broker_id``.

    min_in_sync: min.insync.replicas, which the owner keeps up to date.
    """

    __slots__ = (
        "_broker_id",
        "isr",
        "leader",
        "leader_epoch",
        "min_in_sync",
        "partition_epoch",
        "replicas",
        "role",
    )

    def __init__(self, broker_id: int, min_in_sync: int = 1) -> None:
        self._broker_id = broker_id
        self.min_in_sync = min_in_sync
        self.role = Role.NONE
        self.leader = NO_LEADER
        self.leader_epoch = NO_EPOCH
        self.partition_epoch = NO_EPOCH
        self.isr: tuple[int, ...] = ()
        self.replicas: tuple[int, ...] = ()

    @property
    def leads(self) -> bool:
        return self.role is Role.LEADER

    @property
    def is_alone(self) -> bool:
        """Whether appends are committed at once: it leads, and no other replica is in sync."""
        return self.leads and self.isr == (self._broker_id,)

    @property
    def is_under_min_isr(self) -> bool:
        """Whether a produce with acks=all gets NOT_ENOUGH_REPLICAS."""
        return len(self.isr) < self.min_in_sync

    def take(self, told: PartitionImage) -> Change | None:
        """Take the state from the controller; None if nothing has changed."""
        before = self.role, self.leader_epoch, self.partition_epoch, self.leader, self.isr
        if (told.leader_epoch, told.partition_epoch) < (self.leader_epoch, self.partition_epoch):
            return None
        self.replicas = tuple(told.replicas)
        if told.leader == self._broker_id:
            self._become(Role.LEADER, told)
        elif self._broker_id in told.replicas:
            self._become(Role.FOLLOWER, told)
        else:
            self._become(Role.NONE, told)
        after = self.role, self.leader_epoch, self.partition_epoch, self.leader, self.isr
        if after == before:
            return None
        led_in = before[1] if before[0] is Role.LEADER else None
        return Change(
            began=self.leads and led_in != self.leader_epoch,
            gained=self.leads and led_in is None,
            lost=not self.leads and led_in is not None,
        )

    def _become(self, role: Role, told: PartitionImage) -> None:
        self.role = role
        self.leader = told.leader
        self.leader_epoch = told.leader_epoch
        self.partition_epoch = told.partition_epoch
        self.isr = tuple(told.isr)

    def resign(self) -> Change | None:
        """The partition is no longer in the metadata: its log stays, but is not served, until the
        controller has it deleted or gives it a role.
        """
        if self.role is Role.NONE:
            return None
        lost = self.leads
        self.role = Role.NONE
        self.leader = NO_LEADER
        return Change(began=False, gained=False, lost=lost)
