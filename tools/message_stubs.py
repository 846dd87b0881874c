"""Stubs of the messages, from their definitions: what type checkers and editors see of them.

``x.pyi`` has a class for each message in ``x.py`` and for each struct in it, with its fields and
its constructor. At run time the classes are made of ``FIELDS``.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from kbroker.protocol.message import Message
from kbroker.protocol.schema import Field, StructSchema

# Modules of nothing but definitions.
MODULES = (
    "kbroker/protocol/messages/*.py",
    "kbroker/coordinator/records/*_topic.py",
    "kbroker/adopt/metadata_records.py",
)
_TYPES = {
    "bool": "bool",
    "float64": "float",
    "string": "str",
    "bytes": "Buffer",
    "records": "Buffer | None",
    "uuid": "bytes",
}
_HEAD = """\
# Written by tools/gen_docs.py from the definitions of the module; change them there.

from collections.abc import Sequence

from kbroker.protocol.message import Message, Struct
from kbroker.protocol.primitives import Buffer
"""
_IMPORTED = {"__future__", "kbroker.protocol.api", "kbroker.protocol.message"}


def documents(root: Path) -> Iterator[tuple[str, Callable[[], str]]]:
    """The path of each stub, with what gives its text."""
    paths = [path for pattern in MODULES for path in sorted(root.glob(pattern))]
    for path in paths:
        if path.stem != "__init__":
            name = path.relative_to(root).with_suffix("").as_posix()
            yield f"{name}.pyi", partial(stub, path, name.replace("/", "."))


def stub(path: Path, name: str) -> str:
    """The stub of a module of definitions."""
    module = importlib.import_module(name)
    lines = [_HEAD]
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            lines += ["", *_message(getattr(module, node.name)), ""]
        elif isinstance(node, ast.ImportFrom) and node.module not in _IMPORTED:
            lines.append(ast.unparse(node))
        elif isinstance(node, ast.Assign):
            lines += _constants(module, node)
    return "\n".join(lines).rstrip() + "\n"


def _constants(module: object, node: ast.Assign) -> Iterator[str]:
    """What else a module has."""
    for target in node.targets:
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        for name in names:
            assert isinstance(name, ast.Name), ast.unparse(node)
            yield f"{name.id}: {type(getattr(module, name.id)).__name__}"


def _message(cls: type[Message]) -> Iterator[str]:
    schema = cls.SCHEMA
    yield f"class {cls.__name__}(Message):"
    for struct in schema.structs.values():
        yield f"    class {struct.name}(Struct):"
        yield from _members(cls.__name__, struct, " " * 8)
        yield ""
    yield from _members(cls.__name__, schema.root, " " * 4)


def _members(message: str, struct: StructSchema, indent: str) -> Iterator[str]:
    """Attributes and constructor of a message or struct."""
    if not struct.fields:
        yield f"{indent}def __init__(self) -> None: ..."
        return
    for field in struct.fields:
        yield f"{indent}{field.name}: {_type(message, field)}"
    yield f"{indent}def __init__("
    yield f"{indent}    self,"
    yield f"{indent}    *,"
    for field in struct.fields:
        yield f"{indent}    {field.name}: {_accepted(_type(message, field))} = ...,"
    yield f"{indent}) -> None: ..."


def _type(message: str, field: Field) -> str:
    if field.struct is not None:
        name = f"{message}.{field.struct.name}"
    else:
        name = _TYPES.get(field.type, "int")
    if field.is_array:
        name = f"list[{name}]"
    may_be_null = field.nullable is not None or (field.is_struct and not field.needs_instance)
    return f"{name} | None" if may_be_null and not name.endswith("None") else name


def _accepted(kind: str) -> str:
    """What a constructor takes for an attribute: any sequence for a list, bytes of any kind."""
    return kind.replace("list[", "Sequence[").replace("Buffer", "Buffer | bytearray")
