"""The state of a cluster: its brokers, and partitions in trouble. Any Kafka from 0.11."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from kbroker.client.admin.topics import PartitionState, TopicState, rows_of, topics_of
from kbroker.client.connections.addresses import parse_addresses
from kbroker.client.connections.cluster import Cluster
from kbroker.client.connections.connection import Connection
from kbroker.client.connections.controller_calls import check
from kbroker.client.errors import (
    ClientError,
    ConnectionLost,
    RejectedError,
    UnsupportedByBroker,
)
from kbroker.protocol.messages.metadata import MetadataRequest, MetadataResponse


class BrokerState(NamedTuple):
    """node: its id. leads, replicas: how many partitions it leads, and has a replica of."""

    node: int
    host: str
    port: int
    rack: str | None
    leads: int
    replicas: int


class ClusterState(NamedTuple):
    """cluster_id: None before Kafka 0.10.1. controller: a node id, None while there is none.
    topics: those that this user may describe.
    """

    cluster_id: str | None
    controller: int | None
    brokers: list[BrokerState]
    topics: list[TopicState]

    def offline(self) -> list[tuple[str, int]]:
        """Partitions without a leader: nobody can read or write them."""
        return [key for key, row in self._partitions() if row.leader is None]

    def under_replicated(self) -> list[tuple[str, int]]:
        """Partitions with fewer replicas in sync than they shall have."""
        return [key for key, row in self._partitions() if len(row.isr) < len(row.replicas)]

    def _partitions(self) -> list[tuple[tuple[str, int], PartitionState]]:
        return [
            ((topic.name, row.partition), row) for topic in self.topics for row in topic.partitions
        ]


class MissingBroker(NamedTuple):
    """A broker that has replicas but is not registered. host, port: the last that anybody knows;
    "" and -1: nobody does. since_ms: since 1970, None if nobody knows. offline, under_replicated:
    partitions with a replica there that have no leader, or too few replicas in sync.
    """

    node: int
    host: str
    port: int
    since_ms: int | None
    offline: int
    under_replicated: int


class ClusterSummary(NamedTuple):
    """What ``ClusterState`` says, without each of its thousands of topics. internal_topics: of
    topics. offline, under_replicated: (topic, partition), in order. troubled: the states of both.
    """

    cluster_id: str | None
    controller: int | None
    brokers: list[BrokerState]
    topics: int
    internal_topics: int
    partitions: int
    offline: list[tuple[str, int]]
    under_replicated: list[tuple[str, int]]
    missing: list[MissingBroker]
    troubled: dict[tuple[str, int], PartitionState]


def describe_cluster(cluster: Cluster) -> ClusterState:
    """One request to any broker. Raises UnreachableError, Timeout, RejectedError."""
    response, rows = _ask(cluster)
    summary = _summary(response, rows)
    return ClusterState(summary.cluster_id, summary.controller, summary.brokers, topics_of(rows))


def summarize_cluster(cluster: Cluster) -> ClusterSummary:
    """The same without the topics, which take longer than all the rest if there are many. Brokers
    of Kafka do not count them, and are asked for each.
    """
    counted = _counted(cluster)
    if counted is not None:
        return counted
    found = _summary(*_ask(cluster))
    return (
        found._replace(missing=_with_addresses(cluster, found.missing)) if found.missing else found
    )


def _counted(cluster: Cluster) -> ClusterSummary | None:
    """By a broker that counts; None if it does not."""
    from kbroker.protocol.messages.describe_cluster import DescribeClusterRequest

    request = DescribeClusterRequest(include_fenced_brokers=True, include_partitions=True)
    try:
        response = cluster.call(None, request, what="the state of the cluster")
    except UnsupportedByBroker:
        return None
    if response.error_code or response.topics < 0:
        return None
    present = [row for row in response.brokers if not row.is_fenced]
    cluster.know({row.broker_id: (row.host, row.port) for row in present})
    troubled = {
        (row.topic, row.partition): _troubled(row.partition, row.leader, row.replicas, row.isr)
        for row in response.troubled
    }
    return _summarized(
        response,
        (
            BrokerState(row.broker_id, row.host, row.port, row.rack, row.leads, row.replicas)
            for row in present
        ),
        (response.topics, response.internal_topics, response.partitions),
        [
            _with_address(_missing(row.broker_id, troubled.values()), row)
            for row in sorted(response.brokers, key=lambda row: int(row.broker_id))
            if row.is_fenced and row.replicas > 0
        ],
        troubled,
    )


def _troubled(
    number: int, leader: int, replicas: Iterable[int], isr: Iterable[int]
) -> PartitionState:
    return PartitionState(number, leader if leader >= 0 else None, list(replicas), list(isr), [])


def _summarized(
    response: Any,
    brokers: Iterable[BrokerState],
    counts: tuple[int, int, int],
    missing: list[MissingBroker],
    troubled: dict[tuple[str, int], PartitionState],
) -> ClusterSummary:
    """counts: of topics, of internal ones, of partitions. troubled: all without a leader, or with
    too few replicas in sync.
    """
    return ClusterSummary(
        response.cluster_id,
        response.controller_id if response.controller_id >= 0 else None,
        sorted(brokers),
        *counts,
        sorted(key for key, row in troubled.items() if row.leader is None),
        sorted(key for key, row in troubled.items() if len(row.isr) < len(row.replicas)),
        missing,
        troubled,
    )


def _with_address(one: MissingBroker, row: Any) -> MissingBroker:
    """row: of a DescribeCluster response."""
    since_ms = row.fenced_since_ms if row.fenced_since_ms >= 0 else None
    return one._replace(host=row.host, port=row.port, since_ms=since_ms)


def _with_addresses(cluster: Cluster, missing: list[MissingBroker]) -> list[MissingBroker]:
    """The same, with what the brokers remember of them. Kafka before 4.0 has no such request."""
    from kbroker.protocol.messages.describe_cluster import DescribeClusterRequest

    try:
        request = DescribeClusterRequest(include_fenced_brokers=True)
        response = cluster.call(None, request, what="describe the cluster")
    except ClientError:
        return missing
    known = {row.broker_id: row for row in response.brokers if row.is_fenced}
    found = []
    for one in missing:
        row = known.get(one.node)
        found.append(one if row is None else _with_address(one, row))
    return found


def _ask(cluster: Cluster) -> tuple[MetadataResponse, list[Any]]:
    """A Metadata response, and its rows of topics that are there."""
    retry = cluster.retry("the state of the cluster")
    while True:
        try:
            connection = cluster.connection(None, retry)
            request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
            response = connection.call(request, retry.step(cluster.request_timeout))
            if response.error_code:
                raise RejectedError(response.error_code, "the state of the cluster")
            rows = rows_of(response)
            break
        except ClientError as error:
            retry.pause(error)
    cluster.adopt_brokers(response.brokers)
    return response, rows


def _summary(response: MetadataResponse, rows: list[Any]) -> ClusterSummary:
    leads: dict[int, int] = {}
    replicas: dict[int, int] = {}
    troubled: dict[tuple[str, int], PartitionState] = {}
    for topic in rows:
        for part in topic.partitions:
            leads[part.leader_id] = leads.get(part.leader_id, 0) + 1
            for node in part.replica_nodes:
                replicas[node] = replicas.get(node, 0) + 1
            if part.leader_id < 0 or len(part.isr_nodes) < len(part.replica_nodes):
                troubled[topic.name, part.partition_index] = _troubled(
                    part.partition_index, part.leader_id, part.replica_nodes, part.isr_nodes
                )
    brokers = [
        BrokerState(
            row.node_id,
            row.host,
            row.port,
            row.rack,
            leads.get(row.node_id, 0),
            replicas.get(row.node_id, 0),
        )
        for row in response.brokers
    ]
    counts = (
        len(rows),
        sum(bool(topic.is_internal) for topic in rows),
        sum(len(topic.partitions) for topic in rows),
    )
    return _summarized(
        response,
        brokers,
        counts,
        [
            _missing(node, troubled.values())
            for node in sorted(replicas.keys() - {row.node_id for row in response.brokers})
        ],
        troubled,
    )


def _missing(node: int, troubled: Iterable[PartitionState]) -> MissingBroker:
    of_node = [row for row in troubled if node in row.replicas]
    offline = sum(row.leader is None for row in of_node)
    return MissingBroker(node, "", -1, None, offline, len(of_node) - offline)


class Probe(NamedTuple):
    """One attempt to reach a broker. seconds: until it was connected, encrypted and logged in.
    error: why it was not, in words; None if it was.
    """

    address: str
    resolved: list[str]
    seconds: float
    error: str | None


def probe_bootstrap(cluster: Cluster, timeout: float) -> list[Probe]:
    """Try each of the bootstrap addresses. timeout: seconds for each."""
    return [
        probe(cluster, host, port, timeout) for host, port in parse_addresses(cluster.bootstrap)
    ]


def probe(cluster: Cluster, host: str, port: int, timeout: float) -> Probe:
    """Try one address with the cluster's security settings. timeout: in seconds."""
    address = f"{host}:{port}"
    try:
        rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return Probe(address, [], 0.0, f"cannot resolve the name: {error}")
    resolved = list(dict.fromkeys(str(row[4][0]) for row in rows))
    began = time.monotonic()
    why = None
    try:
        Connection(
            host,
            port,
            cluster.security,
            client_id=cluster.client_id,
            deadline=began + timeout,
        ).close()
    except ConnectionLost as error:
        why = error.why
    except ClientError as error:
        why = str(error)
    return Probe(address, resolved, time.monotonic() - began, why)


