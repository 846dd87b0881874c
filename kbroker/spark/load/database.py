"""A table of a database as destination: rows, commits and offsets change in one transaction.

Tasks put rows into a staging table, each attempt under a name of its own. The commit point is one
transaction of the driver: the rows of the attempts that count move into the table, the commit is
inserted under its number (the primary key lets one of two runs win), and ``kbroker_offsets``
follows. Nothing is left to publish. ``dialects`` has what SQLite and PostgreSQL differ in.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kbroker.spark.load import points
from kbroker.spark.load.commits import (
    RELOAD,
    Commit,
    LoadedFile,
    LoadError,
    LostRaceError,
    State,
)
from kbroker.spark.load.dialects import COLUMNS, Dialect, dialect_of
from kbroker.spark.load.log import CommitLog, Kind, lost_race
from kbroker.spark.load.writer import Written
from kbroker.spark.plan import OffsetRange

_NAMES = ", ".join(f'"{name}"' for name, _ in COLUMNS)
# PostgreSQL cuts names at 63 bytes, and kbroker_staging_TABLE_attempt is one.
_NAME_MAX = 39
_TABLE_OF = {"commits": "kbroker_commits", "checkpoint": "kbroker_checkpoints"}


def table_of(file: LoadedFile) -> str:
    """The table that the rows of a "file" are in."""
    return file.path.partition("/")[0]


class DatabaseStore:
    """The log's texts, of one load, as rows."""

    def __init__(self, dialect: Dialect, load: str) -> None:
        self._dialect = dialect
        self._load = load

    def __str__(self) -> str:
        return f"load {self._load} in {self._dialect}"

    def numbers(self, kind: Kind) -> list[int]:
        rows = self._dialect.query(
            f"SELECT number FROM {_TABLE_OF[kind]} WHERE load = ? ORDER BY number", (self._load,)
        )
        return [int(row[0]) for row in rows]

    def read(self, kind: Kind, number: int) -> str | None:
        rows = self._dialect.query(
            f"SELECT body FROM {_TABLE_OF[kind]} WHERE load = ? AND number = ?",
            (self._load, number),
        )
        return str(rows[0][0]) if rows else None

    def replace(self, kind: Kind, number: int, text: str) -> None:
        table = _TABLE_OF[kind]
        with self._dialect.transaction() as run:
            run(f"DELETE FROM {table} WHERE load = ? AND number = ?", (self._load, number))
            run(f"INSERT INTO {table} VALUES (?, ?, ?)", (self._load, number, text))

    def drop(self, kind: Kind, number: int) -> None:
        with self._dialect.transaction() as run:
            run(
                f"DELETE FROM {_TABLE_OF[kind]} WHERE load = ? AND number = ?",
                (self._load, number),
            )


@dataclass(frozen=True, slots=True)
class DatabaseTaskSink:
    """The part of the destination that goes to the executors."""

    url: str
    table: str
    load: str
    run: str
    bucket_ms: int

    def open(self, one: OffsetRange, attempt: str) -> RowWriter:
        """A writer for one attempt at a range."""
        return RowWriter(self, one, f"{self.run}-{attempt}")

    def open_errors(self, one: OffsetRange, attempt: str) -> RowWriter:
        """A writer for the records of the range that cannot be decoded."""
        return RowWriter(self, one, f"{self.run}-{attempt}-bad")


