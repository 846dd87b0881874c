"""The consumer group protocol (KIP-848) with librdkafka, alone and beside classic members."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from interop.conftest import BAD_LINE

from kbroker.testing import Broker, wait_until

confluent_kafka = pytest.importorskip("confluent_kafka")
admin = pytest.importorskip("confluent_kafka.admin")

pytestmark = pytest.mark.interop

TIMEOUT_S = 30


class Reader:
    """A consumer polled by a thread of its own; ``seen`` is shared by the readers of a group."""

    def __init__(self, broker: Broker, group: str, seen: list[str], *, classic: bool = False):
        config: dict[str, Any] = {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 200,
        }
        if classic:
            config["partition.assignment.strategy"] = "cooperative-sticky"
            config["session.timeout.ms"] = 10_000
            config["heartbeat.interval.ms"] = 300
        else:
            config["group.protocol"] = "consumer"
        self.seen = seen
        self.owned: list[tuple[str, int]] = []
        self.consumer = confluent_kafka.Consumer(config)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._poll)

    def start(self, *topics: str) -> Reader:
        self.consumer.subscribe(list(topics))
        self._thread.start()
        return self

    def _poll(self) -> None:
        while not self._stopped.is_set():
            message = self.consumer.poll(0.05)
            if message is not None and message.error() is None:
                self.seen.append(message.value().decode())
            # librdkafka hangs if another thread requests this.
            self.owned = sorted((t.topic, t.partition) for t in self.consumer.assignment())
        self.owned = []
        self.consumer.close()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(
        group_consumer_min_heartbeat_interval_ms=200,
        group_consumer_heartbeat_interval_ms=200,
        group_initial_rebalance_delay_ms=0,
    ) as running:
        yield running


@pytest.fixture(autouse=True)
def clean_log(broker: Broker) -> Iterator[None]:
    """No errors; but unlike elsewhere, a test may kill the broker."""
    yield
    assert not BAD_LINE.findall(broker.log_text), broker.log_text


@pytest.fixture
def make_reader(broker: Broker) -> Iterator[Callable[..., Reader]]:
    readers: list[Reader] = []
    seen: list[str] = []

    def make(group: str = "g", **options: Any) -> Reader:
        readers.append(Reader(broker, group, seen, **options))
        return readers[-1]

    yield make
    for reader in readers:
        reader.stop()


def create(broker: Broker, topic: str, partitions: int) -> None:
    client = admin.AdminClient({"bootstrap.servers": broker.bootstrap})
    client.create_topics([admin.NewTopic(topic, partitions, 1)])[topic].result(TIMEOUT_S)


def produce(broker: Broker, topic: str, values: range) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    for value in values:
        producer.produce(topic, str(value))
    assert producer.flush(TIMEOUT_S) == 0


def wait_for_shares(readers: list[Reader], sizes: list[int]) -> None:
    """Wait until the readers own so many partitions, all of them different."""

    def are_there() -> bool:
        owned = [reader.owned for reader in readers]
        every = [partition for one in owned for partition in one]
        return sorted(map(len, owned)) == sorted(sizes) and len(every) == len(set(every))

    wait_until(are_there, TIMEOUT_S, f"partitions are shared as {sizes}")


def test_group_moves_between_protocols_and_loses_nothing(
    broker: Broker, make_reader: Callable[..., Reader]
) -> None:
    create(broker, "t", 6)
    produce(broker, "t", range(200))
    first = make_reader().start("t")
    second = make_reader().start("t")
    wait_for_shares([first, second], [3, 3])

    classic = make_reader(classic=True).start("t")
    wait_for_shares([first, second, classic], [2, 2, 2])
    produce(broker, "t", range(200, 400))
    first.stop()
    wait_for_shares([second, classic], [3, 3])
    second.stop()  # the last of its kind: the group is a classic one now
    wait_for_shares([classic], [6])
    produce(broker, "t", range(400, 600))
    third = make_reader().start("t")
    wait_for_shares([third, classic], [3, 3])

    seen = first.seen
    wait_until(lambda: len(set(seen)) == 600, TIMEOUT_S, "every record is read")
    text = broker.log_text
    assert "group g: migrates to the classic protocol with 1 members" in text
    assert "group g: migrates to the consumer protocol with 1 classic members" in text


def test_pattern_takes_in_a_new_topic(broker: Broker, make_reader: Callable[..., Reader]) -> None:
    create(broker, "logs-a", 2)
    create(broker, "other", 1)
    reader = make_reader().start("^logs-.*")
    wait_for_shares([reader], [2])

    create(broker, "logs-b", 1)
    produce(broker, "logs-b", range(3))

    wait_for_shares([reader], [3])
    wait_until(lambda: len(reader.seen) == 3, TIMEOUT_S, "records of the new topic are read")
    assert ("other", 0) not in reader.owned


def test_group_continues_after_the_broker_was_killed(
    broker: Broker, make_reader: Callable[..., Reader]
) -> None:
    create(broker, "t", 4)
    readers = [make_reader().start("t") for _ in range(2)]
    wait_for_shares(readers, [2, 2])
    before = [reader.owned for reader in readers]

    broker.kill_all()
    broker.start()
    produce(broker, "t", range(100))

    wait_until(lambda: len(set(readers[0].seen)) == 100, TIMEOUT_S, "every record is read")
    assert [reader.owned for reader in readers] == before
    assert "new epoch 3" not in broker.log_text


@pytest.mark.slow
def test_static_member_that_stays_away_gives_up_its_partitions_after_its_session() -> None:
    """As in the test "does rebalance after session timeout" of @confluentinc/kafka-javascript,
    whose broker has a session timeout of 10 s; with the default of 45 s it fails with Apache Kafka,
    too.
    """
    session_s = 3.0
    with Broker(
        group_consumer_min_heartbeat_interval_ms=200,
        group_consumer_heartbeat_interval_ms=200,
        group_consumer_min_session_timeout_ms=1000,
        group_consumer_session_timeout_ms=int(session_s * 1000),
    ) as broker:
        create(broker, "t", 2)
        first = static_member(broker, "instance-1")
        wait_until(lambda: first.poll(0.05) or len(first.assignment()) == 2, 20)
        second = static_member(broker, "instance-2")  # it joins on its own, polled or not

        def both_have_one() -> bool:
            first.poll(0.05)
            second.poll(0.05)
            return len(first.assignment()) == len(second.assignment()) == 1

        wait_until(both_have_one, 20)
        first.close()
        closed_s = time.monotonic()
        wait_until(lambda: second.poll(0.05) or len(second.assignment()) == 2, 20)
        away_s = time.monotonic() - closed_s
        second.close()
        # Its last heartbeat before the close may be some time ago.
        assert session_s - 1 <= away_s < session_s + 5


def static_member(broker: Broker, instance: str) -> Any:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "g",
            "group.protocol": "consumer",
            "group.instance.id": instance,
        }
    )
    consumer.subscribe(["t"])
    return consumer
