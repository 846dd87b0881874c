"""A stream's driver is killed inside the exactly-once sink.

pytest tests/spark/test_spark_stream_kills.py
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.clients.topics import Record, create_topic, fill, read_topic
from support.spark.stream_kills import POINTS, ROWS_PER_BATCH

from kbroker.testing import Broker

pytestmark = [pytest.mark.integration, pytest.mark.slow]
# Only catches hangs: a session of its own takes Spark a minute and more on a busy machine.
SESSIONS = pytest.mark.timeout(3600)

ROOT = Path(__file__).resolve().parents[2]
PATHS = os.pathsep.join([str(ROOT), str(ROOT / "tests")])


def run(*arguments: str) -> int:
    """A driver in its own process group; returns its exit code."""
    return subprocess.run(
        [sys.executable, "-m", "support.spark.stream_kills", *arguments],
        env=os.environ | {"PYTHONPATH": PATHS, "SPARK_LOCAL_IP": "127.0.0.1"},
        start_new_session=True,
        check=False,
    ).returncode


@SESSIONS
def test_driver_killed_at_each_point_of_the_sink_leaves_each_row_once(
    kbroker_broker: Broker, topic: str, tmp_path: Path
) -> None:
    """One query: each driver repeats the previous one's work, and dies one point further on."""
    source, target = f"{topic}-a", f"{topic}-b"
    create_topic(kbroker_broker.bootstrap, source, 2)
    create_topic(kbroker_broker.bootstrap, target, 2)
    count = ROWS_PER_BATCH * (len(POINTS) + 2)
    values = [b"%04d" % n for n in range(count)]
    fill(kbroker_broker.bootstrap, source, [Record(None, v, n % 2) for n, v in enumerate(values)])
    where = (kbroker_broker.bootstrap, source, target, str(tmp_path))

    died = [run(point, *where) for point in POINTS]
    survived = run("none", *where)

    assert died == [-signal.SIGKILL] * len(POINTS)
    assert survived == 0
    found = read_topic(kbroker_broker.bootstrap, target, isolation="read_committed")
    assert sorted(one.value for one in found) == values
