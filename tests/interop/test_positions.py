"""Where consumers start, and how they wait: offsets, times, the end, empty and missing topics."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from interop.conftest import ALL, brokers_of
from support.drivers import AdminDriver, Driver, Message, OffsetDriver, options, payloads

from kbroker.testing import Broker, wait_until

pytestmark = pytest.mark.interop

OFFSETS_OF_MAX_TIMESTAMP = ("confluent-kafka", "java")
FETCHES_WAITED = "kbroker_fetches_waited_total"
METADATA_REQUESTS = "kbroker_requests_total api=Metadata"
START_MS = 1_700_000_000_000


def metric(broker: Broker, wanted: str) -> float:
    """A counter's sum over all processes; ``label=value`` may follow the name."""
    name, _, label = wanted.partition(" ")
    label = label.replace("=", '="')
    lines: list[str] = []
    for one in brokers_of(broker):
        with urllib.request.urlopen(f"{one.metrics_url}/metrics", timeout=30) as response:
            lines += response.read().decode().splitlines()
    found = [line for line in lines if line.startswith(name + "{") and label in line]
    return sum(float(line.rpartition(" ")[2]) for line in found)


@pytest.fixture
def writer(driver_of: Callable[[str], Driver]) -> AdminDriver:
    """Fills topics."""
    return driver_of("confluent-kafka")  # type: ignore[return-value]


@pytest.mark.parametrize("driver", ALL, indirect=True)
def test_fetch_from_an_offset_starts_there(driver: Driver, writer: AdminDriver, made: str) -> None:
    """Also in the middle of a compressed batch, whose first records the client skips."""
    writer.produce(made, payloads(1000), codec="lz4")
    for start in (1, 499, 999):
        records = driver.fetch(made, 1000 - start, start=start)
        assert [record.offset for record in records] == list(range(start, 1000))


@pytest.mark.parametrize("driver", ALL, indirect=True)
def test_fetch_from_the_end_sees_only_what_comes_later(
    driver: Driver, writer: AdminDriver, made: str
) -> None:
    writer.produce(made, payloads(10))
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(driver.fetch, made, 1, start="end")
        ended = threading.Event()
        reading.add_done_callback(lambda _: ended.set())
        while not ended.wait(0.2):  # nobody knows when the consumer has found the end
            writer.produce(made, [Message(b"later")])
        (record,) = reading.result()
    assert record.value == b"later" and record.offset >= 10


@pytest.mark.parametrize("driver", ALL, indirect=True)
def test_consumer_of_an_empty_topic_waits_and_is_woken(
    broker: Broker, driver: Driver, writer: AdminDriver, made: str
) -> None:
    """The fetch may wait 15 seconds; the record must end that wait, not its timeout."""
    waited = metric(broker, FETCHES_WAITED)
    patient = options(driver, fetch_max_wait_ms=15_000)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(driver.fetch, made, 1, start=0, **patient)
        wait_until(lambda: metric(broker, FETCHES_WAITED) > waited, what="the fetch waits")
        assert not reading.done()
        began = time.monotonic()
        writer.produce(made, [Message(b"first")])
        (record,) = reading.result()
        assert time.monotonic() - began < 12
    assert (record.offset, record.value) == (0, b"first")


@pytest.mark.parametrize("driver", ALL, indirect=True)
def test_fetch_of_an_empty_topic_returns_nothing(driver: Driver, made: str) -> None:
    assert driver.fetch(made, 1, start=0, timeout_s=0.7) == []


@pytest.mark.parametrize("driver", ALL, indirect=True)
def test_offsets_by_time_and_at_both_ends(
    driver: OffsetDriver, writer: AdminDriver, made: str
) -> None:
    """A time before all, between two records, of one, of one inside a batch, and after all."""
    for batch in range(3):
        first = START_MS + 10_000 * batch
        messages = [Message(b"v", timestamp_ms=first + 1000 * n) for n in range(5)]
        writer.produce(made, messages)
    assert driver.offset(made, "earliest") == 0
    assert driver.offset(made, "latest") == 15
    assert driver.offset(made, START_MS - 1) == 0
    assert driver.offset(made, START_MS + 10_000) == 5
    assert driver.offset(made, START_MS + 11_500) == 7
    assert driver.offset(made, START_MS + 5_000) == 5
    assert driver.offset(made, START_MS + 24_000) == 14
    # librdkafka returns -1, Java and the Python clients nothing: both mean the end.
    assert driver.offset(made, START_MS + 90_000) in (-1, 15)
    if driver.name.split()[0] in OFFSETS_OF_MAX_TIMESTAMP:
        assert driver.offset(made, "max_timestamp") == 14


