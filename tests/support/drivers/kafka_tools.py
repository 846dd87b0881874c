"""Apache Kafka's command-line tools, each run in a JVM of its own.

The classes that the first run with some jars loaded are kept beside them, and the next ones start
with these in half the CPU time (class data sharing). A JVM that cannot use what is kept, such as
one of another version, says nothing and loads its classes itself.
"""

from __future__ import annotations

import itertools
import os
import subprocess
from contextlib import suppress
from pathlib import Path

from support.drivers.java import JVM_OPTIONS

TIMEOUT_S = 60

_runs = itertools.count()


def run_tool(jars: Path, main: str, *arguments: str, stdin: str = "") -> str:
    """The output of the main class, which must exit with code 0."""
    kept = jars.parent / "loaded-classes.jsa"
    loaded = kept.with_name(f"{kept.stem}-{os.getpid()}-{next(_runs)}.jsa")
    sharing = (
        f"-XX:SharedArchiveFile={kept}" if kept.exists() else f"-XX:ArchiveClassesAtExit={loaded}"
    )
    command = ["java", *JVM_OPTIONS, sharing, "-Xlog:disable", "-cp", f"{jars}/*", main]
    done = subprocess.run(
        [*command, *arguments], input=stdin, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, f"{main}:\n{done.stdout}{done.stderr}"
    with suppress(FileNotFoundError):
        loaded.rename(kept)
    return done.stdout
