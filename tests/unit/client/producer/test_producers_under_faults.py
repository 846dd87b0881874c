"""Producers whose broker falls silent, whose process forks or ends."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from support.clients.scripted_produce import Scripted, producer

from kbroker.client import KafkaConsumer, KafkaProducer
from kbroker.client.aio import AsyncKafkaProducer
from kbroker.client.batches.produce import BatchProducer
from kbroker.client.connections.cluster import Cluster
from kbroker.client.connections.connection import Connection
from kbroker.client.connections.retry import Retry
from kbroker.client.errors import (
    ClientClosed,
    RejectedError,
    Timeout,
    TransactionState,
    UnsupportedHost,
)
from kbroker.client.producer import at_exit
from kbroker.errors import ErrorCode
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnResponse
from kbroker.protocol.messages.end_txn import EndTxnResponse
from kbroker.record.builder import BatchBuilder
from kbroker.testing import wait_until

pytestmark = pytest.mark.unit

WAIT_S = 20.0


def added(request: Any) -> AddPartitionsToTxnResponse:
    part = AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult(partition_index=0)
    topic = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(
        name="t", results_by_partition=[part]
    )
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=[topic])


@pytest.fixture
def broker() -> Iterator[Scripted]:
    with Scripted() as made:
        made.answers[ApiKey.END_TXN] = lambda request, state: EndTxnResponse()
        made.answers[ApiKey.ADD_PARTITIONS_TO_TXN] = lambda request, state: added(request)
        yield made


# -- the end


def test_a_closed_producer_leaves_no_connection_open(broker):
    """Not that for metadata either."""
    gc.collect()  # what other tests have left
    made = producer(broker)
    made.send("t", b"x").result(WAIT_S)
    made.close()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del made
        gc.collect()
    assert [str(one.message) for one in caught if one.category is ResourceWarning] == []


def test_a_connection_that_is_made_after_the_end_is_closed(broker, monkeypatch):
    """The end interrupts a login, but one that has just succeeded is handed to nobody."""
    connected, goes_on = threading.Event(), threading.Event()
    late: list[Connection] = []

    def connect(*where: Any, **how: Any) -> Connection:
        late.append(Connection(*where, **how))
        connected.set()
        goes_on.wait(WAIT_S)
        return late[0]

    monkeypatch.setattr("kbroker.client.producer.sender.Connection", connect)
    made = producer(broker)
    made.send("t", b"x")
    assert connected.wait(WAIT_S)
    made.close(0)
    assert not late[0].closed
    goes_on.set()

    wait_until(lambda: late[0].closed, WAIT_S, "it is closed")


def test_a_connection_that_is_begun_after_the_end_is_not_made(broker, monkeypatch):
    begun, goes_on = threading.Event(), threading.Event()
    errors: list[Exception] = []

    def connect(*where: Any, **how: Any) -> Connection:
        begun.set()
        goes_on.wait(WAIT_S)
        try:
            return Connection(*where, **how)
        except ClientClosed as error:
            errors.append(error)
            raise

    monkeypatch.setattr("kbroker.client.producer.sender.Connection", connect)
    made = producer(broker)
    made.send("t", b"x")
    assert begun.wait(WAIT_S)
    made.close(0)
    wait_until(lambda: not threads_of(made.client_id), WAIT_S)
    goes_on.set()

    wait_until(lambda: errors, WAIT_S, "it is refused")


# -- without close


def threads_of(name: str) -> list[str]:
    return [one.name for one in threading.enumerate() if name in one.name]


def test_what_a_dropped_producer_has_taken_is_sent_and_its_thread_ends(broker):
    with pytest.warns(ResourceWarning, match="the producer dropped was not closed"):
        future = producer(broker, client_id="dropped", linger_ms=14_000).send("t", b"x")
        gc.collect()

    assert future.result(WAIT_S).offset == 0
    wait_until(lambda: not threads_of("dropped"), WAIT_S, "its threads have ended")


def test_records_of_a_dropped_producer_wait_for_its_id():
    """Also if the broker does not give it one at first."""
    with Scripted(id_errors=(int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),) * 3) as broker:
        with pytest.warns(ResourceWarning, match="was not closed"):
            future = producer(broker, client_id="dropped").send("t", b"x")
            gc.collect()

        assert future.result(WAIT_S).offset == 0
        wait_until(lambda: not threads_of("dropped"), WAIT_S, "its threads have ended")


def test_records_of_a_dropped_producer_that_cannot_be_sent_fail(broker):
    broker.leader = -1
    with pytest.warns(ResourceWarning, match="was not closed"):
        future = producer(
            broker, client_id="dropped", request_timeout_ms=100, delivery_timeout_ms=200
        ).send("t", b"x")
        gc.collect()

    assert isinstance(future.exception(WAIT_S), Timeout)
    wait_until(lambda: not threads_of("dropped"), WAIT_S, "its threads have ended")


def test_a_dropped_asyncio_producer_ends(broker):
    async def body() -> Any:
        made = AsyncKafkaProducer(
            bootstrap_servers=broker.bootstrap, client_id="dropped", linger_ms=10
        )
        return await made.send("t", b"x")

    async def ends() -> Any:
        return await asyncio.wait_for(await body(), WAIT_S)

    with pytest.warns(ResourceWarning, match="was not closed"):
        assert asyncio.run(ends()).offset == 0
        gc.collect()
    wait_until(lambda: not threads_of("dropped"), WAIT_S, "its threads have ended")


def test_a_closed_producer_is_dropped_without_a_word(broker):
    made = producer(broker, client_id="dropped")
    made.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del made
        gc.collect()
    assert threads_of("dropped") == []


def test_a_closed_wire_producer_says_that_it_is_closed(broker):
    with BatchProducer(Cluster(broker.bootstrap)) as made:
        pass
    with pytest.raises(ClientClosed):
        made.flush()


@pytest.mark.parametrize("end", ["close", "drop"])
def test_an_open_transaction_is_aborted_at_the_end(broker, end):
    """Readers of committed records would stand there for a minute."""
    ends: list[bool] = []

    def ended(request: Any, state: Any) -> EndTxnResponse:
        ends.append(request.committed)
        return EndTxnResponse()

    broker.answers[ApiKey.END_TXN] = ended
    made = producer(broker, transactional_id="x")
    made.init_transactions(WAIT_S)
    made.begin_transaction()
    made.send("t", b"x").result(WAIT_S)
    if end == "close":
        made.close()
    else:
        with pytest.warns(ResourceWarning, match="was not closed"):
            del made
            gc.collect()
    wait_until(lambda: ends == [False], WAIT_S)


def test_an_open_transaction_is_left_where_close_may_not_wait(broker):
    ends: list[Any] = []
    broker.answers[ApiKey.END_TXN] = lambda request, state: ends.append(request)
    made = producer(broker, transactional_id="x")
    made.init_transactions(WAIT_S)
    made.begin_transaction()
    made.send("t", b"x").result(WAIT_S)
    made.close(0)
    assert ends == []


class Clock:
    """Time passes while a producer waits for something."""

    def __init__(self, producer: BatchProducer) -> None:
        self.now = time.monotonic()
        self._pool, self._loop = producer._pool, producer._sender._loop
        producer._sender.clock = self.monotonic
        producer._sender._loop = self  # type: ignore[assignment]
        self._pool.simulate(int(self.now * 1e6))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def monotonic(self) -> float:
        return self.now

    def run(self, seconds: float, enough_bytes: int) -> Any:
        events = self._loop.run(0.0, enough_bytes)
        if not events and seconds > 0:
            self.now += max(seconds, 0.001)
            self._pool.simulate(int(self.now * 1e6))
        return events


def test_a_wire_producer_tries_less_and_less_often():
    """While its brokers are gone, it takes no more of a core than others that wait."""
    tries: list[float] = []

    def leader(topic: str, partition: int, retry: Any) -> Any:
        tries.append(clock.now)
        raise RejectedError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "metadata")

    cluster: Any = SimpleNamespace(
        leader=leader, retry=Retry, request_timeout=1.0, asked="127.0.0.1:1", client_id="x"
    )
    made = BatchProducer(cluster, idempotent=False, delivery_timeout=30.0)
    clock = Clock(made)
    builder = BatchBuilder()
    builder.append(b"x")
    made.send("t", 0, bytearray(builder.build()), 1)
    with pytest.raises(Timeout, match=r"NOT_LEADER_OR_FOLLOWER.*\(by 127.0.0.1:1\)"):
        made.flush()

    assert tries[1] - tries[0] < 0.1
    assert 20 < len(tries) < 60


# -- silence


def test_a_batch_leaves_a_silent_broker_that_leads_nothing_any_more(broker, monkeypatch):
    """Long before ``request.timeout.ms``."""
    monkeypatch.setattr("kbroker.client.producer.sender._SILENT_S", 0.1)
    monkeypatch.setattr("kbroker.client.producer.sender._HOUSE_S", 0.05)
    silent = threading.Event()
    asked = threading.Event()

    def produce(request: Any, state: Any) -> Any:
        if broker.leader == 0:
            asked.set()
            silent.wait(60)
            return None
        return broker.produce(request, state)

    broker.answers[ApiKey.PRODUCE] = produce
    with producer(broker, request_timeout_ms=60_000, delivery_timeout_ms=90_000) as made:
        future = made.send("t", b"x")
        assert asked.wait(WAIT_S)
        broker.leader = 1

        assert future.result(WAIT_S).offset == 0
    silent.set()


def test_a_flush_in_vain_says_who_does_not_respond(broker, monkeypatch):
    monkeypatch.setattr("kbroker.client.producer.sender._NOTICED_S", 0.0)
    monkeypatch.setattr("kbroker.client.producer.sender._HOUSE_S", 0.05)
    silent = threading.Event()
    produce = broker.produce
    broker.answers[ApiKey.PRODUCE] = lambda request, state: (
        silent.wait(60) and produce(request, state)
    )
    with producer(broker) as made:
        made.send("t", b"x")
        wait_until(lambda: "no response" in made.trouble(), WAIT_S)

        with pytest.raises(Timeout, match=rf"{broker.bootstrap}: no response for \d+ s"):
            made.flush(0.01)
        silent.set()


def test_a_record_that_is_rejected_until_the_end_says_by_whom():
    with Scripted(*[int(ErrorCode.NOT_LEADER_OR_FOLLOWER)] * 1000) as broker:
        with producer(broker, request_timeout_ms=100, delivery_timeout_ms=300) as made:
            error = made.send("t", b"x").exception(WAIT_S)

    assert isinstance(error, Timeout)
    assert "NOT_LEADER_OR_FOLLOWER" in str(error) and f"(by {broker.bootstrap})" in str(error)


@pytest.mark.parametrize("end", ["commit_transaction", "abort_transaction"])
def test_the_end_of_a_transaction_takes_max_block_ms_and_may_be_called_again(broker, end):
    """As in Java, also while a record waits for its acknowledgement, which may take minutes."""
    silent = threading.Event()
    produce = broker.produce
    broker.answers[ApiKey.PRODUCE] = lambda request, state: (
        silent.wait(60) and produce(request, state)
    )
    with producer(
        broker, transactional_id="x", max_block_ms=300, request_timeout_ms=50_000,
        delivery_timeout_ms=90_000,
    ) as made:  # fmt: skip
        made.init_transactions(WAIT_S)
        made.begin_transaction()
        future = made.send("t", b"x")
        wait_until(lambda: made.metrics()["requests-in-flight"] > 0, WAIT_S)

        with pytest.raises(Timeout, match=f"all records; last: .*{broker.bootstrap}"):
            getattr(made, end)()
        assert made.in_transaction and not future.done()
        silent.set()
        assert future.result(WAIT_S).offset == 0
        getattr(made, end)()
        assert not made.in_transaction


# -- forks


def in_child(call: Any) -> str:
    """What a call raises in a child of this process, within some seconds."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        said = "nothing"
        try:
            call()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    try:
        with open(read, "rb") as told:
            os.set_blocking(told.fileno(), False)
            found: list[bytes] = []
            wait_until(lambda: found.append(told.read() or b"") or found[-1], WAIT_S)
            return found[-1].decode()
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


