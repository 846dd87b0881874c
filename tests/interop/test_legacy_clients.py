"""Our clients of 0.8 and those of Java, on kbroker and on Apache Kafka 0.8.2.2 and 3.9: each reads
what the other has written, keys are placed alike, and offsets are found where the other has
committed them.
"""

from __future__ import annotations

import itertools
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.brokers.kafka_servers import Kafka39, Server
from support.brokers.zookeeper import ZooKeeperServer
from support.drivers.java import (
    FIRST_TEST_TIMEOUT_S,
    JVM_OPTIONS,
    SOURCES,
    classes_of,
    java_missing,
    libraries,
)
from support.drivers.old_java import OldJava

from kbroker.client.errors import ClientError, RejectedError
from kbroker.errors import ErrorCode
from kbroker.legacy import (
    EARLIEST_TIME,
    IN_BROKERS,
    IN_ZOOKEEPER,
    LATEST_TIME,
    FetchRequest,
    KeyedMessage,
    ProducerData,
)
from kbroker.legacy.offset_channel import OffsetChannel
from kbroker.legacy.old_producer import Producer
from kbroker.legacy.partitioners import DefaultPartitioner
from kbroker.legacy.simple_consumer import SimpleConsumer
from kbroker.testing import Broker, wait_until

pytestmark = [
    pytest.mark.interop,
    pytest.mark.java,
    pytest.mark.slow,
    pytest.mark.timeout(FIRST_TEST_TIMEOUT_S),
    pytest.mark.skipif(bool(java_missing()), reason=java_missing()),
]

VERSION, ARTIFACT = "0.8.2.2", "kafka_2.11"
KAFKA = f"kafka-{VERSION}"
NEWER = f"kafka-{Kafka39.version}"
CODECS = ("none", "gzip", "snappy", "lz4")
PARTITIONS = 2
COUNT = 21
WAIT_S = 60.0
_names = itertools.count()


class Kafka082(Server):
    """Apache Kafka 0.8.2.2 on a ZooKeeper."""

    version = VERSION

    def __init__(self, home: Path, zookeeper: str) -> None:
        super().__init__(home)
        (home / "server.properties").write_text(
            f"broker.id=0\nport={self.port}\nhost.name=127.0.0.1\nlog.dirs={home / 'data'}\n"
            f"zookeeper.connect={zookeeper}\nnum.partitions={PARTITIONS}\n"
            "offsets.topic.replication.factor=1\noffsets.topic.num.partitions=3\n"
        )

    def command(self) -> list[str]:
        log4j = f"-Dlog4j.configuration=file:{self.home / 'log4j.properties'}"
        # It unmaps its indexes by what later versions of Java hide.
        options = [*JVM_OPTIONS, "-Xmx256m", "--add-exports", "java.base/sun.nio.ch=ALL-UNNAMED"]
        path = f"{libraries(VERSION, ARTIFACT)}/*"
        properties = str(self.home / "server.properties")
        return ["java", *options, log4j, "-cp", path, "kafka.Kafka", properties]


class Place(NamedTuple):
    """A broker, and its ZooKeeper if it has one."""

    port: int
    zookeeper: str | None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"


