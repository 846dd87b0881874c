"""The ZooKeeper consumer on a real cluster: streams, groups, offsets in both storages."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from support.brokers.zookeeper import skip_without_zookeeper
from support.clients.zookeeper_group import Store, opened

from kbroker.client import KafkaProducer
from kbroker.client.admin.topics import NewTopic, add_partitions, create_topics
from kbroker.client.batches.offsets import commit, committed
from kbroker.client.connections.cluster import Cluster as Client
from kbroker.client.errors import (
    ClientClosed,
    ClientError,
    ConsumerState,
    SettingRefused,
    UnreachableError,
)
from kbroker.legacy.zookeeper_consumer import (
    Blacklist,
    Consumer,
    ConsumerConfig,
    ConsumerConnector,
    ConsumerTimeout,
    KafkaStream,
    MessageAndMetadata,
    RebalanceFailed,
    StringDecoder,
    Whitelist,
)
from kbroker.testing import Cluster, wait_until

pytestmark = pytest.mark.integration

WAIT_S = 60
QUICK = {
    "auto.offset.reset": "smallest",
    "rebalance.backoff.ms": 500,
    "rebalance.max.retries": 20,
    "refresh.leader.backoff.ms": 50,
    "consumer.timeout.ms": 20_000,
}
Join = Callable[..., ConsumerConnector]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    skip_without_zookeeper()
    with Cluster(1, num_io_threads=1) as started:
        yield started


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Iterator[Client]:
    with Client(cluster.bootstrap) as found:
        yield found


@pytest.fixture(scope="module")
def store(cluster: Cluster) -> Iterator[Store]:
    with opened(cluster.zookeeper_connect) as found:
        yield found


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Of a topic and a group."""
    return "".join(c if c.isalnum() else "-" for c in request.node.name)


@pytest.fixture
def topic(name: str, client: Client) -> str:
    create_topics(client, [NewTopic(name, 4, 1)])
    return name


@pytest.fixture
def join(cluster: Cluster, name: str) -> Iterator[Join]:
    with ExitStack() as ends:

        def start(**settings: Any) -> ConsumerConnector:
            given = {name.replace("_", "."): value for name, value in settings.items()}
            made = Consumer.create(
                {"group.id": name, "zookeeper.connect": cluster.zookeeper_connect, **QUICK, **given}
            )
            ends.callback(made.shutdown)
            return made

        yield start


def write(client: Client, topic: str, each: int, partitions: int = 4, **settings: Any) -> None:
    with KafkaProducer(bootstrap_servers=client.bootstrap, **settings) as producer:
        for number in range(each * partitions):
            producer.send(topic, b"%d" % number, key=b"k", partition=number % partitions)


def take(stream: KafkaStream, count: int) -> list[MessageAndMetadata]:
    return [next(stream) for _ in range(count)]


