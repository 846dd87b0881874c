"""Client quotas of a real broker: over several processes, live, by user, client id and address."""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from support.clients.topics import create_topic

from kbroker.client.connections.connection import Connection
from kbroker.client.errors import ClientError
from kbroker.errors import ErrorCode
from kbroker.protocol.api import ApiKey, request_class
from kbroker.record.builder import BatchBuilder
from kbroker.testing import Broker, wait_until

pytestmark = pytest.mark.integration

WAIT_S = 60.0
TOPIC = "t"
RECORDS = 20_000  # bytes of each batch
ALTER = request_class(ApiKey.ALTER_CLIENT_QUOTAS)
DESCRIBE = request_class(ApiKey.DESCRIBE_CLIENT_QUOTAS)
PRODUCE = request_class(ApiKey.PRODUCE)
FETCH = request_class(ApiKey.FETCH)
METADATA = request_class(ApiKey.METADATA)
CREATE = request_class(ApiKey.CREATE_TOPICS)
DELETE = request_class(ApiKey.DELETE_TOPICS)
ENLARGE = request_class(ApiKey.CREATE_PARTITIONS)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(
        num_network_threads=3, num_io_threads=2, max_connection_creation_rate=5000
    ) as broker:
        create_topic(broker.bootstrap, TOPIC)
        yield broker


def connect(broker: Broker, client_id: str) -> Connection:
    deadline = time.monotonic() + WAIT_S
    return Connection(broker.host, broker.port, client_id=client_id, deadline=deadline)


def ask(connection: Connection, request: Any, at_most: int | None = None) -> Any:
    return connection.call(request, time.monotonic() + WAIT_S, at_most=at_most)


def alter(broker: Broker, entity: dict[str, str | None], **ops: float | None) -> None:
    """Set quotas, or remove them (None)."""
    entry = ALTER.EntryData(
        entity=[ALTER.EntityData(entity_type=k, entity_name=n) for k, n in entity.items()],
        ops=[ALTER.OpData(key=k, value=v or 0.0, remove=v is None) for k, v in ops.items()],
    )
    connection = connect(broker, "admin")
    (outcome,) = ask(connection, ALTER(entries=[entry])).entries
    connection.close()
    assert outcome.error_code == 0, outcome.error_message


def produce(connection: Connection, acks: int = 1) -> int:
    """The throttle time of a Produce of RECORDS bytes."""
    builder = BatchBuilder()
    builder.append(value=bytes(RECORDS))
    records = builder.build()
    data = PRODUCE.TopicProduceData(
        name=TOPIC,
        partition_data=[PRODUCE.PartitionProduceData(index=0, records=records)],
    )
    request = PRODUCE(acks=acks, timeout_ms=30_000, topic_data=[data])
    response = ask(connection, request, at_most=12)
    (partition,) = response.responses[0].partition_responses
    assert partition.error_code == 0
    return int(response.throttle_time_ms)


def fetch(connection: Connection, max_bytes: int = RECORDS) -> tuple[int, int]:
    """Throttle time and bytes of a Fetch from the beginning."""
    partition = FETCH.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=max_bytes)
    topic = FETCH.FetchTopic(topic=TOPIC, partitions=[partition])
    request = FETCH(max_wait_ms=0, min_bytes=1, max_bytes=max_bytes, topics=[topic])
    response = ask(connection, request, at_most=11)
    assert response.error_code == 0
    size = sum(len(p.records or b"") for t in response.responses for p in t.partitions)
    return int(response.throttle_time_ms), size


def throttled_responses(broker: Broker) -> int:
    with urllib.request.urlopen(f"{broker.metrics_url}/metrics") as page:
        text = page.read().decode()
    found = re.findall(r"^kbroker_throttled_responses_total\{[^}]*\} (\d+)", text, re.MULTILINE)
    return sum(map(int, found))


def figure(broker: Broker, name: str, client_id: str, quota: str = "producer_byte_rate") -> float:
    """A figure of a quota of a client id, of all processes."""
    with urllib.request.urlopen(f"{broker.metrics_url}/quotas") as page:
        text = page.read().decode()
    labels = f'quota="{quota}",user="",client_id="{client_id}"'
    (found,) = re.findall(rf"^kbroker_quota_{name}\{{{labels}\}} (\S+)", text, re.MULTILINE)
    return float(found)


def used_up(connection: Connection, count: int) -> list[int]:
    """The throttle times of so many Produce requests."""
    return [produce(connection) for _ in range(count)]


