"""One Spark session for all these tests, a kbroker, and an Apache Kafka if available.

Each test uses topics of its own. ``tests/conftest.py`` keeps this folder in one process when tests
run in several.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from support.running.selection import is_without_slow

from kbroker.spark import JVM_OPTIONS
from kbroker.testing import Broker, java_home

ROOT = Path(__file__).resolve().parent.parent.parent
# Optimised compilation took the JVM longer than all its work.
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Spark waits 10 s for the Python worker of a stream to connect (createSimpleWorker of its
# PythonWorkerFactory), which no setting changes: a machine that stalls longer is not a finding.
WORKER_WAS_LATE = "Python worker failed to connect back"
ATTEMPTS = 3


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here needs Java and PySpark. The timeout only catches hangs."""
    here = f"{Path(__file__).parent}{os.sep}"
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.timeout(600))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """Run a test again if Spark did not wait for one of its own processes."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for _ in range(ATTEMPTS):
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        if not any(one.failed and WORKER_WAS_LATE in one.longreprtext for one in reports):
            break
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def connector_jars() -> list[Path]:
    """The jars of Spark's own connector; empty if they are not available."""
    from perf.spark_connector import connector_jars

    try:
        return connector_jars()
    except RuntimeError:
        return []


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The session: two cores, the connector's jars if available."""
    sql = pytest.importorskip("pyspark.sql")
    home = java_home()
    if home is None:
        pytest.skip("there is no Java")
    os.environ["JAVA_HOME"] = str(home)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH")])
    )
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    place = tmp_path_factory.mktemp("spark")
    builder = (
        sql.SparkSession.builder.master("local[2]")
        .appName("kbroker-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.warehouse.dir", str(place / "warehouse"))
        .config("spark.local.dir", str(place / "local"))
        .config(
            "spark.driver.extraJavaOptions",
            f"-Dderby.system.home={place} {JVM_OPTIONS} {QUICK_JVM}",
        )
        .config("spark.sql.session.timeZone", "UTC")
    )
    jars = connector_jars()
    if jars:
        builder = builder.config("spark.jars", ",".join(map(str, jars)))
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def kafka_broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """Apache Kafka 3.9.1; without the slow tests a kbroker, as both readers read the same."""
    from perf.brokers import KafkaBroker

    if is_without_slow(request.config):
        with Broker() as ours:
            yield ours
        return
    try:
        broker = KafkaBroker(tmp_path_factory.mktemp("kafka"))
    except RuntimeError as error:
        pytest.skip(str(error))
    broker.JVM_OPTIONS = "-Xms256m -Xmx512m -XX:TieredStopAtLevel=1 -Djava.awt.headless=true"
    with broker:
        yield broker


@pytest.fixture
def topic() -> str:
    """A topic name unique to each test."""
    return f"t-{uuid.uuid4().hex[:12]}"
