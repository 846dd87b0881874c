"""What a producer's metrics say of records, batches, requests, connections and waiting."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from support.clients.scripted_produce import CLOSE, QUICK, Scripted, producer

from kbroker.client.aio import AsyncKafkaProducer
from kbroker.client.monitoring.client_metrics import MetricNames, Samples
from kbroker.errors import ErrorCode
from kbroker.testing import wait_until

pytestmark = pytest.mark.unit

HEADER_BYTES = 61
# Of 000 section 6.6, as Java names them.
NAMES = """
waiting-threads buffer-total-bytes buffer-available-bytes bufferpool-wait-ratio
bufferpool-wait-time-total bufferpool-wait-time-ns-total batch-size-avg batch-size-max
compression-rate-avg record-queue-time-avg record-queue-time-max request-latency-avg
request-latency-max record-send-rate records-per-request-avg record-retry-rate record-error-rate
record-size-avg record-size-max requests-in-flight metadata-age connection-close-rate
connection-creation-rate connection-count network-io-rate outgoing-byte-rate request-rate
request-size-avg request-size-max incoming-byte-rate response-rate select-rate io-wait-time-ns-avg
io-wait-ratio io-time-ns-avg io-ratio
"""


class Holding(Scripted):
    """Answers Produce once it is ``released``, and then throttles."""

    def __init__(self, *script: Any) -> None:
        super().__init__(*script)
        self.held = threading.Event()
        self.released = threading.Event()

    def produce(self, request: Any, state: dict[str, Any]) -> Any:
        self.held.set()
        assert self.released.wait(20)
        response = super().produce(request, state)
        if response is not None:
            response.throttle_time_ms = 3
        return response


def test_metrics_are_those_of_java_by_name():
    with Scripted() as broker, producer(broker) as made:
        assert set(NAMES.split()) <= set(made.metrics())


def test_records_batches_and_requests_have_their_sizes():
    with Scripted() as broker, producer(broker, linger_ms=10_000) as made:
        made.send("t", b"v" * 100, key=b"k" * 10, headers=[("h", b"x" * 20)])
        made.send("t", b"v" * 10)
        made.flush(10)
        made.send("t", b"v" * 10)
        made.flush(10)
        found = made.metrics()

    # A record's key, value and headers, with their count and sizes.
    assert found["record-size-max"] == 100 + 10 + 1 + 1 + 1 + 1 + 20
    assert found["record-size-avg"] == pytest.approx((134 + 10 + 10) / 3)
    assert found["records-per-request-avg"] == 1.5
    assert HEADER_BYTES + 144 < found["batch-size-max"] < HEADER_BYTES + 180
    assert HEADER_BYTES + 10 < found["batch-size-avg"] < found["batch-size-max"]
    assert found["batch-size-max"] < found["request-size-max"] < found["batch-size-max"] + 120
    assert found["request-size-avg"] * 2 == found["outgoing-byte-total"]
    assert found["response-total"] == found["request-total"] == 2
    assert found["compression-rate-avg"] == 1.0


def test_compression_rate_is_what_is_left_of_the_records():
    value = b"same again " * 1000
    with Scripted() as broker, producer(broker, compression_type="gzip") as made:
        made.send("t", value).result(10)
        found = made.metrics()
        by_topic = made.metrics_by_topic()["t"]

    kept = found["batch-size-avg"] - HEADER_BYTES
    assert found["compression-rate-avg"] == pytest.approx(kept / len(value), rel=0.01)
    assert by_topic["compression-rate"] == found["compression-rate-avg"] < 0.1


def test_requests_in_flight_times_and_bytes_are_those_of_connections():
    with Holding() as broker, producer(broker) as made:
        sent = made.send("t", b"v")
        assert broker.held.wait(10)
        during = made.metrics()
        broker.released.set()
        sent.result(10)
        after = made.metrics()

    assert (during["requests-in-flight"], after["requests-in-flight"]) == (1, 0)
    assert during["response-total"] == during["incoming-byte-total"] == 0
    assert after["connection-count"] == after["connection-creation-total"] == 1
    assert after["connection-close-total"] == 0
    # A response of one partition: length, numbers, topic, times.
    assert 40 < after["incoming-byte-total"] < 100
    assert after["network-io-total"] == 2
    assert after["produce-throttle-time-max"] == after["produce-throttle-time-avg"] == 3
    assert 0 < after["request-latency-avg"] == after["request-latency-max"]
    assert 0 < after["record-queue-time-avg"] == after["record-queue-time-max"]
    assert after["select-total"] >= 2
    assert 0 < after["io-wait-ratio"] <= 1
    assert 0 < after["io-ratio"] <= 1
    assert 0 <= after["metadata-age"] < 60


def test_lost_connection_is_counted_with_the_one_after_it():
    with Scripted(CLOSE) as broker:
        made = producer(broker)
        made.send("t", b"v").result(10)
        found = made.metrics()
        made.close()

    assert found["connection-creation-total"] == 2
    assert found["connection-close-total"] == found["connection-count"] == 1
    assert made.metrics()["connection-count"] == 0


def test_threads_that_wait_for_memory_are_counted():
    settings = {"buffer_memory": 1500, "batch_size": 1000, "max_block_ms": 20_000}
    with Holding() as broker, producer(broker, **settings) as made:
        sent = [made.send("t", b"x" * 900)]
        assert broker.held.wait(10)
        waiting = threading.Thread(target=lambda: sent.append(made.send("t", b"y" * 900)))
        waiting.start()
        try:
            wait_until(lambda: made.metrics()["waiting-threads"] == 1, 10)
        finally:
            broker.released.set()
            waiting.join()
        for future in sent:
            future.result(10)
        found = made.metrics()

    assert found["waiting-threads"] == 0
    assert found["bufferpool-wait-time-ns-total"] == found["bufferpool-wait-time-total"] > 0
    assert 0 < found["bufferpool-wait-ratio"] <= 1


def test_each_node_and_topic_has_its_own():
    retried, refused = ErrorCode.REQUEST_TIMED_OUT, ErrorCode.INVALID_RECORD
    with Scripted(retried, 0, 0, refused) as broker, producer(broker) as made:
        for _ in range(2):
            made.send("t", b"v").result(10)
        assert made.send("t", b"w").exception(10) is not None
        nodes, topics = made.metrics_by_node(), made.metrics_by_topic()
        found = made.metrics()

    assert list(topics) == ["t"]
    totals = {name: value for name, value in topics["t"].items() if name.endswith("-total")}
    assert totals == {
        "record-send-total": 2,
        "record-error-total": 1,
        "record-retry-total": 1,
        "byte-total": found["batch-size-avg"] * 3,
    }
    assert list(nodes) == [0]
    assert nodes[0]["request-total"] == nodes[0]["response-total"] == 4
    assert nodes[0]["outgoing-byte-total"] == found["outgoing-byte-total"]
    assert nodes[0]["incoming-byte-total"] == found["incoming-byte-total"]
    assert nodes[0]["request-latency-max"] == found["request-latency-max"]


def test_producer_of_asyncio_has_the_same():
    async def body(broker: Scripted) -> None:
        async with AsyncKafkaProducer(bootstrap_servers=broker.bootstrap, **QUICK) as made:
            await made.send_and_wait("t", b"v")
            assert made.metrics()["connection-count"] == 1
            assert made.metrics_by_topic()["t"]["record-send-total"] == 1
            assert made.metrics_by_node()[0]["response-total"] == 1

    with Scripted() as broker:
        asyncio.run(body(broker))


def test_largest_are_forgotten_with_the_sample_in_which_they_were():
    settings = {"metrics.sample.window.ms": 0, "metrics.num.samples": 2}
    largest = {"size": 9}

    def take(taken: bool) -> dict[str, dict[str, int]]:
        found = {"all": dict(largest)}
        if taken:
            largest["size"] = 0
        return found

    samples = Samples(settings, lambda: {"all": {}}, take)  # type: ignore[arg-type]
    names = MetricNames((), (), (("size-max", "size", 1.0),))
    seen = []
    for size in (5, 7, 0, 0):
        largest["size"] = size
        seen.append(samples.lately()["all"].values(names)["size-max"])

    assert seen == [5, 7, 7, 0]
