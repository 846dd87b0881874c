"""Decodes values in the task that reads them; undecodable ones are set aside, not lost.

A whole batch goes through the JSON reader of Arrow at once. Only when that finds something wrong
is the batch halved, again and again, to tell the bad values from the good: a topic with few bad
records pays for them alone.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
import pyarrow.json as pj

from kbroker.spark.load.commits import LoadError

# A block must hold the longest value; Arrow's reader rejects a longer one.
_BLOCK_BYTES_MIN = 1 << 20
# BOUND: size of the error of a bad value, which may quote it.
_REASON_MAX = 500


class RowDecoder(Protocol):
    """Goes to the executors, so it pickles."""

    def split(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch | None]:
        """The rows that could be decoded, with their values decoded, and the others as they were
        with a column ``error``; None if there are no others."""
        ...


@dataclass(frozen=True, slots=True)
class JsonDecoder:
    """``value`` becomes a struct of the fields of ``schema``.

    A field that is absent or null is null; fields that the schema does not name are dropped; a null
    value (a tombstone) is a null struct. A value that is no JSON object, or has a field of another
    type, is bad.
    """

    schema: pa.Schema

    def split(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch | None]:
        values = batch.column("value")
        decoded = self._all_at_once(values)
        if decoded is not None:
            return self._replaced(batch, decoded), None
        errors = self._errors(values)
        good = pa.array([error is None for error in errors])
        rejected = batch.filter(pa.array([error is not None for error in errors]))
        said = [error for error in errors if error is not None]
        rejected = rejected.append_column("error", pa.array(said, pa.string()))
        fine = batch.filter(good)
        decoded = self._all_at_once(fine.column("value"))
        if decoded is None:
            # Each parses on its own, so all of them do, unless Arrow's reader has a limit.
            raise LoadError("values that parse one by one do not parse together")
        return self._replaced(fine, decoded), rejected

    def _all_at_once(self, values: pa.Array) -> pa.Array | None:
        """The struct column, or None if any value is bad."""
        if not len(values):
            return pa.array([], pa.struct(list(self.schema)))
        present = values.drop_null()
        texts = present.to_pylist()
        if not (_are_utf8(present) and all(map(_is_closed, texts))):
            # Objects would be attributed to the wrong values. And Arrow's reader (26.0) reads
            # through a null pointer at a bare null, and accepts strings that are not UTF-8, whose
            # files other readers reject.
            return None
        if any(b"\n" in text for text in texts):
            # The reader takes one object for each line.
            texts = [_in_one_line(text) for text in texts]
        # COPY: the values once, with the line ends that the reader needs.
        joined = b"\n".join(texts)
        options = pj.ParseOptions(explicit_schema=self.schema, unexpected_field_behavior="ignore")
        blocks = pj.ReadOptions(
            use_threads=False, block_size=max(_BLOCK_BYTES_MIN, len(joined) + 1)
        )
        if not joined:
            table = self.schema.empty_table()
        else:
            try:
                table = pj.read_json(io.BytesIO(joined), blocks, options)
            except pa.ArrowInvalid:
                return None
        if table.num_rows != len(present):
            return None  # two objects in one value
        rows = table.combine_chunks().to_struct_array()
        if isinstance(rows, pa.ChunkedArray):
            rows = rows.combine_chunks()
        if values.null_count:
            rows = rows.take(_positions(values))
        return rows

    def _errors(self, values: pa.Array) -> list[str | None]:
        """The problem of each value, or None."""
        if self._all_at_once(values) is not None:
            return [None] * len(values)
        if len(values) == 1:
            return [_plain(self._misfit(values[0].as_py()))]
        middle = len(values) // 2
        return [*self._errors(values.slice(0, middle)), *self._errors(values.slice(middle))]

    def _misfit(self, text: bytes) -> str:
        """The problem of a bad value."""
        try:
            value = json.loads(text.decode())
        except (ValueError, RecursionError) as err:
            return f"not JSON: {err}"
        if not isinstance(value, dict):
            return f"not a JSON object but {'null' if value is None else type(value).__name__}"
        try:
            options = pj.ParseOptions(
                explicit_schema=self.schema, unexpected_field_behavior="ignore"
            )
            pj.read_json(io.BytesIO(_in_one_line(text)), parse_options=options)
        except pa.ArrowInvalid as err:
            return f"does not match the schema: {err}"
        return "not a single JSON object"

    def _replaced(self, batch: pa.RecordBatch, decoded: pa.Array) -> pa.RecordBatch:
        index = batch.schema.get_field_index("value")
        return batch.set_column(index, pa.field("value", decoded.type), decoded)


def _in_one_line(text: bytes) -> bytes:
    """A tab counts as a blank; in strings it is rejected, where a line end is not JSON either."""
    return text.replace(b"\n", b"\t")


def _is_closed(text: bytes) -> bool:
    """Whether a text begins and ends like an object, so that it cannot continue in the next one."""
    bare = text.strip(b" \t\r\n")
    return bare[:1] == b"{" and bare[-1:] == b"}"


def _plain(reason: str) -> str:
    """Remove NUL, which PostgreSQL does not allow in text."""
    return reason[:_REASON_MAX].replace("\0", "\N{REPLACEMENT CHARACTER}")


def _are_utf8(values: pa.Array) -> bool:
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _positions(values: pa.Array) -> pa.Array:
    """The index of each value among the non-null ones; null for null."""
    positions: list[int | None] = []
    seen = 0
    for valid in values.is_valid().to_pylist():
        positions.append(seen if valid else None)
        seen += valid
    return pa.array(positions, pa.int64())
