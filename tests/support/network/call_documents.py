"""Requests and results of ``ipc.calls`` as JSON, with only the fields that a test needs."""

from __future__ import annotations

from typing import Any, get_args, get_origin, get_type_hints

from kbroker.ipc.calls import CallOperation
from kbroker.ipc.documents import Document


def sparse(value: Any) -> Any:
    """As JSON, without fields that have their default values."""
    if isinstance(value, Document):
        said = {name: getattr(value, name) for name in value.__slots__}
        defaults = type(value).defaults
        return {
            name: sparse(each)
            for name, each in said.items()
            if name not in defaults or each != defaults[name]
        }
    if isinstance(value, list | tuple):
        return [sparse(each) for each in value]
    return value.hex() if isinstance(value, bytes) else value


def arguments(request: Any) -> dict[str, Any]:
    """The fields of a request as JSON, by name."""
    if isinstance(request, Document):
        fields: dict[str, Any] = sparse(request)
        return fields
    return {name: sparse(value) for name, value in request._asdict().items()}


def completed(cls: Any, document: Any) -> Any:
    """A document without defaults, as ``ipc.documents`` reads it."""
    if get_origin(cls) is list and isinstance(document, list):
        return [completed(get_args(cls)[0], each) for each in document]
    if not isinstance(document, dict) or not (isinstance(cls, type) and issubclass(cls, Document)):
        return document
    said = {name: value for name, value in cls.defaults.items() if name not in document}
    hints = get_type_hints(cls)
    return said | {name: completed(hints.get(name), each) for name, each in document.items()}


def request(operation: CallOperation[Any, Any], **said: Any) -> Any:
    """The request of a call with these values."""
    return operation.read_request(completed(operation.request, said))
