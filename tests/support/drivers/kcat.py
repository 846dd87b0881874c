"""The kcat command with the librdkafka of the distribution."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence

from support.drivers import BEGINNING, WAIT_S, ClientError, Message, Stored
from support.drivers.access import Access, access_to

KEY_DELIMITER = "~~"
RECORD_DELIMITER = "@@"
# Partition, offset, timestamp, lengths of key and value (-1: null); headers; key and value.
FORMAT = r"%p %o %T %K %S\n%h\n%k%s\n"
CODES = {"Message size too large": 10, "Unknown topic or partition": 3}


class Kcat:
    """Runs kcat once per call. All messages of one call share their headers."""

    name = "kcat"
    null_headers = True
    header_sets = timestamps = False

    def __init__(self, where: str | Access) -> None:
        self._options = access_to(where).kcat()

    @staticmethod
    def missing() -> bool:
        """Whether its tests are to be skipped, which ``.ci/run`` forbids."""
        return shutil.which("kcat") is None and not os.environ.get("KBROKER_CI")

    def close(self) -> None:
        pass

    def run(
        self, *arguments: str, stdin: bytes = b"", timeout_s: float = WAIT_S, stops: bool = True
    ) -> bytes:
        """The output of kcat; with ``stops`` false it may still be running at the timeout."""
        command = ["kcat", *self._options, *arguments]
        try:
            done = subprocess.run(command, input=stdin, capture_output=True, timeout=timeout_s)
        except subprocess.TimeoutExpired as expired:
            if stops:
                raise
            return expired.stdout or b""
        if done.returncode != 0 or b"Delivery failed" in done.stderr:
            text = done.stderr.decode(errors="replace")
            code = next((code for words, code in CODES.items() if words in text), -1)
            raise ClientError(code, text)
        return done.stdout

    def produce(
        self,
        topic: str,
        messages: Sequence[Message],
        *,
        partition: int = 0,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
        **config: str,
    ) -> list[int]:
        """kcat never reports offsets."""
        (headers,) = {message.headers for message in messages}
        arguments = ["-P", "-t", topic, "-p", str(partition), "-z", codec, "-Z"]
        arguments += ["-K", KEY_DELIMITER, "-D", RECORD_DELIMITER]
        arguments += ["-X", f"acks={acks}", "-X", f"enable.idempotence={str(idempotent).lower()}"]
        for name, setting in config.items():
            arguments += ["-X", f"{name.replace('_', '.')}={setting}"]
        for name, value in headers:
            arguments += ["-H", name if value is None else f"{name}={value.decode()}"]
        lines = [
            (message.key or b"") + KEY_DELIMITER.encode() + (message.value or b"")
            for message in messages
        ]
        self.run(*arguments, stdin=RECORD_DELIMITER.encode().join(lines))
        return []

    def fetch(
        self,
        topic: str,
        count: int,
        *,
        partition: int | range = 0,
        start: int | str = BEGINNING,
        committed: bool = False,
        timeout_s: float = WAIT_S,
        **config: str,
    ) -> list[Stored]:
        isolation = "read_committed" if committed else "read_uncommitted"
        arguments = ["-C", "-q", "-u", "-t", topic, "-o", str(start)]
        if isinstance(partition, int):
            arguments += ["-p", str(partition)]
        arguments += ["-c", str(count), "-f", FORMAT, "-X", f"isolation.level={isolation}"]
        for name, setting in config.items():
            arguments += ["-X", f"{name.replace('_', '.')}={setting}"]
        return list(_parsed(self.run(*arguments, timeout_s=timeout_s, stops=False)))

    def offset(self, topic: str, which: str | int, partition: int = 0) -> int:
        when = {"earliest": -2, "latest": -1}.get(str(which), which)
        text = self.run("-Q", "-t", f"{topic}:{partition}:{when}").decode()
        found = re.search(r"offset (-?\d+)", text)
        assert found is not None, text
        return int(found[1])


def _parsed(output: bytes) -> list[Stored]:
    records = []
    at = 0
    while at < len(output):
        line, headers, _ = output[at:].split(b"\n", 2)
        partition, offset, timestamp, key_length, value_length = map(int, line.split())
        at += len(line) + len(headers) + 2
        key = output[at : at + key_length] if key_length >= 0 else None
        at += max(key_length, 0)
        value = output[at : at + value_length] if value_length >= 0 else None
        at += max(value_length, 0) + 1
        records.append(Stored(offset, value, key, _headers(headers), timestamp, partition))
    return records


def _headers(text: bytes) -> tuple[tuple[str, bytes | None], ...]:
    """``a=1,b=NULL`` as kcat prints it."""
    found: list[tuple[str, bytes | None]] = []
    for item in filter(None, text.split(b",")):
        name, _, value = item.partition(b"=")
        found.append((name.decode(), None if value == b"NULL" else value))
    return tuple(found)
