"""A folder whose files belong to a table: readers see what the table's own log lists.

Files are a directory's, and so is the commit log. Publishing a commit also writes it to the table's
log, in one change with the load and the commit's number; a number that the table has is not written
again. Files that a commit replaces stay until ``expire``, for readers of older versions. Other
writers may use the table, too: what they have rewritten is left to them.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Generic, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from kbroker.spark.load import agreement, layout
from kbroker.spark.load.commits import RECOVER, Commit, LoadedFile, LoadError
from kbroker.spark.load.directory import Directory, DirectoryTaskSink
from kbroker.spark.load.seen import SeenFile

T = TypeVar("T")


class TableDirectory(Directory, ABC, Generic[T]):
    """See the module. T: the table as its library opens it."""

    is_table = True
    # As text, and the folder of its own log.
    kind = "table"
    own_log = ""

    # -- what a kind of table does

    @property
    @abstractmethod
    def library_errors(self) -> type[Exception] | tuple[type[Exception], ...]:
        """The exceptions of its library."""

    @abstractmethod
    def table(self) -> T | None:
        """The current table. Raises LoadError if there is one that cannot be read."""

    @abstractmethod
    def version_in(self, table: T, load: str) -> int:
        """The newest commit of the load that the table has; 0 without any."""

    @abstractmethod
    def paths_in(self, table: T) -> set[str]:
        """Files that its readers see, below the root."""

    @abstractmethod
    def seen_in(self, table: T) -> list[SeenFile]:
        """The same files, and the rows that are deleted from them. Raises LoadError if its library
        cannot read that.
        """

    @abstractmethod
    def columns_of(self, table: T) -> list[str]:
        """The columns it is partitioned by."""

    @abstractmethod
    def reason_not_to_replace(self, table: T) -> str:
        """The reason why its files cannot be replaced, and what to do; empty if they can."""

    @abstractmethod
    def write_version(self, table: T | None, commit: Commit) -> None:
        """Write one version of the table: the commit's files, its number and its ends. Creates the
        table if there is none, unless the commit adds nothing.
        """

    @abstractmethod
    def vacuum(self, days: float) -> int:
        """Remove files that were replaced so many days ago; returns their number."""

    # -- what all do

    def check_kind(self) -> None:
        """The table must list every file; after a crash, the newest ones may still be missing from
        it.
        """
        super().check_kind()
        newest = self.log.newest()
        if newest is None or self.table() is not None:
            return
        waiting = set() if self._is_published(newest) else {one.path for one in newest.added}
        if set(self.log.state().files) - waiting:
            raise LoadError(
                f"{self.root} was loaded as plain files, without a {self.kind}: use --sink dir, "
                f"or load into another folder. If it had a table, its {self.own_log} is lost: "
                f"restore it; {agreement.WAY_OUT}, and the table"
            )

    def _check(self, commit: Commit) -> None:
        """Also raises LoadError for changes that the table would not accept after the commit."""
        replaced = {path for path in commit.removed if is_of_table(path)}
        if replaced and commit.kind != RECOVER:
            self._require_replaceable(replaced)
        super()._check(commit)

    def _require_replaceable(self, paths: set[str]) -> None:
        """Other writers may use the table: rows that they rewrote would remain besides the new
        ones.
        """
        table = self.table()
        if table is None:
            return
        if said := self.reason_not_to_replace(table):
            raise LoadError(said)
        rewritten = sorted(paths - self.paths_in(table))
        if rewritten:
            raise LoadError(
                f"{rewritten[0]} and its rows cannot be replaced, so nothing is changed: it is "
                f"{self._rewritten}. Begin after it (status --files), or load into another folder"
            )

    @property
    def _rewritten(self) -> str:
        return f"no longer in the {self.kind}: another writer has rewritten or deleted its rows"

    def out_of_place(self, files: Iterable[LoadedFile]) -> dict[str, str]:
        ours = list(files)
        table = self.table()
        known = self.paths_in(table) if table is not None else set()
        why = self._rewritten if self._behind(table) is None else f"not in the {self.kind}"
        return {one.path: why for one in ours if one.path not in known} | (
            super().out_of_place(ours)
        )

    def seen(self) -> list[SeenFile]:
        table = self.table()
        if table is None:
            return []
        try:
            return self.seen_in(table)
        except self.library_errors as err:
            raise LoadError(
                f"the {self.kind} {self.root} cannot be read: {first_line(err)}"
            ) from err

    def _strange_file(self, newest: Commit) -> str | None:
        """Readers see the table's content, and the table records the commit it belongs to."""
        return None

    def disagreement(self) -> str | None:
        # A run adds its commits to the table: the table is checked first.
        table = self.table()
        if (said := super().disagreement()) is not None:
            return said
        newest = self.log.newest()
        if newest is None:
            return None
        known = self.version_in(table, newest.load) if table is not None else 0
        if known > newest.number:
            return agreement.lost_commits(self.root, newest.number, known, f"the {self.kind}")
        missing = self._behind(table)
        # It may have been added to the table since that was opened.
        if missing is None or (missing := self._behind(self.table())) is None:
            return None
        return (
            f"the {self.kind} {self.root} is behind its log of commits: it lacks commit "
            f"{missing.number}, which had been added to it ({layout.PUBLISHED}). Restore the "
            f"newest files of {self.own_log}; {agreement.WAY_OUT}, which also updates the table"
        )

    def _behind(self, table: T | None) -> Commit | None:
        """The newest commit for the table, if it was published and is missing. Other writers may
        have replaced its files, and dropped its number.
        """
        newest = self.log.newest()
        if newest is None or not self._is_published(newest):
            return None
        made = self.log.last_change()
        if made is None:
            return None
        if table is not None and self.version_in(table, made.load) >= made.number:
            return None
        known = self.paths_in(table) if table is not None else set()
        is_there = {one.path for one in made.added} <= known and not known & set(made.removed)
        return None if is_there else made

    def publish(self, commit: Commit) -> None:
        """Also raises LoadError if the table does not accept it; the next run retries."""
        with self._told(commit):
            self._publish(commit)

    def _publish(self, commit: Commit) -> None:
        self._put_in_place(commit)
        if commit.added or commit.removed:
            table = self.table()
            if table is None or self.version_in(table, commit.load) < commit.number:
                published = commit if commit.kind != RECOVER else self._difference(table, commit)
                self.write_version(table, published)
            self._remove(path for path in commit.removed if not is_of_table(path))
        self._settle()
        self._note_published(commit)

    def _settle(self) -> None:
        """Do what the table needs besides its versions, which a kill may have left undone."""

    @contextmanager
    def _told(self, commit: Commit) -> Iterator[None]:
        try:
            yield
        except self.library_errors as err:
            raise LoadError(
                f"the {self.kind} {self.root} does not accept commit {commit.number}, which is "
                f"written; the next run will add it to the table: {first_line(err)}"
            ) from err

    def number_before(self, load: str) -> int:
        """The table knows commits by their numbers, even those of a lost log."""
        table = self.table()
        return self.version_in(table, load) if table is not None else 0

    def _difference(self, table: T | None, commit: Commit) -> Commit:
        """The changes that bring the table to the state of the commit; replaced files stay for
        older versions.
        """
        listed = self.paths_in(table) if table is not None else set()
        present = {one.path for one in commit.added}
        added = tuple(one for one in commit.added if one.path not in listed)
        return replace(commit, added=added, removed=tuple(sorted(listed - present)))

    def task_sink(self, run: str, about: dict[str, str]) -> DirectoryTaskSink:
        """Raises LoadError when the table is partitioned otherwise."""
        table = self.table()
        columns = self.columns_of(table) if table is not None else []
        if table is not None and columns[:1] != ["topic"]:
            raise LoadError(
                f"the table {self.root} was not created by a load: it is not partitioned by "
                "topic. Load into another folder"
            )
        if table is not None and columns != self.partition_columns():
            raise LoadError(
                f"the table {self.root} is partitioned by {', '.join(columns)}; a table keeps its "
                f"partitioning: use --partition-by {layout.partitioned_by(columns)}"
            )
        return super().task_sink(run, about)

    def partition_columns(self) -> list[str]:
        """The partition columns of a new table."""
        return list(layout.FOLDER_COLUMNS[self.files.partition_by])

    def schema_of(self, commit: Commit, columns: list[str]) -> pa.Schema:
        """The schema of the commit's files, with the folder columns."""
        schema = pq.read_schema(self.root / commit.added[0].path).remove_metadata()
        for name in columns:
            if name not in schema.names:
                schema = schema.append(pa.field(name, pa.string()))
        return schema

    @staticmethod
    def properties_of(commit: Commit) -> dict[str, str]:
        """A table version's record of the commit that it was made for."""
        return {
            "kbroker.load": commit.load,
            "kbroker.commit": str(commit.number),
            "kbroker.ends": json.dumps(commit.ends, separators=(",", ":")),
        }


def is_of_table(path: str) -> bool:
    """Files of bad values are not: no reader of an older version asks for them."""
    return path.startswith(f"{layout.DATA}/")


def first_line(err: Exception) -> str:
    """The first line of an error message of a library."""
    return (str(err).splitlines() or [type(err).__name__])[0]


def removed_in(commit: Commit) -> list[str]:
    """The paths that the table is to forget."""
    return [path for path in commit.removed if is_of_table(path)]
