"""The command ``kbroker-load``, against a broker, in one process without Spark."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from support.clients.topics import create_topic, delete_records, delete_topic
from support.running.grids import some_of
from support.running.threads import noted
from support.spark.load_records import FIRST_MS, STEP_MS, all_places, places_in, produce

from kbroker.client.connections.cluster import Cluster
from kbroker.client.errors import TopicChanged
from kbroker.spark.load.cli import main
from kbroker.spark.load.engine import Load
from kbroker.spark.load.positions import PositionBounds
from kbroker.spark.load.source import BrokerSource
from kbroker.spark.plan import OffsetRange
from kbroker.testing import Broker, wait_until

pytestmark = pytest.mark.integration


def make_topic(broker: Broker, name: str, partitions: int = 2) -> None:
    create_topic(broker.bootstrap, name, partitions)


def run(broker: Broker, topic: str, dest: object, *more: str) -> int:
    """``kbroker-load run`` in this process."""
    where = ["--bootstrap", broker.bootstrap, "--topics", topic, "--dest", str(dest)]
    return main(["run", *where, "--master", "none", *more])


def test_load_continues_where_it_ended_and_tells_of_each_commit(
    kbroker_broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_topic(kbroker_broker, "load-on")
    produce(kbroker_broker.bootstrap, "load-on", [500, 30])

    assert run(kbroker_broker, "load-on", tmp_path) == 0
    first = capsys.readouterr().out
    produce(kbroker_broker.bootstrap, "load-on", [100], first=500)
    assert run(kbroker_broker, "load-on", tmp_path) == 0
    second = capsys.readouterr().out
    assert run(kbroker_broker, "load-on", tmp_path) == 0

    assert re.fullmatch(r"commit 1 load-on: 530 rows, [\d.]+ MB/s, lag 0\n", first)
    assert second.startswith("commit 2 load-on: 100 rows")
    assert capsys.readouterr().out == "nothing new\n"
    assert places_in(tmp_path, "load-on") == all_places([600, 30])


def test_load_stores_the_offsets_of_its_group(kbroker_broker: Broker, tmp_path: Path) -> None:
    make_topic(kbroker_broker, "load-group", 1)
    produce(kbroker_broker.bootstrap, "load-group", [70])

    run(kbroker_broker, "load-group", tmp_path, "--name", "nightly")

    settings = {"bootstrap.servers": kbroker_broker.bootstrap, "group.id": "kbroker-load.nightly"}
    consumer = Consumer(settings)
    found = consumer.committed([TopicPartition("load-group", 0)], timeout=30)
    consumer.close()
    assert found[0].offset == 70


def test_offsets_that_a_group_with_members_refuses_are_a_line_and_no_failure(
    kbroker_broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_topic(kbroker_broker, "load-used", 1)
    produce(kbroker_broker.bootstrap, "load-used", [70])
    settings = {"bootstrap.servers": kbroker_broker.bootstrap, "group.id": "used"}
    member = Consumer({**settings, "auto.offset.reset": "earliest"})
    member.subscribe(["load-used"])
    assert member.poll(60) is not None

    code = run(kbroker_broker, "load-used", tmp_path, "--group", "used", "--quiet")
    member.close()

    said = capsys.readouterr()
    assert (code, said.out) == (0, "")
    assert said.err.startswith(
        "kbroker-load: commit 1 is loaded, but its offsets could not be committed for the group"
    )
    assert "UNKNOWN_MEMBER_ID" in said.err and said.err.count("\n") == 1
    assert places_in(tmp_path, "load-used") == all_places([70])


def test_load_from_a_time_begins_there_and_again_replaces(
    kbroker_broker: Broker, tmp_path: Path
) -> None:
    make_topic(kbroker_broker, "load-time", 1)
    produce(kbroker_broker.bootstrap, "load-time", [400])

    run(kbroker_broker, "load-time", tmp_path, "--from-timestamp", str(FIRST_MS + 300 * STEP_MS))
    begun = places_in(tmp_path, "load-time")
    run(kbroker_broker, "load-time", tmp_path, "--from-timestamp", str(FIRST_MS + 350 * STEP_MS))

    assert min(begun) == (0, 300)
    assert places_in(tmp_path, "load-time") == begun
    assert max(begun.values()) == 1


def test_topic_recreated_is_refused_by_its_id_until_loss_is_allowed(
    kbroker_broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_topic(kbroker_broker, "load-anew", 1)
    produce(kbroker_broker.bootstrap, "load-anew", [20])
    run(kbroker_broker, "load-anew", tmp_path)
    delete_topic(kbroker_broker.bootstrap, "load-anew")
    with Cluster(kbroker_broker.bootstrap) as cluster:
        wait_until(lambda: not cluster.topics(["load-anew"]), 20, "the topic is gone")
    make_topic(kbroker_broker, "load-anew", 1)
    produce(kbroker_broker.bootstrap, "load-anew", [50])
    capsys.readouterr()

    refused = run(kbroker_broker, "load-anew", tmp_path)
    said = capsys.readouterr().err
    allowed = run(kbroker_broker, "load-anew", tmp_path, "--allow-data-loss")
    again = run(kbroker_broker, "load-anew", tmp_path)

    assert (refused, allowed, again) == (1, 0, 0)
    assert "loaded up to offset 20, then the topic was deleted" in said
    assert places_in(tmp_path, "load-anew") == all_places([20]) + all_places([50])
    assert main(["verify", "--dest", str(tmp_path)]) == 0


@pytest.mark.parametrize("quiet", [True, False])
def test_offsets_that_were_skipped_are_told_and_counted(
    kbroker_broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str], quiet: bool
) -> None:
    topic = f"load-skips-{quiet}".lower()
    make_topic(kbroker_broker, topic, 1)
    produce(kbroker_broker.bootstrap, topic, [20])
    run(kbroker_broker, topic, tmp_path)
    produce(kbroker_broker.bootstrap, topic, [30], first=20)
    delete_records(kbroker_broker.bootstrap, topic, 0, 35)
    capsys.readouterr()

    more = ["--allow-data-loss", *(["--quiet"] if quiet else [])]
    assert run(kbroker_broker, topic, tmp_path, *more) == 0
    said = capsys.readouterr()
    assert main(["status", "--dest", str(tmp_path)]) == 0

    status = capsys.readouterr().out
    assert said.err == (
        f"kbroker-load: commit 2 skips: {topic} partition 0: offset 20 is requested, but the broker"
        " has 35 to 50\n"
    )
    assert said.out.endswith("lag 0, 15 offsets skipped\n") or (quiet and not said.out)
    assert "35 rows in 2 files, 15 offsets skipped" in status
    assert f"{topic} partition 0: loaded up to offset 50, 15 offsets skipped" in status


def test_records_that_are_deleted_between_plan_and_task_are_a_gap_where_loss_is_allowed(
    kbroker_broker: Broker,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = "load-late-loss"
    make_topic(kbroker_broker, topic, 1)
    produce(kbroker_broker.bootstrap, topic, [50])
    read = BrokerSource.read

    def deleting(source: BrokerSource, one: OffsetRange) -> Iterator[pa.RecordBatch]:
        delete_records(kbroker_broker.bootstrap, topic, 0, 30)
        return read(source, one)

    monkeypatch.setattr(BrokerSource, "read", deleting)

    refused = run(kbroker_broker, topic, tmp_path)
    said = capsys.readouterr().err
    monkeypatch.setattr(BrokerSource, "bounds", lambda source: {(topic, 0): PositionBounds(0, 50)})
    allowed = run(kbroker_broker, topic, tmp_path, "--allow-data-loss")

    assert (refused, allowed) == (1, 0)
    assert "offsets 0 to 30 were deleted before they were read. With --allow-data-loss" in said
    told = capsys.readouterr()
    assert f"commit 1 skips: {topic} partition 0: offsets 0 to 30 were deleted" in told.err
    assert told.out.endswith("lag 0, 30 offsets skipped\n")


def test_task_does_not_read_another_topic_than_was_planned(
    kbroker_broker: Broker, tmp_path: Path
) -> None:
    """The topic is recreated between planning and the task."""
    make_topic(kbroker_broker, "load-between", 1)
    produce(kbroker_broker.bootstrap, "load-between", [20])
    source = BrokerSource(kbroker_broker.bootstrap, {}, ("load-between",))
    planned = OffsetRange("load-between", 0, 0, 20, topic_id="B" * 22)

    with pytest.raises(TopicChanged, match="deleted and recreated since it was planned"):
        list(source.read(planned))


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [("dir", "delta", "use --sink dir"), ("delta", "dir", "use --sink delta")],
)
def test_destination_keeps_its_sink(
    kbroker_broker: Broker,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    first: str,
    second: str,
    says: str,
) -> None:
    """Files missing in the table's log would be missing in the table."""
    topic = f"load-{first}-only"
    make_topic(kbroker_broker, topic, 1)
    produce(kbroker_broker.bootstrap, topic, [20])
    assert run(kbroker_broker, topic, tmp_path, "--sink", first) == 0
    capsys.readouterr()

    codes = [run(kbroker_broker, topic, tmp_path, "--sink", second)]
    for command in ("status", "verify", "compact", "expire"):
        codes.append(main([command, "--dest", str(tmp_path), "--sink", second]))

    assert codes == [1] * 5
    assert capsys.readouterr().err.count(says) == 5
    assert run(kbroker_broker, topic, tmp_path, "--sink", first) == 0


