"""One broker for all tests of a run, drivers of every client, and access to the broker's log.

KBROKER_EXAM_CLUSTER puts three brokers in its place (three_brokers.py).
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from interop.three_brokers import EXAM_CLUSTER, ThreeBrokers
from support.brokers.all_processes import all_pids, wait_until_all_serve
from support.drivers import ClientError, Driver
from support.drivers.access import Access
from support.drivers.groups import (
    AioGroups,
    ConfluentGroups,
    GroupAdmin,
    JavaGroups,
    KafkaPythonGroups,
)
from support.drivers.java import FIRST_TEST_TIMEOUT_S, java_missing
from support.drivers.kcat import Kcat
from support.drivers.members import Member, Subscription
from support.drivers.transactions import (
    AioTransactions,
    ConfluentTransactions,
    JavaTransactions,
    KafkaPythonTransactions,
    Transactional,
)

from kbroker.testing import Broker, wait_until

JAVA_VERSIONS = ("3.9.1", "4.3.0", "4.4.0")
# One of them is enough for a run of what is not slow.
QUICK_JAVA = "java 4.3.0"
PYTHON = ("confluent-kafka", "kafka-python", "aiokafka")
# Log levels that no test may cause. (WARNING is for mistakes of clients.)
BAD_LINE = re.compile(r"^\S+ \S+ (?:ERROR|CRITICAL) .*|^Traceback.*", re.MULTILINE)

_topics = itertools.count()


def java_names() -> list[str]:
    return [f"java {version}" for version in JAVA_VERSIONS]


def _is_slow(name: str) -> bool:
    return name.startswith("java ") and name != QUICK_JAVA


def clients(*names: str) -> list[object]:
    """Parameters for the fixture ``driver``, with the marks that each client needs."""
    marks: dict[str, list[Any]] = {
        "kcat": [pytest.mark.skipif(Kcat.missing(), reason="kcat is not installed")],
        "java": [
            pytest.mark.java,
            pytest.mark.timeout(FIRST_TEST_TIMEOUT_S),
            pytest.mark.skipif(bool(java_missing()), reason=java_missing()),
        ],
    }
    return [
        pytest.param(
            name,
            marks=marks.get(name.partition(" ")[0], []) + [pytest.mark.slow] * _is_slow(name),
            id=name.replace(" ", "-"),
        )
        for name in names
    ]


def combinations(*rows: tuple[Any, ...]) -> list[object]:
    """Parameters that name clients, with the marks of all of them."""
    found = []
    for row in rows:
        names = [one for one in row if isinstance(one, str)]
        marks = [mark for one in clients(*names) for mark in one.marks]  # type: ignore[attr-defined]
        found.append(pytest.param(*row, marks=marks, id="-".join(map(str, row)).replace(" ", "-")))
    return found


def slow(params: list[Any]) -> list[object]:
    """The parameters, for slow tests."""
    return [
        pytest.param(*one.values, marks=[*one.marks, pytest.mark.slow], id=one.id) for one in params
    ]


ALL = clients(*PYTHON, "kcat", *java_names())
ADMINS = clients(*PYTHON, *java_names())
# Both sides of the changes in Kafka 4: the newest of each is enough for groups.
GROUP_JAVA = ("java 3.9.1", "java 4.3.0")

# Records are kept forever: tests date some of them years back. Groups and transactions proceed as
# fast as they can.
SETTINGS = {
    "log.retention.ms": -1,
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1000,
    "group.coordinator.rebalance.protocols": "classic,consumer",
    "group.consumer.heartbeat.interval.ms": 500,
    "group.consumer.min.heartbeat.interval.ms": 200,
    "group.consumer.regex.refresh.interval.ms": 10_000,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
}


class Elsewhere:
    """A broker that was not started by this run, at KBROKER_EXAM_BOOTSTRAP: the exams of groups and
    transactions should pass with Apache Kafka, too. Its log is not available.
    """

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.host, _, port = bootstrap.rpartition(":")
        self.port = int(port)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The broker under test, or the three of them."""
    elsewhere = os.environ.get("KBROKER_EXAM_BOOTSTRAP")
    cluster = os.environ.get(EXAM_CLUSTER)
    if elsewhere:
        yield Elsewhere(elsewhere)  # type: ignore[misc]
    elif cluster:
        with closing(ThreeBrokers(SETTINGS, cluster, tmp_path_factory.mktemp("site"))) as three:
            yield three  # type: ignore[misc]
    else:
        with Broker(SETTINGS, start_timeout=60) as running:
            wait_until_all_serve(running)
            yield running


