"""Java clients of old releases, in a JVM that runs OldClientDriver.java.

They are of the time of message formats 0 and 1, and 2.7.2, whose administration the newer driver
does not know.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
from collections.abc import Sequence
from typing import Any, NamedTuple

from support.drivers import WAIT_S, ClientError, Message, Stored
from support.drivers.java import (
    CACHE,
    JVM_OPTIONS,
    RESPONSE_TIMEOUT_S,
    SOURCES,
    _bytes,
    _text,
    classes_of,
    libraries,
)


class Release(NamedTuple):
    """Where the clients of a release are, and which class reads with them."""

    artifact: str
    reader: str


RELEASES = {
    "0.8.2.2": Release("kafka_2.11", "SimpleReader"),
    "0.9.0.1": Release("kafka-clients", "ConsumerReader"),
    "0.10.2.2": Release("kafka-clients", "ConsumerReader"),
    "2.7.2": Release("kafka-clients", "ConsumerReader"),
}


class OldJava:
    """The Java producer and consumer of one old release. No headers, no timestamps."""

    null_headers = header_sets = timestamps = False

    def __init__(self, bootstrap: str, version: str) -> None:
        self.name = f"old-java {version}"
        release = RELEASES[version]
        names = ("OldClientDriver", release.reader)
        sources = [SOURCES / "old" / f"{name}.java" for name in names]
        classes = classes_of(version, release.artifact, sources)
        self._log = open(CACHE / f"driver-{version}-{os.getpid()}.log", "w+b")
        path = f"{classes}:{libraries(version, release.artifact)}/*"
        self._jvm = subprocess.Popen(
            ["java", *JVM_OPTIONS, "-cp", path, names[0], bootstrap, release.reader],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )

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

    def _call(self, operation: str, **arguments: Any) -> Any:
        assert self._jvm.stdin is not None and self._jvm.stdout is not None
        line = json.dumps({"op": operation, **arguments}) + "\n"
        self._jvm.stdin.write(line.encode())
        self._jvm.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(self._jvm.stdout, selectors.EVENT_READ)
            assert selector.select(RESPONSE_TIMEOUT_S), f"no response to {operation}"
        # The Scala code of 0.8 logs to standard output before it has read its configs.
        while (text := self._jvm.stdout.readline()) and not text.startswith(b"{"):
            pass
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
    ) -> list[int]:
        assert not idempotent
        settings = {"compression.type": codec, "acks": acks, "linger.ms": "50"}
        rows = [{"v": _text(m.value), "k": _text(m.key)} for m in messages]
        found: list[int] = self._call(
            "produce", topic=topic, partition=partition, config=settings, messages=rows
        )
        return found

    def fetch(
        self,
        topic: str,
        count: int,
        *,
        partition: int = 0,
        start: int = 0,
        timeout_s: float = WAIT_S,
        fetch_bytes: int = 1 << 20,
    ) -> list[Stored]:
        rows = self._call(
            "fetch",
            topic=topic,
            partition=partition,
            count=count,
            start=start,
            timeout_s=timeout_s,
            bytes=fetch_bytes,
        )
        return [Stored(offset, _bytes(value), _bytes(key), (), -1) for offset, value, key in rows]
