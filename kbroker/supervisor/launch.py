"""Sets up a broker from its configuration, runs it, and cleans up.

The order is the contract: data directories are locked before anything else is touched; everything
that children share exists before the first fork, and before a file in these directories is changed;
the clean-shutdown marker is the last thing written, only if every io worker left in order, and in
no directory that has failed.
"""

from __future__ import annotations

import gc
import logging
import os
import resource
import time
from collections.abc import Mapping, Sequence

import setproctitle  # noqa: F401  imported here so that no child has to

from kbroker import __version__
from kbroker.clock import CONFIRMED_MS
from kbroker.config.key import LONG_MAX
from kbroker.config.loader import BrokerConfig
from kbroker.config.masking import masked_settings
from kbroker.errors import ConfigError
from kbroker.handlers.support.sasl_listener import check_sasl
from kbroker.heap import freeze_for_children
from kbroker.hosts import address_here
from kbroker.ipc import fdpass
from kbroker.ipc.calls import make_readers
from kbroker.ipc.named_memory import NamedMemory
from kbroker.ipc.process_kinds import WORKERS, KindRow
from kbroker.ipc.process_table import (
    PID,
    READY,
    STATE,
    Address,
    ProcessKind,
    ProcessTable,
    write_head,
)
from kbroker.ipc.regions import RegionSizes, arena_size
from kbroker.metrics import slots
from kbroker.metrics.catalog import PROCESS_RESTARTS
from kbroker.peers.secured import load_security
from kbroker.supervisor.arbiter import Arbiter
from kbroker.supervisor.child import RestartPolicy
from kbroker.supervisor.data_dirs import DataDirs
from kbroker.supervisor.listening import bind_listeners, bind_metrics, load_tls
from kbroker.supervisor.runtime_dir import RuntimeDir
from kbroker.supervisor.service_manager import ServiceManager
from kbroker.supervisor.shared_memory import make_regions, status_bytes
from kbroker.supervisor.signals import SignalQueue
from kbroker.supervisor.spawn import ForkingSystem
from kbroker.supervisor.stored_settings import config_at_start
from kbroker.types import BrokerId
from kbroker.workers import plugged
from kbroker.workers.base import ProcessContext, Worker, set_title
from kbroker.workers.controller.leaving import patience_s, session_grace_s

logger = logging.getLogger(__name__)

# File descriptors of a process besides the links between processes: shared regions, mailboxes,
# temporary files.
OPEN_FILES_MIN = 100

SUPERVISOR = Address(ProcessKind.SUPERVISOR, 0)


