"""Checks of the Cython sources, which no other linter reads.

Functions that are too long; imports of what is above ``_ext``, or above a folder of it; modules
that the product does not use; numbers of errors and APIs that are spelled again; arrays that are
grown by hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

FUNCTION_LINES_MAX = 70

# The folders of _ext: each imports only from those before it.
LAYERS = (
    "base",
    "shared",
    "record",
    "sockets",
    "log",
    "fetch",
    "coordinator",
    "network",
    "io",
    "arrow",
    "client",
    "legacy",
)
# The ground floor, which all may import.
GROUND = {
    "kbroker.batch_errors",
    "kbroker.batch_summary",
    "kbroker.clock",
    "kbroker.descriptors",
    "kbroker.errors",
    "kbroker.logcontext",
}

IMPORT = re.compile(r"^ *(?:from (\S+) (?:c?import)|c?import (\S+))")
DEFINITION = re.compile(r"^( *)(?:cdef|cpdef|def) (?!class |enum|struct|extern)[^=]*?(\w+)\(")
CONSTANT = re.compile(r"^\s+([A-Z][A-Z_]+) = -?\d+\b")
GENERATED = ("/error_codes.pxd", "/api_keys.pxd")


def sizes(name: str, lines: list[str]) -> Iterator[str]:
    """Functions that are too long."""
    for number, line in enumerate(lines, 1):
        found = DEFINITION.match(line)
        if found is None:
            continue
        length = function_length(lines, number - 1, len(found.group(1)))
        if length > FUNCTION_LINES_MAX:
            what = f"{found.group(2)} has {length} lines, at most {FUNCTION_LINES_MAX}"
            yield f"{name}:{number}: {what}"


def function_length(lines: list[str], first: int, indent: int) -> int:
    """Lines from the definition to the last one indented further."""
    last = first
    for at in range(first + 1, len(lines)):
        text = lines[at].lstrip()
        if not text:
            continue
        if len(lines[at]) - len(text) <= indent and not text.startswith(")"):
            break
        last = at
    return last - first + 1


def imports(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Line and module of each import, of C or of Python."""
    for number, line in enumerate(lines, 1):
        found = IMPORT.match(line)
        if found is not None:
            yield number, found.group(1) or found.group(2)


def upward_imports(name: str, lines: list[str]) -> Iterator[str]:
    """Imports of the packages that are built on the extensions."""
    for number, module in imports(lines):
        is_above = module.startswith("kbroker.") and not module.startswith("kbroker._ext")
        if is_above and module not in GROUND:
            yield f"{name}:{number}: imports {module}, which is above the extensions"


def imports_between(name: str, folder: str, lines: list[str]) -> Iterator[str]:
    """Imports of folders of ``_ext`` that are above ``folder`` in ``LAYERS``."""
    above = LAYERS[LAYERS.index(folder) + 1 :] if folder in LAYERS else ()
    for number, module in imports(lines):
        if module.startswith("kbroker._ext.") and module.split(".")[2] in above:
            yield f"{name}:{number}: imports {module}, which is above {folder}"


def repeated_numbers(name: str, lines: list[str], codes: dict[str, int]) -> Iterator[str]:
    """Constants with the name of an error code or an API key, which have modules of their own."""
    if name.endswith(GENERATED):
        return
    for number, line in enumerate(lines, 1):
        found = CONSTANT.match(line)
        if found is None:
            continue
        spelled = found.group(1)
        if spelled.removeprefix("ERROR_") in codes:
            yield f"{name}:{number}: {spelled} is repeated: cimport it from error_codes"
        elif spelled.startswith("API_"):
            yield f"{name}:{number}: {spelled} is repeated: cimport it from api_keys"


def grown_by_hand(name: str, stem: str, lines: list[str]) -> Iterator[str]:
    """Calls of ``realloc``, which belong in ``growing``."""
    for number, line in enumerate(lines, 1):
        if stem != "growing" and re.search(r"\b(?:PyMem_R|r)ealloc\(", line):
            yield f"{name}:{number}: grows an array by hand: use growing.grow or growing.resize"


def unused(sources: dict[str, list[str]], python: list[str]) -> Iterator[str]:
    """Extensions of the product that nothing of it imports: what serves ``perf/`` alone stands in
    ``ext/perf``, and is in no wheel.

    sources: by path below ``ext``. python: the text of every file that may import one.
    """
    used = {
        module.rpartition(".")[2]
        for source, lines in sources.items()
        for _, module in imports(lines)
        if source.startswith("kbroker/") and module.startswith("kbroker._ext.")
    }
    text = "\n".join(python)
    for source in sources:
        stem = Path(source).stem
        if not (source.startswith("kbroker/") and source.endswith(".pyx")) or stem in used:
            continue
        if not re.search(rf"_ext\b[\w.]*(?:\.| import [^)]*?\b){stem}\b", text):
            yield f"ext/{source}:1: nothing in kbroker imports it"


def findings(root: Path, codes: dict[str, int]) -> Iterator[str]:
    """The problems of the Cython sources of the project at ``root``.

    codes: of the errors, by name.
    """
    folder = root / "ext"
    sources = {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8").splitlines()
        for path in sorted(folder.rglob("*.p[yx]*"))
        if path.suffix in (".pyx", ".pxd")
    }
    for source, lines in sources.items():
        name = f"ext/{source}"
        stem = Path(source).stem
        yield from sizes(name, lines)
        yield from imports_between(name, Path(source).parent.name, lines)
        yield from upward_imports(name, lines)
        yield from repeated_numbers(name, lines, codes)
        yield from grown_by_hand(name, stem, lines)
    python = [path.read_text(encoding="utf-8") for path in (root / "kbroker").rglob("*.py")]
    yield from unused(sources, python)
