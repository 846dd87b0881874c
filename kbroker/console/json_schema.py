"""Types as JSON Schema (2020-12, as OpenAPI 3.1 has it): typed dictionaries, lists, unions."""

from __future__ import annotations

import inspect
from types import NoneType, UnionType
from typing import Any, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

_WORDS = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"}
COMPONENTS = "#/components/schemas/"


class Schemas:
    """Collects the typed dictionaries that are named, for the components of a document."""

    def __init__(self) -> None:
        self.by_name: dict[str, dict[str, Any]] = {}

    def of(self, kind: Any) -> dict[str, Any]:
        """Raises TypeError for a type that has no schema."""
        if kind in _WORDS:
            return {"type": _WORDS[kind]}
        if is_typeddict(kind):
            self._name(kind)
            return {"$ref": COMPONENTS + kind.__name__}
        arguments = get_args(kind)
        if get_origin(kind) is list:
            return {"type": "array", "items": self.of(arguments[0])}
        if get_origin(kind) is dict:
            return {"type": "object", "additionalProperties": self.of(arguments[1])}
        if get_origin(kind) in (UnionType, Union):
            return {"anyOf": [self.of(each) for each in arguments]}
        raise TypeError(f"{kind} has no schema")

    def _name(self, kind: Any) -> None:
        if kind.__name__ in self.by_name:
            return
        schema: dict[str, Any] = {"type": "object"}
        self.by_name[kind.__name__] = schema
        if kind.__doc__:
            schema["description"] = inspect.cleandoc(kind.__doc__).replace("\n", " ")
        # Whether a key is required, the type itself does not know where annotations are texts.
        hints = get_type_hints(kind, include_extras=True)
        optional = {name for name, hint in hints.items() if get_origin(hint) is NotRequired}
        schema["required"] = sorted(hints.keys() - optional)
        schema["properties"] = {
            name: self.of(get_args(hint)[0] if name in optional else hint)
            for name, hint in hints.items()
        }
