"""In-sync replicas that the leader of a partition wants to have changed."""

from __future__ import annotations

from typing import NamedTuple

from kbroker.errors import ErrorCode
from kbroker.ipc.calls.base import CONTROLLER, IO_WORKER, Nothing
from kbroker.ipc.calls.image import HELLO_DEADLINE_MS
from kbroker.ipc.documents import Document
from kbroker.ipc.operation import CallOperation


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


class IsrResult(NamedTuple):
    """``state``: the current state, if there is no error."""

    error: ErrorCode
    state: IsrState | None = None


class GoneFollower(Document):
    """Connections of a broker have ended at this monotonic time, and it cannot be reached."""

    broker_id: int
    closed_ms: int


class LastHeard(Document):
    """When the broker has last asked for records here; 0 if it has not."""

    heard_ms: int


class IsrChangeRequests(Document):
    wanted: list[WantedIsr]


# The controller is asked until it responds; after this time the leader asks its own broker again.
ALTER_ISR_DEADLINE_MS = 30_000

# The results, in request order. After an error a LeaderAndIsr is on its way.
ALTER_ISR = CallOperation(
    "alter_isr", IsrChangeRequests, list[IsrResult], (CONTROLLER,), ALTER_ISR_DEADLINE_MS
)
# Changes without a result; a starting io worker requests them before the image.
PENDING_ISR = CallOperation(
    "pending_isr", Nothing, list[WantedIsr], (CONTROLLER,), HELLO_DEADLINE_MS
)
# Leaders drop a follower that is gone from the in-sync replicas, unless it still fetches.
GONE_FOLLOWER = CallOperation("gone_follower", GoneFollower, LastHeard, (IO_WORKER,), 2_000)
