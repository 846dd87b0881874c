"""A real broker leads a partition as ordered by the test's controller; the test is the follower."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from support.clients.control_client import Controller, controlled_broker
from support.clients.wire_client import WireClient, batch_of

from kbroker.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.record.batch import iterate_batches
from kbroker.testing import Broker, wait_until

pytestmark = pytest.mark.integration

TOPIC, FOLLOWER, STRANGER = "led", 9, 77


class Follower:
    """A follower's session with the broker."""

    def __init__(self, broker: Broker, replica: int = FOLLOWER) -> None:
        self.client = WireClient((broker.host, broker.port))
        self.replica = replica
        self.session = self.epoch = 0

    def fetch(
        self,
        offset: int | None,
        leader_epoch: int = 1,
        wait_ms: int = 0,
        last_fetched_epoch: int | None = None,
    ) -> Any:
        """A single request; offset: None to continue in the session."""
        cls = FetchRequest
        partition = cls.FetchPartition(
            partition=0,
            current_leader_epoch=leader_epoch,
            fetch_offset=offset or 0,
            last_fetched_epoch=-1 if last_fetched_epoch is None else last_fetched_epoch,
            log_start_offset=0,
            partition_max_bytes=1 << 20,
        )
        topics = [] if offset is None else [cls.FetchTopic(topic=TOPIC, partitions=[partition])]
        response = self.client.call(
            cls(
                replica_id=self.replica,
                max_wait_ms=wait_ms,
                min_bytes=1,
                max_bytes=1 << 20,
                session_id=self.session,
                session_epoch=self.epoch,
                topics=topics,
            ),
            11 if last_fetched_epoch is None else 12,
        )
        assert response.error_code == 0
        self.session, self.epoch = response.session_id, self.epoch + 1
        rows = [row for topic in response.responses for row in topic.partitions]
        return rows[0] if rows else None


def values(row: Any) -> list[bytes]:
    return [
        bytes(record.value)
        for batch in iterate_batches(bytes(row.records or b""))
        for record in batch.records()
    ]


def produce(client: WireClient, value: bytes, acks: int = 1) -> ErrorCode:
    cls = ProduceRequest
    partition = cls.PartitionProduceData(index=0, records=batch_of([value]))
    topics = [cls.TopicProduceData(name=TOPIC, partition_data=[partition])]
    answer = client.call(cls(acks=acks, timeout_ms=10_000, topic_data=topics), 8)
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)


def metrics_of(broker: Broker) -> str:
    with urllib.request.urlopen(f"{broker.metrics_url}/metrics", timeout=30) as response:
        text: str = response.read().decode()
    return text


def produced_anew(broker: Broker, value: bytes) -> bool:
    """A connection ends with an in-flight batch without a sequence number."""
    try:
        return produce(WireClient((broker.host, broker.port)), value) is ErrorCode.NONE
    except ConnectionError:
        return False


def consumed(client: WireClient) -> list[bytes]:
    cls = FetchRequest
    partition = cls.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topics = [cls.FetchTopic(topic=TOPIC, partitions=[partition])]
    request = cls(replica_id=-1, max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=topics)
    return values(client.call(request, 11).responses[0].partitions[0])


def lead(broker: Broker, leader_epoch: int) -> None:
    """Have the broker lead in this epoch, and write a record in it."""
    controller = Controller(broker, TOPIC)
    controller.followers = {FOLLOWER}
    assert controller.tell(leader_epoch) is ErrorCode.NONE
    assert controller.lead(leader_epoch) is ErrorCode.NONE
    client = WireClient((broker.host, broker.port))
    wait_until(lambda: produce(client, b"0") is ErrorCode.NONE, 30, "led")


@pytest.fixture
def broker() -> Iterator[Broker]:
    with controlled_broker(num_io_threads=1) as running:
        lead(running, 1)
        yield running


def test_follower_reads_what_consumers_may_not_and_an_append_ends_its_wait(broker: Broker) -> None:
    producer = WireClient((broker.host, broker.port))
    follower = Follower(broker)
    first = follower.fetch(0)
    assert (first.error_code, values(first)) == (0, [b"0"])

    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(follower.fetch(1, wait_ms=60_000)))
    waiting.start()
    assert produce(producer, b"1") is ErrorCode.NONE
    waiting.join(30)

    assert values(found[0]) == [b"1"]
    assert b"1" not in consumed(producer)


