"""Values as JSON text, by their schemas."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from kbroker.schemas.framing import message_path
from kbroker.schemas.registry import AVRO, JSON, PROTOBUF, RegisteredSchema, RegistryError

Decoder = Callable[[bytes], str]


def load_libraries() -> None:
    """Raises ImportError where one is missing."""
    for name in ("fastavro", "google.protobuf.json_format", "google.protobuf.message_factory"):
        import_module(name)


def decoder_of(schema: RegisteredSchema) -> Decoder:
    """Raises RegistryError, and what the libraries raise of a schema that is none. A decoder raises
    what they raise of a value that is none.
    """
    makers = {AVRO: _avro, PROTOBUF: _protobuf, JSON: _json}
    return makers[schema.kind](schema)


def _everything(schema: RegisteredSchema) -> Iterator[RegisteredSchema]:
    """What it refers to, each before what needs it, then itself."""
    for _, each in schema.references:
        yield from _everything(each)
    yield schema


def _avro(schema: RegisteredSchema) -> Decoder:
    from fastavro import parse_schema, schemaless_reader

    names: dict[str, Any] = {}
    for each in _everything(schema):
        parsed = parse_schema(json.loads(each.text), named_schemas=names, _force=True)

    def decode(payload: bytes) -> str:
        source = io.BytesIO(payload)
        value = schemaless_reader(source, parsed, None, return_record_name=True)
        if source.read(1):
            raise RegistryError("bytes follow behind the value")
        return json.dumps(value, ensure_ascii=False, default=_shown)

    return decode


def _shown(value: Any) -> Any:
    """Of a type that JSON does not have: bytes as hexadecimal digits, times as ISO 8601."""
    return value.hex() if isinstance(value, bytes) else str(value)


def _protobuf(schema: RegisteredSchema) -> Decoder:
    from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

    pool = descriptor_pool.DescriptorPool()
    known: set[str] = set()
    name = ""
    _add_well_known(pool, known)
    for each in _everything(schema):
        file = descriptor_pb2.FileDescriptorProto()
        file.ParseFromString(_descriptor(each.text))
        name = file.name
        if name not in known:
            known.add(name)
            pool.AddSerializedFile(file.SerializeToString())
    described = pool.FindFileByName(name)

    def decode(payload: bytes) -> str:
        path, data = message_path(payload)
        kinds = [described.message_types_by_name[each.name] for each in file.message_type]
        for index in path[:-1]:
            kinds = list(kinds[index].nested_types)
        message = message_factory.GetMessageClass(kinds[path[-1]])()
        message.ParseFromString(data)
        return str(
            json_format.MessageToJson(
                message, preserving_proto_field_name=True, indent=None, descriptor_pool=pool
            )
        )

    return decode


def _add_well_known(pool: Any, known: set[str]) -> None:
    """Files that every schema may import, and no registry has to know."""
    from google.protobuf import (
        any_pb2,
        duration_pb2,
        empty_pb2,
        struct_pb2,
        timestamp_pb2,
        wrappers_pb2,
    )

    for module in (any_pb2, duration_pb2, empty_pb2, struct_pb2, timestamp_pb2, wrappers_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
        known.add(module.DESCRIPTOR.name)


def _descriptor(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        text = "the registry serves the schema only as source, not as a descriptor"
        raise RegistryError(text) from None


def _json(schema: RegisteredSchema) -> Decoder:
    def decode(payload: bytes) -> str:
        text = payload.decode()
        json.loads(text)
        return text

    return decode
