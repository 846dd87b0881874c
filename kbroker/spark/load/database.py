"""A table of a database as destination: rows, commits and offsets change in one transaction.

Tasks put rows into a staging table, each attempt under a name of its own. The commit point is one
transaction of the driver: the rows of the attempts that count move into the table, the commit is
inserted under its number (the primary key lets one of two runs win), and ``kbroker_offsets``
follows. Nothing is left to publish. ``dialects`` has what SQLite and PostgreSQL differ in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from kbroker.spark.load import points
from kbroker.spark.load.commits import (
    RELOAD,
    Commit,
    CommitState,
    LoadedFile,
    LoadError,
    LostRaceError,
)
from kbroker.spark.load.database_rows import DatabaseTaskSink
from kbroker.spark.load.dialects import COLUMNS, Dialect, dialect_of, errors_of, staging_of
from kbroker.spark.load.log import CommitLog, Kind, lost_race
from kbroker.wording import counted

_NAMES = ", ".join(f'"{name}"' for name, _ in COLUMNS)
# PostgreSQL cuts names at 63 bytes, and kbroker_staging_TABLE_attempt is one.
_NAME_MAX = 39
_OWN_TABLES = ("kbroker_commits", "kbroker_checkpoints", "kbroker_offsets")
_TABLE_OF = {"commits": "kbroker_commits", "checkpoint": "kbroker_checkpoints"}


_ELSEWHERE = "Load into another --table under another --name"


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
        if table.lower() in _OWN_TABLES or table.lower().startswith(staging_of("")):
            raise LoadError(f"{table} is a table of kbroker-load itself: choose another --table")
        if len(table.encode()) > _NAME_MAX:
            raise LoadError(f"the table's name {table} is too long: write at most {_NAME_MAX}")
        self._url = url
        self._table = table
        self._load = load
        self._bucket_ms = bucket_ms
        self._dialect = dialect_of(url)
        # The tables' names in statements.
        self._rows = self._dialect.name(table)
        self._errors = self._dialect.name(errors_of(table))
        self._staging = self._dialect.name(staging_of(table))
        self.log = CommitLog(DatabaseStore(self._dialect, load))

    def prepare(self) -> None:
        """Create the tables. Raises LoadError if an existing one has other columns, or the load has
        its rows in another.
        """
        self._dialect.make_tables(self._table)
        # SQLite takes an unknown unquoted name for a string.
        names = ", ".join(f'{self._rows}."{name}"' for name, _ in COLUMNS)
        try:
            self._dialect.query(f"SELECT {names} FROM {self._rows} LIMIT 0")
        except LoadError as err:
            columns = ", ".join(name for name, _ in COLUMNS)
            raise LoadError(
                f"the table {self._table} cannot take the rows of a load, which are {columns}; "
                f"choose another with --table ({err})"
            ) from err
        kept = sorted({table_of(one) for one in self.log.state().files.values()})
        # Table names are case-insensitive.
        if kept and self._table.lower() not in map(str.lower, kept):
            raise LoadError(
                f"the load {self._load} of {self._dialect} has its rows in the table {kept[0]}, "
                f"but was told to use {self._table}: use --table {kept[0]}, or another --name, "
                "which starts over"
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
        """The sink for a run's tasks."""
        return DatabaseTaskSink(self._url, self._table, self._load, run, self._bucket_ms)

    def disagreement(self) -> str | None:
        with self._dialect.snapshot():
            newest = self.log.newest()
            known = self.log.last_summed_up()
            kept = self._dialect.query(
                'SELECT topic, "partition", "offset" FROM kbroker_offsets WHERE load = ? '
                'ORDER BY topic, "partition"',
                (self._load,),
            )
        number = newest.number if newest is not None else 0
        lost = f"Restore the rows of kbroker_commits from number {number + 1} on"
        if known > number:
            return (
                f"the log of commits of {self} ends at commit {number}, but kbroker_checkpoints "
                f"says that commit {known} was loaded. {lost}"
            )
        ends = newest.ends if newest is not None else {}
        odd = [
            (str(topic), int(partition), ends.get(topic, {}).get(partition, 0), int(offset))
            for topic, partition, offset in kept
            if ends.get(topic, {}).get(partition, 0) != offset
        ]
        if not odd:
            return None
        topic, partition, end, offset = odd[0]
        again = ", ".join(f"{one[0]} partition {one[1]} from {one[2]} on" for one in odd)
        return (
            f"the newest commit of {self}, {number}, says that {topic} partition {partition} is "
            f"loaded up to offset {end}, but kbroker_offsets says {offset}; a commit always "
            "changes both. "
            + (
                f"{lost}; or delete the rows of {again} from {self._table}, and those of load "
                f"{self._load} from kbroker_offsets, to load them again"
                if end < offset
                else f"Restore kbroker_offsets and {self._table}; or, where verify finds no row "
                f"missing, delete the rows of load {self._load} from kbroker_offsets"
            )
        )

    def verify(self, *, deep: bool = True) -> Iterator[str]:
        """One line for each problem: rows that no commit lists, and commits without their rows.
        During a run it checks a consistent snapshot.

        deep: also count the rows of each range; without it those of a partition have to do.
        """
        if (said := self.disagreement()) is not None:
            yield said
        with self._dialect.snapshot():
            yield from self._verify(self.log.state(), deep)

    def _verify(self, state: CommitState, deep: bool) -> Iterator[str]:
        # Of a load's table, whatever --table says now; includes rows of all loads that share it.
        table = next((table_of(one) for one in state.files.values()), self._table)
        name = self._dialect.name(table)
        wanted: Counter[tuple[str, int]] = Counter()
        for one in state.files.values():
            wanted[one.topic, one.partition] += one.rows
            if deep and (rows := self._count(name, one)) != one.rows:
                yield (
                    f"{one.topic} partition {one.partition}, offsets {one.first_offset} to "
                    f"{one.last_offset}: {counted(rows, 'row')}, but the log says {one.rows:,}"
                )
        places = {*wanted, *((topic, p) for topic, of in state.ends.items() for p in of)}
        for topic, partition in sorted(places):
            ((rows, last),) = self._dialect.query(
                f'SELECT count(*), max("offset") FROM {name} WHERE "topic" = ? AND "partition" = ?',
                (topic, partition),
            )
            if rows != wanted[topic, partition]:
                end = state.ends.get(topic, {}).get(partition, 0)
                yield (
                    f"{topic} partition {partition}: {counted(rows, 'row')} in {table}, but the "
                    f"log says {wanted[topic, partition]:,}, up to offset {end}"
                    + (f"; the last row has offset {last}" if last is not None else "")
                )

    def _count(self, name: str, one: LoadedFile) -> int:
        ((count,),) = self._dialect.query(
            f'SELECT count(*) FROM {name} WHERE "topic" = ? AND "partition" = ? '
            'AND "offset" BETWEEN ? AND ?',
            (one.topic, one.partition, one.first_offset, one.last_offset),
        )
        return int(count)

    def __str__(self) -> str:
        return f"load {self._load} in {self._dialect}"

    def recover(self, fence: Callable[[Commit | None], Commit]) -> Commit | None:
        """Empty the staging table; see ``Directory.recover`` for why the fence comes first."""
        if (said := self.disagreement()) is not None:
            raise LoadError(said)
        newest = self.log.newest()
        if self._dialect.query(
            f"SELECT 1 FROM {self._staging} WHERE load = ? LIMIT 1", (self._load,)
        ):
            newest = fence(newest)
            with self._dialect.transaction() as run:
                run(f"DELETE FROM {self._staging} WHERE load = ?", (self._load,))
        return newest

    def require_room(self, topics: Iterable[str]) -> None:
        for topic in sorted(topics):
            if self._dialect.query(
                f'SELECT 1 FROM {self._rows} WHERE "topic" = ? LIMIT 1', (topic,)
            ):
                raise LoadError(
                    f"{topic} was deleted and recreated, and {self._table} has rows of the old "
                    "topic. A table has one row per offset, so the two would collide. Nothing is "
                    f"loaded. {_ELSEWHERE}"
                )

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
                        f'DELETE FROM {self._rows} WHERE "topic" = ? AND "partition" = ? '
                        'AND "offset" BETWEEN ? AND ?',
                        (one.topic, one.partition, one.first_offset, one.last_offset),
                    )
                if commit.kind == RELOAD:
                    for read in commit.ranges:
                        run(
                            f'DELETE FROM {self._errors} WHERE "topic" = ? '
                            'AND "partition" = ? AND "offset" BETWEEN ? AND ?',
                            (read.topic, read.partition, read.start, read.end - 1),
                        )
                for one in commit.added:
                    self._move(run, commit, one, self._rows)
                for one in commit.errors:
                    self._move(run, commit, one, self._errors)
                run(
                    f"DELETE FROM {self._staging} WHERE load = ? AND run = ?",
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
            raise LoadError(
                f"{self._dialect} rejects the rows, so nothing is loaded: {str(err).strip()}. "
                f"{self._table} has rows at these offsets, from an older topic of the same name "
                f"or from another load. {_ELSEWHERE}"
            ) from err

    def _files_of(self, paths: tuple[str, ...]) -> list[LoadedFile]:
        if not paths:
            return []
        state: CommitState = self.log.state()
        # Errors go by their offsets.
        return [state.files[path] for path in paths if path not in state.errors]

    def _move(
        self,
        run: Callable[[str, tuple[Any, ...]], int],
        commit: Commit,
        one: LoadedFile,
        table: str,
    ) -> None:
        moved = run(
            f"INSERT INTO {table} ({_NAMES}) SELECT {_NAMES} FROM {self._staging} "
            "WHERE load = ? AND run = ? AND attempt = ?",
            (commit.load, commit.run, one.staged),
        )
        if moved != one.rows:
            raise LostRaceError(
                f"{one.rows} rows of {one.topic} partition {one.partition} were staged, but only "
                f"{moved} are there: another run has removed them; nothing of this run was loaded"
            )

    def publish(self, commit: Commit) -> None:
        """The commit has done it."""
        points.reach("publishing")

    def ended(self, commit: Commit) -> None:
        """The log is summed up when it is time."""
        self.log.maybe_checkpoint(commit.number)

    def close(self) -> None:
        """Close the connection."""
        self._dialect.close()
