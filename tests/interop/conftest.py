"""One broker for all tests of a run, drivers of every client, and a look at the broker's log."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterator

import pytest
from interop.drivers import Driver
from interop.drivers.java import FIRST_TEST_TIMEOUT_S, java_missing
from interop.drivers.kcat import Kcat

from kbroker.testing import Broker

JAVA_VERSIONS = ("3.9.1", "4.3.0", "4.4.0")
PYTHON = ("confluent-kafka", "kafka-python", "aiokafka")
# What no test may leave in the log. (WARNING is for what clients do wrong.)
BAD_LINE = re.compile(r"^\S+ \S+ (?:ERROR|CRITICAL) .*|^Traceback.*", re.MULTILINE)

_topics = itertools.count()


def java_names() -> list[str]:
    return [f"java {version}" for version in JAVA_VERSIONS]


def clients(*names: str) -> list[object]:
    """Parameters for the fixture ``driver``, with the marks that each client needs."""
    marks = {
        "kcat": [pytest.mark.skipif(Kcat.missing(), reason="kcat is not installed")],
        "java": [
            pytest.mark.java,
            pytest.mark.timeout(FIRST_TEST_TIMEOUT_S),
            pytest.mark.skipif(bool(java_missing()), reason=java_missing()),
        ],
    }
    return [
        pytest.param(name, marks=marks.get(name.split()[0], []), id=name.replace(" ", "-"))
        for name in names
    ]


ALL = clients(*PYTHON, "kcat", *java_names())
ADMINS = clients(*PYTHON, *java_names())


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """The broker under test. It keeps records for ever: tests date some of them years back."""
    with Broker({"log.retention.ms": -1}) as running:
        yield running


@pytest.fixture(scope="session")
def driver_of(broker: Broker) -> Iterator[Callable[[str], Driver]]:
    """Makes drivers by name, once each."""
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
def topic() -> str:
    """A name that no other test uses; the topic does not exist."""
    return f"t{os.getpid()}-{next(_topics)}"


@pytest.fixture
def made(topic: str, driver_of: Callable[[str], Driver]) -> str:
    """A topic with one partition."""
    driver_of("confluent-kafka").create_topic(topic)  # type: ignore[attr-defined]
    return topic


@pytest.fixture(autouse=True)
def clean_log(broker: Broker) -> Iterator[None]:
    """No test may leave an error in the broker's log, or kill one of its processes."""
    before = len(broker.log_text)
    pids = broker.pids
    yield
    bad = BAD_LINE.findall(broker.log_text[before:])
    assert not bad, f"in the broker's log:\n{broker.log_text[before:]}"
    assert broker.pids == pids, f"processes were restarted:\n{broker.log_text[before:]}"
