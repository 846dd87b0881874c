"""Whatever ends a call in a worker thread, whoever waits for it is told, and the thread lives; if
it ends all the same, that is told, too. sys.exit() of a user's code ends a thread without a word.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from support.brokers.fake_broker import FakeBroker

from kbroker.client.consumer.lanes import Inbox, Lane, aside
from kbroker.client.consumer.member_thread import End, MemberThread, WaitUntil
from kbroker.client.errors import ClientError
from kbroker.client.producer.beside import SideCalls as ProducerBeside
from kbroker.client.producer.producer_metadata import ProducerMetadata
from kbroker.errors import InvariantError
from kbroker.legacy import AsyncProducer, EventHandler, KeyedMessage, ProducerClosed
from kbroker.legacy.zookeeper_consumer.chunk_fetcher import ChunkFetcher
from kbroker.legacy.zookeeper_consumer.consumer_connector import ConsumerConnector
from kbroker.legacy.zookeeper_consumer.kafka_stream import KafkaStream, PartitionReading
from kbroker.legacy.zookeeper_consumer.zookeeper_consumer_settings import ConsumerConfig
from kbroker.peers import connecting
from kbroker.peers.connecting import Connecting
from kbroker.storage.background import BackgroundDisk
from kbroker.testing import wait_until
from kbroker.workers.exporter.reporters import MBeanMetric, ReporterThread
from kbroker.workers.network.beside import Beside

pytestmark = pytest.mark.unit


def leave(*_: Any, **__: Any) -> Any:
    sys.exit("leaving")


class Leaving(EventHandler):
    """Leaves at its first batch."""

    def __init__(self) -> None:
        self.handled: list[list[Any]] = []

    def handle(self, events: Any, producer: Any, encoder: Any) -> None:
        self.handled.append([one.message for one in events])
        if len(self.handled) == 1:
            leave()


def old_producer(handler: EventHandler) -> AsyncProducer:
    settings = {"metadata.broker.list": "h:1", "batch.num.messages": 1}
    return AsyncProducer(settings, handler, None)


def test_old_producer_goes_on_after_a_handler_that_leaves() -> None:
    handler = Leaving()
    with old_producer(handler) as producer:
        producer.send("t", "a")
        producer.send("t", "b")
    assert handler.handled == [["a"], ["b"]]


def test_old_producer_whose_thread_has_ended_takes_no_messages(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """They would never be sent."""
    with old_producer(Leaving()) as producer:
        producer._thread._send = leave  # type: ignore[method-assign]
        producer.enqueue(KeyedMessage("t", "a"))
        producer._thread.join(30)
        with pytest.raises(ProducerClosed, match="its thread ended with SystemExit: leaving"):
            producer.send("t", "b")
    assert "has ended" in caplog.text


class FailingReporter:
    def __init__(self) -> None:
        self.changes = 0

    def metric_change(self, metric: MBeanMetric) -> None:
        self.changes += 1
        leave()


def metric(name: str) -> MBeanMetric:
    return MBeanMetric(name, "g", {}, lambda: 1.0, "d", "Value", "gauge", "")


def test_reporter_that_leaves_is_called_again_and_its_end_is_awaited() -> None:
    reporter = FailingReporter()
    thread = ReporterThread("x", reporter)
    for name in ("one", "two"):
        thread.tell([metric(name)], [])
        wait_until(lambda: not thread._added)
    thread.stop()
    thread.join(30)
    assert not threading.Thread.is_alive(thread)
    assert reporter.changes == 2


def test_reporters_end_is_awaited_after_stop() -> None:
    """Thread of Python 3.12 has an _is_stopped of its own."""
    entered, released = threading.Event(), threading.Event()

    def hang(_: MBeanMetric) -> None:
        entered.set()
        released.wait(30)

    thread = ReporterThread("x", SimpleNamespace(metric_change=hang))
    thread.tell([metric("one")], [])
    assert entered.wait(30)
    thread.stop()
    thread.join(0.05)
    assert thread.is_alive()
    released.set()
    thread.join(30)
    assert not thread.is_alive()


def test_producer_hears_of_a_call_that_leaves() -> None:
    posted: list[Callable[[], None]] = []
    told: list[Any] = []

    def post(call: Callable[[], None]) -> bool:
        posted.append(call)
        return True

    ProducerBeside(post, "x").run("y", leave, lambda *outcome: told.append(outcome))
    wait_until(lambda: posted)
    posted[0]()
    ((result, error),) = told
    assert result is None and isinstance(error, ClientError)


def test_metadata_is_asked_for_again_after_a_call_that_leaves() -> None:
    asked: list[Any] = []

    def ask(*arguments: Any, **named: Any) -> Any:
        asked.append(arguments)
        leave()

    cluster: Any = SimpleNamespace(retry=ask, request_timeout=1.0)
    pool: Any = SimpleNamespace(partition_count=lambda topic: 0)
    made = ProducerMetadata(
        cluster, pool, backoff=0.001, backoff_max=0.001, done=lambda heard: None
    )
    with pytest.raises(ClientError):
        made.wait_for("t", 0.3)
    with pytest.raises(ClientError):
        made.wait_for("t", 0.3)
    assert len(asked) >= 2


def test_consumer_hears_of_a_call_that_leaves() -> None:
    inbox = Inbox()
    told: list[Any] = []
    lane = Lane("x", SimpleNamespace(close=lambda: None), inbox)  # type: ignore[arg-type]
    lane.run(leave, "the first", 20.0, lambda *outcome: told.append(outcome))
    after = lane.run(lambda cluster, seconds: 5, "the second", 20.0)
    aside("y", inbox, leave, lambda *outcome: told.append(outcome))
    wait_until(lambda: (inbox.take() and False) or (after.done and len(told) == 2))
    lane.close(10)
    inbox.close()
    assert after.result == 5
    assert all(isinstance(error, ClientError) for _, error in told)


def test_what_comes_after_the_end_is_handled_where_it_is() -> None:
    """A connection, for instance, which somebody must close."""
    told: list[Any] = []
    inbox = Inbox()
    inbox.post(lambda: told.append("before"))
    inbox.close()
    assert told == ["before"]

    aside("y", inbox, lambda: "consumer", lambda *outcome: told.append(outcome))
    wait_until(lambda: told[1:] == [("consumer", None)])
    ProducerBeside(lambda call: False, "x").run(
        "y", lambda: "producer", lambda *outcome: told.append(outcome)
    )
    wait_until(lambda: told[2:] == [("producer", None)])


class BrokenMember:
    """Fails at each step until it is told of a failure."""

    def __init__(self) -> None:
        self.failures: list[ClientError] = []
        self.leaving = False

    def next(self, now: float) -> Any:
        if not self.failures:
            raise KeyError("broken")
        return End() if self.leaving else WaitUntil(now + 3600)

    def failed(self, error: ClientError, now: float) -> None:
        self.failures.append(error)

    def is_leaving(self) -> bool:
        return self.leaving


def test_group_member_that_fails_is_told_and_can_still_leave() -> None:
    member = BrokenMember()
    cluster: Any = SimpleNamespace(client_id="c", close=lambda: None)
    thread = MemberThread("g", cluster, member)  # type: ignore[arg-type]
    thread.start()
    wait_until(lambda: member.failures)
    with thread.lock:
        member.leaving = True
        thread.poke()
    assert thread.join(30)
    assert "KeyError" in str(member.failures[0])


def test_old_consumer_looks_for_leaders_again_after_an_address_that_is_none() -> None:
    """A registration in ZooKeeper may say anything."""
    settings = {"group_id": "g", "zookeeper_connect": "z:1", "refresh_leader_backoff_ms": 5}
    config = ConsumerConfig(**settings)
    stream = KafkaStream("s", chunks_max=2, timeout_s=10)
    part = PartitionReading(("t", 0), stream, 1000)
    fetcher = ChunkFetcher(config, "x")
    try:
        fetcher.start([part], ["no address"])
        wait_until(lambda: stream._faults)
        with FakeBroker() as broker:
            fetcher.start([], [broker.bootstrap])
            wait_until(lambda: broker.requests)
    finally:
        fetcher.close()


def test_old_consumer_commits_again_after_an_error_of_any_kind(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tries: list[float] = []

    def commit(*, retry: bool) -> None:
        tries.append(time.monotonic())
        raise KeyError("broken")

    connector: Any = SimpleNamespace(
        config=SimpleNamespace(seconds=lambda name: 0.001),
        _closing=SimpleNamespace(wait=lambda seconds: len(tries) == 3),
        _rebalancer=SimpleNamespace(commit=commit),
    )
    ConsumerConnector._commit_regularly(connector)
    assert len(tries) == 3 and "a commit failed unexpectedly" in caplog.text


def test_broker_hears_of_work_that_leaves() -> None:
    """Code of plug-ins runs there: the request would never be answered, and sys.exit() in the loop
    would end the process."""
    beside = Beside()
    pending = beside.run(leave)
    wait_until(lambda: beside.take() or pending.done)
    assert isinstance(pending.error, RuntimeError)
    after = beside.run(lambda: 5)
    wait_until(lambda: beside.take() or after.done)
    assert after.value == 5


def test_connection_whose_thread_fails_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever another broker answers in its login: the link would never be tried again."""
    monkeypatch.setattr(connecting, "connected", lambda *_: {}["broken"])
    made, outcomes = Connecting(), []
    made.connect("h", 1, 1, -1, outcomes.append)
    wait_until(lambda: made.run() or outcomes)
    assert isinstance(outcomes[0], OSError) and "KeyError" in str(outcomes[0])


def test_disk_job_that_fails_unexpectedly_ends_the_process() -> None:
    """``wait`` would never return, at a stop, too."""
    disk = BackgroundDisk()
    disk.submit(lambda: {}["broken"], lambda result, error: None)
    with pytest.raises(InvariantError, match="a job of the disk thread failed"):
        disk.wait()
    disk.close()


def test_console_goes_on_after_a_request_that_leaves(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("uvicorn")
    from kbroker.console.server import ConsoleServer

    broker: Any = SimpleNamespace(hosts=frozenset(), registry=None, lags_elsewhere=None)
    server = ConsoleServer(broker)
    with caplog.at_level(logging.ERROR):
        server._loop.call_soon_threadsafe(leave)
        wait_until(lambda: "the console's loop failed" in caplog.text)
    assert server._thread.is_alive()
    server.close()
    assert not server._thread.is_alive()
