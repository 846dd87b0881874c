"""The endpoint of another broker that requests are sent to."""

from __future__ import annotations

import pytest

from kbroker.cluster.image import AdvertisedEndpoint, BrokerImage, ClusterImage
from kbroker.config.loader import BrokerConfig
from kbroker.peers.endpoints import PeerListener, endpoint_of, inter_broker_endpoint
from kbroker.peers.link import LinkFailed
from kbroker.types import BrokerId

pytestmark = pytest.mark.unit

OTHER = BrokerId(2)
MAP = {"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INSIDE:PLAINTEXT"}
ENDPOINTS = (
    AdvertisedEndpoint("OUTSIDE", "a", 1, "PLAINTEXT"),
    AdvertisedEndpoint("PLAINTEXT", "b", 2, "PLAINTEXT"),
    AdvertisedEndpoint("INSIDE", "c", 3, "PLAINTEXT"),
    AdvertisedEndpoint("SECURE", "d", 4, "SSL"),
)


def image() -> ClusterImage:
    made = ClusterImage()
    made.brokers[OTHER] = BrokerImage(OTHER, ENDPOINTS, None)
    return made


def test_endpoint_is_that_of_the_listener_with_this_brokers_protocol() -> None:
    """Another one would be a handshake that fails without a reason."""
    assert endpoint_of(ENDPOINTS, PeerListener("PLAINTEXT", "PLAINTEXT")) == ("b", 2)
    assert endpoint_of(ENDPOINTS, PeerListener("SECURE", "SSL")) == ("d", 4)
    lower = [["Lower", "h", 9, "PLAINTEXT"]]
    assert endpoint_of(lower, PeerListener("LOWER", "PLAINTEXT")) == ("h", 9)
    with pytest.raises(LinkFailed, match="no listener MISSING"):
        endpoint_of(ENDPOINTS, PeerListener("MISSING", "PLAINTEXT"))
    with pytest.raises(LinkFailed, match="SECURE uses SSL, but this broker's SASL_SSL"):
        endpoint_of(ENDPOINTS, PeerListener("SECURE", "SASL_SSL"))


@pytest.mark.parametrize(
    ("names", "port"), [({}, 2), ({**MAP, "inter.broker.listener.name": "inside"}, 3)]
)
def test_brokers_are_reached_at_the_listener_with_the_name(
    names: dict[str, str], port: int
) -> None:
    """Not at the first listener that uses the security protocol."""
    assert inter_broker_endpoint(image(), OTHER, BrokerConfig(names)).port == port


def test_listener_for_brokers_is_not_that_of_the_control_plane() -> None:
    names = {**MAP, "control.plane.listener.name": "INSIDE"}

    assert inter_broker_endpoint(image(), OTHER, BrokerConfig(names)).port == 2


def test_broker_that_is_not_in_the_metadata_has_no_endpoint() -> None:
    with pytest.raises(LinkFailed, match="not in the cluster metadata"):
        inter_broker_endpoint(image(), 3, BrokerConfig())
