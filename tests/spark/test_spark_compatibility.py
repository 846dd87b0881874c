"""The same topics of the same Apache Kafka, through Spark's own connector and through kbroker."""

import json
import uuid
from pathlib import Path

import pytest
from support.clients.markers import await_markers
from support.clients.topics import WAIT_S, Record, create_topic, fill, producer, send
from support.running.grids import some_of
from support.storage.message_sets import OldMessage, set_bytes, wrapper_bytes

from kbroker.client.batches.offsets import commit
from kbroker.client.connections.cluster import Cluster
from kbroker.testing import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.java]

FIRST_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def both(spark, kafka_broker):
    """A function that reads the same with both; skips if the connector is missing."""
    if not spark.conf.get("spark.jars", ""):
        pytest.skip("the connector's jars are not there and cannot be fetched")

    def read(options):
        found = []
        for name in ("kafka", "kbroker"):
            reader = spark.read.format(name)
            reader = reader.option("kafka.bootstrap.servers", kafka_broker.bootstrap)
            for option, value in options.items():
                reader = reader.option(option, value)
            found.append(reader.load())
        return found

    return read


@pytest.fixture(scope="module")
def full(kafka_broker):
    """A topic of three partitions with all kinds of records, written with every codec."""
    name = f"full-{uuid.uuid4().hex[:8]}"
    create_topic(kafka_broker.bootstrap, name, 3)
    for number, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        fill(kafka_broker.bootstrap, name, mixed(60, number * 60), compression_type=codec)
    return name


def mixed(count, first=0):
    for n in range(first, first + count):
        headers = [("a", b"%d" % n), ("b", None), ("", b"")][: n % 4] or None
        yield Record(
            None if n % 5 == 0 else b"k%d" % (n % 7),
            None if n % 11 == 0 else bytes([n % 256]) * (n * 37 % 900),
            n % 3 if n % 2 else 0,
            headers if n % 3 == 0 else None,
            FIRST_MS + n * 10,
        )


def same(frames):
    """Asserts equal schemas and rows; returns the rows."""
    theirs, ours = frames
    assert ours.schema == theirs.schema
    found = [_sorted(frame) for frame in frames]
    assert found[1] == found[0]
    return found[1]


def _sorted(frame):
    rows = [_plain(row) for row in frame.collect()]
    return sorted(rows, key=lambda row: row[2:5])


def _plain(value):
    if isinstance(value, bytearray | bytes):
        return bytes(value)
    if isinstance(value, list | tuple):
        return tuple(_plain(one) for one in value)
    return value


def offsets_json(name, *offsets):
    return json.dumps({name: {str(n): at for n, at in enumerate(offsets)}})


