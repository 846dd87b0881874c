"""Extensions for debugging or the sanitizers never pass for ordinary ones: a build of another kind
makes all of them again, although none is older than its source.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.unit

SETUP = Path(__file__).resolve().parents[3] / "setup.py"
MODULE = "kbroker/_ext/one.cpython-311-x86_64-linux-gnu.so"
BUILT = (MODULE, f"build/lib.linux/{MODULE}", "ext/kbroker/_ext/one.c")
OTHERS = "kbroker/_ext/of_others.cpython-311-x86_64-linux-gnu.so"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("ext/kbroker/_ext/one.pyx", *BUILT, OTHERS):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KBROKER_SKIP_EXTENSIONS", "1")
    for name in ("KBROKER_DEBUG", "KBROKER_SANITIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("setuptools.setup", lambda **keywords: None)
    return tmp_path


def start_build(tree: Path, monkeypatch: pytest.MonkeyPatch, **variables: str) -> set[str]:
    """What is left of the built files when a build with these variables starts."""
    with monkeypatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        functions: dict[str, Any] = runpy.run_path(str(SETUP))
    functions["remove_another_kind"]()
    assert (tree / OTHERS).exists()
    return {name for name in BUILT if (tree / name).exists()}


def test_build_of_the_same_kind_keeps_what_is_built(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert start_build(tree, monkeypatch) == set(BUILT)
    assert start_build(tree, monkeypatch) == set(BUILT)


def test_ordinary_build_after_the_sanitizers_makes_the_extensions_again(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = BUILT[2]
    assert start_build(tree, monkeypatch, KBROKER_SANITIZE="1") == {source}
    for name in BUILT:
        (tree / name).touch()
    assert start_build(tree, monkeypatch, KBROKER_SANITIZE="1") == set(BUILT)
    assert start_build(tree, monkeypatch) == {source}


def test_build_for_debugging_translates_the_sources_again_and_so_does_the_next(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checks of bounds are in the C sources."""
    assert start_build(tree, monkeypatch, KBROKER_DEBUG="1") == set()
    for name in BUILT:
        (tree / name).touch()
    assert start_build(tree, monkeypatch) == set()
