"""The table of calls: each row is served as it says, called somewhere, and survives JSON."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import kbroker
from kbroker.ipc import calls, documents
from kbroker.ipc.process_kinds import WORKERS
from kbroker.ipc.process_table import ProcessKind

pytestmark = pytest.mark.unit

PACKAGE = Path(kbroker.__file__).parent
MAKES_CALLS = (
    "rpc.call", "serve", "ctx.controller", "ctx.io_worker", "change_in_parts", "OwnerCalls",
    "call_until_answered",
)  # fmt: skip
CONSTANTS = {row: name for name, row in vars(calls).items() if isinstance(row, calls.CallOperation)}


@cache
def trees() -> dict[str, ast.Module]:
    """The modules of the package that mention a row or a call, or are below ``workers``, by name.
    Parsed by the first test that needs it.
    """
    told = re.compile(rf"\b({'|'.join([*CONSTANTS.values(), *MAKES_CALLS])})\b")
    found = {}
    for path in PACKAGE.rglob("*.py"):
        name = ".".join(("kbroker", *path.relative_to(PACKAGE).with_suffix("").parts))
        text = path.read_text()
        if name.startswith(("kbroker.workers", "kbroker.ipc.calls")) or told.search(text):
            found[name.removesuffix(".__init__")] = ast.parse(text)
    return found


@cache
def nodes(name: str) -> list[ast.AST]:
    """All nodes of a module."""
    return list(ast.walk(trees()[name]))


def row_of(node: ast.expr) -> str | None:
    """The constant of the table that an expression names."""
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None)
    return name if name in CONSTANTS.values() else None


def served(module: str) -> Iterator[str]:
    """The rows that a module serves: the first argument of a call of ``serve``."""
    for node in nodes(module):
        if isinstance(node, ast.Call) and node.args:
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else function
            name = name.id if isinstance(name, ast.Name) else name
            row = row_of(node.args[0])
            if name == "serve" and row is not None:
                yield row


def named(module: str) -> Iterator[str]:
    """The rows that a module mentions, each as often as it does."""
    for node in nodes(module):
        if isinstance(node, ast.Attribute | ast.Name) and (row := row_of(node)) is not None:
            yield row


@cache
def mention_counts() -> Counter[str]:
    """How often modules mention each row, outside the table."""
    others = (name for name in trees() if not name.startswith("kbroker.ipc.calls"))
    return Counter(row for name in others for row in named(name))


@cache
def serving_counts() -> Counter[str]:
    """How often modules serve each row."""
    return Counter(row for name in trees() for row in served(name))


def modules_of(start: str) -> set[str]:
    """The module of a kind of process and the modules below ``workers`` that it imports,
    recursively.
    """
    found, waiting = set(), [start]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        for node in nodes(name):
            if isinstance(node, ast.ImportFrom) and node.module:
                imported = {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
                waiting += [
                    m for m in imported if m.startswith("kbroker.workers.") and m in trees()
                ]
    return found


@pytest.mark.parametrize("kind", WORKERS, ids=lambda kind: kind.name)
def test_process_serves_what_the_table_says_and_nothing_else(kind: ProcessKind) -> None:
    module = kind.row.worker.partition(":")[0]
    found = [row for name in modules_of(module) for row in served(name)]
    assert len(set(found)) == len(found), "served twice"
    assert set(found) == {
        CONSTANTS[row] for row in calls.OPERATIONS.values() if kind in row.served_by
    }


@pytest.mark.parametrize("row", calls.OPERATIONS.values(), ids=lambda row: row.name)
def test_row_is_called_by_somebody(row: calls.CallOperation[Any, Any]) -> None:
    constant = CONSTANTS[row]
    assert mention_counts()[constant] > serving_counts()[constant]


def test_areas_of_the_table_give_each_name_once() -> None:
    """The table takes all that its areas define; of two equal names it would have the last."""
    defined = [
        name
        for module, tree in trees().items()
        if module.startswith("kbroker.ipc.calls.")
        for node in tree.body
        for name in defined_by(node)
    ]
    assert len(defined) > len(calls.OPERATIONS)
    assert sorted(defined) == sorted(set(defined))
    assert [name for name in defined if not hasattr(calls, name)] == []


def defined_by(node: ast.stmt) -> list[str]:
    """The names that a statement of a module defines, except imports."""
    if isinstance(node, ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    return []


def test_no_call_names_its_operation_by_a_string() -> None:
    by_string = [
        f"{module}:{node.lineno}: {argument.value}"
        for module in trees()
        for node in nodes(module)
        if isinstance(node, ast.Call)
        for argument in node.args
        if isinstance(argument, ast.Constant) and argument.value in calls.OPERATIONS
        if ast.unparse(node.func).endswith(MAKES_CALLS)
    ]
    assert by_string == []


def test_kinds_that_serve_are_kinds_that_there_are() -> None:
    serving = {kind for row in calls.OPERATIONS.values() for kind in row.served_by}
    assert serving <= WORKERS.keys()
    assert ProcessKind.SUPERVISOR not in calls.IMAGE.served_by, "it handles no topics"


def through_json(row: calls.CallOperation[Any, Any], request: Any) -> Any:
    return row.read_request(json.loads(documents.encode(request)))


@pytest.mark.parametrize("row", calls.OPERATIONS.values(), ids=lambda row: row.name)
def test_every_class_of_the_table_can_be_read(row: calls.CallOperation[Any, Any]) -> None:
    """Otherwise a class without a reader is found only by the first call."""
    for read in (row.read_request, row.read_reply):
        with pytest.raises(documents.DocumentError):
            read("no document")


@pytest.mark.parametrize(
    ("row", "request_"),
    [
        (
            calls.CREATE_TOPICS,
            calls.CreateTopics(
                [
                    calls.TopicToCreate("t", 3, 2, [calls.Assigned(0, [1, 2])]),
                    calls.TopicToCreate("ü", configs=[calls.SettingValue("retention.ms", None)]),
                ],
                within_ms=7,
            ),
        ),
        (calls.DELETE_TOPICS, calls.DeleteTopics([calls.TopicToDelete(topic_id=b"\xff" * 16)])),
        (calls.LIST_OFFSETS, calls.Questions([calls.TimestampQuestion(1, -2, 0)])),
        (calls.IMAGE, calls.ImageChange({"version": 3, "topics": {"t": None}})),
    ],
)
def test_request_is_the_same_at_the_other_end(
    row: calls.CallOperation[Any, Any], request_: Any
) -> None:
    assert through_json(row, request_) == request_


def test_responses_about_partitions_keep_their_failures() -> None:
    answers = calls.Results([None, calls.FoundOffset(5, -1, 0)], [calls.Failure(0, 6, None)])
    read = calls.LIST_OFFSETS.read_reply(json.loads(documents.encode(answers)))
    assert read == answers


def test_readers_of_all_documents_are_made_before_the_fork():
    """Each process created its own of the same annotations, half a megabyte."""
    calls.make_readers()
    before = documents.reader.cache_info().misses
    for row in calls.OPERATIONS.values():
        for read in (row.read_request, row.read_reply):
            with suppress(documents.DocumentError):
                read("neither an object nor null")
    assert documents.reader.cache_info().misses == before
