"""Spark's own Kafka connector for comparison: four jars, each downloaded separately into .cache/.

They are not resolved transitively: what else they need comes with PySpark.
"""

from pathlib import Path

from perf.maven import ROOT, fetch_jar

ARTIFACTS = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.1",
)


def connector_jars(cache: Path | None = None) -> list[Path]:
    """The jars, for ``spark.jars``; missing ones are downloaded, which needs the network.

    Raises RuntimeError.
    """
    home = cache or ROOT / ".cache" / "spark-kafka"
    return [fetch_jar(artifact, home) for artifact in ARTIFACTS]
