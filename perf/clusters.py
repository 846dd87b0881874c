"""Three brokers on this machine, of each kind that ``perf/cluster.py`` compares.

    with KbrokerCluster(place) as cluster:
        cluster.bootstrap, cluster.brokers[0].halt()

kbroker and Kafka 2.7.2 share their state through a ZooKeeper of their own, Kafka 3.9.1 is its own
quorum. A cluster looks like a broker to what only loads it: ``name``, ``bootstrap``, and
``cpu_seconds`` of all its brokers (never of ZooKeeper).
"""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from confluent_kafka.admin import AdminClient

from kbroker.testing.metadata import are_in_sync
from kbroker.testing.zookeeper import ZooKeeperServer
from perf.brokers import Broker, KafkaBroker, KbrokerBroker, Running, free_ports
from perf.waiting import wait_until

OLD_KAFKA = "2.7.2"
ZOOKEEPER_JVM = ("-Xmx512m",)
SESSION_MS = 6000
READY_TIMEOUT_S = 600.0
# Each look connects to every broker, which is counted as their CPU.
IN_SYNC_PAUSE_S = 0.1

# The common configs of all clusters. Only sizes differ from the defaults otherwise.
REPLICATED = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "log.segment.delete.delay.ms": "1000",
    "group.initial.rebalance.delay.ms": "0",
}


class ZooKeeperKafkaBroker(KafkaBroker):
    """Apache Kafka 2.7.2, with its state in ZooKeeper."""

    name = "kafka-2.7.2"
    version = OLD_KAFKA

    def defaults(self) -> dict[str, str]:
        return Broker.defaults(self)

    def format(self) -> None:
        """It does that itself."""


class Cluster(Running):
    """Brokers 1 to 3. ``overrides``: further settings of each."""

    name = "cluster"
    replicas = 3  # of topics that are loaded
    # For thousands of partitions whose logs a Kafka recovers after a kill.
    topic_timeout_s = 600.0

    def __init__(
        self, place: Path | str | None = None, overrides: dict[str, str] | None = None
    ) -> None:
        self.home = Path(tempfile.mkdtemp(prefix=f"perf-{self.name}-", dir=place))
        self.settings = {**REPLICATED, **(overrides or {})}
        self.brokers: list[Broker] = []
        self._stack = ExitStack()

    def create(self) -> Sequence[Broker]:
        """The three brokers, not yet started; other processes that they need are started."""
        raise NotImplementedError

    def start(self) -> None:
        self.brokers = list(self.create())
        for broker in self.brokers:
            self._stack.callback(broker.stop)
            broker.launch()
        self.wait_until_all_know(len(self.brokers))

    def wait_until_all_know(self, count: int) -> None:
        """Wait until every running broker names ``count`` brokers in its metadata."""

        def all_there(broker: Broker) -> bool:
            admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
            try:
                return len(admin.list_topics(timeout=5).brokers) == count
            except Exception:  # confluent-kafka's derives from Exception: not yet there
                return False

        running = [broker for broker in self.brokers if broker.process is not None]
        self.wait(lambda: all(map(all_there, running)), f"{count} brokers")

    def wait(
        self,
        is_so: Callable[[], bool],
        what: str,
        timeout: float = READY_TIMEOUT_S,
        pause_s: float = 0.01,
    ) -> float:
        """Wait until it is true; returns the time.monotonic() of that. Raises TimeoutError.

        pause_s: between two looks, at least.
        """
        seen = ""

        def look() -> bool:
            nonlocal seen
            try:
                return is_so()
            except AssertionError as error:  # not yet, as for kbroker.testing.wait_until
                seen = f"; {error}"
                return False

        def not_so() -> str:
            tails = "\n".join(f"{one.port}: {one.tail(1000)}" for one in self.brokers)
            return f"{self.name}: {what}{seen}\n{tails}"

        return wait_until(look, not_so, timeout, pause_s, is_costly=True)

    def wait_until_in_sync(
        self, topic: str, replicas: int | None = None, timeout: float = READY_TIMEOUT_S
    ) -> float:
        """Wait until every partition has this many replicas in the ISR; returns the
        time.monotonic() of that.
        """
        count = self.replicas if replicas is None else replicas

        def all_in_sync() -> bool:
            return are_in_sync(self.bootstrap.split(","), topic, count)

        what = f"{count} replicas of {topic} in sync"
        return self.wait(all_in_sync, what, timeout, IN_SYNC_PAUSE_S)

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers if broker.process is not None)

    def cpu_seconds(self) -> float:
        return sum(broker.cpu_seconds() for broker in self.brokers if broker.process is not None)

    def broker_of(self, address: tuple[str, int]) -> Broker:
        """The broker that listens on that address."""
        return next(broker for broker in self.brokers if broker.port == address[1])

    def kill(self, broker: Broker) -> None:
        """SIGKILL to the whole tree at once."""
        broker.kill()

    def lose_data(self, broker: Broker) -> None:
        """Remove the records of a stopped broker, and what it knows of them."""
        shutil.rmtree(broker.home / "data")

    def stop(self) -> None:
        """Stop everything, and remove the data."""
        self._stack.close()
        shutil.rmtree(self.home, ignore_errors=True)


class ZooKeeperCluster(Cluster):
    """Brokers that share their state through a ZooKeeper."""

    broker_class: type[Broker]

    def start_zookeeper(self) -> str:
        """Its address; it ends with the cluster."""
        server = ZooKeeperServer(self.home / "zookeeper", jvm=ZOOKEEPER_JVM)
        return str(self._stack.enter_context(server).connect)

    def create(self) -> Sequence[Broker]:
        shared = {
            "zookeeper.connect": f"{self.start_zookeeper()}/perf",
            "zookeeper.session.timeout.ms": str(SESSION_MS),
            **self.settings,
        }
        return [
            self.broker_class(self.home, {"broker.id": str(number), **shared})
            for number in (1, 2, 3)
        ]


class KbrokerCluster(ZooKeeperCluster):
    """kbroker of this checkout."""

    name = "kbroker"
    broker_class = KbrokerBroker


class OldKafkaCluster(ZooKeeperCluster):
    """Apache Kafka 2.7.2."""

    name = "kafka-2.7.2"
    broker_class = ZooKeeperKafkaBroker


class KafkaCluster(Cluster):
    """Apache Kafka 3.9.1, each process broker and controller."""

    name = "kafka-3.9.1"

    def create(self) -> Sequence[Broker]:
        controllers = dict(zip((1, 2, 3), free_ports(3), strict=True))
        voters = ",".join(f"{number}@127.0.0.1:{port}" for number, port in controllers.items())
        found: list[KafkaBroker] = []
        for number, port in controllers.items():
            broker = KafkaBroker(self.home)
            broker.cluster_id = found[0].cluster_id if found else broker.cluster_id
            listeners = f"PLAINTEXT://127.0.0.1:{broker.port},CONTROLLER://127.0.0.1:{port}"
            broker.configuration |= {
                "node.id": str(number),
                "controller.quorum.voters": voters,
                "listeners": listeners,
                **self.settings,
            }
            found.append(broker)
        return found

    def lose_data(self, broker: Broker) -> None:
        """Its copy of the cluster's metadata stays: without it, a voter does not start."""
        for path in (broker.home / "data").iterdir():
            if path.name.endswith("-checkpoint"):
                path.unlink()
            elif path.is_dir() and path.name != "__cluster_metadata-0":
                shutil.rmtree(path)


CLUSTERS: dict[str, type[Cluster]] = {
    one.name: one for one in (KbrokerCluster, KafkaCluster, OldKafkaCluster)
}
