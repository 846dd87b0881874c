"""A client of Spark Connect, which has no JVM: registered by hand, and under Kafka's name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.clients.topics import create_topic, read_topic
from support.spark.load_records import produce

from kbroker.testing import Broker, java_home

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]

PROGRAM = """
import os, sys
from pyspark.sql import SparkSession
from kbroker.spark import install_kafka_alias, provide_java, read_stream, register

bootstrap, topic, copy, place = sys.argv[1:]
provide_java()
spark = (
    SparkSession.builder.remote("local[2]")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.sql.warehouse.dir", place)
    .getOrCreate()
)
print(type(spark).__module__)
register(spark)
options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
print(spark.read.format("kbroker").options(**options).load().count())
install_kafka_alias()
install_kafka_alias()
frame = spark.read.format("kafka").options(**options).load()
print(frame.select("offset").distinct().count())
writer = frame.select("key", "value").write.format("kafka").option("topic", copy)
writer.option("kafka.bootstrap.servers", bootstrap).save()
stream = spark.readStream.format("kafka").options(**options)
query = (
    stream.option("startingOffsets", "earliest").load().select("key", "value").writeStream
    .format("kafka").option("kafka.bootstrap.servers", bootstrap).option("topic", copy)
    .option("checkpointLocation", os.path.join(place, "checkpoint"))
    .trigger(availableNow=True).start()
)
print(query.awaitTermination(300))
spark.stop()
"""


def test_connect_reads_writes_and_streams(
    kbroker_broker: Broker, topic: str, tmp_path: Path
) -> None:
    pytest.importorskip("grpc")
    pytest.importorskip("grpc_status")
    home = java_home()
    if home is None:
        pytest.skip("there is no Java")
    copy = f"{topic}-copy"
    for name in (topic, copy):
        create_topic(kbroker_broker.bootstrap, name, 1)
    produce(kbroker_broker.bootstrap, topic, [300])

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, kbroker_broker.bootstrap, topic, copy, str(tmp_path)],
        env=os.environ
        | {
            "JAVA_HOME": str(home),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        },
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        check=True,
    )

    lines = done.stdout.splitlines()
    assert lines == ["pyspark.sql.connect.session", "300", "300", "True"]
    records = read_topic(kbroker_broker.bootstrap, copy)
    originals = read_topic(kbroker_broker.bootstrap, topic)
    assert [one.value for one in records] == 2 * [one.value for one in originals]
