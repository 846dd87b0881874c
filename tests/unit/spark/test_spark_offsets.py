"""Starts, ends, limits, lost data and stored first offsets, over a log that consists of two
numbers.
"""

import json

import pytest
from support.spark.fake_logs import FakeLogs as Logs

from kbroker.spark import first_offsets as f
from kbroker.spark import offsets as o
from kbroker.spark.options.option_values import OptionError
from kbroker.spark.options.options import parse_read

pytestmark = pytest.mark.unit


def read(streaming=False, **given):
    base = {"kafka.bootstrap.servers": "a:1"}
    if not {"assign", "subscribePattern"} & set(given):
        base["subscribe"] = "t"
    return parse_read({**base, **given}, streaming=streaming)


def ranges(logs, **given):
    return [(r.partition, r.start, r.end) for r in o.batch_ranges(logs, read(**given))]


def test_batch_reads_all_there_is_by_default():
    assert ranges(Logs(t=[(0, 5), (3, 3), (2, 9)])) == [(0, 0, 5), (1, 3, 3), (2, 2, 9)]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"startingOffsets": '{"t":{"0":3,"1":-2}}'}, [(0, 3, 10), (1, 5, 20)]),
        ({"endingOffsets": '{"t":{"0":3,"1":-1}}'}, [(0, 0, 3), (1, 5, 20)]),
        ({"startingTimestamp": "61"}, [(0, 7, 10), (1, 7, 20)]),
        ({"endingTimestamp": "150"}, [(0, 0, 10), (1, 5, 15)]),
        ({"startingOffsetsByTimestamp": '{"t":{"0":95,"1":0}}',
          "startingOffsetsByTimestampStrategy": "latest"}, [(0, 10, 10), (1, 5, 20)]),
        ({"startingTimestamp": "150", "startingOffsetsByTimestampStrategy": "latest"},
         [(0, 10, 10), (1, 15, 20)]),
        ({"assign": '{"t":[1,7]}'}, [(1, 5, 20)]),
    ],
)  # fmt: skip
def test_batch_limits_resolve(given, expected):
    assert ranges(Logs(t=[(0, 10), (5, 20)]), **given) == expected


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"startingTimestamp": "150"}, "t-0 has no record at or after 150 ms"),
        ({"startingOffsets": '{"t":{"0":3}}'}, "missing t-1"),
        ({"startingOffsets": '{"t":{"0":3,"1":3,"2":3}}'}, "not read t-2"),
        ({"startingOffsets": '{"t":{"0":11,"1":5}}'}, "t-0 would be read from 11 to 10"),
        ({"startingTimestamp": "80", "endingTimestamp": "20"}, "t-0 would be read from 8 to 2"),
    ],
)
def test_batch_limits_that_do_not_fit_are_refused(given, says):
    with pytest.raises(OptionError, match=says):
        ranges(Logs(t=[(0, 10), (5, 20)]), **given)


def test_batch_of_a_missing_topic_is_refused_by_name():
    with pytest.raises(OptionError, match="there is no topic t:"):
        ranges(Logs(u=[(0, 1)]))
    with pytest.raises(OptionError, match="there is no topic x:"):
        ranges(Logs(u=[(0, 1)]), assign='{"x":[0]}')


def test_assigned_partition_that_does_not_exist_is_told(caplog):
    """Spark's connector leaves it out as well, silently."""
    logs = Logs(t=[(0, 10), (5, 20)])

    assert ranges(logs, assign='{"t":[7,1,9]}') == [(1, 5, 20)]

    assert caplog.messages == ["assign contains t-7, t-9, which does not exist and is skipped"]


def test_pattern_is_found_anywhere_in_a_name_as_by_the_connector():
    logs = Logs(ta=[(0, 1)], tab=[(0, 1)], xta=[(0, 1)])

    found = o.batch_ranges(logs, read(subscribePattern="ta"))

    assert [r.topic for r in found] == ["ta", "tab", "xta"]
    assert [r.topic for r in o.batch_ranges(logs, read(subscribePattern="^ta$"))] == ["ta"]
    assert o.batch_ranges(logs, read(subscribePattern="z.*")) == []


