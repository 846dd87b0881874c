"""Writing to topics of kbroker: what librdkafka reads, and the result of a repeated batch."""

import json
import uuid

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.readwriter import DataFrameReader, DataFrameWriter
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter
from support.clients.markers import await_markers
from support.clients.topics import Record, create_topic, fill, read_topic
from support.running.grids import some_of
from support.spark.stream_kills import LosingSource

from kbroker.client.batches.arrow import ArrowProducer
from kbroker.client.batches.offsets import LATEST, list_offsets
from kbroker.client.batches.transactions import Outcome, end_transaction, outcome
from kbroker.client.connections.cluster import Cluster
from kbroker.client.errors import RejectedError
from kbroker.protocol.messages.list_transactions import ListTransactionsRequest
from kbroker.spark import install_kafka_alias
from kbroker.spark.checkpoint import query_id
from kbroker.spark.exactly_once import WriteAttempt, intents_of
from kbroker.spark.intents import Intents, Recorded
from kbroker.spark.options.options import parse_write
from kbroker.spark.sink import BatchWriter, StreamWriter, WrittenRows
from kbroker.testing import wait_until

pytestmark = pytest.mark.integration


@pytest.fixture
def bootstrap(kbroker_broker):
    return kbroker_broker.bootstrap


def write(frame, bootstrap, mode="append", **options):
    made = frame.write.format("kbroker").mode(mode)
    for name, value in {"kafka.bootstrap.servers": bootstrap, **options}.items():
        made = made.option(name, value)
    made.save()


def values(bootstrap, topic, isolation="read_committed", **options):
    return sorted(one.value for one in read_topic(bootstrap, topic, isolation=isolation, **options))


def test_columns_become_records(spark, bootstrap, topic):
    create_topic(bootstrap, topic, 2)
    frame = spark.sql(
        f"""
        SELECT * FROM VALUES
          ('k1', CAST('v1' AS BINARY), '{topic}', 1, array(named_struct('key','a','value',X'01'))),
          (NULL, CAST('v2' AS BINARY), '{topic}', 0, NULL),
          ('k3', NULL, '{topic}', 1, array())
        AS t(key, value, topic, partition, headers)
        """
    ).coalesce(1)

    write(frame, bootstrap)

    got = [one[:4] for one in read_topic(bootstrap, topic)]
    assert got == [
        (None, b"v2", 0, None),
        (b"k1", b"v1", 1, [("a", b"\x01")]),
        (b"k3", None, 1, None),
    ]


def test_topic_option_goes_before_the_column_and_other_columns_are_left_out(
    spark, bootstrap, topic
):
    create_topic(bootstrap, topic)
    frame = spark.sql("SELECT 'elsewhere' AS topic, 'v' AS value, 5 AS number, now() AS timestamp")

    write(frame, bootstrap, topic=topic)

    (got,) = read_topic(bootstrap, topic)
    assert got.value == b"v"
    assert got.timestamp > 1_700_000_000_000


@pytest.mark.parametrize("codec", some_of(["none", "gzip", "snappy", "lz4", "zstd"], ["lz4"]))
def test_rows_written_are_rows_read(spark, bootstrap, topic, codec):
    source, target = f"{topic}-a", f"{topic}-b"
    for name in (source, target):
        create_topic(bootstrap, name, 3)
    rows = [
        Record(b"k%d" % (n % 5) if n % 3 else None, bytes([n % 256]) * (n % 400), n % 3,
               [("h", b"%d" % n)] if n % 4 == 0 else None, 1_700_000_000_000 + n)
        for n in range(600)
    ]  # fmt: skip
    fill(bootstrap, source, rows)
    reader = spark.read.format("kbroker").option("kafka.bootstrap.servers", bootstrap)
    frame = reader.option("subscribe", source).option("includeHeaders", "true").load()

    write(
        frame.drop("topic"), bootstrap, topic=target, keepTimestamps="true",
        **{"kafka.compression.type": codec},
    )  # fmt: skip

    assert read_topic(bootstrap, target) == read_topic(bootstrap, source)


