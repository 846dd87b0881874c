"""The schemas of the console's OpenAPI document, for answers that tests get."""

from __future__ import annotations

import functools
import re
from typing import Any

import jsonschema_rs

from kbroker.console import openapi
from kbroker.console.operations import OPERATIONS

COMPONENTS = "#/components/schemas/"


def check_answer(method: str, path: str, status: int, document: Any) -> None:
    """Fails unless the answer is as the document says, without a member more. path: below API."""
    if status == 200:
        if path.partition("?")[0] == "/openapi.json":
            return
        _validator(_schema_of(method, path.partition("?")[0])).validate(document)
    else:
        _validator(COMPONENTS + "Problem").validate(document)
        assert document["status"] == status


def _schema_of(method: str, path: str) -> str:
    for each in OPERATIONS:
        pattern = re.sub(r"\\{\w+\\}", "[^/]+", re.escape(each.path))
        if each.method == method and re.fullmatch(pattern, path):
            return COMPONENTS + each.answer.__name__
    raise AssertionError(f"no operation is {method} {path}")


@functools.cache
def _validator(reference: str) -> Any:
    document = openapi.document(OPERATIONS)
    schemas = document["components"]["schemas"]
    for schema in schemas.values():
        schema["additionalProperties"] = False
    return jsonschema_rs.Draft202012Validator(
        {"$ref": reference, "components": {"schemas": schemas}}
    )