@pytest.mark.parametrize("driver", ALL, indirect=True)
def test_offset_out_of_range_resets_to_the_earliest(
    driver: Driver, writer: AdminDriver, made: str
) -> None:
    writer.produce(made, payloads(5))
    reset = options(driver, auto_offset_reset="earliest")
    records = driver.fetch(made, 5, start=10_000, **reset)
    assert [record.offset for record in records] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("driver", ALL, indirect=True)
def test_read_committed_sees_plain_records(driver: Driver, writer: AdminDriver, made: str) -> None:
    writer.produce(made, payloads(100), idempotent=True)
    assert len(driver.fetch(made, 100, committed=True)) == 100


@pytest.mark.parametrize("driver", ALL, indirect=True)
def test_small_partition_limit_still_reads_all(
    driver: Driver, writer: AdminDriver, made: str
) -> None:
    """Each fetch gets one batch, the next starts after it."""
    messages = payloads(60, 1000)
    for at in range(0, 60, 20):
        writer.produce(made, messages[at : at + 20])
    small = options(driver, max_partition_fetch_bytes=1000)
    assert [record.value for record in driver.fetch(made, 60, **small)] == [
        message.value for message in messages
    ]


@pytest.mark.parametrize("driver", ALL, indirect=True)
def test_many_partitions_in_one_consumer_are_read_completely(
    broker: Broker, driver: Driver, writer: AdminDriver, topic: str
) -> None:
    """Incremental sessions: partitions are exhausted one after the other, and get new records
    later.
    """
    writer.create_topic(topic, 12)
    wait_until(lambda: writer.partitions(topic) == 12)
    total = 0
    for partition in range(12):
        if partition % 4 != 3:  # some stay empty
            writer.produce(topic, payloads(50 * (partition + 1)), partition=partition)
            total += 50 * (partition + 1)
    waited = metric(broker, FETCHES_WAITED)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(driver.fetch, topic, total + 30, partition=range(12))
        wait_until(lambda: metric(broker, FETCHES_WAITED) > waited, what="all are read")
        for partition in (3, 7, 0):
            writer.produce(topic, payloads(10), partition=partition)
        records = reading.result()
    offsets = defaultdict(list)
    for record in records:
        offsets[record.partition].append(record.offset)
    expected = {n: list(range(50 * (n + 1))) for n in range(12) if n % 4 != 3}
    expected[0] = list(range(60))
    expected[3] = expected[7] = list(range(10))
    assert offsets == expected


@pytest.mark.parametrize("driver", ALL, indirect=True)
def test_produce_to_an_unknown_topic_creates_it(driver: Driver, topic: str) -> None:
    messages = payloads(20)
    driver.produce(topic, messages)
    assert [record.value for record in driver.fetch(topic, 20)] == [
        message.value for message in messages
    ]


@pytest.mark.parametrize("driver", ALL, indirect=True)
def test_consumer_of_a_topic_that_is_created_later_finds_it(
    broker: Broker, driver: Driver, writer: AdminDriver, topic: str
) -> None:
    """Whether the client's metadata request creates it or not, it must be read in the end."""
    soon = options(driver, metadata_max_age_ms=500)
    if driver.name == "kcat":  # it ends when it starts with a topic that is unknown
        writer.create_topic(topic, 1)
        wait_until(lambda: writer.partitions(topic) == 1)
    asked = metric(broker, METADATA_REQUESTS)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(driver.fetch, topic, 1, start=0, **soon)
        wait_until(lambda: metric(broker, METADATA_REQUESTS) > asked, what="metadata is asked for")
        writer.produce(topic, [Message(b"first")])
        assert [record.value for record in reading.result()] == [b"first"]
