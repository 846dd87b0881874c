"""The acceptor: accepts on every listener, and picks the network process with fewest connections.

Parses nothing. A connection costs one accept, one sendmsg and one close here, and one epoll wait
for as many as arrive together. Listeners are bound and listening before any process starts, so
clients that come early wait in the backlog. They also wait there while accepting pauses (limits, or
no free descriptors), instead of being disconnected.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from typing import Any, ClassVar

from kbroker.cluster.client_quotas import address_rates
from kbroker.config.quota_keys import CONNECTION
from kbroker.errors import NO_ROOM_TO_ACCEPT, WireError
from kbroker.ipc import calls, fdpass
from kbroker.ipc.process_table import CONNECTIONS, CONTROLLER, READY, STATE, Address, ProcessKind
from kbroker.ipc.rpc import Pending, run
from kbroker.logcontext import RateLimit
from kbroker.metrics.catalog import (
    ACCEPT_PAUSES,
    ACCEPTOR_BLOCKED,
    CONNECTIONS_REFUSED,
    CONNECTIONS_TAKEN,
)
from kbroker.metrics.slots import Counters
from kbroker.workers.base import (
    NO_DESCRIPTORS_PAUSE_MS,
    SLOW_TICK_MS,
    ProcessContext,
    Worker,
    now_ms,
)
from kbroker.workers.network.connection_limits import ConnectionLimits

logger = logging.getLogger(__name__)

ACCEPTS_PER_TURN = 64  # BOUND: so that reports of closed connections are read in between
HANDOFF_FULL_PAUSE_MS = 5
LIMIT_PAUSE_MS = 100  # how often the total is checked again while the limit is reached
COUNT_TRIES = 3


class AcceptorWorker(Worker):
    """Owns the listening sockets and the connection limits."""

    kind: ClassVar[ProcessKind] = ProcessKind.ACCEPTOR
    usual_tick_ms = SLOW_TICK_MS

    def __init__(self, context: ProcessContext) -> None:
        super().__init__(context)
        self._networks = self.processes.of_kind(ProcessKind.NETWORK)
        self._listeners = [sock for _, sock in context.listeners]
        self._incarnations = [0] * len(self._networks)
        self._limits = ConnectionLimits(len(self._networks), len(self._listeners), now_ms())
        self._counters = Counters(context.counters, self.processes.addresses.index(context.address))
        self._resume_at: dict[int, int] = {}  # paused listener -> when to look again
        # Listeners with a connection that must wait, and since when it is not counted yet.
        self._blocked_since: dict[int, int] = {}
        self._waiting: tuple[socket.socket, int, str] | None = None  # accepted, not yet taken
        self._warnings = RateLimit()
        self._broker_config: dict[str, dict[str, str]] = {}
        self._quotas: dict[str, dict[str, float]] = {}
        self._accepting = False
        self._counting = 0  # network processes that are asked for the connections they have

    def setup(self) -> None:
        self._counters.reset_gauges()
        self._configure_limits()
        for index, address in enumerate(self._networks):
            self._incarnations[index] = self.processes.incarnation(address)
            if self.context.incarnation > 1 and self.processes.is_ready(address):
                self._counting += 1
                run(self._adopt(index, address)).then(_raise_error)
            else:
                self._read_closed(index)
        for position in range(len(self._listeners)):
            self._resume_at[position] = 0  # until a network process is ready
        self.rpc.serve(calls.IMAGE, self._on_image)
        run(self._join()).then(_raise_error)

    def tick(self, now: int) -> None:
        self._notice_restarts()
        if self._accepting or self._counting:
            return
        if any(map(self.processes.is_ready, self._networks)):
            self._start_accepting()

    def next_deadline_ms(self) -> int | None:
        if not self._accepting:
            return now_ms() + 5  # a start is a matter of milliseconds
        return min(self._resume_at.values(), default=None)

    def end_turn(self) -> None:
        if not self._accepting:
            self.tick(now_ms())
            return
        if not self._resume_at:
            return
        now = now_ms()
        if self._waiting is not None:
            connection, listener_index, host = self._waiting
            self._waiting = None
            self._hand_over(connection, listener_index, host)
        for position in [p for p, at in self._resume_at.items() if at <= now]:
            if self._waiting is None:
                self._resume(position)

    def shutdown(self) -> None:
        if self._waiting is not None:
            self._waiting[0].close()

    # -- accepting

    def _start_accepting(self) -> None:
        self._accepting = True
        for position in list(self._resume_at):
            self._resume(position)
        self.ready()

    def _resume(self, position: int) -> None:
        del self._resume_at[position]
        self._count_blocked(position)
        self._blocked_since.pop(position, None)
        self.add_reader(self._listeners[position].fileno(), self._acceptor_of(position))

    def _pause(self, position: int, delay_ms: int) -> None:
        if position not in self._resume_at:
            self.remove_reader(self._listeners[position].fileno())
            self._counters.add(ACCEPT_PAUSES)
        self._resume_at[position] = now_ms() + delay_ms

    def _pause_all(self, delay_ms: int, blocked: int) -> None:
        """blocked: the listener that has a connection."""
        for position in range(len(self._listeners)):
            self._pause(position, delay_ms)
        self._block(blocked)

    def _block(self, position: int) -> None:
        """A connection of this listener waits."""
        self._count_blocked(position)
        self._blocked_since[position] = time.monotonic_ns()

    def _count_blocked(self, position: int) -> None:
        since = self._blocked_since.get(position)
        if since is not None:
            self._counters.add(ACCEPTOR_BLOCKED, time.monotonic_ns() - since, position)

    def _acceptor_of(self, position: int) -> Any:
        return lambda: self._accept(position)

    def _accept(self, position: int) -> None:
        listener = self._listeners[position]
        for _ in range(ACCEPTS_PER_TURN):
            now = now_ms()
            wait_ms = self._limits.wait_ms(position, now)
            if wait_ms is None:
                self._warn(
                    "total", "connection limit reached (max.connections); new connections wait"
                )
                self._pause_all(LIMIT_PAUSE_MS, position)
                return
            if wait_ms:
                self._pause(position, wait_ms)
                self._block(position)
                return
            try:
                connection, address = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in NO_ROOM_TO_ACCEPT:
                    self._warn("resources", f"cannot accept connections: {error.strerror}")
                    self._pause_all(NO_DESCRIPTORS_PAUSE_MS, position)
                    return
                continue  # the client went away before it was accepted
            host = fdpass.host_of(address)
            rejection = self._limits.rejection(position, host, now)
            if rejection is not None:
                connection.close()
                self._counters.add(CONNECTIONS_REFUSED)
                self._warn(host, f"closed a connection from {host}: limit of {rejection}")
                continue
            self._hand_over(connection, position, host)
            if self._waiting is not None:
                return

    def _hand_over(self, connection: socket.socket, position: int, host: str) -> None:
        """Hand the connection to a network process, or keep it and stop accepting if none can take
        it.
        """
        self._notice_restarts()
        candidates = [
            index
            for index, address in enumerate(self._networks)
            if self.processes.get(address, STATE) == READY
        ]
        for index in sorted(candidates, key=self._limits.total):
            try:
                sent = fdpass.send_connection(
                    self.context.handoffs[index][0], connection.fileno(), position, host
                )
            except OSError as error:  # ETOOMANYREFS: too many descriptors on their way
                self._warn(
                    "handoff", f"cannot hand over a connection: {os.strerror(error.errno or 0)}"
                )
                continue
            if sent:
                connection.close()
                self._limits.opened(index, host)
                self._counters.add(CONNECTIONS_TAKEN)
                return
        self._waiting = (connection, position, host)
        self._pause_all(HANDOFF_FULL_PAUSE_MS, position)

    def _warn(self, key: str, text: str) -> None:
        count = self._warnings.due(key)
        if count > 1:
            logger.warning("%s (%d times)", text, count, extra={"event": "acceptor.warning"})
        elif count:
            logger.warning("%s", text, extra={"event": "acceptor.warning"})

    # -- network processes

    async def _adopt(self, index: int, address: Address) -> None:
        """Count the connections that an earlier acceptor has handed over to a network process."""
        incarnation = self._incarnations[index]
        hosts: dict[str, int] | None = None
        reported: list[str] = []
        for _ in range(COUNT_TRIES):
            try:
                connections = await self.rpc.call(address, calls.CONNECTIONS, calls.Nothing())
            except WireError as error:
                logger.warning("cannot get the connections of %s: %s", address.title, error)
                break
            hosts = connections.hosts
            reported = fdpass.receive_closed(self.context.handoffs[index][0])
            if hosts is not None:
                break
        self._counting -= 1
        self._read_closed(index)
        if self.processes.incarnation(address) != incarnation:
            return
        if hosts is None:
            hosts = {"": self.processes.get(address, CONNECTIONS)}
        self._limits.adopt(index, hosts)
        after_count = len(reported) - reported[::-1].index("") if "" in reported else 0
        for host in reported[after_count:]:
            self._limits.closed(index, host)

    def _read_closed(self, index: int) -> None:
        """Take reports of closed connections from now on."""
        end = self.context.handoffs[index][0]
        self.add_reader(end.fileno(), lambda: self._take_closed(index))

    def _take_closed(self, index: int) -> None:
        self._notice_restarts()
        for host in fdpass.receive_closed(self.context.handoffs[index][0]):
            self._limits.closed(index, host)

    def _notice_restarts(self) -> None:
        for index, address in enumerate(self._networks):
            incarnation = self.processes.incarnation(address)
            if incarnation != self._incarnations[index]:
                # The new one has not been given anything yet, so data in the pair belongs to the
                # old one.
                fdpass.receive_closed(self.context.handoffs[index][0])
                self._limits.forget(index)
                self._incarnations[index] = incarnation

    # -- dynamic limits

    async def _join(self) -> None:
        """Nothing waits for it."""
        self._apply(await self.call_until_answered(CONTROLLER, calls.HELLO))

    def _on_image(self, sender: Address, change: calls.ImageChange) -> calls.ImageTaken:
        self._apply(change.delta)
        return calls.ImageTaken({})

    def _apply(self, image: calls.ImageDocument) -> None:
        """Take the dynamic broker settings, and the quotas of addresses, out of a cluster image or
        delta.

        The rest is of no interest here.
        """
        self._take_quotas(image)
        changed = image.get("broker_config")
        if not changed:
            return
        self._broker_config.update(changed)
        self.follow_settings(self._broker_config)
        self._configure_limits()

    def _take_quotas(self, image: calls.ImageDocument) -> None:
        changed = image.get("quotas")
        if changed is None:
            return
        if image.get("snapshot"):
            self._quotas.clear()
        for entity, quotas in changed.items():
            if CONNECTION in (quotas or {}):
                self._quotas[entity] = quotas
            else:
                self._quotas.pop(entity, None)
        self._limits.set_quotas(address_rates(self._quotas, CONNECTION))

    def _configure_limits(self) -> None:
        before = self._limits.named
        self._limits.configure(self.config)
        if self._limits.named.keys() - before.keys():
            # A name server may take longer than the supervisor's stall timeout.
            names = list(self._limits.named)
            threading.Thread(target=self._look_up, args=(names,), daemon=True).start()

    def _look_up(self, names: list[str]) -> None:
        """Runs in its own thread: resolve the hosts that have their own limits."""
        addresses: dict[str, list[str]] = {}
        for name in names:
            try:
                answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
            except (OSError, UnicodeError) as error:
                logger.warning(
                    "max.connections.per.ip.overrides: no address of %s: %s", name, error
                )
                continue
            addresses[name] = [fdpass.host_of((str(answer[4][0]), 0)) for answer in answers]
        self._limits.resolved(addresses)


def _raise_error(outcome: Pending[Any]) -> None:
    if outcome.error is not None:
        raise outcome.error
