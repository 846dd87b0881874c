"""Figures of the whole broker, from the counters of its processes, by Kafka's names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from kbroker.exposition.mbeans import (
    ATTRIBUTE,
    GAUGE,
    METER,
    NO_TAGS,
    PERCENT,
    Bean,
    Sample,
    Samples,
    Tags,
)
from kbroker.ipc.process_table import Address, ProcessKind
from kbroker.metrics import catalog
from kbroker.metrics.catalog import MetricRow
from kbroker.metrics.slots import Counters
from kbroker.metrics.window import Window
from kbroker.workers.exporter import coordinators
from kbroker.workers.exporter.partitions import TOPIC_BEANS

SERVER, NETWORK, CONTROLLER, LOG = "kafka.server", "kafka.network", "kafka.controller", "kafka.log"

# MBeans without tags, each the sum of a metric over all processes.
SUMS: tuple[tuple[Bean, MetricRow], ...] = (
    (
        Bean(SERVER, "ReplicaManager", "UnderReplicatedPartitions", GAUGE,
             "Partitions led here with a replica that is not in sync."),
        catalog.UNDER_REPLICATED,
    ),
    (
        Bean(SERVER, "ReplicaManager", "UnderMinIsrPartitionCount", GAUGE,
             "Partitions led here with fewer than min.insync.replicas in sync."),
        catalog.UNDER_MIN_ISR,
    ),
    (
        Bean(SERVER, "ReplicaManager", "IsrShrinksPerSec", METER,
             "Changes that removed replicas from an ISR."),
        catalog.ISR_SHRINKS,
    ),
    (
        Bean(SERVER, "ReplicaManager", "IsrExpandsPerSec", METER,
             "Changes that added replicas to an ISR."),
        catalog.ISR_EXPANDS,
    ),
    (
        Bean(SERVER, "ReplicaFetcherManager", "FailedPartitionsCount", GAUGE,
             "Followed partitions that are not copied for now."),
        catalog.FOLLOWED_FAILED,
    ),
    (
        Bean(CONTROLLER, "KafkaController", "ActiveControllerCount", GAUGE,
             "1 on the broker that is the active controller."),
        catalog.ACTIVE_CONTROLLER,
    ),
    (
        Bean(CONTROLLER, "KafkaController", "OfflinePartitionsCount", GAUGE,
             "Partitions without a leader, on the active controller."),
        catalog.OFFLINE_PARTITIONS,
    ),
    (
        Bean(CONTROLLER, "KafkaController", "PreferredReplicaImbalanceCount", GAUGE,
             "Partitions whose leader is not the preferred replica, on the active controller."),
        catalog.PREFERRED_IMBALANCE,
    ),
    (
        Bean(CONTROLLER, "ControllerStats", "UncleanLeaderElectionsPerSec", METER,
             "Elections of a leader that was not in sync."),
        catalog.UNCLEAN_ELECTIONS,
    ),
    (
        Bean(CONTROLLER, "ControllerStats", "LeaderElectionsPerSec", METER,
             "Elections of a leader."),
        catalog.LEADER_ELECTIONS,
    ),
    (
        Bean(LOG, "LogCleanerManager", "max-dirty-percent", GAUGE,
             "Dirty share of the dirtiest compacted log."),
        catalog.CLEANER_MAX_DIRTY,
    ),
    (
        Bean(LOG, "LogCleanerManager", "time-since-last-run-ms", GAUGE,
             "Time since the cleaner last looked for a log."),
        catalog.CLEANER_LAST_RUN,
    ),
    (
        Bean(LOG, "LogCleanerManager", "uncleanable-partitions-count", GAUGE,
             "Partitions that cannot be compacted."),
        catalog.CLEANER_UNCLEANABLE,
    ),
    (
        Bean(LOG, "LogCleanerManager", "uncleanable-bytes", GAUGE,
             "Dirty bytes of partitions that cannot be compacted."),
        catalog.CLEANER_UNCLEANABLE_BYTES,
    ),
    (
        Bean("kafka.coordinator.group", "GroupMetadataManager", "NumOffsets", GAUGE,
             "Committed offsets in memory."),
        catalog.OFFSETS,
    ),
    (
        Bean("kafka.coordinator.group", "GroupMetadataManager", "NumGroupsEmpty", GAUGE,
             "Groups without members."),
        catalog.CLASSIC_GROUPS_EMPTY,
    ),
    (
        Bean("kafka.coordinator.group", "GroupMetadataManager", "NumGroupsPreparingRebalance",
             GAUGE, "Groups that wait for their members to join."),
        catalog.CLASSIC_GROUPS_PREPARING,
    ),
    (
        Bean("kafka.coordinator.group", "GroupMetadataManager", "NumGroupsCompletingRebalance",
             GAUGE, "Groups that wait for their leader's assignment."),
        catalog.CLASSIC_GROUPS_COMPLETING,
    ),
    (
        Bean("kafka.coordinator.group", "GroupMetadataManager", "NumGroupsStable", GAUGE,
             "Groups whose members have their assignment."),
        catalog.CLASSIC_GROUPS_STABLE,
    ),
    (
        Bean(NETWORK, "RequestChannel", "RequestQueueSize", GAUGE,
             "Requests that wait for a process or are worked on."),
        catalog.REQUEST_QUEUE,
    ),
    (
        Bean(SERVER, "FetchSessionCache", "NumIncrementalFetchSessions", GAUGE,
             "Incremental fetch sessions."),
        catalog.FETCH_SESSIONS,
    ),
    (
        Bean(SERVER, "FetchSessionCache", "IncrementalFetchSessionEvictionsPerSec", METER,
             "Fetch sessions that made room for others."),
        catalog.FETCH_SESSION_EVICTIONS,
    ),
)  # fmt: skip

# Kafka's all-topics figures, in the order of ``TOPIC_BEANS``; None: there is no total.
TOPIC_TOTALS: Mapping[str, MetricRow] = {
    "MessagesInPerSec": catalog.PRODUCE_MESSAGES,
    "BytesInPerSec": catalog.PRODUCE_BYTES,
    "BytesOutPerSec": catalog.CONSUMER_BYTES,
    "ReplicationBytesOutPerSec": catalog.FOLLOWER_BYTES,
    "FailedProduceRequestsPerSec": catalog.PRODUCE_FAILURES,
    "TotalFetchRequestsPerSec": catalog.PARTITION_READS,
    "FailedFetchRequestsPerSec": catalog.PARTITION_READS_FAILED,
}
# What coordinators append themselves counts, too.
OWN_TOTALS: Mapping[str, MetricRow] = {
    "MessagesInPerSec": catalog.OWN_MESSAGES,
    "BytesInPerSec": catalog.OWN_BYTES,
}
TOTAL_PRODUCES = "TotalProduceRequestsPerSec"

REPLICATION_BYTES_IN = Bean(
    SERVER, "BrokerTopicMetrics", "ReplicationBytesInPerSec", METER, "Bytes copied from leaders."
)
MAX_LAG = Bean(
    SERVER, "ReplicaFetcherManager", "MaxLag", GAUGE,
    "Records by which a followed partition is behind: the most.",
)  # fmt: skip
OFFLINE_DIRS = Bean(
    LOG, "LogManager", "OfflineLogDirectoryCount", GAUGE, "Log directories that are offline."
)
NETWORK_IDLE = Bean(
    NETWORK, "SocketServer", "NetworkProcessorAvgIdlePercent", PERCENT,
    "Share of their time for which network processes have nothing to do.",
)  # fmt: skip
PROCESSOR_IDLE = Bean(
    NETWORK, "Processor", "IdlePercent", PERCENT,
    "Share of its time for which a network process has nothing to do.",
)  # fmt: skip
HANDLER_IDLE = Bean(
    SERVER, "KafkaRequestHandlerPool", "RequestHandlerAvgIdlePercent", PERCENT,
    "Share of their time for which io workers have nothing to do.",
)  # fmt: skip
ACCEPTOR_BLOCKED = Bean(
    NETWORK, "Acceptor", "AcceptorBlockedPercent", PERCENT,
    "Share of the time for which connections had to wait to be accepted, by listener.",
)  # fmt: skip
PURGATORY = Bean(
    SERVER, "DelayedOperationPurgatory", "PurgatorySize", GAUGE,
    "Requests that wait: for data, or until what they appended is committed.",
)  # fmt: skip
# The names that these had before Kafka 0.9.
OLD_PURGATORIES = (
    (
        Bean(SERVER, "FetchRequestPurgatory", "PurgatorySize", GAUGE, "Fetches that wait."),
        catalog.FETCHES_WAITING,
    ),
    (
        Bean(SERVER, "ProducerRequestPurgatory", "PurgatorySize", GAUGE, "Appends that wait."),
        catalog.PRODUCES_WAITING,
    ),
)
RESPONSE_QUEUE = Bean(
    NETWORK, "RequestChannel", "ResponseQueueSize", GAUGE,
    "Responses that are not sent completely.",
)  # fmt: skip
# Kafka's numbers of states.
STARTING, RUNNING = 1, 3
BROKER_STATE = Bean(
    SERVER, "KafkaServer", "BrokerState", GAUGE, "3 while all processes serve, else 1."
)
CONNECTIONS = Bean(
    SERVER, "socket-server-metrics", "connection-count", ATTRIBUTE, "Open client connections."
)
EXPIRES = Bean(
    SERVER, "SessionExpireListener", "ZooKeeperExpiresPerSec", METER,
    "ZooKeeper sessions that expired.",
)  # fmt: skip

# No shares are told of a shorter time.
IDLE_NS_MIN = 1_000_000_000

Totals = dict[Address, int]  # nanoseconds without work


class WholeBroker:
    """listeners: their names, by index. offline_dirs: how many log directories are offline.

    is_serving: whether all processes serve.
    """

    def __init__(
        self,
        rows: Mapping[Address, Counters],
        listeners: Sequence[str],
        offline_dirs: Callable[[], int],
        now_ns: Callable[[], int],
        sample_count: int,
        sample_ms: int,
        uses_zookeeper: bool,
        is_serving: Callable[[], bool] = lambda: True,
    ) -> None:
        self._rows = rows
        self._listeners = listeners
        self._offline_dirs = offline_dirs
        self._now_ns = now_ns
        self._uses_zookeeper = uses_zookeeper
        self._is_serving = is_serving
        self._idle: Window[Totals] = Window(self._idle_totals, now_ns(), sample_count, sample_ms)
        self._blocked: Window[list[int]] = Window(
            self._blocked_totals, now_ns(), sample_count, sample_ms
        )

    def tick(self) -> None:
        self._idle.tick(self._now_ns())
        self._blocked.tick(self._now_ns())

    def sum_of(self, metric: MetricRow) -> int:
        return sum(counters.get(metric) for counters in self._rows.values())

    def topic_totals(self) -> dict[Bean, list[Sample]]:
        """The figures of all topics together, which never decrease."""
        samples: dict[Bean, list[Sample]] = {
            bean: [(NO_TAGS, self._total(bean.name))]
            for bean, _ in TOPIC_BEANS
            if bean.name in TOPIC_TOTALS
        }
        produces = sum(
            self.sum_of(metric)
            for metric in (catalog.PRODUCE_BATCHES, catalog.PRODUCE_FAILURES, catalog.OWN_BATCHES)
        )
        for bean, _ in TOPIC_BEANS:
            if bean.name == TOTAL_PRODUCES:
                samples[bean] = [(NO_TAGS, produces)]
        return samples

    def _total(self, name: str) -> int:
        own = OWN_TOTALS.get(name)
        return self.sum_of(TOPIC_TOTALS[name]) + (0 if own is None else self.sum_of(own))

    def samples(self) -> Iterator[Samples]:
        """All MBeans of the broker as a whole but those of topics."""
        for bean, metric in SUMS:
            yield bean, [(NO_TAGS, self.sum_of(metric))]
        yield REPLICATION_BYTES_IN, [(NO_TAGS, self.sum_of(catalog.FOLLOWED_BYTES))]
        lags = [counters.get(catalog.FOLLOWER_LAG_MAX) for counters in self._rows.values()]
        yield MAX_LAG, [(Tags(("clientId", "Replica")), max(lags))]
        yield OFFLINE_DIRS, [(NO_TAGS, self._offline_dirs())]
        if self._uses_zookeeper:
            yield EXPIRES, [(NO_TAGS, self.sum_of(catalog.ZOOKEEPER_SESSIONS_EXPIRED))]
        yield from self._idle_samples()
        yield from self._blocked_samples()
        yield (
            PURGATORY,
            [
                (Tags(("delayedOperation", "Fetch")), self.sum_of(catalog.FETCHES_WAITING)),
                (Tags(("delayedOperation", "Produce")), self.sum_of(catalog.PRODUCES_WAITING)),
            ],
        )
        for bean, metric in OLD_PURGATORIES:
            yield bean, [(NO_TAGS, self.sum_of(metric))]
        yield BROKER_STATE, [(NO_TAGS, RUNNING if self._is_serving() else STARTING)]
        yield CONNECTIONS, list(self._connections())
        yield RESPONSE_QUEUE, list(self._unsent())
        yield from coordinators.samples(self._sum_of_label, self._most_of, self._listeners)

    def _sum_of_label(self, metric: MetricRow, label: int) -> int:
        return sum(counters.get(metric, label) for counters in self._rows.values())

    def _most_of(self, metric: MetricRow) -> int:
        return max(counters.get(metric) for counters in self._rows.values())

    def _unsent(self) -> Iterator[Sample]:
        """The sum, and of each network process."""
        yield NO_TAGS, self.sum_of(catalog.RESPONSE_QUEUE)
        for address, counters in self._rows.items():
            if address.kind == ProcessKind.NETWORK:
                tags = Tags(("processor", str(address.index)))
                yield tags, counters.get(catalog.RESPONSE_QUEUE)

    def _connections(self) -> Iterator[Sample]:
        for address, counters in self._rows.items():
            if address.kind == ProcessKind.NETWORK:
                for index, name in enumerate(self._listeners[: catalog.LISTENER_WIDTH]):
                    tags = Tags(("listener", name), ("networkProcessor", str(address.index)))
                    yield tags, counters.get(catalog.LISTENER_CONNECTIONS, index)

    def _idle_totals(self) -> Totals:
        metrics = {
            ProcessKind.NETWORK: catalog.NETWORK_IDLE,
            ProcessKind.IO_WORKER: catalog.IO_IDLE,
        }
        return {
            address: counters.get(metrics[address.kind])
            for address, counters in self._rows.items()
            if address.kind in metrics
        }

    def _blocked_totals(self) -> list[int]:
        """By listener."""
        return [
            sum(row.get(catalog.ACCEPTOR_BLOCKED, index) for row in self._rows.values())
            for index in range(len(self._listeners[: catalog.LISTENER_WIDTH]))
        ]

    def _blocked_samples(self) -> Iterator[Samples]:
        then = self._blocked.oldest
        passed_ns = self._now_ns() - then.at_ns
        if passed_ns >= IDLE_NS_MIN:
            totals = zip(self._listeners, self._blocked_totals(), then.value, strict=False)
            yield (
                ACCEPTOR_BLOCKED,
                [
                    (Tags(("listener", name)), round(min(1.0, (now - before) / passed_ns), 6))
                    for name, now, before in totals
                ],
            )

    def _idle_samples(self) -> Iterator[Samples]:
        then = self._idle.oldest
        passed_ns = self._now_ns() - then.at_ns
        if passed_ns < IDLE_NS_MIN:
            return  # processes tell their totals a few times a second
        now = self._idle_totals()
        shares = {
            address: min(1.0, max(0.0, (total - then.value[address]) / passed_ns))
            for address, total in now.items()
        }
        for bean, kind in (
            (NETWORK_IDLE, ProcessKind.NETWORK),
            (HANDLER_IDLE, ProcessKind.IO_WORKER),
        ):
            some = [share for address, share in shares.items() if address.kind == kind]
            if some:
                yield bean, [(NO_TAGS, round(sum(some) / len(some), 6))]
        yield (
            PROCESSOR_IDLE,
            [
                (Tags(("networkProcessor", str(address.index))), round(share, 6))
                for address, share in shares.items()
                if address.kind == ProcessKind.NETWORK
            ],
        )
