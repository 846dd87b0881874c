"""Other people's clients on three brokers, of which one is stopped in order and started again.

Each writes, reads in groups of every kind that it has, and commits and aborts transactions, all at
the same time. Promise: no client is told of an error; what was acknowledged is there once and is
read by each group, once while a session lasts; what was committed is read, and nothing else.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

import pytest
from interop.conftest import (
    BAD_LINE,
    GROUP_JAVA,
    PYTHON,
    SETTINGS,
    clients,
    drivers_of,
)
from interop.three_brokers import EXAM_CLUSTER, ThreeBrokers
from support.drivers import CODECS, AdminDriver, Driver, Message
from support.drivers.access import Access
from support.drivers.confluent import Confluent
from support.drivers.java import FIRST_TEST_TIMEOUT_S
from support.drivers.members import Member
from support.drivers.transactions import Transactional
from support.running.threads import noted

from kbroker.testing import wait_until

pytestmark = [
    pytest.mark.interop,
    pytest.mark.slow,
    pytest.mark.timeout(FIRST_TEST_TIMEOUT_S),
]

PARTITIONS = 6
PATIENCE_S = 90.0
BATCH = 20
ROUNDS = 3  # of a writer, before the restart and after it
PAUSE_S = 0.1  # between them
CLASSIC = {"protocol": "classic", "assignor": "range"}
COOPERATIVE = {"protocol": "classic", "assignor": "cooperative-sticky"}
CONSUMER = {"protocol": "consumer"}
# The kinds of groups that each client can be in.
GROUPS = {
    "confluent-kafka": (CLASSIC, COOPERATIVE, CONSUMER),
    "kafka-python": (CLASSIC, COOPERATIVE),
    "aiokafka": (CLASSIC,),
    "kcat": (CLASSIC,),
    "java 3.9.1": (CLASSIC, COOPERATIVE),
    "java 4.3.0": (CLASSIC, COOPERATIVE, CONSUMER),
}
# A transactional producer of aiokafka ends with an error ("Unexpected error during batch delivery")
# if the connection is closed on which it is just looking for its coordinator, whoever closes it.
WITHOUT_TRANSACTIONS = ("kcat", "aiokafka")


@pytest.fixture(
    scope="module", params=os.environ.get(EXAM_CLUSTER, "PLAINTEXT SCRAM-SHA-512").split()
)
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ThreeBrokers]:
    place = tmp_path_factory.mktemp("site")
    with closing(ThreeBrokers(SETTINGS, request.param, place)) as three:
        yield three


@pytest.fixture(scope="module")
def access(broker: ThreeBrokers) -> Access:
    return broker.access


@pytest.fixture(scope="module")
def driver_of(access: Access) -> Iterator[Callable[[str], Driver]]:
    with drivers_of(access) as get:
        yield get


@pytest.fixture(scope="module")
def writer_of(access: Access) -> Iterator[Callable[[str], Driver]]:
    """Drivers of their own for writers: a JVM does one thing after the other, and transactions
    would have to wait.
    """
    with drivers_of(access) as get:
        yield get


@pytest.fixture
def create(broker: ThreeBrokers, access: Access) -> Callable[..., None]:
    """By a client that has just come: librdkafka's administration goes to the controller that it
    has heard of last, and does not ask again.
    """

    def work(topic: str, partitions: int = 1) -> None:
        with closing(Confluent(access)) as admin:
            admin.create_topic(topic, partitions)
        broker.cluster.wait_in_sync(topic)

    return work


@pytest.fixture(autouse=True)
def clean_log(broker: ThreeBrokers) -> Iterator[None]:
    """No errors; but unlike elsewhere, processes come and go."""
    before = [len(one.log_text) for one in broker.cluster.brokers]
    yield
    for one, at in zip(broker.cluster.brokers, before, strict=True):
        news = one.log_text[at:]
        assert not BAD_LINE.findall(news), news


class Rounds:
    """Repeats ``round`` in a thread until it is stopped. errors: what it has raised."""

    def __init__(self) -> None:
        self.count = 0
        self.errors: list[BaseException] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=noted(self._run, self.errors))

    def round(self, number: int) -> None:
        raise NotImplementedError

    def _run(self) -> None:
        while not self._stopping.wait(PAUSE_S):
            self.round(self.count)
            self.count += 1

    def wait_for_more(self) -> None:
        """Some more rounds, or an error."""
        wanted = self.count + ROUNDS
        what = f"{type(self).__name__} does {ROUNDS} more rounds"
        wait_until(lambda: self.errors or self.count >= wanted, PATIENCE_S, what)

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            self._thread.join()
        assert not self.errors, self.errors


class Writer(Rounds):
    """Writes to one partition after the other with the idempotent producer, and all codecs."""

    def __init__(self, driver: Driver, topic: str) -> None:
        super().__init__()
        self.acknowledged: list[str] = []
        self._driver, self._topic = driver, topic

    def round(self, number: int) -> None:
        values = [f"{number}-{index}" for index in range(BATCH)]
        self._driver.produce(
            self._topic,
            [Message(value.encode()) for value in values],
            partition=number % PARTITIONS,
            codec=CODECS[number % len(CODECS)],
            idempotent=True,
        )
        self.acknowledged += values


class Committer(Rounds):
    """Transactions, of which each third is aborted."""

    def __init__(self, producer: Transactional, topic: str) -> None:
        super().__init__()
        self.committed: list[str] = []
        self.topic = topic
        self._producer = producer
        producer.init()

    def round(self, number: int) -> None:
        values = [f"{number}-{index}" for index in range(BATCH)]
        self._producer.begin()
        self._producer.send(self.topic, values)
        if number % 3 == 2:
            self._producer.abort()
        else:
            self._producer.commit()
            self.committed += values


def values_of(members: list[Member]) -> Counter[str]:
    return Counter(record.value for member in members for record in member.taken)


def check_read(members: list[Member], values: list[str]) -> None:
    """Nothing else is read, and nothing twice but by a member whose session has ended."""
    read = values_of(members)
    assert read.keys() == set(values)
    twice = sorted(value for value, count in read.items() if count > 1)
    moves = [f"#{number} {move}" for number, one in enumerate(members) for move in one.moves]
    is_lost = any(move.kind == "lost" for one in members for move in one.moves)
    assert is_lost or not twice, f"{len(twice)} twice, as {twice[:3]}:\n" + "\n".join(moves)


def written(reader: AdminDriver, topic: str, partitions: int) -> Counter[str]:
    """All that is in the topic."""
    count = sum(reader.offset(topic, "latest", number) for number in range(partitions))
    found = reader.fetch(topic, count, partition=range(partitions), timeout_s=PATIENCE_S)
    return Counter((record.value or b"").decode() for record in found)


def check_committed(reader: AdminDriver, topic: str, values: list[str]) -> None:
    """They are what is read of the topic's only partition, with a record behind them."""
    reader.produce(topic, [Message(b"end")])
    found = reader.fetch(topic, len(values) + 1, committed=True, timeout_s=PATIENCE_S)
    assert [(record.value or b"").decode() for record in found] == [*values, "end"]


