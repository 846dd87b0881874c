"""Our consumer and that of Kafka 0.8.2 in one group by ZooKeeper."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from interop.beside import BESIDE
from support.brokers.zookeeper import skip_without_zookeeper
from support.clients.zookeeper_group import Member, Row, Store, arguments, opened, our_command
from support.drivers.java import JVM_OPTIONS, SOURCES, classes_of, libraries

from kbroker.client import KafkaProducer
from kbroker.client.admin.topics import NewTopic, create_topics
from kbroker.client.batches.offsets import committed
from kbroker.client.connections.cluster import Cluster as Client
from kbroker.legacy.zookeeper_consumer.partition_assignors import ASSIGNORS
from kbroker.testing import Cluster, wait_until

pytestmark = BESIDE

VERSION, ARTIFACT = "0.8.2.2", "kafka_2.11"
OURS, JAVA = "ours", "java"
WAIT_S = 60
Join = Callable[..., Member]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    skip_without_zookeeper()
    with Cluster(1, num_io_threads=1) as started:
        yield started


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Iterator[Client]:
    with Client(cluster.bootstrap) as opened_client:
        yield opened_client


@pytest.fixture(scope="module")
def store(cluster: Cluster) -> Iterator[Store]:
    with opened(cluster.zookeeper_connect) as found:
        yield found


@pytest.fixture(scope="module")
def commands() -> dict[str, list[str]]:
    classes = classes_of(VERSION, ARTIFACT, [SOURCES / "old" / "GroupReader.java"])
    path = f"{classes}:{libraries(VERSION, ARTIFACT)}/*"
    return {JAVA: ["java", *JVM_OPTIONS, "-cp", path, "GroupReader"], OURS: our_command()}


@pytest.fixture
def join(cluster: Cluster, commands: dict[str, list[str]]) -> Iterator[Join]:
    with ExitStack() as ends:

        def start(kind: str, group: str, topics: dict[str, int], **settings: object) -> Member:
            words = arguments(cluster.zookeeper_connect, group, topics, **settings)
            member = Member([*commands[kind], *words])
            ends.callback(lambda: member.is_running and member.kill())
            return member

        yield start


@pytest.fixture
def topic(request: pytest.FixtureRequest, client: Client) -> str:
    name = request.node.name.translate(str.maketrans("[]", "--")).strip("-")
    create_topics(client, [NewTopic(name, 7, 1)])
    return str(name)


def write(client: Client, topic: str, each: int, partitions: int = 7) -> None:
    with KafkaProducer(bootstrap_servers=client.bootstrap) as producer:
        for number in range(each * partitions):
            producer.send(topic, b"%d" % number, partition=number % partitions)


def keys(rows: list[Row]) -> Counter[tuple[str, int, int]]:
    return Counter((row.topic, row.partition, row.offset) for row in rows)


def expected(strategy: str, ids: dict[str, bytes], topic: str, partitions: int) -> dict[int, str]:
    members = {name: {topic: json.loads(data)["subscription"][topic]} for name, data in ids.items()}
    return {
        key[1]: f"{me}-{stream}"
        for me in members
        for key, stream in ASSIGNORS[strategy](members, {topic: range(partitions)}, me).items()
    }


@pytest.mark.parametrize("strategy", ["range", "roundrobin"])
def test_both_divide_partitions_alike(
    strategy: str, cluster: Cluster, client: Client, store: Store, join: Join, topic: str
) -> None:
    """Who owns what is written by each for itself, and together they own each partition once."""
    settings = {"partition_assignment_strategy": strategy}
    members = [
        join(JAVA, topic, {topic: 2}, consumer_id="b", **settings),
        join(OURS, topic, {topic: 2}, consumer_id="a", **settings),
        join(JAVA, topic, {topic: 1}, consumer_id="c", **settings),
    ]

    def owned() -> dict[int, str]:
        return store.owners(topic, topic)

    wait_until(lambda: len(store.ids(topic)) == 3 and len(owned()) == 7, WAIT_S, "all owned")
    wanted = expected(strategy, store.ids(topic), topic, 7)
    wait_until(lambda: owned() == wanted, WAIT_S, lambda: f"{owned()} is {wanted}")
    assert len({owner.rpartition("-")[0] for owner in wanted.values()}) == 3

    write(client, topic, 20)
    rows: list[Row] = []

    def all_read() -> bool:
        rows[:] = [row for member in members for row in member.rows]
        return len(keys(rows)) == 140

    wait_until(all_read, WAIT_S, "all are read")
    assert max(keys(rows).values()) == 1
    nodes = [json.loads(data) for _, data in sorted(store.ids(topic).items())]
    ours, theirs = nodes[0], nodes[1]
    assert {**ours, "timestamp": ""} == {**theirs, "timestamp": ""}
    assert type(ours["timestamp"]) is type(theirs["timestamp"])
    for member in members:
        member.end()
    assert store.owners(topic, topic) == {}
    assert store.offsets(topic, topic) == dict.fromkeys(range(7), 20)


@pytest.mark.parametrize("leaves", ["end", "kill"])
@pytest.mark.parametrize("who", [OURS, JAVA])
def test_ownership_moves_when_a_member_is_gone(
    who: str, leaves: str, client: Client, store: Store, join: Join, topic: str
) -> None:
    stays = join(JAVA if who == OURS else OURS, topic, {topic: 1}, consumer_id="stays")
    goes = join(who, topic, {topic: 1}, consumer_id="goes")

    def owners() -> set[str]:
        found = store.owners(topic, topic)
        return {owner.split("_")[-1] for owner in found.values()} if len(found) == 7 else set()

    wait_until(lambda: owners() == {"goes-0", "stays-0"}, WAIT_S, owners)
    write(client, topic, 10)
    wait_until(lambda: len(keys(stays.rows + goes.rows)) == 70, WAIT_S, "all are read")
    goes.commit()
    read_by_it = keys(goes.rows)
    assert read_by_it

    getattr(goes, leaves)()

    wait_until(lambda: owners() == {"stays-0"}, WAIT_S, owners)
    write(client, topic, 10)
    wait_until(lambda: len(keys(stays.rows + goes.rows)) == 140, WAIT_S, "all are read")
    assert not read_by_it & keys(stays.rows), "it continues from what was committed"
    stays.end()


@pytest.mark.parametrize("storage", ["zookeeper", "kafka", "both"])
@pytest.mark.parametrize("first", [OURS, JAVA])
def test_one_continues_from_what_the_other_has_committed(
    first: str, storage: str, client: Client, store: Store, join: Join, topic: str
) -> None:
    settings = {
        "offsets_storage": "zookeeper" if storage == "zookeeper" else "kafka",
        "dual_commit_enabled": str(storage == "both").lower(),
    }
    write(client, topic, 10)
    one = join(first, topic, {topic: 1}, **settings)
    wait_until(lambda: len(one.rows) == 70, WAIT_S, lambda: f"{len(one.rows)} rows")
    one.end()
    in_zookeeper = store.offsets(topic, topic)
    in_kafka = {key[1]: row.offset for key, row in committed(client, topic).items()}
    assert in_zookeeper == ({} if storage == "kafka" else dict.fromkeys(range(7), 10))
    assert in_kafka == ({} if storage == "zookeeper" else dict.fromkeys(range(7), 10))
    write(client, topic, 10)

    other = join(JAVA if first == OURS else OURS, topic, {topic: 1}, **settings)

    wait_until(lambda: len(other.rows) == 70, WAIT_S, lambda: f"{len(other.rows)} rows")
    assert {row.offset for row in other.rows} == set(range(10, 20))
    other.end()


def test_a_filter_of_both_finds_a_new_topic(
    client: Client, store: Store, join: Join, topic: str
) -> None:
    """Each must count the topics of the other's filter as it does itself."""
    regex = {f"~{topic}.*,nothing": 2}
    members = [join(OURS, topic, regex), join(JAVA, topic, regex)]
    new = f"{topic}-new"
    create_topics(client, [NewTopic(new, 4, 1)])

    def owned() -> int:
        return sum(len(set(store.owners(topic, name).items())) for name in (topic, new))

    wait_until(lambda: owned() == 11, WAIT_S, lambda: f"{owned()} are owned")
    assert len(set(store.owners(topic, new).values())) == 4
    write(client, topic, 5)
    write(client, new, 5, 4)
    wait_until(lambda: sum(len(keys(one.rows)) for one in members) == 55, WAIT_S, "all are read")
    for member in members:
        member.end()
