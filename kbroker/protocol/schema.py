"""The notation of message definitions, and its parsed form.

One field a line: name, type, the versions that have it, then what is special about it. A deeper
indented block holds the fields of the struct named as the type just above::

    throttle_time_ms      int32        3+     ignorable
    brokers               []Broker     0+
      node_id             int32        0+
      rack                string       1+     null 1+  = null  ignorable
    cluster_id            string       2+     null 2+
    features              []string     12+    tag 0
    struct Endpoint
      host                string       0+

====================  ===========================================================================
``4``, ``4-8``, ``4+``  versions: one, a range, from one on
``[]T``               array of T; T is a primitive (``primitives.PRIMITIVES``) or a struct
``null 1+``           the versions in which null is a legal value
``= -1``              the default, where it is not zero, empty or false; strings are bare words
``tag 0``             an optional tagged field (KIP-482) with its number, in all its versions
``ignorable``         encoding a version without the field drops a set value instead of failing
``classic``           keeps the two-byte length in flexible versions (client id of a request)
``struct Name``       a struct used by several fields above
====================  ===========================================================================

WIRE: before a struct that may be null there is a byte: 1, or 255 for null. In a tagged field null
is 0, and is always written: what is absent is a struct of defaults to Kafka, and null to kbroker.

Names of fields are Kafka's in snake_case, names of structs are Kafka's. ``#`` starts a comment.
"""

from __future__ import annotations

from typing import Any

from kbroker.protocol.primitives import PRIMITIVES

LAST = 0x7FFF
VersionRange = tuple[int, int]


class SchemaError(Exception):
    """A definition breaks the notation."""


class Field:
    """One field of a struct.

    struct: what its type or element type consists of, None for primitives.
    nullable: the versions in which null is legal; None if there are none.
    tag: number of a tagged field, None for one that is always written.
    default: the value of a new message; None also where ``needs_instance``.
    """

    __slots__ = (
        "classic",
        "default",
        "ignorable",
        "is_array",
        "name",
        "nullable",
        "struct",
        "tag",
        "type",
        "versions",
    )

    def __init__(self, name: str, type_name: str, versions: VersionRange) -> None:
        self.name = name
        self.is_array = type_name.startswith("[]")
        self.type = type_name[2:] if self.is_array else type_name
        self.versions = versions
        self.struct: StructSchema | None = None
        self.nullable: VersionRange | None = None
        self.tag: int | None = None
        self.default: Any = None
        self.ignorable = False
        self.classic = False

    @property
    def is_struct(self) -> bool:
        """Whether the value is one struct, not an array of them."""
        return self.struct is not None and not self.is_array

    @property
    def needs_instance(self) -> bool:
        """Whether a new message has a struct of defaults here, because null is never legal."""
        return self.is_struct and self.tag is None and self.nullable is None

    def in_version(self, version: int) -> bool:
        """Whether ``version`` has the field."""
        return self.versions[0] <= version <= self.versions[1]

    def nullable_in(self, version: int) -> bool:
        """Whether ``version`` allows null for it."""
        return self.nullable is not None and self.nullable[0] <= version <= self.nullable[1]


class StructSchema:
    """A named list of fields, in the order of the wire."""

    __slots__ = ("fields", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.fields: list[Field] = []


class Schema:
    """A message: its fields, and the structs they use by name."""

    __slots__ = ("root", "structs")

    def __init__(self, root: StructSchema, structs: dict[str, StructSchema]) -> None:
        self.root = root
        self.structs = structs


def parse_versions(text: str) -> VersionRange:
    """Parse ``4``, ``4-8`` or ``4+``; the end is inclusive."""
    first, dash, last = text.partition("-")
    if dash:
        return int(first), int(last)
    if text[-1] == "+":
        return int(text[:-1]), LAST
    return int(text), int(text)


def top_level_names(text: str) -> list[str]:
    """Find the names of a message's own fields, without parsing the definition.

    They are the lines indented least, except for those that begin a shared struct.
    """
    lines = [line for line in text.split("\n") if line and not line.isspace()]
    if not lines:
        return []
    indent = len(lines[0]) - len(lines[0].lstrip())
    return [
        line[indent : line.index(" ", indent)]
        for line in lines
        if line[indent] not in " #" and not line.startswith("struct ", indent)
    ]


def parse(name: str, text: str) -> Schema:
    """Parse the definition ``text`` of the message called ``name``."""
    root = StructSchema(name)
    structs: dict[str, StructSchema] = {}
    # The structs that contain the current line, outermost first, with their indentation.
    open_structs: list[tuple[int, StructSchema]] = [(-1, root)]
    arrives: StructSchema | None = root
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if not words:
            continue
        indent = len(line) - len(line.lstrip())
        if indent > open_structs[-1][0]:
            if arrives is None:
                raise SchemaError(f"{name}: {words[0]} is indented, but not below a struct")
            if arrives.fields:
                raise SchemaError(f"{name}: struct {arrives.name} is defined twice")
            open_structs.append((indent, arrives))
        while indent < open_structs[-1][0]:
            open_structs.pop()
        if words[0] == "struct":
            arrives = _struct(structs, words[1])
            continue
        field = _parse_field(name, words)
        open_structs[-1][1].fields.append(field)
        arrives = None
        if field.type not in PRIMITIVES:
            arrives = field.struct = _struct(structs, field.type)
    for struct in structs.values():
        if not struct.fields:
            raise SchemaError(f"{name}: struct {struct.name} has no fields")
    return Schema(root, structs)


def _struct(structs: dict[str, StructSchema], name: str) -> StructSchema:
    if name not in structs:
        structs[name] = StructSchema(name)
    return structs[name]


def _parse_field(message: str, words: list[str]) -> Field:
    if len(words) < 3:
        raise SchemaError(f"{message}: {' '.join(words)} needs a name, a type and versions")
    field = Field(words[0], words[1], parse_versions(words[2]))
    default: str | None = None
    rest = iter(words[3:])
    for word in rest:
        if word == "ignorable":
            field.ignorable = True
        elif word == "null":
            field.nullable = parse_versions(next(rest))
        elif word == "=":
            default = next(rest)
        elif word == "tag":
            field.tag = int(next(rest))
        elif word == "classic":
            field.classic = True
        else:
            raise SchemaError(f"{message}.{field.name}: {word} has no meaning here")
    field.default = _default(field, default)
    return field


def _default(field: Field, text: str | None) -> Any:
    if text == "null":
        return None
    if field.is_array:
        return []
    if field.type not in PRIMITIVES:
        return None
    if text is None:
        return PRIMITIVES[field.type].default
    if field.type == "bool":
        return text == "true"
    if field.type == "string":
        return text
    return float(text) if field.type == "float64" else int(text, 0)
