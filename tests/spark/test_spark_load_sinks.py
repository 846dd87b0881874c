"""Loads as Spark jobs into tables and into a database, killed with their whole session.

What has been loaded is looked at by pyarrow, in the files that the table's own log names, and by
sqlite3. Slow: a session of Spark for each kill.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.clients.topics import create_topic
from support.spark.load_records import all_places, produce, value_of
from support.spark.load_source import rows_in_table

from kbroker.spark.load import points
from kbroker.testing import Broker

# The timeout only catches hangs: a session takes a minute and more on a busy machine.
pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
PATHS = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
COUNTS = [3000, 200]
# The driver's failpoints in the second commit: one is complete, another is not.
KILLS = ["task-writing", "task-staged:2", "staged:2", "commit-written:2", "committed:2"]


def run(bootstrap: str, topic: str, sink: str, dest: str, master: str, kill: str = "") -> int:
    """``kbroker-load run`` in its own process group; returns its exit code."""
    command = [sys.executable, "-m", "kbroker.spark.load.cli", "run", "--bootstrap", bootstrap]
    where = ["--topics", topic, "--sink", sink, "--dest", dest, "--commit-bytes", "20k"]
    more = {"PYTHONPATH": PATHS, "SPARK_LOCAL_IP": "127.0.0.1", points.VARIABLE: kill}
    return subprocess.run(
        [*command, *where, "--master", master],
        env=os.environ | more,
        start_new_session=True,
        check=False,
    ).returncode


def kill_and_go_on(bootstrap: str, topic: str, sink: str, dest: str, kill: str) -> None:
    """Driver and JVM die together; the next run, in its own session, loads the rest."""
    died = run(bootstrap, topic, sink, dest, "local[2]", kill)
    survived = run(bootstrap, topic, sink, dest, "local[2]")

    # A worker is in its own process group: Spark fails the job when its task has died.
    assert died == (1 if kill.startswith("task-") else -signal.SIGKILL)
    assert survived == 0


def places_in_table(root: Path) -> Counter[tuple[int, int]]:
    """All (partition, offset) pairs of the Delta table, read from its JSON log alone."""
    live: dict[str, None] = {}
    for version in sorted(root.glob("_delta_log/*.json")):
        for line in version.read_text().splitlines():
            action = json.loads(line)
            if "add" in action:
                live[action["add"]["path"]] = None
            elif "remove" in action:
                del live[action["remove"]["path"]]
    found: Counter[tuple[int, int]] = Counter()
    for path in live:
        for row in pq.ParquetFile(root / path).read(["partition", "offset", "value"]).to_pylist():
            assert row["value"] == value_of(row["partition"], row["offset"]), path
            found[row["partition"], row["offset"]] += 1
    return found


@pytest.mark.parametrize("kill", KILLS)
def test_killed_load_into_delta_leaves_each_record_once(
    kbroker_broker: Broker, topic: str, tmp_path: Path, kill: str
) -> None:
    pytest.importorskip("deltalake")
    create_topic(kbroker_broker.bootstrap, topic, 2)
    produce(kbroker_broker.bootstrap, topic, COUNTS)

    kill_and_go_on(kbroker_broker.bootstrap, topic, "delta", str(tmp_path), kill)

    assert places_in_table(tmp_path) == all_places(COUNTS)


@pytest.mark.parametrize("kill", KILLS)
def test_killed_load_into_iceberg_leaves_each_record_once(
    kbroker_broker: Broker, topic: str, tmp_path: Path, kill: str
) -> None:
    pytest.importorskip("pyiceberg")
    create_topic(kbroker_broker.bootstrap, topic, 2)
    produce(kbroker_broker.bootstrap, topic, COUNTS)

    kill_and_go_on(kbroker_broker.bootstrap, topic, "iceberg", str(tmp_path), kill)

    found = rows_in_table(tmp_path, "iceberg")
    assert {place[0] for place in found} == {topic}
    assert Counter({place[1:]: count for place, count in found.items()}) == all_places(COUNTS)


@pytest.mark.parametrize("kill", KILLS)
def test_killed_load_into_sqlite_leaves_each_record_once(
    kbroker_broker: Broker, topic: str, tmp_path: Path, kill: str
) -> None:
    create_topic(kbroker_broker.bootstrap, topic, 2)
    produce(kbroker_broker.bootstrap, topic, COUNTS)

    dest = tmp_path / "warehouse.db"
    kill_and_go_on(kbroker_broker.bootstrap, topic, "jdbc", f"sqlite:{dest}", kill)

    connection = sqlite3.connect(dest)
    rows = connection.execute('SELECT "partition", "offset", value FROM records').fetchall()
    offsets = connection.execute('SELECT "partition", "offset" FROM kbroker_offsets').fetchall()
    staged = connection.execute("SELECT count(*) FROM kbroker_staging_records").fetchone()
    connection.close()
    assert all(value == value_of(partition, offset) for partition, offset, value in rows)
    assert Counter((partition, offset) for partition, offset, _ in rows) == all_places(COUNTS)
    assert sorted(offsets) == list(enumerate(COUNTS))
    assert staged == (0,)