def log_dirs_at(
    cluster: Cluster, address: tuple[str, int], deadline: float
) -> list[tuple[str, bool, int | None, int | None]] | None:
    """The log directories of the broker that answers there: path, whether it is offline, bytes of
    its file system and those free, None before Kafka 3.3. None: this user may not ask. deadline: of
    the monotonic clock. Raises ClientError if it does not answer.
    """
    from kbroker.protocol.messages.describe_log_dirs import DescribeLogDirsRequest

    host, port = address
    connection = Connection(
        host, port, cluster.security, client_id=cluster.client_id, deadline=deadline
    )
    try:
        # No topics: the directories alone.
        response = connection.call(DescribeLogDirsRequest(topics=[]), deadline)
    except UnsupportedByBroker:
        return None
    finally:
        connection.close()
    if getattr(response, "error_code", 0) or not response.results:
        return None
    return [
        (
            row.log_dir,
            row.error_code != 0,
            *(None if size < 0 else size for size in (row.total_bytes, row.usable_bytes)),
        )
        for row in response.results
    ]


class Endpoint(NamedTuple):
    """A broker, and where it is. fenced: it is registered, but does not serve."""

    node: int
    host: str
    port: int
    rack: str | None
    fenced: bool


def describe_endpoints(cluster: Cluster, *, fenced: bool = False) -> list[Endpoint]:
    """The brokers of the cluster, with ``fenced`` (from Kafka 4.0) also those that do not serve.
    From Kafka 2.8. Raises RejectedError, UnreachableError, Timeout.
    """
    from kbroker.protocol.messages.describe_cluster import DescribeClusterRequest

    request = DescribeClusterRequest(include_fenced_brokers=fenced)
    response = cluster.call(None, request, what="describe the cluster")
    check(response, "describe the cluster")
    return [
        Endpoint(row.broker_id, row.host, row.port, row.rack, row.is_fenced)
        for row in response.brokers
    ]


def unregister_broker(cluster: Cluster, node: int) -> None:
    """Let the cluster forget a broker that is gone for good. From Kafka 2.8, without ZooKeeper.
    Raises RejectedError, UnsupportedByBroker.
    """
    from kbroker.protocol.messages.unregister_broker import UnregisterBrokerRequest

    response = cluster.call(None, UnregisterBrokerRequest(broker_id=node), what="unregister")
    check(response, f"unregister broker {node}")
