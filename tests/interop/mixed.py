"""A cluster whose members are kbroker and Apache Kafka 2.7.2, on one ZooKeeper.

with MixedCluster(tmp_path) as cluster:
    cluster.kafka(1), cluster.kbroker(2)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing, suppress
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import confluent_kafka
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
from kazoo.client import KazooClient
from support.brokers.kafka_servers import INTERNAL, Kafka27
from support.brokers.zookeeper import skip_without_zookeeper

from kbroker.testing import Broker, wait_until, zookeeper
from kbroker.testing.broker import COMMAND
from kbroker.testing.metadata import membership, partition_states

T = TypeVar("T")

_places = count()
PATIENCE_S = 60
SETTINGS = {
    "zookeeper.session.timeout.ms": "6000",
    "controlled.shutdown.retry.backoff.ms": "500",
    "replica.fetch.wait.max.ms": "100",
    "auto.create.topics.enable": "false",
}


class Member(Broker):
    """A kbroker whose clients use the first of its listeners."""

    @property
    def bootstrap(self) -> str:
        return super().bootstrap.split(",")[0]


class MixedCluster:
    """Its members by broker id. settings: of all of them, beside ``SETTINGS``."""

    def __init__(self, home: Path, settings: Mapping[str, str] = {}) -> None:
        skip_without_zookeeper()
        self.home = home
        self.settings = {**INTERNAL, **SETTINGS, **settings}
        self.connect = f"{zookeeper.shared().connect}/mixed-{home.name}-{next(_places)}"
        self.members: dict[int, Kafka27 | Broker] = {}
        self._stack = ExitStack()
        self._client: KazooClient | None = None

    def kafka(self, number: int, *, port: int = 0, **config: str) -> Kafka27:
        """A Kafka of this id, started; with what a member of the id has left in its directory.
        port: that of its PLAINTEXT listener, if ``config`` names the listeners.
        """
        home = self.home / f"kafka-{number}"
        kafka = Kafka27(home, self.connect, [self.log_dir(number)], broker_id=str(number))
        kafka.port = port or kafka.port
        kafka.config |= {**self.settings, **config}
        return self._start(number, kafka)

    def kbroker(self, number: int, **config: str) -> Broker:
        """As ``kafka``, a kbroker."""
        broker = Member(
            {**self.settings, **config, "zookeeper.connect": self.connect, "broker.id": number},
            directory=self.home / f"kbroker-{number}",
            log_dirs=self.log_dir(number),
        )
        return self._start(number, broker)

    def replace(self, number: int, kafka: Kafka27) -> Broker:
        """A kbroker, started with the file of settings of a Kafka that was stopped."""
        command = [*COMMAND, "-c", str(kafka.properties)]
        same = ("listeners", "log.dirs", "zookeeper.connect", "broker.id")
        settings = {name: kafka.config[name] for name in same}
        broker = Broker(settings, directory=self.home / f"replacement-{number}", command=command)
        return self._start(number, broker)

    def _start(self, number: int, member: T) -> T:
        started: Any = member
        started.start()
        self.members[number] = started
        self.wait_ready()
        self._stack.callback(started.close if isinstance(started, Broker) else started.kill)
        return member

    def wait_ready(self) -> None:
        """Until every member that runs knows the same members and the same controller."""

        def agree() -> bool:
            self.check()
            running = [one for one in self.members.values() if one.running]
            said = {membership(one.bootstrap.partition(",")[0]) for one in running}
            assert len(said) == 1, f"{said}"
            (found,) = said
            ids = {number for number, one in self.members.items() if one.running}
            assert found.brokers == ids, f"{sorted(found.brokers)} are registered"
            return found.controller in ids

        wait_until(agree, PATIENCE_S, "all members know each other")

    def check(self) -> None:
        """Raises ProcessEnded if a Kafka has ended by itself."""
        for member in self.members.values():
            if isinstance(member, Kafka27):
                member.check()

    def log_dir(self, number: int) -> Path:
        return self.home / f"data-{number}"

    def __enter__(self) -> MixedCluster:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._client is not None:
            self._client.stop()
            self._client.close()
        self._stack.close()

    # -- ZooKeeper

    @property
    def store(self) -> KazooClient:
        if self._client is None:
            self._client = KazooClient(self.connect)
            self._client.start()
        return self._client

    def document(self, path: str) -> Any:
        """What a node holds; None if there is none."""
        if self.store.exists(path) is None:
            return None
        return json.loads(self.store.get(path)[0])

    @property
    def controller(self) -> int | None:
        found = self.document("/controller")
        return None if found is None else int(found["brokerid"])

    def is_registered(self, number: int) -> bool:
        """Whether the broker has a session, its own or that of its former process."""
        return self.store.exists(f"/brokers/ids/{number}") is not None

    def state(self, topic: str, partition: int = 0) -> dict[str, Any]:
        found = self.document(f"/brokers/topics/{topic}/partitions/{partition}/state")
        return found or {}

    def isr(self, topic: str, partition: int = 0) -> set[int]:
        return set(self.state(topic, partition).get("isr", ()))

    def leader(self, topic: str, partition: int = 0) -> int | None:
        return self.state(topic, partition).get("leader")

    # -- changes

    def have_control(self, number: int) -> None:
        """Have this member be the controller: others are restarted until it is."""
        while (present := self.controller) != number:
            if present is not None:
                other = self.members[present]
                other.stop()
                waited(lambda: self.controller not in (None, present), "another has taken over")
                other.start()
            self.wait_ready()

    @property
    def bootstrap(self) -> str:
        return ",".join(one.bootstrap for one in self.members.values())

    def _admin(self) -> KafkaAdminClient:
        """A client of the controller."""

        def controller() -> Kafka27 | Broker:
            number = self.controller
            assert number in self.members, f"the controller is {number}"
            return self.members[number]

        member = wait_until(controller, PATIENCE_S, "there is a controller")
        return KafkaAdminClient(bootstrap_servers=member.bootstrap)

    def delete(self, topic: str) -> None:
        """Returns when nothing of it is left in ZooKeeper."""
        admin = self._admin()
        try:
            admin.delete_topics([topic], timeout_ms=60_000)
        finally:
            admin.close()
        waited(lambda: self.store.exists(f"/brokers/topics/{topic}") is None, "it is deleted")

    def create(self, topic: str, assignment: Mapping[int, list[int]], **config: str) -> None:
        """Through the controller; returns when every member knows its leaders."""

        admin = self._admin()
        try:
            configs = {name.replace("_", "."): value for name, value in config.items()}
            wanted = NewTopic(topic, replica_assignments=dict(assignment), topic_configs=configs)
            admin.create_topics([wanted], timeout_ms=60_000)
        finally:
            admin.close()
        first = {partition: replicas[0] for partition, replicas in assignment.items()}
        for one in self.members.values():
            waited(lambda one=one: leaders(one.bootstrap, topic) == first, "all know the leaders")

    # -- logs

    def log_path(self, number: int, topic: str, partition: int = 0) -> Path:
        """Of the first segment that a member has."""
        directory = self.log_dir(number) / f"{topic}-{partition}"
        return min(directory.glob("*.log"), default=directory / f"{0:020}.log")

    def log_bytes(self, number: int, topic: str, partition: int = 0) -> bytes:
        """All that a member has."""
        directory = self.log_dir(number) / f"{topic}-{partition}"
        return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))

    def assert_same_logs(self, topic: str, among: Iterable[int] = (), partition: int = 0) -> None:
        """These members, by default all, have the same bytes once followers have caught up; a
        follower may begin segments elsewhere."""
        numbers = set(among) or set(self.members)

        def agree() -> bool:
            first, *others = (self.log_bytes(number, topic, partition) for number in numbers)
            assert all(other == first for other in others), f"{len(first)}, {[*map(len, others)]}"
            return len(first) > 0

        waited(agree, "logs are the same")


def leaders(bootstrap: str, topic: str) -> dict[int, int]:
    """What this member's metadata says, by partition."""
    return {number: one.leader for number, one in partition_states(bootstrap, topic).items()}


