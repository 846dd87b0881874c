"""Settings that are marked as built, metrics, and options of tools: code reads each of them.

What is accepted without an effect says so: a setting by its state, an option by its text.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from kbroker.cli.kafka.parsers import ParsedTool
from kbroker.cli.kafka.running import Tool
from kbroker.cli.kafka.table import TOOLS
from kbroker.config.broker_keys import BROKER_KEYS
from kbroker.config.group_config import GROUP_KEYS
from kbroker.config.key import BUILT
from kbroker.config.topic_keys import TOPIC_KEYS
from kbroker.metrics import catalog

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
# Where settings and options are defined; a name that is nowhere else is read by nothing.
TABLES = ("config/table/", "config/topic_keys.py", "config/group_config.py", "config/quota_keys.py")
NO_EFFECT = "no effect"


def sources(folder: str, *patterns: str) -> dict[str, str]:
    """The texts of files by their paths."""
    return {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for pattern in patterns
        for path in (ROOT / folder).rglob(pattern)
    }


def is_text(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


class Names:
    """Names in code: literals, and f-strings as patterns of the names that they may be."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.literals: Counter[str] = Counter()
        patterns: set[str] = set()
        for text in texts:
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    self.literals[node.value] += 1
                elif isinstance(node, ast.Dict):  # what is done about it stands beside it
                    self.literals.update(ast.literal_eval(key) for key in node.keys if is_text(key))
                elif isinstance(node, ast.JoinedStr):
                    patterns.add("".join(self._piece(part) for part in node.values))
        # Of a pattern at least a word must be there, or it would be that of any name.
        self.patterns = [
            re.compile(pattern)
            for pattern in patterns
            if re.search(r"[a-z]{3}[.-]|[.-][a-z]{3}", pattern.replace("\\", ""))
            and " " not in pattern
        ]

    @staticmethod
    def _piece(part: ast.expr) -> str:
        return re.escape(part.value) if isinstance(part, ast.Constant) else r"[\w.-]+"

    def count(self, name: str) -> int:
        """How often a name is written, or could be made."""
        if self.literals[name] > 1:
            return self.literals[name]
        made = sum(pattern.fullmatch(name) is not None for pattern in self.patterns)
        return self.literals[name] + made


def test_every_setting_that_is_built_is_read():
    python = sources("kbroker", "*.py")
    names = Names(text for path, text in python.items() if not any(at in path for at in TABLES))
    defaults = {name for key in TOPIC_KEYS.values() for name, _ in key.server_keys}
    built = {
        name
        for keys in (BROKER_KEYS, TOPIC_KEYS)
        for name, key in keys.items()
        if key.status == BUILT
    }
    # A group's own setting is asked for by the broker's.
    built |= {f"group.{name}" for name in GROUP_KEYS}

    assert len(built) > 250
    assert "\n".join(sorted(name for name in built - defaults if not names.count(name))) == ""


def test_every_metric_is_counted():
    code = sources("kbroker", "*.py") | sources("ext", "*.pyx", "*.pxd")
    del code["kbroker/metrics/catalog.py"]
    words = set(re.findall(r"\w+", "\n".join(code.values())))
    rows = {name for name, row in vars(catalog).items() if isinstance(row, catalog.MetricRow)}

    assert len(rows) == len(catalog.METRICS)
    assert sorted(rows - words) == []


def options(tool: object) -> Iterator[tuple[str, str]]:
    """Name and text of each option of a tool."""
    if isinstance(tool, Tool):
        yield from ((option.name, option.text) for option in tool.options)
    elif isinstance(tool, ParsedTool):
        yield from _arguments(tool.build())


def _arguments(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    for row in parser._actions:
        if isinstance(row, argparse._SubParsersAction):
            for inner in row.choices.values():
                yield from _arguments(inner)
        elif row.dest != "help":
            yield row.dest, str(row.help)


def test_every_option_of_a_tool_is_read_or_says_that_it_has_no_effect():
    """Three were accepted in silence."""
    texts = sources("kbroker/cli/kafka", "*.py") | sources("kbroker/legacy/commands", "*.py")
    names = Names(texts.values())
    code = "\n".join(texts.values())
    attributes = set(re.findall(r"\.(\w+)", code))
    # OPTION = valued("name", ...), which is asked for as OPTION.name.
    defined = re.findall(r'^(\w+) = (?:valued|flag)\(\s*"([\w.-]+)"', code, re.M)
    by_constant = {name for constant, name in defined if f"{constant}.name" in code}
    tools = {name: entry.load() for name, entry in TOOLS.items()}

    unread = [
        f"{tool} --{name}"
        for tool, made in tools.items()
        for name, text in options(made)
        if NO_EFFECT not in text.lower()
        # One is the definition.
        and names.count(name) < 2
        and name not in attributes
        and name not in by_constant
    ]

    assert "\n".join(unread) == ""
