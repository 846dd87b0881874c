"""One broker for all tests of a run, drivers of every client, and access to the broker's log."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from interop.drivers import ClientError, Driver
from interop.drivers.groups import (
    AioGroups,
    ConfluentGroups,
    GroupAdmin,
    JavaGroups,
    KafkaPythonGroups,
)
from interop.drivers.java import FIRST_TEST_TIMEOUT_S, java_missing
from interop.drivers.kcat import Kcat
from interop.drivers.members import Member, Subscription
from interop.drivers.transactions import (
    AioTransactions,
    ConfluentTransactions,
    JavaTransactions,
    KafkaPythonTransactions,
    Transactional,
)
from support.all_processes import all_pids, wait_until_all_serve

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

    log_text = ""
    pids: dict[str, int] = {}

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.host, _, port = bootstrap.rpartition(":")
        self.port = int(port)


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """The broker under test."""
    elsewhere = os.environ.get("KBROKER_EXAM_BOOTSTRAP")
    if elsewhere:
        yield Elsewhere(elsewhere)  # type: ignore[misc]
        return
    with Broker(SETTINGS, start_timeout=60) as running:
        wait_until_all_serve(running)
        yield running


@pytest.fixture(scope="session")
def driver_of(broker: Broker) -> Iterator[Callable[[str], Driver]]:
    """Creates drivers by name, once each."""
    made: dict[str, Driver] = {}

    def get(name: str) -> Driver:
        if name not in made:
            made[name] = _driver(name, broker.bootstrap)
        return made[name]

    yield get
    for driver in made.values():
        driver.close()


def _driver(name: str, bootstrap: str) -> Driver:
    kind, _, version = name.partition(" ")
    if kind == "java":
        from interop.drivers.java import Java

        return Java(bootstrap, version)
    if kind == "kcat":
        return Kcat(bootstrap)
    if kind == "aiokafka":
        from interop.drivers.aio import Aio

        return Aio(bootstrap)
    if kind == "kafka-python":
        from interop.drivers.kafka_python import KafkaPython

        pinned = tuple(map(int, version.split("."))) if version else None
        return KafkaPython(bootstrap, pinned)
    from interop.drivers.confluent import Confluent

    return Confluent(bootstrap)


@pytest.fixture
def driver(request: pytest.FixtureRequest, driver_of: Callable[[str], Driver]) -> Driver:
    """The client of the test's parameter (``ALL``, ``ADMINS``)."""
    return driver_of(request.param)


@pytest.fixture
def join(broker: Broker, driver_of: Callable[[str], Driver]) -> Iterator[Callable[..., Member]]:
    """``join("aiokafka", "group", "topic", ...)`` creates a member; all are closed after the
    test.
    """
    joined: list[Member] = []

    def make(name: str, group: str, *topics: str, **options: Any) -> Member:
        member = _member(name, driver_of, broker.bootstrap, Subscription(group, topics, **options))
        joined.append(member)
        return member

    yield make
    for member in joined:
        with suppress(Exception):  # the test has closed it, or has failed
            member.close()


def _member(
    name: str, driver_of: Callable[[str], Driver], bootstrap: str, wanted: Subscription
) -> Member:
    from interop.drivers.members_ours import KbrokerMember
    from interop.drivers.members_outside import JavaMember, KcatMember
    from interop.drivers.members_python import AioMember, ConfluentMember, KafkaPythonMember

    if name.startswith("java"):
        return JavaMember(driver_of(name), bootstrap, wanted)  # type: ignore[arg-type]
    kinds = {
        "confluent-kafka": ConfluentMember,
        "kafka-python": KafkaPythonMember,
        "aiokafka": AioMember,
        "kcat": KcatMember,
        "kbroker": KbrokerMember,
    }
    return kinds[name](bootstrap, wanted)


@pytest.fixture
def transactional(
    broker: Broker, driver_of: Callable[[str], Driver]
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
            producer = JavaTransactions(java, broker.bootstrap, identity, timeout_ms, **config)
        else:
            producer = kinds[name](broker.bootstrap, identity, timeout_ms, **config)
        made.append(producer)
        return producer

    yield make
    for producer in made:
        with suppress(Exception):  # the test has closed it
            producer.close()


@pytest.fixture(scope="session")
def groups_of(
    broker: Broker, driver_of: Callable[[str], Driver]
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
            made[name] = kinds[name](broker.bootstrap)
        return made[name]

    yield get
    for admin in made.values():
        admin.close()


@pytest.fixture
def topic() -> str:
    """A name that no other test uses; the topic does not exist."""
    return f"t{os.getpid()}-{next(_topics)}"


@pytest.fixture
def create(driver_of: Callable[[str], Driver]) -> Callable[..., None]:
    """``create(topic, partitions)`` returns once every client sees the topic, in Apache Kafka
    too.
    """
    admin: Any = driver_of("confluent-kafka")

    def work(topic: str, partitions: int = 1) -> None:
        admin.create_topic(topic, partitions)
        wait_until(lambda: _partitions(admin, topic) == partitions, what=f"{topic} is there")

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
def made(topic: str, driver_of: Callable[[str], Driver]) -> str:
    """A topic with one partition."""
    driver_of("confluent-kafka").create_topic(topic)  # type: ignore[attr-defined]
    return topic


@pytest.fixture(autouse=True)
def clean_log(broker: Broker) -> Iterator[None]:
    """No test may leave an error in the broker's log, or kill one of its processes."""
    before = len(broker.log_text)
    pids = all_pids(broker)
    yield
    bad = BAD_LINE.findall(broker.log_text[before:])
    assert not bad, f"in the broker's log:\n{broker.log_text[before:]}"
    assert broker.pids == pids, f"processes were restarted:\n{broker.log_text[before:]}"