def test_committed_offsets_are_a_start_and_others_begin_at_earliest():
    logs = Logs(t=[(0, 10), (5, 20)])
    logs.commit("g", {("t", 0): 4})

    got = ranges(logs, startingOffsets="committed", groupId="g")

    assert got == [(0, 4, 10), (1, 5, 20)]


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ({"startingOffsets": '{"t":{"0":2}}'}, (5, 20)),
        ({"endingOffsets": '{"t":{"0":25}}'}, (5, 20)),
        ({"startingOffsets": '{"t":{"0":1}}', "endingOffsets": '{"t":{"0":4}}'}, (5, 5)),
    ],
)
def test_batch_offsets_outside_the_log_are_lost_or_skipped(given, left, caplog):
    logs = Logs(t=[(5, 20)])
    with pytest.raises(o.DataLossError) as caught:
        ranges(logs, **given)
    assert "t-0: requested [" in str(caught.value)
    assert "the log holds [5, 20)" in str(caught.value)
    assert "failOnDataLoss=false" in str(caught.value)

    assert ranges(logs, **given, failOnDataLoss="false") == [(0, *left)]
    assert "t-0: requested [" in caplog.text


@pytest.mark.parametrize(
    ("start", "end", "log", "count"),
    [
        (2, 9, (5, 20), 3),
        (2, 4, (5, 20), 2),
        (7, 25, (5, 20), 5),
        (30, 32, (5, 20), 2),
        (2, 25, (5, 20), 8),
        (2, 9, (None, None), 7),
        (0, 4, (2, None), 2),
        (2, None, (5, None), 3),
        (9, None, (None, 4), None),
        (9, None, (None, None), None),
    ],
)
def test_lost_offsets_are_counted_where_that_is_known(start, end, log, count, caplog):
    lost = o.Lost("t", 0, start, end, *log)

    o.report_loss([lost, o.Lost("u", 1, 0, 4, 3, 9)], fail=False)

    assert lost.count == count
    first, second = caplog.messages
    assert first.startswith(
        f"skipped (failOnDataLoss=false): {'?' if count is None else count} offsets of t-0:"
        f" requested [{start}, {'...' if end is None else end})"
    )
    assert second.endswith(": 3 offsets of u-1: requested [0, 4), but the log holds [3, 9)")


def test_limit_is_shared_in_proportion_and_starves_nobody():
    starts = {("t", 0): 0, ("t", 1): 100, ("t", 2): 7, ("t", 3): 0}
    ends = {("t", 0): 900, ("t", 1): 200, ("t", 2): 7, ("t", 3): 1}

    assert o.share_limit(10, starts, ends) == {
        ("t", 0): 8, ("t", 1): 101, ("t", 2): 7, ("t", 3): 1
    }  # fmt: skip
    assert o.share_limit(10**18, starts, ends) == ends


def stream(logs, starts, ends, **given):
    found = o.stream_ranges(logs, read(True, **given), starts, ends)
    return [(r.partition, r.start, r.end) for r in found]


def test_micro_batch_takes_new_partitions_from_their_earliest():
    logs = Logs(t=[(0, 10), (0, 4)])

    got = stream(logs, {("t", 0): 3}, {("t", 0): 10, ("t", 1): 4})

    assert got == [(0, 3, 10), (1, 0, 4)]


def test_new_partition_that_begins_late_lost_records():
    logs = Logs(t=[(0, 10), (2, 4)])
    offsets = ({("t", 0): 3}, {("t", 0): 10, ("t", 1): 4})

    with pytest.raises(o.DataLossError, match=r"t-1: requested \[0, 4\), but the log holds \[2"):
        stream(logs, *offsets)
    assert stream(logs, *offsets, failOnDataLoss="false") == [(0, 3, 10), (1, 2, 4)]


def test_vanished_partition_is_a_loss():
    logs = Logs(t=[(0, 10)])
    offsets = ({("t", 0): 3, ("u", 0): 9}, {("t", 0): 10})

    with pytest.raises(o.DataLossError, match=r"u-0: requested \[9, ...\), but the log is gone"):
        stream(logs, *offsets)
    assert stream(logs, *offsets, failOnDataLoss="false") == [(0, 3, 10)]


def test_partition_that_is_shorter_is_a_loss_or_not_read():
    """As in Spark's connector; the next micro-batch starts at the new end."""
    logs = Logs(t=[(0, 4)])
    offsets = ({("t", 0): 9}, {("t", 0): 4})

    with pytest.raises(
        o.DataLossError, match=r"t-0: requested \[9, ...\), but the log holds \[..., 4\)"
    ):
        stream(logs, *offsets)
    assert stream(logs, *offsets, failOnDataLoss="false") == [(0, 4, 4)]


