"""Transaction markers for partitions that other brokers lead, sent by WriteTxnMarkers (27).

The io worker that coordinates a transaction has a link of its own to each broker concerned, made
when there is something for it. Its markers wait while a request is under way and go together with
the next one. Whatever goes wrong is a marker that was not written: the coordinator tries again, at
whoever leads the partition by then.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kbroker.coordinator.transaction.markers import AWAY, Marker
from kbroker.coordinator.transaction.state import Partition
from kbroker.ipc.rpc import Pending, run
from kbroker.logcontext import RateLimit
from kbroker.peers.connecting import Connecting
from kbroker.peers.endpoints import inter_broker_endpoint
from kbroker.peers.link import Endpoint, Link, LinkFailed, Times
from kbroker.peers.versions import sent_version
from kbroker.protocol.api import ApiKey
from kbroker.protocol.codec import EncodeError
from kbroker.protocol.messages.write_txn_markers import (
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kbroker.workers.base import now_ms, raise_failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from kbroker.cluster.image import ClusterImage
    from kbroker.config.loader import BrokerConfig

logger = logging.getLogger(__name__)

# BOUND: partitions per request, unless a single transaction has more on one broker.
REQUEST_PARTITIONS_MAX = 2_000


class Process(Protocol):
    """The io worker."""

    @property
    def image(self) -> ClusterImage: ...

    @property
    def config(self) -> BrokerConfig: ...

    def add_reader(self, fd: int, callback: Callable[[], None]) -> None: ...
    def remove_reader(self, fd: int) -> None: ...
    def watch_writable(self, fd: int, wanted: bool) -> None: ...


class Wanted(NamedTuple):
    """Markers of one transaction. ``outcome``: gets the codes of the partitions that have one."""

    marker: Marker
    partitions: list[Partition]
    outcome: Pending[dict[Partition, int]]


class RemoteMarkers:
    """One per io worker, which calls ``tick``. broker_id: of this broker."""

    def __init__(self, process: Process, broker_id: int) -> None:
        self.broker_id = broker_id
        self._process = process
        self._connecting: Connecting | None = None
        self._brokers: dict[int, OtherBroker] = {}

    def write(
        self, broker_id: int, wanted: Sequence[tuple[Partition, Marker]]
    ) -> Pending[list[int]]:
        """Send markers to that broker; resolves to their error codes, in order."""
        by_marker: dict[Marker, list[Partition]] = {}
        for partition, marker in wanted:
            by_marker.setdefault(marker, []).append(partition)
        broker = self._brokers.get(broker_id)
        if broker is None:
            broker = self._brokers[broker_id] = OtherBroker(broker_id, self._process, self._link())
        return run(_codes(wanted, {m: broker.write(m, p) for m, p in by_marker.items()}))

    def _link(self) -> Link:
        process, config = self._process, self._process.config
        if self._connecting is None:
            self._connecting = Connecting()
            process.add_reader(self._connecting.fd, self._connecting.run)
        times = Times(config["socket.connection.setup.timeout.ms"], config["request.timeout.ms"])
        return Link(process, self._connecting, str(self.broker_id), times, now_ms)

    def tick(self, now: int) -> None:
        """Give up requests that take too long."""
        for broker in list(self._brokers.values()):
            broker.link.tick(now)

    def close(self) -> None:
        """The process ends."""
        for broker in self._brokers.values():
            broker.link.close()


async def _codes(
    wanted: Sequence[tuple[Partition, Marker]],
    outcomes: dict[Marker, Pending[dict[Partition, int]]],
) -> list[int]:
    found = {marker: await outcome for marker, outcome in outcomes.items()}
    return [found[marker].get(partition, int(AWAY)) for partition, marker in wanted]


class OtherBroker:
    """The queue for one broker, and the link to it."""

    def __init__(self, broker_id: int, process: Process, link: Link) -> None:
        self.link = link
        self._broker_id = broker_id
        self._process = process
        self._endpoint: Endpoint | None = None
        self._waiting: deque[Wanted] = deque()
        self._is_working = False
        self._failures = RateLimit()

    def write(self, marker: Marker, partitions: list[Partition]) -> Pending[dict[Partition, int]]:
        """Resolves to the error codes of the broker's response, {} if there is none."""
        wanted = Wanted(marker, partitions, Pending())
        self._waiting.append(wanted)
        if not self._is_working:
            run(self._work()).then(raise_failure)
        return wanted.outcome

    async def _work(self) -> None:
        self._is_working = True
        while self._waiting:
            batch = self._next_batch()
            codes = await self._ask(batch)
            for wanted in batch:
                wanted.outcome.resolve(codes.get(wanted.marker.producer_id, {}))
        self._is_working = False

    def _next_batch(self) -> list[Wanted]:
        """A response names a producer id once: its next transaction waits for the next request."""
        batch = [self._waiting.popleft()]
        count = len(batch[0].partitions)
        producers = {batch[0].marker.producer_id}
        while self._waiting:
            wanted = self._waiting[0]
            count += len(wanted.partitions)
            if wanted.marker.producer_id in producers or count > REQUEST_PARTITIONS_MAX:
                break
            producers.add(wanted.marker.producer_id)
            batch.append(self._waiting.popleft())
        return batch

    async def _ask(self, batch: list[Wanted]) -> dict[int, dict[Partition, int]]:
        """The codes by producer id."""
        try:
            endpoint = self._present_endpoint()
            version = sent_version(ApiKey.WRITE_TXN_MARKERS, self._process.config.protocol_version)
            assert version is not None, "every protocol has this request"
            response = await self.link.ask(endpoint, markers_request(batch), version)
        except (LinkFailed, EncodeError) as error:
            times = self._failures.due()
            if times:
                text = "cannot send transaction markers to broker %d (%d times): %s; trying again"
                logger.warning(text, self._broker_id, times, error)
            return {}
        return codes_in(response)

    def _present_endpoint(self) -> Endpoint:
        """Raises LinkFailed. A broker that has moved gets another connection."""
        process = self._process
        endpoint = inter_broker_endpoint(process.image, self._broker_id, process.config)
        if endpoint != self._endpoint:
            self.link.close("it has moved")
            self._endpoint = endpoint
        return endpoint


def markers_request(batch: Iterable[Wanted]) -> WriteTxnMarkersRequest:
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
        found = codes.setdefault(marker.producer_id, {})
        for topic in marker.topics:
            for row in topic.partitions:
                found[topic.name, row.partition_index] = row.error_code
    return codes
