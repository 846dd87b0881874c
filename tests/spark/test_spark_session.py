"""Sessions as users open them: which Python they start, and what the helper sets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.clients.topics import create_topic
from support.spark.load_records import produce

from kbroker.testing import Broker

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

# Optimised compilation took the JVM longer than all its work.
QUICK_JVM = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}

REGISTERED = """
import sys
from pyspark.sql import SparkSession
from kbroker.spark import provide_java, register
provide_java()
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
reader = lambda: (
    spark.read.format("kbroker")
    .option("kafka.bootstrap.servers", sys.argv[1])
    .option("subscribe", sys.argv[2])
)
try:
    reader().load()
except Exception as error:
    print("DATA_SOURCE_NOT_FOUND" in str(error))
register(spark)
print(reader().load().count())
"""


def run(program: str, *arguments: str, **variables: str) -> list[str]:
    """The lines that a program of its own prints."""
    environment = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", **QUICK_JVM, **variables}
    environment.pop("PYSPARK_PYTHON", None)
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def path_without_packages(place: Path) -> str:
    """A PATH whose first ``python3`` has no packages."""
    other = place / "python3"
    other.write_text(f'#!/bin/sh\nexec "{os.path.realpath(sys.executable)}" -I -S "$@"\n')
    other.chmod(0o755)
    return os.pathsep.join([str(place), os.environ["PATH"]])


@pytest.mark.slow
def test_registered_source_is_found_where_the_first_python3_has_it_not(
    kbroker_broker: Broker, topic: str, tmp_path: Path
) -> None:
    """The interpreter of a virtual environment that is not activated."""
    create_topic(kbroker_broker.bootstrap, topic, 1)
    produce(kbroker_broker.bootstrap, topic, [50])

    said = run(REGISTERED, kbroker_broker.bootstrap, topic, PATH=path_without_packages(tmp_path))

    assert said == ["True", "50"]


BUILT = """
import sys
from kbroker.spark import builder
spark = builder("mine").master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
conf = spark.sparkContext.getConf()
print(conf.get("spark.app.name"))
print(spark._jvm.java.lang.System.getProperty("arrow.enable_unsafe_memory_access"))
where = {"kafka.bootstrap.servers": sys.argv[1], "subscribe": sys.argv[2]}
print(spark.read.format("kbroker").options(**where).load().count())
told = lambda _: __import__("os").environ["PYTHON_UNIX_DOMAIN_ENABLED"]
print(spark.range(1).rdd.map(told).first())
"""


@pytest.mark.slow
def test_session_of_the_builder_has_what_reading_is_fastest_with(
    kbroker_broker: Broker, topic: str, tmp_path: Path
) -> None:
    """And finds the source with the interpreter that has made it."""
    create_topic(kbroker_broker.bootstrap, topic, 1)
    produce(kbroker_broker.bootstrap, topic, [50])

    said = run(BUILT, kbroker_broker.bootstrap, topic, PATH=path_without_packages(tmp_path))

    assert [one.lower() for one in said] == ["mine", "true", "50", "true"]
