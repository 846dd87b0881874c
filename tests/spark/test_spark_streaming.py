"""``spark.readStream.format("kbroker")`` on kbroker: limits, restarts, changing topics, groups."""

import itertools
import json
import uuid
from threading import Event

import pytest
from support.clients.markers import await_markers
from support.clients.topics import (
    WAIT_S,
    Record,
    add_partitions,
    create_topic,
    delete_records,
    delete_topic,
    fill,
    producer,
    send,
)
from support.running.grids import some_of

from kbroker.client.batches.offsets import committed
from kbroker.client.connections.cluster import Cluster
from kbroker.testing import Broker, wait_until

pytestmark = pytest.mark.integration

# Values of prefetchMaxOffsets, which decides who reads.
BY_TASKS, BY_DRIVER = "0", "1000"


@pytest.fixture
def bootstrap(kbroker_broker):
    return kbroker_broker.bootstrap


@pytest.fixture
def stream(spark, bootstrap, topic, tmp_path):
    """``stream(availableNow=..., **options)`` runs a query and returns it with its rows so far;
    each call continues from the same checkpoint.
    """
    return Stream(spark, bootstrap, topic, tmp_path)


class Stream:
    def __init__(self, spark, bootstrap, topic, place):
        self.spark, self.bootstrap, self.topic, self.place = spark, bootstrap, topic, place
        self.seen = []
        self.batches = []
        self.tasks = []

    def start(self, *, trigger=None, fail_in=None, **options):
        reader = self.spark.readStream.format("kbroker")
        options.setdefault("checkpointLocation", str(self.place / "checkpoint"))
        options.setdefault("subscribe", self.topic)
        for name, value in {"kafka.bootstrap.servers": self.bootstrap, **options}.items():
            reader = reader.option(name, value)

        def take(frame, batch_id):
            rows = [(r.topic, r.partition, r.offset) for r in frame.collect()]
            self.tasks.append(frame.rdd.getNumPartitions())
            if fail_in == batch_id:
                raise RuntimeError("this batch was to fail")
            self.batches.append((batch_id, sorted(rows)))
            self.seen += rows

        return (
            reader.load()
            .select("topic", "partition", "offset")
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", str(self.place / "checkpoint"))
            .trigger(**(trigger or {"availableNow": True}))
            .queryName(f"q{uuid.uuid4().hex[:8]}")
            .start()
        )

    def run(self, **options):
        query = self.start(**options)
        query.awaitTermination(300)
        assert not query.isActive
        return query

    def offset_log(self):
        """Offsets by batch, from the checkpoint."""
        found = {}
        for file in (self.place / "checkpoint" / "offsets").iterdir():
            if file.name.isdigit():
                found[int(file.name)] = json.loads(file.read_text().splitlines()[2])
        return found


def numbered(count, partitions=1):
    return [Record(None, b"%d" % n, n % partitions) for n in range(count)]


@pytest.mark.slow
def test_available_now_reads_all_in_limited_batches_and_continues_later(stream):
    create_topic(stream.bootstrap, stream.topic, 2)
    fill(stream.bootstrap, stream.topic, numbered(100, 2))

    query = stream.run(startingOffsets="earliest", maxOffsetsPerTrigger="40", groupId="g-now")

    assert sorted(stream.seen) == [(stream.topic, p, o) for p in (0, 1) for o in range(50)]
    assert [len(rows) for _, rows in stream.batches] == [40, 40, 20]
    assert stream.offset_log()[0] == {stream.topic: {"0": 20, "1": 20}}
    source = query.lastProgress["sources"][0] if query.lastProgress else None
    assert source is None or json.loads(json.dumps(source["latestOffset"]))
    with Cluster(stream.bootstrap) as cluster:
        found = committed(cluster, "g-now")
    assert {key: at.offset for key, at in found.items()} == {
        (stream.topic, 0): 50, (stream.topic, 1): 50
    }  # fmt: skip

    fill(stream.bootstrap, stream.topic, numbered(10, 2))
    stream.run(startingOffsets="earliest")
    assert len(stream.seen) == len(set(stream.seen)) == 110