@pytest.fixture(scope="module", params=["kbroker", KAFKA, NEWER])
def place(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    if request.param == "kbroker":
        with Broker(num_partitions=PARTITIONS, offsets_topic_num_partitions=3) as broker:
            yield Place(broker.port, None)
        return
    home = tmp_path_factory.mktemp("kafka")
    if request.param == NEWER:
        with Kafka39(home, num_partitions=str(PARTITIONS)) as kafka:
            yield Place(kafka.port, None)
        return
    (home / "zookeeper").mkdir()
    with ZooKeeperServer(home / "zookeeper") as zookeeper:
        with Kafka082(home / "kafka", zookeeper.connect) as kafka:
            yield Place(kafka.port, zookeeper.connect)


@pytest.fixture(autouse=True)
def clean_log() -> None:
    """The broker that other tests of this folder share is not needed."""


@pytest.fixture(scope="module")
def reader(place: Place) -> Iterator[OldJava]:
    found = OldJava(place.bootstrap, VERSION)
    yield found
    found.close()


@pytest.fixture
def consumer(place: Place) -> Iterator[SimpleConsumer]:
    with SimpleConsumer("127.0.0.1", place.port, client_id="ours") as made:
        yield made


@pytest.fixture
def topic(consumer: SimpleConsumer) -> str:
    """A topic that all its partitions have a leader of."""
    name = f"legacy-{next(_names)}"
    wait_until(lambda: led(consumer, name), WAIT_S, f"{name} is there")
    return name


def led(consumer: SimpleConsumer, topic: str) -> bool:
    (row,) = consumer.topic_metadata([topic])
    return not row.error_code and all(one.leader for one in row.partitions_metadata)


def scala(*arguments: str, stdin: str = "") -> list[str]:
    """What a job of ScalaClients.java prints."""
    classes = classes_of(VERSION, ARTIFACT, [SOURCES / "old" / "ScalaClients.java"])
    path = f"{classes}:{libraries(VERSION, ARTIFACT)}/*"
    command = ["java", *JVM_OPTIONS, "-cp", path, "ScalaClients", *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=WAIT_S * 2)
    assert done.returncode == 0, done.stdout + done.stderr
    return [line[2:] for line in done.stdout.splitlines() if line.startswith("# ")]


def rows_of(
    consumer: SimpleConsumer, topic: str, partition: int
) -> list[tuple[int, bytes | None, bytes | None]]:
    """All messages of a partition, by several fetches."""
    found: list[tuple[int, bytes | None, bytes | None]] = []
    end = consumer.get_offsets_before(topic, partition, LATEST_TIME, 1)[0]
    while len(found) < end:
        response = consumer.fetch(FetchRequest(topic, partition, len(found), 2048, max_wait=100))
        response.raise_for_error()
        before = len(found)
        found += [
            (one.offset, one.message.key, one.message.payload)
            for one in response.message_set(topic, partition)
            if one.offset >= before
        ]
        assert len(found) > before
    return found


def expected_partition(key: str) -> int:
    return DefaultPartitioner().partition(key, PARTITIONS)


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("codec", CODECS)
def test_java_reads_what_our_producer_has_written(
    place: Place, reader: OldJava, consumer: SimpleConsumer, topic: str, codec: str, kind: str
) -> None:
    settings = {
        "metadata.broker.list": place.bootstrap,
        "request.required.acks": -1,
        "producer.type": kind,
        "compression.codec": codec,
        "batch.num.messages": 10,
        "serializer.class": "kafka.serializer.StringEncoder",
    }
    with Producer(settings) as producer:
        for number in range(COUNT):
            producer.send(KeyedMessage(topic, f"k{number}", f"v{number}"))
        producer.send(ProducerData(topic, data=["no key", None]))

    everything = []
    for partition in range(PARTITIONS):
        ours = rows_of(consumer, topic, partition)
        theirs = reader.fetch(topic, len(ours), partition=partition)
        assert [(row.offset, row.key, row.value) for row in theirs] == ours
        for _, key, _ in ours:
            assert key is None or expected_partition(key.decode()) == partition
        everything += [(key, value) for _, key, value in ours]
    assert sorted(everything, key=str) == sorted(
        [
            *((b"k%d" % number, b"v%d" % number) for number in range(COUNT)),
            (None, b"no key"),
            (None, None),
        ],
        key=str,
    )


@pytest.mark.parametrize("codec", CODECS)
def test_our_consumer_reads_what_javas_producer_has_written(
    place: Place, consumer: SimpleConsumer, topic: str, codec: str
) -> None:
    kind = "async" if codec == "gzip" else "sync"
    scala("produce", topic, str(COUNT), f"metadata.broker.list={place.bootstrap}",
          "request.required.acks=-1", f"compression.codec={codec}", f"producer.type={kind}",
          "queue.buffering.max.ms=50")  # fmt: skip

    everything = []
    for partition in range(PARTITIONS):
        rows = rows_of(consumer, topic, partition)
        assert [row[0] for row in rows] == list(range(len(rows)))
        for _, key, _ in rows:
            assert key is None or expected_partition(key.decode()) == partition
        everything += [(key, value) for _, key, value in rows]
    assert sorted(everything, key=str) == sorted(
        ((None if n % 4 == 3 else b"k%d" % n, b"v%d" % n) for n in range(COUNT)), key=str
    )


@pytest.mark.parametrize(
    ("place", "version"),
    [
        ("kbroker", IN_ZOOKEEPER),
        ("kbroker", IN_BROKERS),
        (KAFKA, IN_ZOOKEEPER),
        (KAFKA, IN_BROKERS),
        (NEWER, IN_BROKERS),
    ],
    indirect=["place"],
)
def test_offsets_are_where_the_other_has_committed_them(
    consumer: SimpleConsumer, topic: str, version: int
) -> None:
    def coordinator() -> Any:
        try:
            return consumer.find_coordinator("group")
        except RejectedError as error:
            assert error.code == ErrorCode.COORDINATOR_NOT_AVAILABLE
            return None

    wait_until(coordinator, WAIT_S, "there is a coordinator")
    where = ("127.0.0.1", str(consumer.port), "group", topic)

    def commit() -> bool:
        """The coordinator may still load its offsets."""
        try:
            consumer.commit_offsets("group", {(topic, 0): 12}, "ours", version=version)
        except ClientError as error:
            assert error.retriable
            return False
        return True

    wait_until(commit, WAIT_S, "the offset is committed")
    words = "ours" if version == IN_BROKERS else ""  # ZooKeeper has the number alone
    assert scala("committed", *where, "0", str(version)) == [f"12 {words} 0"]
    assert scala("commit", *where, "1", str(version), "34", "theirs") == ["0"]
    found = consumer.fetch_offsets("group", [(topic, 0), (topic, 1)], version=version)
    assert {key[1]: row.offset for key, row in found.items()} == {0: 12, 1: 34}
    assert found[topic, 1].metadata == ("theirs" if version == IN_BROKERS else "")


def test_offset_channel_finds_its_coordinator(place: Place, topic: str) -> None:
    brokers = lambda: [("127.0.0.1", place.port)]  # noqa: E731
    with OffsetChannel("channelled", brokers, backoff_ms=100) as channel:
        channel.commit({(topic, 0): 5}, retries=50)
        assert channel.fetch([(topic, 0), (topic, 1)]) == {(topic, 0): (5, "", 0)}


def test_ends_of_logs_and_errors_are_those_of_0_8(
    place: Place, consumer: SimpleConsumer, topic: str
) -> None:
    with Producer(metadata_broker_list=place.bootstrap, request_required_acks=1) as producer:
        producer.send(*(KeyedMessage(topic, b"k", b"v") for _ in range(3)))

    partition = 0 if consumer.get_offsets_before(topic, 0, LATEST_TIME, 1) == [3] else 1
    assert consumer.get_offsets_before(topic, partition, LATEST_TIME, 10) == [3, 0]
    assert consumer.earliest_or_latest_offset(topic, partition, EARLIEST_TIME) == 0
    beyond, missing = consumer.multifetch(
        [FetchRequest(topic, partition, 9, 100), FetchRequest("none-such", 0, 0, 100)]
    )
    assert beyond.error_code(topic, partition) == ErrorCode.OFFSET_OUT_OF_RANGE
    assert missing.error_code("none-such", 0) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    found = consumer.fetch(FetchRequest(topic, partition, 0, 1000))
    assert found.high_watermark(topic, partition) == 3


@pytest.mark.parametrize("place", [KAFKA], indirect=True)
def test_brokers_are_found_by_zookeeper(place: Place, consumer: SimpleConsumer, topic: str) -> None:
    assert place.zookeeper is not None
    with Producer({"zk.connect": place.zookeeper, "request.required.acks": 1}) as producer:
        producer.send(KeyedMessage(topic, b"v"))
    assert sum(len(rows_of(consumer, topic, number)) for number in range(PARTITIONS)) == 1


def test_keys_are_placed_as_by_java() -> None:
    chosen = random.Random(3)
    keys: list[tuple[str, Any]] = [("int", -(1 << 31)), ("long", 1 << 62), ("bytes", b"")]
    for _ in range(100):
        keys += [
            ("str", "".join(chosen.choices("aZ09-\u00e9\u20ac\U0001f600", k=chosen.randrange(9)))),
            ("bytes", chosen.randbytes(chosen.randrange(9))),
            ("int", chosen.randrange(-(1 << 31), 1 << 31)),
            ("long", chosen.choice((1, -1)) * chosen.randrange(1 << 31, 1 << 63)),
            ("float", chosen.uniform(-1e9, 1e9)),
            ("bool", chosen.random() < 0.5),
        ]
    text = {"bytes": bytes.hex, "bool": lambda key: str(key).lower()}
    lines = [f"{kind}\t{text.get(kind, str)(key)}\n" for kind, key in keys]

    theirs = scala("place", "97", stdin="".join(lines))

    ours = [DefaultPartitioner().partition(key, 97) for _, key in keys]
    assert list(map(int, theirs)) == ours
