"""``spark.read.format("kbroker")`` on kbroker, compared with what librdkafka reads."""

from datetime import UTC, datetime

import pytest
from support.clients.markers import await_markers
from support.clients.topics import (
    WAIT_S,
    Record,
    create_topic,
    delete_records,
    delete_topic,
    fill,
    producer,
    read_topic,
    send,
)

from kbroker.client.connections.cluster import Cluster
from kbroker.testing import wait_until

pytestmark = pytest.mark.integration

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture
def bootstrap(kbroker_broker):
    return kbroker_broker.bootstrap


def reader(spark, bootstrap, topic, **options):
    made = spark.read.format("kbroker").option("kafka.bootstrap.servers", bootstrap)
    if not {"assign", "subscribePattern"} & set(options):
        made = made.option("subscribe", topic)
    for name, value in options.items():
        made = made.option(name, value)
    return made


def rows(frame):
    """As ``Record``, by partition and offset."""
    found = []
    for row in frame.collect():
        fields = row.asDict()
        headers = fields.get("headers")
        found.append(
            Record(
                _bytes(row.key),
                _bytes(row.value),
                row.partition,
                [(one.key, _bytes(one.value)) for one in headers] if headers is not None else None,
                round((row.timestamp.replace(tzinfo=UTC) - EPOCH).total_seconds() * 1000),
                row.offset,
            )
        )
    return sorted(found, key=lambda one: (one.partition, one.offset))


def _bytes(value):
    return None if value is None else bytes(value)


def offsets(frame):
    return sorted(
        (row.partition, row.offset) for row in frame.select("partition", "offset").collect()
    )


def mixed(count, partitions=3):
    """Nulls, empty values, headers, sizes from nothing to 3000 bytes."""
    for n in range(count):
        yield Record(
            None if n % 5 == 0 else b"k%d" % (n % 7),
            None if n % 11 == 0 else bytes([n % 256]) * (n * 37 % 3000),
            n % partitions,
            [("a", b"%d" % n), ("b", None), ("a", b"")][: n % 4] if n % 3 == 0 and n % 4 else None,
            1_700_000_000_000 + n,
        )


def test_rows_are_those_of_an_independent_reader_over_all_codecs(spark, bootstrap, topic):
    create_topic(bootstrap, topic, 3)
    for codec in CODECS:
        fill(bootstrap, topic, mixed(200), compression_type=codec)

    got = rows(reader(spark, bootstrap, topic, includeHeaders="true").load())

    assert got == read_topic(bootstrap, topic)
    assert len(got) == 1000


def test_schema_is_the_connectors(spark, bootstrap, topic):
    create_topic(bootstrap, topic)

    plain = reader(spark, bootstrap, topic).load()
    headed = reader(spark, bootstrap, topic, includeHeaders="true").load()

    assert plain.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int>"
    )
    assert headed.schema["headers"].dataType.simpleString() == (
        "array<struct<key:string,value:binary>>"
    )
    assert plain.count() == 0


def test_projection_makes_only_the_columns_of_the_schema(spark, bootstrap, topic):
    create_topic(bootstrap, topic)
    fill(bootstrap, topic, mixed(50, 1))

    frame = reader(spark, bootstrap, topic).schema("offset long, value binary").load()

    assert frame.columns == ["offset", "value"]
    expected = [(one.offset, one.value) for one in read_topic(bootstrap, topic)]
    assert [(row.offset, _bytes(row.value)) for row in frame.collect()] == expected


@pytest.mark.parametrize(
    ("schema", "says"),
    [("valeu binary", "column valeu"), ("value string", "write binary and cast it in the query")],
)
def test_projection_of_other_columns_is_refused(spark, bootstrap, topic, schema, says):
    create_topic(bootstrap, topic)

    with pytest.raises(Exception, match=says):
        reader(spark, bootstrap, topic).schema(schema).load().count()


@pytest.mark.slow
def test_dataframe_is_a_snapshot_and_a_new_load_a_new_one(spark, bootstrap, topic):
    create_topic(bootstrap, topic)
    fill(bootstrap, topic, mixed(10, 1))
    frame = reader(spark, bootstrap, topic).load()
    assert frame.count() == 10

    fill(bootstrap, topic, mixed(5, 1))

    assert frame.count() == 10
    assert frame.union(frame).count() == 20
    assert frame.filter("offset >= 8").count() == 2
    assert reader(spark, bootstrap, topic).load().count() == 15


