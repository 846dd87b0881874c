"""The lint of declarations finds those that nothing names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tools.unused_names import findings

pytestmark = pytest.mark.unit

MODULE = "kbroker/place.py"


def lint(
    root: Path, module: str, others: Mapping[str, str] = {}, allowed: Mapping[str, str] = {}
) -> list[str]:
    """Findings where ``module`` is one of the product. others: texts by path."""
    for name, text in {MODULE: module, **others}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return list(findings(root, allowed))


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("def lonely():\n    pass\n", "lonely"),
        ("LONELY = 1\n", "LONELY"),
        ("LONELY: int = 1\n", "LONELY"),
        ("class Lonely:\n    pass\n", "Lonely"),
        ("if True:\n    LONELY = 1\n", "LONELY"),
    ],
    ids=["function", "constant", "annotated", "class", "conditional"],
)
def test_declaration_that_nothing_names_is_found(tmp_path: Path, module: str, name: str) -> None:
    line = 2 if module.startswith("if") else 1
    assert lint(tmp_path, module) == [f"{MODULE}:{line}: nothing names {name}"]


def test_members_of_a_class_are_declarations(tmp_path: Path) -> None:
    module = "class Used:\n    field: int\n    def method(self): ...\n\nUsed()\n"
    assert lint(tmp_path, module) == [
        f"{MODULE}:2: nothing names field",
        f"{MODULE}:3: nothing names method",
    ]


def test_two_declarations_of_a_name_are_no_use_of_it(tmp_path: Path) -> None:
    text = "def lonely(): ...\n"
    assert len(lint(tmp_path, text, {"kbroker/other.py": text})) == 2


def test_face_of_an_extension_is_a_declaration(tmp_path: Path) -> None:
    others = {
        "kbroker/_ext/log.pyi": "def raise_now(now_ms: int) -> None: ...\n",
        "ext/kbroker/_ext/log.pyx": "def raise_now(int64_t now_ms) -> None:\n    pass\n",
    }
    assert lint(tmp_path, "", others) == ["kbroker/_ext/log.pyi:1: nothing names raise_now"]


def test_what_a_test_or_a_text_names_is_in_use(tmp_path: Path) -> None:
    module = "def called(): ...\n\ndef by_name(): ...\n"
    user = "from kbroker.place import called\nNAME = 'by_name'\n"
    assert lint(tmp_path, module, {"tests/test_place.py": user}) == []


def test_what_is_registered_or_looked_up_by_name_is_in_use(tmp_path: Path) -> None:
    module = (
        "import atexit\n@atexit.register\ndef at_end(): ...\n"
        "def _take_join(): ...\n"
        'getattr(atexit, f"_take_{1}")\n'
    )
    assert lint(tmp_path, module) == []


def test_exception_that_is_not_needed_is_found(tmp_path: Path) -> None:
    allowed = {"theirs": "a library", "gone": "nobody"}
    assert lint(tmp_path, "def theirs(): ...\n", allowed=allowed) == [
        "tools/unused_names.py:1: gone is in use or gone: take it off CALLED_BY_OTHERS"
    ]
