"""The client against a real broker: batches arrive once and in order, transactions end as
reported.
"""

from __future__ import annotations

import os
import pickle
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from support.running.grids import some_of

pa = pytest.importorskip("pyarrow")

from support.clients import client_topics as topics  # noqa: E402

from kbroker.client.batches import transactions  # noqa: E402
from kbroker.client.batches.arrow import ArrowProducer  # noqa: E402
from kbroker.client.batches.offsets import committed  # noqa: E402
from kbroker.client.batches.produce import BatchProducer  # noqa: E402
from kbroker.client.connections.cluster import Cluster  # noqa: E402
from kbroker.client.errors import RejectedError, SettingRefused, Timeout  # noqa: E402
from kbroker.errors import ErrorCode  # noqa: E402
from kbroker.testing import Broker, wait_until  # noqa: E402

pytestmark = pytest.mark.integration

SETTINGS = {
    "log.retention.ms": -1,
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
    "auto.create.topics.enable": "false",
}
WRITING_S, BRIEFLY_S = 4.0, 1.2
WAYS = pytest.mark.parametrize("implicit", [True, False], ids=["protocol-2", "protocol-1"])


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(SETTINGS) as running:
        yield running


@pytest.fixture
def cluster(broker: Broker) -> Iterator[Cluster]:
    with Cluster(broker.bootstrap, deadline=20) as made:
        yield made


def identity_of(cluster: Cluster, name: str, implicit: bool) -> transactions.ProducerIdentity:
    """In the requested protocol: today's brokers serve clients of both."""
    made = transactions.init_producer(cluster, name)
    assert made.implicit, "the broker announces transaction.version 2"
    return made._replace(implicit=implicit)


@pytest.mark.parametrize(
    "settings",
    some_of(
        [{}, {"idempotent": False}, {"idempotent": False, "acks": 1}, {"max_in_flight": 1}],
        [{}, {"idempotent": False, "acks": 1}],
    ),
    ids=str,
)
def test_batches_of_a_partition_arrive_in_order(cluster, settings):
    name = "order-" + "-".join(map(str, settings.values()))
    topics.create(cluster, name)

    with ArrowProducer(cluster, topic=name, batch_bytes=1000, **settings) as producer:
        for first in range(0, 20_000, 500):
            producer.write(topics.numbered(first, 500))
        producer.flush()
        assert producer.producer.acknowledged == {(name, 0): 20_000}

    assert topics.values(cluster, name) == [b"%d" % n for n in range(20_000)]


def test_batches_without_acknowledgement_arrive(cluster):
    topics.create(cluster, "no-acks")

    topics.write(cluster, "no-acks", 1000, idempotent=False, acks=0)

    wait_until(lambda: topics.ends(cluster, "no-acks")[0][1] == 1000, 30, "all have arrived")
    assert len(topics.values(cluster, "no-acks")) == 1000


def test_rows_that_have_waited_long_enough_are_sent_in_a_batch_that_is_not_full(cluster):
    topics.create(cluster, "lingers")

    with ArrowProducer(cluster, topic="lingers", linger=0.0) as producer:
        producer.write(topics.numbered(0, 10))

        wait_until(lambda: topics.ends(cluster, "lingers")[0][1] == 10, 30, "they have arrived")
    assert topics.values(cluster, "lingers") == [b"%d" % n for n in range(10)]


def test_many_partitions_of_two_topics_are_written_at_once(cluster):
    topics.create(cluster, "many-a", 20)
    topics.create(cluster, "many-b", 3)
    rows = pa.record_batch(
        {
            "topic": ["many-a" if n % 3 else "many-b" for n in range(10_000)],
            "key": [b"%d" % n for n in range(10_000)],
            "value": [b"%d" % n for n in range(10_000)],
        }
    )

    with ArrowProducer(cluster, batch_bytes=500) as producer:
        producer.write(rows)

    found = [
        int(value)
        for name, count in (("many-a", 20), ("many-b", 3))
        for partition in range(count)
        for value in topics.values(cluster, name, partition)
    ]
    assert sorted(found) == list(range(10_000))


