"""The queue of the producer of 0.8, its batches, and what happens when it is full."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest

from kbroker.client.errors import SettingRefused
from kbroker.legacy import (
    AsyncProducer,
    CallbackHandler,
    EventHandler,
    KeyedMessage,
    ProducerClosed,
    QueueFull,
)
from kbroker.legacy.async_producer import MessageQueue
from kbroker.legacy.old_producer import Producer
from kbroker.legacy.producer_config import ProducerConfig
from kbroker.testing import wait_until

pytestmark = pytest.mark.unit

NEVER_MS = 3_600_000


class Recorder(EventHandler):
    """Keeps the batches. gate: is waited for before each."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.closed = 0

    def handle(self, events, producer, encoder):
        assert self.gate.wait(30)
        self.batches.append([one.message for one in events])
        if "bad" in self.batches[-1]:
            raise RuntimeError("no")

    def close(self):
        self.closed += 1


def producer_of(handler: EventHandler, callback: Any = None, **settings: Any) -> AsyncProducer:
    given = {"metadata.broker.list": "h:1", "queue.buffering.max.ms": NEVER_MS}
    given.update({key.replace("_", "."): value for key, value in settings.items()})
    return AsyncProducer(given, handler, callback)


def test_batch_is_handled_when_it_has_enough_messages():
    handler = Recorder()
    with producer_of(handler, batch_num_messages=3) as producer:
        for number in range(7):
            producer.send("t", number)
        wait_until(lambda: len(handler.batches) == 2, 30, "two batches")
        assert handler.batches == [[0, 1, 2], [3, 4, 5]]
    assert handler.batches[2:] == [[6]]
    assert handler.closed == 1


def test_batch_is_handled_when_its_time_is_over():
    handler = Recorder()
    with producer_of(handler, queue_buffering_max_ms=20) as producer:
        producer.send("t", "a")
        wait_until(lambda: handler.batches, 30, "a batch")
        producer.send("t", "b")
        wait_until(lambda: len(handler.batches) == 2, 30, "another one")
    assert handler.batches == [["a"], ["b"]]


def test_full_queue_drops_at_once_with_a_timeout_of_0():
    handler = Recorder()
    handler.gate.clear()
    settings = {"batch_num_messages": 1, "queue_buffering_max_messages": 2}
    with producer_of(handler, **settings, queue_enqueue_timeout_ms=0) as producer:
        try:
            producer.send("t", "held")
            wait_until(lambda: not len(producer._queue), 30, "the first is taken")
            producer.send("t", 1)
            producer.send("t", 2)
            with pytest.raises(QueueFull, match=r"queue\.buffering\.max\.messages, 2, are") as full:
                producer.send("t", 3)
        finally:
            handler.gate.set()
        assert full.value.dropped == KeyedMessage("t", 3)
        assert producer.stats.dropped == 1
    assert handler.batches == [["held"], [1], [2]]


def test_full_queue_is_waited_for_as_long_as_the_setting_says():
    handler = Recorder()
    handler.gate.clear()
    settings = {"batch_num_messages": 1, "queue_buffering_max_messages": 1}
    with producer_of(handler, **settings, queue_enqueue_timeout_ms=30) as producer:
        try:
            producer.send("t", "held")
            wait_until(lambda: not len(producer._queue), 30, "the first is taken")
            producer.send("t", 1)
            with pytest.raises(QueueFull, match="within 30 ms"):
                producer.send("t", 2)
        finally:
            handler.gate.set()


def test_full_queue_blocks_for_ever_by_default_and_drops_nothing():
    handler = Recorder()
    with producer_of(handler, batch_num_messages=1, queue_buffering_max_messages=1) as producer:
        for number in range(200):
            producer.send("t", number)
    assert [one for batch in handler.batches for one in batch] == list(range(200))
    assert producer.stats.dropped == 0


def test_error_of_a_batch_loses_that_one_alone(caplog):
    handler = Recorder()
    with producer_of(handler, batch_num_messages=1) as producer:
        for message in ("a", "bad", "b"):
            producer.send("t", message)
    assert handler.batches == [["a"], ["bad"], ["b"]]
    assert "a batch of 1 messages is lost" in caplog.text


def test_queue_of_a_producer_that_nobody_has_any_more_is_sent():
    """Java's would never end; one of ours must not take messages with it."""
    handler = Recorder()
    producer_of(handler).send("t", "a")
    gc.collect()
    assert handler.batches == [["a"]]


