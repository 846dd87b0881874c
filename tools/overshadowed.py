"""Names of ours in subclasses of other people's classes that these use for themselves.

``threading.Thread`` has had ``_handle`` since Python 3.13: a subclass with a method of that name
ends at its start there. So no class of ours has a private name that its base in the standard
library has in any Python that is supported (``private_names.json``), or that another base has as
it is installed.

    python3.13 tools/overshadowed.py     writes what that Python has into the table
"""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "tools" / "private_names.json"
PROGRAM = "tools/overshadowed.py"
FOLDERS = ("kbroker", "perf", "pyspark_kbroker", "tests", "tools")
# Class -> names that a class of ours replaces on purpose.
REPLACED = {
    "kazoo.client.KazooClient": {"_session_callback"},
    "xdist.scheduler.LoadFileScheduling": {"_split_scope"},
}

WITH_BASES = re.compile(r"^ *class \w+\(", re.MULTILINE)

# What classes of ours might have as a base: all of these are in the table, so that a new base
# seldom needs each Python once more.
MODULES = (
    "abc", "argparse", "ast", "asyncio", "collections", "collections.abc", "concurrent.futures",
    "configparser", "contextlib", "ctypes", "enum", "html.parser", "http.client", "http.server",
    "io", "json", "logging", "logging.handlers", "pickle", "queue", "random", "selectors", "socket",
    "socketserver", "sqlite3", "ssl", "string", "subprocess", "tempfile", "threading", "typing",
    "urllib.request", "weakref",
)  # fmt: skip

# Class -> version of Python -> its private names, with spaces between them.
Table = Mapping[str, Mapping[str, str]]


class Class(NamedTuple):
    """A class of ours. bases: full names, as far as imports tell."""

    name: str
    path: str
    bases: tuple[str, ...]
    node: ast.ClassDef

    def names(self) -> dict[str, int]:
        """The private names that it defines, or sets in an object of its own, with the line."""
        found: dict[str, int] = {}
        for line in self.node.body:
            if isinstance(line, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.setdefault(line.name, line.lineno)
        for each in ast.walk(self.node):
            if isinstance(each, ast.Attribute) and ast.unparse(each.value) == "self":
                if not isinstance(each.ctx, ast.Load):
                    found.setdefault(each.attr, each.lineno)
        for line in self.node.body:
            if isinstance(line, ast.Assign | ast.AnnAssign):
                targets = line.targets if isinstance(line, ast.Assign) else [line.target]
                for name in (name for target in targets for name in ast.walk(target)):
                    if isinstance(name, ast.Name):
                        found.setdefault(name.id, line.lineno)
        return {name: line for name, line in found.items() if is_private(name)}


def is_private(name: str) -> bool:
    """Whether a class may take this name for itself; ``_missing_`` and ``__len__`` are given."""
    return name.startswith("_") and not name.endswith("_") and not name.startswith("__")


def classes(root: Path) -> Iterator[Class]:
    """All classes of the project."""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            place = path.relative_to(root)
            module = ".".join(place.with_suffix("").parts).removeprefix("tests.")
            source = path.read_text(encoding="utf-8")
            if WITH_BASES.search(source):
                yield from classes_of(module, place.as_posix(), source)


def classes_of(module: str, path: str, source: str) -> Iterator[Class]:
    """The classes of one module."""
    tree = ast.parse(source, path)
    imported = dict(_imported(tree))
    own = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            bases = tuple(
                _full_name(_subscripted(base), module, imported, own) for base in node.bases
            )
            yield Class(f"{module}.{node.name}", path, bases, node)


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (first, first)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _subscripted(base: ast.expr) -> ast.expr:
    return base.value if isinstance(base, ast.Subscript) else base


def _full_name(base: ast.expr, module: str, imported: Mapping[str, str], own: set[str]) -> str:
    text = ast.unparse(base)
    first, dot, rest = text.partition(".")
    if first in imported:
        return imported[first] + dot + rest
    if first in own or not hasattr(builtins, first):
        return f"{module}.{text}"
    return f"builtins.{text}"


@cache
def private_names(full_name: str) -> frozenset[str] | None:
    """Those of a class of this Python, and of what is installed; None if there is no such class."""
    module, _, name = full_name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        return None
    if not isinstance(found, type):
        return frozenset()
    names = set(dir(found))
    for base in found.__mro__:
        try:
            source = textwrap.dedent(inspect.getsource(base))
        except (OSError, TypeError):  # it is not written in Python
            continue
        tree = ast.parse(source)
        names |= {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self"
        }
    return frozenset(filter(is_private, names)) - REPLACED.get(full_name, set())


def foreign_bases(found: Iterable[Class]) -> list[tuple[Class, set[str]]]:
    """The classes with their bases that are not ours, those of bases included."""
    all_classes = list(found)
    by_name = {each.name: each for each in all_classes}

    def bases(each: Class, seen: frozenset[str]) -> set[str]:
        foreign: set[str] = set()
        for base in each.bases:
            ours = by_name.get(base)
            if ours is None:
                if base.partition(".")[0] != "kbroker":  # one by another name
                    foreign.add(base)
            elif base not in seen:
                foreign |= bases(ours, seen | {base})
        return foreign

    return [(each, bases(each, frozenset({each.name}))) for each in all_classes]


def is_of_python(full_name: str) -> bool:
    """Whether a class belongs to the standard library."""
    return full_name.partition(".")[0] in sys.stdlib_module_names


def findings(root: Path, table: Table, versions: Iterable[str]) -> Iterator[str]:
    """The problems of all classes. versions: of Python, those that are supported."""
    known = {version for names in table.values() for version in names}
    for version in versions:
        if version not in known:
            yield f"tools/private_names.json:1: run python{version} {PROGRAM}"
    for each, bases in foreign_bases(classes(root)):
        for base in sorted(bases):
            yield from _shadows(each, base, table)


def _shadows(each: Class, base: str, table: Table) -> Iterator[str]:
    taken = dict.fromkeys(private_names(base) or (), "")
    if is_of_python(base):
        if taken and base not in table:
            yield f"{each.path}:1: no {base} in the table: run {PROGRAM} with every Python"
        for version, names in table.get(base, {}).items():
            taken |= dict.fromkeys(names.split(), f" of Python {version}")
    if not taken:
        return
    names = each.names()
    for name in sorted(names.keys() & taken.keys()):
        yield f"{each.path}:{names[name]}: {name} is a name of {base}{taken[name]} itself"


def supported_versions() -> list[str]:
    """Those that pyproject.toml names."""
    return re.findall(r'"Programming Language :: Python :: (3\.\d+)"', _text("pyproject.toml"))


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def known_names() -> Table:
    """The table."""
    table: Table = json.loads(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else {}
    return table


def main() -> int:
    """Write what this Python has into the table."""
    bases = {base for _, found in foreign_bases(classes(ROOT)) for base in found}
    for module in MODULES:
        loaded = importlib.import_module(module)
        names = getattr(loaded, "__all__", None) or dir(loaded)
        bases |= {f"{module}.{name}" for name in names if is_class(loaded, name)}
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    table = {base: dict(names) for base, names in known_names().items()}
    for base in sorted(filter(is_of_python, bases)):
        found = private_names(base)
        if found:
            table.setdefault(base, {})[version] = " ".join(sorted(found))
    TABLE.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return 0


def is_class(module: object, name: str) -> bool:
    """Whether a name of a module is one that others may use, of a class."""
    return not name.startswith("_") and isinstance(getattr(module, name, None), type)


if __name__ == "__main__":
    sys.exit(main())
