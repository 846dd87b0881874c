"""Counts of loads whose destination is a database.

A database holds many loads, each with a log of its own. Where a log's commits cannot say what is
loaded, the database counts the rows on its own; none of them leaves it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from kbroker.spark.audit.counts import LOAD_TIER, of_commits
from kbroker.spark.audit.report import Count
from kbroker.spark.load.commits import LoadedFile, LoadError
from kbroker.spark.load.database import DatabaseStore, table_of
from kbroker.spark.load.dialects import Dialect, dialect_of
from kbroker.spark.load.log import CommitLog

# table, topic, partition -> offsets [first, last] of rows
_Spans = dict[tuple[str, str, int], list[tuple[int, int]]]


def loaded(url: str, names: Sequence[str], *, bucket_ms: int) -> list[Count]:
    """The counts of a database's loads: those of ``names``, or all.

    Raises LoadError if there is no such load, or a topic is in several of them: their sum would
    be no count of it. Says nothing of the URL, which may have a password.
    """
    dialect = dialect_of(url)
    try:
        return list(_loaded(dialect, names, bucket_ms))
    finally:
        dialect.close()


def _loaded(dialect: Dialect, names: Sequence[str], bucket_ms: int) -> Iterator[Count]:
    owners: dict[str, str] = {}
    for name in _chosen(dialect, names):
        log = CommitLog(DatabaseStore(dialect, name))
        newest = log.newest()
        for topic in newest.ends if newest is not None else ():
            if owners.setdefault(topic, name) != name:
                raise LoadError(
                    f"{dialect} has the topic {topic} in the loads {owners[topic]} and {name}: "
                    "choose one with --name"
                )
        told = of_commits(log, bucket_ms)
        yield from told if told is not None else _rows(dialect, log, bucket_ms)


def _chosen(dialect: Dialect, names: Sequence[str]) -> list[str]:
    if not dialect.has_table("kbroker_commits"):
        raise LoadError(f"{dialect} is not the destination of a load")
    there = [
        str(row[0])
        for row in dialect.query("SELECT DISTINCT load FROM kbroker_commits ORDER BY load")
    ]
    unknown = [one for one in names if one not in there]
    if unknown:
        raise LoadError(
            f"{dialect} has no load {', '.join(unknown)}; it has {', '.join(there) or 'none'}"
        )
    return [one for one in there if one in names or not names]


def _rows(dialect: Dialect, log: CommitLog, bucket_ms: int) -> Iterator[Count]:
    """Count in the tables themselves. Rows without a time belong to 1970, as in commits."""
    state = log.state()
    size = int(bucket_ms)
    for (table, topic, partition), spans in _spans(state.files.values()).items():
        for first, last in spans:
            found = dialect.query(
                f'SELECT CASE WHEN "timestamp" < 0 THEN 0 ELSE "timestamp" / {size} END, count(*) '
                f'FROM {table} WHERE "topic" = ? AND "partition" = ? AND "offset" BETWEEN ? AND ? '
                "GROUP BY 1",
                (topic, partition, first, last),
            )
            for bucket, count in found:
                yield Count(topic, int(bucket) * size, LOAD_TIER, int(count), state.written_ms)


def _spans(files: Iterable[LoadedFile]) -> _Spans:
    """The row spans of a load: a table may have rows of other loads as well. Adjacent spans are
    merged, so that a partition is queried as rarely as possible.
    """
    found: _Spans = {}
    for one in sorted(files, key=lambda each: each.start):
        spans = found.setdefault((table_of(one), one.topic, one.partition), [])
        if spans and spans[-1][1] == one.start:
            spans[-1] = (spans[-1][0], one.end)
        else:
            spans.append((one.start, one.end))
    return {key: [(start, end - 1) for start, end in spans] for key, spans in found.items()}
