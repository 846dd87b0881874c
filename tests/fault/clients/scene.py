"""Three brokers that clients reach through proxies of the exam, and that may be harmed."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import psutil
from fault.clients.proxies import Proxy

from kbroker.testing import Cluster, wait_until
from kbroker.testing.metadata import Metadata, read_metadata

BROKERS = 3
READY_S = 120.0
SETTINGS: dict[str, object] = {
    "zookeeper.session.timeout.ms": 6000,
    "replica.lag.time.max.ms": 3000,
    "group.min.session.timeout.ms": 1000,
    "group.consumer.session.timeout.ms": 6000,
    "group.consumer.min.session.timeout.ms": 1000,
    "group.consumer.heartbeat.interval.ms": 500,
    "group.consumer.min.heartbeat.interval.ms": 200,
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 6,
    "transaction.state.log.num.partitions": 6,
    "auto.create.topics.enable": "false",
    "num.io.threads": 1,
    "num.network.threads": 1,
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
}


class Scene(Protocol):
    """A cluster of one kind. ``way``: the proxy to each broker."""

    way: list[Proxy]

    def direct(self, broker: int) -> str:
        """The broker's own address."""

    def begin(self, broker: int) -> None: ...

    def kill(self, broker: int) -> None: ...

    def pids(self, broker: int) -> list[int]: ...

    def running(self, broker: int) -> bool: ...

    def advertise(self, broker: int, address: str) -> None:
        """From its next start on."""

    def close(self) -> None: ...


class KbrokerScene:
    """Brokers of this project on a real ZooKeeper."""

    def __init__(self, directory: Path) -> None:
        each = {n: {"broker.rack": str(n)} for n in range(BROKERS)}
        self.cluster = Cluster(
            BROKERS, SETTINGS, each=each, between="PLAINTEXT", directory=directory
        )
        self.way: list[Proxy] = []
        for number in range(BROKERS):
            self.way.append(Proxy(int(self.direct(number).rpartition(":")[2])))
            self.advertise(number, self.way[number].address)
        self.cluster.start()

    def direct(self, broker: int) -> str:
        return self._listeners(broker)["PLAINTEXT"]

    def _listeners(self, broker: int) -> dict[str, str]:
        listeners = self.cluster.brokers[broker].config["listeners"].split(",")
        return dict(one.split("://") for one in listeners)

    def advertise(self, broker: int, address: str) -> None:
        inner = self._listeners(broker)["BROKERS"]
        config = self.cluster.brokers[broker].config
        config["advertised.listeners"] = f"PLAINTEXT://{address},BROKERS://{inner}"

    def begin(self, broker: int) -> None:
        self.cluster.brokers[broker].start()

    def kill(self, broker: int) -> None:
        self.cluster.kill(broker)

    def running(self, broker: int) -> bool:
        return self.cluster.brokers[broker].running

    def pids(self, broker: int) -> list[int]:
        root = psutil.Process(self.cluster.brokers[broker].pid)
        return [root.pid, *(one.pid for one in root.children(recursive=True))]

    def close(self) -> None:
        self.cluster.close()


class Stage:
    """What the exam does to a scene, of any kind."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self._stopped: set[int] = set()
        self._old: list[Proxy] = []

    def bootstrap(self, first: int = 0) -> str:
        """All addresses, this broker's first."""
        order = [(first + n) % BROKERS for n in range(BROKERS)]
        return ",".join(self.scene.way[n].address for n in order)

    def metadata(self, topic: str | None = None) -> Metadata:
        """As a running broker has it. Raises AssertionError."""
        for number in range(BROKERS):
            if self.scene.running(number) and number not in self._stopped:
                return read_metadata(self.scene.direct(number), topic)
        raise AssertionError("no broker runs")

    def strike(self, what: str, broker: int) -> None:
        """Do it to this broker."""
        if what == "killed":
            self.scene.kill(broker)
        elif what == "moved":
            self._move(broker)
        elif what == "stopped":
            self._stopped.add(broker)
            for pid in self.scene.pids(broker):
                os.kill(pid, signal.SIGSTOP)
        else:
            self.scene.way[broker].harm(what)

    def _move(self, broker: int) -> None:
        """It comes back at another address, and nobody is at the old one."""
        self.scene.kill(broker)
        before = self.scene.way[broker]
        before.close()
        self.scene.way[broker] = Proxy(int(self.scene.direct(broker).rpartition(":")[2]))
        self.scene.advertise(broker, self.scene.way[broker].address)
        self.scene.begin(broker)

    def heal(self) -> None:
        """Undo what is on the way, and let stopped ones go on."""
        for way in self.scene.way:
            way.harm("")
        for broker in self._stopped:
            with suppress(ProcessLookupError, psutil.NoSuchProcess):
                for pid in self.scene.pids(broker):
                    os.kill(pid, signal.SIGCONT)
        self._stopped.clear()

    def mend(self) -> None:
        """All brokers run, and know each other."""
        self.heal()
        for number in range(BROKERS):
            if not self.scene.running(number):
                self.scene.begin(number)
        wait_until(self._complete, READY_S, "all brokers know each other")

    def _complete(self) -> bool:
        everyone = frozenset(range(BROKERS))
        for number in range(BROKERS):
            found = read_metadata(self.scene.direct(number)).membership
            assert found.brokers == everyone and found.controller >= 0, f"{number}: {found}"
        return True

    def close(self) -> None:
        self.heal()
        self.scene.close()
        for way in self.scene.way:
            way.close()
