"""The differences between SQLite and PostgreSQL, behind statements with ``?`` for each argument."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import sqlite3
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from kbroker.spark.load.commits import LoadError

# Name and type of each column of a loaded table. ``timestamp`` is in milliseconds since 1970;
# ``value`` of a decoding load is JSON; ``error`` is null except for rejected records.
COLUMNS = (
    ("topic", "text"),
    ("partition", "int"),
    ("offset", "long"),
    ("timestamp", "long"),
    ("timestampType", "int"),
    ("key", "bytes"),
    ("value", "bytes"),
    ("headers", "text"),
    ("error", "text"),
)
_BUSY_S = 120.0

Run = Callable[[str, tuple[Any, ...]], int]
"""Runs a statement and returns how many rows it changed."""


class Dialect(Protocol):
    """A database, with one connection, opened when needed. Pickles as its URL."""

    duplicate_errors: tuple[type[Exception], ...]

    def name(self, table: str) -> str:
        """The name of a table in statements, quoted: it may be a word of SQL, such as order. It
        names the table that it names unquoted, where that is possible.
        """
        ...

    def query(self, text: str, arguments: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """All rows of a SELECT."""
        ...

    def transaction(self) -> AbstractContextManager[Run]:
        """Run statements in a transaction, which is committed at the end."""
        ...

    def snapshot(self) -> AbstractContextManager[None]:
        """While it lasts, all queries see one state; nothing is written."""
        ...

    def stage(
        self, table: str, where: tuple[str, str, str], rows: Iterator[tuple[Any, ...]]
    ) -> None:
        """Add rows to the staging table of a table under (load, run, attempt), in a transaction."""
        ...

    def make_tables(self, table: str) -> None:
        """Create missing tables."""
        ...

    def has_table(self, table: str) -> bool:
        """Whether there is a table of that name."""
        ...

    def locked(self, name: str) -> AbstractContextManager[None]:
        """Lock out other runs with the same name; raises LoadError if one holds the lock."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


@contextmanager
def _told(
    database: object, database_errors: type[Exception], duplicates: type[Exception]
) -> Iterator[None]:
    """Reports database errors in one line, except duplicates, which have a meaning."""
    try:
        yield
    except duplicates:
        raise
    except database_errors as err:
        said = (str(err).strip() or type(err).__name__).splitlines()[0]
        raise LoadError(f"the database {database} reports an error: {said}") from err


def dialect_of(url: str) -> Dialect:
    """Raises LoadError for an unknown kind of URL."""
    kind, separator, rest = url.removeprefix("jdbc:").partition(":")
    if separator and kind == "sqlite" and rest:
        return Sqlite(rest.removeprefix("//") if rest.startswith("///") else rest)
    if separator and kind in ("postgresql", "postgres"):
        return Postgresql(f"postgresql:{rest}")
    # Only its kind: a malformed URL may contain a password anywhere.
    named = f"{kind} is" if separator and kind.isalpha() else "that is"
    raise LoadError(
        f"{named} not a supported database: write sqlite:PATH or "
        "postgresql://USER:PASSWORD@HOST:PORT/DATABASE"
    )


def staging_of(table: str) -> str:
    """The table where rows wait to be committed."""
    return f"kbroker_staging_{table}"


def errors_of(table: str) -> str:
    """The table of values that could not be decoded."""
    return f"{table}_errors"


def _quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def _folded(name: str) -> str:
    """As PostgreSQL reads a name without quotes: ASCII letters become small ones."""
    return "".join(one.lower() if one.isascii() else one for one in name)


