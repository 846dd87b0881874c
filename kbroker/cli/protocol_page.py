"""The wire protocol, for those who write clients in other languages: as a page, and as data.

Both are made of the definitions that the codec itself uses (``kbroker.protocol.messages``), in the
versions that this broker serves.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from kbroker.errors import ErrorCode
from kbroker.protocol import api
from kbroker.protocol.message import Message
from kbroker.protocol.messages import consumer_protocol, headers
from kbroker.protocol.schema import LAST, Field, StructSchema, VersionRange

Served = Sequence[tuple[int, int, int]]

_HEAD = """\
# The wire protocol

A broker of Kafka's protocol in the versions that kbroker serves: enough to write a client. `kbroker
generate protocol` prints this page, `kbroker generate protocol -o json` the same definitions as
data; a codec of some 80 lines that knows no more than these is in
`tests/wire/test_protocol_page.py`. All of it is Apache Kafka's protocol.

## Connections

A client connects over TCP, with TLS if the listener has it, and sends requests. Request and
response are each preceded by their size in bytes (int32, without itself). A broker answers the
requests of a connection in their order, and a client may send more before the answer comes; Produce
with `acks` 0 alone has no response. What cannot be decoded ends the connection.

1. **ApiVersions** tells which APIs the broker has, and in which versions; use the highest that both
   know. A version of ApiVersions that the broker does not have is answered in version 0 with error
   35 and the versions it has.
2. Where the listener wants SASL: **SaslHandshake** 1 with the mechanism, then **SaslAuthenticate**
   until it is done. Both, and ApiVersions, are allowed before it.
3. **Metadata** names the brokers, and the leader of each partition. **Produce**, **Fetch** and
   **ListOffsets** go to the leader. With error 5, 6 or 3 ask for metadata again.
4. A group: **FindCoordinator**, then at that broker **JoinGroup**, **SyncGroup**, **Heartbeat** and
   **LeaveGroup** (or ConsumerGroupHeartbeat alone, KIP-848), **OffsetFetch** and **OffsetCommit**.
   The data of consumers in JoinGroup and SyncGroup is [below](#data-of-consumers).
5. A transaction: **FindCoordinator** with key type 1, **InitProducerId**, then for each transaction
   **AddPartitionsToTxn** before the first Produce to a partition, **AddOffsetsToTxn** and
   **TxnOffsetCommit** for consumed offsets, **EndTxn**.

## Headers

After the size comes a header. That of a request has version 2 in flexible versions of the API, 1 in
others, 0 in ControlledShutdown 0; that of a response has version 1 in flexible versions, 0 in
others, and always 0 in ApiVersions. `client_id` has the length of strings that are not flexible, in
all versions.

## Values

Numbers are big-endian. From its first *flexible* version on, an API has lengths as varints, and
tagged fields (KIP-482).

| type | bytes |
| --- | --- |
| `bool` | one: 0 or 1 |
| `int8`, `int16`, `int32`, `int64` | two's complement |
| `uint16`, `uint32`, `float64` | unsigned; IEEE 754 |
| `uuid` | 16; zeros for none |
| `string` | length (int16) and UTF-8, -1 for null; flexible: length + 1 as a uvarint, 0 for null |
| `bytes`, `records` | the same, with an int32 as length |
| `[]T` | the number of elements (int32, -1 for null) and these; flexible: number + 1 as a \
uvarint, 0 for null |
| a struct | its fields in their order; flexible: then its tagged fields |
| a struct that may be null | an int8 before it: 1, or -1 for null |
| tagged fields | their number, then for each its tag, its size in bytes (uvarints) and its value, \
in the order of tags; unknown ones are skipped |
| uvarint | 7 bits a byte, the lowest first; the eighth bit is set if more follow |
| varint, varlong | uvarint of the number in zigzag: (n << 1) ^ (n >> 31), or >> 63 |

A tagged field is left out if it has its default, which is zero, empty or false if no other is
named, and a struct of defaults for a struct. Below, a field has its name, type, and versions: `3+`
from 3 on, `0-2` these, `1` that one. Its fields are indented below a struct. `null 1+` are the
versions in which it may be null, `tag 0` is the number of a tagged field.

## Records

`records` in Produce from 3 on and in Fetch from 4 on are record batches, one after the other.
Produce takes one batch for each partition; in a response of Fetch the last may be cut off, and the
first may begin before the offset that was asked for. Older versions have
[message sets](formats/message-sets.md).

| field | type | |
| --- | --- | --- |
| base offset | int64 | of the first record; 0 from producers |
| length | int32 | bytes that follow |
| partition leader epoch | int32 | set by the broker; -1 from producers |
| magic | int8 | 2 |
| checksum | uint32 | CRC-32C of all that follows |
| attributes | int16 | bits 0 to 2: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd; bit 3: time of the \
append; bit 4: transactional; bit 5: control |
| last offset delta | int32 | offset of the last record from the base offset |
| first timestamp, max timestamp | int64 | ms since 1970 |
| producer id, producer epoch, base sequence | int64, int16, int32 | of idempotent producers; \
else -1 |
| number of records | int32 | |
| records | | compressed together if the attributes say so |

| field of a record | type | |
| --- | --- | --- |
| length | varint | bytes that follow |
| attributes | int8 | 0 |
| timestamp delta, offset delta | varlong, varint | from the first timestamp and the base offset |
| key, value | varint and bytes | length, -1 for null |
| headers | varint | their number; each has a name (varint and UTF-8) and a value (as above) |

A control batch has one record, whose key has a version (int16) and a type (int16): 0 the
transaction was aborted, 1 it was committed. Readers pass over it. Snappy is in blocks of Java's
SnappyOutputStream, lz4 and zstd are frames.
"""


def protocol_data(served: Served) -> dict[str, Any]:
    """All of it as nested lists and mappings of scalars. served: key, first and last version."""
    return {
        "headers": [_described(cls, cls.VERSIONS) for cls in _HEADERS],
        "apis": [
            {
                "name": api.title(key),
                "key": int(key),
                "versions": [first, last],
                "request": _described(api.request_class(key), (first, last)),
                "response": _described(api.response_class(key), (first, last)),
            }
            for key, first, last in served
        ],
        "consumers": [_described(cls, cls.VERSIONS) for cls in _CONSUMERS],
        "errors": [
            {
                "code": int(code),
                "name": code.name,
                "retriable": code.retriable,
                "message": code.message,
            }
            for code in ErrorCode
        ],
    }


_HEADERS = (headers.RequestHeader, headers.ResponseHeader)
_CONSUMERS = (
    consumer_protocol.ConsumerProtocolSubscription,
    consumer_protocol.ConsumerProtocolAssignment,
)


def _described(cls: type[Message], versions: VersionRange) -> dict[str, Any]:
    flexible = cls.FIRST_FLEXIBLE if cls.FIRST_FLEXIBLE <= versions[1] else None
    return {
        "name": cls.__name__,
        "versions": list(versions),
        "first_flexible": flexible,
        "fields": _fields(cls.SCHEMA.root, versions),
    }


def _fields(struct: StructSchema, versions: VersionRange) -> list[dict[str, Any]]:
    """Those that some of these versions have."""
    rows = []
    for field in struct.fields:
        if (own := _both(field.versions, versions)) is None:
            continue
        row: dict[str, Any] = {
            "name": field.name,
            "type": ("[]" if field.is_array else "") + field.type,
            "versions": _versions_text(field.versions),
        }
        if field.nullable is not None and _both(field.nullable, versions):
            row["null"] = _versions_text(field.nullable)
        row["default"] = _default(field)
        if field.tag is not None:
            row["tag"] = field.tag
        if field.classic:
            row["never_flexible"] = True
        if field.struct is not None:
            row["fields"] = _fields(field.struct, own)
        rows.append(row)
    return rows


def _both(one: VersionRange, other: VersionRange) -> VersionRange | None:
    first, last = max(one[0], other[0]), min(one[1], other[1])
    return (first, last) if first <= last else None


def _versions_text(versions: VersionRange) -> str:
    first, last = versions
    if last >= LAST:
        return f"{first}+"
    return f"{first}" if first == last else f"{first}-{last}"


def _default(field: Field) -> Any:
    """Of a struct, null stands for one whose fields have their defaults."""
    return field.default.hex() if isinstance(field.default, bytes) else field.default


# -- the page


def protocol_page(served: Served) -> str:
    """The same in Markdown."""
    document = protocol_data(served)
    lines = [_HEAD, "## Headers, field by field", ""]
    for row in document["headers"]:
        lines += _block(row)
    lines += [
        "## APIs",
        "",
        "| key | API | versions | flexible from |",
        "| --- | --- | --- | --- |",
    ]
    for row in document["apis"]:
        first, last = row["versions"]
        flexible = row["request"]["first_flexible"]
        lines.append(
            f"| {row['key']} | [{row['name']}](#{row['name'].lower()}) | {first}-{last} | "
            f"{'' if flexible is None else flexible} |"
        )
    for row in document["apis"]:
        lines += ["", f"### {row['name']}", "", _about(row["key"]), ""]
        lines += [*_block(row["request"]), *_block(row["response"])]
        lines.pop()
    lines += ["", "## Data of consumers", "", _paragraph(consumer_protocol.__doc__), ""]
    for row in document["consumers"]:
        lines += _block(row)
    lines += ["## Errors", "", "Those that are retriable may be gone when the request is repeated."]
    lines += ["", "| code | name | retriable | |", "| --- | --- | --- | --- |"]
    for row in document["errors"]:
        again = "yes" if row["retriable"] else ""
        lines.append(f"| {row['code']} | {row['name']} | {again} | {row['message']} |")
    return "\n".join([*lines, ""])


def _about(key: int) -> str:
    module = sys.modules[api.request_class(key).__module__]
    return _paragraph((module.__doc__ or "").partition(": ")[2])


def _paragraph(text: str | None) -> str:
    return (text or "").strip().replace("``", "`")


def _block(message: dict[str, Any]) -> list[str]:
    rows = list(_rows(message["fields"], 1))
    widths = [max((len(row[at]) for row in rows), default=0) for at in range(3)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]])
        for row in rows
    ]
    return ["```", message["name"], *(line.rstrip() for line in lines), "```", ""]


def _rows(fields: list[dict[str, Any]], depth: int) -> Iterator[tuple[str, str, str, str]]:
    for field in fields:
        notes = []
        if "null" in field:
            notes.append(f"null {field['null']}")
        if "tag" in field:
            notes.append(f"tag {field['tag']}")
            if field["default"] is None and "fields" not in field:
                notes.append("default null")
        if field["default"] not in (None, 0, "", [], False) and field["type"] != "uuid":
            notes.append(f"default {field['default']}")
        if "never_flexible" in field:
            notes.append("length never flexible")
        yield "  " * depth + field["name"], field["type"], field["versions"], ", ".join(notes)
        yield from _rows(field.get("fields", []), depth + 1)