def test_offsets_of_what_is_not_loaded_are_refused(
    kbroker_broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_topic(kbroker_broker, "load-named", 1)
    offsets = '{"load-named": {"0": 0, "7": 0}, "other": {"0": 5}}'

    code = run(kbroker_broker, "load-named", tmp_path / "d", "--from-offsets", offsets)

    assert code == 1
    assert "contains load-named partition 7, other partition 0" in capsys.readouterr().err
    assert not (tmp_path / "d").exists()


def test_offsets_beyond_the_end_are_refused_with_those_that_exist(
    kbroker_broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The output was "nothing new", and the next run without them would have started at the
    beginning.
    """
    make_topic(kbroker_broker, "load-beyond", 2)
    produce(kbroker_broker.bootstrap, "load-beyond", [30, 20])
    arguments = ["load-beyond", tmp_path / "d", "--from-offsets"]

    beyond = run(kbroker_broker, *arguments, '{"load-beyond": {"0": 30, "1": 5000}}')

    said = "asks for offset 5000 of load-beyond partition 1, but the broker has 0 to 20\n"
    assert capsys.readouterr().err.endswith(said)
    assert beyond == 1
    assert not (tmp_path / "d").exists()
    assert run(kbroker_broker, *arguments, '{"load-beyond": {"0": 30, "1": 15}}') == 0
    assert run(kbroker_broker, "load-beyond", tmp_path / "d") == 0, "it begins where the first did"
    assert len(places_in(tmp_path / "d", "load-beyond")) == 5


def test_misspelt_client_setting_is_told(
    kbroker_broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_topic(kbroker_broker, "load-misspelt", 1)

    run(kbroker_broker, "load-misspelt", tmp_path, "--client-setting", "sasl.user=me")

    said = capsys.readouterr().err
    assert "unknown client setting sasl.user; did you mean sasl.username?" in said


def run_without_java(broker: Broker, topic: str, place: Path) -> subprocess.CompletedProcess[str]:
    """``kbroker-load run`` as in a cron job, without a JVM."""
    where = ["--topics", topic, "--dest", str(place / "d")]
    command = ["run", "--bootstrap", broker.bootstrap, *where]
    empty = {"PATH": str(place), "JAVA_HOME": str(place)}
    return subprocess.run(
        [sys.executable, "-m", "kbroker.spark.load.cli", *command],
        env={name: value for name, value in os.environ.items() if "SPARK" not in name} | empty,
        capture_output=True,
        text=True,
        check=False,
    )


def test_load_with_nothing_to_do_starts_no_spark(kbroker_broker: Broker, tmp_path: Path) -> None:
    make_topic(kbroker_broker, "load-idle", 1)
    produce(kbroker_broker.bootstrap, "load-idle", [5])
    assert run(kbroker_broker, "load-idle", tmp_path / "d") == 0

    done = run_without_java(kbroker_broker, "load-idle", tmp_path)

    assert (done.returncode, done.stdout, done.stderr) == (0, "nothing new\n", "")


def test_spark_that_does_not_start_is_one_line_with_a_way_out(
    kbroker_broker: Broker, tmp_path: Path
) -> None:
    make_topic(kbroker_broker, "load-no-java", 1)
    produce(kbroker_broker.bootstrap, "load-no-java", [5])

    done = run_without_java(kbroker_broker, "load-no-java", tmp_path)

    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "--master none runs without Spark" in done.stderr.splitlines()[-1]


def test_load_of_aborted_records_leaves_them_out(kbroker_broker: Broker, tmp_path: Path) -> None:
    make_topic(kbroker_broker, "load-txn", 1)
    producer = Producer({"bootstrap.servers": kbroker_broker.bootstrap, "transactional.id": "load"})
    producer.init_transactions(30)
    for number, ends in enumerate((producer.commit_transaction, producer.abort_transaction) * 2):
        producer.begin_transaction()
        producer.produce("load-txn", value=b"%d" % number, partition=0)
        producer.flush(30)  # an abort drops unsent records
        ends(30)

    run(kbroker_broker, "load-txn", tmp_path)

    import pyarrow.parquet as pq

    values = pq.read_table(tmp_path / "data").column("value").to_pylist()
    assert sorted(values) == [b"0", b"2"]


def test_load_of_json_has_fields_and_sets_bad_values_aside(
    kbroker_broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_topic(kbroker_broker, "load-json", 1)
    produce(kbroker_broker.bootstrap, "load-json", [50])
    producer = Producer({"bootstrap.servers": kbroker_broker.bootstrap})
    producer.produce("load-json", value=b"not json", partition=0)
    producer.flush(30)
    json_run = ("--value-format", "json", "--value-schema", "id long, partition int")

    failed = run(kbroker_broker, "load-json", tmp_path, *json_run, "--fail-on-error")
    said = capsys.readouterr().err
    loaded = run(kbroker_broker, "load-json", tmp_path, *json_run)

    import duckdb

    query = f"SELECT sum(value.id) FROM '{tmp_path}/data/**/*.parquet'"
    total = duckdb.connect().execute(query).fetchone()
    assert (failed, loaded) == (1, 0)
    assert "1 record cannot be decoded" in said and "at offset 50" in said
    assert "1 bad in _kbroker/errors" in capsys.readouterr().out
    assert total is not None and total[0] == sum(range(50))


def test_bad_values_of_a_database_are_told_by_their_table(
    kbroker_broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_topic(kbroker_broker, "load-bad", 1)
    producer = Producer({"bootstrap.servers": kbroker_broker.bootstrap})
    producer.produce("load-bad", value=b"not json", partition=0)
    producer.flush(30)
    dest = f"sqlite:{tmp_path}/w.db"
    json_run = ("--value-format", "json", "--value-schema", "id long")

    assert run(kbroker_broker, "load-bad", dest, "--sink", "jdbc", *json_run) == 0

    assert "1 bad in the table records_errors" in capsys.readouterr().out
    connection = sqlite3.connect(tmp_path / "w.db")
    assert connection.execute("SELECT value FROM records_errors").fetchall() == [(b"not json",)]
    connection.close()


def test_commit_to_begin_from_must_be_there(
    kbroker_broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_topic(kbroker_broker, "load-none-yet", 1)
    produce(kbroker_broker.bootstrap, "load-none-yet", [20])

    fresh = run(kbroker_broker, "load-none-yet", tmp_path, "--from-commit", "3")
    said = capsys.readouterr().err
    begun = run(kbroker_broker, "load-none-yet", tmp_path)
    later = run(kbroker_broker, "load-none-yet", tmp_path, "--from-commit", "3")

    assert (fresh, begun, later) == (1, 0, 1)
    assert "there is no commit 3: nothing has been loaded yet" in said
    assert "commit 3 is not in the log" in capsys.readouterr().err


def test_load_into_sqlite_has_rows_and_offsets(kbroker_broker: Broker, tmp_path: Path) -> None:
    make_topic(kbroker_broker, "load-sql")
    produce(kbroker_broker.bootstrap, "load-sql", [60, 5])

    code = run(kbroker_broker, "load-sql", f"sqlite:{tmp_path}/w.db", "--sink", "jdbc")

    connection = sqlite3.connect(tmp_path / "w.db")
    rows = connection.execute('SELECT count(*), max("offset") FROM records').fetchone()
    headers = connection.execute('SELECT headers FROM records WHERE "offset" = 55').fetchone()
    connection.close()
    assert code == 0 and rows == (65, 59)
    assert json.loads(headers[0]) == [["h", "55"]]


def test_missing_topic_is_one_line_and_no_destination(
    kbroker_broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(kbroker_broker, "load-absent", tmp_path / "d") == 1

    assert "there is no topic load-absent" in capsys.readouterr().err
    assert not (tmp_path / "d").exists()


def test_unreachable_broker_is_an_error_within_its_deadline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--bootstrap", "127.0.0.1:1", "--topics", "t", "--dest", str(tmp_path / "d")]

    code = main(["run", *where, "--client-setting", "default.api.timeout.ms=1000"])

    assert code == 1
    assert "127.0.0.1:1" in capsys.readouterr().err


def test_following_load_brings_what_comes_in_while_it_runs(
    kbroker_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time is over once everything is there."""
    make_topic(kbroker_broker, "load-follow", 1)
    produce(kbroker_broker.bootstrap, "load-follow", [50])
    is_over = threading.Event()
    failures: list[BaseException] = []

    def now() -> float:
        return time.monotonic() + (3600 if is_over.is_set() else 0)

    def produce_more() -> None:
        try:
            wait_until(lambda: places_in(tmp_path, "load-follow"))
            produce(kbroker_broker.bootstrap, "load-follow", [50], first=50)
            wait_until(lambda: len(places_in(tmp_path, "load-follow")) == 100)
        finally:
            is_over.set()

    monkeypatch.setitem(Load.__init__.__kwdefaults__, "clock", now)
    writer = threading.Thread(target=noted(produce_more, failures))
    writer.start()
    code = run(
        *(kbroker_broker, "load-follow", tmp_path),
        *("--follow", "--follow-seconds", "0.2", "--max-minutes", "30"),
    )
    writer.join()

    assert code == 0 and not failures
    assert places_in(tmp_path, "load-follow") == all_places([100])


@pytest.mark.parametrize(
    ("number", "code"),
    some_of([(signal.SIGTERM, 143), (signal.SIGINT, 130)], [(signal.SIGTERM, 143)]),
)
def test_following_load_that_is_stopped_says_so_and_keeps_what_is_committed(
    kbroker_broker: Broker, tmp_path: Path, number: int, code: int
) -> None:
    """As systemd, Kubernetes, Airflow or Ctrl-C stop it."""
    topic = f"load-stop-{code}"
    make_topic(kbroker_broker, topic, 1)
    produce(kbroker_broker.bootstrap, topic, [50])
    where = ["--bootstrap", kbroker_broker.bootstrap, "--topics", topic, "--dest", str(tmp_path)]
    program = "import sys; from kbroker.commands import load; sys.exit(load())"
    python = [sys.executable, "-X", "faulthandler", "-c", program]
    process = subprocess.Popen(
        [*python, "run", *where, "--master", "none", "--follow"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline().startswith("commit 1 ")

    process.send_signal(number)
    try:
        _, said = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # faulthandler writes where each thread stands
        pytest.fail(process.communicate()[1])

    assert process.returncode == code
    assert said == "kbroker-load: stopped; everything that was committed is complete\n"
    assert places_in(tmp_path, topic) == all_places([50])


def test_pattern_without_a_topic_is_an_error_unless_the_load_may_wait(
    kbroker_broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A misspelt pattern in a nightly job would load nothing, every night."""
    where = ["--bootstrap", kbroker_broker.bootstrap, "--master", "none"]
    command = ["run", *where, "--dest", str(tmp_path / "lake"), "--pattern", "nothing-like-.*"]

    once = main(command)
    said = capsys.readouterr()
    assert (once, said.out) == (1, "")
    assert "has a name that fully matches nothing-like-.*\n" in said.err
    assert not (tmp_path / "lake").exists()

    followed = main([*command, "--follow", "--max-minutes", "0.0001"])
    assert followed == 0
    assert "; waiting for one\n" in capsys.readouterr().err


def test_topics_of_tools_match_a_pattern_that_begins_as_they_do(kbroker_broker: Broker) -> None:
    """Such as Spark's exactly-once topic ``__kbroker_spark_intents``."""
    for name in ("__of-tools", "of-users-of-tools"):
        make_topic(kbroker_broker, name, 1)

    def matches(pattern: str) -> set[str]:
        source = BrokerSource(kbroker_broker.bootstrap, {}, pattern=pattern)
        return {topic for topic, _ in source.bounds()}

    assert matches(".*of-tools") == {"of-users-of-tools"}
    assert matches("__of-.*") == {"__of-tools"}


def test_following_load_ends_at_its_limit(kbroker_broker: Broker, tmp_path: Path) -> None:
    make_topic(kbroker_broker, "load-limit", 1)
    produce(kbroker_broker.bootstrap, "load-limit", [50])

    code = run(
        *(kbroker_broker, "load-limit", tmp_path),
        *("--follow", "--follow-seconds", "0.01", "--max-records", "30"),
    )

    assert code == 0
    assert places_in(tmp_path, "load-limit") == all_places([30])


@pytest.mark.parametrize("time", ["1960-01-01", "1969-12-31T23:59:59.999Z"])
def test_load_from_before_1970_begins_at_the_start(
    kbroker_broker: Broker, tmp_path: Path, time: str
) -> None:
    """To a broker, -1 ms means the end of the log."""
    topic = f"load-from-{time[:4]}"
    make_topic(kbroker_broker, topic, 1)
    produce(kbroker_broker.bootstrap, topic, [50])

    assert run(kbroker_broker, topic, tmp_path, "--from-timestamp", time) == 0

    assert places_in(tmp_path, topic) == all_places([50])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--topics", "a", "--pattern", "b"], "not allowed with"),
        (["--topics", "a", "--dest", ""], "it is empty: give a folder"),
        (["--topics", "a", "--max-bytes", "many"], "write 512m or 4g"),
        (["--topics", "a", "--from-timestamp", "yesterday"], "write 2026-11-21T06:00:00Z"),
        (["--topics", "a", "--from-offsets", "7"], '{"clicks": {"0": 120, "1": 80}}'),
        (["--topics", "a", "--from-offsets", '{"a": {"0": 1.7}}'], '{"clicks": {"0": 120'),
        (["--topics", "a", "--value-format", "json"], "needs --value-schema"),
        (
            ["--topics", "a", "--value-format", "json", "--value-schema", "id lang"],
            "'lang' is not a type",
        ),
        (["--topics", "a", "--fail-on-error"], "for --value-format json"),
        (["--pattern", "("], "is not a regular expression"),
        (["--topics", "a", "--master", "cluster"], "write local[4], spark://HOST:7077"),
        (["--topics", "a", "--codec-level", "99"], "write 1 (fast) to 22 (small)"),
        (
            ["--topics", "a", "--codec", "gzip", "--codec-level", "6"],
            "--codec-level is for --codec zstd, and gzip has none here; leave one out",
        ),
        (["--topics", "a", "--sink", "jdbc", "--codec", "none"], "--codec is only for files"),
        (
            ["--topics", "a", "--sink", "jdbc", "--file-bytes", "1m"],
            "--file-bytes is only for files",
        ),
        (["--topics", "a", "--table", "t"], "--table is only for --sink jdbc"),
        (["--topics", "a", "--client-setting", "isolation.level=x"], "write --isolation"),
        (["--topics", "a", "--client-setting", "kafka.group.id=g"], "write --group"),
        (["--topics", "a", "--client-setting", "auto.offset.reset=x"], "write --from-timestamp"),
    ],
)
def test_wrong_argument_says_what_to_write(
    arguments: Sequence[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["run", "--bootstrap", "x:1", "--dest", "/nowhere", *arguments])

    assert left.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["--partition-by", "hour"],
            "--partition-by is only for run, because compact leaves records in",
        ),
        (["--codec", "snappy", "--codec-level", "3"], "--codec-level is for --codec zstd"),
    ],
)
def test_what_compact_would_not_do_is_refused_before_it_looks(
    arguments: Sequence[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["compact", "--dest", str(tmp_path), "--master", "none", *arguments])

    assert left.value.code == 2
    assert says in capsys.readouterr().err


def test_status_verify_compact_and_expire_speak_of_the_same_load(
    kbroker_broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_topic(kbroker_broker, "load-care", 1)
    for first in (0, 100, 200):
        produce(kbroker_broker.bootstrap, "load-care", [100], first=first)
        run(kbroker_broker, "load-care", tmp_path, "--quiet")
    dest = ["--dest", str(tmp_path)]

    assert main(["compact", *dest, "--master", "none"]) == 0
    assert main(["expire", *dest, "--days", "0.0000001"]) == 0
    assert main(["verify", *dest]) == 0
    assert main(["status", *dest]) == 0

    said = capsys.readouterr().out
    assert re.search(r"commit 4: \d files became \d", said)
    assert "3 commits removed" in said
    assert "2 files, 300 rows, 0 findings" in said
    assert re.search(r"^load: commit 4 of .* UTC, 300 rows in 2 files$", said, re.MULTILINE)
    assert "load-care partition 0: loaded up to offset 300" in said
    assert places_in(tmp_path, "load-care") == all_places([300])


def test_help_names_every_command_and_shows_a_first_call() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "kbroker.spark.load.cli", "--help"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    for command in ("run", "status", "verify", "recover", "compact", "expire"):
        assert re.search(rf"^ +{command} ", found, re.MULTILINE)
    assert "kbroker-load run --bootstrap localhost:9092 --topics clicks --dest /data/lake" in found
