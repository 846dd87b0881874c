"""Requests and results of ``ipc.calls`` as JSON, with only the fields that a test needs."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

from kbroker.ipc.calls import Operation


def default_of(field: Field[Any]) -> Any:
    """The default value of the field; MISSING if it has none."""
    if field.default_factory is not MISSING:
        return field.default_factory()
    return field.default


def sparse(value: Any) -> Any:
    """As JSON, without dataclass fields that have their default values."""
    if is_dataclass(value) and not isinstance(value, type):
        said = {field.name: getattr(value, field.name) for field in fields(value)}
        defaults = {field.name: default_of(field) for field in fields(value)}
        return {name: sparse(each) for name, each in said.items() if each != defaults[name]}
    if isinstance(value, list | tuple):
        return [sparse(each) for each in value]
    return value.hex() if isinstance(value, bytes) else value


def completed(cls: Any, document: Any) -> Any:
    """A document without defaults, as ``ipc.documents`` reads it."""
    if get_origin(cls) is list and isinstance(document, list):
        return [completed(get_args(cls)[0], each) for each in document]
    if not is_dataclass(cls) or not isinstance(document, dict):
        return document
    said = {
        field.name: default_of(field)
        for field in fields(cls)
        if field.name not in document and default_of(field) is not MISSING
    }
    hints = get_type_hints(cls)
    return said | {name: completed(hints.get(name), each) for name, each in document.items()}


def request(operation: Operation[Any, Any], **said: Any) -> Any:
    """The request of a call with these values."""
    return operation.read_request(completed(operation.request, said))
