"""Features of a cluster (KIP-584): what brokers support, and what is in effect. From Kafka 2.7."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kbroker.client.connections.cluster import Cluster
from kbroker.client.connections.connection import Connection
from kbroker.client.connections.controller_calls import ask_controller
from kbroker.client.errors import RejectedError
from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message

# WIRE: how a level may change.
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
# Before this version a flag allows a downgrade.
_FIRST_WITH_TYPES = 1


class Features(NamedTuple):
    """supported: the lowest and the highest level of each. finalized: the level in effect, of those
    above 0. epoch: grows with every change, None where nothing is finalized.
    """

    supported: dict[str, tuple[int, int]]
    finalized: dict[str, int]
    epoch: int | None


def describe_features(cluster: Cluster) -> Features:
    """As any broker knows them. Raises RejectedError, UnreachableError, Timeout."""
    from kbroker.protocol.messages.api_versions import ApiVersionsRequest

    request = ApiVersionsRequest(client_software_name="kbroker", client_software_version="0")
    response = cluster.call(None, request, what="features")
    if response.error_code:
        raise RejectedError(response.error_code, "features")
    epoch = response.finalized_features_epoch
    return Features(
        {row.name: (row.min_version, row.max_version) for row in response.supported_features},
        {row.name: row.max_version_level for row in response.finalized_features},
        epoch if epoch >= 0 else None,
    )


def update_features(
    cluster: Cluster, levels: Mapping[str, int], change: int, *, validate_only: bool = False
) -> dict[str, RejectedError | None]:
    """Set the levels of features, 0 to disable one; the error of each. From Kafka 3.3 all or none
    are changed.

    change: UPGRADE, SAFE_DOWNGRADE or UNSAFE_DOWNGRADE; Kafka 2.7 to 3.2 knows one downgrade.
    """
    from kbroker.protocol.messages.update_features import UpdateFeaturesRequest as Request

    def asked(connection: Connection) -> Message:
        has_types = connection.version_of(ApiKey.UPDATE_FEATURES) >= _FIRST_WITH_TYPES
        how = {"upgrade_type": change} if has_types else {"allow_downgrade": change != UPGRADE}
        return Request(
            timeout_ms=int(cluster.request_timeout * 1000),
            feature_updates=[
                Request.FeatureUpdateKey(feature=name, max_version_level=level, **how)
                for name, level in levels.items()
            ],
            validate_only=validate_only,
        )

    response = ask_controller(cluster, asked, "update features", lambda found: [found.error_code])
    results: dict[str, RejectedError | None] = dict.fromkeys(levels)
    if response.error_code:
        message = response.error_message
        return {
            name: RejectedError(response.error_code, f"feature {name}", message) for name in levels
        }
    for row in response.results:
        if row.error_code:
            results[row.feature] = RejectedError(
                row.error_code, f"feature {row.feature}", row.error_message
            )
    return results