@pytest.mark.parametrize(
    ("how", "seconds"),
    some_of(
        [
            ("network", BRIEFLY_S),
            ("restart", WRITING_S),
            ("network", WRITING_S),
            ("io", WRITING_S),
        ],
        [("network", BRIEFLY_S)],
    ),
)
def test_what_is_sent_while_processes_die_arrives_once_and_in_order(how, seconds):
    seed = int(os.environ.get("KBROKER_FAULT_SEED", "3"))
    pauses = random.Random(seed)
    often = {**SETTINGS, "worker.restart.backoff.max.ms": 500}
    with Broker(often) as broker, Cluster(broker.bootstrap, deadline=60) as cluster:
        topics.create(cluster, "killed", 2)
        stop = threading.Event()

        def disturb() -> None:
            # Stop before the last write: records in flight must arrive undisturbed.
            while not stop.wait(pauses.uniform(0.2, 0.6)) and time.monotonic() < began + seconds:
                if how == "restart":
                    broker.kill_all()
                    broker.start()
                else:
                    broker.kill(how, pauses.randrange(2))

        began = time.monotonic()
        sent = 0
        with (
            ThreadPoolExecutor(1) as beside,
            ArrowProducer(cluster, topic="killed", batch_bytes=2000) as producer,
        ):
            disturbed = beside.submit(disturb)
            try:
                while time.monotonic() < began + seconds:
                    producer.write(topics.numbered(sent, 1000))
                    sent += 1000
                    producer.flush()
            finally:
                stop.set()
            disturbed.result()
        found = [topics.values(cluster, "killed", partition) for partition in (0, 1)]

    numbers = [[int(value) for value in one] for one in found]
    assert sorted(numbers[0] + numbers[1]) == list(range(sent)), f"seed {seed}"
    assert all(one == sorted(one) for one in numbers), f"out of order, seed {seed}"


def test_topic_that_does_not_exist_is_told(cluster):
    with pytest.raises((RejectedError, Timeout), match="absent"):
        ArrowProducer(cluster, topic="absent")


def test_batch_that_is_too_large_ends_the_producer(cluster):
    topics.create(cluster, "small", max_message_bytes=2000)
    producer = ArrowProducer(cluster, topic="small")
    producer.write(pa.record_batch({"value": [os.urandom(5000)]}))

    with pytest.raises(RejectedError) as caught:
        producer.flush()

    assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE
    with pytest.raises(RejectedError):
        producer.write(pa.record_batch({"value": [b"v"]}))
        producer.flush()
    producer.close()


@pytest.mark.parametrize(
    "settings",
    [{"acks": 2}, {"acks": 1}, {"max_in_flight": 6}, {"acks": 0, "transactional_id": "x"}],
    ids=str,
)
def test_settings_that_contradict_each_other_are_refused(cluster, settings):
    with pytest.raises(SettingRefused):
        BatchProducer(cluster, **settings)


# -- transactions


@WAYS
def test_transactions_that_follow_each_other_at_once_end_as_told(cluster, implicit):
    name = f"follow-{implicit}"
    topics.create(cluster, name, 2)
    identity = identity_of(cluster, name, implicit)
    wanted = set()
    with ArrowProducer(
        cluster,
        topic=name,
        batch_bytes=500,
        producer=BatchProducer(cluster, identity=identity),
    ) as producer:
        for number in range(40):
            producer.begin()
            producer.write(topics.numbered(100 * number, 100))
            producer.end(commit=number % 3 != 0)
            if number % 3:
                wanted.update(range(100 * number, 100 * number + 100))

    found = [
        int(value)
        for partition in (0, 1)
        for value in topics.values(cluster, name, partition, read_committed=True)
    ]
    assert sorted(found) == sorted(wanted)


@WAYS
def test_driver_ends_what_a_task_began(cluster, implicit):
    """The exactly-once sink: the identity is passed on, the end may be retried."""
    name = f"driver-{implicit}"
    topics.create(cluster, name)
    identity = identity_of(cluster, name, implicit)
    task = ArrowProducer(cluster, topic=name, producer=BatchProducer(cluster, identity=identity))
    task.begin()
    task.write(topics.numbered(0, 10))
    task.flush()
    task.close()
    assert topics.ends(cluster, name, read_committed=True) == {0: (0, 0)}

    driver = pickle.loads(pickle.dumps(cluster))
    received = pickle.loads(pickle.dumps(identity))
    first = transactions.end_transaction(driver, received, commit=True)
    again = transactions.end_transaction(driver, received, commit=True)

    assert first == again
    assert topics.values(cluster, name, read_committed=True) == [b"%d" % n for n in range(10)]


