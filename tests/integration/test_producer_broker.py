"""``KafkaProducer`` against a real broker: what it acknowledged is there, once and in order."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, product
from pathlib import Path

import pytest
from support.running.grids import some_of

pa = pytest.importorskip("pyarrow")

from support.clients import client_topics as topics  # noqa: E402
from support.security.secured import PASSWORDS, Site, address_of  # noqa: E402

from kbroker.client import KafkaProducer  # noqa: E402
from kbroker.client.admin.transactions import describe_transaction  # noqa: E402
from kbroker.client.batches.offsets import committed  # noqa: E402
from kbroker.client.connections.cluster import Cluster  # noqa: E402
from kbroker.client.errors import RejectedError, TransactionState  # noqa: E402
from kbroker.errors import ErrorCode  # noqa: E402
from kbroker.record.compression import CODEC_NAMES  # noqa: E402
from kbroker.testing import Broker, wait_until  # noqa: E402

pytestmark = pytest.mark.integration

SETTINGS = {
    "log.retention.ms": -1,
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
    "num.partitions": 2,
}
WRITING_S = 4.0
SHORT_S = 2.0
SEED = int(os.environ.get("KBROKER_FAULT_SEED", "5"))


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(SETTINGS) as running:
        yield running


@pytest.fixture
def cluster(broker: Broker) -> Iterator[Cluster]:
    with Cluster(broker.bootstrap, deadline=20) as made:
        yield made


def producer(broker: Broker, **settings) -> KafkaProducer:
    return KafkaProducer(bootstrap_servers=broker.bootstrap, **settings)


def numbers(cluster, topic, partitions, **options):
    """The values of each partition, as numbers."""
    found = [topics.values(cluster, topic, n, **options) for n in range(partitions)]
    return [[int(value) for value in one] for one in found]


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_records_are_where_their_futures_say(broker, cluster, codec):
    name = f"records-{codec}"
    topics.create(cluster, name, 3)

    with producer(broker, compression_type=codec, batch_size=2000) as made:
        futures = [made.send(name, b"%d" % n, b"%d" % (n % 50)) for n in range(5000)]
        found = [future.result(30) for future in futures]

    read = numbers(cluster, name, 3)
    assert sorted(chain(*read)) == list(range(5000))
    assert all(read[one.partition][one.offset] == n for n, one in enumerate(found))
    assert all(one == sorted(one) for one in read)


@pytest.mark.parametrize(
    "settings",
    [
        {"acks": 1},
        {"acks": 0},
        {"enable_idempotence": False},
        {"max_in_flight_requests_per_connection": 1},
        {"max_in_flight_requests_per_connection": 50, "enable_idempotence": False},
        {"batch_size": 0},
        {"linger_ms": 0},
        {"buffer_memory": 100_000},
    ],
    ids=str,
)
def test_records_arrive_in_order(broker, cluster, settings):
    name = "order-" + "-".join(f"{key}-{value}" for key, value in settings.items())
    topics.create(cluster, name)

    with producer(broker, **settings) as made:
        for n in range(3000):
            made.send(name, b"%d" % n)
        made.flush(30)

    if settings.get("acks") == 0:
        wait_until(lambda: topics.ends(cluster, name)[0][1] == 3000, 30, "all have arrived")
    assert numbers(cluster, name, 1) == [list(range(3000))]


def test_lists_of_values_arrive_in_order(broker, cluster):
    topics.create(cluster, "lists", 4)
    with producer(broker, batch_size=5000) as made:
        keys = [b"%d" % (n % 10) for n in range(20_000)]
        futures = made.send_many("lists", [b"%d" % n for n in range(20_000)], keys)
        runs = futures.result(30)

    read = numbers(cluster, "lists", 4)
    assert sorted(chain(*read)) == list(range(20_000))
    assert all(one == sorted(one) for one in read)
    sent = 0
    for _, partition, offset, count in runs:
        assert read[partition][offset : offset + count] == list(range(sent, sent + count))
        sent += count
    assert sent == 20_000


def test_many_threads_share_a_producer(broker, cluster):
    topics.create(cluster, "threads", 2)
    with producer(broker, batch_size=1000) as made, ThreadPoolExecutor(8) as beside:

        def write(first: int) -> None:
            for n in range(first, first + 2000):
                made.send("threads", b"%d" % n, partition=first % 2)

        list(beside.map(write, range(0, 16_001, 2001)))
        made.flush(30)

    read = numbers(cluster, "threads", 2)
    wanted = [n for first in range(0, 16_001, 2001) for n in range(first, first + 2000)]
    assert sorted(chain(*read)) == sorted(wanted)
    for first in range(0, 16_001, 2001):
        mine = [n for n in read[first % 2] if first <= n < first + 2000]
        assert mine == list(range(first, first + 2000))


def test_topic_is_created_by_the_first_record(broker, cluster):
    with producer(broker) as made:
        assert made.send("created", b"v").result(30).offset == 0
        assert made.partitions_for("created") == {0, 1}


def test_batch_larger_than_the_topic_allows_fails_its_records_only(broker, cluster):
    topics.create(cluster, "small", max_message_bytes=2000)
    with producer(broker) as made:
        bad = made.send("small", os.urandom(5000))
        assert bad.exception(30).code == ErrorCode.MESSAGE_TOO_LARGE
        found = [made.send("small", b"%d" % n).result(30).offset for n in range(3)]

    assert found == [0, 1, 2]
    assert numbers(cluster, "small", 1) == [[0, 1, 2]]


@pytest.mark.parametrize("codec", some_of(CODEC_NAMES, ["none", "lz4"]))
def test_batch_larger_than_the_topic_allows_is_sent_in_parts(broker, cluster, codec):
    name = f"split-{codec}"
    topics.create(cluster, name, max_message_bytes=2000)
    with producer(broker, linger_ms=50, compression_type=codec) as made:
        values = [b"%d" % n + b" " * 9 + os.urandom(90).hex().encode() for n in range(400)]
        values[7] = os.urandom(5000).hex().encode()
        futures = [made.send(name, value) for value in values]
        made.flush(30)
        errors = {n: one.exception().code for n, one in enumerate(futures) if one.exception()}

    assert errors == {7: ErrorCode.MESSAGE_TOO_LARGE}
    assert topics.values(cluster, name, 0) == values[:7] + values[8:]


@pytest.mark.parametrize(
    ("how", "writing_s"),
    some_of(
        [*product(["restart", "network", "io"], [WRITING_S]), ("io", SHORT_S)], [("io", SHORT_S)]
    ),
)
def test_what_is_sent_while_processes_die_arrives_once_and_in_order(how, writing_s):
    pauses = random.Random(SEED)
    often = {**SETTINGS, "worker.restart.backoff.max.ms": 500}
    with Broker(often) as broker, Cluster(broker.bootstrap, deadline=60) as cluster:
        topics.create(cluster, "killed", 2)
        stop = threading.Event()
        began = time.monotonic()

        def disturb() -> None:
            while not stop.wait(pauses.uniform(0.2, 0.6)) and time.monotonic() < began + writing_s:
                if how == "restart":
                    broker.kill_all()
                    broker.start()
                else:
                    broker.kill(how, pauses.randrange(2))

        futures = []
        with (
            ThreadPoolExecutor(1) as beside,
            producer(broker, batch_size=500, retry_backoff_ms=20) as made,
        ):
            disturbed = beside.submit(disturb)
            try:
                while time.monotonic() < began + writing_s:
                    for _ in range(200):
                        futures.append(made.send("killed", b"%d" % len(futures)))
                    made.flush(60)
            finally:
                stop.set()
            disturbed.result()
        found = [future.result(60) for future in futures]
        read = numbers(cluster, "killed", 2)

    assert sorted(chain(*read)) == list(range(len(futures))), f"seed {SEED}"
    assert all(one == sorted(one) for one in read), f"out of order, seed {SEED}"
    assert all(read[one.partition][one.offset] == n for n, one in enumerate(found))


def test_tls_and_sasl(tmp_path: Path):
    site = Site(tmp_path)
    with Broker({**SETTINGS, **site.settings("PLAINTEXT", "SSL", "SASL_SSL")}) as broker:
        for protocol, more in (
            ("SSL", {}),
            (
                "SASL_SSL",
                {
                    "sasl_mechanism": "PLAIN",
                    "sasl_username": "alice",
                    "sasl_password": PASSWORDS["alice"],
                },
            ),
        ):
            host, port = address_of(broker, protocol)
            with KafkaProducer(
                bootstrap_servers=f"{host}:{port}",
                security_protocol=protocol,
                ssl_ca_location=str(site.ca_file),
                **more,
            ) as made:
                futures = made.send_many("secret", [b"x" * 1000] * 3000, partition=0)
                assert sum(count for *_, count in futures.result(60)) == 3000


# -- transactions


def test_committed_records_are_read_and_aborted_ones_are_not(broker, cluster):
    topics.create(cluster, "ends", 2)
    wanted = set()
    with producer(broker, transactional_id="ends", batch_size=500) as made:
        made.init_transactions()
        for number in range(30):
            made.begin_transaction()
            for n in range(100 * number, 100 * number + 100):
                made.send("ends", b"%d" % n)
            if number % 3:
                made.commit_transaction()
                wanted.update(range(100 * number, 100 * number + 100))
            else:
                made.abort_transaction()

    read = numbers(cluster, "ends", 2, read_committed=True)
    assert sorted(chain(*read)) == sorted(wanted)
    assert all(one == sorted(one) for one in read)


def test_offsets_of_a_group_are_committed_with_the_transaction(broker, cluster):
    topics.create(cluster, "offsets")
    with producer(broker, transactional_id="offsets") as made:
        made.init_transactions()
        for offset, commit in ((5, True), (9, False)):
            made.begin_transaction()
            made.send("offsets", b"v")
            made.send_offsets_to_transaction({("offsets", 0): offset}, "readers")
            made.commit_transaction() if commit else made.abort_transaction()

    assert committed(cluster, "readers", [("offsets", 0)])["offsets", 0].offset == 5


def test_empty_transactions_end(broker, cluster):
    with producer(broker, transactional_id="empty") as made:
        made.init_transactions()
        for end in (made.commit_transaction, made.abort_transaction, made.commit_transaction):
            made.begin_transaction()
            end()

    left = describe_transaction(cluster, "empty")
    assert (left.started_ms, left.partitions) == (None, [])


def test_fenced_producer_can_do_nothing_more(broker, cluster):
    topics.create(cluster, "fenced")
    with (
        producer(broker, transactional_id="fenced") as old,
        producer(broker, transactional_id="fenced") as new,
    ):
        old.init_transactions()
        old.begin_transaction()
        old.send("fenced", b"1").result(30)
        new.init_transactions()
        new.begin_transaction()
        new.send("fenced", b"2").result(30)
        new.commit_transaction()

        with pytest.raises(RejectedError) as caught:
            old.commit_transaction()
        assert caught.value.code in (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED)
        with pytest.raises((RejectedError, TransactionState)):
            old.send("fenced", b"3")
    assert numbers(cluster, "fenced", 1, read_committed=True) == [[2]]


def test_transaction_with_a_failed_record_can_only_be_aborted(broker, cluster):
    topics.create(cluster, "broken", max_message_bytes=2000)
    with producer(broker, transactional_id="broken") as made:
        made.init_transactions()
        made.begin_transaction()
        made.send("broken", b"1").result(30)
        made.send("broken", os.urandom(5000))
        with pytest.raises(RejectedError, match="MESSAGE_TOO_LARGE"):
            made.commit_transaction()
        with pytest.raises(RejectedError, match="MESSAGE_TOO_LARGE"):
            made.send("broken", b"2")
        made.abort_transaction()
        made.begin_transaction()
        made.send("broken", b"3")
        made.commit_transaction()

    assert numbers(cluster, "broken", 1, read_committed=True) == [[3]]


def test_records_that_were_not_sent_are_given_up_by_an_abort(broker, cluster):
    topics.create(cluster, "given-up")
    with producer(broker, transactional_id="given-up", linger_ms=10_000) as made:
        made.init_transactions()
        made.begin_transaction()
        future = made.send("given-up", b"1")
        made.abort_transaction()
        assert isinstance(future.exception(30), TransactionState)
        made.begin_transaction()
        made.send("given-up", b"2")
        made.commit_transaction()

    assert numbers(cluster, "given-up", 1, read_committed=True) == [[2]]


@pytest.mark.slow  # the simulation of producers shows it, and test_transactions_over_crashes.py
def test_transactions_while_processes_die_end_as_told():
    pauses = random.Random(SEED)
    often = {**SETTINGS, "worker.restart.backoff.max.ms": 500}
    with Broker(often) as broker, Cluster(broker.bootstrap, deadline=60) as cluster:
        topics.create(cluster, "both", 2)
        stop = threading.Event()

        def disturb() -> None:
            while not stop.wait(pauses.uniform(0.3, 0.8)):
                broker.kill(pauses.choice(["network", "io"]), pauses.randrange(2))

        wanted: set[int] = set()
        ended = 0
        began = time.monotonic()
        with (
            ThreadPoolExecutor(1) as beside,
            producer(broker, transactional_id="both", batch_size=300, retry_backoff_ms=20) as made,
        ):
            made.init_transactions(60)
            disturbed = beside.submit(disturb)
            try:
                while time.monotonic() < began + WRITING_S:
                    made.begin_transaction()
                    mine = range(100 * ended, 100 * ended + 100)
                    for n in mine:
                        made.send("both", b"%d" % n)
                    if ended % 3:
                        made.commit_transaction()
                        wanted.update(mine)
                    else:
                        made.abort_transaction()
                    ended += 1
            finally:
                stop.set()
            disturbed.result()
        read = numbers(cluster, "both", 2, read_committed=True)

    assert ended > 3
    assert sorted(chain(*read)) == sorted(wanted), f"seed {SEED}"
