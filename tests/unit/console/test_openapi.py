"""The OpenAPI document: schemas of all answers."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

import jsonschema_rs
import pytest

from kbroker.console import openapi
from kbroker.console.json_schema import Schemas
from kbroker.console.operation import Operation
from kbroker.console.operations import OPERATIONS

pytestmark = pytest.mark.unit


class Inner(TypedDict):
    """What is
    inside.
    """

    name: str


class Outer(TypedDict):
    rows: list[Inner]
    level: float | None
    by_name: dict[str, bool]
    more: NotRequired[int]


def test_typed_dictionary_becomes_a_schema() -> None:
    schemas = Schemas()

    assert schemas.of(Outer) == {"$ref": "#/components/schemas/Outer"}
    assert schemas.by_name["Outer"] == {
        "type": "object",
        "required": ["by_name", "level", "rows"],
        "properties": {
            "rows": {"type": "array", "items": {"$ref": "#/components/schemas/Inner"}},
            "level": {"anyOf": [{"type": "number"}, {"type": "null"}]},
            "by_name": {"type": "object", "additionalProperties": {"type": "boolean"}},
            "more": {"type": "integer"},
        },
    }
    assert schemas.by_name["Inner"]["description"] == "What is inside."
    with pytest.raises(TypeError, match="no schema"):
        schemas.of(set[int])


@pytest.mark.parametrize("each", OPERATIONS, ids=lambda each: f"{each.method} {each.path}")
def test_answer_of_each_operation_has_a_schema(each: Operation) -> None:
    document = openapi.document(OPERATIONS)
    answer = document["paths"][each.path][each.method.lower()]["responses"]["200"]
    schema = answer["content"]["application/json"]["schema"]
    checks: Any = jsonschema_rs.Draft202012Validator(
        {**schema, "components": document["components"]}
    )

    assert document["components"]["schemas"][each.answer.__name__]["required"]
    assert not checks.is_valid({})