@pytest.mark.parametrize(
    "prefetched", some_of([BY_TASKS, BY_DRIVER], [BY_TASKS]), ids=["by tasks", "by the driver"]
)
def test_every_column_of_committed_records_is_read_either_way(
    spark, bootstrap, topic, tmp_path, prefetched
):
    create_topic(bootstrap, topic, 2)
    records = [
        Record(
            b"k%d" % n if n % 2 else None, b"v" * n, n % 2, [("h", b"%d" % n)] if n % 3 else None
        )
        for n in range(40)
    ]
    made = producer(bootstrap, transactional_id=f"w-{topic}")
    made.init_transactions(WAIT_S)
    commit, abort = made.commit_transaction, made.abort_transaction
    for some, end in ((records[:20], commit), (records[:9], abort), (records[20:], commit)):
        made.begin_transaction()
        send(made, topic, some)
        made.flush(WAIT_S)
        end(WAIT_S)
    with Cluster(bootstrap) as cluster:
        await_markers(cluster, topic)
    options = {
        "subscribe": topic,
        "kafka.bootstrap.servers": bootstrap,
        "kafka.isolation.level": "read_committed",
        "includeHeaders": "true",
        "startingOffsets": "earliest",
    }
    stream = spark.readStream.format("kbroker").option("prefetchMaxOffsets", prefetched)
    stream = stream.option("maxOffsetsPerTrigger", "15").options(**options).load()
    name = f"m{uuid.uuid4().hex[:8]}"

    (
        stream.writeStream.format("memory")
        .queryName(name)
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
        .awaitTermination(300)
    )

    batch = spark.read.format("kbroker").options(**options).load()
    found = spark.table(name)
    assert found.schema == batch.schema
    assert len(found.collect()) == 40
    assert sorted(map(str, found.collect())) == sorted(map(str, batch.collect()))


@pytest.mark.slow
def test_small_batches_are_one_task_each_and_the_end_of_the_log_is_reported(stream):
    create_topic(stream.bootstrap, stream.topic, 3)
    fill(stream.bootstrap, stream.topic, numbered(90, 3))
    tasks = {}
    for prefetched in ("0", "30"):
        stream.place = stream.place / prefetched
        query = stream.run(
            startingOffsets="earliest", maxOffsetsPerTrigger="30", prefetchMaxOffsets=prefetched
        )
        tasks[prefetched], stream.tasks = stream.tasks, []
        reported = {one["sources"][0]["latestOffset"] for one in query.recentProgress}
        assert [json.loads(one) for one in reported] == [
            {stream.topic: {"0": 30, "1": 30, "2": 30}}
        ]

    assert tasks == {"0": [3, 3, 3], "30": [1, 1, 1]}
    assert sorted(stream.seen) == sorted(
        2 * [(stream.topic, p, o) for p in range(3) for o in range(30)]
    )


@pytest.mark.parametrize(
    ("loses", "prefetched"),
    some_of(
        itertools.product(("true", "false"), (BY_TASKS, BY_DRIVER)),
        [("true", BY_TASKS)],
    ),
)
@pytest.mark.slow
def test_records_deleted_before_they_are_read_fail_or_are_left_out(stream, loses, prefetched):
    create_topic(stream.bootstrap, stream.topic)
    fill(stream.bootstrap, stream.topic, numbered(9))
    options = {"startingOffsets": "earliest", "failOnDataLoss": loses,
               "prefetchMaxOffsets": prefetched}  # fmt: skip
    stream.run(**options)
    fill(stream.bootstrap, stream.topic, numbered(6))
    delete_records(stream.bootstrap, stream.topic, 0, 12)

    if loses == "true":
        with pytest.raises(Exception, match=rf"{stream.topic}-0: requested \[9, 15\), but the log"):
            stream.run(**options)
    else:
        stream.run(**options)
        assert stream.batches[-1][1] == [(stream.topic, 0, n) for n in (12, 13, 14)]


@pytest.mark.slow
def test_crash_in_the_first_batch_at_latest_loses_nothing(stream):
    create_topic(stream.bootstrap, stream.topic)
    fill(stream.bootstrap, stream.topic, numbered(10))
    query = stream.start(trigger={"processingTime": "50 milliseconds"}, fail_in=0)
    wait_until(lambda: (stream.place / "checkpoint" / "kbroker").exists(), timeout=60)
    fill(stream.bootstrap, stream.topic, numbered(5))
    with pytest.raises(Exception, match="this batch was to fail"):
        query.awaitTermination(300)
    fill(stream.bootstrap, stream.topic, numbered(5))

    stream.run(startingTimestamp="1")  # has no effect on a query that has started

    offsets = sorted(offset for _, _, offset in stream.seen)
    assert offsets == list(range(10, 20))


@pytest.mark.slow
def test_new_partitions_and_topics_are_read_from_their_start(stream):
    create_topic(stream.bootstrap, stream.topic)
    fill(stream.bootstrap, stream.topic, numbered(4))
    options = {"startingOffsets": "earliest"}
    stream.run(**options)
    add_partitions(stream.bootstrap, stream.topic, 2)
    fill(stream.bootstrap, stream.topic, [Record(None, b"x", 1)] * 3)

    stream.run(**options)

    assert sorted(stream.seen) == sorted(
        [(stream.topic, 0, n) for n in range(4)] + [(stream.topic, 1, n) for n in range(3)]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loses", "count"),
    some_of(itertools.product(("true", "false"), (4, 20)), [("true", 20)]),
)
def test_topic_recreated_between_runs_fails_or_is_read_from_its_start(stream, loses, count):
    """Even if it is longer by then than the old one was."""
    create_topic(stream.bootstrap, stream.topic)
    fill(stream.bootstrap, stream.topic, numbered(9))
    options = {"startingOffsets": "earliest", "failOnDataLoss": loses,
               "fetchOffset.retryIntervalMs": "50"}  # fmt: skip
    stream.run(**options)
    delete_topic(stream.bootstrap, stream.topic)
    wait_until(lambda: _made(stream), timeout=30)
    fill(stream.bootstrap, stream.topic, numbered(count))

    if loses == "true":
        says = rf"requested \[9, ...\), but the log holds \[..., {count}\)"
        with pytest.raises(Exception, match=says):
            stream.run(**options)
    else:
        stream.run(**options)
        assert stream.batches[-1][1] == [(stream.topic, 0, n) for n in range(count)]
        fill(stream.bootstrap, stream.topic, numbered(3))
        stream.run(**options)
        assert stream.batches[-1][1] == [(stream.topic, 0, count + n) for n in range(3)]