class BrokerRun:
    """Everything one run owns, from ``open`` to ``close``."""

    def __init__(
        self,
        config: BrokerConfig,
        config_path: str | None,
        overrides: Mapping[str, str],
        rows: Mapping[ProcessKind, KindRow] = WORKERS,
        *,
        missing_begin_empty: bool = False,
    ) -> None:
        """Raises ConfigError for faults of the configuration that only this machine shows."""
        self.config = config
        self._config_path = config_path
        self._overrides = dict(overrides)
        plugged.check(config)
        self._properties = plugged.properties(config, config_path, overrides)
        counts = {kind: row.count(config) for kind, row in rows.items()}
        self.workers: dict[ProcessKind, type[Worker]] = {
            kind: rows[kind].load() for kind, count in counts.items() if count
        }
        for worker in self.workers.values():
            worker.import_for(config)
        self.addresses = [
            Address(kind, index) for kind, count in counts.items() for index in range(count)
        ]
        self.data_dirs = DataDirs.open(config, missing_begin_empty)
        self.runtime = RuntimeDir.create(
            config.runtime_dir, removes_base=not config.is_set("runtime.dir")
        )
        self.named: NamedMemory | None = None
        try:
            self._share()
        except BaseException:
            self.close()
            raise

    def _share(self) -> None:
        config = self.config
        self._load_security()
        self.listeners = bind_listeners(config)
        self.metrics_socket = bind_metrics(config)
        table_addresses = [*self.addresses, SUPERVISOR]
        status = self._status(table_addresses)
        sizes = self._region_sizes(table_addresses, len(status_bytes(status)))
        self.regions, self.named = make_regions(
            config, sizes, self.runtime.nonce, self.data_dirs.lock_fds
        )
        for index, path in enumerate(config.log_dirs):
            # Not locked by this broker, even if it becomes available a moment later.
            self.regions.failed_log_dirs[index] = path not in self.data_dirs.paths
        self.processes = ProcessTable(self.regions.process_table, table_addresses)
        self.processes.begin_start(SUPERVISOR)
        self.processes.started(SUPERVISOR, os.getpid())
        self.processes.set(SUPERVISOR, STATE, READY)
        self.counters = slots.Counters(self.regions.counters, len(table_addresses) - 1)
        self.regions.status[: sizes.status_bytes] = status_bytes(status)
        write_head(self.regions.process_table, sizes.process_count, sizes.status_bytes)
        network_count = sum(a.kind == ProcessKind.NETWORK for a in self.addresses)
        self._handoffs = [fdpass.create_pair() for _ in range(network_count)]
        self._lanes = [
            [fdpass.create_pair() for _ in range(sizes.io_worker_count)]
            for _ in range(sizes.feeder_count)
        ]
        self.data_dirs.begin()
        self.runtime.write_status(status)

    def _region_sizes(self, addresses: list[Address], status_size: int) -> RegionSizes:
        config = self.config
        return RegionSizes(
            process_count=len(addresses),
            timed_count=sum(address.kind.row.times for address in addresses),
            io_worker_count=sum(a.kind == ProcessKind.IO_WORKER for a in addresses),
            feeder_count=sum(address.kind.row.feeds for address in addresses),
            slot_count=config["partition.table.slots"],
            arena_bytes=arena_size(
                config.queued_max_request_bytes, config["socket.request.max.bytes"] + 4
            ),
            log_dir_count=len(config.log_dirs),
            quota_samples=config["replication.quota.window.num"],
            status_bytes=status_size,
        )

    def _load_security(self) -> None:
        """Load what the stored settings say, or else the file alone. Raises ConfigError."""
        data_dirs = self.data_dirs
        stored = config_at_start(self.config, data_dirs.broker_id, data_dirs.paths)
        try:
            self._secure(stored)
        except ConfigError as error:
            if stored is self.config:
                raise
            try:
                self._secure(self.config)
            except ConfigError:
                raise error from None
            logger.error("starting without the stored settings: %s", error)

    def _secure(self, config: BrokerConfig) -> None:
        check_sasl(config)
        self.tls = load_tls(config)
        self.peer_security = load_security(config)
        self._first_config = config

    def _status(self, addresses: list[Address]) -> dict[str, object]:
        metrics = self.metrics_socket.getsockname()[:2] if self.metrics_socket else None
        return {
            "pid": os.getpid(),
            "version": __version__,
            "broker_id": self.data_dirs.broker_id,
            "cluster_id": self.data_dirs.cluster_id,
            "bootstrap": self.bootstrap,
            "listeners": {
                entry.name: address_here(entry.host, entry.port) for entry, _ in self.listeners
            },
            "metrics": f"{metrics[0]}:{metrics[1]}" if metrics else None,
            "log_dirs": self.data_dirs.paths,
            "config": self._config_path,
            "settings": masked_settings(self.config),
            # For whoever looks at the shared regions (``cli.local.attached``).
            "processes": [address.title for address in addresses],
            "slots": self.config["partition.table.slots"],
        }

    @property
    def bootstrap(self) -> str:
        """The bootstrap address for clients on this machine."""
        return ",".join(address_here(entry.host, entry.port) for entry, _ in self.listeners)

    def context_for(self, address: Address, incarnation: int) -> ProcessContext:
        """The context of a child at the fork."""
        context = ProcessContext()
        context.address = address
        context.incarnation = incarnation
        context.parent_pid = os.getpid()
        context.config = self.config
        context.first_config = self._first_config
        context.config_path = self._config_path
        context.overrides = self._overrides
        context.properties = self._properties
        context.broker_id = BrokerId(self.data_dirs.broker_id)
        context.cluster_id = self.data_dirs.cluster_id
        context.runtime_dir = self.runtime.path
        context.processes = self.processes
        context.partition_table = self.regions.partition_table
        context.slot_names = self.regions.slot_names
        context.arenas = self.regions.arenas
        context.counters = self.regions.counters
        context.client_figures = self.regions.client_figures
        context.request_times = self.regions.request_times
        context.log_figures = self.regions.log_figures
        context.group_offsets = self.regions.group_offsets
        context.failed_log_dirs = self.regions.failed_log_dirs
        context.follower_sessions = self.regions.follower_sessions
        context.replication_quotas = self.regions.replication_quotas
        context.client_quotas = self.regions.client_quotas
        context.listeners = self.listeners
        context.metrics_socket = self.metrics_socket
        context.handoffs = self._handoffs
        context.lanes = self._lanes
        context.tls = self.tls
        context.peer_security = self.peer_security
        # Only the first incarnation finds the logs as the last run left them; but a controller
        # reads logs only if there is no metadata yet, and no io worker has opened one then.
        clean = self.data_dirs.clean_start
        as_left = incarnation == 1 or address.kind is ProcessKind.CONTROLLER
        context.clean_start = clean if as_left else dict.fromkeys(clean, False)
        context.trusts_clock = self.data_dirs.clock_guard.is_trusted(CONFIRMED_MS)
        return context

    def run(self, exit_with_parent: bool = False, ready_lines: Sequence[str] = ()) -> int:
        """Fork, supervise, stop; returns the exit code."""
        manager = ServiceManager(os.environ, ready_lines)
        signals = SignalQueue()
        system = ForkingSystem(
            self.workers,
            self.context_for,
            signals,
            self._close_in_child,
            exit_with_parent,
            lambda: self.processes.heartbeat(SUPERVISOR),
        )
        arbiter = Arbiter(
            self.addresses,
            self.processes,
            system,
            policy=RestartPolicy(
                self.config["worker.restart.backoff.ms"] / 1000,
                self.config["worker.restart.backoff.max.ms"] / 1000,
            ),
            stop_budget_s=self.config["shutdown.timeout.ms"] / 1000,
            leave_s=patience_s(self.config),
            session_grace_s=session_grace_s(self.config),
            on_restart=lambda: self.counters.add(PROCESS_RESTARTS),
            on_end=self._on_end,
            manager=manager,
        )
        make_readers()
        freeze_for_children()
        gc.enable()
        exit_code = arbiter.run()
        if arbiter.stopped_cleanly(ProcessKind.IO_WORKER):
            self.data_dirs.mark_clean(self._failed_dirs())
        else:
            text = "no clean-shutdown marker, as %s: the next start recovers the logs"
            logger.warning(text, arbiter.unclean(ProcessKind.IO_WORKER))
        return exit_code

    def _failed_dirs(self) -> set[str]:
        """Log directories that io workers could not write to."""
        flags = self.regions.failed_log_dirs
        return {path for index, path in enumerate(self.config.log_dirs) if flags[index]}

    def _on_end(self, address: Address, incarnation: int) -> None:
        self.runtime.remove_endpoint(f"{address.title}.{incarnation}")
        self.processes.set(address, PID, 0)
        if address.kind == ProcessKind.NETWORK:
            dropped = fdpass.discard_pending(self._handoffs[address.index])
            if dropped:
                logger.info("closed %d connections that had not reached %s", dropped, address.title)

    def _close_in_child(self) -> None:
        self.runtime.close_in_child()
        if self.named is not None:
            self.named.close_in_child()

    def close(self) -> None:
        """Release the shared memory's names, the runtime directory and the locks."""
        if self.named is not None:
            self.named.remove()
        self.runtime.remove()
        self.data_dirs.release()


