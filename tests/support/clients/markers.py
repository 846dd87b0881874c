"""Waiting for the markers of transactions that have ended."""

from __future__ import annotations

from kbroker.client.batches.offsets import LATEST, list_offsets
from kbroker.client.connections.cluster import Cluster
from kbroker.testing import wait_until


def await_markers(cluster: Cluster, topic: str) -> None:
    """Wait until no transaction is open: brokers respond to EndTxn first, then write its
    markers.
    """
    keys = [(topic, partition) for partition in cluster.topics([topic])[topic].partitions]
    wanted = dict.fromkeys(keys, LATEST)

    def are_all_ended() -> bool:
        stable = list_offsets(cluster, wanted, read_committed=True)
        return stable == list_offsets(cluster, wanted)

    wait_until(are_all_ended, 60, f"no transaction in {topic} is open")
