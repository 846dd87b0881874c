"""``spark.read.format("kbroker")``: the data source and its batch reader.

The rows are those of Spark's Kafka connector. A schema given by the user is a projection: only its
columns are made. A batch query reads a snapshot: its offsets are fixed when Spark plans the scan of
a ``load()``, and stay the same in all that is made of that DataFrame.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from kbroker.spark.needed_pyspark import unusable

try:
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
        InputPartition,
    )
    from pyspark.sql.types import (
        ArrayType,
        BinaryType,
        IntegerType,
        LongType,
        StringType,
        StructField,
        StructType,
        TimestampType,
    )
except ImportError as err:
    raise ImportError(unusable(err)) from err

from kbroker.spark.broker_view import BrokerView
from kbroker.spark.offsets import BrokerQueries, batch_ranges, with_attempts
from kbroker.spark.options.option_values import EARLIEST, LATEST, OptionError
from kbroker.spark.options.options import ReadOptions, parse_read
from kbroker.spark.plain_errors import told_plainly
from kbroker.spark.plan import OffsetRange, pack_ranges, plan_ranges, with_sizes
from kbroker.spark.pool import borrowed
from kbroker.spark.reading import read_ranges
from kbroker.spark.sessions import hint_at_builder
from kbroker.spark.worker_process import prepare_worker

if TYPE_CHECKING:
    import pyarrow as pa

NAME = "kbroker"

HEADERS = StructField(
    "headers",
    ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
)
ROW = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)
ROW_WITH_HEADERS = StructType([*ROW.fields, HEADERS])
_MAY_BE_NULL = ("key", "value", "headers")


class KbrokerDataSource(DataSource):
    """Reads and writes topics of any broker of Kafka's protocol."""

    @classmethod
    def name(cls) -> str:
        return NAME

    @told_plainly()
    def schema(self) -> StructType:
        """Raises OptionError if the options common to batches and streams are wrong."""
        text = str(self.options.get("includeHeaders", "false")).strip().lower()
        return ROW_WITH_HEADERS if text == "true" else ROW

    @told_plainly()
    def reader(self, schema: StructType) -> DataSourceReader:
        options = parse_read(self.options, streaming=False)
        check_projection(schema)
        if options.pushdown:
            from kbroker.spark.pushdown import FilteringReader

            return FilteringReader(options, schema)
        return BatchReader(options, schema)

    @told_plainly()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from kbroker.spark.stream import RefusedStream, StreamReader

        try:
            options = parse_read(self.options, streaming=True)
            check_projection(schema)
        except OptionError as error:
            return RefusedStream(error)
        return StreamReader(options, schema)

    @told_plainly()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from kbroker.spark.sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    @told_plainly()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from kbroker.spark.sink import stream_writer

        return stream_writer(self.options, schema)


def check_projection(schema: StructType) -> None:
    """Raises OptionError unless its columns are some of ours, with our types."""
    ours = {one.name: one.dataType for one in ROW_WITH_HEADERS.fields}
    for one in schema.fields:
        if one.name not in ours:
            raise OptionError(
                f"the schema has a column {one.name}: use only {', '.join(ours)}, or no schema "
                "and select"
            )
        if one.dataType.simpleString() != ours[one.name].simpleString():
            raise OptionError(
                f"column {one.name} of the schema is {one.dataType.simpleString()}: write"
                f" {ours[one.name].simpleString()} and cast it in the query"
            )
        if not one.nullable and one.name in _MAY_BE_NULL:
            raise OptionError(
                f"column {one.name} of the schema is NOT NULL, but records may have nulls there: "
                "leave NOT NULL out, and filter in the query"
            )
    if not schema.fields:
        raise OptionError("the schema has no columns: add one, or leave the schema out")


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark expects of every batch."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


class RangePartition(InputPartition):
    """The range that one task reads. topic_ids: of the planned topics, if they have ids; a topic
    with another id is not read.
    """

    def __init__(
        self, ranges: Sequence[OffsetRange], topic_ids: Mapping[str, bytes] | None = None
    ) -> None:
        super().__init__(tuple(ranges))
        known = topic_ids or {}
        self.topic_ids = {one.topic: known[one.topic] for one in ranges if one.topic in known}


def read_partition(
    options: ReadOptions, partition: InputPartition, schema: StructType
) -> Iterator[pa.RecordBatch]:
    """Runs in a task. Spark calls it with None if there are no partitions."""
    if not isinstance(partition, RangePartition):
        return iter(())
    prepare_worker()
    return read_ranges(options, partition.value, arrow_schema(schema), partition.topic_ids)


class BatchReader(DataSourceReader):
    """Offsets are resolved in ``partitions``, in the driver; ``read`` runs in tasks."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    @told_plainly()
    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        with borrowed(options.bootstrap, options.kafka, limits=options.pool) as cluster:
            view = BrokerView(cluster, read_committed=options.read_committed)
            return with_attempts(options, lambda: self._plan(view))

    def _plan(self, view: BrokerQueries) -> list[InputPartition]:
        ranges = self.narrow(view, batch_ranges(view, self._options))
        hint_at_builder(sum(one.count for one in ranges))
        sizes = mean_sizes(view, self._options, ranges)
        return plan_tasks(self._options, ranges, sizes, view.topic_ids())

    def narrow(self, view: BrokerQueries, ranges: list[OffsetRange]) -> list[OffsetRange]:
        """The ranges left after filters; all of them here."""
        return ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, partition, self._schema)


def mean_sizes(
    view: BrokerQueries, options: ReadOptions, ranges: Iterable[OffsetRange]
) -> Mapping[tuple[str, int], tuple[int, int]]:
    """(bytes, offsets) of whole partitions, if a plan by size will need them."""
    if options.min_partitions or options.max_records_per_partition or options.split_by_partition:
        if not options.max_bytes_per_trigger:
            return {}
    keys = {one.topic_partition for one in ranges if one.count}
    sizes = view.sizes(keys) if keys else {}
    if not sizes:
        return {}
    starts = view.list_offsets(dict.fromkeys(sizes, EARLIEST))
    ends = view.list_offsets(dict.fromkeys(sizes, LATEST))
    both = set(starts) & set(ends)
    return {key: (size, ends[key] - starts[key]) for key, size in sizes.items() if key in both}


def plan_tasks(
    options: ReadOptions,
    ranges: Iterable[OffsetRange],
    partition_bytes: Mapping[tuple[str, int], tuple[int, int]],
    topic_ids: Mapping[str, bytes],
) -> list[InputPartition]:
    """One input partition for each task."""
    # No session here: this runs in a Python process of the driver's machine.
    parallelism = os.cpu_count() or 1
    planned = plan_ranges(
        with_sizes(ranges, partition_bytes),
        default_parallelism=parallelism,
        min_partitions=options.min_partitions,
        max_records_per_partition=options.max_records_per_partition,
        by_partition=options.split_by_partition,
    )
    if options.pack_partitions:
        packed = pack_ranges(planned, default_parallelism=parallelism)
        return [RangePartition(task, topic_ids) for task in packed]
    return [RangePartition([one], topic_ids) for one in planned]
