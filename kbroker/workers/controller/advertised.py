"""The endpoints that a broker advertises to clients, and registers in a cluster."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

from kbroker.config.loader import BrokerConfig


def advertised_endpoints(config: BrokerConfig, bound_ports: Mapping[str, int]) -> list[list[Any]]:
    """Endpoints for clients, as in the cluster image. Empty host: the address they connected to."""
    advertised = [
        [listener.name, listener.host, listener.port, listener.security_protocol]
        for listener in config.advertised_listeners
    ]
    return advertised or [
        [listener.name, "", bound_ports.get(listener.name, listener.port),
         listener.security_protocol]
        for listener in config.listeners
    ]  # fmt: skip


def registered_endpoints(config: BrokerConfig, endpoints: list[list[Any]]) -> list[list[Any]]:
    """Endpoints for clients of other brokers in the cluster, each with a host.

    As in Kafka: the host that the listener binds to, or else this machine's canonical name.
    """
    bound = {listener.name: listener.host for listener in config.listeners}
    return [
        [name, host or bound.get(name) or socket.getfqdn(), port, protocol]
        for name, host, port, protocol in endpoints
    ]