# What is not slow takes a part of them.
OPTIONS = [
    {"startingOffsets": (3, -2, 20), "endingOffsets": (50, 45, -1)},
    {"startingTimestamp": FIRST_MS + 500},
    {"startingTimestamp": FIRST_MS + 500, "endingTimestamp": FIRST_MS + 2000},
    {"startingTimestamp": FIRST_MS + 500, "startingOffsets": (9, 9, 9)},
    {"startingOffsetsByTimestamp": (FIRST_MS, FIRST_MS + 100, FIRST_MS + 1001)},
    {
        "startingOffsetsByTimestamp": (FIRST_MS, FIRST_MS + 100, FIRST_MS + 10**9),
        "startingOffsetsByTimestampStrategy": "latest",
    },
    {"endingOffsetsByTimestamp": (FIRST_MS + 700, FIRST_MS, FIRST_MS + 10**9)},
    {"endingTimestamp": FIRST_MS + 10**9},
    {"minPartitions": 7},
    {"maxRecordsPerPartition": 13},
    {"minPartitions": 9, "maxRecordsPerPartition": 40},
    {"failOnDataLoss": "false", "groupIdPrefix": "x", "kafkaConsumer.pollTimeoutMs": 60000},
    {"fetchOffset.numRetries": 2, "fetchOffset.retryIntervalMs": 5, "kafka.group.id": "g-x"},
    {"maxOffsetsPerTrigger": 5, "minOffsetsPerTrigger": 1, "maxTriggerDelay": "1m"},
    {"kafka.isolation.level": "read_committed", "STARTINGOFFSETS": "EARLIEST"},
    {"startingTimestamp": -2, "endingTimestamp": -1},
]
REFUSED = [
    {},
    {"subscribe": "a", "assign": '{"a":[0]}'},
    {"subscribe": " ,"},
    {"subscribePattern": " "},
    {"assign": "a-0"},
    {"subscribe": "a", "startingOffsets": "latest"},
    {"subscribe": "a", "startingOffsets": '{"a":{"0":-1}}'},
    {"subscribe": "a", "startingOffsets": "soon"},
    {"subscribe": "a", "endingOffsets": "earliest"},
    {"subscribe": "a", "endingOffsets": '{"a":{"0":-2}}'},
    {"subscribe": "a", "startingTimestamp": "x"},
    {"subscribe": "a", "startingOffsetsByTimestampStrategy": "x"},
    {"subscribe": "a", "minPartitions": "0"},
    {"subscribe": "a", "maxRecordsPerPartition": "0"},
    {"subscribe": "a", "kafka.auto.offset.reset": "latest"},
    {"subscribe": "a", "kafka.key.deserializer": "x"},
    {"subscribe": "a", "kafka.value.deserializer": "x"},
    {"subscribe": "a", "kafka.enable.auto.commit": "true"},
    {"subscribe": "a", "kafka.interceptor.classes": "x"},
    {"subscribe": "a", "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"},
    {
        "subscribe": "a",
        "startingOffsets": '{"a":{"0":9}}',
        "endingOffsets": '{"a":{"0":1}}',
    },
    {"subscribe": "FULL", "startingTimestamp": "2000", "endingTimestamp": "500"},
    {"subscribe": "a", "startingOffsets": '{"a":{"0":9}}', "endingOffsets": '{"a":{"1":9}}'},
]


@pytest.mark.parametrize("headers", ["true", "false"])
def test_rows_and_schema_are_the_same(both, full, headers):
    assert len(same(both({"subscribe": full, "includeHeaders": headers}))) == 300


@pytest.mark.parametrize(
    "options", some_of(OPTIONS, OPTIONS[::3]), ids=lambda options: "+".join(options)
)
@pytest.mark.slow
def test_each_option_gives_the_same_rows(both, full, options):
    given = {"subscribe": full}
    for name, value in options.items():
        given[name] = offsets_json(full, *value) if isinstance(value, tuple) else str(value)

    frames = both(given)

    same(frames)
    if "minPartitions" in options:
        assert frames[1].rdd.getNumPartitions() == frames[0].rdd.getNumPartitions()
    elif "maxRecordsPerPartition" in options:
        # The connector, 4.2.0, uses it in a batch only with minPartitions; its documentation
        # promises more.
        assert frames[1].rdd.getNumPartitions() == 16 + 4 + 4  # of 200, 50 and 50 offsets


@pytest.mark.slow
def test_subscriptions_choose_the_same_partitions(both, full, kafka_broker):
    other = f"{full}-other"
    create_topic(kafka_broker.bootstrap, other, 2)
    fill(kafka_broker.bootstrap, other, [Record(b"k", b"v", n % 2) for n in range(9)])

    assert len(same(both({"assign": json.dumps({full: [0, 2], other: [1]})}))) > 9
    assert len(same(both({"subscribe": f"{full}, {other}"}))) == 309
    assert len(same(both({"subscribePattern": f"{full}-o.*"}))) == 9
    assert len(same(both({"subscribePattern": full}))) == 309, "matched anywhere in a name"
    assert len(same(both({"subscribePattern": f"^{full}$"}))) == 300