def launch(
    config: BrokerConfig,
    config_path: str | None,
    overrides: Mapping[str, str],
    exit_with_parent: bool = False,
    missing_begin_empty: bool = False,
    ready_lines: Sequence[str] = (),
) -> int:
    """Run a broker until it is stopped; returns its exit code.

    missing_begin_empty: see ``DataDirs.open``. ready_lines: see ``ServiceManager``. Raises
    ConfigError before anything runs.
    """
    started_at = time.monotonic()
    keep_secrets_out_of_core_files(config)
    raise_descriptor_limit()
    check_descriptor_limit(config)
    broker = BrokerRun(config, config_path, overrides, missing_begin_empty=missing_begin_empty)
    # Which of several brokers it is; a title hides the command line.
    shown = ("kbroker: supervisor", broker.bootstrap, broker.data_dirs.paths[0], config_path or "")
    set_title(" ".join(shown).rstrip())
    try:
        logger.info("bootstrap address %s", broker.bootstrap)
        for path, clean in broker.data_dirs.clean_start.items():
            logger.info(
                "data directory %s%s", path, "" if clean else " (recovered before it serves)"
            )
        for path in broker.data_dirs.suspect:
            logger.warning(
                "data directory %s was in use when the machine stopped: logs may lack their newest "
                "records, which are copied from other replicas before this broker leads",
                path,
            )
        logger.info("durability: %s", durability(config))
        place = f"ZooKeeper {config['zookeeper.connect']}" if config.uses_zookeeper else "embedded"
        logger.info("metadata store: %s", place)
        if broker.metrics_socket is not None:
            logger.info("metrics at http://%s:%d/metrics", *broker.metrics_socket.getsockname()[:2])
        logger.debug("set up in %.0f ms", (time.monotonic() - started_at) * 1000)
        return broker.run(exit_with_parent, ready_lines)
    finally:
        broker.close()


def durability(config: BrokerConfig) -> str:
    """The durability of an acknowledgement, in one sentence."""
    if config["log.flush.interval.messages"] == 1:
        return "acknowledged means synced to disk; appends that are waiting share one sync"
    interval_ms = config.log_flush_interval_ms
    if interval_ms >= LONG_MAX:
        return (
            "acknowledged means written to the page cache; the operating system decides when to "
            "sync"
        )
    return f"acknowledged means written to the page cache, synced to disk within {interval_ms} ms"


def keep_secrets_out_of_core_files(config: BrokerConfig) -> None:
    """Have core files of all processes contain no memory, if there are passwords or keys in it.

    What remains are registers. Whoever owns the processes can change it for one that runs.
    """
    if any(listener.uses_tls or listener.uses_sasl for listener in config.listeners):
        try:
            with open("/proc/self/coredump_filter", "w") as file:
                file.write("0")
        except OSError as error:
            logger.warning("core files of this broker will contain passwords and keys: %s", error)


def raise_descriptor_limit() -> None:
    """Take all the file descriptors the system grants: connections and segments need one each."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def check_descriptor_limit(config: BrokerConfig) -> None:
    """Raises ConfigError if there are fewer than the processes need among themselves, without any
    partition.

    Whether it is enough for the partitions, each io worker says.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    networks, io_workers = config["num.network.threads"], config["num.io.threads"]
    fewest = OPEN_FILES_MIN + 2 * networks * (io_workers + 1)
    if limit < fewest:
        raise ConfigError("ulimit -n", limit, f"{fewest} or more (LimitNOFILE= of systemd)")