def test_keys_go_where_other_clients_put_them(spark, bootstrap, topic):
    create_topic(bootstrap, topic, 5)
    ours, theirs = f"{topic}", f"{topic}-theirs"
    create_topic(bootstrap, theirs, 5)
    keys = [b"key-%d" % n for n in range(50)]
    fill(bootstrap, theirs, [Record(key, key, -1) for key in keys], partitioner="murmur2_random")
    frame = spark.createDataFrame(
        [(key.decode(), key.decode()) for key in keys], "key string, value string"
    )

    write(frame, bootstrap, topic=ours)

    place = {one.key: one.partition for one in read_topic(bootstrap, theirs)}
    assert {one.key: one.partition for one in read_topic(bootstrap, ours)} == place


@pytest.mark.parametrize(
    ("query", "options", "mode", "says"),
    [
        ("SELECT 1 AS key", {"topic": "t"}, "append", "the rows have no column value"),
        ("SELECT 'v' AS value", {}, "append", "the rows have no column topic"),
        ("SELECT 5 AS value", {"topic": "t"}, "append", "column value is int: cast it to"),
        (
            "SELECT 'v' AS value, '1' AS partition",
            {"topic": "t"},
            "append",
            "column partition is string: ",
        ),
        ("SELECT 'v' AS value", {"topic": "t"}, "overwrite", "a topic cannot be overwritten"),
        ("SELECT 'v' AS value", {"topic": "t", "kafka.acks": "2"}, "append", "kafka.acks is '2': "),
        (
            "SELECT 'v' AS value",
            {"topic": "t", "kafka.partitioner.class": "x.Y"},
            "append",
            "kafka.partitioner.class is not supported: leave it out",
        ),
    ],
)
def test_what_cannot_be_written_is_refused_in_words(spark, bootstrap, query, options, mode, says):
    """In the first line, and not at the end of the traceback of a worker."""
    with pytest.raises(Exception, match=rf"^\[PYTHON_DATA_SOURCE_ERROR\][^\n]* {says}"):
        write(spark.sql(query), bootstrap, mode, **options)


def test_batch_of_a_job_that_says_kafka_is_appended_without_a_mode(
    spark, bootstrap, topic, monkeypatch
):
    """As in jobs for Spark's connector; a mode that they set is honoured."""
    for owner in (DataFrameReader, DataFrameWriter, DataStreamReader, DataStreamWriter):
        monkeypatch.setattr(owner, "format", owner.format)
    create_topic(bootstrap, topic)
    frame = spark.sql("SELECT 'v' AS value")
    where = {"kafka.bootstrap.servers": bootstrap, "topic": topic}

    install_kafka_alias()
    frame.write.format("kafka").options(**where).save()
    frame.write.save(format="kafka", **where)
    with pytest.raises(Exception, match="cannot be overwritten"):
        frame.write.mode("overwrite").format("kafka").options(**where).save()

    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    assert reader.option("subscribe", topic).load().count() == 2


@pytest.mark.slow
def test_exactly_once_batch_is_visible_only_when_it_is_committed(spark, bootstrap, topic):
    create_topic(bootstrap, topic, 2)
    frame = spark.range(0, 100, 1, 3).selectExpr("CAST(id AS STRING) AS value")
    options = {"topic": topic, "delivery": "exactly-once", "writeId": f"w-{topic}"}

    write(frame, bootstrap, **options)
    write(frame, bootstrap, **options)

    assert len(values(bootstrap, topic)) == 100, "the second write of the same id is a repetition"
    write(frame, bootstrap, **options, writeBatch="1")
    write(frame, bootstrap, **options, writeBatch="1")
    assert len(values(bootstrap, topic)) == 200
    write(frame, bootstrap, topic=topic, delivery="exactly-once")
    assert len(values(bootstrap, topic)) == 300


