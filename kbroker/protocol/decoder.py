"""Compile the decoder of one message in one version to straight-line Python source.

The compiled function is ``decode(buf, pos, limit) -> (message, position after it)``. Fields of
fixed size that follow each other, with the length or tag count after them, are read by one
``struct`` call. Two checks need no line in the source: ``struct`` and indexing fail to read past
the buffer, and ``codec`` turns what they raise into DecodeError. The source only checks slices,
because Python cuts them short silently, and counts, before anything is allocated for them.

With ``in_steps`` it is a generator, which yields now and again and returns the same.
"""

from __future__ import annotations

import struct
from typing import Any

from kbroker.protocol import primitives
from kbroker.protocol.message import Message, message_of
from kbroker.protocol.primitives import MAX_INT16, PRIMITIVES
from kbroker.protocol.schema import Field, StructSchema

# BOUND: elements of all arrays of a request together. One takes a byte or four on the wire, but
# hundreds in memory and more than a microsecond: a million resources without a name, in 4 MB, took
# five seconds and 0.7 GB. Clients send tens of thousands at most.
ELEMENTS_MAX = 50_000


class DecoderBounds:
    """elements: ELEMENTS_MAX, or more if the broker may have so many partitions."""

    elements = ELEMENTS_MAX


bounds = DecoderBounds()
# Elements of an array between two yields of a stepwise decoder or encoder: about 0.1 ms.
STEP_ELEMENTS = 64

BASE_NAMES = {
    "new": object.__new__,
    "unpack_from": struct.unpack_from,
    "uvarint": primitives.read_uvarint,
    "uvarint_rest": primitives.read_uvarint_rest,
    "skip_tags": primitives.skip_tagged_fields,
    "fail_elements": primitives.fail_elements,
    "fail_length": primitives.fail_length,
    "fail_tag_size": primitives.fail_tag_size,
    "bounds": bounds,
}


def decoder_source(
    cls: type[Message], version: int, in_steps: bool = False
) -> tuple[str, dict[str, Any]]:
    """Generate the source of ``decode`` and the global names it runs with."""
    writer = _DecoderWriter(cls, version, in_steps)
    return writer.write(), writer.names


def is_from_clients(cls: type[Message]) -> bool:
    """Whether it is a request of a client, or part of one.

    To these ELEMENTS_MAX applies: responses are as long as what was asked for, and what was stored
    has to be read, whatever its length.
    """
    return cls.__name__.endswith("Request") or cls.__name__.startswith("ConsumerProtocol")


def may_have_foreign_text(cls: type[Message]) -> bool:
    """Whether FOREIGN_TEXT is expected: from clients, and in responses, which may repeat it.

    Brokers store UTF-8; a record that has something else is damaged.
    """
    return is_from_clients(cls) or cls.__name__.endswith("Response")


def minimum_size(field: Field, version: int, flexible: bool) -> int:
    """Count the bytes an element or value of the field takes at least; never 0."""
    if field.struct is not None:
        return max(1, _minimum_struct_size(field.struct, version, flexible))
    size = PRIMITIVES[field.type].size
    if size:
        return size
    if flexible and not field.classic:
        return 1
    return 2 if field.type == "string" else 4


def _minimum_struct_size(struct_: StructSchema, version: int, flexible: bool) -> int:
    size = 1 if flexible else 0
    for field in struct_.fields:
        if not field.in_version(version) or field.tag is not None:
            continue
        if field.is_array:
            size += 1 if flexible else 4
        elif field.is_struct and field.nullable_in(version):
            size += 1
        else:
            size += minimum_size(field, version, flexible)
    return size