def _made(stream):
    try:
        create_topic(stream.bootstrap, stream.topic)
    except Exception:
        return False
    return True


def test_stream_that_keeps_its_start_nowhere_is_refused(spark, bootstrap, topic, tmp_path):
    create_topic(bootstrap, topic)
    reader = spark.readStream.format("kbroker").option("kafka.bootstrap.servers", bootstrap)
    query = (
        reader.option("subscribe", topic)
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path))
        .start()
    )

    with pytest.raises(Exception, match="write checkpointLocation on the reader"):
        query.awaitTermination(300)


@pytest.mark.parametrize(
    "trigger",
    some_of(
        [{"availableNow": True}, {"processingTime": "1 second"}], [{"processingTime": "1 second"}]
    ),
)
@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("endingOffsets", "latest", r"endingOffsets has no meaning in a stream: .*availableNow"),
        pytest.param(
            *("failOnDataLoss", "no", "failOnDataLoss is 'no': write true or false"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_refused_option_of_a_stream_is_told_and_nothing_else(
    spark, bootstrap, topic, tmp_path, option, value, says, trigger
):
    reader = spark.readStream.format("kbroker").option("kafka.bootstrap.servers", bootstrap)
    reader = reader.option("subscribe", topic).option(option, value)

    with pytest.raises(Exception, match=says) as caught:
        (
            reader.load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path))
            .trigger(**trigger)
            .start()
            .awaitTermination(300)
        )

    assert "UnboundLocalError" not in str(caught.value)


@pytest.mark.slow
def test_read_stream_helper_and_projection(spark, bootstrap, topic, tmp_path):
    from kbroker.spark import read_stream

    create_topic(bootstrap, topic)
    fill(bootstrap, topic, numbered(5))
    place = str(tmp_path / "checkpoint")
    frame = read_stream(
        spark, bootstrap, [topic], checkpoint=place, columns="value binary",
        startingOffsets="earliest",
    )  # fmt: skip
    assert frame.columns == ["value"]
    name = f"m{uuid.uuid4().hex[:8]}"

    (
        frame.writeStream.format("memory")
        .queryName(name)
        .option("checkpointLocation", place)
        .trigger(availableNow=True)
        .start()
        .awaitTermination(300)
    )

    found = sorted(bytes(row.value) for row in spark.table(name).collect())
    assert found == [b"%d" % n for n in range(5)]


@pytest.mark.parametrize(
    "prefetched",
    ["0", "2000"],
    ids=["by tasks", "by the driver"],
)
@pytest.mark.slow
def test_broker_that_restarts_while_a_stream_reads_loses_and_repeats_nothing(
    spark, topic, tmp_path, prefetched
):
    """Tasks and the driver wait for the broker within their deadlines."""
    count, per_batch = 20_000, 2_000
    rows, second_began, broker_is_dead = [], Event(), Event()

    def take(frame, batch):
        if batch == 1:
            second_began.set()
            assert broker_is_dead.wait(300)
        rows.extend((row.partition, row.offset) for row in frame.collect())

    with Broker({"log.retention.ms": -1}) as broker:
        create_topic(broker.bootstrap, topic, 2)
        fill(broker.bootstrap, topic, [Record(None, b"x" * 200, n % 2) for n in range(count)])
        reader = spark.readStream.format("kbroker").option("subscribe", topic)
        reader = reader.option("kafka.bootstrap.servers", broker.bootstrap)
        reader = reader.option("startingOffsets", "earliest")
        reader = reader.option("prefetchMaxOffsets", prefetched)
        reader = reader.option("maxOffsetsPerTrigger", str(per_batch))
        query = (
            reader.load()
            .select("partition", "offset")
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )

        wait_until(lambda: second_began.is_set() or not query.isActive, timeout=300)
        broker.kill_all()
        broker_is_dead.set()
        broker.restart()
        query.awaitTermination(600)

    assert query.exception() is None
    assert not query.isActive
    assert sorted(rows) == [(p, o) for p in (0, 1) for o in range(count // 2)]
