"""Connection limits of the acceptor: how many in all and per address, and how many per second.

Pure: counts and decides, touches no socket. Every number here is about accepted client connections.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kbroker.hosts import is_loopback

# BOUND: addresses whose rate is remembered; above it the one idle longest is dropped.
RATES_MAX = 4096
UNLIMITED_RATE = 2**31 - 1


class TokenBucket:
    """``rate`` tokens a second, at most one second's worth saved up."""

    __slots__ = ("_at_ms", "_tokens", "rate")

    def __init__(self, rate: float, now_ms: int) -> None:
        self.rate = rate
        self._tokens = float(rate)
        self._at_ms = now_ms

    def take(self, now_ms: int) -> bool:
        """Take a token; False if there is none."""
        self._refill(now_ms)
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def wait_ms(self, now_ms: int) -> int:
        """The time until there is a token; 0 for now."""
        self._refill(now_ms)
        if self._tokens >= 1:
            return 0
        if self.rate == 0:
            return 1000
        return max(1, round((1 - self._tokens) * 1000 / self.rate))

    def _refill(self, now_ms: int) -> None:
        self._tokens = min(
            float(self.rate), self._tokens + (now_ms - self._at_ms) * self.rate / 1000
        )
        self._at_ms = now_ms


class ConnectionLimits:
    """Open connections by network process and address, and the limits on them."""

    def __init__(self, network_count: int, listener_count: int, now_ms: int) -> None:
        self._totals = [0] * network_count
        self._hosts: list[dict[str, int]] = [{} for _ in range(network_count)]
        self._by_host: dict[str, int] = {}
        self._now_ms = now_ms
        self._listener_rates = [TokenBucket(UNLIMITED_RATE, now_ms) for _ in range(listener_count)]
        self._host_rates: dict[str, TokenBucket] = {}
        self._max_total = UNLIMITED_RATE
        self._max_per_host = UNLIMITED_RATE
        self._exceptions: dict[str, int] = {}  # by address
        self.named: dict[str, int] = {}  # exceptions by host name
        self._addresses: Mapping[str, list[str]] = {}  # of these hosts
        self._host_rate = UNLIMITED_RATE
        self._quotas: Mapping[str | None, float] = {}

    def configure(self, config: Any) -> None:
        """Take the limits of a BrokerConfig; open connections stay."""
        self._max_total = config["max.connections"]
        self._max_per_host = config["max.connections.per.ip"]
        self._note_exceptions(config.max_connections_per_ip_overrides)
        rate = config["max.connection.creation.rate"]
        for position, bucket in enumerate(self._listener_rates):
            if bucket.rate != rate:
                self._listener_rates[position] = TokenBucket(rate, self._now_ms)
        if self._host_rate != config["max.connection.creation.rate.per.ip"]:
            self._host_rate = config["max.connection.creation.rate.per.ip"]
            self._host_rates.clear()

    def set_quotas(self, quotas: Mapping[str | None, float]) -> None:
        """Take the quotas of addresses (KIP-612), in connections a second; None: of all others."""
        if quotas != self._quotas:
            self._quotas = quotas
            self._host_rates.clear()

    def _note_exceptions(self, overrides: Mapping[str, int]) -> None:
        by_address: dict[str, int] = {}
        by_name: dict[str, int] = {}
        for host, count in overrides.items():
            address = _address_of(host)
            if address is None:
                by_name[host] = count
            else:
                by_address[address] = count
        self.named = by_name
        for name, count in by_name.items():
            for address in self._addresses.get(name, ()):
                by_address.setdefault(address, count)
        self._exceptions = by_address

    def resolved(self, addresses: Mapping[str, list[str]]) -> None:
        """Take the addresses of hosts; one that ``named`` has no more changes nothing."""
        self._addresses = {**self._addresses, **addresses}
        for name, count in self.named.items():
            for address in addresses.get(name, ()):
                self._exceptions.setdefault(address, count)

    # -- decisions

    def wait_ms(self, listener_index: int, now_ms: int) -> int | None:
        """How long to ignore a listener; 0 to accept now, None until a connection closes."""
        self._now_ms = now_ms
        if sum(self._totals) >= self._max_total:
            return None
        return self._listener_rates[listener_index].wait_ms(now_ms)

    def rejection(self, listener_index: int, host: str, now_ms: int) -> str | None:
        """Count an accepted connection's arrival.

        Why it must be closed at once, None to keep it.
        """
        self._listener_rates[listener_index].take(now_ms)
        limit = self._exceptions.get(host, self._max_per_host)
        if self._by_host.get(host, 0) >= limit:
            return f"{limit} connections from one address (max.connections.per.ip)"
        quota = self._quotas.get(host, self._quotas.get(None))
        if quota is not None:
            if not self._take_host_token(host, quota, now_ms):
                return f"{quota:g} new connections a second from its address (its quota)"
        elif not is_loopback(host) and not self._take_host_token(host, self._host_rate, now_ms):
            return (
                f"{self._host_rate} new connections a second from one address "
                "(max.connection.creation.rate.per.ip)"
            )
        return None

    def _take_host_token(self, host: str, rate: float, now_ms: int) -> bool:
        bucket = self._host_rates.pop(host, None)  # back to the end: the first is the idlest
        if bucket is None:
            if len(self._host_rates) >= RATES_MAX:
                del self._host_rates[next(iter(self._host_rates))]
            bucket = TokenBucket(rate, now_ms)
        self._host_rates[host] = bucket
        return bucket.take(now_ms)

    # -- what happened

    def adopt(self, network_index: int, hosts: Mapping[str, int]) -> None:
        """Count connections that an earlier acceptor handed over, by address."""
        for host, count in hosts.items():
            self._totals[network_index] += count
            self._hosts[network_index][host] = self._hosts[network_index].get(host, 0) + count
            self._by_host[host] = self._by_host.get(host, 0) + count

    def opened(self, network_index: int, host: str) -> None:
        self._totals[network_index] += 1
        hosts = self._hosts[network_index]
        hosts[host] = hosts.get(host, 0) + 1
        self._by_host[host] = self._by_host.get(host, 0) + 1

    def closed(self, network_index: int, host: str) -> None:
        self._totals[network_index] = max(0, self._totals[network_index] - 1)
        hosts = self._hosts[network_index]
        if host in hosts:
            _subtract(hosts, host, 1)
            _subtract(self._by_host, host, 1)

    def forget(self, network_index: int) -> None:
        """The process has died, and its connections with it."""
        for host, count in self._hosts[network_index].items():
            _subtract(self._by_host, host, count)
        self._hosts[network_index] = {}
        self._totals[network_index] = 0

    def total(self, network_index: int) -> int:
        """Open connections of one network process."""
        return self._totals[network_index]

    def of_host(self, host: str) -> int:
        """Open connections from one address."""
        return self._by_host.get(host, 0)


def _address_of(text: str) -> str | None:
    """An IP address in the form of ``fdpass.host_of``, None if ``text`` is a host name."""
    import ipaddress  # only for limits of single addresses

    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _subtract(counts: dict[str, int], key: str, count: int) -> None:
    left = counts.get(key, 0) - count
    if left > 0:
        counts[key] = left
    else:
        counts.pop(key, None)
