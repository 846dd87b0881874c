"""Transaction markers for partitions that other brokers lead, sent by WriteTxnMarkers (27).

The io worker that coordinates a transaction has a link of its own to each broker concerned, made
when there is something for it. Its markers wait while a request is under way and go together with
the next one. Whatever goes wrong is a marker that was not written: the coordinator tries again, at
whoever leads the partition by then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kbroker.coordinator.transaction.markers import AWAY, TransactionMarker
from kbroker.coordinator.transaction.state import Partition
from kbroker.ipc.rpc import Pending, run
from kbroker.peers.link import LinkFailed
from kbroker.peers.versions import sent_version
from kbroker.protocol.api import ApiKey
from kbroker.protocol.codec import EncodeError
from kbroker.protocol.messages.write_txn_markers import (
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kbroker.workers.io.broker_links import BrokerQueue

if TYPE_CHECKING:
    from kbroker.workers.io.broker_links import BrokerLinks

# BOUND: partitions per request, unless a single transaction has more on one broker.
REQUEST_PARTITIONS_MAX = 2_000


class MarkersToWrite(NamedTuple):
    """Markers of one transaction. ``outcome``: gets the codes of the partitions that have one."""

    marker: TransactionMarker
    partitions: list[Partition]
    outcome: Pending[dict[Partition, int]]


class RemoteMarkers:
    """One per io worker."""

    def __init__(self, links: BrokerLinks) -> None:
        self.broker_id = links.broker_id
        self._links = links
        self._brokers: dict[int, OtherBroker] = {}

    def write(
        self, broker_id: int, wanted: Sequence[tuple[Partition, TransactionMarker]]
    ) -> Pending[list[int]]:
        """Send markers to that broker; resolves to their error codes, in order."""
        by_marker: dict[TransactionMarker, list[Partition]] = {}
        for partition, marker in wanted:
            by_marker.setdefault(marker, []).append(partition)
        broker = self._brokers.get(broker_id)
        if broker is None:
            broker = self._brokers[broker_id] = OtherBroker(self._links.make(broker_id))
        return run(_codes(wanted, {m: broker.write(m, p) for m, p in by_marker.items()}))


async def _codes(
    wanted: Sequence[tuple[Partition, TransactionMarker]],
    outcomes: dict[TransactionMarker, Pending[dict[Partition, int]]],
) -> list[int]:
    codes = {marker: await outcome for marker, outcome in outcomes.items()}
    return [codes[marker].get(partition, int(AWAY)) for partition, marker in wanted]


class OtherBroker(BrokerQueue[MarkersToWrite]):
    """The queue for one broker, and the link to it."""

    cannot = "cannot send transaction markers to broker %d"

    def write(
        self, marker: TransactionMarker, partitions: list[Partition]
    ) -> Pending[dict[Partition, int]]:
        """Resolves to the error codes of the broker's response, {} if there is none."""
        wanted = MarkersToWrite(marker, partitions, Pending())
        self.put(wanted)
        return wanted.outcome

    async def send(self, batch: list[MarkersToWrite]) -> None:
        codes = await self._ask(batch)
        for wanted in batch:
            wanted.outcome.resolve(codes.get(wanted.marker.producer_id, {}))

    def next_batch(self) -> list[MarkersToWrite]:
        """A response names a producer id once: its next transaction waits for the next request."""
        batch = [self.waiting.popleft()]
        count = len(batch[0].partitions)
        producers = {batch[0].marker.producer_id}
        while self.waiting:
            wanted = self.waiting[0]
            count += len(wanted.partitions)
            if wanted.marker.producer_id in producers or count > REQUEST_PARTITIONS_MAX:
                break
            producers.add(wanted.marker.producer_id)
            batch.append(self.waiting.popleft())
        return batch

    async def _ask(self, batch: list[MarkersToWrite]) -> dict[int, dict[Partition, int]]:
        """The codes by producer id."""
        try:
            version = sent_version(ApiKey.WRITE_TXN_MARKERS, self.link.protocol_version)
            assert version is not None, "every protocol has this request"
            response = await self.link.ask(markers_request(batch), version)
        except (LinkFailed, EncodeError) as error:
            self.failed(error)
            return {}
        return codes_in(response)


def markers_request(batch: Iterable[MarkersToWrite]) -> WriteTxnMarkersRequest:
    made, made_topic = (
        WriteTxnMarkersRequest.WritableTxnMarker,
        WriteTxnMarkersRequest.WritableTxnMarkerTopic,
    )
    markers = []
    for marker, partitions, _ in batch:
        topics: dict[str, list[int]] = {}
        for name, number in partitions:
            topics.setdefault(name, []).append(number)
        markers.append(
            made(
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                transaction_result=marker.commit,
                topics=[
                    made_topic(name=name, partition_indexes=numbers)
                    for name, numbers in topics.items()
                ],
                coordinator_epoch=marker.coordinator_epoch,
                transaction_version=marker.transaction_version,
            )
        )
    return WriteTxnMarkersRequest(markers=markers)


def codes_in(response: WriteTxnMarkersResponse | Any) -> dict[int, dict[Partition, int]]:
    """Error codes by producer id and partition."""
    codes: dict[int, dict[Partition, int]] = {}
    for marker in response.markers:
        partition_codes = codes.setdefault(marker.producer_id, {})
        for topic in marker.topics:
            for row in topic.partitions:
                partition_codes[topic.name, row.partition_index] = row.error_code
    return codes