def _table_statements(table: str, name: Callable[[str], str], kinds: dict[str, str]) -> list[str]:
    columns = ", ".join(f'"{name}" {kinds[kind]}' for name, kind in COLUMNS)
    text, integer = kinds["text"], kinds["int"]
    number = kinds["long"]
    staging = name(staging_of(table))
    return [
        f"CREATE TABLE IF NOT EXISTS {name(table)} "
        f'({columns}, PRIMARY KEY ("topic", "partition", "offset"))',
        f"CREATE TABLE IF NOT EXISTS {name(errors_of(table))} "
        f'({columns}, PRIMARY KEY ("topic", "partition", "offset"))',
        f"CREATE TABLE IF NOT EXISTS {staging} "
        f"(load {text}, run {text}, attempt {text}, {columns})",
        f"CREATE INDEX IF NOT EXISTS {name(f'{staging_of(table)}_attempt')} "
        f"ON {staging} (load, run, attempt)",
        "CREATE TABLE IF NOT EXISTS kbroker_commits "
        f"(load {text}, number {number}, body {text}, PRIMARY KEY (load, number))",
        "CREATE TABLE IF NOT EXISTS kbroker_checkpoints "
        f"(load {text}, number {number}, body {text}, PRIMARY KEY (load, number))",
        "CREATE TABLE IF NOT EXISTS kbroker_offsets "
        f'(load {text}, topic {text}, "partition" {integer}, "offset" {number}, '
        'PRIMARY KEY (load, topic, "partition"))',
    ]