def test_attempts_are_made_for_what_may_pass():
    calls = []

    def failing(error):
        def call():
            calls.append(error)
            raise error

        return call  # fmt: skip

    options = read(**{"fetchOffset.numRetries": "3", "fetchOffset.retryIntervalMs": "0"})
    for error, expected in [(LookupError("x"), 3), (OptionError("x"), 1), (KeyboardInterrupt(), 1)]:
        calls.clear()
        with pytest.raises(type(error)):
            o.with_attempts(options, failing(error))
        assert len(calls) == expected


# -- first offsets


def first(logs, **given):
    return f.first_offsets(logs, read(True, **given))


@pytest.mark.parametrize(
    "given",
    [{"startingOffsets": "latest"}, {"startingTimestamp": "5"}, {"startingOffsets": "earliest"}],
)
def test_moving_start_that_is_kept_nowhere_is_refused(given):
    logs = Logs(t=[(3, 10)])

    with pytest.raises(OptionError, match="checkpointLocation on the reader"):
        first(logs, **given)
    assert first(logs, **given, allowUnsafeStart="true")


def test_start_that_does_not_move_needs_no_place():
    assert first(Logs(t=[(3, 10)]), startingOffsets='{"t":{"0":7}}') == {("t", 0): 7}
    assert first(Logs(t=[(0, 10)]), startingOffsets="earliest") == {("t", 0): 0}


@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_first_offsets_stay_what_they_were_in_the_checkpoint(tmp_path, scheme):
    logs = Logs(t=[(0, 10)])
    given = {"checkpointLocation": f"{scheme}{tmp_path}/check point"}

    assert first(logs, **given) == {("t", 0): 10}
    logs.logs["t", 0] = (0, 99)
    logs.logs["t", 1] = (0, 5)

    assert first(logs, **given) == {("t", 0): 10}
    files = list((tmp_path / "check point" / "kbroker").iterdir())
    assert len(files) == 1
    assert json.loads(files[0].read_text())["offsets"] == {"t": {"0": 10}}


def test_of_two_first_starts_at_once_the_second_takes_the_firsts_offsets(tmp_path):
    keeper = f.FileKeeper(read(True, checkpointLocation=str(tmp_path)), Logs())

    def make_while_another_does():
        other = f.FileKeeper(read(True, checkpointLocation=str(tmp_path)), Logs())
        assert other.get_or_keep(lambda: {("t", 0): 1}) == {("t", 0): 1}
        return {("t", 0): 2}

    assert keeper.get_or_keep(make_while_another_does) == {("t", 0): 1}


def test_checkpoint_of_another_start_is_refused(tmp_path):
    logs = Logs(t=[(0, 10)])
    first(logs, checkpointLocation=str(tmp_path), startingOffsets="earliest")

    with pytest.raises(OptionError, match="was recorded for a start at earliest"):
        first(logs, checkpointLocation=str(tmp_path), startingOffsets="latest")


def test_query_that_has_begun_keeps_its_start_whatever_the_options_say(tmp_path, caplog):
    """A time computed at each start of the job differs after a crash in the first micro-batch, and
    the job must survive that.
    """
    logs = Logs(t=[(0, 10)])
    kept = first(logs, checkpointLocation=str(tmp_path), startingOffsets="latest")
    logs.logs["t", 0] = (0, 99)
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text("v1")

    assert first(logs, checkpointLocation=str(tmp_path), startingTimestamp="77") == kept
    assert "start at latest and stays in effect; timestamp 77 has no effect" in caplog.text


def test_damaged_checkpoint_is_refused(tmp_path):
    logs = Logs(t=[(0, 10)])
    first(logs, checkpointLocation=str(tmp_path))
    (file,) = (tmp_path / "kbroker").iterdir()
    file.write_text('{"format": 1}')

    with pytest.raises(OptionError, match="does not contain first offsets"):
        first(logs, checkpointLocation=str(tmp_path))


def test_group_keeps_first_offsets():
    logs = Logs(t=[(0, 10)])

    assert first(logs, groupId="g") == {("t", 0): 10}
    logs.logs["t", 0] = (0, 99)
    logs.logs["t", 1] = (0, 5)

    assert first(logs, groupId="g") == {("t", 0): 10, ("t", 1): 5}
    assert logs.groups["g"] == {("t", 0): 10, ("t", 1): 5}


def test_lost_ranges_beyond_ten_are_counted():
    lost = [o.Lost("t", n, 0, 5, 5, 9) for n in range(13)]

    assert "and 3 more" in str(o.DataLossError.of(lost))
