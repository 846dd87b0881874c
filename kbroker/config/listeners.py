"""Listeners and advertised listeners, from the five configs for them.

``listeners`` wins over ``host.name`` and ``port``; ``advertised.listeners`` over
``advertised.host.name`` and ``advertised.port``. Listeners of a KRaft controller are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kbroker.config.key import split_list
from kbroker.errors import ConfigError
from kbroker.hosts import EVERY_INTERFACE, LOOPBACK, address_text

DEFAULT_HOST = "127.0.0.1"  # a broker that was not configured cannot be reached from outside
_PORT_MAX = 65535
_HOST_CHARS = frozenset("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-%._:")
_NAME_CHARS = _HOST_CHARS - frozenset("%:")


class Listener(NamedTuple):
    """A listener. An empty host means all interfaces; with port 0 the system chooses one."""

    name: str
    security_protocol: str
    host: str
    port: int

    @property
    def uses_tls(self) -> bool:
        return self.security_protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.security_protocol in ("SASL_PLAINTEXT", "SASL_SSL")

    def __str__(self) -> str:
        return f"{self.name}://{address_text(self.host, self.port)}"


def parse_endpoint(text: str) -> tuple[str, str, int] | None:
    """(name, host, port) of ``NAME://host:port``, None if it is not of that form."""
    name, separator, address = text.partition("://")
    host, colon, digits = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not (separator and colon and name and _NAME_CHARS.issuperset(name)):
        return None
    if not (_HOST_CHARS.issuperset(host) and digits.isascii() and digits.isdigit()):
        return None
    if len(digits) > 5 or int(digits) > _PORT_MAX:
        return None
    return name.upper(), host, int(digits)


def protocol_map(values: Mapping[str, Any]) -> dict[str, str]:
    """Security protocol by listener name."""
    pairs = split_list(values["listener.security.protocol.map"])
    split = (pair.partition(":") for pair in pairs)
    return {name.strip().upper(): protocol.strip().upper() for name, _, protocol in split}


def inter_broker_listener(values: Mapping[str, Any]) -> str:
    """The name of the listener for other brokers, which is the same on all brokers.

    COMPAT: always a name. Without inter.broker.listener.name it is the listener named like
    security.inter.broker.protocol, not any listener that uses that protocol.
    """
    name: str = values["inter.broker.listener.name"] or values["security.inter.broker.protocol"]
    return name.upper()


def control_listener(values: Mapping[str, Any]) -> str:
    """The name of the listener between the controller and the brokers."""
    name: str | None = values["control.plane.listener.name"]
    return name.upper() if name else inter_broker_listener(values)


def bound_listeners(values: Mapping[str, Any], host_name_is_set: bool) -> list[Listener]:
    """The addresses that the broker binds. Raises ConfigError for malformed or duplicate listeners
    and those that are not supported.
    """
    text = values["listeners"]
    if text is None:
        host = values["host.name"] if host_name_is_set else DEFAULT_HOST
        return [Listener("PLAINTEXT", "PLAINTEXT", host, values["port"])]
    listeners = _parse_all("listeners", text, values)
    if not listeners:
        allowed = "at least one listener that is not a controller's, as NAME://host:port"
        raise ConfigError("listeners", text, allowed)
    _refuse_doubles(text, listeners)
    return listeners


def advertised_listeners(values: Mapping[str, Any], bound: list[Listener]) -> list[Listener]:
    """The advertised listeners; empty when unset, which means the address that a client connected
    to.
    """
    text = values["advertised.listeners"]
    if text is None:
        host, port = values["advertised.host.name"], values["advertised.port"]
        if not host and port is None:
            return []
        first = bound[0]
        told_host = host or first.host
        if told_host in EVERY_INTERFACE:
            return []
        return [first._replace(host=told_host, port=first.port if port is None else port)]
    advertised = _parse_all("advertised.listeners", text, values)
    names = {listener.name for listener in bound}
    for listener in advertised:
        if listener.name not in names:
            allowed = f"listeners that are bound ({', '.join(sorted(names))})"
            raise ConfigError("advertised.listeners", text, allowed)
        if listener.host in EVERY_INTERFACE or listener.port == 0:
            allowed = "a host and a port that clients can connect to"
            raise ConfigError("advertised.listeners", text, allowed)
    if len({listener.name for listener in advertised}) != len(advertised):
        raise ConfigError("advertised.listeners", text, "one address for each listener")
    return advertised


def names_other_controller(values: Mapping[str, Any], server: str) -> bool:
    """Whether the address of a KRaft controller, ``host:port``, cannot be that of this node, as far
    as its listeners for controllers tell.
    """
    bound = _controller_addresses(values, "listeners")
    advertised = _controller_addresses(values, "advertised.listeners") or bound
    host, _, port = server.rpartition(":")
    if not bound or any(number == 0 for _, number in bound):
        return False
    if port not in {str(number) for _, number in bound + advertised}:
        return True
    hosts = {name for name, _ in advertised}
    return not hosts.intersection(EVERY_INTERFACE + LOOPBACK) and host not in (*hosts, *LOOPBACK)


def _controller_addresses(values: Mapping[str, Any], key: str) -> list[tuple[str, int]]:
    controllers = {name.upper() for name in values["controller.listener.names"]}
    endpoints = map(parse_endpoint, split_list(values[key] or ""))
    return [(one[1], one[2]) for one in endpoints if one is not None and one[0] in controllers]


def _parse_all(key: str, text: str, values: Mapping[str, Any]) -> list[Listener]:
    protocols = protocol_map(values)
    controllers = {name.upper() for name in values["controller.listener.names"]}
    listeners = []
    for item in split_list(text):
        endpoint = parse_endpoint(item)
        if endpoint is None:
            raise ConfigError(key, text, "NAME://host:port, separated by commas")
        name, host, port = endpoint
        if name in controllers:
            continue
        protocol = protocols.get(name)
        if protocol is None:
            allowed = f"names in listener.security.protocol.map ({', '.join(sorted(protocols))})"
            raise ConfigError(key, text, allowed)
        listeners.append(Listener(name, protocol, host, port))
    return listeners


def _refuse_doubles(text: str, listeners: list[Listener]) -> None:
    if len({listener.name for listener in listeners}) != len(listeners):
        raise ConfigError("listeners", text, "each listener name once")
    for position, listener in enumerate(listeners):
        for other in listeners[:position]:
            if listener.port != other.port or listener.port == 0:
                continue
            hosts = (listener.host, other.host)
            if hosts[0] == hosts[1] or hosts[0] in EVERY_INTERFACE or hosts[1] in EVERY_INTERFACE:
                raise ConfigError("listeners", text, "each address once")