CALLS = {
    "send": lambda made: made.send("t", b"x"),
    "flush": lambda made: made.flush(),
    "commit": lambda made: made.commit_transaction(),
    "abort": lambda made: made.abort_transaction(),
    "offsets": lambda made: made.send_offsets_to_transaction({("t", 0): 1}, "g"),
    "begin": lambda made: made.begin_transaction(),
    "init": lambda made: made.init_transactions(),
    "partitions": lambda made: made.partitions_for("t"),
    "metrics": lambda made: made.metrics(),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_producer_is_of_one_process(broker, call):
    with producer(broker, transactional_id="x") as made:
        made.init_transactions()
        made.begin_transaction()
        made.send("t", b"x").result(WAIT_S)

        said = in_child(lambda: CALLS[call](made))

        assert said.startswith("ClientClosed: the producer belongs to the process that created it")
        assert in_child(made.close) == "nothing"
        made.commit_transaction()


def test_a_batch_producer_is_of_one_process(broker):
    with Cluster(broker.bootstrap) as cluster, BatchProducer(cluster, transactional_id="x") as made:
        made.begin()
        for call in (
            made.flush,
            lambda: made.end(commit=True),
            lambda: made.commit_offsets("g", {("t", 0): (1, "")}),
        ):
            assert in_child(call).startswith("ClientClosed: the producer belongs to the process")
        made.end(commit=False)


# -- ends of programs


class Ending:
    """A producer that is flushed at its nth try, or never."""

    client_id = "one"

    def __init__(self, tries: float) -> None:
        self.tries = tries
        self.asked = 0
        self.closed: list[float | None] = []

    def is_flushed(self, seconds: float) -> bool:
        self.asked += 1
        return self.asked >= self.tries

    def close(self, timeout: float | None = None) -> None:
        self.closed.append(timeout)

    def forget(self) -> None:
        raise AssertionError


def test_a_producer_that_cannot_send_takes_no_time_of_the_others_at_the_end(monkeypatch):
    monkeypatch.setattr(at_exit, "_CLOSE_S", 0.3)
    producers = [Ending(float("inf")), Ending(3), Ending(float("inf")), Ending(1)]
    monkeypatch.setattr(at_exit, "_alive", producers)

    at_exit._close_all()

    assert [one.closed for one in producers] == [[0.0]] * 4
    assert [one.asked for one in producers[1::2]] == [3, 1]


# -- hosts


@pytest.mark.parametrize("client", [KafkaProducer, KafkaConsumer, AsyncKafkaProducer])
@pytest.mark.parametrize("library", ["gevent", "eventlet"])
def test_replaced_threads_are_refused_at_construction(monkeypatch, client, library):
    if library == "gevent":
        module = SimpleNamespace(is_module_patched=lambda name: name == "threading")
        monkeypatch.setitem(sys.modules, "gevent.monkey", module)
    else:
        module = SimpleNamespace(is_monkey_patched=lambda name: name == "thread")
        monkeypatch.setitem(sys.modules, "eventlet.patcher", module)

    with pytest.raises(UnsupportedHost, match=library):
        client(bootstrap_servers="127.0.0.1:1")


# -- aborted transactions


def ends(broker: Scripted) -> list[bool]:
    """What the coordinator is asked for: to commit or not. After an abort the epoch is another."""
    asked: list[bool] = []

    def end(request: Any, state: Any) -> EndTxnResponse:
        asked.append(request.committed)
        fenced = asked == [False, False]
        return EndTxnResponse(error_code=ErrorCode.PRODUCER_FENCED if fenced else 0)

    broker.answers[ApiKey.END_TXN] = end
    return asked


def test_an_abort_that_is_repeated_does_not_end_the_transaction_again(broker):
    """It lacked only the next epoch, and the coordinator may have raised that: the transaction is
    not this producer's any more by its former one, which would be called fenced for good.
    """
    asked = ends(broker)
    broker.script.append(int(ErrorCode.INVALID_RECORD))
    with producer(broker, transactional_id="x", max_block_ms=300) as made:
        made.init_transactions()
        made.begin_transaction()
        assert made.send("t", b"x").exception(WAIT_S) is not None
        broker.id_errors.extend([int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)] * 10_000)
        with pytest.raises(Timeout):
            made.abort_transaction()
        broker.id_errors.clear()

        made.abort_transaction()

        made.begin_transaction()
        made.send("t", b"y").result(WAIT_S)
        made.commit_transaction()
    assert asked == [False, True]