def test_producer_over_its_quota_is_told_to_wait_and_is_muted(broker: Broker) -> None:
    """10 s of 10,000 bytes a second are 5 batches; the sixth is 2 s above."""
    alter(broker, {"client-id": "p1"}, producer_byte_rate=10_000.0)
    connection = connect(broker, "p1")
    times = used_up(connection, 5)
    began = time.monotonic()
    told = produce(connection)
    assert times[:4] == [0] * 4
    assert 0 < told <= 2600
    # Nothing more is read before the time is over: the response to any request waits for it.
    ask(connection, METADATA(topics=[]))
    assert time.monotonic() - began >= told / 1000 - 0.1
    connection.close()
    wait_until(lambda: throttled_responses(broker) > 0, WAIT_S, "the metric counts it")


def test_clients_of_one_id_share_a_quota_over_all_processes(broker: Broker) -> None:
    alter(broker, {"client-id": "p2"}, producer_byte_rate=10_000.0)
    connections = [connect(broker, "p2") for _ in range(9)]
    times = [produce(connection) for connection in connections]
    assert times[:4] == [0] * 4
    assert all(times[6:]), times
    assert times[6:] == sorted(times[6:]), "each has to wait for those before it, too"
    other = connect(broker, "p2-other")
    assert produce(other) == 0
    assert figure(broker, "used_total", client_id="p2") >= 9 * RECORDS
    assert figure(broker, "bound", client_id="p2") == 10_000
    assert figure(broker, "throttle_ms", client_id="p2") > 0
    for connection in [*connections, other]:
        connection.close()


def test_fetch_over_the_quota_is_empty_and_the_next_one_is_not(broker: Broker) -> None:
    produce(connect(broker, "filler"))
    alter(broker, {"client-id": "c1"}, consumer_byte_rate=10_000.0)
    connection = connect(broker, "c1")
    answers = [fetch(connection) for _ in range(6)]
    throttled = [answer for answer in answers if answer[0]]
    assert all(size == 0 for _, size in throttled), answers
    assert all(size > 0 for time_ms, size in answers if not time_ms), answers
    assert throttled, answers
    assert answers[:4] == [(0, answers[0][1])] * 4
    connection.close()


def test_quota_is_changed_and_removed_live(broker: Broker) -> None:
    connection = connect(broker, "p3")
    assert used_up(connection, 8) == [0] * 8
    alter(broker, {"client-id": "p3"}, producer_byte_rate=100_000.0)
    assert used_up(connection, 40)[:40] == [0] * 40
    alter(broker, {"client-id": "p3"}, producer_byte_rate=20_000.0)
    times = used_up(connection, 12)
    assert times[:9] == [0] * 9
    assert times[11] > 0
    alter(broker, {"client-id": "p3"}, producer_byte_rate=None)
    assert used_up(connect(broker, "p3"), 12) == [0] * 12


def test_most_specific_quota_applies(broker: Broker) -> None:
    """All clients of a plaintext listener are the user ANONYMOUS."""
    tight, wide = 1.0, 1e9
    alter(broker, {"client-id": "p4"}, producer_byte_rate=tight)
    connection = connect(broker, "p4")
    assert produce(connection) > 0
    alter(broker, {"user": "ANONYMOUS", "client-id": "p4"}, producer_byte_rate=wide)
    assert produce(connect(broker, "p4")) == 0
    ask(connection, METADATA(topics=[]))  # it need not wait for the hours that it was told
    alter(broker, {"user": "ANONYMOUS", "client-id": "p4"}, producer_byte_rate=None)
    alter(broker, {"user": None, "client-id": "p4"}, producer_byte_rate=wide)
    assert produce(connect(broker, "p4")) == 0
    alter(broker, {"user": None, "client-id": "p4"}, producer_byte_rate=None)
    assert produce(connect(broker, "p4")) > 0


def test_time_of_requests_is_limited(broker: Broker) -> None:
    """A handler's time counts: a hundredth of a per mille of a core is used up at once."""
    alter(broker, {"client-id": "r1"}, request_percentage=0.001)
    connection = connect(broker, "r1")
    times = [ask(connection, METADATA(topics=None)).throttle_time_ms for _ in range(4)]
    assert any(times)
    assert all(0 <= time_ms <= 1000 for time_ms in times), "a sample at most, as in Kafka"
    alter(broker, {"client-id": "r1"}, request_percentage=None)
    connection.close()


