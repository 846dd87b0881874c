"""In-sync replicas that the leader of a partition wants to have changed."""

from __future__ import annotations

from typing import NamedTuple

from kbroker.errors import ErrorCode


class WantedIsr(NamedTuple):
    """The ISR that a leader proposes. ``partition_epoch``: of the state it is based on."""

    topic: str
    partition: int
    leader_epoch: int
    isr: list[int]
    partition_epoch: int

    @property
    def key(self) -> tuple[str, int]:
        return self.topic, self.partition


class IsrState(NamedTuple):
    """The state of a partition in the metadata store."""

    leader: int
    leader_epoch: int
    isr: list[int]
    partition_epoch: int


class IsrAnswer(NamedTuple):
    """``state``: the current state, if there is no error."""

    error: ErrorCode
    state: IsrState | None = None
