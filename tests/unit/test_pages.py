"""Links, commands and make targets of the pages, and the file map; tools/pages has the rest."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from kbroker.metastore.kept_session import FILE_NAME as SESSION_NAME
from kbroker.storage.formats import (
    BOOT_ID_NAME,
    CREATION_NOTE,
    INCARNATION_NAME,
    SUSPECT_PARTITIONS,
)

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "perf/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
FILE_MAP = (ROOT / "docs" / "architecture" / "file-map.md").read_text(encoding="utf-8")
# What is called as a command could be, and is a file of a data directory.
FILES = {BOOT_ID_NAME, CREATION_NOTE, INCARNATION_NAME, SUSPECT_PARTITIONS, SESSION_NAME}


def each_page(function):
    return pytest.mark.parametrize(
        "page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix()
    )(function)


def heading_anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as generated from the text."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@each_page
def test_link_leads_somewhere(page):
    prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    links = re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", prose)

    for file, anchor in links:
        target = page if not file else page.parent / file
        assert target.exists(), file
        assert not anchor or anchor in heading_anchors(target), f"{file}#{anchor}"


@each_page
def test_command_and_target_exist(page):
    text = page.read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))

    commands = set(re.findall(r"(?:^|`)(kbroker-[a-z-]+[a-z])(?= |`|$)", text, re.M))
    assert commands <= {*project["scripts"], *FILES}
    assert set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.M)) <= targets


def test_file_map_has_every_package_and_extension():
    packages = [path.parent.name for path in (ROOT / "kbroker").glob("*/__init__.py")]
    extensions = [path.stem for path in (ROOT / "ext").rglob("*.pyx")]

    assert [name for name in packages if f"| `kbroker/{name}` |" not in FILE_MAP] == []
    assert [name for name in extensions if f"`{name}`" not in FILE_MAP] == []
