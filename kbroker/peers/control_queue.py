"""Queue of control requests for one broker, merged where order does not matter. Pure.

A broker that did not respond for a while must not get every change of that time one by one. An
UpdateMetadata is merged into a queued one: early metadata does no harm. A LeaderAndIsr is merged,
too; behind an UpdateMetadata that announces other brokers the merged one goes to the end, because a
follower must know the address of its leader first. Without other brokers it keeps its place: else
frequent changes would put it off for as long as they come. Nothing passes a StopReplica.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

from kbroker.cluster.control_requests import (
    ControlRequest,
    ControlResponse,
    KnownPartition,
    LeaderAndIsr,
    LedPartition,
    LiveBroker,
    PartitionKey,
    StoppedPartition,
    StopReplica,
    UpdateMetadata,
)
from kbroker.ipc.pending import Pending

P = TypeVar("P", LedPartition, KnownPartition, StoppedPartition)


class Sent(NamedTuple):
    """A request of the controller, and the Pending it waits for."""

    request: ControlRequest
    pending: Pending[ControlResponse]


class QueuedRequest(NamedTuple):
    """A queued request. ``request``: all of ``sent``, merged."""

    request: ControlRequest
    sent: list[Sent]

    def resolve(self, response: ControlResponse) -> None:
        """Resolve each of ``sent`` with the results of its own partitions."""
        for request, pending in self.sent:
            if isinstance(request, UpdateMetadata) or not response.partitions:
                pending.resolve(response)
                continue
            keys = {one.key for one in request.partitions}
            codes = {key: code for key, code in response.partitions.items() if key in keys}
            pending.resolve(ControlResponse(response.error, codes))


class ControlQueue:
    """The queue for one registration of a broker."""

    def __init__(self) -> None:
        self._waiting: list[QueuedRequest] = []
        # The brokers of the last UpdateMetadata that was taken.
        self._announced: Mapping[int, LiveBroker] | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, request: ControlRequest) -> Pending[ControlResponse]:
        """Resolves with the response when ``resolve`` is called for the merged request."""
        sent = Sent(request, Pending())
        place = self._place(request)
        if place is None:
            self._waiting.append(QueuedRequest(request, [sent]))
            return sent.pending
        earlier = self._waiting[place]
        made = QueuedRequest(merge(earlier.request, request), [*earlier.sent, sent])
        if isinstance(request, LeaderAndIsr) and self._announces(self._waiting[place:]):
            del self._waiting[place]
            self._waiting.append(made)
        else:
            self._waiting[place] = made
        return sent.pending

    def _announces(self, waiting: Iterable[QueuedRequest]) -> bool:
        """Whether one of these has other brokers than the peer knows."""
        return any(
            isinstance(one.request, UpdateMetadata) and one.request.live_brokers != self._announced
            for one in waiting
        )

    def _place(self, request: ControlRequest) -> int | None:
        """The index of a queued request that this one can be merged with."""
        for place in range(len(self._waiting) - 1, -1, -1):
            waits = self._waiting[place].request
            if type(waits) is type(request):
                return place if waits.sender == request.sender else None
            if isinstance(waits, StopReplica) or isinstance(request, StopReplica):
                return None
        return None

    def take(self) -> QueuedRequest:
        """Take the next request; nothing is merged into it any more."""
        taken = self._waiting.pop(0)
        if isinstance(taken.request, UpdateMetadata):
            self._announced = taken.request.live_brokers
        return taken


def merge(earlier: ControlRequest, later: ControlRequest) -> ControlRequest:
    """Merge two requests; where both name a partition, the second one counts."""
    if isinstance(earlier, LeaderAndIsr) and isinstance(later, LeaderAndIsr):
        known = {partition.key: partition for partition in earlier.partitions}
        partitions = [
            partition._replace(
                is_new=partition.is_new or (partition.key in known and known[partition.key].is_new)
            )
            for partition in later.partitions
        ]
        return later._replace(
            partitions=_latest(earlier.partitions, partitions),
            topic_ids={**earlier.topic_ids, **later.topic_ids},
        )
    if isinstance(earlier, UpdateMetadata) and isinstance(later, UpdateMetadata):
        return later._replace(
            partitions=_latest(earlier.partitions, later.partitions),
            topic_ids={**earlier.topic_ids, **later.topic_ids},
        )
    assert isinstance(earlier, StopReplica) and isinstance(later, StopReplica)
    # Partitions to be deleted stay so.
    deleted = {one.key for one in earlier.partitions if one.delete}
    stopped = [one._replace(delete=one.delete or one.key in deleted) for one in later.partitions]
    return later._replace(partitions=_latest(earlier.partitions, stopped))


def _latest(earlier: Iterable[P], later: Iterable[P]) -> list[P]:
    by_key: dict[PartitionKey, P] = {one.key: one for one in earlier}
    by_key |= {one.key: one for one in later}
    return list(by_key.values())