def test_sessions_of_followers_and_what_they_read_are_counted(broker: Broker) -> None:
    def metric(name: str) -> float:
        return sum(
            float(line.rsplit(" ", 1)[1])
            for line in metrics_of(broker).splitlines()
            if line.startswith(name)
        )

    follower = Follower(broker)
    follower.fetch(0)
    wait_until(lambda: metric("kbroker_follower_sessions") == 1, 30, "the session is counted")
    assert metric("kbroker_follower_bytes_total") > 0

    follower.client.close()
    wait_until(lambda: metric("kbroker_follower_sessions") == 0, 30, "the session is over")


def test_follower_is_fenced_by_the_leader_epoch(broker: Broker) -> None:
    assert Follower(broker).fetch(0, leader_epoch=0).error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert Follower(broker).fetch(0, leader_epoch=2).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


def test_produce_with_acks_all_is_acknowledged_when_the_follower_has_asked_for_more(
    broker: Broker,
) -> None:
    """The fetch behind its last record says that the follower has it."""
    follower = Follower(broker)
    follower.fetch(0)
    acknowledged: list[ErrorCode] = []
    producing = threading.Thread(
        target=lambda: acknowledged.append(
            produce(WireClient((broker.host, broker.port)), b"1", acks=-1)
        )
    )
    producing.start()
    assert values(follower.fetch(1, wait_ms=60_000)) == [b"1"]
    assert acknowledged == []

    follower.fetch(2)

    producing.join(30)
    assert acknowledged == [ErrorCode.NONE]
    assert consumed(WireClient((broker.host, broker.port))) == [b"0", b"1"]


def test_session_of_a_follower_commits_records_after_the_owner_was_restarted(
    broker: Broker,
) -> None:
    follower = Follower(broker)
    follower.fetch(0)
    follower.fetch(1)
    client = WireClient((broker.host, broker.port))
    wait_until(lambda: consumed(client) == [b"0"], 30, "committed")

    broker.kill("io")
    wait_until(lambda: produced_anew(broker, b"1"), 30, "led again")
    follower.fetch(None)
    end = 1 + len(values(follower.fetch(1)))
    follower.fetch(end)

    wait_until(lambda: len(consumed(client)) == end, 30, "committed")


def test_log_whose_last_epoch_is_an_old_one_is_compared_by_the_owner(broker: Broker) -> None:
    """The slot has the last two epochs; of the others only the io worker knows where they end."""
    for leader_epoch in (3, 4, 5):
        lead(broker, leader_epoch)
    fits = Follower(broker).fetch(1, 5, 60_000, last_fetched_epoch=1)
    assert (fits.error_code, values(fits), fits.diverging_epoch) == (0, [b"0"] * 3, None)

    for offset, last_epoch in ((2, 1), (1, 2), (4, 2)):
        row = Follower(broker).fetch(offset, 5, 60_000, last_fetched_epoch=last_epoch)
        assert (row.error_code, values(row)) == (0, [])
        assert (row.diverging_epoch.epoch, row.diverging_epoch.end_offset) == (1, 1)


@pytest.mark.slow  # as the session of a follower, which continues after a kill, too
def test_follower_continues_after_the_owner_was_killed(broker: Broker) -> None:
    follower = Follower(broker)
    follower.fetch(0)
    follower.fetch(1)

    broker.kill("io")
    wait_until(lambda: produced_anew(broker, b"1"), 30, "led again")

    row = follower.fetch(1)
    assert (row.error_code, values(row)[:1]) == (0, [b"1"])


def test_replica_of_no_assignment_is_served_and_counts_for_nothing(broker: Broker) -> None:
    producer = WireClient((broker.host, broker.port))
    stranger = Follower(broker, STRANGER)
    assert values(stranger.fetch(0)) == [b"0"]

    stranger.fetch(1)

    assert consumed(producer) == []