def write(
    bootstrap: str, topic: str, texts: Iterable[str], partitions: int = 1, **options: Any
) -> None:
    """Texts in turn to the partitions; returns once all are acknowledged."""
    producer = KafkaProducer(bootstrap_servers=bootstrap, **{"acks": "all", **options})
    try:
        sent = [
            producer.send(topic, text.encode(), partition=number % partitions)
            for number, text in enumerate(texts)
        ]
        for future in sent:
            future.get(timeout=PATIENCE_S)
    finally:
        producer.close()


def read(bootstrap: str, topic: str, wanted: int, partitions: int = 1) -> list[str]:
    """That many texts of all partitions, sorted."""
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    found: list[str] = []
    try:
        consumer.assign([TopicPartition(topic, number) for number in range(partitions)])

        def is_read() -> bool:
            for records in consumer.poll(timeout_ms=500).values():
                found.extend(record.value.decode() for record in records)
            return len(found) >= wanted

        wait_until(is_read, PATIENCE_S, f"{wanted} records are read")
    finally:
        consumer.close()
    return sorted(found)


def commit(bootstrap: str, group: str, topic: str, offset: int, partitions: int = 1) -> None:
    """Commit this offset of each partition."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    wanted = [confluent_kafka.TopicPartition(topic, n, offset) for n in range(partitions)]
    is_done: list[bool] = []

    def is_committed() -> bool:
        with suppress(confluent_kafka.KafkaException):
            consumer.commit(offsets=wanted, asynchronous=False)
            is_done.append(True)
        return bool(is_done)

    with closing(consumer):
        waited(is_committed, f"offset {offset} of {group} is committed")


def committed(bootstrap: str, group: str, topic: str, partitions: int = 1) -> list[int]:
    """The committed offset of each partition."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    asked = [confluent_kafka.TopicPartition(topic, number) for number in range(partitions)]
    found: list[int] = []

    def are_fetched() -> bool:
        with suppress(confluent_kafka.KafkaException):
            found.extend(one.offset for one in consumer.committed(asked, 30))
        return bool(found)

    with closing(consumer):
        waited(are_fetched, f"the offsets of {group} are fetched")
    return found


def magics(data: bytes) -> set[int]:
    """The formats of the entries of a log."""
    found, at = set(), 0
    while at + 17 <= len(data) and (size := int.from_bytes(data[at + 8 : at + 12], "big")):
        found.add(data[at + 16])
        at += 12 + size
    return found


def texts(size: int, prefix: str = "") -> list[str]:
    return [f"{prefix}{number:05}" for number in range(size)]


def waited(condition: Callable[[], Any], what: str) -> None:
    wait_until(condition, PATIENCE_S, what)
