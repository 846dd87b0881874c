"""Compile the encoder of one message in one version to straight-line Python source.

The compiled function is ``encode(m, out)``, which appends to the bytearray ``out``. Fields of fixed
size that follow each other are written by one ``struct`` call. When a value of the wrong type or
range raises, ``codec`` turns the exception into EncodeError. With ``in_steps`` it is a generator,
which yields now and again.
"""

from __future__ import annotations

import struct
from typing import Any

from kbroker.protocol import primitives
from kbroker.protocol.decoder import STEP_ELEMENTS
from kbroker.protocol.message import Message, message_of
from kbroker.protocol.primitives import MAX_INT16, PRIMITIVES
from kbroker.protocol.schema import Field, StructSchema

BASE_NAMES = {
    "pack": struct.pack,
    "uvarint": primitives.encode_uvarint,
    "fail_uuid": primitives.fail_uuid,
    "fail_version": primitives.fail_version,
    "fail_long": primitives.fail_long_string,
    "no_uuid": primitives.NO_UUID,
}


def encoder_source(
    cls: type[Message], version: int, in_steps: bool = False
) -> tuple[str, dict[str, Any]]:
    """Generate the source of ``encode`` and the global names it runs with."""
    writer = _EncoderWriter(cls, version, in_steps)
    return writer.write(), writer.names


class _EncoderWriter:
    """Collects lines of source. ``run`` holds the fixed-size writes not yet written out."""

    def __init__(self, cls: type[Message], version: int, in_steps: bool) -> None:
        self.cls = cls
        self.version = version
        self.in_steps = in_steps
        self.flexible = version >= cls.FIRST_FLEXIBLE
        self.names: dict[str, Any] = dict(BASE_NAMES)
        self.lines: list[str] = ["def encode(m, out):"]
        self.indent = 1
        self.run: list[tuple[str, str]] = []
        self.out = "out"
        self.serial = 0

    def write(self) -> str:
        self.struct(self.cls.SCHEMA.root, "m", self.cls.__name__)
        self.flush()
        if self.in_steps:
            self.line("return")
            self.line("yield")
        elif len(self.lines) == 1:
            self.line("pass")
        return "\n".join(self.lines) + "\n"

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def fresh(self, prefix: str) -> str:
        self.serial += 1
        return f"{prefix}{self.serial}"

    def put(self, code: str, value: str = "") -> None:
        """Add a value of fixed size to the run; code ``x`` is a zero byte without value."""
        self.run.append((code, value))

    def flush(self) -> None:
        """Write the run out as one ``struct`` call."""
        if not self.run:
            return
        codes = "".join(code for code, _ in self.run)
        if codes == "x":
            self.line(f"{self.out}.append(0)")
        else:
            name = "pack_" + codes.replace("?", "t")
            self.names[name] = struct.Struct(">" + codes).pack
            values = ", ".join(value for code, value in self.run if code != "x")
            self.line(f"{self.out} += {name}({values})")
        self.run.clear()

    def struct(self, struct_: StructSchema, source: str, path: str) -> None:
        """Write the fields of the struct instance called ``source``."""
        tagged: list[Field] = []
        for field in struct_.fields:
            value = f"{source}.{field.name}"
            field_path = f"{path}.{field.name}"
            if not field.in_version(self.version):
                self.reject_if_set(field, value, field_path)
            elif field.tag is not None:
                tagged.append(field)
            else:
                self.field(field, value, field_path)
        if self.flexible:
            self.tags(tagged, source, path)

    def reject_if_set(self, field: Field, value: str, path: str) -> None:
        if field.ignorable:
            return
        self.line(f"if {self.is_set(field, value)}:")
        self.line(f"    fail_version({path!r}, {self.version})")

    def is_set(self, field: Field, value: str) -> str:
        """Return the condition that a value differs from its default."""
        if field.default is None and not field.needs_instance and not field.is_struct:
            return f"{value} is not None"
        if field.is_array:
            return f"{value} is None or len({value})"
        if field.is_struct:
            # An absent struct and one of defaults mean the same, unless null is a separate value.
            if field.nullable is not None:
                return f"{value} is not None"
            name = f"default_{field.type}"
            self.names[name] = getattr(message_of(self.cls), field.type)()
            return f"{value} is not None and {value} != {name}"
        if field.type == "uuid":
            return f"{value} != no_uuid"
        return value if field.default is False else f"{value} != {field.default!r}"

    def field(self, field: Field, value: str, path: str) -> None:
        if field.is_array:
            self.array(field, value, path)
        elif field.is_struct:
            self.inner_struct(field, value, path)
        else:
            self.value(field, value, path, field.nullable_in(self.version))

    def value(self, field: Field, value: str, path: str, nullable: bool) -> None:
        """Write one primitive."""
        primitive = PRIMITIVES[field.type]
        if field.type == "uuid":
            # Fields before this one wait in the run, so the check may come first.
            self.line(f"if len({value}) != 16:")
            self.line(f"    fail_uuid({path!r})")
        if primitive.size:
            self.put(primitive.code, value)
            return
        text = field.type == "string"
        content = f"{value}.encode()" if text else value
        compact = self.flexible and not field.classic
        if nullable:
            self.line(f"if (s := {value}) is None:")
            self.line("    s = b''")
            self.line(f"    n = {'0' if compact else '-1'}")
            self.line("else:")
            self.indent += 1
            if text:
                self.line("s = s.encode()")
        else:
            self.line(f"s = {content}")
        self.line("n = len(s) + 1" if compact else "n = len(s)")
        if text:
            self.line(f"if n > {MAX_INT16 + compact}:")
            self.line(f"    fail_long({path!r}, len(s))")
        if nullable:
            self.indent -= 1
        self.length("h" if text else "i", compact)
        self.line(f"{self.out} += s")

    def length(self, code: str, compact: bool) -> None:
        """Write the length or count in ``n``; a compact one has been raised by one already."""
        if not compact:
            self.put(code, "n")
            self.flush()
            return
        self.flush()
        self.line("if n < 128:")
        self.line(f"    {self.out}.append(n)")
        self.line("else:")
        self.line(f"    {self.out} += uvarint(n)")

    def inner_struct(self, field: Field, value: str, path: str) -> None:
        """Write a struct that is a field on its own."""
        assert field.struct is not None
        self.flush()
        source = self.fresh("m")
        self.line(f"{source} = {value}")
        if not field.nullable_in(self.version):
            self.struct(field.struct, source, path)
            return
        self.line(f"if {source} is None:")
        self.line(f"    {self.out}.append({255 if field.tag is None else 0})")
        self.line("else:")
        self.indent += 1
        self.put("b", "1")
        self.struct(field.struct, source, path)
        self.flush()
        self.indent -= 1

    def array(self, field: Field, value: str, path: str) -> None:
        items = self.fresh("a")
        nullable = field.nullable_in(self.version)
        compact = self.flexible and not field.classic
        self.line(f"{items} = {value}")
        if nullable:
            self.line(f"if {items} is None:")
            self.line("    n = 0" if compact else "    n = -1")
            self.line(f"    {items} = ()")
            self.line("else:")
            self.indent += 1
        self.line(f"n = len({items}) + 1" if compact else f"n = len({items})")
        if nullable:
            self.indent -= 1
        self.length("i", compact)
        code = "" if field.struct is not None else PRIMITIVES[field.type].code
        if code and field.type != "uuid":
            self.line(f"{self.out} += pack(f'>{{len({items})}}{code}', *{items})")
            return
        item = self.fresh("m")
        if self.in_steps:
            index = self.fresh("i")
            self.line(f"for {index}, {item} in enumerate({items}):")
            self.line(f"    if {index} % {STEP_ELEMENTS} == {STEP_ELEMENTS - 1}:")
            self.line("        yield")
        else:
            self.line(f"for {item} in {items}:")
        self.indent += 1
        if field.struct is not None:
            self.struct(field.struct, item, path)
        else:
            self.value(field, item, path, nullable=False)
        self.flush()
        self.indent -= 1

    def tags(self, tagged: list[Field], source: str, path: str) -> None:
        """Write the tagged fields that differ from their defaults, by ascending tag."""
        if not tagged:
            self.put("x")
            return
        self.flush()
        flags = []
        for field in sorted(tagged, key=lambda field: field.tag or 0):
            flag = self.fresh("t")
            condition = f"bool({self.is_set(field, f'{source}.{field.name}')})"
            if field.is_struct and field.nullable_in(self.version):
                condition = "True"  # Kafka takes an absent one for a struct of defaults, not null
            self.line(f"{flag} = {condition}")
            flags.append((flag, field))
        self.line(f"n = {' + '.join(flag for flag, _ in flags)}")
        self.line(f"{self.out}.append(n)")
        outer = self.out
        for flag, field in flags:
            self.line(f"if {flag}:")
            self.indent += 1
            self.out = self.fresh("tagged")
            self.line(f"{self.out} = bytearray()")
            self.field(field, f"{source}.{field.name}", f"{path}.{field.name}")
            self.flush()
            self.line(f"{outer} += uvarint({field.tag})")
            self.line(f"{outer} += uvarint(len({self.out}))")
            self.line(f"{outer} += {self.out}")
            self.out = outer
            self.indent -= 1


