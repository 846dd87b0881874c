"""Names of the standard library that a class of ours would take from its base are found, also those
of another Python than the one that looks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tools.overshadowed import findings, known_names, private_names, supported_versions

pytestmark = pytest.mark.unit

OURS = """
import threading
from threading import Thread as T
from logging import Handler


class One(T):
    def __init__(self):
        self._mine, self._is_stopped = 1, False

    def _handle(self): ...


class Two(One):
    _target: int

    class Inner(Handler):
        _name = "x"


class Apart:
    def _handle(self): ...
"""


def found_in(root: Path, source: str) -> list[str]:
    (root / "kbroker").mkdir()
    (root / "kbroker" / "one.py").write_text(source)
    return list(findings(root, known_names(), supported_versions()))


def test_names_of_bases_are_found_for_every_python(tmp_path: Path) -> None:
    found = found_in(tmp_path, OURS)

    places = [line.partition(" is a name of ")[0].removeprefix("kbroker/one.py:") for line in found]
    assert places == ["11: _handle", "9: _is_stopped", "15: _target", "18: _name"]
    assert "threading.Thread of Python 3.13" in found[0]
    assert "threading.Thread of Python 3.12" in found[1]


def test_base_that_the_table_lacks_is_found(tmp_path: Path) -> None:
    source = "from calendar import TextCalendar\n\n\nclass One(TextCalendar): ...\n"

    (found,) = found_in(tmp_path, source)

    assert "no calendar.TextCalendar in the table" in found


def test_supported_python_that_the_table_lacks_is_found(tmp_path: Path) -> None:
    assert list(findings(tmp_path, known_names(), ["3.13", "3.99"])) == [
        "tools/private_names.json:1: run python3.99 tools/overshadowed.py"
    ]


def test_names_that_are_set_in_objects_are_known() -> None:
    names = private_names("threading.Thread")
    assert names is not None and "_target" in names and "__init__" not in names
