"""Arguments, the check of arriving records, and figures of perf/latency.py."""

import time

import pytest

from perf.latency import HEADER, lines, parse_arguments, receive_all, summarize

pytestmark = pytest.mark.unit


class Record:
    def __init__(self, number, error=None):
        self._value, self._error = HEADER.pack(number, time.monotonic_ns()) + b"x", error

    def value(self):
        return self._value

    def error(self):
        return self._error


class Arrivals:
    """A consumer that returns these and then nothing."""

    def __init__(self, *records):
        self.records = list(records)

    def poll(self, timeout):
        return self.records.pop(0) if self.records else None


def test_receive_all_skips_the_first_record_and_keeps_order():
    latencies = receive_all(Arrivals(Record(-1), None, Record(0), Record(1)), total=2)

    assert len(latencies) == 2
    assert all(0 <= latency < 1e9 for latency in latencies)


@pytest.mark.parametrize("numbers", [(1,), (0, 0), (0, 2)])
def test_receive_all_of_a_lost_or_repeated_record_raises(numbers):
    with pytest.raises(RuntimeError, match="came where"):
        receive_all(Arrivals(*map(Record, numbers)), total=3)


def test_receive_all_of_a_refused_fetch_raises():
    with pytest.raises(RuntimeError, match="offset out of range"):
        receive_all(Arrivals(Record(0, error="offset out of range")), total=1)


def test_receive_all_without_the_last_record_raises(monkeypatch):
    monkeypatch.setattr("perf.latency.ARRIVAL_TIMEOUT_S", 0.0)

    with pytest.raises(RuntimeError, match="record 1 of 2 never came"):
        receive_all(Arrivals(Record(0)), total=2)


def test_summarize_is_in_milliseconds():
    figures = summarize([ms * 1_000_000 for ms in range(1, 101)], lateness_ns=2_500_000)

    assert (figures["p50_ms"], figures["p99_ms"], figures["max_ms"]) == (51, 100, 100)
    assert figures["sender_late_ms"] == 2.5
    assert "p50 51.000, p99 100.000" in lines(figures)[0]


@pytest.mark.parametrize("bad", [["--record-size", "15"], ["--rate", "0"], ["--acks", "2"]])
def test_arguments_out_of_range_end_the_program(bad, capsys):
    with pytest.raises(SystemExit):
        parse_arguments(bad)

    assert bad[0] in capsys.readouterr().err