def find_misfit(message: Any, version: int, path: str = "") -> str:
    """Say which field of ``message`` cannot be encoded in ``version``, and why.

    For error messages only: slow, runs after the compiled encoder failed. Empty when all fit.
    """
    path = path or type(message).__name__
    for field in message.STRUCT.fields:
        if not field.in_version(version):
            continue
        where = f"{path}.{field.name}"
        value = getattr(message, field.name)
        if value is None:
            if field.nullable_in(version) or (field.is_struct and field.tag is not None):
                continue
            return f"{where} is null"
        if field.is_array and not isinstance(value, (list, tuple)):
            return f"{where}: {value!r} is no array"
        for item in value if field.is_array else (value,):
            reason = _misfit_of_value(field, item, version, where)
            if reason:
                return reason
    return ""


def _misfit_of_value(field: Field, value: Any, version: int, where: str) -> str:
    if field.struct is not None:
        if getattr(value, "STRUCT", None) is not field.struct:
            return f"{where}: {value!r} is no {field.type}"
        return find_misfit(value, version, where)
    primitive = PRIMITIVES[field.type]
    try:
        if field.type == "string":
            fits = len(value.encode()) <= MAX_INT16
        elif primitive.size:
            fits = len(struct.pack(">" + primitive.code, value)) == primitive.size
        else:
            fits = len(memoryview(value)) >= 0
    except (struct.error, TypeError, AttributeError, UnicodeEncodeError):
        fits = False
    return "" if fits else f"{where}: {value!r} is no {field.type}"
