"""The lifecycle that every child process shares: loop, mailbox, timers, shutdown.

The supervisor forks a child with everything in a ``ProcessContext``. ``Worker.run`` makes what may
not exist before a fork (ZeroMQ context, epoll), loops, and returns the exit code. Order in the
loop: wait for events, take messages, ``end_turn``, due timers. SIGTERM only sets a flag that the
loop reads.
"""

from __future__ import annotations

import logging
import mmap
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from kbroker._ext.base.libc import signal_at_parents_death
from kbroker._ext.shared.log_figures import LogFigures
from kbroker.cluster.settings import effective_config
from kbroker.errors import EXIT_CANNOT_START, EXIT_DONE, ConfigError, ErrorCode, WireError
from kbroker.heap import Collector
from kbroker.ipc.calls import CallOperation, Nothing
from kbroker.ipc.mailbox import Mailbox
from kbroker.ipc.process_table import (
    LEAVE,
    READY,
    STATE,
    STOPPING,
    Address,
    ProcessKind,
    ProcessTable,
)
from kbroker.ipc.rpc import Pending, Rpc
from kbroker.log_levels import LogLevels
from kbroker.metrics.slots import Counters
from kbroker.types import BrokerId

if TYPE_CHECKING:
    from kbroker.config.loader import BrokerConfig, Listener
    from kbroker.peers.security import PeerSecurity
    from kbroker.security.tls.listeners import TlsListeners

logger = logging.getLogger(__name__)

A = TypeVar("A")

# An idle tick costs 0.15 ms of Python with cold caches: every 100 ms, they took a fifth of the CPU
# time of a broker that serves a consumer as fast as it can read.
TICK_MS = 250
# The acceptor, the cleaner and the exporter wait for nothing that a tick has to notice sooner.
SLOW_TICK_MS = 1_000
# BOUND: the time for which a turn handles messages. One request may have made thousands of calls.
MAIL_MS = 5
# BOUND: the time that one attempt of a call has which is repeated until it is answered.
PATIENCE_MAX_MS = 60_000
# How long accepting pauses when no descriptor is left for a connection.
NO_DESCRIPTORS_PAUSE_MS = 100


class ProcessContext:
    """The context of a child at the fork. Made by the supervisor; regions are mapped before it."""

    __slots__ = (
        "address",
        "arenas",
        "broker_id",
        "clean_start",
        "client_figures",
        "client_quotas",
        "cluster_id",
        "config",
        "config_path",
        "counters",
        "failed_log_dirs",
        "first_config",
        "follower_sessions",
        "group_offsets",
        "handoffs",
        "incarnation",
        "lanes",
        "listeners",
        "log_figures",
        "metrics_socket",
        "overrides",
        "parent_pid",
        "partition_table",
        "peer_security",
        "processes",
        "properties",
        "replication_quotas",
        "request_times",
        "runtime_dir",
        "slot_names",
        "tls",
        "trusts_clock",
    )

    address: Address
    incarnation: int
    parent_pid: int
    config: BrokerConfig
    first_config: (
        BrokerConfig  # until a process has the image; with what the store had at the start
    )
    config_path: str | None  # re-read on SIGHUP
    overrides: dict[str, str]
    broker_id: BrokerId
    cluster_id: str
    runtime_dir: str
    processes: ProcessTable
    properties: dict[str, str]  # of the file and overrides, for plug-ins; else perhaps empty
    partition_table: mmap.mmap
    slot_names: mmap.mmap  # see SlotNames; written by the controller process
    arenas: list[mmap.mmap]  # one a network process, by index
    counters: mmap.mmap
    client_figures: mmap.mmap  # see ClientFigures: rows for each network process
    request_times: mmap.mmap  # see RequestTimes: a row for each process of a kind that has them
    log_figures: mmap.mmap  # see LogFigures
    group_offsets: list[mmap.mmap]  # see ``group_offsets``; one an io worker, by index
    failed_log_dirs: mmap.mmap  # a LogDirTable, by index in log.dirs; written by io workers
    follower_sessions: mmap.mmap  # a SessionTimes; written by network processes
    replication_quotas: mmap.mmap  # see ReplicationQuota
    client_quotas: mmap.mmap  # a QuotaTable
    listeners: list[tuple[Listener, socket.socket]]  # bound and listening; used by the acceptor
    metrics_socket: socket.socket | None  # bound and listening; used by the exporter
    handoffs: list[tuple[socket.socket, socket.socket]]  # (acceptor end, network end), by index
    lanes: list[list[tuple[socket.socket, socket.socket]]]  # [network][io] -> (network end, io end)
    clean_start: dict[str, bool]  # log directory -> it was shut down cleanly
    tls: TlsListeners  # of the listeners that use it, as they were at the start of the broker
    peer_security: Mapping[str, PeerSecurity]  # of connections to brokers, by listener; likewise
    trusts_clock: bool  # the wall clock went on from where the last run left it


