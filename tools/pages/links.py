"""README names every page for users, and leads to every other page by links of pages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools.pages.text import Page

_LINK = re.compile(r"\]\((?!https?:)([^)#\s]+\.md)(?:#[^)]*)?\)")
# Pages of docs/ that others lead to: tables of settings, and what is for who changes kbroker.
_BY_OTHERS = re.compile(r"docs/(?:[a-z-]+-settings|compaction|log-dir-moves|extending)\.md")


def findings(root: Path, pages: Sequence[Page]) -> Iterator[str]:
    """Pages that nobody finds who begins with README."""
    by_name = {page.name: page for page in pages}
    direct = set(_links(root, by_name["README.md"]))
    reached: set[str] = set()
    open_names = {"README.md"}
    while open_names:
        name = open_names.pop()
        reached.add(name)
        if name in by_name:
            open_names |= set(_links(root, by_name[name])) - reached
    for name, page in by_name.items():
        if not name.endswith(".md"):
            continue
        if name not in reached:
            yield page.at(1, "no link from README leads here")
        elif re.fullmatch(r"docs/[^/]+", name) and not _BY_OTHERS.match(name):
            if name not in direct:
                yield page.at(1, "README has no link to this page for users")


def _links(root: Path, page: Page) -> Iterator[str]:
    """The pages that a page has links to."""
    for link in _LINK.findall(page.prose):
        target = ((root / page.name).parent / link).resolve()
        if target.is_relative_to(root):
            yield target.relative_to(root).as_posix()
