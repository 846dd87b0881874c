"""Connections of the console to its broker, by who asks.

Whoever gives no password is ANONYMOUS, on a listener without SASL; a user name and a password log
in on a listener with SASL, as any client does. The broker checks them, and what they may do.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from kbroker.client.connections.cluster import Cluster
from kbroker.client.connections.connection import Connection
from kbroker.client.connections.retry import Retry
from kbroker.client.connections.security import Security
from kbroker.client.errors import AuthenticationFailed
from kbroker.console.local_broker import Door, LocalBroker
from kbroker.console.problems import Problem

CLIENT_ID = "kbroker-console"
REQUEST_S = 10.0
# The time that a page waits for brokers that do not answer.
DEADLINE_S = 5.0
# BOUND: idle clusters that are kept, and for how long: a password that was changed ends then.
IDLE_MAX = 8
IDLE_S = 60.0


class ConsoleLogin(NamedTuple):
    user: str
    password: str


class ConsoleCluster(Cluster):
    """own: the broker that is reached by the bootstrap address, whatever it advertises."""

    own: int | None = None

    def connect(self, node: int, retry: Retry) -> Connection:
        if node == self.own:
            return self._connect(self._seeds[0], retry)
        return super().connect(node, retry)


class _Idle(NamedTuple):
    key: bytes
    cluster: ConsoleCluster
    logged_in_at: float


class Sessions:
    """Used by any thread; a cluster that it gives out is used by one at a time."""

    def __init__(self, broker: LocalBroker) -> None:
        self._broker = broker
        self._lock = threading.Lock()
        self._idle: list[_Idle] = []
        self._salt = secrets.token_bytes(16)

    @contextmanager
    def open(self, login: ConsoleLogin | None) -> Iterator[ConsoleCluster]:
        """A cluster with the rights of ``login``. Raises Problem, ClientError."""
        key = self._key(login)
        idle = self._taken(key)
        if idle is None:
            idle = _Idle(key, self._connected(login), time.monotonic())
        try:
            yield idle.cluster
        except Problem:
            self._give_back(idle)
            raise
        except BaseException:
            idle.cluster.close()  # perhaps in the middle of a response
            raise
        self._give_back(idle)

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for each in idle:
            each.cluster.close()

    def _key(self, login: ConsoleLogin | None) -> bytes:
        """Passwords are not kept by themselves."""
        text = "\0" if login is None else f"{login.user}\0{login.password}"
        return hashlib.sha256(self._salt + text.encode()).digest()

    def _taken(self, key: bytes) -> _Idle | None:
        now = time.monotonic()
        with self._lock:
            old = [each for each in self._idle if now - each.logged_in_at > IDLE_S]
            self._idle = [each for each in self._idle if now - each.logged_in_at <= IDLE_S]
            place = next((n for n, each in enumerate(self._idle) if each.key == key), None)
            idle = None if place is None else self._idle.pop(place)
        for each in old:
            each.cluster.close()
        return idle

    def _give_back(self, session: _Idle) -> None:
        with self._lock:
            self._idle.append(session)
            oldest = self._idle.pop(0) if len(self._idle) > IDLE_MAX else None
        if oldest is not None:
            oldest.cluster.close()

    def _connected(self, login: ConsoleLogin | None) -> ConsoleCluster:
        doors = [door for door in self._broker.doors if bool(door.mechanisms) == bool(login)]
        if not doors and login is None:
            raise Problem(401, "LOGIN_REQUIRED", "log in with a user name and a password")
        if not doors:
            raise Problem(
                403,
                "NO_PASSWORDS",
                "no listener of this broker that the console can use takes passwords",
            )
        if login is None:
            return self._cluster(doors[0], {})
        error: AuthenticationFailed | None = None
        for door in doors:
            for mechanism in door.mechanisms:
                cluster = self._cluster(door, _sasl(mechanism, login))
                try:
                    cluster.nodes()
                    return cluster
                except AuthenticationFailed as refused:
                    cluster.close()
                    error = refused
        assert error is not None
        raise Problem(401, "LOGIN_FAILED", "the user name or the password is wrong") from error

    def _cluster(self, door: Door, login: dict[str, str]) -> ConsoleCluster:
        cluster = ConsoleCluster(
            door.address,
            Security({**door.settings, **login}),
            client_id=CLIENT_ID,
            request_timeout=REQUEST_S,
            deadline=DEADLINE_S,
        )
        if not door.by_name:
            cluster.own = self._broker.broker_id
        return cluster


def _sasl(mechanism: str, login: ConsoleLogin) -> dict[str, str]:
    return {
        "sasl.mechanism": mechanism,
        "sasl.username": login.user,
        "sasl.password": login.password,
    }