def create(connection: Connection, name: str, partitions: int, at_most: int) -> tuple[int, int]:
    """Error and throttle time."""
    topic = CREATE.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    answer = ask(connection, CREATE(topics=[topic], timeout_ms=30_000), at_most=at_most)
    return answer.topics[0].error_code, answer.throttle_time_ms


def test_topics_beyond_the_quota_of_changes_are_rejected(broker: Broker) -> None:
    """A partition a second, 11 of them at once, which the last request may overdraw (KIP-599)."""
    alter(broker, {"client-id": "m1"}, controller_mutation_rate=1.0)
    connection = connect(broker, "m1")
    assert create(connection, "m1-a", 20, 7) == (0, 0)
    code, told = create(connection, "m1-b", 1, 7)
    assert code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert 0 < told <= 9000

    strict = connect(broker, "m1")
    gone = DELETE(topics=[DELETE.DeleteTopicState(name="m1-a")], timeout_ms=30_000)
    answer = ask(strict, gone, at_most=6)
    assert answer.responses[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert answer.throttle_time_ms > 0
    strict = connect(broker, "m1")
    more = ENLARGE.CreatePartitionsTopic(name=TOPIC, count=2, assignments=None)
    answer = ask(strict, ENLARGE(topics=[more], timeout_ms=30_000), at_most=3)
    assert answer.results[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert answer.throttle_time_ms > 0

    other = connect(broker, "m1-other")
    assert create(other, "m1-b", 1, 7) == (0, 0)


def test_older_requests_are_carried_out_and_their_connection_waits(broker: Broker) -> None:
    alter(broker, {"client-id": "m2"}, controller_mutation_rate=1.0)
    assert create(connect(broker, "m2"), "m2-a", 12, 5)[0] == 0
    connection = connect(broker, "m2")
    code, told = create(connection, "m2-b", 1, 5)
    assert code == 0
    assert told > 0


def test_validation_counts_for_nothing(broker: Broker) -> None:
    alter(broker, {"client-id": "m3"}, controller_mutation_rate=1.0)
    connection = connect(broker, "m3")
    topic = CREATE.CreatableTopic(name="m3-a", num_partitions=100, replication_factor=1)
    for _ in range(3):
        asked = CREATE(topics=[topic], timeout_ms=30_000, validate_only=True)
        answer = ask(connection, asked, at_most=7)
        assert (answer.topics[0].error_code, answer.throttle_time_ms) == (0, 0)


def test_connections_of_an_address_are_limited(broker: Broker) -> None:
    alter(broker, {"ip": "127.0.0.1"}, connection_creation_rate=2.0)
    try:
        closed = 0
        for _ in range(12):
            try:
                connect(broker, "i1").close()
            except ClientError:
                closed += 1
        assert closed > 0
    finally:
        wait_until(lambda: _removed(broker), WAIT_S)
    assert "its quota" in broker.log_text


def _removed(broker: Broker) -> bool:
    try:
        alter(broker, {"ip": "127.0.0.1"}, connection_creation_rate=None)
    except ClientError:
        return False  # not connected: the quota is used up
    return True


def test_librdkafka_is_throttled_and_says_so(broker: Broker) -> None:
    alter(broker, {"client-id": "rdkafka-quota"}, producer_byte_rate=100_000.0)
    told: list[float] = []
    settings: dict[str, Any] = {
        "bootstrap.servers": broker.bootstrap,
        "client.id": "rdkafka-quota",
        "throttle_cb": lambda event: told.append(event.throttle_time),
    }
    producer = Producer(settings)
    for _ in range(110):  # 0.1 s of it each
        producer.produce(TOPIC, bytes(10_000))
    assert producer.flush(WAIT_S) == 0
    wait_until(lambda: producer.poll(0.1) is not None and any(told), WAIT_S)


def test_quotas_survive_a_restart(broker: Broker) -> None:
    alter(broker, {"user": "a/b", "client-id": None}, consumer_byte_rate=7.0)
    broker.restart()
    parts = [("user", 0, "a/b"), ("client-id", 1, None)]
    components = [DESCRIBE.ComponentData(entity_type=k, match_type=t, match=m) for k, t, m in parts]
    connection = connect(broker, "admin")
    answer = ask(connection, DESCRIBE(components=components, strict=True))
    assert [(v.key, v.value) for e in answer.entries for v in e.values] == [
        ("consumer_byte_rate", 7.0)
    ]
