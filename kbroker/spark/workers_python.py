"""The interpreter that a session starts for its Python workers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkContext

# Long enough for an interpreter to start on a busy machine.
_REPLY_TIMEOUT_S = 60.0


def use_this_python(context: SparkContext) -> None:
    """Let a local session start this interpreter if its default has no kbroker.

    Raises RuntimeError where the session is a cluster's.
    """
    taken = str(context.pythonExec)
    if _is_this(taken) or _has_kbroker(taken):
        return
    if not str(context.master).startswith("local"):
        raise RuntimeError(
            f"the session starts {taken} for its Python workers, where kbroker is not installed. "
            "Before the session is created, set PYSPARK_PYTHON or spark.pyspark.python to an "
            "interpreter that has kbroker on every machine"
        )
    context.pythonExec = sys.executable


def _is_this(python: str) -> bool:
    path = shutil.which(python)
    return path is not None and os.path.abspath(path) == os.path.abspath(sys.executable)


def _has_kbroker(python: str) -> bool:
    """Whether an interpreter can import what its workers need."""
    try:
        done = subprocess.run(
            [python, "-c", "import kbroker.spark, pyspark"],
            capture_output=True,
            timeout=_REPLY_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