def brokers_of(broker: object) -> list[Broker]:
    """Those that the run has started."""
    if isinstance(broker, ThreeBrokers):
        return broker.cluster.brokers
    return [broker] if isinstance(broker, Broker) else []


def nodes_of(broker: Broker) -> dict[int, str]:
    """The address of each broker for clients, by its id."""
    return dict(enumerate(broker.bootstrap.split(",")))


def has_topic_ids(broker: Broker) -> bool:
    """Not in a cluster of Kafka 2.7's protocol: its brokers derive ids from names."""
    return not isinstance(broker, ThreeBrokers)


def directory_of(broker: Broker, topic: str, partition: int = 0) -> Path:
    """Where the broker, or the one of several that leads it, keeps the partition."""
    home = broker.leader(topic, partition) if isinstance(broker, ThreeBrokers) else broker
    return Path(home.data_dir, f"{topic}-{partition}")


@pytest.fixture(scope="session")
def access(broker: Broker) -> Access:
    """How clients reach the broker."""
    return broker.access if isinstance(broker, ThreeBrokers) else Access(broker.bootstrap)


@pytest.fixture(scope="session")
def driver_of(access: Access) -> Iterator[Callable[[str], Driver]]:
    """Creates drivers by name, once each."""
    with drivers_of(access) as get:
        yield get


@contextmanager
def drivers_of(access: Access) -> Iterator[Callable[[str], Driver]]:
    """What the fixture ``driver_of`` is."""
    made: dict[str, Driver] = {}

    def get(name: str) -> Driver:
        if name not in made:
            made[name] = _driver(name, access)
        return made[name]

    try:
        yield get
    finally:
        for driver in made.values():
            driver.close()


def _driver(name: str, access: Access) -> Driver:
    kind, _, version = name.partition(" ")
    if kind == "java":
        from support.drivers.java import Java

        return Java(access, version)
    if kind == "kcat":
        return Kcat(access)
    if kind == "aiokafka":
        from support.drivers.aio import Aio

        return Aio(access)
    if kind == "kafka-python":
        from support.drivers.kafka_python import KafkaPython

        pinned = tuple(map(int, version.split("."))) if version else None
        return KafkaPython(access, pinned)
    from support.drivers.confluent import Confluent

    return Confluent(access)


@pytest.fixture
def driver(request: pytest.FixtureRequest, driver_of: Callable[[str], Driver]) -> Driver:
    """The client of the test's parameter (``ALL``, ``ADMINS``)."""
    return driver_of(request.param)


@pytest.fixture
def join(access: Access, driver_of: Callable[[str], Driver]) -> Iterator[Callable[..., Member]]:
    """``join("aiokafka", "group", "topic", ...)`` creates a member; all are closed after the
    test.
    """
    joined: list[Member] = []

    def make(name: str, group: str, *topics: str, **options: Any) -> Member:
        member = _member(name, driver_of, access, Subscription(group, topics, **options))
        joined.append(member)
        return member

    yield make
    for member in joined:
        with suppress(Exception):  # the test has closed it, or has failed
            member.close()