@pytest.mark.parametrize(
    "options", some_of(REFUSED, REFUSED[::4]), ids=lambda options: "+".join(options) or "nothing"
)
def test_what_the_connector_refuses_is_refused(spark, both, full, kafka_broker, options):
    if options.get("subscribe") == "FULL":
        times = {name: str(FIRST_MS + int(at)) for name, at in options.items() if "Time" in name}
        options = {"subscribe": full, **times}
    for name in ("kafka", "kbroker"):
        reader = spark.read.format(name).option("kafka.bootstrap.servers", kafka_broker.bootstrap)
        for option, value in options.items():
            reader = reader.option(option, value)
        with pytest.raises(Exception) as caught:
            reader.load().collect()
        if name == "kbroker":
            assert "OptionError" in str(caught.value)
            assert any(word in str(caught.value) for word in ("write", "leave it out", "cast"))


def test_offset_below_the_symbolic_ones_is_refused_by_both(both, full):
    theirs, ours = both({"subscribe": full, "startingOffsets": offsets_json(full, -3, 0, 0)})

    with pytest.raises(Exception, match="earliest offset -3 does not equal -2"):
        theirs.collect()
    with pytest.raises(Exception, match=r"OptionError: startingOffsets of .* is -3: write"):
        ours.collect()


@pytest.mark.slow
def test_transactions_aborted_and_open_look_the_same(both, kafka_broker):
    name = f"tx-{uuid.uuid4().hex[:8]}"
    create_topic(kafka_broker.bootstrap, name, 2)
    made = producer(kafka_broker.bootstrap, transactional_id=name, linger_ms=0)
    made.init_transactions(WAIT_S)
    for number, ends in enumerate(("commit", "abort", "commit", "abort", "open")):
        with Cluster(kafka_broker.bootstrap) as cluster:
            await_markers(cluster, name)
        made.begin_transaction()
        rows = [Record(b"%d" % number, ends.encode(), n % 2, None, FIRST_MS) for n in range(6)]
        send(made, name, rows)
        made.flush(WAIT_S)
        if ends != "open":
            made.commit_transaction(WAIT_S) if ends == "commit" else made.abort_transaction(WAIT_S)

    committed = same(both({"subscribe": name, "kafka.isolation.level": "read_committed"}))
    uncommitted = same(both({"subscribe": name}))

    assert {row[1] for row in committed} == {b"commit"}
    assert (len(committed), len(uncommitted)) == (12, 30)
    split = both(
        {"subscribe": name, "kafka.isolation.level": "read_committed", "minPartitions": "6"}
    )
    assert len(same(split)) == 12
    made.abort_transaction(WAIT_S)


@pytest.mark.slow
@pytest.mark.timeout(900)  # against hanging, where others compute
def test_compacted_gaps_look_the_same(both, kafka_broker):
    name = f"gaps-{uuid.uuid4().hex[:8]}"
    config = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
        "segment.ms": "100",
        "max.compaction.lag.ms": "100",
    }
    create_topic(kafka_broker.bootstrap, name, 1, config)
    for codec in ("none", "lz4"):
        rows = [Record(b"k%d" % (n % 10), b"%s %d" % (codec.encode(), n)) for n in range(300)]
        fill(kafka_broker.bootstrap, name, rows, compression_type=codec, linger_ms=0)

    def compacted():
        fill(kafka_broker.bootstrap, name, [Record(b"end", b"x")])
        return both({"subscribe": name})[1].count() < 500

    wait_until(compacted, timeout=300)

    assert len(same(both({"subscribe": name}))) < 500
    assert same(both({"subscribe": name, "minPartitions": "5"}))


@pytest.mark.slow
def test_offset_log_of_a_stream_is_the_same(spark, both, full, kafka_broker, tmp_path):
    logs, rows = {}, {}
    for name in ("kafka", "kbroker"):
        place = tmp_path / name
        table = f"m{uuid.uuid4().hex[:8]}"
        frame = spark.readStream.format(name)
        options = {
            "kafka.bootstrap.servers": kafka_broker.bootstrap,
            "subscribe": full,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": "100",
        }
        if name == "kbroker":
            options["checkpointLocation"] = str(place)
        for option, value in options.items():
            frame = frame.option(option, value)
        (
            frame.load()
            .writeStream.format("memory")
            .queryName(table)
            .option("checkpointLocation", str(place))
            .trigger(availableNow=True)
            .start()
            .awaitTermination(300)
        )
        logs[name] = _offset_log(place)
        rows[name] = _sorted(spark.table(table))

    assert logs["kbroker"] == logs["kafka"]
    assert len(logs["kafka"]) >= 3
    assert rows["kbroker"] == rows["kafka"]


