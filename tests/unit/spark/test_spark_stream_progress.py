"""The driver's side of the stream reader: the result of each call, in Spark's order."""

import json

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from support.spark.fake_logs import FakeLogs

from kbroker.spark import stream as stream_module
from kbroker.spark.checkpoint import checkpoint_files
from kbroker.spark.offsets import DataLossError
from kbroker.spark.options.option_values import OptionError
from kbroker.spark.options.options import parse_read
from kbroker.spark.source import ROW
from kbroker.spark.stream import StreamProgress, StreamReader
from kbroker.uuids import uuid_text

pytestmark = pytest.mark.unit

A, B, C = ("t", 0), ("t", 1), ("t", 2)


def options(**given):
    base = {"kafka.bootstrap.servers": "a:1", "fetchOffset.retryIntervalMs": "0"}
    if not {"assign", "subscribePattern"} & set(given):
        base["subscribe"] = "t"
    return parse_read({**base, **given}, streaming=True)


def progress(logs, **given):
    return StreamProgress(logs, options(**given))


def planned(made, starts, ends):
    ranges = [one for task in made.plan(made.ranges(starts, ends)) for one in task.value]
    return sorted((r.topic, r.partition, r.start, r.end) for r in ranges)


def test_initial_offset_asked_twice_is_the_same_while_the_log_grows(tmp_path):
    logs = FakeLogs(t=[(0, 10)])
    given = {"checkpointLocation": str(tmp_path)}
    made = progress(logs, **given)

    first = made.initial()
    logs.logs[A] = (0, 17)
    assert made.initial() == first == {A: 10}
    assert progress(logs, **given).initial() == first, "and after a crash in the first batch"
    assert made.advance(first, limited=False) == {A: 17}


def test_new_partition_is_read_from_its_earliest():
    logs = FakeLogs(t=[(0, 10)])
    made = progress(logs, startingOffsets="earliest")
    starts = made.initial()
    logs.logs[B] = (0, 4)

    ends = made.advance(starts, limited=False)

    assert ends == {A: 10, B: 4}
    assert planned(made, starts, ends) == [("t", 0, 0, 10), ("t", 1, 0, 4)]


def test_limit_counts_new_partitions_too():
    logs = FakeLogs(t=[(0, 100), (0, 100)])
    made = progress(logs, startingOffsets="earliest", maxOffsetsPerTrigger="20")

    assert made.advance({A: 50}, limited=True) == {A: 56, B: 13}
    assert made.advance({A: 50}, limited=False) == {A: 100, B: 100}
    assert made.latest == {A: 100, B: 100}


def test_vanished_topic_fails_or_is_left_out(caplog):
    logs = FakeLogs(t=[(0, 10)], u=[(0, 5)])
    starts = {A: 3, ("u", 0): 2}
    del logs.logs["u", 0]

    with pytest.raises(DataLossError, match=r"u-0: requested .*, but the log is gone"):
        progress(logs, subscribe="t,u").advance(starts, limited=False)
    loose = progress(logs, subscribe="t,u", failOnDataLoss="false")
    assert loose.advance(starts, limited=False) == {A: 10}
    assert "u-0" in caplog.text


def test_topic_recreated_fails_or_is_read_from_its_start():
    logs = FakeLogs(t=[(0, 4)])

    with pytest.raises(DataLossError, match=r"t-0: requested \[9, ...\)"):
        progress(logs).advance({A: 9}, limited=False)
    loose = progress(logs, failOnDataLoss="false")
    back = loose.advance({A: 9}, limited=False)
    assert (back, planned(loose, {A: 9}, back)) == ({A: 0}, [])
    ends = loose.advance(back, limited=False)
    assert planned(loose, back, ends) == [("t", 0, 0, 4)]


def test_log_that_was_cut_continues_at_its_end_and_reads_nothing_twice():
    logs = FakeLogs(t=[(0, 9)])
    logs.ids = {"t": b"1" * 16}
    strict, loose = progress(logs), progress(logs, failOnDataLoss="false")
    for made in (strict, loose):
        assert made.advance({A: 0}, limited=False) == {A: 9}
    logs.logs[A] = (0, 4)

    with pytest.raises(
        DataLossError, match=r"t-0: requested \[9, ...\), but the log holds \[..., 4\)"
    ):
        strict.advance({A: 9}, limited=False)
    ends = loose.advance({A: 9}, limited=False)
    assert (ends, planned(loose, {A: 9}, ends)) == ({A: 4}, [])
    assert planned(progress(logs, failOnDataLoss="false"), {A: 9}, ends) == [], "nor after a crash"
    logs.logs[A] = (0, 6)
    assert planned(loose, ends, loose.advance(ends, limited=False)) == [("t", 0, 4, 6)]


