"""A Delta table as destination, without a JVM: files are a directory's, and so is the commit log.

Publishing a commit also writes it to the table's own log, with the load and the commit's number as
the application transaction and the offsets as metadata; a number that the table has is not
written again. Files that a commit replaces stay until ``expire``, for readers of older versions.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from kbroker.spark.load import agreement, layout
from kbroker.spark.load.commits import RECOVER, Commit, LoadedFile, LoadError
from kbroker.spark.load.directory import Directory, DirectoryTaskSink

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

    from kbroker.spark.load.writer import FileOptions

_REWRITTEN = "not in the Delta table any more: another writer has rewritten or deleted its rows"
_UNKNOWN = "not in the Delta table"
_ESCAPE = re.compile(r"%[0-9A-Fa-f]{2}")
_MISSING = "the sink delta needs deltalake: pip install 'kbroker[delta]'"


class Delta(Directory):
    """See the module. Readers use the table; the folder also holds files it has replaced."""

    name = "delta"

    def __init__(self, root: str | Path, files: FileOptions | None = None) -> None:
        try:
            import deltalake  # noqa: F401
        except ImportError as err:
            raise LoadError(_MISSING) from err
        super().__init__(root, files)

    def _check_kind(self) -> None:
        """The table must be told of every file; the newest may wait for it after a crash."""
        if _ESCAPE.search(str(self.root)):
            # It writes there, and looks for what it has written elsewhere.
            raise LoadError(
                f"deltalake takes the % in {self.root} for the beginning of another character: "
                "name another folder"
            )
        newest = self.log.newest()
        if newest is None or self._table() is not None:
            return
        waiting = set() if self._is_published(newest) else {one.path for one in newest.added}
        if set(self.log.state().files) - waiting:
            raise LoadError(
                f"{self.root} was loaded as plain files, without a Delta table: say --sink dir, or "
                "load into another folder. If it had a table, its _delta_log is lost: restore it; "
                f"{agreement.WAY_OUT}, and the table"
            )

    def _check(self, commit: Commit) -> None:
        """Raises LoadError, too, for what the table would not take once it is committed."""
        replaced = {path for path in commit.removed if _is_of_table(path)}
        if replaced and commit.kind != RECOVER:
            self._require_replaceable(replaced)
        super()._check(commit)

    def _require_replaceable(self, paths: set[str]) -> None:
        """Other writers may use the table: what they put in a file's place would stay beside the
        rows that are to come in its place here."""
        table = self._table()
        if table is None:
            return
        if table.metadata().configuration.get("delta.appendOnly") == "true":
            raise LoadError(
                f"the table {self.root} takes only additions (delta.appendOnly), and files of it "
                "are to be replaced; nothing is changed. Unset that, or load into another folder"
            )
        rewritten = sorted(paths - _paths_in(table))
        if rewritten:
            raise LoadError(
                f"{rewritten[0]} and its rows cannot be replaced, nothing is changed: it is "
                f"{_REWRITTEN}. Begin behind it (status --files), or load into another folder"
            )

    def out_of_place(self, files: Iterable[LoadedFile]) -> dict[str, str]:
        found = list(files)
        table = self._table()
        known = _paths_in(table) if table is not None else set()
        why = _REWRITTEN if self._behind(table) is None else _UNKNOWN
        return {one.path: why for one in found if one.path not in known} | (
            super().out_of_place(found)
        )

    def _strange_file(self, newest: Commit) -> str | None:
        """Readers see what the table has, and it says which commit that is of."""
        return None

    def disagreement(self) -> str | None:
        # A run brings to the table what it has committed: the table is looked at first.
        table = self._table()
        if (said := super().disagreement()) is not None:
            return said
        newest = self.log.newest()
        if newest is None:
            return None
        known = self._version_in(table, newest.load)
        if known > newest.number:
            return agreement.lost_commits(self.root, newest.number, known, "the Delta table")
        missing = self._behind(table)
        # It may have come to the table since that was opened.
        if missing is None or (missing := self._behind(self._table())) is None:
            return None
        return (
            f"the Delta table {self.root} is behind its log of commits: it does not have commit "
            f"{missing.number}, which was brought there ({layout.PUBLISHED}). Restore the newest "
            f"files of _delta_log; {agreement.WAY_OUT}, and brings the table to what they say"
        )

    def _behind(self, table: DeltaTable | None) -> Commit | None:
        """The newest commit for the table, where it was published and is not there. Other writers
        may have replaced what it has brought in, and let the table forget its number."""
        newest = self.log.newest()
        if newest is None or not self._is_published(newest):
            return None
        made = self.log.last_change()
        if made is None or self._version_in(table, made.load) >= made.number:
            return None
        known = _paths_in(table) if table is not None else set()
        is_there = {one.path for one in made.added} <= known and not known & set(made.removed)
        return None if is_there else made

    def publish(self, commit: Commit) -> None:
        """Raises LoadError, too, when the table does not take it; then the next run tries again."""
        with self._told(commit):
            self._publish(commit)

    def _publish(self, commit: Commit) -> None:
        self._put_in_place(commit)
        if commit.added or commit.removed:
            table = self._table()
            if self._version_in(table, commit.load) < commit.number:
                told = commit if commit.kind != RECOVER else self._difference(table, commit)
                self._write_version(table, told)
            self._remove(path for path in commit.removed if not _is_of_table(path))
        self._note_published(commit)

    @contextmanager
    def _told(self, commit: Commit) -> Iterator[None]:
        from deltalake.exceptions import DeltaError

        try:
            yield
        except DeltaError as err:
            raise LoadError(
                f"the Delta table {self.root} does not take commit {commit.number}, which is "
                f"written; the next run brings it there: {_said(err)}"
            ) from err

    def _version_in(self, table: DeltaTable | None, load: str) -> int:
        """The newest commit that the table has; 0 without any."""
        return 0 if table is None else table.transaction_version(load) or 0

    def number_before(self, load: str) -> int:
        """The table knows commits by their numbers, also those of a log that is lost."""
        return self._version_in(self._table(), load)

    @staticmethod
    def _difference(table: DeltaTable | None, commit: Commit) -> Commit:
        """What makes the table what the commit says; replaced files stay for older versions."""
        listed = _paths_in(table) if table is not None else set()
        present = {one.path for one in commit.added}
        added = tuple(one for one in commit.added if one.path not in listed)
        return replace(commit, added=added, removed=tuple(sorted(listed - present)))

    def _table(self) -> DeltaTable | None:
        """Raises LoadError where there is one that cannot be read."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        uri = str(self.root)
        try:
            return DeltaTable(uri) if DeltaTable.is_deltatable(uri) else None
        except DeltaError as err:
            raise LoadError(f"the Delta table {uri} cannot be read: {_said(err)}") from err

    def vacuum(self, days: float) -> int:
        """Remove files that were replaced so many days ago; how many that were."""
        table = self._table()
        if table is None:
            return 0
        gone = table.vacuum(int(days * 24), dry_run=False, enforce_retention_duration=False)
        return len(gone)

    def task_sink(self, run: str, about: dict[str, str]) -> DirectoryTaskSink:
        """Raises LoadError when the table is partitioned otherwise."""
        table = self._table()
        if table is not None and self._columns_of(table)[:1] != ["topic"]:
            raise LoadError(
                f"the table {self.root} is not of a load: it is not partitioned by topic. Load "
                "into another folder"
            )
        if table is not None and self._columns_of(table) != self._partition_columns():
            kept = layout.partitioned_by(self._columns_of(table))
            raise LoadError(
                f"the table {self.root} is partitioned by {', '.join(self._columns_of(table))}; "
                f"a table keeps its partitioning: say --partition-by {kept}"
            )
        return super().task_sink(run, about)

    @staticmethod
    def _columns_of(table: DeltaTable) -> list[str]:
        return list(table.metadata().partition_columns)

    def _partition_columns(self) -> list[str]:
        return list(layout.FOLDER_COLUMNS[self.files.partition_by])

    def _schema(self, commit: Commit, columns: list[str]) -> pa.Schema:
        """That of the commit's files, and the columns of its folders."""
        import pyarrow as pa

        found = pq.read_schema(self.root / commit.added[0].path).remove_metadata()
        for name in columns:
            if name not in found.names:
                found = found.append(pa.field(name, pa.string()))
        return found

    def _write_version(self, table: DeltaTable | None, commit: Commit) -> None:
        from deltalake import CommitProperties, DeltaTable, Transaction
        from deltalake.transaction import RemoveAction

        columns = self._columns_of(table) if table is not None else self._partition_columns()
        if table is None:
            if not commit.added:
                return
            table = DeltaTable.create(
                str(self.root), self._schema(commit, columns), mode="ignore", partition_by=columns
            )
        properties = CommitProperties(
            custom_metadata={
                "kbroker.load": commit.load,
                "kbroker.commit": str(commit.number),
                "kbroker.ends": json.dumps(commit.ends, separators=(",", ":")),
            },
            app_transactions=[Transaction(commit.load, commit.number)],
        )
        now = int(time.time() * 1000)
        moved = commit.kind != "compact"
        actions: list[Any] = [_add(one, commit.written_ms, moved) for one in commit.added]
        actions += [
            RemoveAction(path, moved, now, partition_values=layout.partition_values(path))
            for path in commit.removed
            if _is_of_table(path)
        ]
        schema = self._schema(commit, columns) if commit.added else table.schema()
        table.create_write_transaction(
            actions, "append", schema, partition_by=columns, commit_properties=properties
        )


def _is_of_table(path: str) -> bool:
    """Files of bad values are not: no reader of an older version asks for them."""
    return path.startswith(f"{layout.DATA}/")


def _said(err: Exception) -> str:
    return str(err).splitlines()[0]


def _paths_in(table: DeltaTable) -> set[str]:
    import pyarrow as pa

    return set(pa.table(table.get_add_actions()).column("path").to_pylist())


def _add(one: LoadedFile, written_ms: int, data_change: bool) -> object:
    from deltalake.transaction import AddAction

    stats = {
        "numRecords": one.rows,
        "minValues": {"offset": one.first_offset},
        "maxValues": {"offset": one.last_offset},
        "nullCount": {"offset": 0},
    }
    return AddAction(
        path=one.path,
        size=one.bytes,
        partition_values=layout.partition_values(one.path),
        modification_time=written_ms,
        data_change=data_change,
        stats=json.dumps(stats),
    )
