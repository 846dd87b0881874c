"""The description of the protocol is enough to write a client: this codec knows nothing else."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

import pytest
from support.network.codec_samples import SEED, random_message

from kbroker._ext.base.crc32c import crc32c
from kbroker.cli.command import main
from kbroker.cli.protocol_page import protocol_data
from kbroker.handlers import dispatch  # noqa: F401  all handlers, for what is announced
from kbroker.handlers.registry import announced
from kbroker.protocol import api, codec
from kbroker.protocol.header import encode_request_header, encode_response_header
from kbroker.protocol.messages import consumer_protocol, headers
from kbroker.record.batch import RecordBatch

pytestmark = pytest.mark.wire

NUMBERS = {
    "bool": "?", "int8": "b", "int16": "h", "uint16": "H", "int32": "i", "uint32": "I",
    "int64": "q", "float64": "d",
}  # fmt: skip
DESCRIPTION = protocol_data(announced())
MESSAGES = {
    row["name"]: row
    for row in [
        *DESCRIPTION["headers"],
        *DESCRIPTION["consumers"],
        *(one[kind] for one in DESCRIPTION["apis"] for kind in ("request", "response")),
    ]
}
CLASSES = {
    cls.__name__: cls
    for cls in [
        headers.RequestHeader,
        headers.ResponseHeader,
        consumer_protocol.ConsumerProtocolSubscription,
        consumer_protocol.ConsumerProtocolAssignment,
        *(api.request_class(key) for key, _, _ in announced()),
        *(api.response_class(key) for key, _, _ in announced()),
    ]
}


def uvarint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def varint(number: int) -> bytes:
    return uvarint((number << 1) ^ (number >> 63))


def has(versions: str, version: int) -> bool:
    first, dash, last = versions.partition("-")
    if versions.endswith("+"):
        return version >= int(versions[:-1])
    return int(first) <= version <= int(last if dash else first)


def written(fields: list[dict[str, Any]], value: Any, version: int, flexible: bool) -> bytes:
    """A struct, by the section Values of the page."""
    out, tagged = b"", {}
    for field in fields:
        if not has(field["versions"], version):
            continue
        one = getattr(value, field["name"])
        may_be_null = "null" in field and has(field["null"], version)
        if "tag" not in field:
            out += written_field(field, one, version, flexible, may_be_null)
        elif not is_default(field, one, version):
            tagged[field["tag"]] = written_field(field, one, version, flexible, may_be_null)
    if flexible:
        out += uvarint(len(tagged))
        for tag, data in sorted(tagged.items()):
            out += uvarint(tag) + uvarint(len(data)) + data
    return out


def is_default(field: dict[str, Any], value: Any, version: int) -> bool:
    if "fields" not in field or field["type"].startswith("[]"):
        return bool(value == default_of(field))
    return value is None or all(
        is_default(inner, getattr(value, inner["name"]), version) for inner in field["fields"]
    )


def default_of(field: dict[str, Any]) -> Any:
    is_text = field["type"] in ("uuid", "bytes") and field["default"] is not None
    return bytes.fromhex(field["default"]) if is_text else field["default"]


def written_field(
    field: dict[str, Any], value: Any, version: int, flexible: bool, may_be_null: bool
) -> bytes:
    kind = field["type"]
    if kind.startswith("[]"):
        count = None if value is None else len(value)
        inner = {**field, "type": kind[2:]}
        items = [written_field(inner, one, version, flexible, False) for one in value or ()]
        return length(count, "i", flexible) + b"".join(items)
    if "fields" in field:
        before = b"" if not may_be_null else b"\xff" if value is None else b"\x01"
        if value is None:
            return before
        return before + written(field["fields"], value, version, flexible)
    if kind in NUMBERS:
        return struct.pack(">" + NUMBERS[kind], value)
    if kind == "uuid":
        return bytes(value)
    data = value.encode() if isinstance(value, str) else value
    flexible = flexible and "never_flexible" not in field
    count = None if data is None else len(data)
    return length(count, "h" if kind == "string" else "i", flexible) + (data or b"")


def length(count: int | None, code: str, flexible: bool) -> bytes:
    if flexible:
        return uvarint(0 if count is None else count + 1)
    return struct.pack(">" + code, -1 if count is None else count)


@pytest.mark.parametrize("name", MESSAGES)
def test_messages_written_by_the_description_are_those_of_the_codec(name: str) -> None:
    row, cls, rng = MESSAGES[name], CLASSES[name], random.Random(SEED)
    first, last = row["versions"]
    for version in range(first, last + 1):
        flexible = row["first_flexible"] is not None and version >= row["first_flexible"]
        for _ in range(8):
            message = random_message(cls, version, rng)
            expected = codec.encode(message, version)
            assert written(row["fields"], message, version, flexible) == expected, version


def test_headers_go_with_the_versions_that_the_description_says() -> None:
    head, answer = MESSAGES["RequestHeader"]["fields"], MESSAGES["ResponseHeader"]["fields"]
    for row in DESCRIPTION["apis"]:
        key = row["key"]
        for version in range(row["versions"][0], row["versions"][1] + 1):
            first = row["request"]["first_flexible"]
            flexible = first is not None and version >= first
            number = 2 if flexible else 0 if (key, version) == (7, 0) else 1
            values = headers.RequestHeader(
                request_api_key=key, request_api_version=version, correlation_id=9, client_id="me"
            )
            assert encode_request_header(key, version, 9, "me") == written(
                head, values, number, number == 2
            )
            in_answer = flexible and key != 18
            assert encode_response_header(9, key, version) == written(
                answer, headers.ResponseHeader(correlation_id=9), int(in_answer), in_answer
            )


def test_batch_written_by_the_description_is_read() -> None:
    records = b""
    for at, (key, value) in enumerate([(b"k", b"v"), (None, b"x" * 200)]):
        body = b"\0" + varint(at * 5) + varint(at)
        for data in (key, value):
            body += varint(-1) if data is None else varint(len(data)) + data
        body += varint(1) + varint(1) + b"h" + varint(-1)
        records += varint(len(body)) + body
    checked = struct.pack(">hiqqqhii", 0, 1, 1000, 1005, -1, -1, -1, 2) + records
    rest = struct.pack(">ibI", -1, 2, crc32c(checked)) + checked

    batch = RecordBatch(memoryview(struct.pack(">qi", 0, len(rest)) + rest))

    batch.check()
    assert [tuple(one) for one in batch.records()] == [
        (0, 1000, b"k", b"v", ((b"h", None),)),
        (1, 1005, None, b"x" * 200, ((b"h", None),)),
    ]


def test_description_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "protocol", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(DESCRIPTION))
    assert main(["generate", "protocol"]) == 0
    page = capsys.readouterr().out
    assert page.startswith("# The wire protocol\n")
    assert all(f"\n{name}\n" in page for name in MESSAGES)
