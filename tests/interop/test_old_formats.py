"""Clients of message formats 0 and 1: each reads what all wrote, old and new, with every codec."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.drivers import CODECS, AdminDriver, Message, payloads
from support.drivers.confluent import Confluent
from support.drivers.java import FIRST_TEST_TIMEOUT_S, Java, java_missing
from support.drivers.kafka_python import KafkaPython
from support.drivers.kcat import Kcat
from support.drivers.old_java import RELEASES, OldJava

from kbroker.testing import Broker

pytestmark = [
    pytest.mark.interop,
    pytest.mark.slow,
    pytest.mark.timeout(FIRST_TEST_TIMEOUT_S),
]

# librdkafka finds too little memory for the response to Metadata 0 if all names in it are short.
TOPIC = "message-formats-of-all-the-years"
BATCH = 12
OLD_CODECS = CODECS[:-1]  # no zstd
PINS = (
    "0.8.0", "0.8.1", "0.8.2", "0.9", "0.10.0", "0.10.1", "0.10.2", "0.11",
    "1.0", "1.1", "2.0", "2.1", "2.2", "2.3", "2.4", "2.5", "2.6",
)  # fmt: skip
NEW_JAVA = "4.3.0"
FALLBACKS = ("0.8.2.2", "0.9.0.1")
KINDS = {
    **{f"kafka-python {pin}": pin for pin in PINS},
    **{f"librdkafka {version}": version for version in FALLBACKS},
    **{f"kcat {version}": version for version in FALLBACKS},
    **{f"old-java {version}": version for version in RELEASES},
    f"java {NEW_JAVA}": NEW_JAVA,
    "confluent-kafka": "",
}
WITH_HEADERS = (
    *(f"kafka-python {pin}" for pin in PINS[PINS.index("0.11") :]),
    f"java {NEW_JAVA}",
    "confluent-kafka",
)
JAVA = [name for name in KINDS if name.startswith("old-java")]


class OldKcat(Kcat):
    """kcat, configured for a broker of that release."""

    def __init__(self, bootstrap: str, version: str) -> None:
        super().__init__(bootstrap)
        self._settings = {"api_version_request": "false", "broker_version_fallback": version}

    def produce(self, *arguments: Any, **options: Any) -> list[int]:
        return super().produce(*arguments, **options, **self._settings)

    def fetch(self, *arguments: Any, **options: Any) -> Any:
        return super().fetch(*arguments, **options, **self._settings)


def _missing(name: str) -> str:
    """What the client needs and is missing; empty if nothing."""
    if name.startswith("kcat"):
        return "kcat is not installed" if Kcat.missing() else ""
    return java_missing() if "java" in name else ""


@pytest.fixture(scope="module")
def client(broker: Broker) -> Iterator[Callable[[str], Any]]:
    """The clients of this module by name, created once each."""
    made: dict[str, Any] = {}

    def make(name: str) -> Any:
        kind, _, version = name.partition(" ")
        if kind == "kafka-python":
            return KafkaPython(broker.bootstrap, tuple(map(int, version.split("."))))
        if kind == "librdkafka":
            config = {"api.version.request": False, "broker.version.fallback": version}
            return Confluent(broker.bootstrap, name, config)
        if kind == "kcat":
            return OldKcat(broker.bootstrap, version)
        if kind == "old-java":
            return OldJava(broker.bootstrap, version)
        if kind == "java":
            return Java(broker.bootstrap, version)
        return Confluent(broker.bootstrap)

    def get(name: str) -> Any:
        if name not in made:
            made[name] = make(name)
        return made[name]

    yield get
    for one in made.values():
        one.close()


def _codecs(name: str) -> tuple[str, ...]:
    # lz4 was added in 0.8.2, according to kafka-python.
    return OLD_CODECS[:-1] if name in ("kafka-python 0.8.0", "kafka-python 0.8.1") else OLD_CODECS


@pytest.fixture(scope="module")
def written(client: Callable[[str], Any], driver_of: Callable[[str], AdminDriver]) -> list[Message]:
    """The records of the topic, in order; each client has checked the offsets it got."""
    driver_of("confluent-kafka").create_topic(TOPIC)
    expected: list[Message] = []
    for name in itertools.filterfalse(_missing, KINDS):
        for codec in _codecs(name):
            headers = (("dropped", b"for old readers"),) if name in WITH_HEADERS else ()
            text = f"{name} {codec}"
            messages = [
                Message(f"{text} {n} ".encode() * 5, b"key-%d" % n, headers) for n in range(BATCH)
            ]
            if name != "kafka-python 0.8.0":  # which refuses to send one
                messages.append(Message(None, b"gone", headers))
            offsets = client(name).produce(TOPIC, messages, codec=codec)
            if offsets:
                first = len(expected)
                assert offsets == list(range(first, first + len(messages))), text
            expected += messages
    return expected


@pytest.mark.parametrize("name", KINDS)
def test_each_client_reads_what_all_wrote(
    client: Callable[[str], Any], written: list[Message], name: str
) -> None:
    if missing := _missing(name):
        pytest.skip(missing)
    records = client(name).fetch(TOPIC, len(written))
    assert [record.offset for record in records] == list(range(len(written)))
    assert [(record.key, record.value) for record in records] == [
        (message.key, message.value) for message in written
    ]
    if name in WITH_HEADERS:
        assert [record.headers for record in records] == [m.headers for m in written]
    else:
        assert not any(record.headers for record in records)


@pytest.mark.parametrize("start", [1, 5, 40, 77])
@pytest.mark.parametrize("name", ["kafka-python 0.9", "kafka-python 0.10.2", *JAVA])
def test_reading_begins_in_the_middle_of_a_batch(
    client: Callable[[str], Any], written: list[Message], name: str, start: int
) -> None:
    if missing := _missing(name):
        pytest.skip(missing)
    records = client(name).fetch(TOPIC, 30, start=start)
    assert [record.offset for record in records] == list(range(start, start + 30))
    assert [record.value for record in records] == [m.value for m in written[start : start + 30]]


@pytest.mark.parametrize("codec", OLD_CODECS)
@pytest.mark.parametrize("name", ["kafka-python 0.9", "kafka-python 0.10.2", *JAVA])
def test_reader_with_small_fetches_gets_on(
    client: Callable[[str], Any],
    driver_of: Callable[[str], AdminDriver],
    topic: str,
    name: str,
    codec: str,
) -> None:
    """A batch of 40 kB, 4 kB per fetch: below version 3 the last message is truncated."""
    if missing := _missing(name):
        pytest.skip(missing)
    driver_of("confluent-kafka").create_topic(topic)
    messages = payloads(400)
    client("confluent-kafka").produce(topic, messages, codec=codec, **{"linger.ms": 100})
    limit = {"fetch_bytes": 4096} if name in JAVA else {"max_partition_fetch_bytes": 4096}
    records = client(name).fetch(topic, 400, **limit)
    assert [record.offset for record in records] == list(range(400))
    assert [record.value for record in records] == [message.value for message in messages]


def test_timestamps_reach_readers_of_format_1_alone(
    client: Callable[[str], Any], driver_of: Callable[[str], AdminDriver], topic: str
) -> None:
    start_ms = 1_700_000_000_000
    driver_of("confluent-kafka").create_topic(topic)
    for codec in OLD_CODECS:
        messages = [Message(b"v", b"k", (), start_ms + n) for n in range(5)]
        for name in ("kafka-python 0.10.2", "confluent-kafka"):
            client(name).produce(topic, messages, codec=codec)
    for name in ("kafka-python 0.10.2", "confluent-kafka"):
        times = [record.timestamp_ms for record in client(name).fetch(topic, 40)]
        assert times == [start_ms + n for n in range(5)] * 8
    times = [record.timestamp_ms for record in client("kafka-python 0.9").fetch(topic, 40)]
    assert set(times) <= {-1, None}
    assert len(times) == 40