def _offset_log(place: Path):
    files = [file for file in (place / "offsets").iterdir() if file.name.isdigit()]
    return {int(file.name): json.loads(file.read_text().splitlines()[2]) for file in files}


@pytest.mark.slow
def test_stream_continues_from_a_checkpoint_of_the_connector(spark, both, kafka_broker, tmp_path):
    name = f"moved-{uuid.uuid4().hex[:8]}"
    create_topic(kafka_broker.bootstrap, name, 2)
    seen = []
    for format_name in ("kafka", "kbroker", "kafka"):
        fill(kafka_broker.bootstrap, name, [Record(None, b"%d" % n, n % 2) for n in range(10)])
        reader = spark.readStream.format(format_name).option("subscribe", name)
        reader = reader.option("kafka.bootstrap.servers", kafka_broker.bootstrap)
        reader = reader.option("startingOffsets", "earliest")
        (
            reader.load()
            .writeStream.foreachBatch(lambda frame, _: seen.extend(frame.collect()))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
            .awaitTermination(300)
        )

    found = sorted((row.partition, row.offset) for row in seen)
    assert found == [(p, n) for p in (0, 1) for n in range(15)]


def old_sets(magic, first):
    """Plain messages, then a wrapper in each codec of the format."""
    offset, data = first, b""
    for codec in (0, 1, 2, 3):
        stamp = -1 if magic == 0 else FIRST_MS
        messages = [
            OldMessage(
                offset + n,
                stamp if magic == 0 else stamp + offset + n,
                None if n % 3 == 0 else b"k%d" % n,
                None if n == 5 else b"format %d codec %d " % (magic, codec) * n,
            )
            for n in range(8)
        ]
        data += wrapper_bytes(magic, codec, messages) if codec else set_bytes(magic, messages)
        offset += len(messages)
    return offset, data


@pytest.mark.slow
@pytest.mark.timeout(900)  # against hanging, where others compute
def test_message_formats_0_and_1_look_the_same(both, kafka_broker):
    name = f"old-{uuid.uuid4().hex[:8]}"
    create_topic(kafka_broker.bootstrap, name)
    fill(kafka_broker.bootstrap, name, [Record(b"k", b"new")])
    kafka_broker.halt()
    folder = kafka_broker.home / "data" / f"{name}-0"
    newest = (folder / f"{0:020}.log").read_bytes()
    middle, zero = old_sets(0, 0)
    end, one = old_sets(1, middle)
    for file in folder.iterdir():
        if file.suffix in (".index", ".timeindex", ".snapshot"):
            file.unlink()
    # The first eight bytes of a batch are its offset, which its checksum does not cover.
    moved = end.to_bytes(8, "big") + newest[8:]
    (folder / f"{0:020}.log").write_bytes(zero + one + moved)
    kafka_broker.launch()
    kafka_broker.wait_until(lambda client: client.metadata(name).error_code == 0)

    rows = same(both({"subscribe": name, "includeHeaders": "true"}))

    assert len(rows) == end + 1
    assert same(both({"subscribe": name, "minPartitions": "9"}))


def test_internal_topic_is_read_where_it_is_named_and_never_matched(both, kafka_broker):
    """As by a consumer. The connector still reads nothing of it, without an error."""
    name = f"grouped-{uuid.uuid4().hex[:8]}"
    create_topic(kafka_broker.bootstrap, name, 1)
    with Cluster(kafka_broker.bootstrap) as cluster:
        commit(cluster, name, {(name, 0): (0, "")})

    named = [frame.count() for frame in both({"subscribe": "__consumer_offsets"})]
    matched = [frame.count() for frame in both({"subscribePattern": "__consumer_.*"})]

    assert named[0] == 0 and named[1] > 0
    assert matched == [0, 0]
