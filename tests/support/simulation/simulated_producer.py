"""``KafkaProducer`` in simulated time, without a thread: its sender has a turn whenever something
has happened that it may have to look at. Sockets are pairs, whose other ends are simulated brokers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.simulation.simulated_brokers import FOREVER, Event
from support.simulation.simulated_produce_brokers import ProduceBrokers, ProduceLink
from support.simulation.simulated_surroundings import Paused, SimulatedCluster

from kbroker.client.batches.producer_metadata import ProducerMetadata
from kbroker.client.batches.sender import LAST_VERSION
from kbroker.client.connections.cluster import Cluster
from kbroker.client.errors import ClientError
from kbroker.client.producer import at_exit
from kbroker.client.producer.kafka_producer import KafkaProducer
from kbroker.client.producer.sender_thread import SenderThread

# What a turn of the sender leaves to the next one at the same moment.
TURNS_AT_ONCE = 30


class SimulatedBeside:
    """See ``producer.beside``. Calls that would sleep are begun again after that time."""

    def __init__(self, producer: SimulatedKafkaProducer) -> None:
        self._producer = producer

    def run(
        self, what: str, call: Callable[[], Any], then: Callable[[Any, Exception | None], Any]
    ) -> None:
        world = self._producer.brokers.world
        attempts = 0

        def attempt() -> None:
            nonlocal attempts
            result, error = None, None
            self._producer.begin_call(attempts)
            try:
                result = call()
            except Paused as paused:
                attempts += 1
                world.after(self._producer.late + paused.seconds, attempt)
                return
            except ClientError as failure:
                error = failure
            world.after(
                self._producer.late, lambda: self._producer.post(lambda: then(result, error))
            )

        world.after(0.0, attempt)


class SimulatedMetadata(ProducerMetadata):
    """See ``batches.producer_metadata``."""

    def clock(self) -> float:  # type: ignore[override]
        cluster: Any = self._cluster
        return float(cluster.brokers.world.now)

    def _begin(self, names: list[str]) -> None:
        cluster: Any = self._cluster
        cluster.late, cluster.attempts = 0.0, 0
        response, error = None, None
        try:
            response = self._ask(names)
        except ClientError as failure:
            error = failure
        cluster.brokers.world.after(cluster.late, lambda: self._ended(names, response, error))


class _Connected:
    """A connection that was made for the loop."""

    expired = False

    def __init__(self, link: ProduceLink, address: str) -> None:
        self._link, self.address = link, address

    def take_socket(self) -> Any:
        return self._link.ours

    def close(self) -> None:
        self._link.ours.close()


class SimulatedSender(SenderThread):
    """See ``producer.sender_thread``. events: of the last turn."""

    producer: SimulatedKafkaProducer
    events = 0

    def clock(self) -> float:  # type: ignore[override]
        cluster: Any = self._cluster
        return float(cluster.brokers.world.now)

    def start(self) -> None:
        """There is no thread."""

    def post(self, call: Callable[[], None]) -> bool:
        self.producer.turn_in(0.0)
        return super().post(call)

    def _connect(self, host: str, port: int) -> Any:
        cluster: Any = self._cluster
        producer, world = self.producer, self.producer.brokers.world
        broker = producer.brokers.nodes[port - 9000]
        seconds = self._settings["socket.connection.setup.timeout.ms"] / 1000
        cluster.wait_for(broker, world.now + seconds, "connecting")
        link = ProduceLink(producer.brokers, broker, lambda: producer.turn_in(0.0))
        producer.links.append(link)
        return _Connected(link, f"{host}:{port}"), producer.version

    def turn(self) -> int:
        """How much has happened."""
        self.events = 0
        self._turn()
        return self.events

    @property
    def _moved(self) -> int:
        counts = self._pool.counts()
        return counts["requests"] + counts["responses"]

    def _take_events(self, seconds: float) -> None:
        before = self._moved
        found = self._loop.run(seconds)
        self.events = len(found) + self._moved - before
        for event in found:
            getattr(self, f"_on_{event[0]}")(*event[1:])


class _Clusters:
    """See ``producer.working``."""

    connected: Any = None

    def __init__(self, producer: SimulatedKafkaProducer) -> None:
        self._producer = producer

    def __call__(self) -> Any:
        return self._producer.made_cluster()


class SimulatedKafkaProducer(KafkaProducer):
    """late: by how much the answers of the call that runs came later than now."""

    def __init__(self, brokers: ProduceBrokers, settings: dict[str, Any]) -> None:
        self.brokers = brokers
        self.clusters: list[Any] = []
        self.links: list[ProduceLink] = []
        self.version = brokers.world.random.choice((8, LAST_VERSION))
        self._event: Event | None = None
        self._turn_at = FOREVER
        super().__init__(settings)
        at_exit.discard(self)
        self._watch.detach()
        self.turn_in(0.0)

    def _clusters_of(self, *_: Any) -> Any:  # type: ignore[override]
        return _Clusters(self)

    def made_cluster(self) -> Any:
        found = self._settings
        made = SimulatedCluster(
            ",".join(found["bootstrap.servers"]),
            client_id=self.client_id,
            request_timeout=found["request.timeout.ms"] / 1000,
            deadline=self._block_s,
            connect_timeout=found["socket.connection.setup.timeout.ms"] / 1000,
        )
        made.brokers = self.brokers
        self.clusters.append(made)
        return made

    def _made_sender(
        self, cluster: Cluster, failed: Callable[[ClientError], None] | None
    ) -> SenderThread:
        self._pool.simulate(self._now_us)
        made = SimulatedSender(
            self._settings, self._pool, self._loop, cluster, failed, SimulatedMetadata
        )
        made.producer = self
        made.beside = SimulatedBeside(self)  # type: ignore[assignment]
        return made

    @property
    def _now_us(self) -> int:
        return int(self.brokers.world.now * 1e6)

    # -- calls beside the sender

    def begin_call(self, attempts: int) -> None:
        """All of its requests are sent at this moment."""
        for cluster in self.clusters:
            cluster.late, cluster.attempts = 0.0, attempts

    @property
    def late(self) -> float:
        return max(cluster.late for cluster in self.clusters)

    def post(self, call: Callable[[], None]) -> None:
        """Call it in the sender's turn."""
        self._sender.post(call)

    # -- turns

    def turn_in(self, seconds: float) -> None:
        """Then, if not before."""
        world = self.brokers.world
        at = world.now + max(seconds, 0.0)
        if at < self._turn_at:
            if self._event is not None:
                self._event.cancel()
            self._turn_at = at
            self._event = world.after(at - world.now, self._turn)

    def _turn(self) -> None:
        self._event, self._turn_at = None, FOREVER
        sender: Any = self._sender
        self._pool.simulate(self._now_us)
        for _ in range(TURNS_AT_ONCE):
            if not sender.turn():
                break
            for link in self.links:
                link.drain()
        else:
            raise AssertionError(f"{TURNS_AT_ONCE} turns of the sender at one moment")
        self.links = [link for link in self.links if not link.is_closed]
        sleeps_s = (self._pool.sleeps_until_us - self._now_us) / 1e6
        self.turn_in(max(0.001, min(sleeps_s, 1.0)))

    def append(self, topic: str, partition: int, value: bytes) -> Any:
        """The future of a record; None if the topic is not known yet."""
        self._pool.simulate(self._now_us)
        made = self._append(topic, None, value, None, partition, self._now_us // 1000)
        if made is None:
            self._sender.metadata._tracked.add(topic)
            self._sender.metadata.refresh()
        self.turn_in(0.0)
        return made

    def count(self, topic: str) -> int:
        """Partitions that it knows of."""
        return int(self._pool.partition_count(topic))

    def in_lane(
        self, call: Callable[[], Any], then: Callable[[Any, Exception | None], Any]
    ) -> None:
        """A call of the program's that waits for brokers."""
        self._sender.beside.run("a call", call, then)

    @property
    def pending(self) -> int:
        """Batches that have not ended."""
        return self._pool.unended

    def drop(self) -> None:
        """The simulation is over."""
        self._closed = True
        if self._event is not None:
            self._event.cancel()
        for link in self.links:
            link.close()
        for node in list(self._sender._links):
            self._loop.disconnect(node, "the end")
