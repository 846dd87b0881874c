"""Counts of loads whose destination is a database.

A database holds many loads, each with a log of its own, which says what belongs to it. The database
counts the rows on its own, as somebody may have deleted or copied some; none of them leaves it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from kbroker.spark.audit.loads import LoadTimes
from kbroker.spark.audit.report import Count
from kbroker.spark.load.commits import TIME_MS_MAX, CommitState, LoadedFile, LoadError
from kbroker.spark.load.database import DatabaseStore, table_of
from kbroker.spark.load.dialects import Dialect, dialect_of
from kbroker.spark.load.log import CommitLog

_Where = tuple[str, tuple[object, ...]]
"""A condition on rows, and its arguments."""


def loaded(
    url: str, names: Sequence[str], *, bucket_ms: int, from_ms: int | None = None
) -> list[Count]:
    """The counts of a database's loads: those of ``names``, or all, from ``from_ms`` on at least.

    Raises LoadError if there is no such load, or a topic is in several of them: their sum would
    be no count of it. Says nothing of the URL, which may have a password.
    """
    dialect = dialect_of(url)
    try:
        # Looked at first: SQLite would create a file that is not there.
        if not dialect.has_table("kbroker_commits"):
            raise LoadError(f"{dialect} is not the destination of a load")
        with dialect.snapshot():
            return list(_loaded(dialect, names, bucket_ms, from_ms))
    finally:
        dialect.close()


def _loaded(
    dialect: Dialect, names: Sequence[str], bucket_ms: int, from_ms: int | None
) -> Iterator[Count]:
    there = _names_in(dialect)
    unknown = [one for one in names if one not in there]
    if unknown:
        raise LoadError(
            f"{dialect} has no load {', '.join(unknown)}; it has {', '.join(there) or 'none'}"
        )
    owners: dict[str, str] = {}
    shared: dict[tuple[str, str], int] = {}
    chosen: list[tuple[CommitLog, CommitState]] = []
    for name in there:
        log = CommitLog(DatabaseStore(dialect, name))
        state = log.state()
        for place in {(_table_in(state).lower(), topic) for topic in state.ends}:
            shared[place] = shared.get(place, 0) + 1
        if name not in names and names:
            continue
        for topic in state.ends:
            if owners.setdefault(topic, name) != name:
                raise LoadError(
                    f"{dialect} has the topic {topic} in the loads {owners[topic]} and {name}: "
                    "choose one with --name"
                )
        chosen.append((log, state))
    for log, state in chosen:
        times = LoadTimes(log, bucket_ms, state.written_ms)
        for topic in state.ends if state.files else ():
            is_alone = shared[_table_in(state).lower(), topic] == 1
            for where in [("", ())] if is_alone else _spans(state.files.values(), topic):
                yield from _rows(dialect, _table_in(state), topic, where, times, bucket_ms, from_ms)


def _table_in(state: CommitState) -> str:
    """The table of a load; empty if it has no rows. A load keeps its table."""
    return next((table_of(one) for one in state.files.values()), "")


def _names_in(dialect: Dialect) -> list[str]:
    rows = dialect.query("SELECT DISTINCT load FROM kbroker_commits ORDER BY load")
    return [str(row[0]) for row in rows]


def _rows(
    dialect: Dialect,
    table: str,
    topic: str,
    where: _Where,
    times: LoadTimes,
    bucket_ms: int,
    from_ms: int | None,
) -> Iterator[Count]:
    """Count in the table itself. Rows without a time belong to 1970, as in commits."""
    size = int(bucket_ms)
    more, arguments = where
    if from_ms is not None and from_ms > 0:
        more += ' AND "timestamp" >= ?'
        arguments += (from_ms,)
    rows = dialect.query(
        f'SELECT CASE WHEN "timestamp" >= {TIME_MS_MAX} THEN {TIME_MS_MAX // size} '
        f'WHEN "timestamp" >= 0 THEN "timestamp" / {size} ELSE 0 END, count(*) '
        f'FROM {dialect.name(table)} WHERE "topic" = ?{more} GROUP BY 1',
        (topic, *arguments),
    )
    for bucket, count in rows:
        yield times.count(topic, int(bucket) * size, int(count))


def _spans(files: Iterable[LoadedFile], topic: str) -> Iterator[_Where]:
    """The offsets of a load in a table that has rows of this topic from other loads as well.
    Adjacent spans are merged, so that a partition is queried as rarely as possible.
    """
    spans_of: dict[int, list[tuple[int, int]]] = {}  # by partition, [start, end)
    for one in sorted(files, key=lambda each: each.start):
        if one.topic != topic:
            continue
        spans = spans_of.setdefault(one.partition, [])
        if spans and spans[-1][1] == one.start:
            spans[-1] = (spans[-1][0], one.end)
        else:
            spans.append((one.start, one.end))
    for partition, of_partition in spans_of.items():
        for start, end in of_partition:
            yield ' AND "partition" = ? AND "offset" BETWEEN ? AND ?', (partition, start, end - 1)
