"""Loads as Spark jobs: killed tasks and drivers, two at once, a broker that restarts, a cluster.

What has been loaded is looked at in the plain directory by pyarrow. The part that is not slow takes
about a minute; all of it: ``pytest tests/spark/test_spark_load.py tests/fault/test_load_kills.py``.
"""

from __future__ import annotations

import functools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.clients.topics import create_topic
from support.spark.load_faults import Unreadable
from support.spark.load_records import all_places, places_in, produce
from support.spark.spark_cluster import cluster

from kbroker.spark.direct import SparkRunner, TaskError
from kbroker.spark.load import points
from kbroker.spark.load.commits import LostRaceError
from kbroker.spark.load.directory import Directory
from kbroker.spark.load.engine import Load, LoadSettings
from kbroker.spark.load.source import BrokerSource
from kbroker.testing import Broker, wait_until

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
PATHS = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
COUNTS = [3000, 200]
# Only catches hangs: a session of its own takes Spark a minute and more on a busy machine.
SESSIONS = pytest.mark.timeout(900)


def job(spark: Any, bootstrap: str, topic: str, root: Path, **settings: Any) -> Load:
    destination = Directory(root)
    destination.prepare()
    source = BrokerSource(bootstrap, {}, (topic,))
    return Load(source, destination, SparkRunner(spark), LoadSettings(load="test", **settings))


def command(bootstrap: str, topic: str, root: Path, *more: str) -> list[str]:
    where = ["--bootstrap", bootstrap, "--topics", topic, "--dest", str(root)]
    return [sys.executable, "-m", "kbroker.spark.load.cli", "run", *where, *more]