def test_zombie_is_fenced_by_who_asks_for_its_id(cluster):
    topics.create(cluster, "zombie")
    zombie = ArrowProducer(cluster, topic="zombie", transactional_id="zombie")
    zombie.begin()
    zombie.write(topics.numbered(0, 10))
    zombie.flush()

    with ArrowProducer(cluster, topic="zombie", transactional_id="zombie") as successor:
        successor.begin()
        successor.write(topics.numbered(10, 5))
        successor.end(commit=True)

    with pytest.raises(RejectedError) as caught:
        zombie.end(commit=True)
    assert caught.value.code in (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED)
    zombie.close()
    found = topics.values(cluster, "zombie", read_committed=True)
    assert found == [b"%d" % n for n in range(10, 15)]


@WAYS
@pytest.mark.parametrize("patience_s", [60.0, 0.0], ids=["refused", "timed-out"])
def test_fenced_producer_that_aborts_leaves_its_successor_alone(cluster, implicit, patience_s):
    """The records of the successor may be recorded as committed already."""
    name = f"fenced-{implicit}-{patience_s:g}"
    topics.create(cluster, name)
    zombie, successor = (
        ArrowProducer(
            cluster,
            topic=name,
            producer=BatchProducer(cluster, identity=identity_of(cluster, name, implicit)),
        )
        for _ in range(2)
    )
    for producer, start in ((zombie, 0), (successor, 10)):
        producer.begin()
        producer.producer.delivery_timeout = patience_s if producer is zombie else 60.0
        producer.write(topics.numbered(start, 5))
        with suppress(Timeout, RejectedError):
            producer.flush()

    with pytest.raises(RejectedError) as caught:
        zombie.end(commit=False)

    assert caught.value.code in (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED)
    successor.end(commit=True)
    found = topics.values(cluster, name, read_committed=True)
    assert found == [b"%d" % n for n in range(10, 15)]
    zombie.close()
    successor.close()


@WAYS
def test_offsets_of_a_group_count_when_the_transaction_is_committed(cluster, implicit):
    name = f"txn-offsets-{implicit}"
    topics.create(cluster, name)
    identity = identity_of(cluster, name, implicit)
    producer = ArrowProducer(
        cluster, topic=name, producer=BatchProducer(cluster, identity=identity)
    )
    for number, commit in ((5, False), (7, True)):
        begun = producer.begin()
        producer.write(topics.numbered(0, 3))
        producer.flush()
        transactions.commit_offsets(cluster, begun, f"g-{name}", {(name, 0): (number, "")})
        assert committed(cluster, f"g-{name}", stable=False) == {}
        producer.end(commit=commit)
        found = committed(cluster, f"g-{name}")
        assert [one.offset for one in found.values()] == ([7] if commit else [])
    producer.close()


@WAYS
@pytest.mark.parametrize("commit", [True, False])
def test_transaction_without_a_record_ends_without_a_request(cluster, implicit, commit):
    """A broker that does not know the transaction rejects its end."""
    name = f"txn-empty-{implicit}-{commit}"
    topics.create(cluster, name)
    identity = identity_of(cluster, name, implicit)
    producer = ArrowProducer(
        cluster, topic=name, producer=BatchProducer(cluster, identity=identity)
    )
    producer.begin()
    producer.end(commit=commit)
    assert producer.producer.identity == identity

    producer.begin()
    producer.producer.commit_offsets(f"g-{name}", {(name, 0): (3, "")})
    producer.end(commit=True)
    producer.begin()
    producer.write(topics.numbered(0, 3))
    producer.end(commit=True)
    producer.close()

    assert [one.offset for one in committed(cluster, f"g-{name}").values()] == [3]
    assert topics.values(cluster, name, read_committed=True) == [b"0", b"1", b"2"]


def test_abort_after_an_error_leaves_a_producer_that_works(cluster):
    topics.create(cluster, "recovers", max_message_bytes=2000)
    producer = ArrowProducer(cluster, topic="recovers", transactional_id="recovers")
    producer.begin()
    producer.write(topics.numbered(0, 10))
    producer.write(pa.record_batch({"value": [os.urandom(5000)]}))
    with pytest.raises(RejectedError):
        producer.end(commit=True)

    producer.end(commit=False)
    producer.begin()
    producer.write(topics.numbered(10, 5))
    producer.end(commit=True)
    producer.close()

    found = topics.values(cluster, "recovers", read_committed=True)
    assert found == [b"%d" % n for n in range(10, 15)]
