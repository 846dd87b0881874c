"""Arguments and printed figures of perf/saturate.py."""

import pytest

from perf.load_generator import LoadError
from perf.percentiles import bucket_of
from perf.saturate import check_stored, lines, parse_arguments, summarize

pytestmark = pytest.mark.unit


def run_result(codes=None, latencies_ns=(1000, 1000, 2000, 100)):
    counts = [0] * 4000
    for value in latencies_ns:
        counts[bucket_of(value)] += 1
    return {
        "requests": len(latencies_ns),
        "elapsed_ns": 2_000_000_000,
        "codes": codes or {0: len(latencies_ns)},
        "histogram": counts,
        "max_ns": max(latencies_ns, default=0),
        "sum_ns": sum(latencies_ns),
    }


def test_summarize_divides_by_time_and_size():
    figures = summarize(run_result(), request_bytes=1_000_000, records_per_request=10)

    assert (figures["requests_per_s"], figures["records_per_s"], figures["mb_per_s"]) == (2, 20, 2)
    assert figures["p50_us"] == pytest.approx(1.0, rel=0.02)
    assert figures["max_us"] == 2.0
    assert figures["errors"] == 0


def test_summarize_counts_every_code_but_zero_as_error():
    figures = summarize(run_result(codes={0: 1, 3: 2, -1: 1}), 100, 1)

    assert figures["errors"] == 3
    assert figures["error_codes"] == {"3": 2, "-1": 1}


def test_summarize_without_responses_has_no_latency():
    figures = summarize(run_result(latencies_ns=()), 100, 1)

    assert (figures["mean_us"], figures["p99_us"], figures["max_us"]) == (0, 0, 0)


@pytest.mark.parametrize("stored", [99, 101])
def test_check_stored_of_a_lost_or_repeated_record_raises(stored):
    with pytest.raises(LoadError, match=f"100 records were accepted, the log grew by {stored}"):
        check_stored(stored, accepted=100, acks=1)


def test_check_stored_without_responses_proves_nothing():
    check_stored(100, accepted=0, acks=0)


def test_lines_name_errors_and_rates():
    printed = "\n".join(lines(summarize(run_result(codes={0: 3, 7: 1}), 1000, 150)))

    assert "1 errors {'7': 1}" in printed
    assert "2 requests/s, 300 records/s" in printed


def test_arguments_without_any_are_the_sixteen_kib_cell():
    options = parse_arguments([])

    assert (options.sockets, options.records_per_request, options.record_size) == (8, 150, 100)
    assert (options.acks, options.partitions, options.in_flight) == (1, 8, 5)


@pytest.mark.parametrize("bad", [["--sockets", "0"], ["--acks", "2"], ["--api-version", "13"]])
def test_arguments_out_of_range_end_the_program(bad, capsys):
    with pytest.raises(SystemExit):
        parse_arguments(bad)

    assert bad[0] in capsys.readouterr().err
