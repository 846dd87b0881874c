"""The schemas of the console's OpenAPI document, for answers that tests get."""

from __future__ import annotations

import functools
import re
from typing import Any

import jsonschema_rs

from kbroker.console import openapi
from kbroker.console.operations import OPERATIONS


def check_answer(method: str, path: str, status: int, document: Any) -> None:
    """Fails unless the answer is as the document says, without a member more. path: below API."""
    if status == 200:
        if path.partition("?")[0] == "/openapi.json":
            return
        _validator(*_operation_of(method, path.partition("?")[0])).validate(document)
    else:
        _validator("", "").validate(document)
        assert document["status"] == status


def _operation_of(method: str, path: str) -> tuple[str, str]:
    for each in OPERATIONS:
        pattern = re.sub(r"\\{\w+\\}", "[^/]+", re.escape(each.path))
        if each.method == method and re.fullmatch(pattern, path):
            return each.method, each.path
    raise AssertionError(f"no operation is {method} {path}")


@functools.cache
def _validator(method: str, path: str) -> Any:
    """Of what this operation answers; without one, of a problem."""
    document = openapi.document(OPERATIONS)
    schema: dict[str, Any] = {"$ref": "#/components/schemas/Problem"}
    if method:
        response = document["paths"][path][method.lower()]["responses"]["200"]
        schema = response["content"]["application/json"]["schema"]
    closed = {**schema, "components": document["components"]}
    _close(closed)
    return jsonschema_rs.Draft202012Validator(closed)


def _close(schema: Any) -> None:
    """No member but those that are named."""
    for each in schema.values() if isinstance(schema, dict) else schema:
        if isinstance(each, dict | list):
            _close(each)
    if isinstance(schema, dict) and "properties" in schema and "type" in schema:
        schema.setdefault("additionalProperties", False)
