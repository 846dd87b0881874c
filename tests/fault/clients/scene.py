"""Three brokers that clients reach through proxies of the exam, and that may be harmed."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import psutil
from fault.clients.leaders import administration, hand_over
from fault.clients.proxies import Proxy

from kbroker.testing import Broker, Cluster, wait_until
from kbroker.testing.metadata import TopicMetadataView, read_metadata

BROKERS = 3
SPARE = 3  # the id of one that takes over from another
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
    """A cluster of one kind, and a spare broker that does not run. ``way``: the proxy to each."""

    way: list[Proxy]
    zookeeper: str  # its address and path; "" without one
    security: dict[str, Any]  # what clients set to come in

    def direct(self, broker: int) -> str:
        """The broker's own address."""

    def proxy(self, broker: int) -> Proxy:
        """A new one on the way to it."""

    def begin(self, broker: int) -> None: ...

    def kill(self, broker: int) -> None: ...

    def pids(self, broker: int) -> list[int]: ...

    def running(self, broker: int) -> bool: ...

    def advertise(self, broker: int, address: str) -> None:
        """From its next start on."""

    def close(self) -> None: ...


class KbrokerScene:
    """Brokers of this project on a real ZooKeeper. entrance: the listener for clients."""

    entrance = "PLAINTEXT"

    def __init__(self, directory: Path) -> None:
        each = {n: {"broker.rack": str(n)} for n in range(BROKERS + 1)}
        self.security: dict[str, Any] = {}
        self.cluster = Cluster(
            BROKERS + 1,
            {**SETTINGS, **self._secured(directory)},
            each=each,
            between="PLAINTEXT",
            directory=directory,
        )
        self.zookeeper = self.cluster.zookeeper_connect
        self.way: list[Proxy] = []
        for number in range(BROKERS + 1):
            self._open(number)
            self.way.append(self.proxy(number))
            self.advertise(number, self.way[number].address)
        with ThreadPoolExecutor(BROKERS) as pool:
            list(pool.map(self.begin, range(BROKERS)))

    def _secured(self, directory: Path) -> dict[str, object]:
        """More settings of brokers."""
        return {}

    def _open(self, broker: int) -> None:
        """More listeners."""

    def direct(self, broker: int) -> str:
        return self._listeners(broker)["PLAINTEXT"]

    def proxy(self, broker: int) -> Proxy:
        return Proxy(int(self._listeners(broker)[self.entrance].rpartition(":")[2]))

    def _listeners(self, broker: int) -> dict[str, str]:
        listeners = self.cluster.brokers[broker].config["listeners"].split(",")
        return dict(one.split("://") for one in listeners)

    def advertise(self, broker: int, address: str) -> None:
        named = {**self._listeners(broker), self.entrance: address}
        config = self.cluster.brokers[broker].config
        config["advertised.listeners"] = ",".join(f"{name}://{at}" for name, at in named.items())

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
        self._replaced: int | None = None  # the spare has its partitions
        self._side: Broker | None = None

    def bootstrap(self) -> str:
        """All addresses, for the exam itself, which does not log in."""
        if self.scene.security:
            return ",".join(map(self.scene.direct, range(BROKERS)))
        return self.entrance()

    def entrance(self, first: int = 0) -> str:
        """All addresses for the clients that are examined, this broker's first."""
        order = [(first + n) % BROKERS for n in range(BROKERS)]
        return ",".join(self.scene.way[n].address for n in order)

    def side(self) -> str:
        """A broker that is not harmed, for the other end of mirrors."""
        if self._side is None:
            self._side = Broker(num_partitions=3, offsets_topic_num_partitions=1).start()
        return self._side.bootstrap

    def metadata(self, topic: str | None = None) -> TopicMetadataView:
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
        elif what == "replaced":
            self._replace(broker)
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
        self.scene.way[broker] = self.scene.proxy(broker)
        self.scene.advertise(broker, self.scene.way[broker].address)
        self.scene.begin(broker)

    def _replace(self, broker: int) -> None:
        """It does not come back: another one, with another id and address, takes over."""
        self.scene.kill(broker)
        self.scene.begin(SPARE)
        self._replaced = broker
        wait_until(lambda: self._known({SPARE}), READY_S, "the new broker is known")
        with administration(self.bootstrap()) as admin:
            hand_over(admin, broker, SPARE)

    def _give_back(self, broker: int) -> None:
        with administration(self.bootstrap()) as admin:
            hand_over(admin, SPARE, broker)
        self.scene.kill(SPARE)
        self._replaced = None

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
        if self._replaced is not None:
            wait_until(lambda: self._known(set(range(BROKERS))), READY_S, "all brokers are back")
            self._give_back(self._replaced)
        wait_until(self._complete, READY_S, "all brokers know each other")

    def _complete(self) -> bool:
        everyone = frozenset(range(BROKERS))
        for number in range(BROKERS):
            found = read_metadata(self.scene.direct(number)).membership
            assert found.brokers == everyone and found.controller >= 0, f"{number}: {found}"
        return True

    def _known(self, wanted: set[int]) -> bool:
        """Whether all that run know that these do."""
        for number in range(BROKERS + 1):
            if self.scene.running(number):
                found = read_metadata(self.scene.direct(number)).membership
                assert wanted <= found.brokers and found.controller >= 0, f"{number}: {found}"
        return True

    def close(self) -> None:
        self.heal()
        self.scene.close()
        if self._side is not None:
            self._side.close()
        for way in self.scene.way:
            way.close()
