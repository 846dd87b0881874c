"""How records look in a terminal, and what lines of a terminal mean as records."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kbroker.cli.arguments import Usage, yaml_text
from kbroker.cli.times import TIME_MS_MAX, time_text
from kbroker.wording import shown

if TYPE_CHECKING:
    from kbroker.client.batches.topic_reader import ReadRecord

_HEADINGS = ("PARTITION", "OFFSET", "TIME", "KEY", "HEADERS", "VALUE")
# BOUND: rows that wait for each other, for columns that are as wide as the widest of them.
_HELD_ROWS = 100
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
FORMAT_HELP = """\
In a format, %t is the topic, %p the partition, %o the offset, %T the timestamp in milliseconds, %k
the key, %v the value, %K and %S their lengths in bytes (-1 for null), %h the headers, %% a percent
sign; \\n, \\t, \\r and \\0 are what they are elsewhere."""


def unescaped(text: str) -> bytes:
    r"""``\n``, ``\t``, ``\r``, ``\0`` and ``\\`` as they are elsewhere. Raises Usage."""
    out, at = bytearray(), 0
    while at < len(text):
        if text[at] != "\\":
            out += text[at].encode()
            at += 1
        elif text[at + 1 : at + 2] in _ESCAPES:
            out += _ESCAPES[text[at + 1]]
            at += 2
        else:
            raise Usage(f"{text!r}: a backslash is followed by n, t, r, 0 or a backslash")
    return bytes(out)


# -- output

_FIELDS: dict[str, Callable[[ReadRecord], bytes]] = {
    "%": lambda record: b"%",
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "T": lambda record: b"%d" % record.timestamp,
    "k": lambda record: record.key or b"",
    "v": lambda record: record.value or b"",
    "s": lambda record: record.value or b"",
    "K": lambda record: b"%d" % _length(record.key),
    "S": lambda record: b"%d" % _length(record.value),
    "h": lambda record: b",".join(
        name + b"=" + (b"NULL" if value is None else value) for name, value in record.headers
    ),
}


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def compiled(text: str) -> Callable[[ReadRecord], bytes]:
    """What writes a record in a format. Raises Usage for a wrong one."""
    parts: list[bytes | Callable[[ReadRecord], bytes]] = []
    at = 0
    while (sign := text.find("%", at)) >= 0:
        parts.append(unescaped(text[at:sign]))
        letter = text[sign + 1 : sign + 2]
        if letter not in _FIELDS:
            raise Usage(f"no field %{letter} in a format: there are %{', %'.join(_FIELDS)}")
        parts.append(_FIELDS[letter])
        at = sign + 2
    parts.append(unescaped(text[at:]))

    def write(record: ReadRecord) -> bytes:
        return b"".join(part if isinstance(part, bytes) else part(record) for part in parts)

    return write


def json_line(record: ReadRecord) -> bytes:
    """One JSON object in one line, which ``record_of_json`` reads."""
    return json.dumps(_fields(record), ensure_ascii=False).encode() + b"\n"


def yaml_item(record: ReadRecord) -> bytes:
    """The same as an item of a YAML list."""
    return yaml_text([_fields(record)]).encode() + b"\n"


def _fields(record: ReadRecord) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
    }
    _put(fields, "key", record.key)
    _put(fields, "value", record.value)
    headers: list[dict[str, Any]] = []
    for name, value in record.headers:
        header: dict[str, Any] = {}
        _put(header, "name", name)
        _put(header, "value", value)
        headers.append(header)
    fields["headers"] = headers
    return fields


def _put(fields: dict[str, Any], name: str, data: bytes | None) -> None:
    """Bytes as text, or in base 64 under another name if they are not UTF-8."""
    try:
        fields[name] = None if data is None else data.decode()
    except UnicodeDecodeError:
        assert data is not None
        fields[f"{name}_base64"] = base64.b64encode(data).decode()


class RecordTable:
    """Writes records as rows of a table, without waiting for the last one: columns are as wide as
    the first rows need, and become wider for later ones. with_topic: the first column is the topic.
    """

    def __init__(self, with_topic: bool = False) -> None:
        self._with_topic = with_topic
        headings = ("TOPIC", *_HEADINGS) if with_topic else _HEADINGS
        self._widths = [0] * len(headings)
        self._held: list[tuple[str, ...]] = [headings]

    def __call__(self, record: ReadRecord) -> bytes:
        """The text to write now; empty while rows are held back."""
        headers = [
            f"{_text(name)}={'-' if value is None else _text(value)}"
            for name, value in record.headers
        ]
        cells: tuple[str, ...] = (
            str(record.partition),
            str(record.offset),
            time_text(at) if 0 <= (at := record.timestamp) <= TIME_MS_MAX else str(at),
            "-" if record.key is None else _text(record.key),
            ", ".join(headers),
            "-" if record.value is None else _text(record.value),
        )
        if self._with_topic:
            cells = (record.topic, *cells)
        self._held.append(tuple(map(shown, cells)))
        return self.rest() if len(self._held) > _HELD_ROWS else b""

    def rest(self) -> bytes:
        """The rows that were held back."""
        rows, self._held = self._held, []
        for row in rows:
            self._widths = [max(pair) for pair in zip(self._widths, map(len, row), strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, self._widths, strict=True))
            for row in rows
        ]
        return "".join(f"{line.rstrip()}\n" for line in lines).encode()


def _text(data: bytes) -> str:
    return data.decode(errors="backslashreplace")


# -- input


class BadLine(Exception):
    """A line that is no record; the text says why."""


# What a letter of a format may be in a line.
_READ_FIELDS = {"k": b".*?", "v": b".*?", "T": rb"-?\d{1,18}", "p": rb"\d{1,9}", "h": b".*?"}


def record_of_format(text: str) -> Callable[[bytes], dict[str, Any]]:
    """What reads the arguments of ``KafkaProducer.send`` from a line of this format, the inverse of
    ``compiled``. Raises Usage; the function raises BadLine.
    """
    pattern, at, letters = b"", 0, ""
    while (sign := text.find("%", at)) >= 0:
        pattern += re.escape(unescaped(text[at:sign]))
        letter = text[sign + 1 : sign + 2]
        if letter == "%":
            pattern += b"%"
        elif letter not in _READ_FIELDS or letter in letters:
            raise Usage(
                f"--format {text!r}: write text, json, or a format in which each of "
                f"%{', %'.join(_READ_FIELDS)} is at most once"
            )
        else:
            pattern += b"(?P<%b>%b)" % (letter.encode(), _READ_FIELDS[letter])
            letters += letter
        at = sign + 2
    if not letters:
        raise Usage(f"--format {text!r}: write text, json, or a format such as '%k=%v'")
    # A format of consume ends with its delimiter, which is not in the line any more.
    pattern += re.escape(unescaped(text[at:]).removesuffix(b"\n"))
    matcher = re.compile(pattern, re.DOTALL)

    def read(line: bytes) -> dict[str, Any]:
        match = matcher.fullmatch(line)
        if match is None:
            raise BadLine(f"it does not have the format {text!r}")
        parts = match.groupdict()
        fields: dict[str, Any] = {"key": parts.get("k"), "value": parts.get("v")}
        if "T" in parts:
            time_ms = int(parts["T"])
            fields["timestamp_ms"] = time_ms if time_ms >= 0 else None
        if "p" in parts:
            fields["partition"] = int(parts["p"])
        fields["headers"] = _headers_of(parts.get("h", b""))
        return fields

    return read


def _headers_of(text: bytes) -> list[tuple[str, bytes | None]]:
    headers: list[tuple[str, bytes | None]] = []
    for part in text.split(b",") if text else ():
        name, equals, value = part.partition(b"=")
        if not equals:
            raise BadLine(f"{part.decode(errors='replace')!r} is no header: write NAME=VALUE")
        headers.append((name.decode(errors="replace"), None if value == b"NULL" else value))
    return headers


def record_of_json(line: bytes) -> dict[str, Any]:
    """The arguments of ``KafkaProducer.send`` in a line of ``json_line``; the topic and the offset
    in it are left out. Raises BadLine.
    """
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadLine(f"not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise BadLine("not a JSON object")
    headers = fields.get("headers") or []
    if isinstance(headers, dict):
        headers = [{"name": name, "value": value} for name, value in headers.items()]
    if not isinstance(headers, list) or not all(map(_has_name, headers)):
        raise BadLine('headers: write [{"name": ..., "value": ...}]')
    return {
        "key": _take(fields, "key"),
        "value": _take(fields, "value"),
        "headers": [(_name_of(row), _take(row, "value")) for row in headers],
        "partition": _whole(fields, "partition"),
        "timestamp_ms": _whole(fields, "timestamp"),
    }


def _has_name(row: Any) -> bool:
    return isinstance(row, dict) and (isinstance(row.get("name"), str) or "name_base64" in row)


def _name_of(row: dict[str, Any]) -> str | bytes:
    """The name of a header, as bytes if it is no text."""
    return row["name"] if "name_base64" not in row else _take(row, "name") or b""


def _take(fields: dict[str, Any], name: str) -> bytes | None:
    encoded = fields.get(f"{name}_base64")
    if encoded is not None:
        try:
            return base64.b64decode(encoded, validate=True)
        except (TypeError, ValueError):
            raise BadLine(f"{name}_base64 is not base 64") from None
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).encode()
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise BadLine(f"{name} is not text") from None


def _whole(fields: dict[str, Any], name: str) -> int | None:
    value = fields.get(name)
    if value is None or value == -1:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise BadLine(f"{name} is not a whole number")
    return value
