"""An Iceberg table as destination, without a JVM.

The load and the commit's number are a property of the table, set in the change that brings the
files in, and offsets are those of the snapshot. ``iceberg_folder`` says where the table's versions
are.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from kbroker.spark.load import layout
from kbroker.spark.load.commits import Commit, LoadedFile, LoadError
from kbroker.spark.load.seen import SeenFile
from kbroker.spark.load.table import TableDirectory, first_line, removed_in
from kbroker.spark.load.writer import FileOptions

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

_MISSING = "the sink iceberg needs pyiceberg: pip install 'pyiceberg>=0.12,<0.13'"
# Prefix of the property with the number of a load's newest commit; the load's name follows.
_NUMBER = "kbroker.commit."
# And the end offsets of the newest commit only, because each version repeats them.
_ENDS = "kbroker.ends."
# Attempts to commit, if another writer is faster each time.
_TURNS = 20
# Each version names all its snapshots: above this number, older ones are dropped.
SNAPSHOTS_MAX, SNAPSHOTS_KEPT = 200, 100
# Files newer than this may be about to be committed by another writer.
_BEING_WRITTEN_S = 3600.0


class Iceberg(TableDirectory["Table"]):
    """See the module. Readers use the table; the folder also holds files it has replaced."""

    name = "iceberg"
    kind = "Iceberg table"
    own_log = layout.ICEBERG_METADATA

    def __init__(self, root: str | Path, files: FileOptions | None = None) -> None:
        try:
            from kbroker.spark.load.iceberg_folder import FolderCatalog
        except ImportError as err:
            raise LoadError(_MISSING) from err
        super().__init__(root, replace(files or FileOptions(), numbered=True))
        self._catalog = FolderCatalog(self.root)

    @property
    def library_errors(self) -> tuple[type[Exception], ...]:
        from pyiceberg.exceptions import CommitFailedException, ValidationException

        return (CommitFailedException, ValidationException, ValueError)

    def check_kind(self) -> None:
        if set("#?%") & set(str(self.root)):
            # Characters after these do not belong to a path.
            raise LoadError(
                f"pyiceberg reads {self.root} as a URL, in which #, ? and % have a special "
                "meaning: use another folder"
            )
        super().check_kind()

    def table(self) -> Table | None:
        from pyiceberg.exceptions import ValidationError

        if not self._catalog.newest():
            return None
        try:
            return self._catalog.load_table()
        except (ValidationError, ValueError, OSError) as err:
            raise LoadError(
                f"the Iceberg table {self.root} cannot be read: {first_line(err)}"
            ) from err

    def version_in(self, table: Table, load: str) -> int:
        return int(table.properties.get(_NUMBER + load, 0))

    def paths_in(self, table: Table) -> set[str]:
        return {self._below_root(one) for one in self._files_in(table)}

    def _below_root(self, file: DataFile) -> str:
        """The path below the root; other writers may name files by URI."""
        path = file.file_path.removeprefix("file:").removeprefix("//")
        return path.removeprefix(f"{self.root}/")

    @staticmethod
    def _files_in(table: Table) -> Iterator[DataFile]:
        from pyiceberg.manifest import DataFileContent

        snapshot = table.current_snapshot()
        for manifest in snapshot.manifests(table.io) if snapshot is not None else ():
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                if entry.data_file.content is DataFileContent.DATA:
                    yield entry.data_file

    def seen_in(self, table: Table) -> list[SeenFile]:
        from kbroker.spark.load.iceberg_folder import deleted_rows

        # Raises ValueError for equality deletes.
        tasks = list(table.scan().plan_files())
        deleted = deleted_rows(table, tasks)
        return [
            SeenFile(
                self._below_root(one.file),
                self._topic_of(table, one.file),
                deleted.get(one.file.file_path),
            )
            for one in tasks
        ]

    def _topic_of(self, table: Table, file: DataFile) -> str:
        spec = table.specs()[file.spec_id]
        for position, one in enumerate(spec.fields):
            if one.name == "topic":
                return str(file.partition[position])
        raise LoadError(f"the Iceberg table {self.root} is not partitioned by topic")

    def columns_of(self, table: Table) -> list[str]:
        return [one.name for one in table.spec().fields]

    def reason_not_to_replace(self, table: Table) -> str:
        from pyiceberg.manifest import ManifestContent

        snapshot = table.current_snapshot()
        manifests = snapshot.manifests(table.io) if snapshot is not None else []
        if not any(one.content is ManifestContent.DELETES for one in manifests):
            return ""
        return (
            f"another writer has deleted rows of the table {self.root} without rewriting their "
            "files, so replacing these files would restore the rows; nothing is changed. Let "
            "that writer rewrite the files first"
        )

    def write_version(self, table: Table | None, commit: Commit) -> None:
        from kbroker.spark.load.iceberg_folder import Overtaken

        for _ in range(_TURNS):
            try:
                if table is None:
                    if not commit.added:
                        return
                    table = self._made(commit)
                if self.version_in(table, commit.load) < commit.number:
                    self._change(table, commit)
                return
            except Overtaken:
                table = self.table()
        raise LoadError(
            f"other writers of the table {self.root} keep getting ahead; commit {commit.number} "
            "is written, and the next run will add it to the table"
        )

    def _settle(self) -> None:
        if newest := self._catalog.newest():
            self._catalog.hint(newest)

    def _made(self, commit: Commit) -> Table:
        from kbroker.spark.load.iceberg_folder import PROPERTIES
        from kbroker.spark.load.iceberg_schema import iceberg_schema, partition_spec

        columns = self.partition_columns()
        schema = iceberg_schema(self.schema_of(commit, []), columns)
        return self._catalog.make(schema, partition_spec(schema, columns), PROPERTIES)

    def _change(self, table: Table, commit: Commit) -> None:
        """A new version: files, number and ends."""
        from kbroker.spark.load.iceberg_folder import replaces_reliably

        gone = set(removed_in(commit))
        # A writer that only appends need not open the lists of existing files.
        files = self._files_in(table) if gone else ()
        replaced = [one for one in files if self._below_root(one) in gone]
        said = self.properties_of(commit)
        ends = said.pop("kbroker.ends")
        change = table.transaction()
        if commit.added or replaced:
            update = change.update_snapshot(snapshot_properties=said)
            kind = replaces_reliably(update.overwrite()) if replaced else update.merge_append()
            with kind as snapshot:
                for one in commit.added:
                    snapshot.append_data_file(self._data_file(table, one))
                for file in replaced:
                    snapshot.delete_data_file(file)
        change.set_properties({_NUMBER + commit.load: said["kbroker.commit"]})
        change.set_properties({_ENDS + commit.load: ends})
        change.commit_transaction()
        self._forget_old()

    def _forget_old(self) -> None:
        """Keep the metadata short. Files of snapshots that readers know stay until ``expire``."""
        from kbroker.spark.load.iceberg_folder import Overtaken

        table = self._catalog.load_table()
        if len(table.metadata.snapshots) <= SNAPSHOTS_MAX:
            return
        named = {one.snapshot_id for one in table.metadata.refs.values()}
        old = table.metadata.snapshots[:-SNAPSHOTS_KEPT]
        ids = [one.snapshot_id for one in old if one.snapshot_id not in named]
        with suppress(Overtaken):  # then the next commit does it
            table.maintenance.expire_snapshots().by_ids(ids).commit()

    def _data_file(self, table: Table, one: LoadedFile) -> DataFile:
        from pyiceberg.conversions import to_bytes
        from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
        from pyiceberg.typedef import Record
        from pyiceberg.types import LongType

        folders = layout.partition_values(one.path)
        offset = table.schema().find_field("offset").field_id
        made = DataFile.from_args(
            _table_format_version=2,
            content=DataFileContent.DATA,
            file_path=f"{self._catalog.location}/{one.path}",
            file_format=FileFormat.PARQUET,
            partition=Record(*(folders.get(name) for name in self.columns_of(table))),
            record_count=one.rows,
            file_size_in_bytes=one.bytes,
            null_value_counts={offset: 0},
            lower_bounds={offset: to_bytes(LongType(), one.first_offset)},
            upper_bounds={offset: to_bytes(LongType(), one.last_offset)},
        )
        made.spec_id = table.spec().spec_id
        return made

    def vacuum(self, days: float) -> int:
        """Expire older snapshots first, then remove files that no snapshot refers to."""
        table = self.table()
        if table is None:
            return 0
        before = datetime.now(UTC) - timedelta(days=days)
        table.maintenance.expire_snapshots().older_than(before.replace(tzinfo=None)).commit()
        table = self._catalog.load_table()
        kept = set(self.log.state().files)
        for snapshot in table.snapshots():
            for manifest in snapshot.manifests(table.io):
                for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                    kept.add(self._below_root(entry.data_file))
        gone = 0
        for path in sorted((self.root / layout.DATA).rglob("*.parquet")):
            # Files of other writers may be about to be committed.
            is_ours = layout.numbers_in(path.name) is not None
            if is_ours and path.relative_to(self.root).as_posix() not in kept:
                path.unlink(missing_ok=True)
                gone += 1
        self._catalog.remove_old(table, min(before.timestamp(), time.time() - _BEING_WRITTEN_S))
        return gone
