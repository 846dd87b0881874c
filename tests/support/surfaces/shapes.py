"""Whether a document is what the row of its operation says."""

from __future__ import annotations

from typing import Any

from kbroker.console.operation import Shape

_TYPES = {"integer": int, "number": (int, float), "string": str, "boolean": bool}


def assert_fits(shape: Shape, document: Any, at: str = "") -> None:
    """A document that a shape does not describe fails, with the place in it."""
    if isinstance(shape, str):
        if document is None:
            assert shape.endswith("?"), f"{at} is null"
            return
        kind = shape.removesuffix("?")
        assert isinstance(document, _TYPES[kind]), f"{at}: {document!r} is no {kind}"
        assert isinstance(document, bool) == (kind == "boolean"), f"{at}: {document!r}"
    elif isinstance(shape, list):
        assert isinstance(document, list), f"{at}: {document!r} is no list"
        for number, each in enumerate(document):
            assert_fits(shape[0], each, f"{at}[{number}]")
    elif "*" in shape:
        for name, each in document.items():
            assert_fits(shape["*"], each, f"{at}.{name}")
    else:
        assert document.keys() == shape.keys(), at
        for name, each in shape.items():
            assert_fits(each, document[name], f"{at}.{name}")
