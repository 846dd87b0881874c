"""The cluster itself: its brokers and its features."""

from __future__ import annotations

from collections.abc import Mapping

from kbroker.client.admin import cluster as cluster_admin
from kbroker.client.admin import features as feature_admin
from kbroker.client.admin.calls import AdminCalls
from kbroker.client.admin.cluster import ClusterState, Endpoint
from kbroker.client.admin.features import Features
from kbroker.client.errors import RejectedError


class ClusterCalls(AdminCalls):
    """Each of them may raise RejectedError."""

    def describe_cluster(self) -> ClusterState:
        """Its id, controller, brokers and topics, with the partitions that are in trouble."""
        return self._do(cluster_admin.describe_cluster)

    def describe_brokers(self, *, fenced: bool = False) -> list[Endpoint]:
        """Where the brokers are (KIP-700, from Kafka 2.8). fenced: also those that are registered
        and do not serve (KIP-1073, from Kafka 4.0).
        """
        return self._do(cluster_admin.describe_endpoints, fenced=fenced)

    def unregister_broker(self, node: int) -> None:
        """Let the cluster forget a broker that is gone for good (KIP-500: without ZooKeeper)."""
        self._do(cluster_admin.unregister_broker, node)

    def describe_features(self) -> Features:
        """The levels of features that brokers support, and those in effect (KIP-584)."""
        return self._do(feature_admin.describe_features)

    def update_features(
        self,
        levels: Mapping[str, int],
        change: int = feature_admin.UPGRADE,
        *,
        validate_only: bool = False,
    ) -> dict[str, RejectedError | None]:
        """Set the levels of features, 0 to disable one; the error of each (KIP-584).

        change: ``features.UPGRADE``, SAFE_DOWNGRADE or UNSAFE_DOWNGRADE (may lose metadata).
        """
        return self._do(feature_admin.update_features, levels, change, validate_only=validate_only)
