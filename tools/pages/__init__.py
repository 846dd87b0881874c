"""Checks of the pages: whatever they name exists, what they say about the state of kbroker is tied
to it, every page can be reached from README, and programs accept the examples for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tools.pages import examples, links, names, statements
from tools.pages.text import CHANGE_CHARS_MAX, Page, all_pages


def findings(root: Path) -> Iterator[str]:
    """The problems of all pages, each as ``file:line: what is wrong``."""
    pages = all_pages(root)
    known = names.Known(root)
    for page in pages:
        yield from names.findings(page, known)
        yield from statements.unknown_statements(page)
        yield from examples.findings(page)
    yield from statements.findings(pages)
    yield from links.findings(root, pages)
    yield from long_changes(next(page for page in pages if page.name == "CHANGELOG.md"))


def long_changes(page: Page) -> Iterator[str]:
    """Lines of the changelog that have more than one effect."""
    for line, text in enumerate(page.text.splitlines(), 1):
        if len(text) > CHANGE_CHARS_MAX:
            what = f"{len(text)} characters, at most {CHANGE_CHARS_MAX}: one effect a line"
            yield page.at(line, what)
