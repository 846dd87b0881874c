"""The listeners between brokers."""

from __future__ import annotations

import pytest

from kbroker.config.loader import BrokerConfig
from kbroker.errors import ConfigError

pytestmark = pytest.mark.unit

INTER_BROKER, CONTROL_PLANE = "inter.broker.listener.name", "control.plane.listener.name"
PROTOCOL = "security.inter.broker.protocol"
THREE = {
    "listeners": "OUT://127.0.0.1:1,INSIDE://127.0.0.1:2,CONTROL://127.0.0.1:3",
    "listener.security.protocol.map": "OUT:PLAINTEXT,INSIDE:PLAINTEXT,CONTROL:PLAINTEXT",
}


@pytest.mark.parametrize(
    ("names", "listeners"),
    [
        ({}, ("PLAINTEXT", "PLAINTEXT")),
        ({PROTOCOL: "SSL"}, ("SSL", "SSL")),
        ({INTER_BROKER: "inside", PROTOCOL: "SSL"}, ("INSIDE", "INSIDE")),
        ({INTER_BROKER: "INSIDE", CONTROL_PLANE: "control"}, ("INSIDE", "CONTROL")),
        ({CONTROL_PLANE: "CONTROL"}, ("PLAINTEXT", "CONTROL")),
    ],
)
def test_listeners_between_brokers_are_found_by_name(
    names: dict[str, str], listeners: tuple[str, str]
) -> None:
    config = BrokerConfig(names)

    assert (config.inter_broker_listener, config.control_listener) == listeners


@pytest.mark.parametrize(
    ("names", "key"),
    [
        ({}, PROTOCOL),
        ({INTER_BROKER: "OTHER"}, INTER_BROKER),
        ({INTER_BROKER: "INSIDE", CONTROL_PLANE: "OTHER"}, CONTROL_PLANE),
        (
            {INTER_BROKER: "INSIDE", "advertised.listeners": "OUT://127.0.0.1:1"},
            INTER_BROKER,
        ),
    ],
)
def test_broker_of_a_cluster_without_the_listener_for_others_is_refused(
    names: dict[str, str], key: str
) -> None:
    """Nobody could send it a request: its replicas would never be in sync."""
    assert BrokerConfig({**THREE, **names}).listeners, "alone it needs no such listener"

    with pytest.raises(ConfigError, match="the name of an advertised listener") as refused:
        BrokerConfig({**THREE, **names, "zookeeper.connect": "127.0.0.1"})

    assert refused.value.key == key


def test_broker_of_a_cluster_with_its_listeners_is_accepted() -> None:
    names = {INTER_BROKER: "inside", CONTROL_PLANE: "Control", "zookeeper.connect": "127.0.0.1"}

    assert BrokerConfig({**THREE, **names}).control_listener == "CONTROL"
