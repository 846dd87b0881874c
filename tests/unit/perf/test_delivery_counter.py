"""Counting librdkafka's delivery reports, with fake reports."""

import ctypes

import pytest

from perf.librdkafka import Message
from perf.load_generator import DeliveryCounter
from perf.percentiles import bucket_of

pytestmark = pytest.mark.unit


@ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.POINTER(Message))
def latency_of(message):
    """Fake reports have their latency in microseconds as the offset."""
    return message.contents.offset


@pytest.fixture
def counter():
    return DeliveryCounter(ctypes.cast(latency_of, ctypes.c_void_p).value)


def count(counter, *reports):
    messages = [Message(err=error, offset=latency_us) for error, latency_us in reports]
    pointers = (ctypes.c_void_p * len(messages))(*map(ctypes.addressof, messages))
    counter.count(ctypes.addressof(pointers), len(messages))


def test_count_of_delivered_records_keeps_their_latencies(counter):
    count(counter, (0, 5), (0, 2000), (0, 5))

    delivered, failed, _, sum_us, max_us, histogram = counter.totals()

    assert (delivered, failed, sum_us, max_us) == (3, 0, 2010, 2000)
    assert histogram[bucket_of(5000)] == 2
    assert sum(histogram) == 3


def test_count_of_failed_records_has_no_latency_and_keeps_the_last_error(counter):
    count(counter, (0, 5), (-195, 9), (10, 9))

    delivered, failed, last_error, sum_us, _, histogram = counter.totals()

    assert (delivered, failed, last_error, sum_us, sum(histogram)) == (1, 2, 10, 5, 1)


def test_take_window_begins_again_and_leaves_the_totals(counter):
    count(counter, (0, 5), (0, 7))

    assert counter.take_window() == (2, 12, 7)
    assert counter.take_window() == (0, 0, 0)
    assert counter.totals()[0] == 2


def test_counter_without_a_latency_function_is_refused():
    with pytest.raises(ValueError, match="no address"):
        DeliveryCounter(0)
