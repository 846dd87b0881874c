"""All figures of this broker, and the texts that are made of them: ``/metrics`` and ``/jmx``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from kbroker.cluster.image import ClusterImage
from kbroker.exposition.as_kafka_exporter import ToldPartition, cluster_lines, partition_lines
from kbroker.exposition.jmx import jmx_pieces
from kbroker.exposition.mbeans import (
    CONFLUENT,
    EXPORTER,
    GAUGE,
    HISTOGRAMS,
    JMX,
    NATIVE,
    NO_TAGS,
    WRITERS,
    Bean,
    Samples,
    Tags,
    plain_lines,
)
from kbroker.exposition.meter_rates import MeterRates
from kbroker.internal_topics import OFFSETS_TOPIC
from kbroker.workers.exporter.clients import ClientSoftware
from kbroker.workers.exporter.groups import LagCollector
from kbroker.workers.exporter.partitions import PartitionFigures, Seen
from kbroker.workers.exporter.processes import ProcessFigures
from kbroker.workers.exporter.pushed import PushedMetrics
from kbroker.workers.exporter.requests import RequestFigures
from kbroker.workers.exporter.whole_broker import WholeBroker

# For so long what was seen of partitions serves further scrapes.
SEEN_S = 1.0
LEADERS = Bean(
    "kafka.server", "ReplicaManager", "LeaderCount", GAUGE, "Partitions that are led here."
)
REPLICAS = Bean(
    "kafka.server", "ReplicaManager", "PartitionCount", GAUGE, "Replicas on this broker."
)
AT_MIN_ISR = Bean(
    "kafka.server", "ReplicaManager", "AtMinIsrPartitionCount", GAUGE,
    "Partitions led here with exactly min.insync.replicas in sync.",
)  # fmt: skip
TOPICS = Bean(
    "kafka.controller", "KafkaController", "GlobalTopicCount", GAUGE, "Topics of the cluster."
)
PARTITIONS = Bean(
    "kafka.controller", "KafkaController", "GlobalPartitionCount", GAUGE,
    "Partitions of the cluster.",
)  # fmt: skip


class Figures:
    """Puts together what the sources tell. native: the text of this broker's own metrics.

    partitions_max: with more replicas, those of single partitions are left out. own_host: see
    ``addresses``. rates: of ``/jmx``.
    """

    def __init__(
        self,
        image: ClusterImage,
        broker_id: int,
        whole: WholeBroker,
        requests: RequestFigures,
        partitions: PartitionFigures,
        groups: LagCollector,
        processes: ProcessFigures,
        clients: ClientSoftware,
        pushed: PushedMetrics,
        native: Callable[[], Iterator[str]],
        names: Iterable[str],
        partitions_max: int,
        own_host: str,
        rates: MeterRates,
    ) -> None:
        self._rates = rates
        self._image = image
        self._broker_id = broker_id
        self._whole = whole
        self._requests = requests
        self._partitions = partitions
        self._groups = groups
        self._processes = processes
        self._clients = clients
        self._pushed = pushed
        self._native = native
        self._names = frozenset(names)
        self._partitions_max = partitions_max
        self._own_host = own_host
        self._seen: list[Seen] = []
        self._seen_until_s = 0.0

    def tick(self) -> None:
        """Called now and then, so that there are older figures to compare with."""
        self._whole.tick()
        self._requests.tick()
        if self._seen and time.monotonic() >= self._seen_until_s:
            self._seen = []  # its memory is wanted elsewhere

    def image_changed(self) -> None:
        self._partitions.forget()
        self._seen_until_s = 0.0

    def seen(self) -> list[Seen]:
        """What can be told of each replica."""
        now_s = time.monotonic()
        if now_s >= self._seen_until_s:
            self._seen = list(self._partitions.look())
            self._seen_until_s = now_s + SEEN_S
        return self._seen

    def samples(self) -> Iterator[Samples]:
        """All MBeans."""
        seen = self.seen()
        yield from self._whole.samples()
        yield from self._clients.samples()
        yield from self._processes.samples(self._processes.look())
        totals = self._whole.topic_totals()
        for bean, by_topic in self._partitions.topic_samples(seen):
            yield bean, chain(totals.get(bean, ()), by_topic)
        yield LEADERS, [(NO_TAGS, sum(one.leads for one in seen))]
        yield REPLICAS, [(NO_TAGS, len(self._partitions.replicas()))]
        if self._is_controller:
            topics = self._image.topics.values()
            yield TOPICS, [(NO_TAGS, len(topics))]
            yield PARTITIONS, [(NO_TAGS, sum(len(topic.partitions) for topic in topics))]
        yield AT_MIN_ISR, [(NO_TAGS, self._partitions.at_min_isr(seen))]
        yield from self._requests.samples()
        if len(seen) <= self._partitions_max:
            yield from self._partitions.partition_samples(seen)

    @property
    def committed_offsets(self) -> int:
        """How many io workers told of when they were last asked."""
        return self._groups.count

    def forget_lags(self) -> None:
        """The next refresh asks for lags, however long ago it was done."""
        self._groups.forget()

    def exact_lags(self) -> dict[str, int]:
        """The lag of each group that this broker knows by itself, as of the last refresh."""
        return self._groups.exact_lags()

    async def refresh(self) -> None:
        """Ask for what is not in shared memory, unless that was done a moment ago. If there is no
        topic of committed offsets, nobody is asked.
        """
        if not self._groups.is_fresh and OFFSETS_TOPIC in self._image.topics:
            await self._groups.refresh(self._partitions.ends)
        if self._image.client_metrics and NATIVE in self._names:
            await self._pushed.refresh()
        else:
            self._pushed.forget()

    @property
    def _is_controller(self) -> bool:
        return self._image.controller_id == self._broker_id

    def metrics(self) -> Iterator[str]:
        """The text of ``/metrics``, in pieces."""
        if NATIVE in self._names:
            yield from self._native()
            if self._is_controller:
                yield from missing_lines(self._image)
            yield from self._left_out()
            yield from self._processes.lines(self._processes.look())
            yield from self._groups.native_lines()
            yield from self._pushed.lines()
        if HISTOGRAMS in self._names:
            yield from self._requests.histogram_lines()
        families = [WRITERS[name] for name in (JMX, CONFLUENT) if name in self._names]
        if families:
            for bean, samples in self.samples():
                kept = list(samples) if len(families) > 1 else samples
                for lines in families:
                    yield from lines(bean, kept)
        if EXPORTER in self._names:
            seen = self.seen()
            if self._is_controller:
                counts = {name: len(one.partitions) for name, one in self._image.topics.items()}
                yield from cluster_lines(addresses(self._image, self._own_host), counts)
            if len(seen) <= self._partitions_max:
                yield from partition_lines([as_told(one) for one in seen if one.leads])
            yield from self._groups.exporter_lines()

    def groups(self) -> Iterator[str]:
        """The text of ``/groups``, in pieces."""
        return self._groups.document()

    def _left_out(self) -> Iterator[str]:
        count = len(self.seen())
        yield from plain_lines(
            "kbroker_metrics_left_out",
            "gauge",
            "What has no series of its own, as there is more of it than metrics.partitions.max or "
            "metrics.group.partitions.max.",
            [
                (Tags(("of", "partitions")), count if count > self._partitions_max else 0),
                (Tags(("of", "offsets")), self._groups.left_out),
                (Tags(("of", "client-metrics")), self._pushed.left_out),
            ],
        )

    def jmx(self, pattern: str) -> Iterator[str]:
        """The text of ``/jmx``, in pieces: the MBeans whose names match a pattern with ``*``."""
        yield from jmx_pieces(self.samples(), self._rates, pattern)


def as_told(seen: Seen) -> ToldPartition:
    image = seen.replica.image
    return ToldPartition(
        seen.replica, seen.start, seen.high_watermark, image.leader, image.replicas, image.isr
    )


def addresses(image: ClusterImage, own_host: str) -> dict[int, str]:
    """Of each broker. own_host: of one that tells clients the address by which they have reached
    it.
    """
    return {
        broker_id: next((f"{one.host or own_host}:{one.port}" for one in broker.endpoints), "")
        for broker_id, broker in image.brokers.items()
    }


def missing_lines(image: ClusterImage) -> Iterator[str]:
    """Of brokers that have replicas but are not registered."""
    missing = image.missing()
    yield from plain_lines(
        "kbroker_brokers_missing", "gauge", "Brokers that have replicas but are not registered.",
        [(NO_TAGS, len(missing))],
    )  # fmt: skip
    yield from plain_lines(
        "kbroker_broker_missing", "gauge", "1 for each of them.",
        ((Tags(("broker", str(broker_id))), 1) for broker_id in missing),
    )  # fmt: skip
