"""Numbers of columns, which Parquet files carry for tables that know columns by them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pyarrow as pa

_NAME = b"PARQUET:field_id"


def with_field_ids(schema: pa.Schema) -> pa.Schema:
    """Number all columns from 1 on, then the fields inside them, depth first."""
    numbers = itertools.count(len(schema) + 1)
    return pa.schema(
        [_numbered(one, index, numbers) for index, one in enumerate(schema, 1)], schema.metadata
    )


def id_of(one: pa.Field) -> int:
    """The id of a field that has one."""
    return int(one.metadata[_NAME])


def _numbered(one: pa.Field, number: int, numbers: Iterator[int]) -> pa.Field:
    kind = one.type
    if pa.types.is_struct(kind):
        own = [next(numbers) for _ in kind]
        pairs = zip(kind, own, strict=True)
        kind = pa.struct([_numbered(child, each, numbers) for child, each in pairs])
    elif pa.types.is_list(kind):
        kind = pa.list_(_numbered(kind.value_field, next(numbers), numbers))
    return pa.field(one.name, kind, one.nullable, {_NAME: str(number).encode()})
