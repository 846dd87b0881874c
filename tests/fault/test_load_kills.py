"""kill -9 of a load at every named point, for every kind of destination, without Spark or a broker.

The same with Spark and a broker is in ``tests/spark``; what counts is looked at in the plain
directory by pyarrow, as any other reader of it would.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from doubles.load_source import MadeUp, expected, rows_in

from kbroker.spark.load import points

pytestmark = pytest.mark.fault

ENDS = '{"a": [900, 40], "b": [300]}'
SOURCE = MadeUp.of({"a": [900, 40], "b": [300]})


def crash(root: Path, point: str, kind: str = "dir") -> int:
    """A load in a process group of its own that dies at ``point``; its exit code."""
    command = [sys.executable, "-m", "doubles.load_source", str(root), ENDS, kind]
    tests = Path(__file__).resolve().parents[1]
    environment = os.environ | {
        points.VARIABLE: point,
        "PYTHONPATH": os.pathsep.join([str(tests), str(tests.parent)]),
    }
    return subprocess.run(command, env=environment, start_new_session=True, check=False).returncode


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("point", points.POINTS)
def test_kill_at_a_point_leaves_each_record_once_after_the_next_run(
    tmp_path: Path, point: str, nth: int
) -> None:
    died = crash(tmp_path, f"{point}:{nth}")
    survived = crash(tmp_path, "")

    # "recovered" is passed once in a run.
    assert died == (0 if (point, nth) == ("recovered", 2) else -signal.SIGKILL)
    assert survived == 0
    assert rows_in(tmp_path) == expected(SOURCE)
    assert not list((tmp_path / "_kbroker/staging").iterdir())