def now_ms() -> int:
    """Monotonic time in ms, for deadlines and timers; never for timestamps."""
    return time.monotonic_ns() // 1_000_000


class Worker:
    """Base class of the child processes."""

    kind: ClassVar[ProcessKind]
    usual_tick_ms: ClassVar[int] = TICK_MS

    def __init__(self, context: ProcessContext) -> None:
        self.context = context
        self.address = context.address
        self.processes = context.processes
        self.config = context.first_config
        self.stopping = False
        self.log_levels = LogLevels(context.runtime_dir)
        self.exit_code = EXIT_DONE
        self.mailbox: Mailbox
        self.rpc: Rpc
        self.epoll: select.epoll
        self._readers: dict[int, Callable[[], None]] = {}
        self._signals: socket.socket
        self._next_tick_ms = 0
        self._mail_is_left = False

    # -- what a kind of process fills in --

    @classmethod
    def import_for(cls, config: BrokerConfig) -> None:
        """Import what only some configurations need; called before the fork."""

    def make_poller(self) -> None:
        """The poller that ``add_reader`` and ``wait`` use."""
        self.epoll = select.epoll()

    def setup(self) -> None:
        """Create what the process needs; calls may be sent but not awaited here."""

    def end_turn(self) -> None:
        """Send everything collected in this turn."""

    def tick(self, now: int) -> None:
        """Called every ``tick_ms()``."""

    def tick_ms(self) -> int:
        """The time until the next tick."""
        return self.usual_tick_ms

    def next_deadline_ms(self) -> int | None:
        """When the process wants to run again without an event, on the clock of ``now_ms``."""
        return None

    def is_quiet(self) -> bool:
        """Whether all waiting requests are small, and no large one is in progress."""
        return True

    def signal_of_parents_end(self) -> int:
        """The signal for this process when the supervisor dies. Processes that write to logs are
        killed.
        """
        return signal.SIGKILL

    def shutdown(self) -> None:
        """Leave in order; the loop has ended, the mailbox still works."""

    # -- the loop --

    def run(self) -> int:
        """The life of the process; returns its exit code."""
        die_with_parent(self.context.parent_pid, self.signal_of_parents_end())
        set_title(f"kbroker: {self.address.title}")
        self._signals = signal_socket()
        if not os.path.isdir(self.context.runtime_dir):
            # No process could be reached any more; only a restart of all of them helps.
            logger.critical(
                "the runtime directory %s was removed while the broker was running; set "
                "runtime.dir to a place that no cleanup job touches",
                self.context.runtime_dir,
            )
            raise SystemExit(EXIT_CANNOT_START)
        self.mailbox = Mailbox(self.context.runtime_dir, self.processes, self.address)
        self.rpc = Rpc(self.mailbox, self.processes, now_ms)
        self.make_poller()
        self.add_reader(self.mailbox.fd, self.drain_mailbox)
        self.add_reader(self._signals.fileno(), self._drain_signals)
        collector = Collector()
        self.log_levels.follow()
        self.setup()
        self.drain_mailbox()
        while not self.stopping:
            if self._mail_is_left:
                self.drain_mailbox()
            self.wait(self._timeout_ms())
            self.end_turn()
            now = now_ms()
            self.rpc.tick(now)
            if now >= self._next_tick_ms:
                self._next_tick_ms = now + self.tick_ms()
                self.processes.heartbeat(self.address)
                self.log_levels.follow()
                if os.getppid() != self.context.parent_pid:
                    logger.error("the supervisor is gone; exiting")
                    break
                self.tick(now)
                collector.maybe_collect(self.is_quiet(), now)
        self.processes.set(self.address, STATE, STOPPING)
        self.shutdown()
        self.mailbox.close()
        return self.exit_code

    def wait(self, timeout_ms: int) -> None:
        """Wait for events and handle them; the network process has its own."""
        for fd, _ in self.epoll.poll(timeout_ms / 1000):
            reader = self._readers.get(fd)  # an earlier reader of this turn may have removed it
            if reader is not None:
                reader()

    def add_reader(self, fd: int, callback: Callable[[], None]) -> None:
        """Call back whenever ``fd`` is readable."""
        self._readers[fd] = callback
        self.epoll.register(fd, select.EPOLLIN)

    def watch_writable(self, fd: int, wanted: bool) -> None:
        """Set whether the reader of ``fd`` is also called when it is writable."""
        self.epoll.modify(fd, select.EPOLLIN | (select.EPOLLOUT if wanted else 0))

    def remove_reader(self, fd: int) -> None:
        """Stop watching ``fd``; call before closing it."""
        if self._readers.pop(fd, None) is not None:
            self.epoll.unregister(fd)

    def drain_mailbox(self) -> None:
        """Take waiting messages, for MAIL_MS; the next turn continues with the rest."""
        receive = self.mailbox.receive
        until = now_ms() + MAIL_MS
        self._mail_is_left = True
        while now_ms() < until:
            message = receive()
            if message is None:
                self._mail_is_left = False
                return
            self.rpc.on_message(message)

    def follow_settings(self, layers: Mapping[str, Mapping[str, str]]) -> None:
        """Take the dynamic broker settings of the cluster image (``ClusterImage.broker_config``).

        What the controller could check it has checked; a setting that cannot be used here leaves
        the present ones in place.
        """
        try:
            self.config = effective_config(self.context.config, layers, self.context.broker_id)
        except ConfigError as error:
            logger.error("keeping the present settings: %s", error)

    async def call_until_answered(self, to: Address, operation: CallOperation[Nothing, A]) -> A:
        """Call a process that may still be starting.

        Each attempt has twice the time of the one before: a callee that is slow for want of a
        processor answers in the end, and not for ever what nobody awaits any longer.
        """
        timeout_ms = operation.deadline_ms
        while True:
            try:
                return await self.rpc.call(to, operation, Nothing(), timeout_ms)
            except WireError as error:
                if error.code == ErrorCode.REQUEST_TIMED_OUT:
                    timeout_ms = min(2 * timeout_ms, PATIENCE_MAX_MS)
                await self.rpc.sleep(5)

    def open_counters(self) -> Counters:
        """This process's row of counters, without the gauges of its predecessor."""
        counters = Counters(self.context.counters, self.processes.addresses.index(self.address))
        counters.reset_gauges()
        return counters

    def open_log_figures(self, network_index: int = -1) -> LogFigures:
        """What passes through each partition."""
        slots = self.config["partition.table.slots"]
        networks = sum(address.kind.row.feeds for address in self.processes.addresses)
        return LogFigures(self.context.log_figures, slots, networks, network_index)

    def ready(self) -> None:
        """Tell the supervisor and the others that this process is serving."""
        self.processes.set(self.address, STATE, READY)

    def on_reload(self) -> None:
        """SIGHUP arrived; only the controller reads the file again."""

    def on_leave(self) -> None:
        """LEAVE arrived: the broker will stop; only the controller process gets it."""

    def _drain_signals(self) -> None:
        for number in self._signals.recv(256):
            if number == signal.SIGTERM:
                self.stopping = True
            elif number == signal.SIGHUP:
                self.on_reload()
            elif number == LEAVE:
                self.on_leave()

    def _timeout_ms(self) -> int:
        if self._mail_is_left:
            return 0
        wake_at = self._next_tick_ms
        for deadline in (self.rpc.next_deadline_ms(), self.next_deadline_ms()):
            if deadline is not None and deadline < wake_at:
                wake_at = deadline
        return max(0, wake_at - now_ms())


def signal_socket() -> socket.socket:
    """A socket that yields one byte per signal; handlers themselves do nothing.

    SIGINT is ignored: it reaches the whole foreground group, and the supervisor decides what it
    means.
    """
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.detach(), warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP, LEAVE):
        signal.signal(number, _noticed)
    # Blocked since the fork, so that SIGTERM before this line was neither lost nor fatal.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGHUP))
    return reader


def _noticed(number: int, frame: Any) -> None:
    """The wakeup descriptor has the signal already."""


def die_with_parent(parent_pid: int, number: int) -> None:
    """Have the kernel send this process a signal when the supervisor dies; leave at once if it
    already has.
    """
    signal_at_parents_death(number)
    if os.getppid() != parent_pid:
        os._exit(EXIT_DONE)


def set_title(title: str) -> None:
    """Show ``title`` in ps and top."""
    import setproctitle

    setproctitle.setproctitle(title)


def raise_failure(outcome: Pending[Any]) -> None:
    """End the process with the exception of one of its own tasks."""
    if outcome.error is not None:
        raise outcome.error
