"""Filters of the batch reader: what is left to fetch, and what is left for Spark."""

from datetime import UTC, datetime

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import datasource as ds
from pyspark.sql.types import StructType
from support.spark.fake_logs import FakeLogs

from kbroker.spark.offsets import batch_ranges
from kbroker.spark.options.option_values import OptionError
from kbroker.spark.options.options import parse_read
from kbroker.spark.pushdown import FilteringReader
from kbroker.spark.source import ROW, check_projection

pytestmark = pytest.mark.unit

OPTIONS = parse_read(
    {"kafka.bootstrap.servers": "a:1", "subscribe": "t,u", "pushdown": "true"}, streaming=False
)


def narrowed(*filters):
    """(left for Spark, left to fetch)."""
    logs = FakeLogs(t=[(0, 100), (10, 50)], u=[(0, 5)])
    reader = FilteringReader(OPTIONS, ROW)
    left = list(reader.pushFilters(list(filters)))
    ranges = reader.narrow(logs, batch_ranges(logs, OPTIONS))
    return left, [(r.topic, r.partition, r.start, r.end) for r in ranges]


ALL = [("t", 0, 0, 100), ("t", 1, 10, 50), ("u", 0, 0, 5)]


@pytest.mark.parametrize(
    ("filters", "ranges"),
    [
        ([], ALL),
        ([ds.EqualTo(("topic",), "u")], [("u", 0, 0, 5)]),
        ([ds.In(("topic",), ("u", "x"))], [("u", 0, 0, 5)]),
        ([ds.GreaterThan(("partition",), 0)], [("t", 1, 10, 50)]),
        ([ds.EqualTo(("offset",), 12)], [("t", 0, 12, 13), ("t", 1, 12, 13)]),
        ([ds.GreaterThan(("offset",), 48)], [("t", 0, 49, 100), ("t", 1, 49, 50)]),
        ([ds.GreaterThanOrEqual(("offset",), 48), ds.LessThan(("offset",), 50)],
         [("t", 0, 48, 50), ("t", 1, 48, 50)]),
        ([ds.LessThanOrEqual(("offset",), 10)],
         [("t", 0, 0, 11), ("t", 1, 10, 11), ("u", 0, 0, 5)]),
        ([ds.EqualTo(("topic",), "t"), ds.EqualTo(("partition",), 7)], []),
        ([ds.IsNotNull(("offset",))], ALL),
    ],
)  # fmt: skip
def test_filters_that_are_taken_whole(filters, ranges):
    assert narrowed(*filters) == ([], ranges)


def test_offsets_in_a_set_are_fetched_as_a_span_and_tested_by_spark():
    one = ds.In(("offset",), (20, 40, None))

    assert narrowed(one) == ([one], [("t", 0, 20, 41), ("t", 1, 20, 41)])


@pytest.mark.parametrize("aware", [True, False])
def test_times_say_where_to_begin_and_are_tested_by_spark(aware):
    when = datetime(1970, 1, 1, 0, 0, 0, 300_000, tzinfo=UTC if aware else None)
    late, early = ds.GreaterThan(("timestamp",), when), ds.LessThan(("timestamp",), when)

    assert narrowed(late) == ([late], [("t", 0, 30, 100), ("t", 1, 30, 50)])
    assert narrowed(early) == ([early], ALL)


@pytest.mark.parametrize(
    "other",
    [
        ds.EqualTo(("value",), b"x"),
        ds.Not(ds.EqualTo(("offset",), 5)),
        ds.StringStartsWith(("topic",), "t"),
        ds.IsNull(("offset",)),
        ds.IsNotNull(("key",)),
        ds.EqualTo(("headers", "key"), "x"),
    ],
)
def test_other_filters_are_sparks(other):
    assert narrowed(other) == ([other], ALL)


@pytest.mark.parametrize(
    ("ddl", "says"),
    [
        ([("valeu", "binary")], "there is|has a column valeu"),
        ([("value", "string")], "write binary"),
        ([("offset", "integer")], "write bigint"),
        ([], "no column"),
    ],
)
def test_schema_of_other_columns_or_types_is_refused(ddl, says):
    schema = StructType()
    for name, kind in ddl:
        schema = schema.add(name, kind)
    with pytest.raises(OptionError, match=says):
        check_projection(schema)


def test_schema_that_has_no_place_for_nulls_is_refused():
    """Spark would fail in the generated code of its JVM, at the first null."""
    with pytest.raises(OptionError, match="column value of the schema is NOT NULL"):
        check_projection(StructType().add("offset", "long").add("value", "binary", nullable=False))

    check_projection(StructType().add("offset", "long", nullable=False))


def test_schema_of_some_columns_is_taken():
    check_projection(StructType().add("offset", "long").add("value", "binary"))
