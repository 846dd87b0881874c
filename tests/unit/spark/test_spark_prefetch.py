"""Small micro-batches read by the driver: which ones, and how Spark's runner gets them."""

import io
import json
import threading
from dataclasses import replace

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.serializers import read_int, write_with_length
from pyspark.sql.streaming import python_streaming_source_runner as runner
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StructField, StructType
from support.spark.fake_logs import FakeLogs

from kbroker.client.errors import Timeout
from kbroker.spark import prefetch as prefetch_module
from kbroker.spark import stream as stream_module
from kbroker.spark.offsets import DataLossError
from kbroker.spark.options.options import parse_read
from kbroker.spark.plan import FETCH_BYTES_MAX, FETCH_BYTES_MIN, OffsetRange, fetch_bytes
from kbroker.spark.prefetch import PREFETCH_BYTES_MAX, PREFETCH_RANGES_MAX, Prefetch, holding
from kbroker.spark.source import RangePartition
from kbroker.spark.stream import StreamProgress, StreamReader

pytestmark = pytest.mark.unit

OFFSETS = StructType([StructField("offset", LongType())])


def options(**given):
    base = {"kafka.bootstrap.servers": "a:1", "subscribe": "t", "prefetchMaxOffsets": "10"}
    return parse_read({**base, **given}, streaming=True)


def ranges(*counts):
    return [OffsetRange("t", number, 5, 5 + count) for number, count in enumerate(counts)]


def offsets_of(batches):
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


@pytest.fixture
def source(monkeypatch):
    """The driver's reads: every offset of the ranges, a batch each."""

    def read(options, wanted, schema, topic_ids):
        for one in wanted:
            yield pa.record_batch([pa.array(range(one.start, one.end))], names=["offset"])

    monkeypatch.setattr(prefetch_module, "read_ranges", read)
    return lambda other: monkeypatch.setattr(prefetch_module, "read_ranges", other)


@pytest.mark.parametrize(
    ("counts", "given", "fits"),
    [
        ([10], {}, True),
        ([6, 4], {}, True),
        ([11], {}, False),
        ([6, 5], {}, False),
        ([], {}, False),
        ([1], {"prefetchMaxOffsets": "0"}, False),
        ([1] * PREFETCH_RANGES_MAX, {"prefetchMaxOffsets": "999"}, True),
        ([1] * (PREFETCH_RANGES_MAX + 1), {"prefetchMaxOffsets": "999"}, False),
        ([4], {"minPartitions": "2"}, False),
        ([4], {"split": "partition"}, False),
        ([4], {"maxRecordsPerPartition": "4"}, True),
        ([5], {"maxRecordsPerPartition": "4"}, False),
        ([9_000], {"prefetchMaxOffsets": "9000"}, False),
    ],
)
def test_small_batches_fit_unless_tasks_were_asked_for(counts, given, fits):
    assert Prefetch(options(**given), pa.schema([])).fits(ranges(*counts)) is fits


def test_what_is_larger_than_expected_is_left_to_tasks_and_remembered(source):
    record = PREFETCH_BYTES_MAX // 4
    source(lambda *given: iter_closable(pa.array([b"x" * record]) for _ in range(10)))
    made = Prefetch(options(), pa.schema([("value", pa.binary())]))

    assert made.read(ranges(10), {}) is None
    assert not made.fits(ranges(4))
    assert made.fits(ranges(3))


