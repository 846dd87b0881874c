"""Spark's own Kafka connector for comparison: four jars, each fetched by itself into .cache/.

They are not resolved transitively: what else they need comes with PySpark.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from perf.kafka_distribution import ROOT

ARTIFACTS = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.1",
)


def jar_name(artifact: str) -> str:
    """group:name:version to the file's name."""
    _, name, version = artifact.split(":")
    return f"{name}-{version}.jar"


def connector_jars(cache: Path | None = None) -> list[Path]:
    """The jars, for ``spark.jars``; a missing one is fetched by Maven, which needs the network.

    Raises RuntimeError.
    """
    home = cache or ROOT / ".cache" / "spark-kafka"
    jars = [home / jar_name(artifact) for artifact in ARTIFACTS]
    for artifact, jar in zip(ARTIFACTS, jars, strict=True):
        if not jar.exists():
            _fetch(artifact, home)
        if not jar.exists():
            raise RuntimeError(f"mvn did not leave {jar}")
    return jars


def _fetch(artifact: str, home: Path) -> None:
    if shutil.which("mvn") is None:
        raise RuntimeError("Spark's Kafka connector needs mvn (Maven) on the PATH")
    home.mkdir(parents=True, exist_ok=True)
    print(f"fetching {artifact} into {home}", file=sys.stderr)
    settings = [f"-Dartifact={artifact}", f"-DoutputDirectory={home}", "-Dtransitive=false"]
    for goal in ("get", "copy"):
        command = [
            "mvn",
            "-q",
            "-B",
            f"org.apache.maven.plugins:maven-dependency-plugin:3.6.1:{goal}",
        ]
        done = subprocess.run([*command, *settings], capture_output=True, text=True, cwd=home)
        if done.returncode != 0:
            raise RuntimeError(
                f"mvn failed with {done.returncode} for {artifact}:\n{done.stdout[-2000:]}"
            )
