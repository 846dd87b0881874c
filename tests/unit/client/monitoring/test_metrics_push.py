"""What clients push of their metrics to brokers that ask for them (KIP-714)."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Generator
from typing import Any

import pytest
from support.brokers.fake_broker import FakeBroker

from kbroker.client import KafkaConsumer, KafkaProducer
from kbroker.client.aio import AsyncKafkaConsumer, AsyncKafkaProducer
from kbroker.client.errors import SettingRefused
from kbroker.client.monitoring.client_metrics import MetricGroup
from kbroker.client.monitoring.push_content import POINTS_MAX, PushContent, telemetry_name
from kbroker.client.monitoring.push_state import NO_ID, MetricSubscription, PushState
from kbroker.errors import ErrorCode
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsResponse,
)
from kbroker.protocol.messages.push_telemetry import PushTelemetryResponse
from kbroker.protocol.otlp import Pushed, read_metrics
from kbroker.record.compression import decompress
from kbroker.testing import wait_until
from kbroker.uuids import uuid_text

pytestmark = pytest.mark.unit

ID = bytes(range(16))
CUMULATIVE = MetricSubscription(1, 0, 1 << 20, False, ("",))
DELTA = MetricSubscription(1, 0, 1 << 20, True, ("",))
KEYS = [key for key in ApiKey if key < 40]
ASKING = {int(key): key.versions for key in [*KEYS, ApiKey(71), ApiKey(72)]}


def read(data: bytes) -> Pushed:
    steps: Generator[None, None, Any] = read_metrics(data)
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            found: Pushed = stop.value
            return found


class Asking(FakeBroker):
    """A broker that asks for metrics. errors: of pushes, in their order, then none."""

    def __init__(self, *errors: int, announces: bool = True, **answer: Any) -> None:
        super().__init__(
            {
                ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: self.subscriptions,
                ApiKey.PUSH_TELEMETRY: self.push,
            },
            versions=ASKING if announces else None,
        )
        self.errors = deque(errors)
        self.asked: list[Any] = []
        self.pushes: list[Any] = []
        self.answer: dict[str, Any] = {
            "client_instance_id": ID,
            "subscription_id": 7,
            "accepted_compression_types": [4, 1],
            "push_interval_ms": 100,
            "telemetry_max_bytes": 1 << 20,
            "delta_temporality": False,
            "requested_metrics": [""],
            **answer,
        }

    def subscriptions(self, request: Any, state: Any) -> Any:
        self.asked.append(request)
        return GetTelemetrySubscriptionsResponse(**self.answer)

    def push(self, request: Any, state: Any) -> Any:
        self.pushes.append(request)
        code = self.errors.popleft() if self.errors else 0
        return None if code < 0 else PushTelemetryResponse(error_code=code)

    def pushed(self, at: int = -1) -> Pushed:
        request = self.pushes[at]
        return read(decompress(request.compression_type, bytes(request.metrics), 1 << 20))


def push_threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name.startswith("kafka-metrics-")]


def consumer(broker: FakeBroker, **settings: Any) -> KafkaConsumer:
    made = KafkaConsumer(bootstrap_servers=broker.bootstrap, **settings)
    made.list_topics(10)  # which connects
    return made


# -- the state


def state(**told: Any) -> PushState:
    made = PushState(0.0, lambda low, high: high)
    given: dict[str, Any] = {
        "instance_id": ID, "number": 7, "interval_ms": 10_000, "prefixes": ["a."],
        "codecs": [9, 4, 1], "bytes_max": 100, "is_delta": True, "now": 0.0, **told,
    }  # fmt: skip
    made.subscribed(**given)
    return made


def test_first_push_comes_between_half_and_one_and_a_half_intervals() -> None:
    made = state()

    assert made.due_at == 15.0
    assert made.instance_id == ID
    assert made.subscription == MetricSubscription(7, 4, 100, True, ("a.",))
    made.pushed(15.0)
    assert made.due_at == 25.0


def test_nothing_asked_for_is_asked_again_after_the_interval() -> None:
    made = state(prefixes=[])

    assert made.subscription is None
    assert made.due_at == 10.0
    assert not made.is_over


@pytest.mark.parametrize("prefixes", [[""], ["*"], ["a", ""]])
def test_all_metrics_have_one_prefix(prefixes: list[str]) -> None:
    found = state(prefixes=prefixes).subscription

    assert found is not None
    assert found.prefixes == ("",)


@pytest.mark.parametrize("interval_ms", [0, -5, 1])
def test_interval_that_is_none_does_not_become_a_loop(interval_ms: int) -> None:
    made = state(interval_ms=interval_ms, prefixes=[])

    assert made.due_at >= 0.1


def test_unknown_subscription_is_asked_for_at_once_and_then_with_pauses() -> None:
    made = state()
    dues = []
    for _ in range(5):
        made.rejected(ErrorCode.UNKNOWN_SUBSCRIPTION_ID, 0.0)
        dues.append(made.due_at)

    assert made.subscription is None
    assert dues == [0.0, 1.0, 2.0, 4.0, 8.0]


def test_codec_that_was_refused_is_not_used_again() -> None:
    made = state()
    made.rejected(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, 0.0)
    made.subscribed(ID, 7, 1000, [""], [4, 1], 100, True, 0.0)

    assert made.subscription is not None
    assert made.subscription.codec == 1


def test_push_that_was_too_large_is_followed_by_a_smaller_one() -> None:
    made = state()
    made.rejected(ErrorCode.TELEMETRY_TOO_LARGE, 20.0)

    assert (made.is_slim, made.due_at, made.is_over) == (True, 30.0, False)


@pytest.mark.parametrize(
    "code",
    [ErrorCode.INVALID_RECORD, ErrorCode.INVALID_REQUEST, ErrorCode.UNSUPPORTED_VERSION],
)
def test_rejected_for_good_is_the_end(code: ErrorCode) -> None:
    made = state()
    made.rejected(code, 0.0)

    assert made.is_over


def test_lost_answers_have_growing_pauses_and_the_interval_ends_them() -> None:
    made = state()
    dues = []
    for _ in range(12):
        made.lost(0.0)
        dues.append(made.due_at)

    assert dues[:3] == [1.5, 3.0, 6.0]
    assert dues[-1] == 300.0


def test_throttled_client_waits() -> None:
    made = state()
    made.throttled(60, 0.0)

    assert made.due_at == 60.0


# -- the content


def groups(total: float = 5.0, topics: int = 1) -> list[MetricGroup]:
    return [
        MetricGroup("producer-metrics", (), {"record-send-total": total, "record-send-rate": 1.5}),
        *(
            MetricGroup("producer-topic-metrics", (("topic", f"t{n}"),), {"byte-total": total})
            for n in range(topics)
        ),
    ]


def test_names_are_those_of_java() -> None:
    found = [
        telemetry_name("producer-metrics", "record-queue-time-avg"),
        telemetry_name("producer-node-metrics", "request-latency-avg"),
        telemetry_name("consumer-fetch-manager-metrics", "fetch-latency-avg"),
        telemetry_name("consumer-coordinator-metrics", "assigned-partitions"),
    ]

    assert found == [
        "org.apache.kafka.producer.record.queue.time.avg",
        "org.apache.kafka.producer.node.request.latency.avg",
        "org.apache.kafka.consumer.fetch.manager.fetch.latency.avg",
        "org.apache.kafka.consumer.coordinator.assigned.partitions",
    ]


def test_totals_are_sums_and_the_rest_gauges_with_tags_as_attributes() -> None:
    content = PushContent({"group_id": "g"})
    points = content.points(groups(), CUMULATIVE)

    found = read(content.encoded(points, CUMULATIVE))

    assert found.resource == {"group_id": "g"}
    assert [(p.name, p.attributes, p.value, p.is_counter, p.is_delta) for p in found.points] == [
        ("org.apache.kafka.producer.record.send.total", (), 5.0, True, False),
        ("org.apache.kafka.producer.record.send.rate", (), 1.5, False, False),
        ("org.apache.kafka.producer.topic.byte.total", (("topic", "t0"),), 5.0, True, False),
    ]


def test_only_what_is_asked_for_is_pushed() -> None:
    wanted = CUMULATIVE._replace(prefixes=("org.apache.kafka.producer.record.send.r",))
    points = PushContent({}).points(groups(), wanted)

    assert [point.key[0] for point in points] == ["org.apache.kafka.producer.record.send.rate"]


def test_delta_is_what_was_added_since_a_broker_took_the_last_one() -> None:
    content = PushContent({})
    deltas = []
    for total, is_taken in ((5.0, True), (8.0, False), (10.0, True), (10.0, True)):
        points = content.points(groups(total), DELTA)
        found = read(content.encoded(points, DELTA)).points[0]
        assert found.is_delta
        deltas.append(found.value)
        if is_taken:
            content.taken(points)

    assert deltas == [5.0, 3.0, 5.0, 0.0]


def test_many_topics_leave_room_for_what_has_no_tags() -> None:
    content = PushContent({})
    points = content.points(reversed(groups(topics=2 * POINTS_MAX)), CUMULATIVE)

    assert len(points) == POINTS_MAX
    assert [bool(point.key[1]) for point in points[:3]] == [False, False, True]
    small = CUMULATIVE._replace(bytes_max=400)
    assert len(read(content.encoded(points, small)).points) == 2
    assert content.encoded(points, small._replace(bytes_max=10)) == b""


def test_too_large_before_means_without_tags() -> None:
    points = PushContent({}).points(groups(), CUMULATIVE, is_slim=True)

    assert [point.key[1] for point in points] == [(), ()]


def test_value_that_is_no_number_and_text_that_is_no_unicode() -> None:
    content = PushContent({"group_id": "\ud800"})
    odd = [MetricGroup("g-metrics", (("topic", "\udfff"),), {"a": float("nan"), "b": 1.0})]
    points = content.points(odd, CUMULATIVE)

    assert [p.value for p in read(content.encoded(points, CUMULATIVE)).points] == [1.0]


# -- clients


def test_consumer_pushes_and_says_its_last_when_it_closes() -> None:
    with Asking() as broker:
        made = consumer(broker, group_id="billing")
        wait_until(lambda: len(broker.pushes) >= 2)
        made.close()

        assert broker.asked[0].client_instance_id == NO_ID
        first, last = broker.pushes[0], broker.pushes[-1]
        assert (first.subscription_id, first.terminating, first.compression_type) == (7, False, 4)
        assert (last.terminating, last.client_instance_id) == (True, ID)
        assert [one.terminating for one in broker.pushes].count(True) == 1
        found = broker.pushed()
        assert found.resource == {"group_id": "billing"}
        names = {point.name for point in found.points}
        assert "org.apache.kafka.consumer.fetch.manager.records.consumed.total" in names
        assert "org.apache.kafka.consumer.coordinator.assigned.partitions" in names
    assert not push_threads()


def test_producer_pushes_under_its_transactional_id() -> None:
    with Asking() as broker:
        made = KafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id="tx")
        assert made.client_instance_id(10) == uuid_text(ID)
        wait_until(lambda: bool(broker.pushes))
        made.close(5)

        assert broker.pushed().resource == {"transactional_id": "tx"}
        assert broker.pushes[-1].terminating


def test_broker_that_asks_for_nothing_costs_no_thread_and_no_connection() -> None:
    with Asking(announces=False) as broker:
        made = consumer(broker)
        connections = broker.connections
        assert made.client_instance_id(5) is None
        assert not push_threads()
        # The question above looked for brokers, at once and not again.
        assert broker.connections <= connections + 1
        made.close()
        assert not broker.asked
        assert not broker.pushes


def test_client_works_where_there_is_no_thread_for_the_push(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name.startswith("kafka-metrics-"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    with Asking() as broker, consumer(broker) as made:
        made.list_topics(10)
        assert "are not pushed: can't start new thread" in caplog.text


def test_client_that_must_not_push_does_not() -> None:
    with Asking() as broker, consumer(broker, enable_metrics_push=False) as made:
        with pytest.raises(SettingRefused, match=r"enable\.metrics\.push"):
            made.client_instance_id(1)
        assert not push_threads()
        assert not broker.asked


def test_changed_subscription_is_asked_for_again_under_the_same_id() -> None:
    with Asking(ErrorCode.UNKNOWN_SUBSCRIPTION_ID) as broker, consumer(broker):
        wait_until(lambda: len(broker.pushes) >= 2)

        assert [one.client_instance_id for one in broker.asked] == [NO_ID, ID]


def test_invalid_record_ends_it_and_the_client_goes_on() -> None:
    with Asking(ErrorCode.INVALID_RECORD) as broker, consumer(broker) as made:
        wait_until(lambda: bool(broker.pushes))
        wait_until(lambda: not push_threads())
        made.list_topics(10)

        assert len(broker.pushes) == 1
    assert len(broker.pushes) == 1


def test_lost_push_is_repeated_on_a_new_connection() -> None:
    with Asking(-1, delta_temporality=True) as broker, consumer(broker):
        wait_until(lambda: len(broker.pushes) >= 2)

        assert len(broker.asked) == 2


def test_silent_broker_delays_the_end_of_no_client() -> None:
    silent = threading.Event()
    with Asking() as broker:
        broker.answers[ApiKey.PUSH_TELEMETRY] = lambda request, state: silent.wait(30) and None
        made = consumer(broker)
        wait_until(lambda: any(r for r in broker.requests if hasattr(r, "terminating")))
        began = time.monotonic()
        made.close(0.2)
        assert time.monotonic() - began < 5
        wait_until(lambda: not push_threads())
        silent.set()


def test_broker_that_announces_it_no_more_is_not_asked() -> None:
    with Asking(-1) as broker, consumer(broker):
        wait_until(lambda: bool(broker.asked))
        broker.versions = {int(key): key.versions for key in KEYS}
        wait_until(lambda: not push_threads())

        assert len(broker.asked) == 1


def test_clients_of_asyncio_have_ids_too() -> None:
    async def ids(broker: FakeBroker) -> list[str | None]:
        settings = {"bootstrap_servers": broker.bootstrap}
        plain = {"enable_idempotence": False, **settings}
        async with AsyncKafkaProducer(**plain) as one, AsyncKafkaConsumer(**settings) as other:
            return [await one.client_instance_id(10), await other.client_instance_id(10)]

    with Asking() as broker:
        assert asyncio.run(ids(broker)) == [uuid_text(ID)] * 2
    assert not push_threads()


def test_forked_child_has_no_connection_of_the_push() -> None:
    with Asking() as broker, consumer(broker) as made:
        wait_until(lambda: bool(broker.pushes))
        push = made._monitoring._push
        assert push is not None
        connection = push._connection
        assert connection is not None
        child = os.fork()
        if not child:
            os._exit(0 if connection.closed else 1)
        assert os.waitpid(child, 0)[1] == 0
        pushes = len(broker.pushes)
        wait_until(lambda: len(broker.pushes) > pushes)