def offsets_of(rows: list[MessageAndMetadata]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for row in rows:
        found.setdefault(row.partition, []).append(row.offset)
    return found


def test_streams_share_a_topic_and_zookeeper_tells_who_owns_what(
    client: Client, store: Store, join: Join, topic: str
) -> None:
    """ZK-11 to ZK-13."""
    write(client, topic, 5, compression_type="lz4")
    connector = join(consumer_id="c")

    first, second = connector.create_message_streams({topic: 2}, value_decoder=StringDecoder())[
        topic
    ]

    rows = take(first, 10)
    assert offsets_of(rows) == {0: [0, 1, 2, 3, 4], 1: [0, 1, 2, 3, 4]}
    assert (rows[0].topic, rows[0].key, rows[0].message) == (topic, b"k", str(rows[0].partition))
    assert connector.consumer_id == f"{topic}_c"
    node = json.loads(store.ids(topic)[f"{topic}_c"])
    assert (node["version"], node["subscription"], node["pattern"]) == (1, {topic: 2}, "static")
    assert store.owners(topic, topic) == {
        0: f"{topic}_c-0", 1: f"{topic}_c-0", 2: f"{topic}_c-1", 3: f"{topic}_c-1"
    }  # fmt: skip
    assert store.offsets(topic, topic) == {}
    connector.commit_offsets()
    assert store.offsets(topic, topic) == {0: 5, 1: 5, 2: 0, 3: 0}
    take(second, 3)
    wait_until(lambda: sorted(connector.lags().values()) == [0, 0, 2, 5], 10, connector.lags)
    assert connector.lags()[topic, 0] == 0
    client = connector.config["client.id"]
    beans = connector.metrics()
    assert beans[f"kafka.consumer:type=ConsumerFetcherManager,name=MaxLag,clientId={client}"] == 5
    of_first = f"name=ConsumerLag,clientId={client},topic={topic},partition=0"
    assert beans[f"kafka.consumer:type=FetcherLagMetrics,{of_first}"] == 0
    connector.shutdown()
    assert (store.ids(topic), store.owners(topic, topic)) == ({}, {})
    assert sum(store.offsets(topic, topic).values()) == 13
    assert list(first) == []
    with pytest.raises(ClientClosed):
        connector.commit_offsets()
    with pytest.raises(ClientClosed):
        connector.create_message_streams({topic: 1})


def test_a_stream_without_messages_times_out_and_can_be_read_on(
    client: Client, join: Join, topic: str
) -> None:
    """ERR-10."""
    connector = join(consumer_timeout_ms=50)
    (stream,) = connector.create_message_streams({topic: 1})[topic]
    with pytest.raises(ConsumerTimeout, match=r"waited 0.05 s for a message of stream"):
        next(stream)
    write(client, topic, 1)

    def one() -> bool:
        try:
            return next(stream).offset == 0
        except ConsumerTimeout:
            return False

    wait_until(one, WAIT_S, "a message")
    with pytest.raises(ConsumerState, match="has its streams"):
        connector.create_message_streams({topic: 1})
    with pytest.raises(ConsumerState, match="has its streams"):
        connector.create_message_streams_by_filter(Whitelist(".*"))


def test_partitions_move_when_members_come_and_go_and_each_message_is_read_once(
    client: Client, store: Store, join: Join, topic: str
) -> None:
    """ZK-24. Members that shut down commit before they give partitions up."""
    write(client, topic, 10)
    one = join(consumer_id="a")
    (first,) = one.create_message_streams({topic: 1})[topic]
    rows = take(first, 25)

    other = join(consumer_id="b")
    (second,) = other.create_message_streams({topic: 1})[topic]

    wanted = {0: "a-0", 1: "a-0", 2: "b-0", 3: "b-0"}

    def owned() -> dict[int, str]:
        return {n: owner[len(topic) + 1 :] for n, owner in store.owners(topic, topic).items()}

    wait_until(lambda: owned() == wanted, WAIT_S, owned)
    one.shutdown()
    wait_until(lambda: set(owned().values()) == {"b-0"} and len(owned()) == 4, WAIT_S, owned)
    rows += take(second, 15)
    assert offsets_of(sorted(rows)) == {n: list(range(10)) for n in range(4)}
    other.shutdown()
    assert store.offsets(topic, topic) == dict.fromkeys(range(4), 10)


def test_a_filter_reads_topics_that_are_created_later(
    client: Client, store: Store, join: Join, topic: str
) -> None:
    """CONS-13, CONS-23."""
    commit(client, "other", {(topic, 0): (0, "")})  # there is an offsets topic
    connector = join()
    streams = connector.create_message_streams_by_filter(Whitelist(f"{topic}.*,__.*"), 2)
    create_topics(client, [NewTopic(f"{topic}-x", 2, 1), NewTopic(f"y-{topic}", 1, 1)])
    wait_until(lambda: len(store.owners(topic, f"{topic}-x")) == 2, WAIT_S, "new ones are owned")
    write(client, f"{topic}-x", 3, 2)
    assert {row.topic for stream in streams for row in take(stream, 3)} == {f"{topic}-x"}
    assert store.children(f"/consumers/{topic}/owners") == [topic, f"{topic}-x"]
    (node,) = store.ids(topic).values()
    assert json.loads(node)["pattern"] == "white_list"


@pytest.mark.slow
def test_a_blacklist_leaves_out_what_matches(
    client: Client, store: Store, join: Join, topic: str
) -> None:
    connector = join()
    connector.create_message_streams_by_filter(Blacklist(f"(?!{topic}).*"))
    assert store.children(f"/consumers/{topic}/owners") == [topic]


def test_topics_and_partitions_that_are_created_later_are_read(
    client: Client, join: Join, name: str
) -> None:
    connector = join()
    (stream,) = connector.create_message_streams({name: 1})[name]
    create_topics(client, [NewTopic(name, 1, 1)])
    write(client, name, 2, 1)
    assert offsets_of(take(stream, 2)) == {0: [0, 1]}
    add_partitions(client, {name: 2})
    write(client, name, 1, 2)
    assert sorted(offsets_of(take(stream, 2)).items()) == [(0, [2]), (1, [0])]


@pytest.mark.parametrize("storage", ["zookeeper", "kafka"])
def test_offsets_are_committed_from_time_to_time_or_on_demand(
    storage: str, client: Client, store: Store, join: Join, topic: str
) -> None:
    """CONS-14."""
    settings = {"offsets_storage": storage, "dual_commit_enabled": False}

    def stored() -> dict[int, int]:
        if storage == "zookeeper":
            return store.offsets(topic, topic)
        return {key[1]: row.offset for key, row in committed(client, topic).items()}

    write(client, topic, 5)
    connector = join(auto_commit_interval_ms=20, **settings)
    (stream,) = connector.create_message_streams({topic: 1})[topic]
    take(stream, 20)
    wait_until(lambda: stored() == dict.fromkeys(range(4), 5), WAIT_S, stored)
    connector.shutdown()

    write(client, topic, 5)
    connector = join(auto_commit_enable=False, **settings)
    (stream,) = connector.create_message_streams({topic: 1})[topic]
    assert {row.offset for row in take(stream, 20)} == set(range(5, 10))
    connector.commit_offsets({(topic, 2): 8})
    connector.shutdown()
    assert stored() == {0: 5, 1: 5, 2: 8, 3: 5}


@pytest.mark.slow
def test_a_group_migrates_to_the_brokers_and_back(
    client: Client, store: Store, join: Join, topic: str
) -> None:
    """OFFS-21, OFFS-22."""
    steps: list[tuple[str, bool, bool, bool]] = [
        # storage, dual, in ZooKeeper, in the brokers
        ("zookeeper", False, True, False),
        ("kafka", True, True, True),
        ("kafka", False, False, True),
        ("zookeeper", True, True, True),
        ("zookeeper", False, True, False),
    ]
    for number, (storage, dual, in_zookeeper, in_kafka) in enumerate(steps, 1):
        write(client, topic, 1)
        connector = join(offsets_storage=storage, dual_commit_enabled=dual)
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        assert {row.offset for row in take(stream, 4)} == {number - 1}
        connector.shutdown()
        ours = store.offsets(topic, topic) == dict.fromkeys(range(4), number)
        theirs = {row.offset for row in committed(client, topic).values()} == {number}
        assert (ours, theirs) == (in_zookeeper, in_kafka), number


def test_what_a_program_fails_with_is_read_again(
    client: Client, store: Store, join: Join, topic: str
) -> None:
    write(client, topic, 1)
    with pytest.raises(KeyError), join() as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        next(stream)
        raise KeyError("a bug")
    assert store.offsets(topic, topic) == {}


def test_a_consumer_whose_session_ends_registers_again(
    client: Client, store: Store, join: Join, topic: str
) -> None:
    connector = join(consumer_id="c", auto_commit_enable=False)
    (stream,) = connector.create_message_streams({topic: 1})[topic]
    write(client, topic, 1)
    take(stream, 4)
    connector.commit_offsets()
    before = store.client.exists(f"/consumers/{topic}/ids/{topic}_c").ephemeralOwner

    store.end_session(connector._session._client.client_id)

    def renewed() -> bool:
        found = store.client.exists(f"/consumers/{topic}/ids/{topic}_c")
        return found is not None and found.ephemeralOwner != before

    wait_until(renewed, WAIT_S, "it is registered again")
    wait_until(lambda: len(store.owners(topic, topic)) == 4, WAIT_S, "it owns all again")
    write(client, topic, 1)
    assert {row.offset for row in take(stream, 4)} == {1}


@pytest.mark.slow
def test_two_consumers_cannot_have_the_same_id(join: Join, topic: str) -> None:
    join(consumer_id="c").create_message_streams({topic: 1})
    other = join(consumer_id="c", zookeeper_session_timeout_ms=1000)
    with pytest.raises(ClientError, match=f"{topic}_c is registered: set another consumer.id"):
        other.create_message_streams({topic: 1})


def test_roundrobin_says_why_it_cannot(client: Client, join: Join, topic: str) -> None:
    create_topics(client, [NewTopic(f"{topic}-x", 1, 1)])
    connector = join(partition_assignment_strategy="roundrobin", rebalance_max_retries=1)
    with pytest.raises(RebalanceFailed, match="as many streams for every topic"):
        connector.create_message_streams({topic: 1, f"{topic}-x": 2})


def test_zookeeper_must_be_there_and_have_the_path(cluster: Cluster) -> None:
    """CONS-27."""
    with pytest.raises(SettingRefused, match=r"there is no /.*/none in ZooKeeper"):
        Consumer.create(group_id="g", zookeeper_connect=f"{cluster.zookeeper_connect}/none")
    nowhere = ConsumerConfig(
        group_id="g", zookeeper_connect="127.0.0.1:1", zookeeper_connection_timeout_ms=100
    )
    with pytest.raises(UnreachableError, match=r"does not respond within 0.1 s"):
        Consumer.create(nowhere)


def test_streams_must_be_at_least_one(join: Join) -> None:
    connector = join()
    for wrong in ({}, {"t": 0}, {"t": "1"}):
        with pytest.raises(ValueError):
            connector.create_message_streams(wrong)
    with pytest.raises(TypeError):
        connector.create_message_streams_by_filter("t")  # type: ignore[arg-type]


@pytest.mark.slow
def test_while_members_come_and_go_each_message_is_read_once(
    client: Client, store: Store, join: Join, topic: str
) -> None:
    """Twelve members, up to four at a time, while somebody writes."""
    rows: list[MessageAndMetadata] = []
    threads: list[threading.Thread] = []

    def enter() -> ConsumerConnector:
        made = join(consumer_timeout_ms=-1, rebalance_max_retries=50, rebalance_backoff_ms=200)
        for stream in made.create_message_streams({topic: 2})[topic]:
            thread = threading.Thread(target=lambda stream=stream: rows.extend(stream))
            thread.start()
            threads.append(thread)
        return made

    members = [enter() for _ in range(2)]
    for turn in range(10):
        write(client, topic, 25)
        members.append(enter())
        if turn % 3:
            members.pop(turn % 2).shutdown()
        write(client, topic, 25)
    while len(members) > 1:
        members.pop(0).shutdown()
    wait_until(lambda: len(set(rows)) == 2000, WAIT_S, lambda: f"{len(set(rows))} messages")
    members[0].shutdown()
    for thread in threads:
        thread.join()
    assert Counter(Counter(rows).values()) == {1: 2000}
    assert store.offsets(topic, topic) == dict.fromkeys(range(4), 500)


@pytest.mark.slow
def test_another_leader_is_found_when_a_broker_dies() -> None:
    """CONS-20, ZK-18."""
    skip_without_zookeeper()
    with Cluster(3, num_io_threads=1) as cluster, Client(cluster.bootstrap) as client:
        create_topics(client, [NewTopic("t", replicas=[[0, 1, 2], [1, 2, 0], [2, 0, 1]])])
        cluster.wait_in_sync("t")
        settings = {"group.id": "g", "zookeeper.connect": cluster.zookeeper_connect, **QUICK}
        with Consumer.create({**settings, "offsets.storage": "kafka"}) as connector:
            (stream,) = connector.create_message_streams({"t": 1})["t"]
            write(client, "t", 10, 3)
            rows = take(stream, 30)
            cluster.kill(0)
            write(client, "t", 10, 3)
            rows += take(stream, 30)
            connector.commit_offsets()
            cluster.start()
            write(client, "t", 10, 3)
            rows += take(stream, 30)
        assert offsets_of(sorted(set(rows))) == {n: list(range(30)) for n in range(3)}
        assert {row.offset for row in committed(client, "g").values()} == {30}
