"""The style lint finds files that are too long, exemptions that are not needed any more, and tests
of one name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tools.check_style import (
    FILE_LINES_MAX,
    TEST_FILE_LINES_MAX,
    long_files,
    same_classes,
    same_names,
    shared_elsewhere,
    vague_names,
)

pytestmark = pytest.mark.unit


def write(root: Path, name: str, lines: int) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x\n" * lines)


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("kbroker/one.py", FILE_LINES_MAX),
        ("ext/kbroker/_ext/one.pyx", FILE_LINES_MAX),
        ("ext/kbroker/_ext/one.pxd", FILE_LINES_MAX),
        ("ext/kbroker/_ext/include/one.h", FILE_LINES_MAX),
        ("tests/unit/one.py", TEST_FILE_LINES_MAX),
    ],
)
def test_long_file_is_found(tmp_path: Path, name: str, most: int) -> None:
    write(tmp_path, name, most)
    assert list(long_files(tmp_path, {})) == []
    write(tmp_path, name, most + 1)
    assert list(long_files(tmp_path, {})) == [f"{name}:1: {most + 1} lines, at most {most}"]


def test_file_that_may_be_long_may_not_grow(tmp_path: Path) -> None:
    write(tmp_path, "kbroker/one.py", 700)
    assert list(long_files(tmp_path, {"kbroker/one.py": 700})) == []
    (found,) = long_files(tmp_path, {"kbroker/one.py": 699})
    assert found.endswith("700 lines, at most 699")


@pytest.mark.parametrize("lines", [0, FILE_LINES_MAX])
def test_permission_that_is_not_needed_is_found(tmp_path: Path, lines: int) -> None:
    if lines:
        write(tmp_path, "kbroker/one.py", lines)
    (found,) = long_files(tmp_path, {"kbroker/one.py": 700})
    assert "take it off LONG_FILES" in found


def test_second_test_file_of_a_name_is_found(tmp_path: Path) -> None:
    for name in ("unit/a/test_one.py", "unit/b/test_two.py", "unit/a/conftest.py", "conftest.py"):
        write(tmp_path, f"tests/{name}", 1)
    assert list(same_names(tmp_path)) == []

    write(tmp_path, "tests/wire/test_one.py", 1)

    assert list(same_names(tmp_path)) == [
        "tests/wire/test_one.py:1: has the name of tests/unit/a/test_one.py"
    ]


def test_import_from_another_folder_of_tests_and_a_helper_in_no_room_are_found(
    tmp_path: Path,
) -> None:
    for name, text in (
        ("unit/test_one.py", "from support.rooms.shared import x\nfrom unit.helpers import y\n"),
        ("unit/helpers.py", "import unittest\nfrom . import wire\n"),
        ("wire/test_two.py", "def test():\n    from unit.helpers import y\n"),
        ("wire/test_three.py", "import tests.unit.helpers\n"),
        ("support/rooms/shared.py", "from wire import samples\n"),
        ("support/flat.py", "x = 1\n"),
    ):
        path = tmp_path / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    assert list(shared_elsewhere(tmp_path)) == [
        "tests/support/rooms/shared.py:1: imports wire; what is shared is in support",
        "tests/wire/test_three.py:1: imports tests.unit.helpers; what is shared is in support",
        "tests/wire/test_two.py:2: imports unit.helpers; what is shared is in support",
        "tests/support/flat.py:1: belongs into a folder of tests/support",
    ]


def test_second_class_of_a_name_is_found_and_so_is_a_permission_without_one(tmp_path: Path) -> None:
    for name, text in (
        ("a/one.py", "class State:\n    class Inner: ...\n\n\nclass Known: ...\n"),
        ("a/room/two.py", "class Known: ...\n\n\nclass Inner: ...\n"),
        ("b/three.py", "class State: ...\n"),
        ("c/four.py", "class State: ...\n"),
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    found = list(same_classes(tmp_path, ("a", "b"), {"Known", "Gone"}))

    assert found == [
        "b/three.py:1: class State is also in a/one.py:1",
        "a:1: Gone is there once: take it off KNOWN_TWICE",
    ]


@pytest.mark.parametrize(
    "code",
    ["found = 1\n", "def f(told): ...\n", "class A:\n    told: int = 1\n", "for found in (): ...\n",
     "self.found = 1\n"],
)  # fmt: skip
def test_vague_names_above_the_ceiling_are_found(tmp_path: Path, code: str) -> None:
    (tmp_path / "kbroker").mkdir()
    (tmp_path / "kbroker" / "one.py").write_text(f"{code}print(found, told)\n")

    (vague,) = vague_names(tmp_path, 0)

    assert vague.endswith("name it for what it is")
    assert list(vague_names(tmp_path, 1)) == []
