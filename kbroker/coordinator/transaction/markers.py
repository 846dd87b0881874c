"""Sends commit and abort markers to the partitions of a transaction.

The io worker that owns a partition appends its marker (operation WRITE_MARKERS). Each of them
gets one call with all markers that it has to write; those of partitions that another broker leads
are sent to it. Writing a marker again does no harm: until its transaction is complete no other one
begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kbroker.coordinator.transaction.state import Partition
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc import calls
from kbroker.protocol.messages.write_txn_markers import (
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kbroker.types import SlotId

if TYPE_CHECKING:
    from kbroker.cluster.image import ClusterImage
    from kbroker.ipc.process_table import Address
    from kbroker.ipc.rpc import Pending, Rpc

# The result for a partition that does not exist, or no longer exists.
GONE = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
# The partition exists, but no io worker can write to it: worth a retry.
AWAY = ErrorCode.NOT_LEADER_OR_FOLLOWER


class TransactionMarker(NamedTuple):
    """The end of a producer's transaction, for one partition."""

    producer_id: int
    producer_epoch: int
    commit: bool
    coordinator_epoch: int
    transaction_version: int


SendMarkers = Callable[["Address", list[calls.SlotMarker]], "Pending[list[int]]"]


class Elsewhere(NamedTuple):
    """Another broker, which leads a partition."""

    broker_id: int


class OtherBrokers(Protocol):
    """The way to them: ``workers.io.remote_markers``."""

    broker_id: int  # of this broker

    def write(
        self, broker_id: int, wanted: Sequence[tuple[Partition, TransactionMarker]]
    ) -> Pending[list[int]]:
        """Send markers to that broker; resolves to their error codes, in order."""


def over(rpc: Rpc) -> SendMarkers:
    """The ``send`` for a process without logs of its own."""
    return lambda worker, rows: rpc.call(worker, calls.WRITE_MARKERS, calls.WriteMarkers(rows))


class MarkerWriter:
    """Sends each marker to the owner of its partition."""

    def __init__(
        self,
        send: SendMarkers,
        image: Callable[[], ClusterImage],
        io_worker: Callable[[SlotId], Address],
        others: OtherBrokers | None = None,
    ) -> None:
        """send: writes markers through an io worker, and resolves to their error codes. io_worker:
        the owner of a slot. others: None to write only to partitions led here.
        """
        self._send = send
        self._image = image
        self._io_worker = io_worker
        self._others = others

    def find(self, partition: Partition) -> tuple[Address, SlotId] | Elsewhere | ErrorCode:
        """The io worker that writes the partition's marker, and its slot; or the broker that does;
        or GONE, or AWAY.
        """
        topic = self._image().topics.get(partition[0])
        if topic is None or not 0 <= partition[1] < len(topic.partitions):
            return GONE
        image = topic.partitions[partition[1]]
        slot, leader = image.slot, image.leader
        if self._others is not None and leader != self._others.broker_id:
            return AWAY if leader < 0 else Elsewhere(leader)
        return AWAY if slot < 0 else (self._io_worker(slot), slot)

    async def write(self, wanted: Sequence[tuple[Partition, TransactionMarker]]) -> list[ErrorCode]:
        """Write markers; returns the result of each, in order. Never raises."""
        outcomes = [AWAY] * len(wanted)
        # worker -> the numbers of its markers, and the markers as it gets them; the same by broker
        by_worker: dict[Address, tuple[list[int], list[calls.SlotMarker]]] = {}
        by_broker: dict[int, tuple[list[int], list[tuple[Partition, TransactionMarker]]]] = {}
        for number, (partition, marker) in enumerate(wanted):
            target = self.find(partition)
            if isinstance(target, ErrorCode):
                outcomes[number] = target
                continue
            if isinstance(target, Elsewhere):
                numbers, entries = by_broker.setdefault(target.broker_id, ([], []))
                numbers.append(number)
                entries.append((partition, marker))
                continue
            numbers, rows = by_worker.setdefault(target[0], ([], []))
            numbers.append(number)
            rows.append(calls.SlotMarker(target[1], *marker))
        started = [
            (numbers, self._send(worker, rows)) for worker, (numbers, rows) in by_worker.items()
        ]
        if self._others is not None:
            started += [
                (numbers, self._others.write(broker_id, entries))
                for broker_id, (numbers, entries) in by_broker.items()
            ]
        for numbers, pending in started:
            try:
                codes = await pending
            except WireError:
                continue  # these stay AWAY, and are written again
            for number, code in zip(numbers, codes, strict=True):
                outcomes[number] = ErrorCode(code)
        return outcomes

    async def serve(self, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        """Answer WriteTxnMarkers (27), the request of another broker, for partitions of this one.

        As in Kafka a producer id is answered once, with all its partitions.
        """
        wanted = [
            (
                (topic.name, partition),
                TransactionMarker(
                    marker.producer_id,
                    marker.producer_epoch,
                    marker.transaction_result,
                    marker.coordinator_epoch,
                    marker.transaction_version,
                ),
            )
            for marker in request.markers
            for topic in marker.topics
            for partition in topic.partition_indexes
        ]
        outcomes = await self.write(wanted)
        results: dict[int, dict[Partition, ErrorCode]] = {
            marker.producer_id: {} for marker in request.markers
        }
        for (partition, marker), code in zip(wanted, outcomes, strict=True):
            results[marker.producer_id][partition] = code
        made = WriteTxnMarkersResponse.WritableTxnMarkerResult
        return WriteTxnMarkersResponse(
            markers=[
                made(producer_id=producer_id, topics=_topics(codes.items()))
                for producer_id, codes in results.items()
            ]
        )


def _topics(
    codes: Iterable[tuple[Partition, ErrorCode]],
) -> list[Any]:
    made = WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult
    topics: dict[str, list[Any]] = {}
    for (topic, partition), code in codes:
        topics.setdefault(topic, []).append(made(partition_index=partition, error_code=int(code)))
    return [
        WriteTxnMarkersResponse.WritableTxnMarkerTopicResult(name=topic, partitions=partitions)
        for topic, partitions in topics.items()
    ]
