"""Arguments and output lines of perf/consumer_perf.py."""

import pytest

from perf.consumer_perf import DETAILED_HEADER, HEADER, columns, parse_arguments, total_line

pytestmark = pytest.mark.unit

BASE = ["--bootstrap-server", "b:1", "--topic", "t", "--messages", "10"]
MIB = 1 << 20


def test_headers_have_as_many_columns_as_the_lines():
    line = columns((MIB, 1), (MIB, 1), 1.0, 0)

    assert len(HEADER.split(", ")) == len(DETAILED_HEADER.split(", ")) == 2 + len(line.split(", "))
    assert DETAILED_HEADER.startswith("time, threadId, data.consumed.in.MB")


def test_columns_take_rebalance_time_off_the_fetch_time():
    line = columns((100 * MIB, 1000), (10 * MIB, 500), seconds=2.0, rebalance_ms=1000)

    assert line == "100.0000, 5.0000, 1000, 250.0000, 1000, 1000, 10.0000, 500.0000"


def test_columns_of_a_run_that_only_rebalanced_do_not_divide_by_zero():
    assert columns((0, 0), (0, 0), seconds=1.0, rebalance_ms=1000).endswith("0.0000, 0.0000")


def test_total_line_begins_with_times_to_the_millisecond():
    figures = {"start_time": 0.0, "end_time": 1.5, "seconds": 1.5, "rebalance_ms": 0}

    start, end, *rest = total_line({**figures, "bytes": 3 * MIB, "records": 30}).split(", ")

    assert (len(start), start[-4:], end[-4:]) == (23, ":000", ":500")
    assert rest == ["3.0000", "2.0000", "30", "20.0000", "0", "1500", "2.0000", "20.0000"]


def test_arguments_without_group_keep_a_group_id_nobody_joins():
    options = parse_arguments(BASE)

    assert options.group is None
    assert options.settings["enable.auto.commit"] == "false"
    assert options.settings["max.partition.fetch.bytes"] == str(MIB)


def test_arguments_from_file_win_over_defaults(tmp_path):
    file = tmp_path / "consumer.properties"
    file.write_text("fetch.max.wait.ms=7\nqueued.min.messages=5\n")

    settings = parse_arguments([*BASE, "--consumer.config", str(file)]).settings

    assert (settings["fetch.wait.max.ms"], settings["queued.min.messages"]) == ("7", "5")


@pytest.mark.parametrize(
    "bad", [["--messages", "0"], ["--group", "g", "--no-group"], ["--consumer.config", "/nowhere"]]
)
def test_arguments_that_cannot_work_end_the_program(bad, capsys):
    with pytest.raises(SystemExit):
        parse_arguments([*BASE, *bad])

    assert "error: " in capsys.readouterr().err
