"""Java clients whose security settings change from call to call."""

from __future__ import annotations

import selectors
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from support.drivers.java import JVM_OPTIONS, SOURCES, classes_of, libraries

from perf.kafka_distribution import kafka_libraries

# Clients that take tokens from a file need jose4j, which comes with brokers and tools only.
JARS: dict[str, Callable[[], Path]] = {
    "2.7.2": lambda: libraries("2.7.2"),
    "3.9.1": lambda: kafka_libraries(version="3.9.1"),
    "4.3.0": lambda: libraries("4.3.0", "kafka-tools"),
}


class JavaClients:
    """A JVM with the clients of one version; each call uses other settings."""

    def __init__(self, version: str, place: Path, properties: Mapping[str, str]) -> None:
        """properties: of the JVM. place: for its files."""
        self.version = version
        sources = [SOURCES / "secure" / "SecureClient.java"]
        classes = classes_of(version, "kafka-clients", sources)
        self._settings = place / f"client-{version}.properties"
        self._log = open(place / f"client-{version}.log", "w+b")
        path = f"{classes}:{JARS[version]()}/*"
        given = [f"-D{name}={value}" for name, value in properties.items()]
        self._jvm = subprocess.Popen(
            ["java", *JVM_OPTIONS, *given, "-cp", path, "SecureClient"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )

    def use(self, settings: Mapping[str, str]) -> str:
        assert self._jvm.stdin is not None and self._jvm.stdout is not None
        self._settings.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        self._jvm.stdin.write(f"{self._settings}\n".encode())
        self._jvm.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(self._jvm.stdout, selectors.EVENT_READ)
            assert selector.select(120), "no answer"
        answer = self._jvm.stdout.readline().decode()
        self._log.seek(0)
        assert answer, self._log.read().decode(errors="replace")
        return answer.strip()

    def close(self) -> None:
        assert self._jvm.stdin is not None and self._jvm.stdout is not None
        self._jvm.stdin.close()
        self._jvm.wait(30)
        self._jvm.stdout.close()
        self._log.close()
