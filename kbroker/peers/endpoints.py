"""The endpoint of another broker that a request is sent to: that of the listener with this
broker's ``inter_broker_listener`` or ``control_listener`` as its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kbroker.cluster.image import ClusterImage
from kbroker.config.loader import BrokerConfig
from kbroker.peers.link import Endpoint, LinkFailed
from kbroker.types import BrokerId

PLAINTEXT = "PLAINTEXT"


def endpoint_of(endpoints: Iterable[Sequence[Any]], listener: str) -> Endpoint:
    """The endpoint of this listener. Raises LinkFailed if there is none, or not in plain TCP.

    endpoints: a broker's, each of (listener, host, port, security protocol).
    """
    for name, host, port, protocol in endpoints:
        if name.upper() == listener:
            if protocol != PLAINTEXT:
                text = (
                    f"its listener {name} uses {protocol}, which is not supported between brokers"
                )
                raise LinkFailed(text)
            return Endpoint(host, port)
    raise LinkFailed(f"it has no listener {listener}")


def inter_broker_endpoint(image: ClusterImage, broker_id: int, config: BrokerConfig) -> Endpoint:
    """Another broker's endpoint for brokers. Raises LinkFailed if it is not known."""
    broker = image.brokers.get(BrokerId(broker_id))
    if broker is None:
        raise LinkFailed("it is not in the cluster metadata")
    return endpoint_of(broker.endpoints, config.inter_broker_listener)
