"""Names that the product declares and nothing names again: functions, methods, classes, constants,
fields of classes, and what extensions offer to Python.

A name is in use where it is written once more than it is declared, in code, in a text or in a test:
a name that two classes declare escapes. Decorated functions are in use (handlers, properties of a
protocol's users register so), and methods that a ``getattr(self, f"_take_{...}")`` finds.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

# Who may name what the product declares.
USERS = ("kbroker", "ext", "tests", "perf", "tools", "pyspark_kbroker")
ENDINGS = (".py", ".pyi", ".pyx", ".pxd")

# Definitions of messages are whole, as Kafka has them; the tables of APIs and records load them.
DEFINITIONS = (
    "kbroker/protocol/messages/",
    "kbroker/coordinator/records/",
    "kbroker/adopt/metadata_records",
)

# Name -> who calls it, although no line of ours does.
CALLED_BY_OTHERS: Mapping[str, str] = {
    "commit_table": "pyiceberg's Catalog",
    "create_module": "importlib's Loader",
    "dispatch_callback": "kazoo's handler",
    "seekable": "pyarrow, of files in Python",
}

_WORD = re.compile(r"\w+")
_FOUND_BY_NAME = re.compile(r"getattr\(\w+, f\"(\w+)\{")
_IN_CYTHON = re.compile(r"^ *(?:cdef|cpdef|def) (?!extern)[^=#]*?(\w+)\(", re.MULTILINE)


class Declaration(NamedTuple):
    """is_registered: by a decorator."""

    name: str
    line: int
    is_registered: bool = False


def declarations(body: list[ast.stmt]) -> Iterator[Declaration]:
    """Of a module or class, and of the classes in it."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            registers = {ast.unparse(each) for each in node.decorator_list}
            ours = registers <= {"property", "staticmethod", "classmethod", "override"}
            yield Declaration(node.name, node.lineno, not ours)
        elif isinstance(node, ast.ClassDef):
            yield Declaration(node.name, node.lineno, bool(node.decorator_list))
            yield from declarations(node.body)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield Declaration(node.target.id, node.lineno)
        elif isinstance(node, ast.Assign):
            names = [each for target in node.targets for each in ast.walk(target)]
            yield from (
                Declaration(each.id, node.lineno) for each in names if isinstance(each, ast.Name)
            )
        elif isinstance(node, ast.If | ast.Try):
            yield from declarations(node.body)


def findings(root: Path, allowed: Mapping[str, str] = CALLED_BY_OTHERS) -> Iterator[str]:
    """Declarations below ``root/kbroker`` that nothing names, and entries of ``allowed`` that are
    no longer needed.
    """
    texts = {
        path.relative_to(root).as_posix(): path.read_text(encoding="utf-8")
        for folder in USERS
        for path in sorted((root / folder).rglob("*.p*"))
        if path.suffix in ENDINGS and path.name != "unused_names.py"
    }
    written = Counter(word for text in texts.values() for word in _WORD.findall(text))
    declared: dict[str, list[Declaration]] = {}
    for name, text in texts.items():
        if name.startswith("kbroker/") and not name.startswith(DEFINITIONS):
            declared[name] = list(declarations(ast.parse(text, name).body))
        elif name.startswith("ext/"):
            written.subtract(_IN_CYTHON.findall(text))
    written.subtract(each.name for rows in declared.values() for each in rows)
    needless = set(allowed)
    prefixes = tuple({each for name in declared for each in _FOUND_BY_NAME.findall(texts[name])})
    for name, rows in declared.items():
        for row in rows:
            if written[row.name] > 0 or row.is_registered or row.name.startswith("__"):
                continue
            if row.name in allowed:
                needless.discard(row.name)
            elif not row.name.startswith(prefixes):
                yield f"{name}:{row.line}: nothing names {row.name}"
    for each in sorted(needless):
        yield f"tools/unused_names.py:1: {each} is in use or gone: take it off CALLED_BY_OTHERS"
