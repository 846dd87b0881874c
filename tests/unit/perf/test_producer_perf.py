"""Arguments, payloads and output lines of perf/producer_perf.py."""

import re

import pytest

from perf.producer_perf import load_values, parse_arguments, total_line, window_line

pytestmark = pytest.mark.unit

BASE = ["--topic", "t", "--num-records", "10", "--throughput", "-1"]
SERVERS = ["--producer-props", "bootstrap.servers=b:1"]


def test_window_line_is_kafkas():
    line = window_line(count=1000, seconds=2.0, size=1 << 20, sum_ms=2500.0, max_ms=7.25)

    assert line == (
        "1000 records sent, 500.0 records/sec (500.00 MB/sec), 2.5 ms avg latency,"
        " 7.2 ms max latency."
    )


def test_window_line_without_records_has_no_latency():
    assert "0.0 ms avg latency" in window_line(0, 5.0, 100, 0, 0)


def test_total_line_is_kafkas():
    figures = {
        "records": 50000,
        "records_per_s": 7067.137809,
        "mebibytes_per_s": 6.74,
        "mean_ms": 3.456,
        "max_ms": 200.0,
        "p50_ms": 2.4,
        "p95_ms": 4.6,
        "p99_ms": 9.0,
        "p999_ms": 20.0,
    }

    assert total_line(figures) == (
        "50000 records sent, 7067.137809 records/sec (6.74 MB/sec), 3.46 ms avg latency,"
        " 200.00 ms max latency, 2 ms 50th, 5 ms 95th, 9 ms 99th, 20 ms 99.9th."
    )


def test_arguments_from_file_and_line_are_merged_the_line_wins(tmp_path):
    file = tmp_path / "producer.properties"
    file.write_text("acks=all\nbootstrap.servers=file:1\n")

    options = parse_arguments(
        [*BASE, "--record-size", "100", *SERVERS, "linger.ms=7", "--producer.config", str(file)]
    )

    assert options.settings["acks"] == "all"
    assert options.settings["bootstrap.servers"] == "b:1"
    assert options.settings["linger.ms"] == "7"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([*BASE, "--record-size", "100"], "bootstrap.servers"),
        ([*BASE, *SERVERS], "required"),
        ([*BASE, "--record-size", "0", *SERVERS], "at least 1"),
        ([*BASE, "--record-size", "1", "--producer-props", "acks"], "not key=value"),
        ([*BASE, "--record-size", "1", "--producer.config", "/nowhere"], "nowhere"),
    ],
)
def test_arguments_that_cannot_work_end_the_program(arguments, complaint, capsys):
    with pytest.raises(SystemExit):
        parse_arguments(arguments)

    assert re.search(complaint, capsys.readouterr().err)


def test_load_values_by_size_makes_no_more_than_are_sent():
    values = load_values(parse_arguments([*BASE, "--record-size", "33", *SERVERS]))

    assert len(values) == 10
    assert {len(value) for value in values} == {33}


@pytest.mark.parametrize(("delimiter", "content"), [("\\n", b"a\nbc\n"), (";", b";a;bc;")])
def test_load_values_from_file_splits_and_drops_empty_ones(tmp_path, delimiter, content):
    file = tmp_path / "payload"
    file.write_bytes(content)

    options = parse_arguments(
        [*BASE, "--payload-file", str(file), "--payload-delimiter", delimiter, *SERVERS]
    )

    assert load_values(options) == [b"a", b"bc"]


def test_load_values_from_an_empty_file_is_refused(tmp_path):
    file = tmp_path / "payload"
    file.write_bytes(b"\n\n")

    with pytest.raises(ValueError, match="holds no value"):
        load_values(parse_arguments([*BASE, "--payload-file", str(file), *SERVERS]))
