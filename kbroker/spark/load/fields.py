"""``id long, name string, tags array<string>`` as an Arrow schema: Spark's words for types."""

from __future__ import annotations

import re

import pyarrow as pa

from kbroker.spark.load.commits import LoadError

_SIMPLE = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
_TOKEN = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*|`[^`]+`|[<>,:])")


def schema_of(text: str) -> pa.Schema:
    """Raises LoadError that says what is wrong and where."""
    tokens: list[str] = []
    position = 0
    stripped = text.rstrip()
    while position < len(stripped):
        match = _TOKEN.match(stripped, position)
        if match is None:
            raise LoadError(f"--value-schema: {stripped[position:].strip()!r} cannot be parsed")
        tokens.append(match[1])
        position = match.end()
    reader = _FieldReader(tokens)
    fields = reader.fields(nested=False)
    if reader.peek():
        raise LoadError(f"--value-schema: {reader.peek()!r} is unexpected")
    return pa.schema(fields)


class _FieldReader:
    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._next = 0

    def peek(self) -> str:
        return self._tokens[self._next] if self._next < len(self._tokens) else ""

    def take(self, wanted: str = "") -> str:
        word = self.peek()
        if not word or (wanted and word != wanted):
            raise LoadError(
                f"--value-schema: {wanted or 'a name or type'} is expected"
                + (f", not {word!r}" if word else " at its end")
            )
        self._next += 1
        return word

    def fields(self, *, nested: bool) -> list[pa.Field]:
        """``name type, ...``, inside of a struct ``name: type, ...``."""
        read: list[pa.Field] = []
        while True:
            name = self.take().strip("`")
            if nested and self.peek() == ":":
                self.take(":")
            # Spark and DuckDB are case-insensitive.
            if any(one.name.lower() == name.lower() for one in read):
                raise LoadError(f"--value-schema: {name} appears twice")
            read.append(pa.field(name, self.type()))
            if self.peek() != ",":
                return read
            self.take(",")

    def type(self) -> pa.DataType:
        name = self.take().lower()
        if name == "array":
            self.take("<")
            arrow_type = pa.list_(pa.field("element", self.type()))
            self.take(">")
            return arrow_type
        if name == "struct":
            self.take("<")
            made = pa.struct(self.fields(nested=True))
            self.take(">")
            return made
        simple = _SIMPLE.get(name)
        if simple is None:
            raise LoadError(
                f"--value-schema: {name!r} is not a type; there are {', '.join(_SIMPLE)}, "
                "array<...> and struct<...>"
            )
        return simple
