"""Three brokers of Apache Kafka: 2.7.2 with ZooKeeper, and 3.9 with KRaft."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fault.clients.proxies import Proxy
from fault.clients.scene import BROKERS, SETTINGS, SPARE, Scene
from kazoo.client import KazooClient
from support.brokers.kafka_servers import (
    REPLICATED,
    Kafka,
    Kafka27,
    Kafka39Voter,
    join_quorum,
)

from kbroker.testing import wait_until, zookeeper
from perf.brokers import free_ports

_REPLICATED = {
    **REPLICATED,
    "inter.broker.listener.name": "BROKERS",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
}
_OURS = ("num.", "group.consumer.", "replica.selector")
_numbers = itertools.count()


class _KafkaScene(Scene):
    """servers: by their ids, the last one a spare."""

    def __init__(self, servers: Sequence[Kafka]) -> None:
        self.servers = servers
        self.security = {}
        self.way = [self.proxy(n) for n in range(len(servers))]
        self._inner = free_ports(len(servers))
        for number, server in enumerate(servers):
            server.config |= {
                name: str(value)
                for name, value in SETTINGS.items()
                if not name.startswith(_OURS) and not name.startswith("zookeeper")
            }
            server.config |= {**_REPLICATED, "broker.rack": str(number)}
            listeners = server.config["listeners"].split(",")
            listeners.append(f"BROKERS://127.0.0.1:{self._inner[number]}")
            server.config["listeners"] = ",".join(listeners)
            protocols = "BROKERS:PLAINTEXT,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"
            server.config["listener.security.protocol.map"] = protocols
            self.advertise(number, self.way[number].address)
        with ThreadPoolExecutor(BROKERS) as pool:
            list(pool.map(self.begin, range(BROKERS)))

    def direct(self, broker: int) -> str:
        return self.servers[broker].bootstrap

    def proxy(self, broker: int) -> Proxy:
        return Proxy(self.servers[broker].port)

    def advertise(self, broker: int, address: str) -> None:
        inner = f"BROKERS://127.0.0.1:{self._inner[broker]}"
        self.servers[broker].config["advertised.listeners"] = f"PLAINTEXT://{address},{inner}"

    def begin(self, broker: int) -> None:
        self.servers[broker].start()

    def kill(self, broker: int) -> None:
        self.servers[broker].kill()

    def running(self, broker: int) -> bool:
        return self.servers[broker].running

    def pids(self, broker: int) -> list[int]:
        return [self.servers[broker].pid]

    def close(self) -> None:
        for server in self.servers:
            server.kill()


class Kafka27Scene(_KafkaScene):
    """2.7.2."""

    def __init__(self, directory: Path) -> None:
        self.zookeeper = place = f"{zookeeper.shared().connect}/exam-{os.getpid()}-{next(_numbers)}"
        servers = [Kafka27(directory / str(n), place, broker_id=str(n)) for n in range(BROKERS + 1)]
        for server in servers:
            server.config["zookeeper.session.timeout.ms"] = "6000"
        self._store = KazooClient(place)
        self._store.start()
        super().__init__(servers)

    def begin(self, broker: int) -> None:
        # It ends at once if its former session is still there.
        registration = f"/brokers/ids/{broker}"
        wait_until(lambda: self._store.exists(registration) is None, 60, "its session has ended")
        super().begin(broker)

    def close(self) -> None:
        super().close()
        self._store.stop()
        self._store.close()


class KRaftScene(_KafkaScene):
    """3.9: each is broker and controller, but for the spare."""

    def __init__(self, directory: Path) -> None:
        self.zookeeper = ""
        servers = [Kafka39Voter(directory / str(n), node_id=str(n)) for n in range(BROKERS + 1)]
        join_quorum(servers, servers[:BROKERS])
        for server in servers:
            server.config |= {
                "broker.session.timeout.ms": "6000",
                "group.coordinator.rebalance.protocols": "classic,consumer",
                "unstable.feature.versions.enable": "true",
            }
        spare = servers[SPARE]
        spare.config["process.roles"] = "broker"
        spare.config["listeners"] = spare.config["listeners"].partition(",CONTROLLER")[0]
        super().__init__(servers)