def _member(
    name: str, driver_of: Callable[[str], Driver], access: Access, wanted: Subscription
) -> Member:
    from support.drivers.members_ours import KbrokerMember
    from support.drivers.members_outside import JavaMember, KcatMember
    from support.drivers.members_python import AioMember, ConfluentMember, KafkaPythonMember

    if name.startswith("java"):
        return JavaMember(driver_of(name), access, wanted)  # type: ignore[arg-type]
    kinds = {
        "confluent-kafka": ConfluentMember,
        "kafka-python": KafkaPythonMember,
        "aiokafka": AioMember,
        "kcat": KcatMember,
        "kbroker": KbrokerMember,
    }
    return kinds[name](access, wanted)


@pytest.fixture
def transactional(
    access: Access, driver_of: Callable[[str], Driver]
) -> Iterator[Callable[..., Transactional]]:
    """``transactional("java 4.3.0", "some-id", timeout_ms=60_000)`` creates a producer."""
    made: list[Transactional] = []
    kinds = {
        "confluent-kafka": ConfluentTransactions,
        "kafka-python": KafkaPythonTransactions,
        "aiokafka": AioTransactions,
    }

    def make(name: str, identity: str, timeout_ms: int = 60_000, **config: Any) -> Transactional:
        producer: Transactional
        if name.startswith("java"):
            java: Any = driver_of(name)
            producer = JavaTransactions(java, access, identity, timeout_ms, **config)
        else:
            producer = kinds[name](access, identity, timeout_ms, **config)
        made.append(producer)
        return producer

    yield make
    for producer in made:
        with suppress(Exception):  # the test has closed it
            producer.close()


@pytest.fixture(scope="session")
def groups_of(
    access: Access, driver_of: Callable[[str], Driver]
) -> Iterator[Callable[[str], GroupAdmin]]:
    """The admin clients of groups, by client name."""
    made: dict[str, GroupAdmin] = {}
    kinds = {
        "confluent-kafka": ConfluentGroups,
        "kafka-python": KafkaPythonGroups,
        "aiokafka": AioGroups,
    }

    def get(name: str) -> GroupAdmin:
        if name not in made and name.startswith("java"):
            made[name] = JavaGroups(driver_of(name))  # type: ignore[arg-type]
        elif name not in made:
            made[name] = kinds[name](access)
        return made[name]

    yield get
    for admin in made.values():
        admin.close()


@pytest.fixture
def topic() -> str:
    """A name that no other test uses; the topic does not exist."""
    return f"t{os.getpid()}-{next(_topics)}"


@pytest.fixture
def create(broker: Broker, driver_of: Callable[[str], Driver]) -> Callable[..., None]:
    """``create(topic, partitions)`` returns once every client sees the topic, in Apache Kafka
    too, and every broker.
    """
    admin: Any = driver_of("confluent-kafka")

    def work(topic: str, partitions: int = 1) -> None:
        admin.create_topic(topic, partitions)
        wait_until(lambda: _partitions(admin, topic) == partitions, what=f"{topic} is there")
        if isinstance(broker, ThreeBrokers):
            broker.cluster.wait_in_sync(topic)

    return work


def _partitions(admin: Any, topic: str) -> int:
    try:
        return int(admin.partitions(topic))
    except ClientError:
        return 0


@pytest.fixture
def group() -> str:
    """A name that no other test uses."""
    return f"g{os.getpid()}-{next(_topics)}"


@pytest.fixture
def made(topic: str, create: Callable[..., None]) -> str:
    """A topic with one partition."""
    create(topic)
    return topic


@pytest.fixture(autouse=True)
def clean_log(broker: Broker) -> Iterator[None]:
    """No test may leave an error in the broker's log, or kill one of its processes."""
    before = [(one, len(one.log_text), all_pids(one)) for one in brokers_of(broker)]
    yield
    for one, at, pids in before:
        news = one.log_text[at:]
        assert not BAD_LINE.findall(news), f"in the broker's log:\n{news}"
        assert one.pids == pids, f"processes were restarted:\n{news}"
