#!/usr/bin/env python3
"""Checks what ruff and import-linter cannot: sizes, who imports what, bare sleeps, names and
folders of tests, names that are vague, unused or other people's, the Cython sources, the pages.

Prints one line for each finding and exits with 1 if there is any.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from kbroker.errors import ErrorCode
from tools import cython_style, overshadowed, pages, unused_names

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("kbroker", "perf", "tests", "tools")
FILE_LINES_MAX = 600
TEST_FILE_LINES_MAX = 800
# Longer files: no number in here may grow, and unneeded ones are removed.
LONG_FILES: dict[str, int] = {}
FUNCTION_LINES_MAX = 70

# Variables that are called so tell a reader nothing of what they are. The number may only shrink.
VAGUE_NAMES = frozenset({"found", "told"})
VAGUE_NAMES_MAX = 55

# Third-party package -> the folders that may import it.
IMPORTED_BY = {
    "zmq": ("kbroker/ipc",),
    "posix_ipc": ("kbroker/ipc/named_memory.py",),
    "numpy": ("kbroker/cli/local", "kbroker/client"),
    "kazoo": ("kbroker/metastore", "kbroker/client/zookeeper", "kbroker/legacy", "kbroker/adopt"),
    "puresasl": ("kbroker/metastore",),
    "cryptography": ("kbroker/security",),
    "jwt": ("kbroker/security/sasl",),
    "gssapi": ("kbroker/security/sasl",),
    "pyarrow": (
        "kbroker/client/batches/arrow",
        "kbroker/client/consumer/arrow_sets",
        "kbroker/spark",
    ),
    "pandas": ("kbroker/spark",),
    "deltalake": ("kbroker/spark",),
    "pyiceberg": ("kbroker/spark",),
    "pyspark": ("kbroker/spark",),
    "fastavro": ("kbroker/schemas",),
    "google.protobuf": ("kbroker/schemas",),
    "starlette": ("kbroker/console",),
    "uvicorn": ("kbroker/console",),
}

# A class of the product has its name alone. These are there twice: Kafka calls both so, or programs
# import both.
KNOWN_TWICE = frozenset(
    {
        "Broker",
        "Cluster",
        "ClusterState",
        "DataLossError",
        "FetchRequest",
        "FetchResponse",
        "OffsetAndMetadata",
        "OffsetCommitRequest",
        "OffsetCommitResponse",
        "OffsetFetchRequest",
        "OffsetFetchResponse",
        "Partition",
        "PartitionState",
        "Record",
        "TopicState",
        "TransactionState",
    }
)


def findings(path: Path) -> Iterator[str]:
    """The problems of one file."""
    name = path.relative_to(ROOT).as_posix()
    text = path.read_text(encoding="utf-8")
    is_test = name.startswith("tests/") and path.name.startswith("test_")
    for node in ast.walk(ast.parse(text, name)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                what = f"{node.name} has {length} lines, at most {FUNCTION_LINES_MAX}"
                yield f"{name}:{node.lineno}: {what}"
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from misplaced_imports(name, node)
        elif is_test and isinstance(node, ast.Call) and ast.unparse(node.func) == "time.sleep":
            yield f"{name}:{node.lineno}: a bare sleep; wait for what is meant with wait_until"


def long_files(root: Path, allowed: Mapping[str, int]) -> Iterator[str]:
    """Files that are too long, and entries of ``allowed`` that are no longer needed."""
    long: set[str] = set()
    for path in sources(root):
        name = path.relative_to(root).as_posix()
        lines = path.read_text(encoding="utf-8").count("\n")
        usual = TEST_FILE_LINES_MAX if name.startswith("tests/") else FILE_LINES_MAX
        if lines > usual:
            long.add(name)
        most = allowed.get(name, usual)
        if lines > most:
            yield f"{name}:1: {lines} lines, at most {most}"
    for name in sorted(allowed.keys() - long):
        yield f"{name}:1: not too long any more: take it off LONG_FILES"


def sources(root: Path) -> Iterator[Path]:
    """All hand-written sources."""
    for folder in FOLDERS:
        yield from sorted((root / folder).rglob("*.py"))
    for ending in ("*.pyx", "*.pxd", "*.h"):
        yield from sorted((root / "ext").rglob(ending))


def same_names(root: Path) -> Iterator[str]:
    """Test files with the same name: pytest runs one of them only, or none."""
    first: dict[str, str] = {}
    for path in sorted((root / "tests").rglob("test_*.py")):
        name = path.relative_to(root).as_posix()
        other = first.setdefault(path.name, name)
        if other != name:
            yield f"{name}:1: has the name of {other}"


def shared_elsewhere(root: Path) -> Iterator[str]:
    """Imports of one folder of tests from another one, and modules of ``support`` in no room."""
    folders = {path.name for path in (root / "tests").iterdir() if path.is_dir()} - {"support"}
    for path in sorted((root / "tests").rglob("*.py")):
        name = path.relative_to(root).as_posix()
        room = name.split("/")[1]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), name)):
            for module in imported_modules(node):
                other = module.removeprefix("tests.").partition(".")[0]
                if other in folders - {room}:
                    yield f"{name}:{node.lineno}: imports {module}; what is shared is in support"
    for path in sorted((root / "tests" / "support").glob("*.py")):
        yield f"tests/support/{path.name}:1: belongs into a folder of tests/support"


def same_classes(root: Path, folders: Sequence[str], allowed: Collection[str]) -> Iterator[str]:
    """Classes of these packages that have the same name, and entries of ``allowed`` that are no
    longer needed.
    """
    places: dict[str, list[str]] = {}
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef):
                    place = f"{path.relative_to(root).as_posix()}:{node.lineno}"
                    places.setdefault(node.name, []).append(place)
    for name, (first, *others) in places.items():
        if name not in allowed:
            yield from (f"{place}: class {name} is also in {first}" for place in others)
    for name in sorted(allowed):
        if len(places.get(name, ())) < 2:
            yield f"{folders[0]}:1: {name} is there once: take it off KNOWN_TWICE"


def vague_names(root: Path, most: int) -> Iterator[str]:
    """Variables and arguments of the product with a name of ``VAGUE_NAMES``, if they are more than
    ``most``.
    """
    places = []
    for path in sorted((root / "kbroker").rglob("*.py")):
        name = path.relative_to(root).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), name)):
            if isinstance(node, ast.arg):
                bound = node.arg
            elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
                bound = node.id if isinstance(node, ast.Name) else node.attr
            else:
                continue
            if bound in VAGUE_NAMES:
                places.append(f"{name}:{node.lineno}: {bound}: name it for what it is")
    if len(places) > most:
        yield from places


def imported_modules(node: ast.AST) -> list[str]:
    """The modules of an import, nothing for other statements."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and not node.level:
        return [node.module or ""]
    return []


def misplaced_imports(name: str, node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """Imports of a package that belong elsewhere."""
    if not name.startswith("kbroker/"):
        return
    for module in imported_modules(node):
        package = module.partition(".")[0]
        places = IMPORTED_BY.get(package)
        if places is not None and not name.startswith(places):
            yield f"{name}:{node.lineno}: imports {package}, which belongs into {', '.join(places)}"


def main() -> int:
    """Check every source of the project."""
    found = [
        finding
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for finding in findings(path)
    ]
    found += long_files(ROOT, LONG_FILES)
    found += same_names(ROOT)
    found += shared_elsewhere(ROOT)
    found += same_classes(ROOT, ("kbroker",), KNOWN_TWICE)
    found += vague_names(ROOT, VAGUE_NAMES_MAX)
    found += overshadowed.findings(
        ROOT, overshadowed.known_names(), overshadowed.supported_versions()
    )
    codes = {code.name: int(code) for code in ErrorCode if code != ErrorCode.NONE}
    found += cython_style.findings(ROOT, codes)
    found += pages.findings(ROOT)
    found += unused_names.findings(ROOT)
    print("\n".join(found) or "style: nothing found")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
