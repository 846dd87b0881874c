"""The face of the producer: serializers, partitioners, interceptors, states, forks."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
from support.clients.scripted_produce import Scripted, producer
from support.running.pace import hold

from kbroker.client import ProducerRecord
from kbroker.client.errors import (
    ClientClosed,
    ClientError,
    SerializationFailed,
    SettingRefused,
    Timeout,
    TransactionState,
)
from kbroker.errors import ErrorCode
from kbroker.testing import wait_until

pytestmark = pytest.mark.unit


class Suffix:
    def serialize(self, topic: str, field: Any) -> bytes:
        return f"{field}@{topic}".encode()


def test_serializers_are_callables_or_objects():
    settings = {"value_serializer": lambda value: value.encode(), "key_serializer": Suffix()}
    with Scripted() as broker, producer(broker, **settings) as made:
        found = made.send("t", "text", 5).result(10)
        made.send("t", None).result(10)
        made.send_many("t", ["a", "b"]).result(10)

    assert (found.serialized_key_size, found.serialized_value_size) == (3, 4)
    assert broker.appended == [b"text", None, b"a", b"b"]


def test_record_whose_serializer_raises_fails_alone():
    with Scripted() as broker, producer(broker, value_serializer=lambda v: v.encode()) as made:
        error = made.send("t", 5).exception(10)
        made.send("t", "good").result(10)

    assert isinstance(error, SerializationFailed)
    assert "AttributeError" in str(error)
    assert broker.appended == [b"good"]


@pytest.mark.parametrize("settings", [{}, {"key_serializer": Suffix()}])
def test_records_are_objects_too_and_callbacks_are_told_how_they_end(settings):
    ends: list[Any] = []

    def told(metadata: Any, error: Any) -> None:
        ends.append((metadata and metadata.offset, error and type(error)))
        raise RuntimeError("of the callback")  # is logged

    with Scripted() as broker, producer(broker, **settings) as made:
        first = made.send(ProducerRecord("t", b"a", key=b"k", partition=0), told).result(10)
        second = made.send("t", b"b", callback=told).result(10)
        made.send(ProducerRecord("t", b"c")).result(10)
        made.send(ProducerRecord("t", 5), callback=told)
        made.flush(10)
        for words in [(told, b"k"), (b"v",)]:
            with pytest.raises(TypeError, match="callback"):
                made.send(ProducerRecord("t", b"d"), *words)

    assert (first.topic, first.partition, second.topic) == ("t", 0, "t")
    assert ends == [(first.offset, None), (second.offset, None), (None, TypeError)]
    assert broker.appended == [b"a", b"b", b"c"]


@pytest.mark.parametrize("bad", [{"value": "text"}, {"value": b"x" * (1 << 20)}, {"partition": 9}])
def test_record_that_cannot_be_encoded_fails_alone(bad):
    with Scripted() as broker, producer(broker) as made:
        made.send("t", b"first").result(10)
        assert isinstance(made.send("t", **bad).exception(10), (TypeError, ValueError))
        made.send("t", b"good").result(10)

    assert broker.appended == [b"first", b"good"]


def test_partitioner_gets_key_and_partitions():
    seen = []

    def choose(key: bytes | None, everything: list[int], available: list[int]) -> int:
        seen.append((key, everything, available))
        return everything[-1]

    with Scripted() as broker, producer(broker, partitioner=choose) as made:
        assert made.send("t", b"v", b"k").result(10).partition == 0
        with pytest.raises(TypeError, match="use send"):
            made.send_many("t", [b"v"])
    assert seen == [(b"k", [0], [0])]


class Interceptor:
    def __init__(self) -> None:
        self.acknowledged: list[Any] = []
        self.closed = False

    def on_send(self, record: Any) -> Any:
        if record.value == b"raise":
            raise ValueError("from an interceptor")
        return record._replace(value=record.value.upper())

    def on_acknowledgement(self, metadata: Any, error: Any) -> None:
        self.acknowledged.append((metadata and metadata.offset, type(error).__name__))

    def close(self) -> None:
        self.closed = True


def test_interceptors_change_records_and_are_told_of_acknowledgements():
    one = Interceptor()
    with Scripted(0, 0, 10) as broker, producer(broker, interceptor_classes=[one]) as made:
        for value in (b"a", b"raise", b"c"):
            made.send("t", value).exception(10)

    assert broker.appended == [b"A", b"raise"]
    assert one.acknowledged == [(0, "NoneType"), (1, "NoneType"), (None, "RejectedError")]
    assert one.closed


class Reporter:
    def __init__(self) -> None:
        self.names: list[str] = []
        self.calls: list[str] = []

    def init(self, metrics: Any) -> None:
        self.calls.append("init")
        assert metrics

    def metric_change(self, metric: Any) -> None:
        self.names.append(metric.name)
        assert metric.value() >= 0

    def close(self) -> None:
        self.calls.append("close")


def test_metrics_count_and_reporters_are_told_of_each():
    reporter = Reporter()
    settings = {"metric_reporters": [reporter], "client_id": "counted"}
    with Scripted(19) as broker, producer(broker, **settings) as made:
        made.send("t", b"v").result(10)
        found = made.metrics()

    assert found["record-send-total"] == 1
    assert found["record-retry-total"] == 1
    assert found["record-error-total"] == 0
    assert found["request-total"] == 2
    assert found["request-latency-avg"] > 0
    assert found["buffer-available-bytes"] == found["buffer-total-bytes"]
    assert sorted(found) == sorted(reporter.names)
    assert reporter.calls == ["init", "close"]


def test_closed_producer_says_so():
    with Scripted() as broker:
        made = producer(broker)
        made.close()
        made.close()
        for call in (
            lambda: made.send("t", b"v"),
            lambda: made.send_many("t", [b"v"]),
            lambda: made.partitions_for("t"),
        ):
            with pytest.raises(ClientClosed):
                call()


def test_callback_cannot_wait_for_itself_and_may_close():
    found: list[Any] = []

    def called(future: Any) -> None:
        try:
            made.flush()
        except ClientError as error:
            found.append(str(error))
        made.close()

    with Scripted() as broker, producer(broker, linger_ms=200) as made:
        future = made.send("t", b"v")
        future.add_done_callback(called)
        assert future.result(10).offset == 0
        wait_until(lambda: found, 10, "it was called")

    assert found == ["flush was called by a callback"]


@pytest.mark.parametrize("code", [0, int(ErrorCode.INVALID_RECORD)], ids=["written", "rejected"])
def test_flush_returns_after_the_callbacks_of_what_was_sent_before(code):
    """As Java's: what a callback counts is complete after ``flush``."""
    found: list[str] = []

    def called(future: Any) -> None:
        hold(0.05)  # flush could return meanwhile
        found.append("called")

    with Scripted(code, code) as broker, producer(broker) as made:
        for _ in range(2):
            made.send("t", b"v").add_done_callback(called)
            made.flush(10)
            found.append("flushed")

    assert found == ["called", "flushed"] * 2