def environment(**more: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": PATHS, "SPARK_LOCAL_IP": "127.0.0.1", **more}


def run(*arguments: Any, **variables: str) -> int:
    """``kbroker-load run`` in its own process group; returns its exit code."""
    return subprocess.run(
        command(*arguments),
        env=environment(**variables),
        start_new_session=True,
        check=False,
    ).returncode


def test_load_by_spark_tasks_has_every_record_once(
    spark: Any, kbroker_broker: Broker, topic: str, tmp_path: Path
) -> None:
    create_topic(kbroker_broker.bootstrap, topic, 2)
    produce(kbroker_broker.bootstrap, topic, COUNTS)

    (made,) = job(spark, kbroker_broker.bootstrap, topic, tmp_path).catch_up()

    assert places_in(tmp_path, topic) == all_places(COUNTS)
    assert made.ends == {topic: {0: 3000, 1: 200}}
    frame = spark.read.parquet(str(tmp_path / "data"))
    assert frame.where(f"topic = '{topic}'").count() == 3200
    assert {"dt", "hr", "topic", "headers"} <= set(frame.columns)


def test_load_from_apache_kafka_has_every_record_once(
    spark: Any, kafka_broker: Any, topic: str, tmp_path: Path
) -> None:
    create_topic(kafka_broker.bootstrap, topic, 2)
    produce(kafka_broker.bootstrap, topic, COUNTS)

    job(spark, kafka_broker.bootstrap, topic, tmp_path, group=f"g-{topic}").catch_up()

    assert places_in(tmp_path, topic) == all_places(COUNTS)


@pytest.mark.slow
def test_mirror_from_apache_kafka_and_back_keeps_every_record(
    spark: Any, kafka_broker: Any, kbroker_broker: Broker, topic: str, tmp_path: Path
) -> None:
    from kbroker.spark.mirror.cli import mirror_once
    from kbroker.spark.mirror.partition_copy import MirrorWork

    brokers = [kafka_broker.bootstrap, kbroker_broker.bootstrap]
    produce_to, copy_to = brokers
    create_topic(produce_to, topic, 2)
    create_topic(copy_to, topic, 2)
    produce(produce_to, topic, COUNTS)

    runner = SparkRunner(spark)
    there = MirrorWork(f"there-{topic}", produce_to, {}, copy_to, {})
    copied = mirror_once(BrokerSource(produce_to, {}, (topic,)), runner, there)
    job(spark, copy_to, topic, tmp_path).catch_up()

    assert copied == 3200
    assert places_in(tmp_path, topic).keys() <= all_places([4000, 4000]).keys()
    assert sum(places_in(tmp_path, topic).values()) == 3200

    back = f"{topic}-back"
    create_topic(produce_to, back, 2)
    create_topic(copy_to, back, 2)
    produce(copy_to, back, COUNTS)
    work = MirrorWork(f"back-{topic}", copy_to, {}, produce_to, {})
    assert mirror_once(BrokerSource(copy_to, {}, (back,)), runner, work) == 3200


def run_faulty(kind: str, broker: Broker, topic: str, root: Path, *master: str) -> None:
    """In its own session: the shared one neither retries nor speculates."""
    arguments = [kind, broker.bootstrap, topic, str(root), *master]
    subprocess.run(
        [sys.executable, "-m", "support.spark.load_faults", *arguments],
        env=environment(),
        check=True,
    )


@pytest.mark.slow
@SESSIONS
def test_workers_that_die_mid_task_leave_each_record_once(
    kbroker_broker: Broker, topic: str, tmp_path: Path
) -> None:
    create_topic(kbroker_broker.bootstrap, topic, 2)
    produce(kbroker_broker.bootstrap, topic, COUNTS)

    run_faulty("kills", kbroker_broker, topic, tmp_path)

    assert len(list((tmp_path / "marks").iterdir())) == 2
    assert places_in(tmp_path / "lake", topic) == all_places(COUNTS)


IN_A_TASK = """
import os
from kbroker.spark.direct import SparkRunner, session

runner = SparkRunner(session("test", "local[1]"))
print(runner.run([[1]], lambda *_: [{"unix": os.environ.get("PYTHON_UNIX_DOMAIN_ENABLED")}], ""))
"""


@pytest.mark.slow
@SESSIONS
def test_session_of_a_command_reaches_its_workers_without_tcp() -> None:
    """Over TCP every task begins 40 ms late, in a worker that is used again."""
    found = subprocess.run(
        [sys.executable, "-c", IN_A_TASK], env=environment(), stdout=subprocess.PIPE, check=True
    )

    assert found.stdout.decode().strip().lower() == "[{'unix': 'true'}]"


@pytest.mark.slow
@SESSIONS
def test_load_that_is_terminated_leaves_no_process_not_even_a_dead_one(
    kbroker_broker: Broker, topic: str, tmp_path: Path
) -> None:
    """In a container no other process reaps what a program leaves behind."""
    create_topic(kbroker_broker.bootstrap, topic, 1)
    produce(kbroker_broker.bootstrap, topic, [50])
    process = subprocess.Popen(
        command(kbroker_broker.bootstrap, topic, tmp_path, "--follow", "--master", "local[1]"),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline().startswith("commit 1 ")
    started = psutil.Process(process.pid).children(recursive=True)

    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=120)

    assert process.returncode == 143
    # Spark's Python worker may write some output after that.
    assert "\nkbroker-load: stopped; everything that was committed is complete\n" in said
    assert started and not [one for one in started if one.is_running()]
    assert places_in(tmp_path, topic) == all_places([50])
    assert not list((tmp_path / "_kbroker/staging").iterdir())


def test_task_that_cannot_read_is_an_error_with_its_reason(
    spark: Any, kbroker_broker: Broker, topic: str, tmp_path: Path
) -> None:
    create_topic(kbroker_broker.bootstrap, topic, 1)
    produce(kbroker_broker.bootstrap, topic, [10])
    made = job(spark, kbroker_broker.bootstrap, topic, tmp_path)
    made._source = Unreadable(BrokerSource(kbroker_broker.bootstrap, {}, (topic,)))

    with pytest.raises(TaskError, match="ValueError: nothing to read"):
        made.catch_up()

    assert not list(tmp_path.glob("data/**/*.parquet"))


@pytest.mark.slow
@SESSIONS
@pytest.mark.parametrize("point", points.POINTS)
def test_killed_driver_leaves_each_record_once(
    kbroker_broker: Broker, topic: str, tmp_path: Path, point: str
) -> None:
    """The whole process group dies, driver and JVM; the next run is correct without Spark."""
    create_topic(kbroker_broker.bootstrap, topic, 2)
    produce(kbroker_broker.bootstrap, topic, COUNTS)
    where = (kbroker_broker.bootstrap, topic, tmp_path)

    died = run(*where, "--master", "local[2]", **{points.VARIABLE: point})
    survived = run(*where, "--master", "none")

    # A worker is in its own process group: Spark retries its task, and fails the job in the end.
    assert died == (1 if point.startswith("task-") else -signal.SIGKILL)
    assert survived == 0
    assert places_in(tmp_path, topic) == all_places(COUNTS)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_drivers_killed_at_random_leave_each_record_once(
    kbroker_broker: Broker, topic: str, tmp_path: Path
) -> None:
    """KBROKER_LOAD_ROUNDS kills (10), KBROKER_LOAD_SEED to repeat one."""
    seed = int(os.environ.get("KBROKER_LOAD_SEED", time.time_ns() % 10**6))
    print(f"KBROKER_LOAD_SEED={seed}")
    rng = random.Random(seed)
    create_topic(kbroker_broker.bootstrap, topic, 2)
    begun = time.monotonic()
    assert run(kbroker_broker.bootstrap, topic, tmp_path) == 0
    whole = time.monotonic() - begun  # here and now: kills shall fall into all of a run
    produced = 0
    for _ in range(int(os.environ.get("KBROKER_LOAD_ROUNDS", "10"))):
        produce(kbroker_broker.bootstrap, topic, [2000, 2000], first=produced)
        produced += 2000
        process = subprocess.Popen(
            command(kbroker_broker.bootstrap, topic, tmp_path, "--commit-bytes", "20k"),
            env=environment(),
            start_new_session=True,
        )
        try:
            process.wait(rng.uniform(0.3, 1.3) * whole)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        wait_until(functools.partial(_group_is_gone, process.pid), timeout=20)

    assert run(kbroker_broker.bootstrap, topic, tmp_path) == 0

    assert places_in(tmp_path, topic) == all_places([produced, produced])


def _group_is_gone(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.slow
def test_two_drivers_at_once_load_each_record_once(
    spark: Any, kbroker_broker: Broker, topic: str, tmp_path: Path
) -> None:
    """Without the lock, which other machines would not see: one of them wins each commit."""
    create_topic(kbroker_broker.bootstrap, topic, 2)
    produce(kbroker_broker.bootstrap, topic, COUNTS)
    lost: list[LostRaceError] = []

    def drive() -> None:
        made = job(spark, kbroker_broker.bootstrap, topic, tmp_path, commit_bytes=20_000)
        try:
            made.catch_up()
        except LostRaceError as err:
            lost.append(err)

    drivers = [threading.Thread(target=drive) for _ in range(2)]
    for one in drivers:
        one.start()
    for one in drivers:
        one.join()
    job(spark, kbroker_broker.bootstrap, topic, tmp_path).catch_up()

    assert places_in(tmp_path, topic) == all_places(COUNTS)


def test_progress_of_a_job_is_told_while_it_runs(spark: Any, tmp_path: Path) -> None:
    """The last task ends when the progress says that the others have."""
    calls: list[tuple[int, int]] = []
    mark = tmp_path / "mark"

    def note(done: int, count: int) -> None:
        calls.append((done, count))
        if done == 2:
            mark.touch()

    def work(task: Sequence[int], _: str) -> list[dict[str, Any]]:
        if task[0] == 3:
            wait_until(mark.exists, timeout=200)
        return [{"n": task[0]}]

    found = SparkRunner(spark, note).run([[1], [2], [3]], work, "test")

    assert found == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert (2, 3) in calls and calls[-1] == (0, 0)
    assert {count for _, count in calls[:-1]} == {3}


@pytest.mark.slow
@SESSIONS
def test_speculation_leaves_each_record_once(
    kbroker_broker: Broker, topic: str, tmp_path: Path
) -> None:
    """Two attempts at one range run at the same time, each on a host of its own."""
    create_topic(kbroker_broker.bootstrap, topic, 4)
    produce(kbroker_broker.bootstrap, topic, [4000, 40, 40, 40])

    with cluster(tmp_path, ["127.0.0.1", "127.0.0.2"], PYTHONPATH=PATHS) as master:
        run_faulty("slow", kbroker_broker, topic, tmp_path, master)

    assert sorted(path.name for path in (tmp_path / "marks").iterdir()) == ["0", "1"]
    assert places_in(tmp_path / "lake", topic) == all_places([4000, 40, 40, 40])


@pytest.mark.slow
def test_broker_that_restarts_mid_read_loses_nothing(
    spark: Any, topic: str, tmp_path: Path
) -> None:
    with Broker({"log.retention.ms": -1}) as broker:
        create_topic(broker.bootstrap, topic, 2)
        produce(broker.bootstrap, topic, [30_000, 30_000], codec="none")
        loading = job(spark, broker.bootstrap, topic, tmp_path, commit_bytes=300_000)
        failed: list[BaseException] = []

        def drive() -> None:
            try:
                loading.catch_up()
            except BaseException as err:
                failed.append(err)

        driver = threading.Thread(target=drive)
        driver.start()
        wait_until(lambda: len(loading._destination.log.numbers()) >= 1, timeout=60)
        broker.restart()
        driver.join(400)

    assert not driver.is_alive()
    assert not failed
    assert places_in(tmp_path, topic) == all_places([30_000, 30_000])
