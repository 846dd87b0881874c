"""Columns of Arrow as those of an Iceberg table, with the numbers that its files give them.

Iceberg knows columns by numbers. They are counted here: the columns of a file from 1 on, then what
is inside of them, then the columns of folders. The files of a table all have the same columns, so
that each can be numbered on its own.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from kbroker.spark.load.field_ids import id_of, with_field_ids

_SIMPLE: dict[pa.DataType, IcebergType] = {
    pa.binary(): BinaryType(),
    pa.string(): StringType(),
    pa.bool_(): BooleanType(),
    pa.int8(): IntegerType(),
    pa.int16(): IntegerType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.float32(): FloatType(),
    pa.float64(): DoubleType(),
    pa.timestamp("us", "UTC"): TimestamptzType(),
}


def iceberg_schema(files: pa.Schema, folders: list[str]) -> Schema:
    """files: the columns of a file. folders: further columns, which are texts."""
    numbered = with_field_ids(files)
    fields = [_field_of(one) for one in numbered]
    last = max(_ids_of(numbered), default=0)
    names = [name for name in folders if name not in files.names]
    fields += [
        NestedField(number, name, StringType(), required=False)
        for number, name in enumerate(names, last + 1)
    ]
    return Schema(*fields)


def partition_spec(schema: Schema, folders: list[str]) -> PartitionSpec:
    """Partition by the folder columns, unchanged."""
    return PartitionSpec(
        *(
            PartitionField(
                source_id=schema.find_field(name).field_id,
                field_id=PARTITION_FIELD_ID_START + index,
                transform=IdentityTransform(),
                name=name,
            )
            for index, name in enumerate(folders)
        )
    )


def _field_of(one: pa.Field) -> NestedField:
    return NestedField(id_of(one), one.name, _type_of(one.type), required=False)


def _type_of(kind: pa.DataType) -> IcebergType:
    if pa.types.is_struct(kind):
        return StructType(*(_field_of(one) for one in kind))
    if pa.types.is_list(kind):
        element = kind.value_field
        return ListType(id_of(element), _type_of(element.type), element_required=False)
    return _SIMPLE[kind]


def _ids_of(schema: pa.Schema) -> Iterator[int]:
    def inside(one: pa.Field) -> Iterator[int]:
        yield id_of(one)
        if pa.types.is_struct(one.type):
            for child in one.type:
                yield from inside(child)
        elif pa.types.is_list(one.type):
            yield from inside(one.type.value_field)

    for one in schema:
        yield from inside(one)