class Sqlite:
    """A file. One writer at a time: tasks wait for one another."""

    duplicate_errors: tuple[type[Exception], ...] = (sqlite3.IntegrityError,)

    def __init__(self, path: str) -> None:
        self._path = os.path.abspath(path)
        self._connection: sqlite3.Connection | None = None

    def __str__(self) -> str:
        return self._path

    def __reduce__(self) -> tuple[Any, ...]:
        return Sqlite, (self._path,)

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            try:
                self._connection = sqlite3.connect(
                    self._path, timeout=_BUSY_S, isolation_level=None
                )
                self._connection.execute("PRAGMA journal_mode=WAL")
                self._connection.execute("PRAGMA synchronous=FULL")
            except sqlite3.DatabaseError as err:
                self.close()
                raise LoadError(f"cannot open the database {self._path}: {err}") from err
        return self._connection

    def name(self, table: str) -> str:
        return _quoted(table)

    def _told(self) -> AbstractContextManager[None]:
        return _told(self, sqlite3.Error, sqlite3.IntegrityError)

    def query(self, text: str, arguments: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        with self._told():
            return self._open().execute(text, arguments).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[Run]:
        connection = self._open()
        with self._told():
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield lambda text, arguments: connection.execute(text, arguments).rowcount
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        self.query("BEGIN")
        try:
            yield
        finally:
            self.query("ROLLBACK")

    def stage(
        self, table: str, where: tuple[str, str, str], rows: Iterator[tuple[Any, ...]]
    ) -> None:
        places = ", ".join("?" * (3 + len(COLUMNS)))
        with self.transaction():
            self._open().executemany(
                f"INSERT INTO {self.name(staging_of(table))} VALUES ({places})",
                ((*where, *row) for row in rows),
            )

    def make_tables(self, table: str) -> None:
        kinds = {"text": "TEXT", "int": "INTEGER", "long": "INTEGER", "bytes": "BLOB"}
        with self.transaction() as run:
            for statement in _table_statements(table, self.name, kinds):
                run(statement, ())

    def has_table(self, table: str) -> bool:
        return os.path.exists(self._path) and bool(
            self.query("SELECT 1 FROM sqlite_master WHERE name = ?", (table,))
        )

    @contextmanager
    def locked(self, name: str) -> Iterator[None]:
        descriptor = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as err:
                raise LoadError(f"another run is using {self._path}") from err
            yield
        finally:
            os.close(descriptor)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Postgresql:
    """A server, spoken to by psycopg; staged rows go by COPY."""

    def __init__(self, url: str) -> None:
        try:
            import psycopg
            import psycopg.conninfo
        except ImportError as err:
            raise LoadError("PostgreSQL needs psycopg: pip install 'psycopg[binary]'") from err
        try:
            where = psycopg.conninfo.conninfo_to_dict(url)
            # A password with an unescaped @ or / ends early, and its rest is taken for these.
            named = f"{where.get('host', '')}{where.get('dbname', '')}"
            if "@" in named or re.search(r"[^\d,]", str(where.get("port", ""))):
                raise psycopg.ProgrammingError("neither host nor port")
        except psycopg.ProgrammingError:
            # libpq's message may contain a part of the password.
            raise LoadError(
                "not a PostgreSQL URL: write postgresql://USER:PASSWORD@HOST:PORT/DATABASE, with "
                "%XX for characters of the password that are not letters or digits"
            ) from None
        self._url = url
        self._where = "{}:{}/{}".format(
            where.get("host", ""), where.get("port", 5432), where.get("dbname", "")
        )
        self._connection: psycopg.Connection[Any] | None = None
        self.duplicate_errors: tuple[type[Exception], ...] = (psycopg.errors.IntegrityError,)

    def __str__(self) -> str:
        # Neither user nor parameters: they may contain a password.
        return f"postgresql://{self._where}"

    def __reduce__(self) -> tuple[Any, ...]:
        return Postgresql, (self._url,)

    def _open(self) -> Any:
        import psycopg

        if self._connection is None:
            try:
                self._connection = psycopg.connect(self._url, autocommit=True, connect_timeout=30)
            except psycopg.OperationalError as err:
                raise LoadError(f"cannot connect to {self}: {str(err).strip()}") from err
        return self._connection

    def name(self, table: str) -> str:
        return _quoted(_folded(table))

    def _told(self) -> AbstractContextManager[None]:
        import psycopg

        return _told(self, psycopg.Error, psycopg.IntegrityError)

    def query(self, text: str, arguments: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        with self._told():
            rows: list[tuple[Any, ...]] = (
                self._open().execute(_numbered(text), arguments).fetchall()
            )
        return rows

    @contextmanager
    def transaction(self) -> Iterator[Run]:
        connection = self._open()
        with self._told(), connection.transaction():
            yield lambda text, arguments: int(
                connection.execute(_numbered(text), arguments).rowcount
            )

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        connection = self._open()
        with self._told(), connection.transaction(force_rollback=True):
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            yield

    def stage(
        self, table: str, where: tuple[str, str, str], rows: Iterator[tuple[Any, ...]]
    ) -> None:
        kinds = {"text": "text", "int": "int4", "long": "int8", "bytes": "bytea"}
        connection = self._open()
        with (
            self._told(),
            connection.transaction(),
            connection.cursor() as cursor,
            cursor.copy(f"COPY {self.name(staging_of(table))} FROM STDIN (FORMAT BINARY)") as copy,
        ):
            copy.set_types(["text"] * 3 + [kinds[kind] for _, kind in COLUMNS])
            for row in rows:
                copy.write_row((*where, *row))

    def make_tables(self, table: str) -> None:
        kinds = {"text": "text", "int": "integer", "long": "bigint", "bytes": "bytea"}
        with self.transaction() as run:
            # Two runs that create the same table at once would collide in the catalogue.
            run("SELECT pg_advisory_xact_lock(7236841)", ())
            for statement in _table_statements(table, self.name, kinds):
                run(statement, ())

    def has_table(self, table: str) -> bool:
        return bool(self.query("SELECT 1 WHERE to_regclass(?) IS NOT NULL", (table,)))

    @contextmanager
    def locked(self, name: str) -> Iterator[None]:
        key = zlib.crc32(name.encode())
        if not self.query("SELECT pg_try_advisory_lock(4867, ?)", (key - (1 << 31),))[0][0]:
            raise LoadError(f"another run is using {name} in {self}")
        try:
            yield
        finally:
            # A closed connection has released it.
            with contextlib.suppress(Exception):
                self.query("SELECT pg_advisory_unlock(4867, ?)", (key - (1 << 31),))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _numbered(text: str) -> str:
    return text.replace("?", "%s")