class RowWriter:
    """Rows of one attempt into the staging table; what has arrived counts only once committed."""

    def __init__(self, sink: DatabaseTaskSink, one: OffsetRange, attempt: str) -> None:
        self._sink = sink
        self._range = one
        self._attempt = attempt
        self._dialect = dialect_of(sink.url)
        self._rows = self._bytes = 0
        self._counts: dict[int, int] = {}
        self._offsets: list[int] = []
        self._times: list[int] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows, which are in offset order."""
        if not batch.num_rows:
            return
        times = pc.divide(batch.column("timestamp").cast(pa.int64()), 1000)
        buckets = pc.divide(pc.max_element_wise(times, 0), self._sink.bucket_ms)
        for one in pc.value_counts(buckets).to_pylist():
            bucket = one["values"] * self._sink.bucket_ms
            self._counts[bucket] = self._counts.get(bucket, 0) + one["counts"]
        bounds = pc.min_max(times)
        self._times = [
            min([*self._times[:1], bounds["min"].as_py()]),
            max([*self._times[1:], bounds["max"].as_py()]),
        ]
        offsets = batch.column("offset")
        self._offsets = [(self._offsets or [offsets[0].as_py()])[0], offsets[-1].as_py()]
        self._dialect.stage(
            f"kbroker_staging_{self._sink.table}",
            (self._sink.load, self._sink.run, self._attempt),
            _rows(batch, times),
        )
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        points.reach("task-writing")

    def finish(self) -> Written:
        """Everything is in the staging table, whose rows are durable."""
        self._dialect.close()
        one = self._range
        if not self._rows:
            return Written(0, 0, (), {})
        path = f"{self._sink.table}/{one.topic}-{one.partition}-{one.start}-{one.end}"
        file = LoadedFile(
            path=f"{path}-{self._attempt}",
            staged=self._attempt,
            topic=one.topic,
            partition=one.partition,
            start=one.start,
            end=one.end,
            rows=self._rows,
            bytes=self._bytes,
            checksum=0,
            first_offset=self._offsets[0],
            last_offset=self._offsets[1],
            min_ms=self._times[0],
            max_ms=self._times[1],
        )
        return Written(self._rows, self._bytes, (file,), self._counts)


def _rows(batch: pa.RecordBatch, times_ms: pa.Array) -> Iterator[tuple[Any, ...]]:
    """Rows in the order of COLUMNS."""
    columns: dict[str, list[Any]] = {}
    for name, _ in COLUMNS:
        if name == "timestamp":
            columns[name] = times_ms.to_pylist()
        elif name in batch.schema.names:
            columns[name] = batch.column(name).to_pylist()
        else:
            columns[name] = [None] * batch.num_rows
    if columns["headers"]:
        columns["headers"] = [_headers_text(one) for one in columns["headers"]]
    columns["value"] = [_value(one) for one in columns["value"]]
    return zip(*(columns[name] for name, _ in COLUMNS), strict=True)


def _value(one: Any) -> bytes | None:
    """Bytes as they are, a decoded value as JSON."""
    if one is None or isinstance(one, bytes):
        return one
    return json.dumps(one, default=str).encode()


def _headers_text(headers: list[dict[str, Any]] | None) -> str | None:
    """Headers as JSON; a value that is not UTF-8 shows its bytes escaped."""
    if headers is None:
        return None
    return json.dumps([[one["key"], _text_of(one["value"])] for one in headers])


def _text_of(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="backslashreplace")


class Database:
    """See the module.

    url: ``sqlite:PATH`` or ``postgresql://USER@HOST:PORT/DATABASE``. table: made when it is not
    there; an existing one needs at least the columns of ``dialects.COLUMNS``. load: a database
    holds many loads, each with commits of its own.
    """

    name = "jdbc"

    def __init__(self, url: str, table: str, load: str, bucket_ms: int = 600_000) -> None:
        if not table.replace("_", "").isalnum() or table[0].isdigit():
            raise LoadError(
                f"{table!r} cannot be a table's name: write letters, digits and _, a letter first"
            )
        if len(table.encode()) > _NAME_MAX:
            raise LoadError(f"the table's name {table} is too long: write at most {_NAME_MAX}")
        self._url = url
        self._table = table
        self._load = load
        self._bucket_ms = bucket_ms
        self._dialect = dialect_of(url)
        self.log = CommitLog(DatabaseStore(self._dialect, load))

    def prepare(self) -> None:
        """Make the tables. Raises LoadError when one that is there has not the columns, or the load
        has its rows in another."""
        self._dialect.make_tables(self._table)
        # SQLite takes a name alone that it does not know for a text.
        names = ", ".join(f'{self._table}."{name}"' for name, _ in COLUMNS)
        try:
            self._dialect.query(f"SELECT {names} FROM {self._table} LIMIT 0")
        except LoadError as err:
            columns = ", ".join(name for name, _ in COLUMNS)
            raise LoadError(
                f"the table {self._table} cannot take the rows of a load, which are {columns}; "
                f"name another with --table ({err})"
            ) from err
        kept = sorted({table_of(one) for one in self.log.state().files.values()})
        # Names of tables are not told apart by their case.
        if kept and self._table.lower() not in map(str.lower, kept):
            raise LoadError(
                f"the load {self._load} of {self._dialect} has its rows in the table {kept[0]}, "
                f"and would only go on in {self._table}: say --table {kept[0]}, or another --name, "
                "which begins anew"
            )

    def require(self) -> None:
        """Raises LoadError when nothing was ever loaded here."""
        if not self._dialect.has_table("kbroker_commits"):
            raise LoadError(f"{self._dialect} is not the destination of a load")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """A lock of the database's kind, which a dead process does not hold."""
        with self._dialect.locked(f"{self._table}/{self._load}"):
            yield

    def task_sink(self, run: str, about: dict[str, str]) -> DatabaseTaskSink:
        """What a run's tasks write with."""
        return DatabaseTaskSink(self._url, self._table, self._load, run, self._bucket_ms)

    def recover(self, fence: Callable[[Commit | None], Commit]) -> Commit | None:
        """Empty the staging table; see ``Directory.recover`` for why the fence comes first."""
        newest = self.log.newest()
        staging = f"kbroker_staging_{self._table}"
        if self._dialect.query(f"SELECT 1 FROM {staging} WHERE load = ? LIMIT 1", (self._load,)):
            newest = fence(newest)
            with self._dialect.transaction() as run:
                run(f"DELETE FROM {staging} WHERE load = ?", (self._load,))
        return newest

    def discard(self, run: str) -> None:
        """Left to the next run's ``recover``: the database may be what has failed."""

    def commit(self, commit: Commit) -> None:
        """The commit point. Raises LostRaceError."""
        removed = self._files_of(commit.removed)
        try:
            with self._dialect.transaction() as run:
                run(
                    "INSERT INTO kbroker_commits VALUES (?, ?, ?)",
                    (commit.load, commit.number, commit.to_json()),
                )
                for one in removed:
                    run(
                        f'DELETE FROM {self._table} WHERE "topic" = ? AND "partition" = ? '
                        'AND "offset" BETWEEN ? AND ?',
                        (one.topic, one.partition, one.first_offset, one.last_offset),
                    )
                if commit.kind == RELOAD:
                    for read in commit.ranges:
                        run(
                            f'DELETE FROM {self._table}_errors WHERE "topic" = ? '
                            'AND "partition" = ? AND "offset" BETWEEN ? AND ?',
                            (read.topic, read.partition, read.start, read.end - 1),
                        )
                for one in commit.added:
                    self._move(run, commit, one, self._table, _NAMES)
                for one in commit.errors:
                    self._move(run, commit, one, f"{self._table}_errors", _NAMES)
                run(
                    f"DELETE FROM kbroker_staging_{self._table} WHERE load = ? AND run = ?",
                    (commit.load, commit.run),
                )
                run("DELETE FROM kbroker_offsets WHERE load = ?", (commit.load,))
                for topic, of_topic in commit.ends.items():
                    for partition, offset in of_topic.items():
                        run(
                            "INSERT INTO kbroker_offsets VALUES (?, ?, ?, ?)",
                            (commit.load, topic, partition, offset),
                        )
                points.reach("commit-written")
        except self._dialect.duplicate_errors as err:
            if self.log.read(commit.number) is not None:
                raise LostRaceError(lost_race(commit, self._dialect)) from err
            raise LoadError(f"{self._dialect} refuses the rows: {err}") from err

    def _files_of(self, paths: tuple[str, ...]) -> list[LoadedFile]:
        if not paths:
            return []
        state: State = self.log.state()
        # Errors go by their offsets.
        return [state.files[path] for path in paths if path not in state.errors]

    def _move(
        self,
        run: Callable[[str, tuple[Any, ...]], int],
        commit: Commit,
        one: LoadedFile,
        table: str,
        names: str,
    ) -> None:
        moved = run(
            f"INSERT INTO {table} ({names}) SELECT {names} FROM kbroker_staging_{self._table} "
            "WHERE load = ? AND run = ? AND attempt = ?",
            (commit.load, commit.run, one.staged),
        )
        if moved != one.rows:
            raise LostRaceError(
                f"{one.rows} rows of {one.topic} partition {one.partition} were staged and {moved} "
                "are there: another run has removed them; nothing of this run was loaded"
            )

    def publish(self, commit: Commit) -> None:
        """The commit has done it."""
        points.reach("publishing")

    def ended(self, commit: Commit) -> None:
        """The log is summed up when it is time."""
        self.log.maybe_checkpoint(commit.number)

    def close(self) -> None:
        """Let go of the connection."""
        self._dialect.close()
