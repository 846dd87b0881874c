"""The common part of all kinds of groups."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kbroker.coordinator.machine import CoordinatorOperation

CLASSIC, CONSUMER = "classic", "consumer"


class Group(ABC):
    """One group. kind: ``classic`` or ``consumer``, Kafka's group type in lower case."""

    __slots__ = ("group_id",)

    kind: str

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id

    @property
    @abstractmethod
    def state(self) -> str:
        """Kafka's name of the state: ``Empty``, ``Stable`` and so on."""

    protocol_type: str
    """``consumer`` for consumers; empty for a group that only ever committed offsets."""

    @property
    @abstractmethod
    def is_empty(self) -> bool:
        """Whether it has no member."""

    @property
    @abstractmethod
    def empty_since_ms(self) -> int | None:
        """Wall clock ms since when it has been empty; None if it has members, -1 if unknown."""

    @abstractmethod
    def subscribes_to(self, topic: str) -> bool:
        """Whether a member wants the topic, so that its offsets neither expire nor are deleted.

        True as well when that cannot be told, for a group with members whose subscription is not
        readable.
        """

    @abstractmethod
    def check_commit(
        self,
        member_id: str,
        instance_id: str | None,
        epoch: int,
        *,
        version: int,
        transactional: bool = False,
        partitions: Iterable[tuple[bytes | None, int]] | None = None,
    ) -> None:
        """Raise a WireError for a commit that is not allowed. It also counts as a heartbeat.

        epoch: the generation, or the member's epoch. version: of OffsetCommit or TxnOffsetCommit.
        partitions: what is committed, by topic id (None: no such topic). Without it, only the
        present epoch is accepted.
        """

    @abstractmethod
    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        """Raise the WireError of an OffsetFetch (version 9 on) that names a stale member."""

    @abstractmethod
    def check_deletion(self) -> None:
        """Raise NON_EMPTY_GROUP, or another error that forbids DeleteGroups."""

    @abstractmethod
    def delete(self, op: CoordinatorOperation) -> None:
        """Append the tombstones of the group's own records, not of its offsets."""
