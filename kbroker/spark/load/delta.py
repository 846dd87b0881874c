"""A Delta table as destination, without a JVM.

The load and the commit's number are the application transaction of a version, the offsets its
metadata.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from kbroker.spark.load import layout
from kbroker.spark.load.commits import Commit, LoadedFile, LoadError
from kbroker.spark.load.seen import SeenFile
from kbroker.spark.load.table import TableDirectory, first_line, removed_in

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from kbroker.spark.load.writer import FileOptions

_ESCAPE = re.compile(r"%[0-9A-Fa-f]{2}")
_MISSING = "the sink delta needs deltalake: pip install deltalake"


class Delta(TableDirectory["DeltaTable"]):
    """See the module. Readers use the table; the folder also holds files it has replaced."""

    name = "delta"
    kind = "Delta table"
    own_log = "_delta_log"

    def __init__(self, root: str | Path, files: FileOptions | None = None) -> None:
        try:
            import deltalake  # noqa: F401
        except ImportError as err:
            raise LoadError(_MISSING) from err
        super().__init__(root, files)

    @property
    def library_errors(self) -> type[Exception]:
        from deltalake.exceptions import DeltaError

        return DeltaError

    def check_kind(self) -> None:
        if _ESCAPE.search(str(self.root)):
            # It writes there, but looks elsewhere for what it has written.
            raise LoadError(
                f"deltalake reads the % in {self.root} as an escape sequence: use another folder"
            )
        super().check_kind()

    def reason_not_to_replace(self, table: DeltaTable) -> str:
        if table.metadata().configuration.get("delta.appendOnly") != "true":
            return ""
        return (
            f"the table {self.root} is append-only (delta.appendOnly), but some of its files must "
            "be replaced; nothing is changed. Unset that property, or load into another folder"
        )

    def table(self) -> DeltaTable | None:
        from deltalake import DeltaTable

        uri = str(self.root)
        try:
            return DeltaTable(uri) if DeltaTable.is_deltatable(uri) else None
        except self.library_errors as err:
            raise LoadError(f"the Delta table {uri} cannot be read: {first_line(err)}") from err

    def version_in(self, table: DeltaTable, load: str) -> int:
        return table.transaction_version(load) or 0

    def paths_in(self, table: DeltaTable) -> set[str]:
        return set(pa.table(table.get_add_actions()).column("path").to_pylist())

    def seen_in(self, table: DeltaTable) -> list[SeenFile]:
        actions = pa.table(table.get_add_actions(flatten=True))
        if "partition.topic" not in actions.schema.names:
            raise LoadError(f"the Delta table {self.root} is not partitioned by topic")
        deleted = self._deleted_in(table)
        paths = map(self._below_root, actions.column("path").to_pylist())
        topics = actions.column("partition.topic").to_pylist()
        return [
            SeenFile(path, topic or "", deleted.get(path))
            for path, topic in zip(paths, topics, strict=True)
        ]

    def _deleted_in(self, table: DeltaTable) -> dict[str, pa.Array]:
        """The positions of deleted rows by path, for files that have a deletion vector."""
        if "deletionVectors" not in (table.protocol().reader_features or ()):
            return {}
        if not hasattr(table, "deletion_vectors"):
            raise LoadError(
                f"the Delta table {self.root} has deletion vectors, which this deltalake cannot "
                "read: pip install --upgrade deltalake"
            )
        vectors = pa.table(table.deletion_vectors())
        paths = map(self._below_root, vectors.column("filepath").to_pylist())
        # A mask may end before its file does: the rows after it are not deleted.
        masks = (one.values for one in vectors.column("selection_vector"))
        return {
            path: pc.indices_nonzero(pc.invert(mask)).cast(pa.int64())
            for path, mask in zip(paths, masks, strict=True)
        }

    def _below_root(self, path: str) -> str:
        """Below the root, if it is there: files of a clone are named by URI."""
        if path.startswith("file:"):
            path = unquote(path.removeprefix("file:").removeprefix("//"))
        return path.removeprefix(f"{self.root}/")

    def columns_of(self, table: DeltaTable) -> list[str]:
        return list(table.metadata().partition_columns)

    def vacuum(self, days: float) -> int:
        table = self.table()
        if table is None:
            return 0
        gone = table.vacuum(int(days * 24), dry_run=False, enforce_retention_duration=False)
        return len(gone)

    def write_version(self, table: DeltaTable | None, commit: Commit) -> None:
        from deltalake import CommitProperties, DeltaTable, Transaction
        from deltalake.transaction import RemoveAction

        columns = self.columns_of(table) if table is not None else self.partition_columns()
        if table is None:
            if not commit.added:
                return
            table = DeltaTable.create(
                str(self.root), self.schema_of(commit, columns), mode="ignore", partition_by=columns
            )
        properties = CommitProperties(
            custom_metadata=self.properties_of(commit),
            app_transactions=[Transaction(commit.load, commit.number)],
        )
        now = int(time.time() * 1000)
        moved = commit.kind != "compact"
        actions: list[Any] = [_add(one, commit.written_ms, moved) for one in commit.added]
        actions += [
            RemoveAction(path, moved, now, partition_values=layout.partition_values(path))
            for path in removed_in(commit)
        ]
        schema = self.schema_of(commit, columns) if commit.added else table.schema()
        table.create_write_transaction(
            actions, "append", schema, partition_by=columns, commit_properties=properties
        )


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
