"""An Iceberg table that is a folder, in the layout that Iceberg's ``HadoopTables`` reads.

::

    metadata/v7.metadata.json      the table's versions, from 1 on; never changed
    metadata/version-hint.text     number of the newest; a reader looks for higher ones
    metadata/*.avro                which files a version has

A version is written under a temporary name, synced, and linked to its number: the link is the
commit point and fails when the number exists, so that of any number of writers one wins. The others
start over from the winner's version (``Overtaken``): nothing is retried blindly.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io import load_file_io
from pyiceberg.manifest import ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, FileScanTask, Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataV2
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import TableRequirement, TableUpdate, update_table_metadata

from kbroker.spark.load import layout, points
from kbroker.spark.load.log import sync_directory, temporary, write_synced

METADATA = layout.ICEBERG_METADATA
HINT = f"{METADATA}/version-hint.text"
_VERSION = re.compile(r"v(\d+)(\.gz)?\.metadata\.json")


class Overtaken(Exception):
    """Another writer has made the version that this one was to make."""


class FolderCatalog(NoopCatalog):
    """The catalog of the only table in a folder."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root))
        self._root = root

    @property
    def location(self) -> str:
        """The table's location, as in its metadata."""
        return f"file://{self._root}"

    def newest(self) -> int:
        """The number of the newest version; 0 if there is no table."""
        try:
            names = os.listdir(self._root / METADATA)
        except FileNotFoundError:
            return 0
        return max(
            (int(match[1]) for one in names if (match := _VERSION.fullmatch(one))), default=0
        )

    def _path_of(self, number: int) -> Path:
        """Find the file; other writers may have compressed it."""
        usual = self._root / METADATA / f"v{number}.metadata.json"
        packed = usual.with_name(f"v{number}.gz.metadata.json")
        return packed if packed.exists() else usual

    def load_table(self, identifier: str | tuple[str, ...] = "table") -> Table:
        """The current table. Raises FileNotFoundError if there is none."""
        number = self.newest()
        path = self._path_of(number)
        io = load_file_io({}, str(path))
        if not number:
            raise FileNotFoundError(path)
        metadata = FromInputFile.table_metadata(io.new_input(f"file://{path}"))
        return self._table_of(metadata, path)

    def make(self, schema: Schema, spec: PartitionSpec, properties: dict[str, str]) -> Table:
        """Create a table without files. Raises Overtaken if it exists."""
        # Not by ``new_table_metadata``, which renumbers the columns.
        said: dict[str, Any] = {
            "location": self.location,
            "table-uuid": uuid.uuid4(),
            "schemas": [schema],
            "current-schema-id": schema.schema_id,
            "last-column-id": schema.highest_field_id,
            "partition-specs": [spec],
            "default-spec-id": spec.spec_id,
            "last-partition-id": spec.last_assigned_field_id,
            "sort-orders": [UNSORTED_SORT_ORDER],
            "default-sort-order-id": UNSORTED_SORT_ORDER.order_id,
            "properties": properties,
        }
        metadata = TableMetadataV2(**said)
        return self._table_of(metadata, self._put(metadata, 1))

    def commit_table(
        self,
        table: Table,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        """Commit the next version. Raises Overtaken if it was created since ``table`` was
        loaded.
        """
        number = self.newest()
        if str(self._path_of(number)) != table.metadata_location.removeprefix("file://"):
            raise Overtaken
        for requirement in requirements:
            requirement.validate(table.metadata)
        metadata = update_table_metadata(
            base_metadata=table.metadata,
            updates=updates,
            metadata_location=table.metadata_location,
        )
        self._sync_lists(metadata)
        path = self._put(metadata, number + 1)
        return CommitTableResponse(
            **{"metadata": metadata, "metadata-location": f"file://{path}"}  # type: ignore[arg-type]
        )

    def _table_of(self, metadata: TableMetadata, path: Path) -> Table:
        location = f"file://{path}"
        io = load_file_io(metadata.properties, location)
        return Table(("table",), metadata, location, io, self)

    def _sync_lists(self, metadata: TableMetadata) -> None:
        """Sync the files that a version refers to before it is written."""
        snapshot = metadata.current_snapshot()
        if snapshot is None:
            return
        io = load_file_io(metadata.properties, snapshot.manifest_list)
        new = [
            one.manifest_path
            for one in snapshot.manifests(io)
            if one.added_snapshot_id == snapshot.snapshot_id
        ]
        for path in (snapshot.manifest_list, *new):
            descriptor = os.open(path.removeprefix("file://"), os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _put(self, metadata: TableMetadata, number: int) -> Path:
        path = self._root / METADATA / f"v{number}.metadata.json"
        path.parent.mkdir(exist_ok=True)
        with temporary(path, f"v{number}-{os.getpid()}-{metadata.last_updated_ms}") as whole:
            write_synced(whole, metadata.model_dump_json().encode())
            points.reach("version-written")
            try:
                os.link(whole, path)
            except FileExistsError as err:
                raise Overtaken from err
        sync_directory(path.parent)
        points.reach("version-linked")
        self.hint(number)
        return path

    def hint(self, number: int) -> None:
        """Name the newest version for readers that go by that. A kill may have been before it."""
        path = self._root / HINT
        text = str(number)
        if not path.exists() or path.read_text().strip() != text:
            with temporary(path, f"hint-{os.getpid()}") as whole:
                write_synced(whole, text.encode())
                whole.replace(path)
            sync_directory(path.parent)

    def remove_old(self, table: Table, before: float) -> int:
        """Remove files of ``metadata`` that no version in ``table`` refers to and that are older
        than ``before``, in seconds since 1970.
        """
        metadata = table.metadata
        kept = {table.metadata_location, *(one.metadata_file for one in metadata.metadata_log)}
        for snapshot in metadata.snapshots:
            kept.add(snapshot.manifest_list)
            kept |= {one.manifest_path for one in snapshot.manifests(table.io)}
        names = {one.rpartition("/")[2] for one in kept}
        gone = 0
        for path in sorted((self._root / METADATA).iterdir()):
            is_ours = path.suffix == ".avro" or _VERSION.fullmatch(path.name) is not None
            if is_ours and path.name not in names and path.stat().st_mtime < before:
                path.unlink(missing_ok=True)
                gone += 1
        return gone


def replaces_reliably(update: Any) -> Any:
    """Have a pyiceberg ``overwrite`` find its files in every manifest.

    pyiceberg 0.12 looks through the manifests in threads that share an evaluator, which remembers
    the manifest it is at: manifests are taken for others, and files to be replaced are missed.
    """
    make = update._build_manifest_evaluator

    def evaluator_for(spec_id: int) -> Callable[[ManifestFile], bool]:
        return lambda manifest: make(spec_id)(manifest)

    update._build_manifest_evaluator = evaluator_for
    return update


def deleted_rows(table: Table, tasks: Iterable[FileScanTask]) -> dict[str, pa.Array]:
    """By the name of a data file, the positions of its rows that position deletes and deletion
    vectors name.
    """
    from pyiceberg.io.pyarrow import _read_all_delete_files

    return {
        name: pa.chunked_array(chunk for part in parts for chunk in part.chunks)
        .combine_chunks()
        .cast(pa.int64())
        for name, parts in _read_all_delete_files(table.io, tasks).items()
    }


PROPERTIES = {
    "write.format.default": "parquet",
    # Older ones are removed: each is as large as the newest.
    "write.metadata.previous-versions-max": "20",
    "write.metadata.delete-after-commit.enabled": "true",
    # Otherwise each commit adds a list that readers have to open.
    "commit.manifest-merge.enabled": "true",
}
"""Properties of a new table."""
