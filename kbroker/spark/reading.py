"""The part of a read that runs in a task: ranges of offsets in, Arrow batches out."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from kbroker.client.errors import OffsetOutOfRange, RejectedError, TopicChanged
from kbroker.errors import ErrorCode
from kbroker.spark.offsets import Lost, report_loss
from kbroker.spark.options.kafka_settings import fetch_bytes_max
from kbroker.spark.options.options import ReadOptions
from kbroker.spark.plain_errors import told_plainly
from kbroker.spark.plan import OffsetRange, fetch_bytes
from kbroker.spark.pool import borrowed

if TYPE_CHECKING:
    import pyarrow as pa

    from kbroker.client.connections.cluster import Cluster


def read_ranges(
    options: ReadOptions,
    ranges: Sequence[OffsetRange],
    schema: pa.Schema,
    topic_ids: Mapping[str, bytes],
) -> Generator[pa.RecordBatch]:
    """The records of the ranges, each range in order; batches have exactly ``schema``.

    Raises DataLossError where offsets are gone and ``failOnDataLoss`` says so; otherwise what is
    left is read.
    """
    with (
        told_plainly(),
        borrowed(options.bootstrap, options.kafka, limits=options.pool) as cluster,
    ):
        for one in ranges:
            topic_id = topic_ids.get(one.topic)
            for batch in _read_range(cluster, options, one, schema.names, topic_id):
                yield _as_schema(batch, schema)


def _read_range(
    cluster: Cluster,
    options: ReadOptions,
    one: OffsetRange,
    columns: list[str],
    topic_id: bytes | None,
) -> Iterator[pa.RecordBatch]:
    from kbroker.client.batches.arrow import read_arrow

    start = one.start
    max_bytes = fetch_bytes_max(options.kafka, fetch_bytes(one))
    while start < one.end:
        try:
            yield from read_arrow(
                cluster,
                one.topic,
                one.partition,
                start,
                one.end,
                columns=columns,
                headers="headers" in columns,
                read_committed=options.read_committed,
                deadline=options.poll_timeout_ms / 1000,
                max_bytes=max_bytes,
                topic_id=topic_id,
            )
            return
        except OffsetOutOfRange as error:
            _report(options, one, error.wanted, error.log_start, error.log_end)
            start = error.log_start if error.log_start > error.wanted else one.end
        except (TopicChanged, RejectedError) as error:
            gone = error.code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
            if not gone and not isinstance(error, TopicChanged):
                raise
            _report(options, one, start, None, None)
            return


def _report(
    options: ReadOptions, one: OffsetRange, start: int, log_start: int | None, log_end: int | None
) -> None:
    lost = Lost(one.topic, one.partition, start, one.end, log_start, log_end)
    report_loss([lost], options.fail_on_data_loss)


def _as_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Spark compares the schema of the first batch only, and with everything in it."""
    if batch.schema.equals(schema):
        return batch
    import pyarrow as pa

    columns = [batch.column(name).cast(schema.field(name).type) for name in schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
