"""A cluster of real brokers on a real ZooKeeper, for tests.

    with Cluster(brokers=3) as cluster:
        producer = KafkaProducer(bootstrap_servers=cluster.bootstrap)
        cluster.kill(0)

One ZooKeeper is started for all clusters of the process, and each cluster has a path of its own in
it. It needs Java and PySpark's jars (``kbroker.testing.zookeeper`` says how to get them).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Self

from kbroker.testing import zookeeper
from kbroker.testing.broker import Broker, BrokerFailed
from kbroker.testing.cables import Cables
from kbroker.testing.metadata import PartitionView, are_in_sync, membership, partition_states
from kbroker.testing.ports import LOCALHOST, HeldPort
from kbroker.testing.running import RunningInBlock
from kbroker.testing.waiting import wait_until

# A killed broker is detected after this time, and a busy machine is not mistaken for a dead one.
DEFAULTS = {
    "zookeeper.session.timeout.ms": "6000",
    "controlled.shutdown.retry.backoff.ms": "500",
    "group.initial.rebalance.delay.ms": "0",
    "cluster.features.enable": "true",
}
# Of internal topics, as far as there are brokers.
REPLICAS = {
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
}
READY_S = 60.0
ZOOKEEPER = "zookeeper"
BROKERS_LISTENER = "BROKERS"

Others = int | str | Iterable[int | str]

_numbers = count()


class Cluster(RunningInBlock):
    """Brokers 0 to ``brokers`` - 1. Settings are those of ``Broker``, for all of them."""

    def __init__(
        self,
        brokers: int = 3,
        config: Mapping[str, object] | None = None,
        *,
        each: Mapping[int, Mapping[str, object]] | None = None,
        cuttable: bool = False,
        between: str | None = None,
        zookeeper_connect: str | None = None,
        directory: str | os.PathLike[str] | None = None,
        start_timeout: float = READY_S,
        **settings: object,
    ) -> None:
        """Raises ValueError for a setting that does not exist, and ZooKeeperMissing.

        each: settings of single brokers, by id. cuttable: have brokers reach each other and
        ZooKeeper through proxies, for ``cut``. between: the security protocol of a listener BROKERS
        that only brokers use; its certificates and logins are in the settings. zookeeper_connect: a
        ZooKeeper to use, with the path of the cluster in it; without one the shared server and a
        new path. directory: where data and logs go and stay; without one a temporary directory that
        ``close`` removes.
        """
        if cuttable and between not in (None, "PLAINTEXT"):
            raise ValueError(
                "the proxies of a cuttable cluster read what brokers send: between=None"
            )
        self._keeps_directory = directory is not None
        self.directory = Path(directory or tempfile.mkdtemp(prefix="kbroker-cluster-"))
        self._start_timeout = start_timeout
        self._between = between
        self._cables = Cables() if cuttable else None
        self._held: list[HeldPort] = []
        self.brokers: list[Broker] = []
        try:
            if zookeeper_connect is None:
                place = f"/{os.getpid()}-{next(_numbers)}"
                zookeeper_connect = zookeeper.shared().connect + place
            self.zookeeper_connect = zookeeper_connect
            for number in range(brokers):
                replicas = {name: min(wanted, brokers) for name, wanted in REPLICAS.items()}
                chosen = {**DEFAULTS, **replicas, **(config or {}), **_dotted(settings)}
                chosen |= (each or {}).get(number, {})
                chosen |= self._addresses(number)
                chosen["broker.id"] = number
                self.brokers.append(self._create(number, chosen))
        except BaseException:
            self.close()
            raise

    def _create(self, number: int, settings: Mapping[str, object]) -> Broker:
        home = self.directory / f"broker-{number}"
        return Broker(settings, directory=home, start_timeout=self._start_timeout)

    def _addresses(self, number: int) -> dict[str, object]:
        """Its listeners, and the address of ZooKeeper for it."""
        ours = self._hold_port()
        client = f"PLAINTEXT://{LOCALHOST}:{ours}"
        if self._cables is None and self._between is None:
            return {"listeners": client, "zookeeper.connect": self.zookeeper_connect}
        inner = self._hold_port()
        addresses: dict[str, object] = {
            "listeners": f"{client},{BROKERS_LISTENER}://{LOCALHOST}:{inner}",
            "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,{BROKERS_LISTENER}:"
            f"{self._between or 'PLAINTEXT'}",
            "inter.broker.listener.name": BROKERS_LISTENER,
            "zookeeper.connect": self.zookeeper_connect,
        }
        if self._cables is None:
            return addresses
        proxy = self._cables.to_broker(str(number), inner)
        server, _, path = self.zookeeper_connect.partition("/")
        keeper = self._cables.from_broker(str(number), ZOOKEEPER, int(server.rpartition(":")[2]))
        addresses["advertised.listeners"] = f"{client},{BROKERS_LISTENER}://{proxy}"
        addresses["zookeeper.connect"] = f"{keeper}/{path}"
        return addresses

    def _hold_port(self) -> int:
        self._held.append(HeldPort())
        return self._held[-1].number

    # -- all of it

    def start(self) -> Self:
        """Start all stopped brokers and return once every one knows all others."""
        self._at_once(Broker.start, [one for one in self.brokers if not one.running])
        self.wait_ready()
        return self

    def stop(self) -> None:
        """Shut down all brokers."""
        self._at_once(Broker.stop, self.brokers)

    def close(self) -> None:
        """Stop all brokers and remove their files, unless a directory to keep was given."""
        try:
            self.heal()
            self._at_once(Broker.close, self.brokers)
        finally:
            if self._cables is not None:
                self._cables.close()
            for port in self._held:
                port.release()
            if not self._keeps_directory:
                shutil.rmtree(self.directory, ignore_errors=True)

    def wait_ready(self, timeout: float = READY_S) -> None:
        """Wait until every running broker sees exactly the running ones, and the same controller
        among them.
        """

        def agree() -> bool:
            running = [one for one in self.brokers if one.running]
            said = {membership(_client_address(one)) for one in running}
            ids = frozenset(self.brokers.index(one) for one in running)
            assert len(said) == 1, f"{said}"
            (view,) = said
            assert view.brokers == ids, f"{sorted(view.brokers)} are registered"
            return view.controller in ids

        try:
            wait_until(agree, timeout, "all brokers know each other")
        except AssertionError as error:
            logs = "\n".join(f"broker {n}:\n{b.log_text}" for n, b in enumerate(self.brokers))
            raise BrokerFailed(f"{error}\n{logs}") from error

    def wait_in_sync(
        self, topic: str, replicas: int | None = None, timeout: float = READY_S
    ) -> None:
        """Wait until by every running broker's metadata, each partition of the topic has this many
        replicas in sync, its leader among them; without a number all that are assigned.
        """

        def in_sync() -> bool:
            running = [_client_address(one) for one in self.brokers if one.running]
            return are_in_sync(running, topic, replicas)

        wait_until(in_sync, timeout, f"the replicas of {topic} are in sync")

    @staticmethod
    def _at_once(work: Callable[[Broker], object], brokers: list[Broker]) -> None:
        if brokers:
            with ThreadPoolExecutor(len(brokers)) as pool:
                list(pool.map(work, brokers))

    # -- single brokers, by their ids

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, for a client's bootstrap servers."""
        return ",".join(_client_address(one) for one in self.brokers)

    @property
    def controller(self) -> int:
        """The id of the controller, as seen by the first running broker; -1 if it knows none."""
        return membership(self._first_running()).controller

    def partitions(self, topic: str) -> dict[int, PartitionView]:
        """Leader, replicas and in-sync replicas of each, as seen by the first running broker."""
        return partition_states(self._first_running(), topic)

    def _first_running(self) -> str:
        return next(_client_address(one) for one in self.brokers if one.running)

    def kill(self, broker: int) -> None:
        """SIGKILL to all processes of a broker. Others miss it within a second."""
        self.brokers[broker].kill_all()

    def kill_at_once(self, *brokers: int) -> None:
        """The same, with nobody left to end their sessions: others see their connections end."""
        self._at_once(Broker.kill_at_once, [self.brokers[broker] for broker in brokers])

    def restart(self, broker: int) -> None:
        """Stop it in order, if it runs, and start it; return once all know it again."""
        self.brokers[broker].restart()
        self.wait_ready()

    def cut(
        self, broker: int | str, from_: Others | None = None, *, to: Others | None = None
    ) -> None:
        """Disconnect this broker from others: all of them, one, several, or ZooKeeper, which is
        called "zookeeper". Clients still reach it.

        to: one way; what the broker sends does not reach these, and what they send still arrives.
        ZooKeeper may be the one that sends: ``cut("zookeeper", to=0)``.

        Connections stay open and say nothing, as if a cable had been pulled. Needs a cluster with
        ``cuttable=True``.
        """
        if from_ is not None and to is not None:
            raise ValueError("a cut is either from_ others, both ways, or one way, to others")
        cables = self._cut_cables()
        cut = cables.cut if to is None else cables.cut_one_way
        for other in self._others(str(broker), from_ if to is None else to):
            cut(str(broker), other)

    def heal(self, broker: int | None = None) -> None:
        """Undo all disconnections, or those of one broker."""
        if self._cables is not None:
            self._cables.heal(None if broker is None else str(broker))

    def _others(self, one: str, wanted: Others | None) -> list[str]:
        """The ends of links of a broker, or of ZooKeeper; without any wanted all brokers."""
        brokers = [str(number) for number in range(len(self.brokers))]
        if one not in brokers and one != ZOOKEEPER:
            raise ValueError(f"there is no broker {one!r} to cut off")
        reached = [name for name in brokers if name != one]
        if wanted is None:
            return reached
        names = [str(w) for w in ([wanted] if isinstance(wanted, int | str) else wanted)]
        for name in names:
            if name not in reached and (name != ZOOKEEPER or one == ZOOKEEPER):
                raise ValueError(f"broker {one} cannot be cut from {name!r}")
        return names

    def _cut_cables(self) -> Cables:
        if self._cables is None:
            raise ValueError("this cluster has no proxies: create it with cuttable=True")
        return self._cables


def _client_address(broker: Broker) -> str:
    return broker.config["listeners"].split(",")[0].partition("://")[2]


def _dotted(settings: Mapping[str, object]) -> dict[str, object]:
    return {name.replace("_", "."): value for name, value in settings.items()}