def test_topic_recreated_is_told_by_its_id_where_its_offsets_do_not(caplog):
    logs = FakeLogs(t=[(0, 10)])
    logs.ids = {"t": b"1" * 16}
    strict, loose = progress(logs), progress(logs, failOnDataLoss="false")
    for made in (strict, loose):
        assert made.advance({A: 4}, limited=False) == {A: 10}
    logs.ids = {"t": b"2" * 16}
    logs.logs[A] = (0, 20)

    with pytest.raises(
        DataLossError, match=r"t-0: requested \[10, ...\), but the log holds \[..., 20\)"
    ):
        strict.advance({A: 10}, limited=False)
    assert loose.advance({A: 10}, limited=False) == {A: 0}
    assert loose.advance({A: 0}, limited=False) == {A: 20}
    assert "t-0" in caplog.text


OLD, NEW = {"t": b"1" * 16}, {"t": b"2" * 16}


@pytest.fixture
def run(tmp_path):
    """A query's driver after a start: ``run(logs)``, once per start."""

    def start(logs, **given):
        given = {"checkpointLocation": str(tmp_path), "startingOffsets": "earliest", **given}
        return progress(logs, **given)

    return start


def made_anew(logs, *edges):
    logs.ids = NEW
    logs.logs = {("t", n): one for n, one in enumerate(edges)}


