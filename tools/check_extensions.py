#!/usr/bin/env python3
"""Imports the compiled module of every Cython source; exits with 1 when one is missing, stale or
broken.

A module that failed to build must fail the build, not turn up later as a slow or absent twin.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "ext"
sys.path.insert(0, str(ROOT))


def problem_of(source: Path) -> str | None:
    """The reason why the module of ``source`` cannot be used; None if it can."""
    name = ".".join(source.relative_to(SOURCES).with_suffix("").parts)
    try:
        module = importlib.import_module(name)
    except Exception as error:
        return f"{name}: {type(error).__name__}: {error}"
    path = module.__file__ or ""
    if not path.endswith(tuple(EXTENSION_SUFFIXES)):
        return f"{name}: imported from {path}, which is not compiled"
    if Path(path).stat().st_mtime < source.stat().st_mtime:
        return f"{name}: older than its source, run make build"
    return None


def main() -> int:
    """Check every extension."""
    sources = sorted(SOURCES.rglob("*.pyx"))
    problems = [problem for source in sources if (problem := problem_of(source))]
    if not sources:
        problems.append(f"no sources below {SOURCES}")
    print("\n".join(problems) or f"extensions: all {len(sources)} import")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
