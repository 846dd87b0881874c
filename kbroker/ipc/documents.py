"""The documents that processes exchange, sent as JSON and checked when read.

A ``Document`` is an object with exactly its fields, a NamedTuple an array with as many entries,
bytes are hexadecimal digits. There are no defaults: both ends are of one build, and a document that
says less or more than its class is of another one, or damaged. ``reader`` makes a function of a
class once; what it makes of a document has the types that the class promises.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import cache, partial
from types import NoneType, UnionType
from typing import (
    Any,
    NamedTuple,
    NotRequired,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from kbroker.errors import ErrorCode

Read = Callable[[Any], Any]

SHOWN_MAX = 60
JSON_TYPES = frozenset((NoneType, bool, int, float, str, list, dict))
PLAIN: dict[Any, frozenset[type]] = {
    Any: JSON_TYPES,
    NoneType: frozenset((NoneType,)),
    bool: frozenset((bool,)),
    int: frozenset((int,)),
    float: frozenset((float, int)),
    str: frozenset((str,)),
}


class DocumentError(ValueError):
    """A document has an unexpected form; the text says where, and what was found."""


class Shape(NamedTuple):
    """The JSON form of a value and how to read it. read: None if it is used unchanged."""

    types: frozenset[type]
    read: Read | None


@dataclass_transform()
class _DocumentType(type):
    """Makes the annotations of a class its slots."""

    __slots__: tuple[str, ...]
    defaults: dict[str, Any]

    def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> _DocumentType:
        slots = tuple(body.get("__annotations__", ()))
        defaults = {field: body.pop(field) for field in slots if field in body}
        return super().__new__(cls, name, bases, body | {"__slots__": slots, "defaults": defaults})


class Document(metaclass=_DocumentType):
    """Like a dataclass with slots. A default that is a list is copied.

    Dataclasses compile methods of their own: 0.3 ms for each of fifty classes, at every start.
    """

    def __init__(self, *values: Any, **named: Any) -> None:
        slots, defaults = type(self).__slots__, type(self).defaults
        for field in slots[len(values) :]:
            if field in named:
                values += (named.pop(field),)
            elif field in defaults:
                default = defaults[field]
                values += (default.copy() if isinstance(default, list) else default,)
        if named or len(values) != len(slots):
            raise TypeError(f"{type(self).__name__} has the fields {', '.join(slots)}")
        for field, value in zip(slots, values, strict=True):
            setattr(self, field, value)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and all(
            getattr(self, field) == getattr(other, field) for field in type(self).__slots__
        )

    def __repr__(self) -> str:
        said = ", ".join(f"{field}={getattr(self, field)!r}" for field in type(self).__slots__)
        return f"{type(self).__name__}({said})"


class Encoded(str):
    """A document that is JSON already, such as one that several processes get. As a reply only."""

    __slots__ = ()


def encode(document: Any) -> str:
    """Encode documents as JSON, also below plain lists and dicts."""
    return _ENCODER.encode(document)


def _plain(value: Any) -> Any:
    """Convert one level of a value that the JSON encoder does not know."""
    if isinstance(value, bytes):
        return value.hex()
    cls: Any = type(value)
    return {name: getattr(value, name) for name in cls.__slots__}


# No document contains itself.
_ENCODER = json.JSONEncoder(default=_plain, separators=(",", ":"), check_circular=False)


@cache
def reader(cls: Any) -> Read:
    """A function that makes a ``cls`` from its JSON. It raises DocumentError."""
    types, read = _shape(cls, {})

    def read_document(value: Any) -> Any:
        if type(value) not in types:
            raise _unexpected(types, value)
        return value if read is None else read(value)

    return read_document


def _shape(of: Any, bound: Mapping[TypeVar, Any]) -> Shape:
    """bound: the values of the type variables of a generic class."""
    of = bound.get(of, of) if isinstance(of, TypeVar) else of
    of = getattr(of, "__supertype__", of)  # a NewType
    if of in PLAIN:
        return Shape(PLAIN[of], None)
    origin, args = get_origin(of) or of, get_args(of)
    if origin in (Union, UnionType):
        return _optional([_shape(arg, bound) for arg in args if arg is not NoneType])
    if origin is list:
        item = _shape(args[0], bound)
        return Shape(frozenset((list,)), partial(_read_list, item))
    if origin is dict:
        assert args[0] is str, of  # JSON has no other keys
        return Shape(frozenset((dict,)), partial(_read_dict, _shape(args[1], bound)))
    if origin is bytes:
        return Shape(frozenset((str,)), _read_bytes)
    if issubclass(origin, IntEnum | ErrorCode):
        return Shape(frozenset((int,)), partial(_read_enum, origin))
    return _record(origin, dict(zip(getattr(origin, "__parameters__", ()), args, strict=True)))


def _optional(known: list[Shape]) -> Shape:
    assert len(known) == 1, "a document cannot say which of several types it is"
    types, read = known[0]
    if read is None:
        return Shape(types | {NoneType}, None)
    return Shape(types | {NoneType}, lambda value: None if value is None else read(value))


def _record(cls: Any, bound: Mapping[TypeVar, Any]) -> Shape:
    shapes = {name: _shape(hint, bound) for name, hint in get_type_hints(cls).items()}
    if is_typeddict(cls):
        # Its own __required_keys__ does not know annotations that are strings.
        hints = get_type_hints(cls, include_extras=True)
        required = frozenset(n for n, hint in hints.items() if get_origin(hint) is not NotRequired)
        return Shape(frozenset((dict,)), partial(_read_typed_dict, cls, shapes, required))
    if issubclass(cls, tuple):
        values = _Values(cls, shapes)
        return Shape(frozenset((list,)), values.read_array)
    assert issubclass(cls, Document), cls
    values = _Values(cls, shapes)
    return Shape(frozenset((dict,)), values.read_object)


class _Values:
    """Reads the fields of one class. There may be thousands of it in a document."""

    def __init__(self, cls: Any, shapes: Mapping[str, Shape]) -> None:
        self._cls = cls
        self._names = list(shapes)  # in order of definition, as in an array
        self._name_set = frozenset(shapes)
        self._shapes = list(shapes.values())
        self._nested = [(n, shape.read) for n, shape in enumerate(self._shapes) if shape.read]
        # BOUND: types of values; a field has two at most.
        self._known: set[tuple[type, ...]] = set()

    def read_object(self, document: dict[str, Any]) -> Any:
        if document.keys() != self._name_set:
            for name in self._names:
                if name not in document:
                    raise DocumentError(f"{self._cls.__name__} has no {name}")
            more = ", ".join(sorted(document.keys() - self._name_set))
            raise DocumentError(f"{self._cls.__name__} does not have {more[:SHOWN_MAX]}")
        return self._made([document[name] for name in self._names])

    def read_array(self, document: list[Any]) -> Any:
        if len(document) != len(self._names):
            raise DocumentError(
                f"{self._cls.__name__} has {len(self._names)} values, not {len(document)}"
            )
        return self._made(document)

    def _made(self, values: list[Any]) -> Any:
        types = tuple(map(type, values))
        if types not in self._known:
            for name, type_, shape, value in zip(
                self._names, types, self._shapes, values, strict=True
            ):
                if type_ not in shape.types:
                    raise _within(f"{self._cls.__name__}.{name}", _unexpected(shape.types, value))
            self._known.add(types)
        if self._nested:
            values = list(values)
            for n, read in self._nested:
                try:
                    values[n] = read(values[n])
                except DocumentError as error:
                    raise _within(f"{self._cls.__name__}.{self._names[n]}", error) from None
        return self._cls(*values)


def _read_list(item: Shape, values: list[Any]) -> list[Any]:
    types, read = item
    if not types.issuperset(map(type, values)):
        for n, value in enumerate(values):
            if type(value) not in types:
                raise _within(f"[{n}]", _unexpected(types, value))
    return values if read is None else [read(value) for value in values]


def _read_dict(item: Shape, values: dict[str, Any]) -> dict[str, Any]:
    types, read = item
    if not types.issuperset(map(type, values.values())):
        for name, value in values.items():
            if type(value) not in types:
                raise _within(f"[{name[:SHOWN_MAX]}]", _unexpected(types, value))
    return values if read is None else {name: read(value) for name, value in values.items()}


def _read_typed_dict(
    cls: Any, shapes: Mapping[str, Shape], required: frozenset[str], document: dict[str, Any]
) -> dict[str, Any]:
    """Keys that may be left out are left out."""
    missing = required - document.keys()
    if missing:
        raise DocumentError(f"{cls.__name__} has no {min(missing)}")
    made = {}
    for name, value in document.items():
        shape = shapes.get(name)
        if shape is None:
            raise DocumentError(f"{cls.__name__} does not have {name[:SHOWN_MAX]}")
        if type(value) not in shape.types:
            raise _within(f"{cls.__name__}.{name}", _unexpected(shape.types, value))
        made[name] = value if shape.read is None else shape.read(value)
    return made


def _read_bytes(value: str) -> bytes:
    try:
        return bytes.fromhex(value)
    except ValueError:
        raise DocumentError(f"hexadecimal digits expected, not {_shown(value)}") from None


def _read_enum(cls: type[IntEnum], value: int) -> IntEnum:
    try:
        return cls(value)
    except ValueError:
        raise DocumentError(f"{value} is not a {cls.__name__}") from None


def _unexpected(types: frozenset[type], value: Any) -> DocumentError:
    expected = " or ".join(sorted("null" if t is NoneType else t.__name__ for t in types))
    return DocumentError(f"{expected} expected, not {_shown(value)}")


def _within(where: str, error: DocumentError) -> DocumentError:
    return DocumentError(f"{where}: {error}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + "..."
