#!/usr/bin/env python3
"""The tests to run after a change: the test files nearest to each module, by imports.

    tools/tests_of.py kbroker/storage/log/partition_log.py ext/kbroker/_ext/shared/lane.pyx
    tools/tests_of.py                     a table of all modules

Nearest are the test files that import a module themselves, or else what imports it, and so on. A
process of the broker imports nearly everything: tests that start one are named only for modules
that no others reach.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("kbroker", "ext/kbroker", "tests")
IMPORT = re.compile(r"^\s*(?:from ([\w.]+) )?c?import (?:\(([^)]*)\)|([\w., *]+))", re.MULTILINE)
STRING = re.compile(r"\"([\w.]+)[\":{]")
# A conftest.py is part of every test below it.
TESTS = ("test_", "conftest")
NAMED_MAX = 12


def module_name(path: Path) -> str:
    """``kbroker.storage.files`` for its file; extensions and tests in the same way."""
    relative = path.resolve().relative_to(ROOT).with_suffix("")
    parts = [part for part in relative.parts if part != "ext"]
    if parts[0] == "tests" and parts[1:2] == ["support"]:
        parts = parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_by(path: Path) -> Iterator[str]:
    """Names that a file imports: modules or names in them."""
    text = path.read_text(encoding="utf-8")
    for package, bracketed, listed in IMPORT.findall(text):
        names = [name.split()[0] for name in (bracketed or listed).split(",") if name.split()]
        yield from (f"{package}.{name}" for name in names) if package else names
        yield package
    if path.suffix == ".py":
        for named in STRING.findall(text):
            yield from loaded_later(named)


def loaded_later(text: str) -> Iterator[str]:
    """Modules named in strings: one, perhaps with a name in it, or all of a package if the string
    ends with a dot.
    """
    if text.endswith(".") and text.startswith("kbroker."):
        yield from map(module_name, (ROOT / text.replace(".", "/")).glob("*.py"))
    yield text.partition(":")[0]


@cache
def importers() -> dict[str, set[str]]:
    """Module -> the modules that import it; one that is not imported has an empty set."""
    files = [
        path
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.p*"))
        if path.suffix in (".py", ".pyx", ".pxd")
    ]
    found: dict[str, set[str]] = {module_name(path): set() for path in files}
    for path in files:
        name = module_name(path)
        for imported in imported_by(path):
            if imported in found and imported != name:
                found[imported].add(name)
    return found


def nearest_tests(module: str, graph: dict[str, set[str]]) -> list[str]:
    """Test files at the smallest distance, as paths."""
    seen, ring = {module}, {module}
    while ring:
        ring = set().union(*(graph[name] for name in ring)) - seen
        seen |= ring
        tests = sorted(name for name in ring if name.rpartition(".")[2].startswith(TESTS))
        if tests:
            return [f"{name.replace('.', '/')}.py" for name in tests]
    return []


def main(arguments: Iterable[str]) -> int:
    graph = importers()
    asked = [module_name(Path(name)) for name in arguments]
    if unknown := [name for name in asked if name not in graph]:
        print(f"no such module: {', '.join(unknown)}", file=sys.stderr)
        return 2
    if asked:
        tests = {test for name in asked for test in nearest_tests(name, graph)}
        print(*sorted(tests), sep="\n")
        return 0
    for name in sorted(graph):
        if not name.startswith("kbroker.") or (ROOT / name.replace(".", "/")).is_dir():
            continue
        tests = nearest_tests(name, graph)
        more = f" and {len(tests) - NAMED_MAX} more" if len(tests) > NAMED_MAX else ""
        print(f"{name}: {' '.join(tests[:NAMED_MAX]) or '-'}{more}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
