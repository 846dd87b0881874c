"""Transactional requests that are duplicated, late or lose their responses have no effect."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fault.chain import PARTITIONS, SETTINGS, Chain, read_entries
from fault.proxy import Proxy
from support.clients.wire_client import WireClient
from support.drivers import ClientError
from support.drivers.java import FIRST_TEST_TIMEOUT_S, Java, java_missing
from support.drivers.transactions import JavaTransactions
from support.faults.history import ABORTED, COMMITTED, Attempt, History
from support.faults.load import TOPIC
from support.running.pace import hold

from kbroker.testing import Broker, wait_until

pytestmark = [pytest.mark.fault, pytest.mark.timeout(180)]

CHAIN_S = 5.0
TRANSACTIONS = 60


@contextmanager
def behind(proxy: Proxy) -> Iterator[Broker]:
    """A broker whose advertised listener is the proxy."""
    with proxy, Broker(SETTINGS, advertised_listeners=f"PLAINTEXT://127.0.0.1:{proxy.port}") as one:
        listeners = one.config["listeners"]
        proxy.upstream = (one.host, int(listeners.rpartition(":")[2]))
        yield one


def repeats(done: Counter[str], kind: str) -> int:
    return sum(count for name, count in done.copy().items() if name.startswith(kind))


@pytest.mark.slow
def test_chain_is_exactly_once_when_requests_come_twice_and_responses_are_lost(
    seed: int, scale: int
) -> None:
    """librdkafka's transactions have one epoch: the duplicate arrives before its next request."""
    history = History()
    proxy = Proxy(seed, twice=0.2, slow=0.1, lost=0.03)
    with behind(proxy) as broker:
        with Chain(broker, history, seed, rate=100) as chain:
            hold(CHAIN_S * scale)
            wait_until(
                lambda: repeats(proxy.done, "twice") > 20 and repeats(proxy.done, "lost") > 2,
                60,
                "enough went wrong",
            )
            chain.wait_for_progress()
        chain.check()
    print(dict(proxy.done))


def test_record_behind_an_abort_is_written_or_rejected(seed: int) -> None:
    """librdkafka 2.16 drops a record in an abort whose response is lost, and gives its sequence
    number to the next one. Apache Kafka acknowledges that as a duplicate, and it is lost.
    """
    from confluent_kafka import KafkaException, Producer

    proxy = Proxy(seed)
    with behind(proxy) as broker:
        with WireClient((broker.host, broker.port)) as client:
            client.create_topic(TOPIC, PARTITIONS)
        settings = {"bootstrap.servers": f"127.0.0.1:{proxy.port}", "transactional.id": "t"}
        # The abort arrives before librdkafka can retry anything.
        settings |= {"reconnect.backoff.ms": 1000, "reconnect.backoff.max.ms": 1000, "log_level": 0}
        producer = Producer(settings | {"error_cb": lambda error: None})
        producer.init_transactions(30)
        _write_one(producer, b"before")
        producer.commit_transaction(30)
        proxy.lose_next = 0
        _write_one(producer, b"dropped")
        wait_until(lambda: proxy.done["lost Produce"] == 1, 30, "the answer is lost")
        with _polled(producer):
            producer.abort_transaction(30)
        told: list[object] = []
        _write_one(producer, b"behind", told)
        try:
            producer.commit_transaction(30)
        except KafkaException as error:
            assert error.args[0].fatal(), error
        entries = read_entries(broker, (TOPIC,))[TOPIC, 0]

    committed = [entry.value for entry in entries if entry.fate == "committed"]
    assert committed == ([b"before", b"behind"] if told == [None] else [b"before"]), told


@contextmanager
def _polled(producer: Any) -> Iterator[None]:
    """An abort waits until the application has polled the events of dropped records."""
    over = threading.Event()

    def poll() -> None:
        while not over.is_set():
            producer.poll(0.01)

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _write_one(producer: Any, value: bytes, told: list[object] | None = None) -> None:
    """told: gets the delivery error, None without one."""
    producer.begin_transaction()
    producer.produce(
        TOPIC,
        value,
        partition=0,
        on_delivery=lambda error, _: None if told is None else told.append(error),
    )


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.timeout(FIRST_TEST_TIMEOUT_S)
@pytest.mark.skipif(bool(java_missing()), reason=java_missing())
def test_late_requests_of_past_transactions_change_nothing(seed: int, scale: int) -> None:
    """In the second transaction protocol each transaction has an epoch, so that a request of an
    earlier one is always rejected.
    """
    history = History()
    log = history.transactor("java")
    chance = random.Random(seed)
    proxy = Proxy(seed, twice=0.2, late=0.7, slow=0.05)
    with behind(proxy) as broker:
        with WireClient((broker.host, broker.port)) as client:
            client.create_topic(TOPIC, PARTITIONS)
        java = Java(f"127.0.0.1:{proxy.port}", "4.3.0")
        try:
            producer = JavaTransactions(java, f"127.0.0.1:{proxy.port}", "late", 30_000)
            producer.init()
            for number in range(TRANSACTIONS * scale):
                _transact(producer, log.begin(), chance, number)
            # Late requests are still in flight; one more transaction follows them all.
            hold(1.5)
            _transact(producer, log.begin(), chance, 0)
            producer.close()
        finally:
            java.close()
        entries = read_entries(broker, (TOPIC,))
        problems = history.check_transactions(entries)
        assert not problems, "\n".join(problems[:10])
        for attempt in log.attempts:
            found = [
                entry.value
                for records in entries.values()
                for entry in records
                if entry.key == attempt.key
            ]
            assert len(found) == len(set(found)) == sum(attempt.writes.values()), attempt
    print(dict(proxy.done))
    assert repeats(proxy.done, "late") > 50


def _transact(
    producer: JavaTransactions, attempt: Attempt, chance: random.Random, number: int
) -> None:
    producer.begin()
    for partition in range(PARTITIONS):
        values = [f"{attempt.key.decode()} {partition} {n}" for n in range(chance.choice((1, 5)))]
        attempt.wrote(TOPIC, partition, len(values))
        producer.send(TOPIC, values, partition, key=attempt.key.decode())
    producer.send_offsets({(TOPIC, 0): number}, "group-of-late")
    try:
        if chance.random() < 0.3:
            producer.abort()
            attempt.outcome = ABORTED
        else:
            producer.commit()
            attempt.outcome = COMMITTED
    except ClientError as error:
        raise AssertionError(f"{attempt.key.decode()}: {error}") from error
