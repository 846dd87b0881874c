"""Figures of coordinators, of logins and of the cleaner, by the names of Kafka 3 and 4."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from kbroker.exposition.mbeans import ATTRIBUTE, GAUGE, NO_TAGS, Bean, Samples, Tags
from kbroker.metrics import catalog
from kbroker.metrics.catalog import MetricRow

SERVER, NETWORK, LOG = "kafka.server", "kafka.network", "kafka.log"
GROUPS, SOCKETS, CLEANER = "group-coordinator-metrics", "socket-server-metrics", "LogCleaner"

_OF_CLASSIC = (
    catalog.CLASSIC_GROUPS_EMPTY,
    catalog.CLASSIC_GROUPS_PREPARING,
    catalog.CLASSIC_GROUPS_COMPLETING,
    catalog.CLASSIC_GROUPS_STABLE,
)
_OF_CONSUMERS = {
    "empty": catalog.CONSUMER_GROUPS_EMPTY,
    "assigning": catalog.CONSUMER_GROUPS_ASSIGNING,
    "reconciling": catalog.CONSUMER_GROUPS_RECONCILING,
    "stable": catalog.CONSUMER_GROUPS_STABLE,
}


def _groups(name: str, help: str) -> Bean:
    return Bean(SERVER, GROUPS, name, ATTRIBUTE, help)


# Each the sum of some metrics over all processes, with its tags.
SUMS: tuple[tuple[Bean, tuple[tuple[Tags, tuple[MetricRow, ...]], ...]], ...] = (
    (
        _groups("group-count", "Groups, by protocol."),
        (
            (Tags(("protocol", "classic")), _OF_CLASSIC),
            (Tags(("protocol", "consumer")), tuple(_OF_CONSUMERS.values())),
        ),
    ),
    (
        _groups("consumer-group-count", "Groups of the consumer protocol, by state."),
        tuple((Tags(("state", state)), (metric,)) for state, metric in _OF_CONSUMERS.items()),
    ),
    (
        _groups("classic-group-completed-rebalance-count",
                "Rebalances of groups of the classic protocol that ended with an assignment."),
        ((NO_TAGS, (catalog.CLASSIC_REBALANCES,)),),
    ),
    (
        _groups("consumer-group-rebalance-count",
                "New epochs of groups of the consumer protocol."),
        ((NO_TAGS, (catalog.CONSUMER_REBALANCES,)),),
    ),
    (
        _groups("offset-commit-count", "Offsets committed, by partition."),
        ((NO_TAGS, (catalog.OFFSET_COMMITS,)),),
    ),
    (
        _groups("offset-expiration-count", "Committed offsets that expired."),
        ((NO_TAGS, (catalog.OFFSETS_EXPIRED,)),),
    ),
    (
        Bean("kafka.controller", "KafkaController", "ActiveBrokerCount", GAUGE,
             "Registered brokers, on the active controller."),
        ((NO_TAGS, (catalog.CLUSTER_BROKERS,)),),
    ),
)  # fmt: skip

# Of the cleaner's threads, the most.
MOST: tuple[tuple[Bean, MetricRow], ...] = (
    (
        Bean(LOG, CLEANER, "max-buffer-utilization-percent", GAUGE,
             "How full the offset map was in the last run of each thread; the fullest."),
        catalog.CLEANER_BUFFER,
    ),
    (
        Bean(LOG, CLEANER, "cleaner-recopy-percent", GAUGE,
             "Bytes written in the last run of each thread, as a share of the bytes read."),
        catalog.CLEANER_RECOPY,
    ),
    (
        Bean(LOG, CLEANER, "max-clean-time-secs", GAUGE,
             "Duration of the last run of each thread; the longest."),
        catalog.CLEANER_MAX_TIME,
    ),
    (
        Bean(LOG, CLEANER, "max-compaction-delay-secs", GAUGE,
             "By how much max.compaction.lag.ms was exceeded when the last log was chosen."),
        catalog.CLEANER_MAX_DELAY,
    ),
)  # fmt: skip


def _sockets(name: str, help: str) -> Bean:
    return Bean(SERVER, SOCKETS, name, ATTRIBUTE, help)


OF_LISTENERS: tuple[tuple[Bean, MetricRow], ...] = (
    (
        _sockets("successful-authentication-total", "Logins, and TLS handshakes without SASL."),
        catalog.AUTHENTICATIONS,
    ),
    (
        _sockets("failed-authentication-total", "Logins and TLS handshakes that failed."),
        catalog.FAILED_AUTHENTICATIONS,
    ),
    (
        _sockets("successful-reauthentication-total", "Logins again on the same connection."),
        catalog.REAUTHENTICATIONS,
    ),
    (
        _sockets("failed-reauthentication-total", "Such logins that failed."),
        catalog.FAILED_REAUTHENTICATIONS,
    ),
    (
        _sockets("expired-connections-killed-count",
                 "Connections closed as their client did not log in again."),
        catalog.EXPIRED_CONNECTIONS,
    ),
)  # fmt: skip
EXPIRED = Bean(
    NETWORK, "SocketServer", "ExpiredConnectionsKilledCount", GAUGE,
    "Connections closed as their client did not log in again, of all listeners.",
)  # fmt: skip


def samples(
    sum_of: Callable[[MetricRow, int], int],
    most_of: Callable[[MetricRow], int],
    listeners: Sequence[str],
) -> Iterator[Samples]:
    """sum_of: over all processes, of a label's value. listeners: their names, by index."""
    for bean, rows in SUMS:
        yield bean, [(tags, sum(sum_of(one, 0) for one in metrics)) for tags, metrics in rows]
    for bean, metric in MOST:
        yield bean, [(NO_TAGS, most_of(metric))]
    named = list(enumerate(listeners[: catalog.LISTENER_WIDTH]))
    for bean, metric in OF_LISTENERS:
        yield bean, [(Tags(("listener", name)), sum_of(metric, at)) for at, name in named]
    yield EXPIRED, [(NO_TAGS, sum(sum_of(catalog.EXPIRED_CONNECTIONS, at) for at, _ in named))]
