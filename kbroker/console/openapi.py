"""The OpenAPI document, from the rows of the operations."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from kbroker import __version__
from kbroker.console.json_schema import Schemas
from kbroker.console.operation import (
    BYTES,
    FLAG,
    INTEGER,
    INTEGERS,
    LONG_MAX,
    SETTINGS,
    TEXT,
    TEXTS,
    TIME,
    Operation,
    Parameter,
)
from kbroker.console.problems import MEDIA_TYPE
from kbroker.exposition.http import REQUEST_BYTES_MAX

_STATUSES = {
    "400": "Something in the request is not allowed; the message says what is",
    "401": "Log in with a user name and a password",
    "403": "Not allowed to this user",
    "404": "There is no such topic, group, ...",
    "409": "Not as things are now: it exists already, has members, ...",
    "431": f"The head of the request has more than {REQUEST_BYTES_MAX} bytes",
    "503": "The broker does not answer",
}
_STATUSES_OF_BODIES = {
    "408": "The body did not come in time",
    "413": "The body is too large",
    "415": "The body is not application/json",
}


def document(operations: Iterable[Operation]) -> dict[str, Any]:
    """OpenAPI 3.1."""
    paths: dict[str, dict[str, Any]] = {}
    schemas = Schemas()
    for each in operations:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "kbroker",
            "version": __version__,
            "description": "What the console shows and does, with the rights of whoever asks.",
        },
        "servers": [{"url": "/api/v1"}],
        "paths": paths,
        "components": {
            "securitySchemes": {"password": {"type": "http", "scheme": "basic"}},
            "schemas": {
                **schemas.by_name,
                "Problem": {
                    "type": "object",
                    "description": "Problem details (RFC 9457)",
                    "required": ["type", "title", "status", "detail", "code"],
                    "properties": {
                        "type": {"type": "string"},
                        "title": {"type": "string"},
                        "status": {"type": "integer"},
                        "detail": {"type": "string"},
                        "code": {"type": "string"},
                    },
                },
            },
        },
        "security": [{}, {"password": []}],
    }


def _operation(each: Operation, schemas: Schemas) -> dict[str, Any]:
    in_path = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string", "minLength": 1},
        }
        for name in re.findall(r"{(\w+)}", each.path)
    ]
    in_query = [
        {
            "name": row.name,
            "in": "query",
            "required": row.required,
            "description": row.text,
            "schema": _schema(row),
            **({"style": "form", "explode": False} if row.kind in (INTEGERS, TEXTS) else {}),
        }
        for row in each.query
    ]
    statuses = dict(sorted((_STATUSES | (_STATUSES_OF_BODIES if each.body else {})).items()))
    problem = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    document: dict[str, Any] = {
        "summary": each.summary,
        **({"description": f"Needs the right {each.needs}."} if each.needs else {}),
        "operationId": re.sub(r"\W+", "-", f"{each.method.lower()}{each.path}").strip("-"),
        "parameters": in_path + in_query,
        "responses": {
            "200": {
                "description": "Done",
                "content": {"application/json": {"schema": schemas.of(each.answer)}},
            },
            **{
                status: {"description": text, "content": problem}
                for status, text in statuses.items()
            },
        },
    }
    if each.body:
        document["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _body(each.body)}},
        }
    return document


def _body(rows: Iterable[Parameter]) -> dict[str, Any]:
    listed = list(rows)
    return {
        "type": "object",
        "additionalProperties": False,
        "required": [row.name for row in listed if row.required],
        "properties": {row.name: {"description": row.text, **_member(row)} for row in listed},
    }


def _member(row: Parameter) -> dict[str, Any]:
    """In a body, a null is as if it were left out."""
    schema = _schema(row)
    if not row.required:
        schema["type"] = [schema["type"], "null"]
        if "enum" in schema:
            schema["enum"] = [*schema["enum"], None]
    return schema


def _schema(row: Parameter) -> dict[str, Any]:
    schema: dict[str, Any] = {
        FLAG: {"type": "boolean"},
        INTEGER: _whole(row),
        BYTES: _whole(row),
        TIME: _whole(row),
        INTEGERS: {"type": "array", "items": _whole(row)},
        TEXT: {"type": "string", "minLength": row.length_min, "maxLength": row.length_max},
        TEXTS: {"type": "array", "items": {"type": "string", "maxLength": row.length_max}},
        SETTINGS: {
            "type": "object",
            "additionalProperties": {"type": ["string", "null"], "maxLength": row.length_max},
        },
    }[row.kind]
    if row.one_of:
        schema.get("items", schema)["enum"] = list(row.one_of)
    if row.default is not None:
        schema["default"] = row.default
    return schema


def _whole(row: Parameter) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer", "minimum": row.low}
    if row.high != LONG_MAX:
        schema["maximum"] = row.high
    return schema