def wait_until_read(groups: list[list[Member]], values: list[str]) -> None:
    """Each group has all of them."""
    for members in groups:

        def all_read(members: list[Member] = members) -> bool:
            missing = set(values) - values_of(members).keys()
            assert not missing, f"{len(missing)} of {len(values)}, as {sorted(missing)[:3]}"
            return True

        wait_until(all_read, PATIENCE_S, f"{members[0].name} reads everything")


@pytest.mark.parametrize("name", clients(*PYTHON, "kcat", *GROUP_JAVA))
def test_client_goes_on_while_a_broker_is_restarted(
    name: str,
    broker: ThreeBrokers,
    access: Access,
    writer_of: Callable[[str], Driver],
    join: Callable[..., Member],
    transactional: Callable[..., Transactional],
    create: Callable[..., None],
    topic: str,
    group: str,
) -> None:
    create(topic, PARTITIONS)
    create(f"{topic}-tx")
    restarted = broker.cluster.brokers.index(broker.leader(topic, 0))
    groups = [
        [join(name, f"{group}-{number}", topic, **how) for _ in range(2)]
        for number, how in enumerate(GROUPS[name])
    ]
    writer = Writer(writer_of(name), topic)
    work: list[Rounds] = [writer]
    if name not in WITHOUT_TRANSACTIONS:
        work.append(Committer(transactional(name, f"tx-{topic}"), f"{topic}-tx"))
    with ExitStack() as running:
        for one in work:
            running.enter_context(one.running())
            one.wait_for_more()
        wait_until_read(groups, list(writer.acknowledged))
        broker.cluster.restart(restarted)
        for one in work:
            one.wait_for_more()
    wait_until_read(groups, writer.acknowledged)
    for members in groups:
        check_read(members, writer.acknowledged)
        for member in members:
            member.close()
    # A new one: this client's administration takes the leader epochs that it has heard last.
    reader = Confluent(access)
    assert written(reader, topic, PARTITIONS) == Counter(writer.acknowledged)
    for committer in work[1:]:
        assert isinstance(committer, Committer)
        check_committed(reader, committer.topic, committer.committed)
    reader.close()