def test_flush_that_waits_for_a_callback_has_a_timeout():
    gate = threading.Event()
    with Scripted() as broker, producer(broker) as made:
        made.send("t", b"v").add_done_callback(lambda future: gate.wait(20))
        with pytest.raises(Timeout, match="callbacks of all records"):
            made.flush(0.2)
        gate.set()
        made.flush(10)


def test_flush_of_a_closed_producer_returns():
    with Scripted() as broker, producer(broker) as made:
        made.send("t", b"v")
        made.close()
        made.flush(10)

    assert broker.appended == [b"v"]


def test_partitions_of_a_topic():
    with Scripted() as broker, producer(broker) as made:
        assert made.partitions_for("t") == {0}


def test_calls_of_transactions_need_a_transactional_id():
    with Scripted() as broker, producer(broker) as made:
        for call in (made.init_transactions, made.begin_transaction, made.commit_transaction):
            with pytest.raises(TransactionState, match=r"transactional\.id"):
                call()


def test_calls_of_transactions_need_their_order():
    with Scripted() as broker, producer(broker, transactional_id="x") as made:
        with pytest.raises(TransactionState, match="init_transactions first"):
            made.begin_transaction()
        with pytest.raises(TransactionState, match="init_transactions first"):
            made.send("t", b"v")


def test_unknown_setting_names_the_nearest():
    with pytest.raises(SettingRefused, match=r"did you mean linger\.ms"):
        producer(Scripted(), lingerms=5)


def test_setting_without_effect_is_a_warning(caplog):
    with Scripted() as broker, producer(broker, connections_max_idle_ms=5):
        pass

    assert "connections.max.idle.ms has no effect" in caplog.text


def test_producer_in_a_forked_process_is_closed():
    with Scripted() as broker, producer(broker) as made:
        made.send("t", b"v").result(10)
        pid = os.fork()
        if pid == 0:
            try:
                made.send("t", b"w")
            except ClientClosed:
                os._exit(7)
            os._exit(1)
        _, status = os.waitpid(pid, 0)

    assert os.waitstatus_to_exitcode(status) == 7
    assert broker.appended == [b"v"]