def begun(run, *edges):
    """Logs of which a query has read the first half of each partition."""
    logs = FakeLogs(t=[(0, end // 2) for _, end in edges])
    logs.ids = OLD
    made = run(logs)
    at = made.advance(made.initial(), limited=False)
    logs.logs = {("t", n): one for n, one in enumerate(edges)}
    return logs, at


@pytest.mark.parametrize("triggers", [1, 3])
def test_topic_recreated_while_the_query_was_down_is_told_by_its_id(run, triggers, caplog):
    """Also if it was down since its first trigger, or a topic was added later."""
    logs, at = begun(run, (0, 20))
    for _ in range(triggers - 1):
        made = run(logs)
        at = made.advance(at, limited=False)
    made_anew(logs, (0, 100))

    with pytest.raises(DataLossError, match=rf"t-0: requested \[{at[A]}, ...\)"):
        run(logs).advance(at, limited=False)
    with pytest.raises(DataLossError):
        run(logs).advance(at, limited=False)
    loose = run(logs, failOnDataLoss="false")
    back = loose.advance(at, limited=False)
    assert (back, planned(loose, at, back)) == ({A: 0}, [])
    assert loose.advance(back, limited=False) == {A: 100}
    assert [one for one in caplog.messages if "skipped" in one] == [
        f"skipped (failOnDataLoss=false): ? offsets of t-0: requested [{at[A]}, ...), but the log"
        " holds [..., 100)"
    ]


@pytest.mark.parametrize("triggers", [0, 2])
def test_query_that_continues_with_another_subscription_knows_its_topics(run, triggers):
    """Its state is kept under the subscription it had; triggers: the number of runs at that
    time.
    """
    logs, at = begun(run, (0, 20))
    for _ in range(triggers):
        at = run(logs).advance(at, limited=False)
    logs.logs["u", 0] = (0, 3)
    changed = {"subscribe": "t,u", "failOnDataLoss": "false"}

    logs.logs[A] = (0, 4)
    assert run(logs, **changed).advance(at, limited=False)[A] == 4, "it was cut, and is the same"
    logs.ids = {**NEW, "u": b"3" * 16}
    logs.logs[A] = (0, 100)
    assert run(logs, **changed).advance(at, limited=False)[A] == 0
    with pytest.raises(DataLossError, match="t-0"):
        run(logs, subscribePattern="[tu]").advance(at, limited=False)


@pytest.mark.parametrize("logged", [False, True])
def test_crash_while_the_query_goes_back_loses_nothing_of_the_new_topic(run, logged):
    """logged: whether Spark had recorded the offsets that go back."""
    logs, at = begun(run, (0, 20), (0, 0))
    made_anew(logs, (0, 100), (0, 7), (0, 3))
    back = run(logs, failOnDataLoss="false").advance(at, limited=False)

    made = run(logs, failOnDataLoss="false")
    if logged:
        assert planned(made, at, back) == [], "the batch is repeated"
    again = back if logged else made.advance(at, limited=False)
    ends = made.advance(again, limited=False)
    read = planned(made, again, ends)
    after = run(logs)

    assert back == again == {A: 0, B: 0}, "a partition that is new waits for it"
    assert read == [("t", 0, 0, 100), ("t", 1, 0, 7), ("t", 2, 0, 3)]
    logs.logs[A] = (0, 120)
    assert after.advance(ends, limited=False)[A] == 120, "and from then on it is the topic"


def test_batch_that_was_planned_of_the_older_topic_reads_nothing_of_the_new_one(run):
    logs, at = begun(run, (0, 20))
    ends = run(logs).advance(at, limited=False)
    made_anew(logs, (0, 100))

    with pytest.raises(DataLossError, match=r"t-0: requested \[10, 20\), but the log is gone"):
        run(logs).ranges(at, ends)
    loose = run(logs, failOnDataLoss="false")
    assert planned(loose, at, ends) == []
    assert loose.advance(ends, limited=False) == {A: 0}


def test_topic_recreated_is_not_forgotten_while_there_are_too_few_offsets(run, caplog):
    logs, at = begun(run, (0, 20))
    made = run(logs, failOnDataLoss="false", minOffsetsPerTrigger="1000")
    made.advance(at, limited=True)
    at = {A: 20}
    made_anew(logs, (0, 100))

    assert [made.advance(at, limited=True) for _ in range(3)] == [at] * 3
    assert made.advance(at, limited=False) == {A: 0}
    assert sum("skipped" in one for one in caplog.messages) == 1


def test_topic_of_which_nothing_was_read_is_read_when_recreated(run):
    logs, at = begun(run, (0, 0))
    made_anew(logs, (0, 5))

    assert run(logs).advance(at, limited=False) == {A: 5}
    logs.ids = OLD
    with pytest.raises(DataLossError):
        run(logs).advance({A: 5}, limited=False)


def test_log_that_was_cut_while_the_query_was_down_continues_at_its_end(run):
    logs, at = begun(run, (0, 20))
    at = run(logs).advance(at, limited=False)
    logs.logs[A] = (0, 4)

    assert run(logs, failOnDataLoss="false").advance(at, limited=False) == {A: 4}


def test_ids_of_topics_that_come_and_go_are_kept_and_forgotten(tmp_path):
    given = {
        "checkpointLocation": str(tmp_path),
        "startingOffsets": "earliest",
        "subscribePattern": ".",
        "failOnDataLoss": "false",
    }
    u = ("u", 0)
    logs = FakeLogs(t=[(0, 5)])
    logs.ids = OLD
    made = progress(logs, **given)
    at = made.initial()
    logs.ids, logs.logs[u] = {**OLD, "u": b"3" * 16}, (0, 5)
    at = made.advance(at, limited=False)
    (file,) = (tmp_path / "kbroker").glob("topic-ids-*")
    kept = json.loads(file.read_text())["topics"]

    logs.ids["u"] = b"4" * 16
    again = progress(logs, **given).advance(at, limited=False)
    del logs.logs[u], logs.ids["u"]
    left = progress(logs, **given).advance(at, limited=False)

    assert (at, again, left) == ({A: 5, u: 5}, {A: 5, u: 0}, {A: 5})
    assert kept == {"t": uuid_text(b"1" * 16), "u": uuid_text(b"3" * 16)}
    file.write_text("{}")
    with pytest.raises(OptionError, match="does not contain topic ids"):
        progress(logs, **given).advance(at, limited=False)


def test_first_offsets_of_an_older_version_have_no_ids_and_are_taken(run, tmp_path):
    logs, at = begun(run, (0, 20))
    (file,) = (tmp_path / "kbroker").iterdir()
    document = json.loads(file.read_text())
    del document["topics"]
    file.write_text(json.dumps(document))
    made_anew(logs, (0, 100))

    assert run(logs).advance(at, limited=False) == {A: 100}, "nothing says that it is another"
    logs.ids = OLD
    with pytest.raises(DataLossError):
        run(logs).advance({A: 100}, limited=False)


def test_other_file_systems_take_a_text_in_place_of_another():
    files = checkpoint_files("mock:///checkpoint")

    assert files.names() == []
    files.put_if_absent("a", "1")
    files.put_if_absent("a", "2")
    assert files.read("a") == "1"
    files.replace("a", "3")
    files.replace("b", "4")
    assert (files.read("a"), files.read("b"), files.read("c")) == ("3", "4", None)
    assert sorted(files.names()) == ["a", "b"]
    files._filesystem.move("checkpoint/kbroker/a", "checkpoint/kbroker/a.new")
    assert files.read("a") == "3", "as a crash leaves it"
    files.replace("a", "5")
    assert files.read("a") == "5"


def test_end_that_lags_behind_the_start_is_asked_for_again():
    logs = FakeLogs(t=[(0, 9)])
    answers = [5, 7, 12]
    plain = logs.list_offsets

    def lagging(wanted):
        logs.logs[A] = (0, answers.pop(0))
        return plain(wanted)

    logs.list_offsets = lagging

    assert progress(logs).advance({A: 9}, limited=False) == {A: 12}


def test_available_now_ends_at_its_target_while_the_log_grows():
    logs = FakeLogs(t=[(0, 100)])
    made = progress(logs, startingOffsets="earliest", maxOffsetsPerTrigger="40",
                    minOffsetsPerTrigger="30")  # fmt: skip
    made.fix_target()
    at, seen = made.initial(), []
    while True:
        logs.logs[A] = (0, logs.logs[A][1] + 1000)
        logs.logs[B] = (0, 5)
        ends = made.advance(at, limited=True)
        if ends == at:
            break
        seen.append(ends[A])
        at = ends

    assert seen == [40, 80, 100]


def test_available_now_from_the_end_reads_nothing_of_what_comes_meanwhile(tmp_path):
    logs = FakeLogs(t=[(0, 10)])
    made = progress(logs, checkpointLocation=str(tmp_path))
    made.fix_target()
    logs.logs[A], logs.logs[B] = (0, 17), (0, 3)

    first = made.initial()

    assert first == {A: 17, B: 3}
    assert made.advance(first, limited=True) == first


def test_start_beyond_the_end_is_a_loss_in_available_now_too():
    given = {"startingOffsets": '{"t":{"0":20}}'}
    made = progress(FakeLogs(t=[(0, 10)]), **given)
    made.fix_target()

    with pytest.raises(
        DataLossError, match=r"t-0: requested \[20, ...\), but the log holds \[..., 10\)"
    ):
        made.advance(made.initial(), limited=True)


def test_few_offsets_are_waited_for_but_not_forever(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(stream_module.time, "monotonic", lambda: now[0])
    logs = FakeLogs(t=[(0, 10)])
    made = progress(logs, minOffsetsPerTrigger="50", maxTriggerDelay="60s")

    assert made.advance({A: 0}, limited=True) == {A: 10}, "the first batch does not wait"
    assert made.advance({A: 5}, limited=True) == {A: 5}
    now[0] += 59
    assert made.advance({A: 5}, limited=True) == {A: 5}
    now[0] += 2
    assert made.advance({A: 5}, limited=True) == {A: 10}
    logs.logs[A] = (0, 60)
    assert made.advance({A: 10}, limited=True) == {A: 60}


def test_byte_limit_uses_the_sizes_of_the_log():
    logs = FakeLogs(t=[(0, 1000), (0, 1000)])
    logs.log_bytes = {A: 1000 * 100, B: 1000 * 300}
    made = progress(logs, maxBytesPerTrigger="40000")

    ends = made.advance({A: 0, B: 0}, limited=True)

    assert ends == {A: 100, B: 100}, "a tenth of the bytes is a tenth of each partition"


def test_group_offsets_are_what_was_processed_before():
    logs = FakeLogs(t=[(0, 10)])
    made = progress(logs, groupId="g", startingOffsets="earliest")
    starts = made.initial()
    ends = made.advance(starts, limited=False)
    assert logs.groups["g"] == {A: 0}

    assert made.advance(ends, limited=False) == ends, "AvailableNow asks once more at its end"
    assert logs.groups["g"] == {A: 10}


def test_reader_sends_tasks_nothing_of_the_driver():
    reader = StreamReader(options(), ROW)

    assert reader.__dict__["_progress"] is None
    assert reader.reportLatestOffset.__self__ is reader
    assert isinstance(reader.getDefaultReadLimit(), ReadAllAvailable)
    assert reader.commit({}) is None


def test_stopped_reader_closes_the_connections_of_its_driver(monkeypatch):
    closed = []
    monkeypatch.setattr(stream_module.Cluster, "close", lambda self: closed.append(self))
    reader = StreamReader(options(), ROW)
    cluster = reader._driver().view.cluster

    reader.stop()

    assert closed == [cluster]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"maxOffsetsPerTrigger": "7"}, ReadMaxRows(7)),
        ({"minOffsetsPerTrigger": "7"}, ReadMaxRows(2**62)),
        ({"maxBytesPerTrigger": "7"}, ReadMaxRows(2**62)),
    ],
)
def test_any_limit_makes_spark_pass_one(given, expected):
    assert StreamReader(options(**given), ROW).getDefaultReadLimit() == expected


def test_start_at_latest_that_is_kept_nowhere_is_refused():
    with pytest.raises(OptionError, match="checkpointLocation"):
        progress(FakeLogs(t=[(0, 10)])).initial()