def test_closed_producer_takes_no_messages():
    producer = producer_of(Recorder())
    producer.close()
    producer.close()
    with pytest.raises(ProducerClosed):
        producer.send("t", 1)


def test_waiting_sender_is_told_that_the_producer_was_closed():
    queue = MessageQueue(1)
    assert queue.put(KeyedMessage("t", 1), 0)
    ended: list[BaseException] = []

    def send() -> None:
        try:
            queue.put(KeyedMessage("t", 2), None)
        except ProducerClosed as error:
            ended.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    queue.close()
    thread.join(30)

    assert len(ended) == 1
    assert [one.message for one in queue.take(5, 0) or ()] == [1]
    assert queue.take(5, 0) is None


class Stages(CallbackHandler):
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def init(self, config):
        self.calls.append(("init", config["client.id"]))

    def before_enqueue(self, item):
        return KeyedMessage(item.topic, item.message.upper())

    def after_enqueue(self, item, added):
        self.calls.append(("after", item.message, added))

    def after_dequeuing_existing_data(self, item):
        if item.message == "RAISE":
            raise RuntimeError("no")
        return [] if item.message == "SKIP" else [item, item]

    def before_sending_data(self, items):
        return [*items, KeyedMessage("t", f"{len(items)} before")]

    def last_batch_before_close(self):
        return [KeyedMessage("t", "last")]

    def close(self):
        self.calls.append("close")


def test_callbacks_are_called_at_each_stage_and_may_change_what_is_sent(caplog):
    handler, stages = Recorder(), Stages()
    with producer_of(handler, stages, batch_num_messages=4, client_id="me") as producer:
        for message in ("a", "skip", "b", "raise", "c"):
            producer.send("t", message)

    assert handler.batches == [
        ["A", "A", "B", "B", "4 before"],
        ["RAISE", "C", "C", "last", "4 before"],
    ]
    assert stages.calls[0] == ("init", "me")
    assert stages.calls[1:-1] == [
        ("after", message, True) for message in ("A", "SKIP", "B", "RAISE", "C")
    ]
    assert stages.calls[-1] == "close"
    assert "after_dequeuing_existing_data failed" in caplog.text


def test_callback_is_told_of_a_message_that_was_dropped():
    handler, stages = Recorder(), Stages()
    handler.gate.clear()
    settings = {"batch_num_messages": 1, "queue_buffering_max_messages": 1}
    with producer_of(handler, stages, **settings, queue_enqueue_timeout_ms=0) as producer:
        try:
            producer.send("t", "held")
            wait_until(lambda: not len(producer._queue), 30, "the first is taken")
            producer.send("t", "a")
            with pytest.raises(QueueFull):
                producer.send("t", "b")
        finally:
            handler.gate.set()
    assert ("after", "B", False) in stages.calls


def test_callback_that_does_nothing_changes_nothing():
    handler = Recorder()
    with producer_of(handler, CallbackHandler()) as producer:
        producer.send("t", "a", partition=2, key="k")
    assert handler.batches == [["a"]]


def test_producer_of_type_async_uses_the_queue():
    handler = Recorder()
    config = ProducerConfig(metadata_broker_list="h:1", producer_type="async")
    with Producer(config, handler) as producer:
        producer.send(KeyedMessage("t", "a"), KeyedMessage("t", "b"))
    assert handler.batches == [["a", "b"]]
    with pytest.raises(ProducerClosed):
        producer.send(KeyedMessage("t", "c"))


def test_message_that_cannot_be_encoded_is_left_out_of_its_batch(caplog):
    dispatched: list[Any] = []
    config = ProducerConfig(metadata_broker_list="h:1", producer_type="async")
    producer = Producer(config)
    producer._queued._dispatcher.dispatch = lambda rows: dispatched.extend(rows)
    producer.send(KeyedMessage("t", "text"), KeyedMessage("t", b"bytes"))
    producer.close()

    assert [one.message.payload for one in dispatched] == [b"bytes"]
    assert "a message for topic t cannot be encoded: lost" in caplog.text
    assert producer.stats.serialization_errors == 1


def test_wrong_settings_are_refused():
    with pytest.raises(SettingRefused, match="did you mean"):
        AsyncProducer({"metadata.broker.list": "h:1", "batch.nm.messages": 1})