def test_exactly_once_batch_that_fails_leaves_nothing(spark, bootstrap, topic):
    create_topic(bootstrap, topic, 2)
    frame = spark.range(0, 100, 1, 2).selectExpr(
        "CAST(IF(id = 99, raise_error('broken row'), CAST(id AS STRING)) AS STRING) AS value"
    )

    with pytest.raises(Exception, match="broken row"):
        write(frame, bootstrap, topic=topic, delivery="exactly-once")

    assert values(bootstrap, topic) == []


class Copy:
    """A stream from one topic to another; every call continues from the same checkpoint."""

    def __init__(self, spark, bootstrap, source, target, place, **options):
        self.spark, self.bootstrap, self.place = spark, bootstrap, place
        self.source, self.target, self.options = source, target, options

    def run(self, into="kbroker"):
        reader = self.spark.readStream.format("kbroker").option("subscribe", self.source)
        reader = reader.option("kafka.bootstrap.servers", self.bootstrap)
        reader = reader.option("startingOffsets", "earliest")
        writer = reader.option("maxOffsetsPerTrigger", "30").load().select("value").writeStream
        writer = writer.format(into).option("kafka.bootstrap.servers", self.bootstrap)
        for name, value in self.options.items():
            writer = writer.option(name, value)
        query = (
            writer.option("topic", self.target)
            .option("checkpointLocation", str(self.place))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(300)

    def forget_commit(self):
        """As if the driver had died before Spark recorded the commit of the last batch."""
        numbers = [int(f.name) for f in (self.place / "commits").iterdir() if f.name.isdigit()]
        for name in (str(max(numbers)), f".{max(numbers)}.crc"):
            (self.place / "commits" / name).unlink(missing_ok=True)
        return max(numbers)


@pytest.mark.parametrize(
    ("delivery", "twice"),
    some_of([("at-least-once", 10), ("exactly-once", 0)], [("exactly-once", 0)]),
)
@pytest.mark.slow
def test_stream_repeats_a_batch_only_at_least_once(
    spark, bootstrap, topic, tmp_path, delivery, twice
):
    source, target = f"{topic}-a", f"{topic}-b"
    create_topic(bootstrap, source)
    create_topic(bootstrap, target, 2)
    fill(bootstrap, source, [Record(None, b"%03d" % n) for n in range(70)])
    copy = Copy(spark, bootstrap, source, target, tmp_path / "c", delivery=delivery)
    copy.run()
    assert values(bootstrap, target) == [b"%03d" % n for n in range(70)]

    copy.forget_commit()
    copy.run()

    got = values(bootstrap, target)
    assert len(got) == 70 + twice
    assert sorted(set(got)) == [b"%03d" % n for n in range(70)]


def test_crash_between_intent_and_the_last_commit_is_completed_by_the_next_run(bootstrap, topic):
    """The driver died during the commits: one transaction is committed, one is not."""
    create_topic(bootstrap, topic, 2)
    options = parse_write(
        {"kafka.bootstrap.servers": bootstrap, "topic": topic, "delivery": "exactly-once"}
    )
    query, writer = uuid.uuid4().hex, StreamWriter(options, ["value"])
    first = _task(writer, query, 0, [b"a", b"b"])
    second = _task(writer, query, 1, [b"c"])
    with Cluster(bootstrap) as cluster:
        intents = Intents(cluster, options.intent_topic, options.transactional_id_prefix)
        assert intents.find(query, 0) is None
        intents.record(query, 0, [first.identity, second.identity])
        end_transaction(cluster, first.identity, commit=True)
    wait_until(lambda: values(bootstrap, topic, stays_open=True) == [b"a", b"b"], 60)

    again = StreamWriter(options, ["value"])
    messages = [_task(again, query, n, rows) for n, rows in ((0, [b"a", b"b"]), (1, [b"c"]))]
    assert all(one.repeated for one in messages)
    StreamWriter(options, ["value"]).abort([first, second], 0)
    StreamWriter(options, ["value"]).commit(messages, 0)

    assert values(bootstrap, topic) == [b"a", b"b", b"c"]
    assert not _task(again, query, 0, [b"d"], batch=1).repeated


def test_crash_before_the_intent_is_written_again(bootstrap, topic):
    create_topic(bootstrap, topic)
    options = parse_write(
        {"kafka.bootstrap.servers": bootstrap, "topic": topic, "delivery": "exactly-once"}
    )
    query, writer = uuid.uuid4().hex, StreamWriter(options, ["value"])
    _task(writer, query, 0, [b"lost with its driver"])

    message = _task(writer, query, 0, [b"again"])
    writer.commit([message, None, WrittenRows(0, WriteAttempt(query, 0, ""))], 0)

    assert values(bootstrap, topic) == [b"again"]


def test_transaction_that_is_gone_is_found_out_before_the_intent(bootstrap, topic):
    """Expired, or fenced by a second attempt: with the intent the batch could never be committed,
    without it the next run writes it again.
    """
    create_topic(bootstrap, topic, 2)
    options = parse_write(
        {"kafka.bootstrap.servers": bootstrap, "topic": topic, "delivery": "exactly-once"}
    )
    query, writer = uuid.uuid4().hex, StreamWriter(options, ["value"])
    other, gone = _task(writer, query, 0, [b"a"]), _task(writer, query, 1, [b"b"])
    again = _task(writer, query, 1, [b"b"])

    with pytest.raises(RejectedError, match="no longer open"):
        writer.commit([other, gone], 0)

    assert values(bootstrap, topic, stays_open=True) == []
    with Cluster(bootstrap) as cluster:
        intents = Intents(cluster, options.intent_topic, options.transactional_id_prefix)
        assert intents.find(query, 0) is None
    writer.commit([other, again], 0)
    assert values(bootstrap, topic) == [b"a", b"b"]


class Crashed:
    """A recorded batch of two tasks whose driver died before it had committed all."""

    def __init__(self, bootstrap, topic, **options):
        create_topic(bootstrap, topic, 2)
        self.bootstrap, self.topic, self.query = bootstrap, topic, uuid.uuid4().hex
        writer = StreamWriter(self.options(**options), ["value"])
        self.tasks = [_task(writer, self.query, n, rows) for n, rows in self.rows()]
        with Cluster(bootstrap) as cluster:
            identities = [one.identity for one in self.tasks]
            intents_of(cluster, self.options()).record(self.query, 0, identities)

    def options(self, **more):
        given = {"topic": self.topic, "delivery": "exactly-once", **more}
        return parse_write({"kafka.bootstrap.servers": self.bootstrap, **given})

    def rows(self):
        return [(0, [b"a", b"b"]), (1, [b"c"])]

    def end(self, task, *, commit):
        """Aborted by the cluster after a timeout, or by the driver that died."""
        with Cluster(self.bootstrap) as cluster:
            end_transaction(cluster, self.tasks[task].identity, commit=commit)

    def again(self, **more):
        """A run of the query."""
        writer = StreamWriter(self.options(**more), ["value"])
        messages = [_task(writer, self.query, n, rows) for n, rows in self.rows()]
        StreamWriter(self.options(**more), ["value"]).commit(messages, 0)
        return [one.repeated for one in messages]


@pytest.mark.parametrize("expired", [(0, 1), (1,)], ids=["all", "one"])
def test_recorded_batch_that_expired_unseen_fails_and_is_written_again(bootstrap, topic, expired):
    """Without a way out the query would fail forever."""
    crashed = Crashed(bootstrap, topic)
    for task in expired:
        crashed.end(task, commit=False)

    with pytest.raises(RejectedError, match=r"\.0\.1.* had expired.*start again.*rewrite it"):
        crashed.again()

    assert values(bootstrap, topic) == []
    assert crashed.again() == [False, False]
    assert values(bootstrap, topic) == [b"a", b"b", b"c"]
    assert crashed.again() == [True, True]
    assert values(bootstrap, topic) == [b"a", b"b", b"c"]


@pytest.mark.slow
def test_recorded_batch_that_timed_out_is_known_by_what_the_cluster_did(bootstrap, topic):
    crashed = Crashed(bootstrap, topic, **{"kafka.transaction.timeout.ms": "1000"})
    with Cluster(bootstrap) as cluster:
        found = [one.identity for one in crashed.tasks]
        wait_until(
            lambda: {outcome(cluster, one) for one in found} == {Outcome.ABORTED}, timeout=60
        )

    with pytest.raises(RejectedError, match=r"had expired.*start again.*nothing .* is visible"):
        crashed.again()
    assert crashed.again() == [False, False]
    assert values(bootstrap, topic) == [b"a", b"b", b"c"]


def test_recorded_batch_that_expired_in_part_fails_until_the_user_decides(bootstrap, topic):
    crashed = Crashed(bootstrap, topic)
    crashed.end(0, commit=True)
    crashed.end(1, commit=False)

    for _ in range(2):
        with pytest.raises(RejectedError, match=r"1 of its 2 .*lostTransactions=rewrite.*=skip"):
            crashed.again()
    assert values(bootstrap, topic) == [b"a", b"b"]

    assert crashed.again(lostTransactions="skip") == [True, True]
    assert crashed.again() == [True, True]
    assert values(bootstrap, topic) == [b"a", b"b"]


def test_recorded_batch_that_expired_in_part_is_written_again_where_that_is_wanted(
    bootstrap, topic
):
    crashed = Crashed(bootstrap, topic)
    crashed.end(0, commit=True)
    crashed.end(1, commit=False)

    with pytest.raises(RejectedError, match=r"start again.*part of it then appears twice"):
        crashed.again(lostTransactions="rewrite")
    assert crashed.again(lostTransactions="rewrite") == [False, False]

    assert values(bootstrap, topic) == [b"a", b"a", b"b", b"b", b"c"]


def test_batch_that_is_done_is_not_asked_about_again(bootstrap, topic):
    """Its transactional ids may have expired by then."""
    crashed = Crashed(bootstrap, topic)
    assert crashed.again() == [True, True]
    with Cluster(bootstrap) as cluster:
        await_markers(cluster, topic)
        place = {(topic, n): LATEST for n in (0, 1)}
        before = list_offsets(cluster, place)
        assert intents_of(cluster, crashed.options()).find(crashed.query, 0).done

        assert crashed.again() == [True, True]

        assert list_offsets(cluster, place) == before


def test_attempt_with_fewer_tasks_leaves_nothing_open_of_the_one_before(bootstrap, topic):
    """read_committed consumers would wait for it."""
    create_topic(bootstrap, topic)
    options = parse_write(
        {"kafka.bootstrap.servers": bootstrap, "topic": topic, "delivery": "exactly-once"}
    )
    query, writer = uuid.uuid4().hex, StreamWriter(options, ["value"])
    other = _task(writer, f"{query}.1", 0, [b"of another write"])
    for partition in range(3):
        _task(writer, query, partition, [b"lost with its driver"])

    writer.commit([_task(writer, query, 0, [b"again"])], 0)
    writer.commit([other], 0)

    assert values(bootstrap, topic) == [b"again", b"of another write"]
    with Cluster(bootstrap) as cluster:
        key = (topic, 0)
        committed_end = list_offsets(cluster, {key: LATEST}, read_committed=True)[key]
        assert committed_end == list_offsets(cluster, {key: LATEST})[key], "nothing is open"


@pytest.mark.parametrize("kind", [StreamWriter, BatchWriter])
def test_abort_ends_what_is_open_and_what_tasks_without_a_message_left(bootstrap, topic, kind):
    """For a task that was killed, or whose message was lost, the driver knows the partition."""
    create_topic(bootstrap, topic)
    writer = kind(_exactly_once(bootstrap, topic), ["value"])
    write = getattr(writer, "_write_id", uuid.uuid4().hex)
    told, _ = (_task(writer, write, partition, [b"x"]) for partition in range(2))

    _abort(writer, [told, None, None])

    fill(bootstrap, topic, [Record(None, b"after")])
    assert values(bootstrap, topic) == [b"after"], "nothing is open before it"


@pytest.mark.parametrize("kind", [StreamWriter, BatchWriter])
def test_abort_without_any_message_fences_what_a_batch_left(bootstrap, topic, tmp_path, kind):
    """The checkpoint identifies the query of a stream."""
    create_topic(bootstrap, topic)
    (tmp_path / "metadata").write_text(json.dumps({"id": topic}))
    options = _exactly_once(bootstrap, topic, checkpointLocation=str(tmp_path))
    writer = kind(options, ["value"])
    for partition in range(2):
        _task(writer, getattr(writer, "_write_id", topic), partition, [b"x"])

    _abort(kind(options, ["value"]) if kind is StreamWriter else writer, [None, None])

    fill(bootstrap, topic, [Record(None, b"after")])
    assert values(bootstrap, topic) == [b"after"], "nothing is open before it"


@pytest.mark.parametrize("metadata", [None, "", "{}", "[]"])
def test_abort_of_a_stream_without_a_query_leaves_it_to_the_next_run(
    bootstrap, topic, tmp_path, caplog, metadata
):
    """It must not hide why the batch has failed."""
    if metadata is not None:
        (tmp_path / "metadata").write_text(metadata)
    options = _exactly_once(bootstrap, topic, checkpointLocation=str(tmp_path))

    StreamWriter(options, ["value"]).abort([None], 0)
    StreamWriter(_exactly_once(bootstrap, topic), ["value"]).abort([None], 0)

    assert caplog.text.count(f"the query of checkpointLocation {tmp_path}: ") == 1


def test_abort_without_any_message_leaves_a_batch_that_is_recorded(bootstrap, topic, tmp_path):
    """The tasks of a repetition were killed: the batch must be committed anyway."""
    crashed = Crashed(bootstrap, topic)
    (tmp_path / "metadata").write_text(json.dumps({"id": crashed.query}))
    options = crashed.options(checkpointLocation=str(tmp_path))

    StreamWriter(options, ["value"]).abort([None, None], 0)

    assert crashed.again() == [True, True]
    assert values(bootstrap, topic) == [b"a", b"b", b"c"]


@pytest.mark.slow
def test_stream_whose_tasks_are_all_killed_leaves_nothing_open(spark, bootstrap, topic, tmp_path):
    """read_committed consumers would wait until the query is restarted."""
    source, target = f"{topic}-a", f"{topic}-b"
    for name in (source, target):
        create_topic(bootstrap, name, 2)
    rows = [Record(None, b"%03d" % n, n % 2) for n in range(20)]
    fill(bootstrap, source, rows)
    spark.dataSource.register(LosingSource)
    copy = Copy(spark, bootstrap, source, target, tmp_path / "c", delivery="exactly-once")

    with pytest.raises(StreamingQueryException, match="EOFException"):
        copy.run(into="kbroker-losing")

    prefix = f"kbroker-spark.{query_id(str(tmp_path / 'c'))}."
    with Cluster(bootstrap) as cluster:
        response = cluster.call(cluster.nodes()[0], ListTransactionsRequest(), what="transactions")
        states = {
            one.transaction_state
            for one in response.transaction_states
            if one.transactional_id.startswith(prefix)
        }
    assert states == {"Empty"}, "aborted, and of a new producer"
    copy.run()
    assert values(bootstrap, target) == [one.value for one in rows]


@pytest.mark.parametrize("kind", [StreamWriter, BatchWriter])
def test_task_that_begins_after_the_abort_is_refused(bootstrap, topic, kind):
    """Spark does not wait for the tasks of a failed job."""
    create_topic(bootstrap, topic)
    writer = kind(_exactly_once(bootstrap, topic), ["value"])
    write = getattr(writer, "_write_id", uuid.uuid4().hex)
    _abort(writer, [_task(writer, write, 0, [b"x"]), None])

    with pytest.raises(RejectedError, match="has aborted this attempt"):
        _task(writer, write, 1, [b"late"])

    fill(bootstrap, topic, [Record(None, b"after")])
    assert values(bootstrap, topic) == [b"after"], "nothing is open before it"


def test_task_that_gets_its_id_after_the_abort_had_fenced_it_is_refused(
    bootstrap, topic, monkeypatch
):
    """It looked before there was a mark, and fences the driver that fenced it."""
    create_topic(bootstrap, topic)
    writer = BatchWriter(_exactly_once(bootstrap, topic), ["value"])
    begin = ArrowProducer.begin

    def begin_late(producer):
        writer.abort([None])
        return begin(producer)

    monkeypatch.setattr(ArrowProducer, "begin", begin_late)

    with pytest.raises(RejectedError, match="has aborted this attempt"):
        _task(writer, writer._write_id, 0, [b"late"])

    fill(bootstrap, topic, [Record(None, b"after")])
    assert values(bootstrap, topic) == [b"after"], "nothing is open before it"


def test_task_that_still_writes_while_its_job_is_aborted_is_fenced(bootstrap, topic):
    create_topic(bootstrap, topic)
    writer = BatchWriter(_exactly_once(bootstrap, topic), ["value"])

    def batches():
        yield pa.record_batch({"value": [b"before"]})
        writer.abort([None])
        yield pa.record_batch({"value": [b"later"]})

    with pytest.raises(RejectedError):
        writer._write(batches(), WriteAttempt(writer._write_id, 0, writer._attempt), 0)

    fill(bootstrap, topic, [Record(None, b"after")])
    assert values(bootstrap, topic) == [b"after"], "nothing is open before it"


def test_write_id_is_written_again_after_an_aborted_attempt(bootstrap, topic):
    """Late tasks of the aborted attempts, however many, do not disturb it."""
    create_topic(bootstrap, topic, 2)
    options = _exactly_once(bootstrap, topic, writeId=f"w-{topic}")
    first, second, again = (BatchWriter(options, ["value"]) for _ in range(3))
    for aborted in (first, second):
        _task(aborted, options.write_id, 0, [b"lost"])
        aborted.abort([None, None])

    messages = [_task(again, options.write_id, n, rows) for n, rows in ((0, [b"a"]), (1, [b"b"]))]
    for late in (first, second):
        with pytest.raises(RejectedError, match="has aborted this attempt"):
            _task(late, options.write_id, 1, [b"late"])
    again.commit(messages)

    assert values(bootstrap, topic) == [b"a", b"b"]


def _exactly_once(bootstrap, topic, **more):
    given = {"topic": topic, "delivery": "exactly-once", **more}
    return parse_write({"kafka.bootstrap.servers": bootstrap, **given})


def _abort(writer, messages):
    writer.abort(messages, *([0] if isinstance(writer, StreamWriter) else []))


def _task(writer, query, partition, rows, batch=0):
    attempt = WriteAttempt(query, batch, writer._attempt)
    return writer._write(iter([pa.record_batch({"value": pa.array(rows)})]), attempt, partition)


def test_dead_prefix_of_intents_is_read_where_the_group_forgot(bootstrap, topic):
    with Cluster(bootstrap) as cluster:
        Intents(cluster, f"{topic}-i", "p").record("w", 3, [])
        assert Intents(cluster, f"{topic}-i", "p").find("w", 3) == Recorded([], 0)
        assert Intents(cluster, f"{topic}-i", "p").find("w", 4) is None
        assert Intents(cluster, f"{topic}-i", "other").find("w", 3) == Recorded([], 0)
        assert Intents(cluster, f"{topic}-i", "other").find("v", 3) is None
    assert json.loads(read_topic(bootstrap, f"{topic}-i")[0].value)["transactions"] == []