def test_a_record_that_is_refused_during_an_abort_leaves_no_gap_in_the_numbers(broker):
    """Its number was used: the next transaction begins with another epoch, or else its first batch
    would be out of order.
    """
    answer, sent = threading.Event(), threading.Event()

    def produce(request: Any, state: Any) -> Any:
        sent.set()
        answer.wait(WAIT_S)
        return broker.produce(request, state)

    ends(broker)
    broker.answers[ApiKey.PRODUCE] = produce
    broker.script.append(int(ErrorCode.INVALID_RECORD))
    ids: list[Any] = []
    broker.answers[ApiKey.INIT_PRODUCER_ID] = lambda request, state: (
        ids.append(request) or broker.init_producer_id(request, state)
    )
    with producer(broker, transactional_id="x") as made:
        made.init_transactions()
        made.begin_transaction()
        made.send("t", b"x")
        assert sent.wait(WAIT_S)
        aborting = threading.Thread(target=made.abort_transaction)
        aborting.start()
        wait_until(lambda: made._sender.aborting, WAIT_S)
        answer.set()
        aborting.join(WAIT_S)

        assert len(ids) == 2


def test_after_an_abort_that_took_too_long_nothing_can_be_committed(broker):
    """Some of its records were given up."""
    answer, sent = threading.Event(), threading.Event()

    def produce(request: Any, state: Any) -> Any:
        sent.set()
        answer.wait(WAIT_S)
        return broker.produce(request, state)

    asked = ends(broker)
    broker.answers[ApiKey.PRODUCE] = produce
    with producer(broker, transactional_id="x", max_block_ms=300) as made:
        made.init_transactions()
        made.begin_transaction()
        made.send("t", b"x")
        assert sent.wait(WAIT_S)
        with pytest.raises(Timeout):
            made.abort_transaction()
        with pytest.raises(TransactionState, match="call it again"):
            made.commit_transaction()
        with pytest.raises(TransactionState, match="call it again"):
            made.send("t", b"y")
        answer.set()

        made.abort_transaction()
    assert asked == [False]
