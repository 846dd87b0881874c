"""``pushdown=true``: filters on topic, partition, offset and time narrow what is fetched.

It is an option because Spark refuses a reader that takes filters unless
``spark.sql.python.filterPushdown.enabled`` is true, which is not its default.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from kbroker.spark.offsets import NO_MATCH, BrokerQueries
from kbroker.spark.options.options import ReadOptions
from kbroker.spark.plan import OffsetRange
from kbroker.spark.source import BatchReader

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NEVER_NULL = ("topic", "partition", "offset", "timestamp", "timestampType")
_COMPARE: dict[type, Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    In: lambda one, among: one in among,
}


def _against(compare: Callable[[Any, Any], bool], value: Any) -> Callable[[Any], bool]:
    return lambda field: compare(field, value)


class FilteringReader(BatchReader):
    """Filters on topic, partition and offset are applied here; one on time only determines the
    first offset to fetch, and Spark applies it to the rows.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._tests: list[tuple[str, Callable[[Any], bool]]] = []
        self._first = 0
        self._end: int | None = None
        self._from_ms: int | None = None

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """The filters that Spark must apply."""
        return [one for one in filters if not self._take(one)]

    def _take(self, one: Filter) -> bool:
        """Whether the filter is fully applied, so that Spark need not apply it."""
        path: tuple[str, ...] = getattr(one, "attribute", ())
        column = path[0] if len(path) == 1 else ""
        if isinstance(one, IsNotNull):
            return column in _NEVER_NULL
        compare = _COMPARE.get(type(one))
        if compare is None or column not in _NEVER_NULL:
            return False
        value = getattr(one, "value", None)
        if column in ("topic", "partition"):
            self._tests.append((column, _against(compare, value)))
            return True
        if column == "offset":
            return self._take_offset(one, value)
        if column == "timestamp":
            self._take_time(one, value)
        return False

    def _take_offset(self, one: Filter, value: Any) -> bool:
        if isinstance(one, In):
            known = [offset for offset in value if offset is not None]
            self._first = max(self._first, min(known, default=0))
            self._until(max(known, default=-1) + 1)
            return False  # a span, not the set
        if isinstance(one, EqualTo | GreaterThan | GreaterThanOrEqual):
            self._first = max(self._first, value + isinstance(one, GreaterThan))
        if isinstance(one, EqualTo | LessThan | LessThanOrEqual):
            self._until(value + (not isinstance(one, LessThan)))
        return True

    def _until(self, end: int) -> None:
        self._end = end if self._end is None else min(self._end, end)

    def _take_time(self, one: Filter, value: Any) -> None:
        if isinstance(value, datetime) and isinstance(
            one, EqualTo | GreaterThan | GreaterThanOrEqual
        ):
            aware = value if value.tzinfo else value.replace(tzinfo=UTC)
            ms = (aware - _EPOCH) // timedelta(milliseconds=1)
            self._from_ms = ms if self._from_ms is None else max(self._from_ms, ms)

    def narrow(self, view: BrokerQueries, ranges: list[OffsetRange]) -> list[OffsetRange]:
        kept = []
        for one in ranges:
            fields = {"topic": one.topic, "partition": one.partition}
            if all(test(fields[column]) for column, test in self._tests):
                start = max(one.start, self._first)
                end = one.end if self._end is None else min(one.end, self._end)
                if start < end:
                    kept.append(OffsetRange(one.topic, one.partition, start, end))
        if self._from_ms is None or self._from_ms < 0 or not kept:
            return kept
        return self._from_time(view, kept, self._from_ms)

    @staticmethod
    def _from_time(view: BrokerQueries, ranges: list[OffsetRange], ms: int) -> list[OffsetRange]:
        """Records before the first that is young enough are all too old."""
        firsts = view.list_offsets({one.topic_partition: ms for one in ranges})
        kept = []
        for one in ranges:
            first = firsts.get(one.topic_partition, one.start)
            start = one.end if first == NO_MATCH else max(one.start, first)
            if start < one.end:
                kept.append(OffsetRange(one.topic, one.partition, start, one.end))
        return kept