def test_what_is_just_not_too_large_is_read(source):
    column = pa.array([1] * (PREFETCH_BYTES_MAX // 8))
    source(lambda *given: iter_closable([column]))
    made = Prefetch(options(), OFFSETS)

    assert [one.num_rows for one in made.read(ranges(10), {})] == [PREFETCH_BYTES_MAX // 8]


def iter_closable(columns):
    yield from (pa.record_batch([column], names=["offset"]) for column in columns)


def test_unreachable_broker_leaves_the_batch_to_tasks_and_loss_is_told(source, caplog):
    def fail_with(error):
        def read(*given):
            raise error
            yield

        return read

    made = Prefetch(options(), OFFSETS)
    source(fail_with(Timeout("records of t-0", 5.0)))
    assert made.read(ranges(3), {}) is None
    assert "so tasks read it" in caplog.text

    source(fail_with(DataLossError("t-0: requested [0, ...)")))
    with pytest.raises(DataLossError, match="requested"):
        made.read(ranges(3), {})


def test_driver_gives_up_sooner_than_tasks(source):
    seen = []
    source(lambda given, *rest: iter_closable(seen.append(given.poll_timeout_ms) or []))

    Prefetch(options(), OFFSETS).read(ranges(3), {})
    Prefetch(options(**{"kafkaConsumer.pollTimeoutMs": "20"}), OFFSETS).read(ranges(3), {})

    assert seen == [prefetch_module.PREFETCH_DEADLINE_MS, 20]


def test_fetches_of_small_ranges_ask_for_little():
    small, sized = OffsetRange("t", 0, 0, 50), OffsetRange("t", 0, 0, 50, 1 << 20)
    huge = replace(sized, size_bytes=1 << 40)

    assert fetch_bytes(small) == FETCH_BYTES_MIN
    assert fetch_bytes(sized) == 2 << 20
    assert fetch_bytes(huge) == FETCH_BYTES_MAX


# -- reading ahead


def test_what_was_begun_is_not_read_again(source):
    seen = []
    source(lambda given, wanted, *rest: iter_closable([pa.array(seen.append(wanted) or [7])]))
    made = Prefetch(options(), OFFSETS)

    made.begin(ranges(3), {"t": b"id"})
    assert offsets_of(made.read(ranges(3), {"t": b"id"})) == [7]
    assert seen == [ranges(3)]

    assert offsets_of(made.read(ranges(3), {"t": b"id"})) == [7]
    assert seen == [ranges(3)] * 2


@pytest.mark.parametrize(
    ("wanted", "ids"), [(ranges(2), {"t": b"id"}), (ranges(3), {"t": b"another"})]
)
def test_what_was_begun_for_another_end_or_topic_is_not_used(source, wanted, ids):
    seen = []

    def read(given, asked, schema, topic_ids):
        seen.append((asked, topic_ids))
        yield pa.record_batch([pa.array([one.end for one in asked])], names=["offset"])

    source(read)
    made = Prefetch(options(), OFFSETS)
    made.begin(ranges(3), {"t": b"id"})

    assert offsets_of(made.read(wanted, ids)) == [one.end for one in wanted]
    assert (wanted, ids) in seen


def test_an_error_while_reading_ahead_is_told_to_who_asks(source):
    reads = []

    def read(*given):
        reads.append(given)
        raise DataLossError("t-0: requested [0, ...)")
        yield

    source(read)
    made = Prefetch(options(), OFFSETS)
    made.begin(ranges(3), {})

    with pytest.raises(DataLossError, match="requested"):
        made.read(ranges(3), {})
    assert len(reads) == 2


# -- Spark's runner


@pytest.fixture
def reader(source):
    """A stream reader of one topic with two partitions, as in Spark's runner."""
    given = options(startingOffsets="earliest")
    made = StreamReader(given, OFFSETS)
    made._progress = StreamProgress(FakeLogs(t=[(0, 100), (0, 100)]), given)
    return made


def ask_partitions(reader, start, end):
    """The result for the JVM: (partitions, status, rows)."""
    asked, answered = io.BytesIO(), io.BytesIO()
    for offset in (start, end):
        write_with_length(json.dumps({"t": offset}).encode(), asked)
    asked.seek(0)
    runner.partitions_func(reader, None, OFFSETS, 10_000, asked, answered)
    answered.seek(0)
    partitions = [
        runner.pickleSer.loads(answered.read(read_int(answered))) for _ in range(read_int(answered))
    ]
    status = read_int(answered)
    rows = []
    if status == runner.NON_EMPTY_PYARROW_RECORD_BATCHES:
        read_int(answered)
        rows = offsets_of(pa.ipc.open_stream(answered).read_all().to_batches())
    return partitions, status, rows


def test_runner_gets_one_partition_and_its_rows(reader):
    """The JVM expects exactly one; a task reads it if the rows are lost meanwhile."""
    partitions, status, rows = ask_partitions(reader, {"0": 3, "1": 7}, {"0": 7, "1": 10})

    assert status == runner.NON_EMPTY_PYARROW_RECORD_BATCHES
    assert rows == [3, 4, 5, 6, 7, 8, 9]
    (one,) = partitions
    assert isinstance(one, RangePartition)
    assert [(r.partition, r.start, r.end) for r in one.value] == [(0, 3, 7), (1, 7, 10)]


def test_rows_are_read_between_the_end_and_the_partitions(reader, source):
    """While Spark writes the offsets; and nothing is read if there is nothing to read."""
    read = []

    def reading(given, wanted, *rest):
        read.append((threading.current_thread() is threading.main_thread(), wanted))
        yield pa.record_batch([pa.array(range(one.start, one.end)) for one in wanted], ["offset"])

    source(reading)
    start, limit = {"0": 93, "1": 100}, ReadAllAvailable()

    assert reader.latestOffset({"t": start}, limit) == {"t": {"0": 100, "1": 100}}
    _, _, rows = ask_partitions(reader, start, {"0": 100, "1": 100})
    assert rows == list(range(93, 100))

    reader.latestOffset({"t": {"0": 100, "1": 100}}, limit)  # nothing new
    reader.latestOffset({"t": {"0": 100}}, limit)  # a new partition
    reader.latestOffset({"t": {"0": 0, "1": 0}}, limit)  # too much
    assert read == [(False, [OffsetRange("t", 0, 93, 100)])]


def test_runner_plans_tasks_of_large_batches_and_of_none(reader):
    found = runner.PREFETCHED_RECORDS_NOT_FOUND

    partitions, status, _ = ask_partitions(reader, {"0": 0, "1": 0}, {"0": 90, "1": 90})
    assert (len(partitions), status) == (2, found)
    assert ask_partitions(reader, {"0": 5, "1": 5}, {"0": 5, "1": 5}) == ([], found, [])


def test_batch_without_rows_is_still_one_partition(reader, source):
    """For example, transaction markers."""
    source(lambda *given: iter_closable([]))

    partitions, status, _ = ask_partitions(reader, {"0": 0, "1": 0}, {"0": 2, "1": 0})

    assert (len(partitions), status) == (1, runner.EMPTY_PYARROW_RECORD_BATCHES)


def test_reader_keeps_its_limits_and_reports_its_end(reader):
    """A simple reader, which Spark takes it for while it holds rows, could do neither."""
    flags = runner.SUPPORTS_ADMISSION_CONTROL | runner.SUPPORTS_TRIGGER_AVAILABLE_NOW
    reader._progress.advance({("t", 0): 0, ("t", 1): 0}, limited=False)
    for _ in range(2):
        ask_partitions(reader, {"0": 0, "1": 0}, {"0": 4, "1": 0})

        answered = io.BytesIO()
        runner.check_support_func(reader, answered)
        runner.report_latest_offset_func(reader, answered)
        answered.seek(0)
        assert read_int(answered) == flags
        assert json.loads(answered.read(read_int(answered))) == {"t": {"0": 100, "1": 100}}


def test_rows_that_were_never_taken_are_not_those_of_the_next_batch(reader):
    reader.partitions({"t": {"0": 0, "1": 0}}, {"t": {"0": 4, "1": 0}})

    _, status, rows = ask_partitions(reader, {"0": 4, "1": 0}, {"0": 6, "1": 0})

    assert (status, rows) == (runner.NON_EMPTY_PYARROW_RECORD_BATCHES, [4, 5])
    partitions, status, _ = ask_partitions(reader, {"0": 0, "1": 0}, {"0": 90, "1": 0})
    assert (len(partitions), status) == (1, runner.PREFETCHED_RECORDS_NOT_FOUND)


def test_pyspark_without_the_wrapper_gets_tasks(reader, monkeypatch):
    from pyspark.sql import datasource_internal

    monkeypatch.delattr(datasource_internal, "_SimpleStreamReaderWrapper")
    assert holding(StreamReader) is None

    monkeypatch.setattr(stream_module, "_HOLDING", None)
    partitions, status, _ = ask_partitions(reader, {"0": 0, "1": 0}, {"0": 4, "1": 4})
    assert (len(partitions), status) == (2, runner.PREFETCHED_RECORDS_NOT_FOUND)
