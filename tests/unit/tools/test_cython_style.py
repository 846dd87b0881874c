"""The lint of the Cython sources finds its targets."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tools.cython_style import findings

pytestmark = pytest.mark.unit

CODES = {"NOT_LEADER_OR_FOLLOWER": 6}
USER = "from kbroker._ext.good import thing\n"


def lint(root: Path, **sources: str) -> list[str]:
    """Findings in these sources (``name_pyx``), next to a module that Python uses."""
    folder = root / "ext" / "kbroker" / "_ext"
    folder.mkdir(parents=True)
    (root / "kbroker").mkdir()
    (root / "kbroker" / "user.py").write_text(USER)
    for name, text in {"good_pyx": "thing = 1\n", **sources}.items():
        path = folder / ".".join(name.rsplit("_", 1))
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return [found.removeprefix("ext/kbroker/_ext/") for found in findings(root, CODES)]


def test_good_sources_have_no_findings(tmp_path: Path) -> None:
    used = "cdef int other() except -1:\n    return 0\n"
    good = "from kbroker._ext.used cimport other\nfrom kbroker.errors import StorageError\n"
    assert lint(tmp_path, used_pyx=used, good_pyx=good) == []


def test_extension_that_nothing_imports_is_found(tmp_path: Path) -> None:
    assert lint(tmp_path, dead_pyx="x = 1\n") == ["dead.pyx:1: nothing in kbroker imports it"]


def test_extension_that_only_benchmarks_import_is_found_unless_it_is_theirs(tmp_path: Path) -> None:
    (tmp_path / "perf").mkdir()
    (tmp_path / "perf" / "user.py").write_text("from kbroker._ext.loads import Load\n")
    theirs = tmp_path / "ext" / "perf" / "loads.pyx"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("cdef enum:\n    API_FETCH = 1\n")

    assert lint(tmp_path, loads_pyx="x = 1\n") == [
        "ext/perf/loads.pyx:2: API_FETCH is repeated: cimport it from api_keys",
        "loads.pyx:1: nothing in kbroker imports it",
    ]


def test_import_of_what_is_above_is_found(tmp_path: Path) -> None:
    (found,) = lint(tmp_path, good_pyx="def f():\n    from kbroker.storage import log_dir\n")
    assert found == "good.pyx:2: imports kbroker.storage, which is above the extensions"


def test_import_of_a_folder_above_is_found(tmp_path: Path) -> None:
    low = "from kbroker._ext.base.lower cimport a\nfrom kbroker._ext.network.high cimport b\n"
    high = "from kbroker._ext.base.low cimport c\n"
    sources = {"base/low_pyx": low, "base/lower_pyx": "a = 1\n", "network/high_pyx": high}

    (found,) = lint(tmp_path, **sources)

    assert found == "base/low.pyx:2: imports kbroker._ext.network.high, which is above base"


@pytest.mark.parametrize(("lines", "is_found"), [(70, False), (71, True)])
def test_long_function_is_found(tmp_path: Path, lines: int, is_found: bool) -> None:
    signature = "cdef int long_one(\n    int a\n) except -1:\n"
    body = "    a += 1\n" * (lines - 3)
    found = lint(tmp_path, good_pyx=f"{signature}{body}\n\ndef after():\n    pass\n")
    expected = [f"good.pyx:1: long_one has {lines} lines, at most 70"] if is_found else []
    assert found == expected


@pytest.mark.parametrize(
    ("spelled", "source"),
    [
        ("NOT_LEADER_OR_FOLLOWER", "error_codes"),
        ("ERROR_NOT_LEADER_OR_FOLLOWER", "error_codes"),
        ("API_FETCH", "api_keys"),
    ],
)
def test_number_that_has_a_place_of_its_own_is_found(
    tmp_path: Path, spelled: str, source: str
) -> None:
    """The number was correct in eleven modules, in two spellings, until one was changed."""
    text = f"cdef enum:\n    {spelled} = 6\n"
    (found,) = lint(tmp_path / "bad", good_pyx=text)
    assert found == f"good.pyx:2: {spelled} is repeated: cimport it from {source}"
    assert lint(tmp_path / "right", **{f"{source}_pxd": text}) == []


def test_array_that_is_grown_by_hand_is_found(tmp_path: Path) -> None:
    """Each one had its own factor, its own first size, and its own way to fail."""
    text = "cdef int more() except -1:\n    grown = realloc(items, 8)\n"
    (found,) = lint(tmp_path / "bad", good_pyx=text)
    assert found == "good.pyx:2: grows an array by hand: use growing.grow or growing.resize"
    assert lint(tmp_path / "right", growing_pxd=text) == []