@pytest.mark.parametrize(
    ("options", "tasks"),
    [
        ({}, 2),
        ({"minPartitions": "6"}, 6),
        ({"maxRecordsPerPartition": "30"}, 8),
        ({"packPartitions": "true"}, 1),
        ({"split": "partition"}, 2),
    ],
)
def test_tasks_follow_the_options_and_rows_stay_the_same(spark, bootstrap, topic, options, tasks):
    create_topic(bootstrap, topic, 3)
    fill(bootstrap, topic, [one._replace(partition=one.partition) for one in mixed(200, 2)])

    frame = reader(spark, bootstrap, topic, **options).load()

    assert frame.rdd.getNumPartitions() == tasks
    assert offsets(frame) == [(p, o) for p in (0, 1) for o in range(100)]


def test_ranges_cut_batches_that_straddle_them(spark, bootstrap, topic):
    create_topic(bootstrap, topic)
    for codec in ("none", "zstd"):
        fill(bootstrap, topic, mixed(500, 1), compression_type=codec, linger_ms=200)
    expected = read_topic(bootstrap, topic)

    for start, end in ((0, 1), (3, 499), (499, 501), (999, 1000), (7, 7)):
        frame = reader(
            spark,
            bootstrap,
            topic,
            startingOffsets=f'{{"{topic}":{{"0":{start}}}}}',
            endingOffsets=f'{{"{topic}":{{"0":{end}}}}}',
            includeHeaders="true",
        ).load()
        assert rows(frame) == expected[start:end]


def test_times_choose_offsets(spark, bootstrap, topic):
    create_topic(bootstrap, topic, 2)
    first = 1_700_000_000_000
    fill(bootstrap, topic, [Record(None, b"x", n % 2, None, first + n * 1000) for n in range(20)])

    frame = reader(
        spark, bootstrap, topic,
        startingTimestamp=str(first + 5_000),
        endingOffsetsByTimestamp=f'{{"{topic}":{{"0":{first + 10_000},"1":{first + 999_000}}}}}',
    ).load()  # fmt: skip

    assert offsets(frame) == [(0, 3), (0, 4), *[(1, n) for n in range(2, 10)]]


def test_pattern_and_assignment_choose_partitions(spark, bootstrap, topic):
    for name in (f"{topic}-a", f"{topic}-b", f"x{topic}-a"):
        create_topic(bootstrap, name, 2)
        fill(bootstrap, name, mixed(4, 2))

    by_pattern = reader(spark, bootstrap, topic, subscribePattern=f"^{topic}-.$").load()
    assigned = reader(spark, bootstrap, topic, assign=f'{{"{topic}-a":[1]}}').load()

    assert {row.topic for row in by_pattern.collect()} == {f"{topic}-a", f"{topic}-b"}
    assert by_pattern.count() == 8
    assert offsets(assigned) == [(1, 0), (1, 1)]


def test_filters_reach_the_reader_where_asked_for(spark, bootstrap, topic):
    create_topic(bootstrap, topic, 2)
    fill(bootstrap, topic, mixed(200, 2))
    name = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(name, "true")
    try:
        frame = reader(spark, bootstrap, topic, pushdown="true").load()
        late = frame.filter("partition = 1 and offset >= 90 and offset < 95")
        assert offsets(late) == [(1, n) for n in range(90, 95)]
        assert late.rdd.getNumPartitions() == 1
        young = frame.filter("timestamp >= timestamp_millis(1700000000190)")
        assert offsets(young) == [(p, n) for p in (0, 1) for n in range(95, 100)]
        assert offsets(frame.filter("offset in (3, 50)")) == [(0, 3), (0, 50), (1, 3), (1, 50)]
        assert reader(spark, bootstrap, topic).load().filter("offset < 5").count() == 10
    finally:
        spark.conf.unset(name)


def test_options_are_refused_before_a_job_starts(spark, bootstrap, topic):
    create_topic(bootstrap, topic)

    with pytest.raises(Exception, match="write earliest or"):
        reader(spark, bootstrap, topic, startingOffsets="latest").load().collect()
    with pytest.raises(Exception, match="there is no topic missing"):
        reader(spark, bootstrap, "missing").load().collect()


def test_lost_offsets_fail_or_are_skipped(spark, bootstrap, topic):
    create_topic(bootstrap, topic)
    fill(bootstrap, topic, mixed(20, 1))
    delete_records(bootstrap, topic, 0, 15)
    wanted = {"startingOffsets": f'{{"{topic}":{{"0":10}}}}'}

    with pytest.raises(
        Exception, match=rf"{topic}-0: requested \[10, 20\), but the log holds \[15, 20\)"
    ):
        reader(spark, bootstrap, topic, **wanted).load().collect()
    left = reader(spark, bootstrap, topic, **wanted, failOnDataLoss="false").load()
    assert offsets(left) == [(0, n) for n in range(15, 20)]


