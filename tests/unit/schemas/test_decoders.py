"""Values as JSON text, by schemas of a registry; and bytes that name one."""

from __future__ import annotations

import base64
import io
import json
import uuid

import fastavro
import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2

from kbroker.schemas.decoders import decoder_of
from kbroker.schemas.framing import VALUE_HEADER, Framed, framed, message_path
from kbroker.schemas.registry import AVRO, JSON, PROTOBUF, RegisteredSchema, RegistryError

pytestmark = pytest.mark.unit

ADDRESS = {"type": "record", "name": "Address", "fields": [{"name": "city", "type": "string"}]}
PERSON = {
    "type": "record",
    "name": "Person",
    "fields": [
        {"name": "name", "type": "string"},
        {"name": "photo", "type": "bytes"},
        {"name": "born", "type": {"type": "int", "logicalType": "date"}},
        {"name": "address", "type": ["null", "Address"]},
    ],
}


def avro(schema: object, value: object) -> bytes:
    data = io.BytesIO()
    fastavro.schemaless_writer(data, schema, value)
    return data.getvalue()


def order_file() -> descriptor_pb2.FileDescriptorProto:
    """message Order { int64 id = 1; google.protobuf.Timestamp at = 2; message Line {...} }"""
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    kinds = descriptor_pb2.FieldDescriptorProto
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=kinds.TYPE_INT64, label=kinds.LABEL_OPTIONAL)
    order.field.add(
        name="at",
        number=2,
        type=kinds.TYPE_MESSAGE,
        type_name=".google.protobuf.Timestamp",
        label=kinds.LABEL_OPTIONAL,
    )
    line = order.nested_type.add(name="Line")
    line.field.add(name="item", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    return file


def registered(file: descriptor_pb2.FileDescriptorProto) -> RegisteredSchema:
    return RegisteredSchema(PROTOBUF, base64.b64encode(file.SerializeToString()).decode())


def test_avro_with_a_reference_is_decoded() -> None:
    schema = RegisteredSchema(
        AVRO, json.dumps(PERSON), (("Address", RegisteredSchema(AVRO, json.dumps(ADDRESS))),)
    )
    whole = fastavro.parse_schema([ADDRESS, PERSON])
    value = {"name": "Z\u00fcrcher", "photo": b"\xff\x00", "born": 1, "address": {"city": "Bern"}}

    text = decoder_of(schema)(avro(whole, ("Person", value)) [1:])  # fmt: skip

    assert json.loads(text) == {
        "name": "Z\u00fcrcher",
        "photo": "ff00",
        "born": "1970-01-02",
        "address": ["Address", {"city": "Bern"}],
    }


def test_avro_with_bytes_behind_it_is_refused() -> None:
    decode = decoder_of(RegisteredSchema(AVRO, '"string"'))

    assert decode(b"\x02a") == '"a"'
    with pytest.raises(RegistryError, match="bytes follow"):
        decode(b"\x02ab")
    with pytest.raises(EOFError):
        decode(b"\x04a")


def test_protobuf_message_is_chosen_by_its_indexes() -> None:
    decode = decoder_of(registered(order_file()))
    stamp = timestamp_pb2.Timestamp(seconds=1).SerializeToString()

    whole = decode(b"\x00" + b"\x08\x05" + b"\x12" + bytes([len(stamp)]) + stamp)
    nested = decode(b"\x04\x00\x00" + b"\x0a\x03pen")

    assert json.loads(whole) == {"id": "5", "at": "1970-01-01T00:00:01Z"}
    assert json.loads(nested) == {"item": "pen"}
    with pytest.raises(IndexError):
        decode(b"\x02\x08")


def test_protobuf_as_source_is_not_decoded() -> None:
    with pytest.raises(RegistryError, match="only as source"):
        decoder_of(RegisteredSchema(PROTOBUF, 'syntax = "proto3";'))


def test_json_behind_its_prefix_stays_as_it_is() -> None:
    decode = decoder_of(RegisteredSchema(JSON, "{}"))

    assert decode(b'{"n": 10000000000000001}') == '{"n": 10000000000000001}'
    with pytest.raises(ValueError, match="Expecting"):
        decode(b"{")


def test_bytes_name_their_schema_in_front_or_in_a_header() -> None:
    guid = uuid.UUID(int=7)
    headers = [(VALUE_HEADER, b"\x01" + guid.bytes)]

    assert framed(b"\0\0\0\0\x0cdata", [], VALUE_HEADER) == Framed(12, b"data")
    assert framed(b"data", headers, VALUE_HEADER) == Framed(str(guid), b"data")
    assert framed(b"data", [(VALUE_HEADER, b"\x01"), (VALUE_HEADER, None)], VALUE_HEADER) is None
    assert framed(b"\0\0\0\0", [], VALUE_HEADER) is None
    assert framed(b"", headers[:0], VALUE_HEADER) is None


@pytest.mark.parametrize(
    "payload", [b"", b"\x80", b"\x06\x00", b"\x80\x80\x80\x80\x80\x01", b"\x01", b"\x50"]
)
def test_cut_or_endless_indexes_are_refused(payload: bytes) -> None:
    with pytest.raises(ValueError, match="indexes"):
        message_path(payload)