class _DecoderWriter:
    """Collects lines of source. ``run`` holds the fixed-size reads not yet written out."""

    def __init__(self, cls: type[Message], version: int, in_steps: bool) -> None:
        self.cls = cls
        self.version = version
        self.in_steps = in_steps
        self.flexible = version >= cls.FIRST_FLEXIBLE
        self.names: dict[str, Any] = dict(BASE_NAMES)
        self.lines: list[str] = []
        self.indent = 1
        self.run: list[tuple[str, str]] = []
        self.serial = 0
        self.from_clients = is_from_clients(cls)

    def write(self) -> str:
        self.line("m = new(message)", indent=1)
        self.names["message"] = self.cls
        self.struct(self.cls.SCHEMA.root, "m", self.cls.__name__)
        self.flush()
        self.line("return m, pos")
        if self.in_steps:
            self.line("yield")
        head = ["def decode(buf, pos, limit):"]
        if "view" in self.names:
            head.append("    view = memoryview(buf)")
        if self.from_clients:
            head.append("    left = bounds.elements")
        return "\n".join(head + self.lines) + "\n"

    def line(self, text: str, indent: int | None = None) -> None:
        self.lines.append("    " * (self.indent if indent is None else indent) + text)

    def fresh(self, prefix: str) -> str:
        self.serial += 1
        return f"{prefix}{self.serial}"

    def read(self, code: str, target: str) -> None:
        """Add a value of fixed size to the run."""
        self.run.append((code, target))

    def flush(self) -> None:
        """Write the run out as one ``struct`` call."""
        if not self.run:
            return
        layout = ">" + "".join(code for code, _ in self.run)
        if layout == ">B":
            self.line(f"{self.run[0][1]} = buf[pos]")
            self.line("pos += 1")
            self.run.clear()
            return
        name = "unpack_" + layout[1:].replace("?", "t")
        self.names[name] = struct.Struct(layout).unpack_from
        targets = ", ".join(target for _, target in self.run)
        comma = "," if len(self.run) == 1 else ""
        self.line(f"{targets}{comma} = {name}(buf, pos)")
        self.line(f"pos += {struct.calcsize(layout)}")
        self.run.clear()

    def struct(self, struct_: StructSchema, target: str, path: str) -> None:
        """Read the fields of a struct into attributes of the instance called ``target``."""
        tagged: list[Field] = []
        absent: list[tuple[Field, str]] = []
        for field in struct_.fields:
            attribute = f"{target}.{field.name}"
            if not field.in_version(self.version):
                absent.append((field, attribute))
            elif field.tag is not None:
                tagged.append(field)
            else:
                self.field(field, attribute, f"{path}.{field.name}")
        for field, attribute in absent:
            self.default(field, attribute)
        if self.flexible:
            self.tags(tagged, target, path)

    def default(self, field: Field, attribute: str) -> None:
        """Set a field that the message does not carry."""
        if field.needs_instance:
            self.line(f"{attribute} = {self.class_of(field)}()")
        elif field.type == "uuid" and not field.is_array:
            self.names["no_uuid"] = primitives.NO_UUID
            self.line(f"{attribute} = no_uuid")
        else:
            self.line(f"{attribute} = {field.default!r}")

    def class_of(self, field: Field) -> str:
        name = f"struct_{field.type}"
        self.names[name] = getattr(message_of(self.cls), field.type)
        return name

    def field(self, field: Field, target: str, path: str) -> None:
        if field.is_array:
            self.array(field, target, path)
        elif field.is_struct:
            self.inner_struct(field, target, path)
        else:
            self.value(field, target, path, field.nullable_in(self.version))

    def value(self, field: Field, target: str, path: str, nullable: bool) -> None:
        """Read one primitive."""
        primitive = PRIMITIVES[field.type]
        if primitive.size:
            self.read(primitive.code, target)
            return
        short = field.type == "string"
        self.length("h" if short else "i", path, nullable, target, field.classic)
        self.line("end = pos + n")
        # BOUND: compact lengths could carry longer strings, the protocol does not allow them.
        self.line(f"if end > limit or n > {MAX_INT16}:" if short else "if end > limit:")
        self.line(f"    fail_length({path!r}, n, limit - pos)")
        if short:
            errors = primitives.FOREIGN_TEXT if may_have_foreign_text(self.cls) else "strict"
            self.line(f"{target} = str(buf[pos:end], 'utf-8', {errors!r})")
        elif field.type == "records":
            self.names["view"] = True
            self.line(f"{target} = view[pos:end]")
        else:
            self.line(f"{target} = bytes(buf[pos:end])")
        self.line("pos = end")
        if nullable:
            self.indent -= 1

    def length(self, code: str, path: str, nullable: bool, target: str, classic: bool) -> None:
        """Read a length or count into ``n``; if it may be null, open the block for the rest."""
        compact = self.flexible and not classic
        self.read("B" if compact else code, "n")
        self.flush()
        if compact:
            self.line("if n > 127:")
            self.line("    n, pos = uvarint_rest(buf, pos, n)")
            self.line("n -= 1")
        if nullable:
            self.line("if n == -1:")
            self.line(f"    {target} = None")
            self.line("else:")
            self.indent += 1
        if not compact or not nullable:
            self.line("if n < 0:")
            self.line(f"    fail_length({path!r}, n, 0)")

    def inner_struct(self, field: Field, target: str, path: str) -> None:
        """Read a struct that is a field on its own."""
        nullable = field.nullable_in(self.version)
        if nullable:
            self.read("b", "n")
            self.flush()
            self.line("if n < 0:" if field.tag is None else "if n <= 0:")
            self.line(f"    {target} = None")
            self.line("else:")
            self.indent += 1
        self.new_struct(field, target, path)
        if nullable:
            self.flush()
            self.indent -= 1

    def new_struct(self, field: Field, target: str, path: str) -> str:
        """Create an instance in ``target`` and read its fields."""
        assert field.struct is not None
        instance = self.fresh("m")
        assignment = instance if not target else f"{target} = {instance}"
        self.flush()
        self.line(f"{assignment} = new({self.class_of(field)})")
        self.struct(field.struct, instance, path)
        return instance

    def array(self, field: Field, target: str, path: str) -> None:
        nullable = field.nullable_in(self.version)
        self.length("i", path, nullable, target, field.classic)
        size = minimum_size(field, self.version, self.flexible)
        self.line(f"if n * {size} > limit - pos:" if size > 1 else "if n > limit - pos:")
        self.line(f"    fail_length({path!r}, n, limit - pos)")
        if self.from_clients:
            self.line("left -= n")
            self.line("if left < 0:")
            self.line(f"    fail_elements({path!r}, bounds.elements)")
        code = "" if field.struct is not None else PRIMITIVES[field.type].code
        if field.type == "uuid":
            self.line(f"{target} = [bytes(buf[i : i + 16]) for i in range(pos, pos + n * 16, 16)]")
            self.line("pos += n * 16")
        elif code:
            self.line(f"{target} = list(unpack_from(f'>{{n}}{code}', buf, pos))")
            self.line(f"pos += n * {size}" if size > 1 else "pos += n")
        else:
            self.elements(field, target, path)
        if nullable:
            self.indent -= 1

    def elements(self, field: Field, target: str, path: str) -> None:
        """Read the elements of an array one by one, their number is in ``n``."""
        items = self.fresh("a")
        self.line(f"{target} = {items} = []")
        index = self.fresh("i") if self.in_steps else "_"
        self.line(f"for {index} in range(n):")
        self.indent += 1
        if self.in_steps:
            self.line(f"if {index} % {STEP_ELEMENTS} == {STEP_ELEMENTS - 1}:")
            self.line("    yield")
        if field.struct is not None:
            item = self.new_struct(field, "", path)
        else:
            item = "item"
            self.value(field, item, path, nullable=False)
        self.flush()
        self.line(f"{items}.append({item})")
        self.indent -= 1

    def tags(self, tagged: list[Field], target: str, path: str) -> None:
        """Read the tagged fields that end a struct of a flexible version."""
        for field in tagged:
            self.default(field, f"{target}.{field.name}")
        self.read("B", "n")
        self.flush()
        self.line("if n:")
        self.indent += 1
        if not tagged:
            self.line("pos = skip_tags(buf, pos, n, limit)")
        else:
            self.known_tags(tagged, target, path)
        self.indent -= 1

    def known_tags(self, tagged: list[Field], target: str, path: str) -> None:
        stop = self.fresh("stop")
        self.line("if n > 127:")
        self.line("    n, pos = uvarint_rest(buf, pos, n)")
        # BOUND: each round consumes at least two bytes, so a huge count ends with the buffer.
        self.line("for _ in range(n):")
        self.indent += 1
        self.line("tag, pos = uvarint(buf, pos)")
        self.line("n, pos = uvarint(buf, pos)")
        self.line(f"{stop} = pos + n")
        self.line(f"if {stop} > limit:")
        self.line(f"    fail_length({path + ' tagged field'!r}, n, limit - pos)")
        for index, field in enumerate(tagged):
            field_path = f"{path}.{field.name}"
            self.line(f"{'if' if index == 0 else 'elif'} tag == {field.tag}:")
            self.indent += 1
            start = self.fresh("start")
            self.line(f"{start} = pos")
            self.field(field, f"{target}.{field.name}", field_path)
            self.flush()
            self.line(f"if pos != {stop}:")
            self.line(f"    fail_tag_size({field_path!r}, {stop} - {start}, pos - {start})")
            self.indent -= 1
        self.line("else:")
        self.line(f"    pos = {stop}")
        self.indent -= 1