def test_offsets_lost_after_planning_fail_in_the_task_or_are_skipped(spark, bootstrap, topic):
    create_topic(bootstrap, topic)
    fill(bootstrap, topic, mixed(20, 1))
    frame = reader(spark, bootstrap, topic).load()
    loose = reader(spark, bootstrap, topic, failOnDataLoss="false").load()
    assert frame.rdd.getNumPartitions() == loose.rdd.getNumPartitions() == 1
    delete_records(bootstrap, topic, 0, 15)

    with pytest.raises(
        Exception, match=rf"{topic}-0: requested \[0, 20\), but the log holds \[15, 20\)"
    ):
        frame.collect()
    assert offsets(loose) == [(0, n) for n in range(15, 20)]


def test_topic_recreated_after_planning_is_not_read(spark, bootstrap, topic):
    create_topic(bootstrap, topic)
    fill(bootstrap, topic, mixed(10, 1))
    frame = reader(spark, bootstrap, topic).load()
    loose = reader(spark, bootstrap, topic, failOnDataLoss="false").load()
    assert frame.rdd.getNumPartitions() == loose.rdd.getNumPartitions() == 1
    delete_topic(bootstrap, topic)
    wait_until(lambda: _made(bootstrap, topic), timeout=30)
    fill(bootstrap, topic, mixed(20, 1))

    with pytest.raises(Exception, match=rf"{topic}-0: requested \[0, 10\), but the log is gone"):
        frame.collect()
    assert loose.collect() == []


def _made(bootstrap, topic):
    try:
        create_topic(bootstrap, topic)
    except Exception:
        return False
    return True


def test_committed_reads_skip_aborted_records_and_stop_before_open_ones(spark, bootstrap, topic):
    create_topic(bootstrap, topic)
    made = producer(bootstrap, transactional_id=f"{topic}-1", linger_ms=0)
    made.init_transactions(WAIT_S)
    for ends in ("commit", "abort", "commit"):
        made.begin_transaction()
        send(made, topic, [Record(None, ends.encode())] * 3)
        made.flush(WAIT_S)
        made.commit_transaction(WAIT_S) if ends == "commit" else made.abort_transaction(WAIT_S)
    with Cluster(bootstrap) as cluster:
        await_markers(cluster, topic)
    made.begin_transaction()
    send(made, topic, [Record(None, b"open")] * 2)
    made.flush(WAIT_S)

    committed = reader(spark, bootstrap, topic, **{"kafka.isolation.level": "read_committed"})
    uncommitted = reader(spark, bootstrap, topic)

    assert [one.value for one in rows(committed.load())] == [b"commit"] * 6
    assert len(rows(uncommitted.load())) == 11
    made.abort_transaction(WAIT_S)


def test_sql_view_reads_the_topic(spark, bootstrap, topic):
    create_topic(bootstrap, topic)
    fill(bootstrap, topic, mixed(10, 1))
    view = topic.replace("-", "_")

    spark.sql(
        f"CREATE TEMPORARY VIEW {view} USING kbroker OPTIONS "
        f"(`kafka.bootstrap.servers` '{bootstrap}', subscribe '{topic}')"
    )

    assert spark.sql(f"SELECT count(*) AS n FROM {view}").collect()[0].n == 10


def test_unreachable_broker_is_an_error_within_the_deadline(spark, topic):
    options = {"kafka.default.api.timeout.ms": "2000", "fetchOffset.numRetries": "1"}

    with pytest.raises(Exception, match=r"^\[PYTHON_DATA[^\n]*within 2 s: 127\.0\.0\.1:1"):
        reader(spark, "127.0.0.1:1", topic, **options).load().collect()


@pytest.mark.slow
@pytest.mark.fault
def test_broker_restart_between_plan_and_read_loses_nothing(spark, kbroker, topic):
    create_topic(kbroker.bootstrap, topic, 2)
    fill(kbroker.bootstrap, topic, mixed(400, 2))
    expected = read_topic(kbroker.bootstrap, topic)
    frame = reader(spark, kbroker.bootstrap, topic, includeHeaders="true", minPartitions="8").load()
    assert frame.rdd.getNumPartitions() == 8

    kbroker.restart()

    assert rows(frame) == expected
