"""``KafkaProducer`` against Apache Kafka 3.9.1, whose transactions are of the first protocol."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

pa = pytest.importorskip("pyarrow")

from support.clients import client_topics as topics  # noqa: E402

from kbroker.client import KafkaProducer  # noqa: E402
from kbroker.client.batches.offsets import committed  # noqa: E402
from kbroker.client.connections.cluster import Cluster  # noqa: E402
from kbroker.client.errors import RejectedError  # noqa: E402
from kbroker.errors import ErrorCode  # noqa: E402
from kbroker.record.compression import CODEC_NAMES  # noqa: E402
from kbroker.testing import java_home  # noqa: E402
from perf.brokers import KafkaBroker  # noqa: E402

# The libraries are fetched by the comparison in perf/ (perf/kafka_distribution.py) or by Maven.
LIBRARIES = Path(__file__).resolve().parents[2] / ".cache" / "kafka-3.9.1" / "complete"

pytestmark = [
    pytest.mark.integration,
    pytest.mark.java,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not LIBRARIES.exists() or java_home() is None,
        reason="needs Kafka 3.9.1 in .cache (perf/kafka_distribution.py) and Java",
    ),
]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    more = {"num.partitions": "2", "group.initial.rebalance.delay.ms": "0"}
    with KafkaBroker(tmp_path_factory.mktemp("kafka"), more) as running:
        yield running


@pytest.fixture
def cluster(kafka: KafkaBroker) -> Iterator[Cluster]:
    with Cluster(kafka.bootstrap, deadline=60) as made:
        yield made


def producer(kafka: KafkaBroker, **settings) -> KafkaProducer:
    return KafkaProducer(bootstrap_servers=kafka.bootstrap, **settings)


def numbers(cluster, topic, **options):
    found = [topics.values(cluster, topic, n, **options) for n in (0, 1)]
    return [[int(value) for value in one] for one in found]


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_records_of_each_codec_are_where_their_futures_say(kafka, cluster, codec):
    name = f"codec-{codec}"
    topics.create(cluster, name, 2)

    with producer(kafka, compression_type=codec, batch_size=3000) as made:
        futures = [made.send(name, b"%d" % n, b"%d" % (n % 20)) for n in range(5000)]
        found = [future.result(60) for future in futures]

    read = numbers(cluster, name)
    assert sorted(chain(*read)) == list(range(5000))
    assert all(read[one.partition][one.offset] == n for n, one in enumerate(found))


def test_nothing_is_lost_or_written_twice_when_it_is_stopped_and_started(kafka, cluster):
    topics.create(cluster, "restarted", 2)
    with producer(kafka, batch_size=500, retry_backoff_ms=20) as made:
        futures = []
        for _ in range(2):
            futures += [made.send("restarted", b"%d" % (len(futures) + n)) for n in range(2000)]
            kafka.halt()
            futures += [made.send("restarted", b"%d" % (len(futures) + n)) for n in range(2000)]
            kafka.start()
        for future in futures:
            future.result(120)

    read = numbers(cluster, "restarted")
    assert sorted(chain(*read)) == list(range(len(futures)))
    assert all(one == sorted(one) for one in read)


def test_transactions_end_as_told(kafka, cluster):
    topics.create(cluster, "ends", 2)
    wanted = set()
    with producer(kafka, transactional_id="ends", batch_size=300) as made:
        made.init_transactions(60)
        for number in range(12):
            made.begin_transaction()
            for n in range(100 * number, 100 * number + 100):
                made.send("ends", b"%d" % n)
            made.send_offsets_to_transaction({("ends", 0): number}, "readers")
            if number % 3:
                made.commit_transaction()
                wanted.update(range(100 * number, 100 * number + 100))
            else:
                made.abort_transaction()

    read = numbers(cluster, "ends", read_committed=True)
    assert sorted(chain(*read)) == sorted(wanted)
    assert all(one == sorted(one) for one in read)
    assert committed(cluster, "readers", [("ends", 0)])["ends", 0].offset == 11


def test_transaction_with_a_failed_record_is_followed_by_a_good_one(kafka, cluster):
    topics.create(cluster, "broken", 2, max_message_bytes=2000)
    with producer(kafka, transactional_id="broken") as made:
        made.init_transactions(60)
        made.begin_transaction()
        made.send("broken", b"1", partition=0).result(60)
        made.send("broken", bytes(5000), partition=0)
        with pytest.raises(RejectedError, match="MESSAGE_TOO_LARGE"):
            made.commit_transaction()
        made.abort_transaction()
        made.begin_transaction()
        made.send("broken", b"2", partition=0)
        made.commit_transaction()

    assert numbers(cluster, "broken", read_committed=True) == [[2], []]


def test_fenced_producer_is_told(kafka, cluster):
    topics.create(cluster, "fenced", 2)
    with (
        producer(kafka, transactional_id="fenced") as old,
        producer(kafka, transactional_id="fenced") as new,
    ):
        old.init_transactions(60)
        old.begin_transaction()
        old.send("fenced", b"1").result(60)
        new.init_transactions(60)
        with pytest.raises(RejectedError) as caught:
            old.commit_transaction()

    assert caught.value.code in (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED)
