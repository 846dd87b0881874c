"""Chooses codec and level for each column of a Parquet file, by how its first values compress."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

# Data in a format that only its producers know. Its compression ratio is tried on a sample.
_OPAQUE = ("key", "value")
_SAMPLE_BYTES = 1 << 20
_SAMPLE_BYTES_MIN = 4 << 10
# Data that stays larger than this is not compressed: hashes, and what is compressed or encrypted
# already.
_DENSE = 0.95
LEVEL = 1
# Skips incompressible data almost twice as fast. The result for text is larger by half.
QUICK_LEVEL = -3
_QUICK_SIZE = 1.03


class ColumnCodecs(NamedTuple):
    """codecs, levels: of all columns, or by the path that Parquet gives to a column. plain: columns
    that are not compressed."""

    codecs: str | dict[str, str]
    levels: int | dict[str, int] | None
    plain: list[str]


def column_codecs(table: pa.Table, codec: str, level: int | None) -> ColumnCodecs:
    """The best codecs for the rows of ``table`` and those that follow.

    level: of zstd. None: LEVEL; QUICK_LEVEL for keys or values that become as small with it.
    """
    if codec == "none":
        return ColumnCodecs(codec, None, [])
    is_chosen = codec == "zstd" and level is None
    base = None if codec != "zstd" else LEVEL if is_chosen else level
    plain: list[str] = []
    quick: list[str] = []
    for name in _OPAQUE:
        sample = _first_bytes(table, name)
        if len(sample) < _SAMPLE_BYTES_MIN:
            continue
        packed = _packed_bytes(sample, codec, base)
        if packed > len(sample) * _DENSE:
            plain.append(name)
        elif is_chosen and _packed_bytes(sample, codec, QUICK_LEVEL) <= packed * _QUICK_SIZE:
            quick.append(name)
    if not plain and not quick:
        return ColumnCodecs(codec, base, [])
    paths = [path for path in _leaves(table.schema) if path not in plain]
    levels = None
    if base is not None:
        levels = dict.fromkeys(paths, base) | dict.fromkeys(quick, QUICK_LEVEL)
    return ColumnCodecs(dict.fromkeys(paths, codec), levels, plain)


def _packed_bytes(sample: bytes, codec: str, level: int | None) -> int:
    return len(pa.Codec(codec, compression_level=level).compress(sample, asbytes=True))


def _first_bytes(table: pa.Table, name: str) -> bytes:
    """The first values of a column, concatenated; empty if it is not binary."""
    if name not in table.schema.names or not pa.types.is_binary(table.schema.field(name).type):
        return b""
    first = b""
    for chunk in table.column(name).chunks:
        _, ends, data = chunk.buffers()
        if data is None or len(first) >= _SAMPLE_BYTES:
            continue
        ends = pa.Array.from_buffers(pa.int32(), len(chunk) + 1, [None, ends], offset=chunk.offset)
        low, high = ends[0].as_py(), ends[-1].as_py()
        first += data.slice(low, min(high - low, _SAMPLE_BYTES - len(first))).to_pybytes()
    return first


def _leaves(schema: pa.Schema) -> list[str]:
    """The paths that Parquet gives to the schema's columns."""
    empty = pa.BufferOutputStream()
    # schema.empty_table() would import pandas, as every pyarrow function that takes a list does.
    pq.write_table(pa.Table.from_batches([], schema), empty)
    schema_of_file = pq.read_metadata(pa.BufferReader(empty.getvalue())).schema
    return [schema_of_file.column(index).path for index in range(len(schema_of_file.names))]
