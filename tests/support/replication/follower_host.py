"""The followers of an io worker in the test's own process: its logs, its loop, its roles."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.replication.scripted_leader import ScriptedLeader
from support.storage.log_store import LogStore

from kbroker._ext.io.io_loop import IoLoop
from kbroker._ext.shared.log_figures import LogFigures
from kbroker._ext.shared.log_figures import region_size as figures_size
from kbroker._ext.shared.replication_quota import FOLLOWER, ReplicationQuota, region_size
from kbroker.cluster.image import ClusterImage, PartitionImage
from kbroker.config.loader import BrokerConfig
from kbroker.ipc.rpc import Rpc
from kbroker.peers.endpoints import listener_for_brokers
from kbroker.peers.secured import PLAINTEXT
from kbroker.peers.security import PeerSecurity
from kbroker.storage.log.partition_log import PartitionLog
from kbroker.workers.base import now_ms
from kbroker.workers.io.followers import Followers, sent_versions
from kbroker.workers.io.hosted import HostedPartitions
from kbroker.workers.io.leader_link import Versions

ME, LEADER = 0, 5
PATIENCE_S = 60
SETTINGS: dict[str, Any] = {"replica.fetch.backoff.ms": 20, "replica.fetch.wait.max.ms": 50}
NOBODY: Any = None


class FollowerHost:
    """Partition n of topic ``t`` is in slot n, led by ``leaders[0]``, which is broker LEADER."""

    def __init__(
        self,
        path: Path,
        *leaders: ScriptedLeader,
        partitions: int = 1,
        versions: Versions | None = None,
        store: LogStore | None = None,
        topic: dict[str, str] | None = None,
        **settings: Any,
    ) -> None:
        self.store = store or LogStore(path / "follower", slots=max(16, partitions))
        self.clock = self.store.clock
        named = {
            name if "." in name else name.replace("_", "."): value
            for name, value in settings.items()
        }
        self.settings = {name: str(value) for name, value in {**SETTINGS, **named}.items()}
        self.config = BrokerConfig(self.settings)
        self.rpc = Rpc(NOBODY, NOBODY, self.store.clock.monotonic_ms)
        self.epoll = select.epoll()
        self.readers: dict[int, Callable[[], None]] = {}
        self.failed: list[int] = []
        self.image = ClusterImage()
        self.loop = IoLoop(self.store.table, [], [], self.on_storage_failure)
        self.listener = listener_for_brokers(self.config)
        self.security: PeerSecurity | None = None
        if self.listener.protocol != PLAINTEXT:
            self.security = PeerSecurity(self.config, self.listener.name)
        self.quota = ReplicationQuota(bytearray(region_size(11)), FOLLOWER, 1000)
        slots = self.store.table.capacity
        self.figures = LogFigures(bytearray(figures_size(slots, 0)), slots, 0)
        self.followers = Followers(
            self,
            self.loop,
            broker_id=ME,
            versions=sent_versions if versions is None else lambda config: versions,
            quota=self.quota,
            figures=self.figures,
            security=self.security,
        )
        self.hosted = HostedPartitions(
            self, self.store.manager, self.loop, broker_id=ME, worker_index=0, worker_count=1
        )
        self.partitions: list[dict[str, Any]] = [
            {
                "leader": LEADER,
                "leader_epoch": 1,
                "isr": [LEADER, ME],
                "replicas": [LEADER, ME],
                "slot": slot,
                "slot_incarnation": 1,
                "partition_epoch": 0,
                "is_new": not self.store.manager.suspects,
            }
            for slot in range(partitions)
        ]
        self.topic = topic or {}
        self.brokers = {str(LEADER + i): leader.port for i, leader in enumerate(leaders)}

    # ---- what the controller says ----

    def publish(self, partition: int | None = None, **changed: Any) -> None:
        """Send the partitions' states to the io worker, all of them or one changed."""
        for row in self.partitions if partition is None else [self.partitions[partition]]:
            row.update(changed)
        name, protocol = self.listener
        endpoints = {
            key: {"endpoints": [[name, "127.0.0.1", port, protocol]], "rack": None}
            for key, port in self.brokers.items()
        }
        document = {
            "id": (b"t" * 16).hex(),
            "internal": False,
            "config": self.topic,
            "partitions": [PartitionImage(**row) for row in self.partitions],
        }
        delta = {
            "version": self.image.version + 1,
            "topics": {"t": document},
            "brokers": endpoints,
        }
        changes = self.image.apply(delta)
        self.followers.take_topics(changes)
        self.hosted.take(changes, is_snapshot=False)
        opening = self.hosted.open(changes).done
        while not opening.done:
            self.rpc.tick(self.store.clock.monotonic_ms())
        assert not opening.value, opening.value
        for row in self.partitions:
            row.pop("is_new", None)

    # ---- the io worker ----

    def add_reader(self, fd: int, callback: Callable[[], None]) -> None:
        self.readers[fd] = callback
        self.epoll.register(fd, select.EPOLLIN)

    def remove_reader(self, fd: int) -> None:
        del self.readers[fd]
        self.epoll.unregister(fd)

    def watch_writable(self, fd: int, wanted: bool) -> None:
        self.epoll.modify(fd, select.EPOLLIN | (select.EPOLLOUT if wanted else 0))

    def lead_lost(self, slot: int) -> None:
        pass

    def role_changed(self, slot: int, partition: Any, log: PartitionLog | None) -> None:
        self.followers.take_role(slot, partition, log)

    def on_storage_failure(self, slot: int) -> None:
        self.failed.append(slot)
        for gone in self.store.manager.fail_directory_of(slot):
            self.followers.stop(gone)
            self.loop.remove(gone)

    def turn(self, timeout_s: float = 0.01) -> None:
        """One turn of the loop, as in ``IoWorker``."""
        for fd, _ in self.epoll.poll(timeout_s):
            reader = self.readers.get(fd)
            if reader is not None:
                reader()
        self.followers.publish()
        self.loop.end_turn()
        self.followers.end_turn()

    def run_until(self, reached: Callable[[], object], what: str = "") -> None:
        """Turns until it is so."""
        until = time.monotonic() + PATIENCE_S
        while not reached():
            assert time.monotonic() < until, f"not reached: {what or reached}"
            due = self.followers.next_deadline_ms()
            left = 0.05 if due is None else min(max(due - now_ms(), 0) / 1000, 0.05)
            self.turn(left)

    def log(self, slot: int = 0) -> PartitionLog:
        log = self.store.manager.log(slot)
        assert log is not None
        return log

    def bytes_of(self, slot: int = 0) -> bytes:
        return b"".join(p.read_bytes() for p in sorted(Path(self.log(slot).path).glob("*.log")))

    def close(self) -> None:
        self.followers.close()
        self.epoll.close()
        self.store.stop(clean=True)
