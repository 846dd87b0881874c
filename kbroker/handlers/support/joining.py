"""Requests to a broker that has registered and has not heard of the controller yet.

It serves clients already, as the controller's requests arrive through the same listeners. Topics
that it does not know may exist: a client that was told otherwise would fail its user's calls.
"""

from __future__ import annotations

from kbroker.cluster.image import ClusterImage
from kbroker.errors import ErrorCode, WireError


def require_topics(image: ClusterImage) -> None:
    """Raises LEADER_NOT_AVAILABLE, on which clients ask again, until the topics are known."""
    if not image.brokers:
        text = "this broker has just joined the cluster and does not know its topics yet"
        raise WireError(ErrorCode.LEADER_NOT_AVAILABLE, text)
