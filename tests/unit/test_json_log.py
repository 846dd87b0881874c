"""The log as JSON: ``log.format=json``."""

from __future__ import annotations

import ast
import json
import logging
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kbroker
from kbroker import logcontext
from kbroker.logcontext import JsonFormatter, event_name, name_process, setup, use_format

pytestmark = pytest.mark.unit

METHODS = {"debug", "info", "warning", "error", "critical", "exception"}


def line(text: str, *arguments: object, exc_info: Any = None) -> dict[str, Any]:
    record = logging.LogRecord(
        "kbroker.workers.base", logging.WARNING, "f", 1, text, arguments, exc_info
    )
    written = JsonFormatter("io-0").format(record)
    assert "\n" not in written
    document: dict[str, Any] = json.loads(written)
    return document


def test_line_has_event_message_and_arguments() -> None:
    document = line("cannot open %s: %s (%d times)", "a", OSError("b"), 3)

    assert document["event"] == "base.cannot-open-times"
    assert document["message"] == "cannot open a: b (3 times)"
    assert document["args"] == ["a", "b", 3]
    assert (document["level"], document["process"]) == ("WARNING", "io-0")
    assert document["logger"] == "kbroker.workers.base"
    assert document["ts"].endswith("Z")
    assert document["pid"] > 0


def test_call_may_name_its_event() -> None:
    record = logging.LogRecord("kbroker.x", logging.INFO, "f", 1, "%s", ("a",), None)
    record.event = "x.denied"

    assert json.loads(JsonFormatter("io-0").format(record))["event"] == "x.denied"


def test_named_arguments_keep_their_names() -> None:
    document = line("%(api)s took %(total_ms)s ms", {"api": "Fetch", "total_ms": 1.5})

    assert document["args"] == {"api": "Fetch", "total_ms": 1.5}
    assert document["message"] == "Fetch took 1.5 ms"


def test_client_cannot_forge_a_line_or_make_it_endless() -> None:
    document = line("no topic %s", 'x"}\n{"event": "forged"' + "y" * 100_000)

    assert document["event"] == "base.no-topic"
    assert len(document["message"]) < 10_000


def test_exceptions_are_in_the_same_line() -> None:
    try:
        raise ValueError("wrong")
    except ValueError as error:
        document = line("failed", exc_info=(type(error), error, error.__traceback__))

    assert "ValueError: wrong" in document["exception"]


def test_format_is_chosen_once_and_keeps_the_process(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        setup("supervisor")
        use_format("text")
        assert isinstance(root.handlers[0].formatter, logcontext.LineFormatter)
        use_format("json")
        name_process("io-3")
        logging.getLogger("kbroker.test").warning("it %s", "happened")
    finally:
        root.handlers[:] = before
        root.setLevel(level)

    assert json.loads(capsys.readouterr().err)["process"] == "io-3"


def log_calls() -> Iterator[tuple[str, str, str]]:
    """Module, message and given event ("" for none) of all log calls with a constant message."""
    package = Path(kbroker.__file__).parent
    for path in sorted(package.rglob("*.py")):
        if "spark" in path.parts:
            continue  # no part of a broker
        name = ".".join(path.relative_to(package.parent).with_suffix("").parts)
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "logger." in text else ():
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in METHODS
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id == "logger"
                and isinstance(node.args[0], ast.Constant)
            ):
                given = [k.value for k in node.keywords if k.arg == "extra"]
                extra = ast.literal_eval(given[0]) if given else {"event": ""}
                yield name, node.args[0].value, extra["event"]


def test_every_kind_of_line_has_an_event_of_its_own() -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for name, text, given in log_calls():
        module = name.rpartition(".")[2]
        event = given or event_name(name, text)
        assert event.startswith(f"{module}."), (name, text)
        assert event != f"{module}.", f"{name}: {text} needs extra={{'event': ...}}"
        if not given:
            found[event].add(text)

    assert len(found) > 300
    assert {event: texts for event, texts in found.items() if len(texts) > 1} == {}
