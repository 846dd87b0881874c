"""The error codes of a response, for metrics: how many of its results have which."""

from __future__ import annotations

from itertools import islice
from typing import Any

from kbroker.protocol.message import Message
from kbroker.protocol.schema import StructSchema

ERROR_CODE = "error_code"
# BOUND: results of a response that are looked at; a longer one is counted up to there.
RESULTS_MAX = 10_000

# Of a struct: whether it has an error code, and its fields with structs that have one below them.
Plan = tuple[bool, list[tuple[str, bool, "Plan"]]]
_plans: dict[type, Plan] = {}


def error_counts(response: Message) -> dict[int, int]:
    """By code. Like Kafka: every result counts, those without an error as 0."""
    cls = type(response)
    plan = _plans.get(cls)
    if plan is None:
        plan = _plans[cls] = _plan_of(cls.STRUCT)
    counts: dict[int, int] = {}
    _count(response, plan, counts, RESULTS_MAX)
    return counts


def _plan_of(struct: StructSchema) -> Plan:
    nested = [
        (field.name, field.is_array, _plan_of(field.struct))
        for field in struct.fields
        if field.struct is not None
    ]
    has_code = any(field.name == ERROR_CODE for field in struct.fields)
    return has_code, [row for row in nested if row[2][0] or row[2][1]]


def _count(value: Any, plan: Plan, counts: dict[int, int], left: int) -> int:
    has_code, nested = plan
    if has_code:
        counts[value.error_code] = counts.get(value.error_code, 0) + 1
        left -= 1
    for name, is_array, below in nested:
        inner = getattr(value, name)
        if inner is None:
            continue
        for one in islice(inner, max(left, 0)) if is_array else (inner,):
            left = _count(one, below, counts, left)
    return left
