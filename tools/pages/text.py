"""A page as the checks see it: prose without its code blocks, code spans, code blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

# Files beside docs/ that are pages, too. The samples are: their comments are read by everybody.
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "perf/README.md",
    "config/server.properties",
    "config/dev.properties",
)
# The texts of all messages: they are generated, and other tests compare them with the code.
GENERATED = {"docs/protocol.md"}
_BLOCK = re.compile(r"^[ ]*```(\w*)\n(.*?)^[ ]*```", re.M | re.S)
_SPAN = re.compile(r"`([^`\n]+)`")


# BOUND: characters of a line of the changelog, which has one effect.
CHANGE_CHARS_MAX = 200


class Block(NamedTuple):
    """A code block. line: of its first line of code."""

    language: str
    text: str
    line: int


class Page:
    """A page and its name in the repository."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text

    @cached_property
    def prose(self) -> str:
        """The text with its code blocks blanked; offsets and lines stay as they are."""
        return _BLOCK.sub(lambda block: re.sub(r"[^\n]", " ", block[0]), self.text)

    @cached_property
    def blocks(self) -> list[Block]:
        """Its code blocks."""
        return [
            Block(found[1], found[2], self.line(found.start(2)))
            for found in _BLOCK.finditer(self.text)
        ]

    def spans(self) -> Iterator[tuple[str, int]]:
        """The code spans of the prose, each with its line."""
        for found in _SPAN.finditer(self.prose):
            yield found[1], self.line(found.start())

    def line(self, offset: int) -> int:
        """The line of an offset."""
        return self.text.count("\n", 0, offset) + 1

    def at(self, line: int, what: str) -> str:
        """A finding."""
        return f"{self.name}:{line}: {what}"


def all_pages(root: Path) -> list[Page]:
    """Every page of the repository but those that only consist of tables of the code."""
    paths = [root / name for name in PAGES]
    paths += sorted((root / "docs").rglob("*.md")) + sorted((root / "perf" / "notes").glob("*.md"))
    pages = [
        Page(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")) for path in paths
    ]
    return [page for page in pages if page.name not in GENERATED]
