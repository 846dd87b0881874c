"""The endpoint of another broker that a request is sent to: that of the listener with this
broker's ``inter_broker_listener`` or ``control_listener`` as its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from kbroker.cluster.image import ClusterImage
from kbroker.config.loader import BrokerConfig
from kbroker.peers.link import LinkFailed, PeerAddress
from kbroker.types import BrokerId


class PeerListener(NamedTuple):
    """A listener that all brokers have. protocol: the security protocol of this broker's."""

    name: str
    protocol: str


def listener_for_brokers(config: BrokerConfig) -> PeerListener:
    name = config.inter_broker_listener
    return PeerListener(name, config.security_protocol(name))


def listener_for_control(config: BrokerConfig) -> PeerListener:
    """Between the controller and the brokers."""
    name = config.control_listener
    return PeerListener(name, config.security_protocol(name))


def endpoint_of(endpoints: Iterable[Sequence[Any]], listener: PeerListener) -> PeerAddress:
    """The endpoint of this listener. Raises LinkFailed if there is none, or none that this broker
    can connect to.

    endpoints: a broker's, each of (listener, host, port, security protocol).
    """
    for name, host, port, protocol in endpoints:
        if name.upper() == listener.name:
            if protocol != listener.protocol:
                text = f"its listener {name} uses {protocol}, but this broker's {listener.protocol}"
                raise LinkFailed(text)
            return PeerAddress(host, port)
    raise LinkFailed(f"it has no listener {listener.name}")


def inter_broker_endpoint(image: ClusterImage, broker_id: int, config: BrokerConfig) -> PeerAddress:
    """Another broker's endpoint for brokers. Raises LinkFailed if it is not known."""
    broker = image.brokers.get(BrokerId(broker_id))
    if broker is None:
        raise LinkFailed("it is not in the cluster metadata")
    return endpoint_of(broker.endpoints, listener_for_brokers(config))
