"""Apache Kafka for comparison, resolved once by Maven into .cache/ (not committed)."""

import fcntl
import os
import shutil
import sys
from pathlib import Path

from perf.maven import run_maven

VERSION = "3.9.1"
ROOT = Path(__file__).resolve().parent.parent

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>kbroker</groupId>
  <artifactId>kafka-for-comparison</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId>
      <version>%s</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId>
      <artifactId>slf4j-reload4j</artifactId>
      <version>1.7.36</version>
    </dependency>
  </dependencies>
</project>
"""
POM = _POM % VERSION


def kafka_libraries(cache: Path | None = None, version: str = VERSION) -> Path:
    """The directory of jars; the first call runs Maven, which needs the network.

    Raises RuntimeError, MavenUnreachable.
    """
    home = cache or ROOT / ".cache" / f"kafka-{version}"
    libraries = home / "libs"
    complete = home / "complete"
    if complete.exists():
        return libraries
    if shutil.which("mvn") is None or shutil.which("java") is None:
        raise RuntimeError("the comparison needs java and mvn (Maven) on the PATH")
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of two test processes one runs Maven
        if not complete.exists():
            _resolve(home, libraries, version)
            complete.touch()
    return libraries


def maven_environment() -> dict[str, str]:
    """Maven works for two seconds: compiling it well takes its JVM longer than that."""
    quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    return {**os.environ, "MAVEN_OPTS": f"{os.environ.get('MAVEN_OPTS', '')} {quick}".strip()}


def _resolve(home: Path, libraries: Path, version: str) -> None:
    (home / "pom.xml").write_text(_POM % version)
    print(f"resolving Apache Kafka {version} into {home}", file=sys.stderr)
    command = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={libraries}"]
    run_maven(f"Kafka {version}", command, maven_environment(), home)
