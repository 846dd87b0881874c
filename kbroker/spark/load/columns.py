"""Whether new files can be read together with the existing ones."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from kbroker.spark.load import layout
from kbroker.spark.load.commits import LOAD, RELOAD, Commit, CommitState, LoadedFile, LoadError


def check_columns(root: Path, commit: Commit, state: CommitState, *, is_table: bool) -> None:
    """Raises LoadError for a commit whose files other readers could not read with the others.

    state: before the commit. is_table: all files are of one table, whose columns are what they were
    in the first of them; in a folder, columns may be added, and topics differ. The folders of a
    topic's files are columns as well, and always the same ones.
    """
    if commit.kind not in (LOAD, RELOAD):
        return
    gone = set() if is_table else set(commit.removed)
    kept = [one for one in reversed(state.files.values()) if one.path not in gone]
    for topic, one in {file.topic: file for file in commit.added}.items():
        columns = _any_there(root, (it for it in kept if is_table or it.topic == topic))
        if columns is None:
            continue
        file, old = columns
        _check_folders(root, file, one)
        new = pq.read_schema(root / one.staged).remove_metadata()
        if (old != new) if is_table else not _fit(old.field("value").type, new.field("value").type):
            raise LoadError(
                f"{topic} has columns that do not match those of {root}; nothing is loaded. "
                f"There: {_text(old)}; now: {_text(new)}. Use the same --value-format, "
                "--value-schema and --no-headers as before, or load into another folder"
            )


def _any_there(root: Path, files: Iterable[LoadedFile]) -> tuple[LoadedFile, pa.Schema] | None:
    """The first file which was not deleted by hand, and its schema."""
    for one in files:
        try:
            return one, schema_of_file(root / one.path)
        except FileNotFoundError:
            continue
    return None


def schema_of_file(path: Path) -> pa.Schema:
    """The columns of a loaded file. Raises LoadError if it is not a complete Parquet file."""
    try:
        return pq.read_schema(path).remove_metadata()
    except pa.ArrowException as err:
        raise LoadError(f"{path} cannot be read: {err}; verify lists all damage") from err


def _check_folders(root: Path, old: LoadedFile, new: LoadedFile) -> None:
    """Readers take no folder that has files both of days and of hours."""
    kept, wanted = (list(layout.partition_values(one.path)) for one in (old, new))
    if kept != wanted:
        raise LoadError(
            f"{root} has {new.topic} in folders by {', '.join(kept)}, not by {', '.join(wanted)}; "
            f"nothing is loaded. Use --partition-by {layout.partitioned_by(kept)} as before, or "
            "load into another folder"
        )


def _fit(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether values are of one type, or structs that share no field of two types."""
    if not (pa.types.is_struct(old) and pa.types.is_struct(new)):
        return bool(old == new)
    types = {field.name: field.type for field in old}
    return all(_fit(types[field.name], field.type) for field in new if field.name in types)


def _text(schema: pa.Schema) -> str:
    more = " and headers" if "headers" in schema.names else ""
    return f"value {schema.field('value').type}{more}"
