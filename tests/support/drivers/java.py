"""Apache Kafka's Java clients: libraries from Maven, and one JVM that runs ClientDriver.java.

Libraries and classes live in ``.cache/java`` of the repository, by version; what is there is used
without Maven.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import os
import selectors
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Any

from support.drivers import BEGINNING, CODECS, WAIT_S, ClientError, Message, Stored, numbers
from support.drivers.access import Access, access_to

from perf.kafka_distribution import maven_environment
from perf.maven import run_maven

ROOT = Path(__file__).resolve().parents[3]
SOURCES = ROOT / "tests" / "java"
CACHE = ROOT / ".cache" / "java"
# Maven's, unless its settings name another: a missing version needs the network.
LOCAL_REPOSITORY = Path.home() / ".m2" / "repository"
RESPONSE_TIMEOUT_S = 60.0
# BOUND: for a test whose fixtures may have to download the libraries first.
FIRST_TEST_TIMEOUT_S = 600
# Small and quick to start: these JVMs do little, several at a time.
JAVAC_OPTIONS = ("-Xlint:none", "-J-XX:TieredStopAtLevel=1", "-J-XX:+UseSerialGC")
JVM_OPTIONS = ("-Xmx192m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")


def java_missing() -> str:
    """The reason why Java tests cannot run here; empty if they can, or must (``.ci/run``)."""
    if os.environ.get("KBROKER_CI"):
        return ""
    absent = [name for name in ("java", "javac", "mvn") if shutil.which(name) is None]
    return f"not installed: {', '.join(absent)}" if absent else ""


def libraries(version: str, artifact: str = "kafka-clients") -> Path:
    """The folder of jars of ``org.apache.kafka:artifact``."""
    home = CACHE / f"{artifact}-{version}"
    with _locked(home):
        return _libraries(home, version, artifact)


def _libraries(home: Path, version: str, artifact: str) -> Path:
    done = home / "complete"
    if done.exists():
        return home / "lib"
    command = ["mvn", "-q", "-B", "-f", str(SOURCES / "pom.xml"), f"-Dkafka.version={version}"]
    command += [f"-Dkafka.artifact={artifact}", f"-DoutputDirectory={home / 'lib'}"]
    command += ["dependency:copy-dependencies"]
    version_known = LOCAL_REPOSITORY / "org/apache/kafka" / artifact / version
    wanted = f"{artifact} {version}"
    try:
        if not version_known.exists():
            raise RuntimeError
        run_maven(wanted, [*command, "-o"], maven_environment())
    except RuntimeError:
        run_maven(wanted, command, maven_environment())
    done.touch()
    return home / "lib"


def classes_of(version: str, artifact: str, sources: list[Path]) -> Path:
    """The folder of the compiled classes of those sources, for that version."""
    home = CACHE / f"{artifact}-{version}"
    with _locked(home):
        jars = _libraries(home, version, artifact)
        text = b"".join(source.read_bytes() for source in sources)
        digest = hashlib.sha256(text).hexdigest()[:12]
        classes = home / f"classes-{digest}"
        if not (classes / "complete").exists():
            command = [
                "javac",
                *JAVAC_OPTIONS,
                "-Xlint:none",
                "-d",
                str(classes),
                "-cp",
                f"{jars}/*",
            ]
            command += map(str, sources)
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                raise RuntimeError(f"javac failed:\n{done.stdout}{done.stderr}")
            (classes / "complete").touch()
    return classes


@contextmanager
def _locked(home: Path) -> Iterator[None]:
    """One process at a time fills a folder."""
    home.mkdir(parents=True, exist_ok=True)
    with open(home / "lock", "w") as file:
        flock(file, LOCK_EX)
        yield


_drivers = itertools.count()


class Java:
    """The Java producer, consumer and admin client of one version."""

    null_headers = header_sets = timestamps = True

    def __init__(self, where: str | Access, version: str) -> None:
        self.name = f"java {version}"
        settings = access_to(where).java()
        self._turn = threading.Lock()
        classes = classes_of(version, "kafka-clients", sorted(SOURCES.glob("*.java")))
        path = f"{classes}:{libraries(version)}/*"
        self._log = open(CACHE / f"driver-{version}-{os.getpid()}-{next(_drivers)}.log", "w+b")
        self._jvm = subprocess.Popen(
            ["java", *JVM_OPTIONS, "-cp", path, "ClientDriver", json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        assert self.call("version") == version

    def close(self) -> None:
        assert self._jvm.stdin is not None and self._jvm.stdout is not None
        self._jvm.stdin.close()
        try:
            self._jvm.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            self._jvm.kill()
            self._jvm.wait()
        self._jvm.stdout.close()
        self._log.close()
        os.unlink(self._log.name)

    def call(self, operation: str, **arguments: Any) -> Any:
        """Run one operation of ClientDriver.java."""
        assert self._jvm.stdin is not None and self._jvm.stdout is not None
        line = json.dumps({"op": operation, **arguments}) + "\n"
        with self._turn:
            self._jvm.stdin.write(line.encode())
            self._jvm.stdin.flush()
            with selectors.DefaultSelector() as selector:
                selector.register(self._jvm.stdout, selectors.EVENT_READ)
                assert selector.select(RESPONSE_TIMEOUT_S), f"no response to {operation}"
            text = self._jvm.stdout.readline()
        if not text:
            self._log.seek(0)
            raise RuntimeError(f"{self.name} ended:\n{self._log.read().decode(errors='replace')}")
        response = json.loads(text)
        if "code" in response:
            raise ClientError(response["code"], response["error"])
        return response["result"]

    def produce(
        self,
        topic: str,
        messages: Sequence[Message],
        *,
        partition: int = 0,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
        **config: object,
    ) -> list[int]:
        assert codec in CODECS
        settings = {
            "compression.type": codec,
            "acks": acks,
            "enable.idempotence": str(idempotent).lower(),
            "linger.ms": "5",
            **{name.replace("_", "."): str(value) for name, value in config.items()},
        }
        rows = [
            {
                "v": _text(message.value),
                "k": _text(message.key),
                "h": [[name, _text(value)] for name, value in message.headers],
                "t": message.timestamp_ms,
            }
            for message in messages
        ]
        offsets: list[int] = self.call(
            "produce", topic=topic, partition=partition, config=settings, messages=rows
        )
        return [] if acks == "0" else offsets

    def fetch(
        self,
        topic: str,
        count: int,
        *,
        partition: int | range = 0,
        start: int | str = BEGINNING,
        committed: bool = False,
        timeout_s: float = WAIT_S,
        **config: object,
    ) -> list[Stored]:
        settings = {"fetch.max.wait.ms": "100"}  # for the sake of a quick close
        settings |= {name.replace("_", "."): str(value) for name, value in config.items()}
        if committed:
            settings["isolation.level"] = "read_committed"
        rows = self.call(
            "fetch",
            topic=topic,
            partitions=numbers(partition),
            count=count,
            start=str(start),
            timeout_s=timeout_s,
            config=settings,
        )
        return [
            Stored(
                offset,
                _bytes(value),
                _bytes(key),
                tuple((name, _bytes(text)) for name, text in headers),
                timestamp,
                place,
            )
            for offset, value, key, headers, timestamp, place in rows
        ]

    def offset(self, topic: str, which: str | int, partition: int = 0) -> int:
        if isinstance(which, int):
            found = self.call("offset_for_time", topic=topic, partition=partition, time=which)
        else:
            found = self.call("offset", topic=topic, partition=partition, which=which)
        return int(found)

    # -- administration

    def create_topic(
        self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        self.call("create_topic", topic=topic, partitions=partitions, config=dict(config or {}))

    def delete_topic(self, topic: str) -> None:
        self.call("delete_topic", topic=topic)

    def create_partitions(self, topic: str, total: int) -> None:
        self.call("create_partitions", topic=topic, total=total)

    def partitions(self, topic: str) -> int:
        return int(self.call("describe_topic", topic=topic)["partitions"])

    def topic_config(self, topic: str) -> dict[str, str | None]:
        return dict(self.call("config", topic=topic))

    def broker_config(self, broker_id: int) -> dict[str, str | None]:
        return dict(self.call("config", topic=str(broker_id), type="BROKER"))

    def alter_topic_config(self, topic: str, name: str, value: str) -> None:
        self.call("alter_topic_config", topic=topic, name=name, value=value)

    def delete_records(self, topic: str, before: int) -> int:
        return int(self.call("delete_records", topic=topic, before=before))

    def cluster(self) -> dict[str, Any]:
        found: dict[str, Any] = self.call("cluster")
        found["brokers"] = {int(key): value for key, value in found["brokers"].items()}
        return found


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
