"""Members of groups by ZooKeeper, each in a process that can be killed: ours, and Kafka 0.8.2's.

Both take ``+topic=streams`` or ``+~regex=streams`` and settings as arguments, ``commit`` and
``end`` from standard input, and write ``row STREAM TOPIC PARTITION OFFSET VALUE`` for each message.
"""

from __future__ import annotations

import base64
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from kbroker.legacy.zookeeper_consumer import Consumer, KafkaStream, Whitelist
from kbroker.testing import wait_until

TESTS = Path(__file__).resolve().parents[2]
SETTINGS = {
    "auto.offset.reset": "smallest",
    "auto.commit.interval.ms": "600000",
    "zookeeper.session.timeout.ms": "2000",
    "rebalance.backoff.ms": "1000",
    "rebalance.max.retries": "10",
}
WAIT_S = 60


class Row(NamedTuple):
    stream: int
    topic: str
    partition: int
    offset: int
    value: bytes


class Member:
    """rows: what it has read, in order."""

    def __init__(self, command: list[str]) -> None:
        environment = {**os.environ, "PYTHONPATH": str(TESTS)}
        self.rows: list[Row] = []
        self.said: list[str] = []
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        self._await("ready")

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            words = line.split()
            if words[:1] == ["row"] and len(words) in (5, 6):
                value = base64.b64decode(words[5]) if len(words) == 6 else b""
                self.rows.append(Row(int(words[1]), words[2], int(words[3]), int(words[4]), value))
            else:
                self.said.append(line.strip())

    def _await(self, word: str) -> None:
        def is_there() -> bool:
            assert self._process.poll() is None or word in self.said, self.said
            return word in self.said

        wait_until(is_there, WAIT_S, word)
        self.said.remove(word)

    def _say(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()

    def commit(self) -> None:
        self._say("commit")
        self._await("committed")

    def end(self) -> None:
        """Shut it down."""
        self._say("end")
        self._await("ended")
        self._close()

    def kill(self) -> None:
        """It dies, and its session with ZooKeeper expires."""
        self._process.kill()
        self._close()

    def _close(self) -> None:
        self._process.wait(WAIT_S)
        self._thread.join(WAIT_S)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None


def arguments(connect: str, group: str, topics: Mapping[str, int], **settings: object) -> list[str]:
    """Of a member. topics: names, or ``~regex``, with numbers of streams."""
    given = {name.replace("_", "."): str(value) for name, value in settings.items()}
    found = {**SETTINGS, "zookeeper.connect": connect, "group.id": group, **given}
    return [
        *(f"+{topic}={count}" for topic, count in topics.items()),
        *(f"{name}={value}" for name, value in found.items()),
    ]


def our_command() -> list[str]:
    return [sys.executable, "-m", "support.clients.zookeeper_group"]


class Store:
    """Looks at the nodes of groups."""

    def __init__(self, connect: str) -> None:
        self.connect = connect
        self.client = KazooClient(connect)
        self.client.start()

    def close(self) -> None:
        self.client.stop()
        self.client.close()

    def end_session(self, session: tuple[int, bytes]) -> None:
        """End the session of another client, as if it had expired."""
        double = KazooClient(self.connect, client_id=session)
        double.start()
        double.stop()
        double.close()

    def children(self, path: str) -> list[str]:
        return sorted(self.client.get_children(path)) if self.client.exists(path) else []

    def owners(self, group: str, topic: str) -> dict[int, str]:
        home = f"/consumers/{group}/owners/{topic}"
        found = {}
        for name in self.children(home):
            with suppress(NoNodeError):
                found[int(name)] = self.client.get(f"{home}/{name}")[0].decode()
        return found

    def offsets(self, group: str, topic: str) -> dict[int, int]:
        home = f"/consumers/{group}/offsets/{topic}"
        return {
            int(name): int(self.client.get(f"{home}/{name}")[0]) for name in self.children(home)
        }

    def ids(self, group: str) -> dict[str, bytes]:
        home = f"/consumers/{group}/ids"
        return {name: self.client.get(f"{home}/{name}")[0] for name in self.children(home)}


@contextmanager
def opened(connect: str) -> Iterator[Store]:
    store = Store(connect)
    try:
        yield store
    finally:
        store.close()


def _read(number: int, stream: KafkaStream) -> None:
    for row in stream:
        value = base64.b64encode(row.message or b"").decode()
        sys.stdout.write(f"row {number} {row.topic} {row.partition} {row.offset} {value}\n")
        sys.stdout.flush()


def main() -> None:
    """Our member."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    pairs = [word.partition("=")[::2] for word in sys.argv[1:]]
    counts = {name[1:]: int(value) for name, value in pairs if name.startswith("+")}
    connector = Consumer.create({name: value for name, value in pairs if name[0] != "+"})
    name, count = next(iter(counts.items()))
    if name.startswith("~"):
        streams = connector.create_message_streams_by_filter(Whitelist(name[1:]), count)
    else:
        made = connector.create_message_streams(counts)
        streams = [stream for some in made.values() for stream in some]
    for number, stream in enumerate(streams):
        threading.Thread(target=_read, args=(number, stream), daemon=True).start()
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() != "commit":
            break
        connector.commit_offsets()
        print("committed", flush=True)
    connector.shutdown()
    print("ended", flush=True)


if __name__ == "__main__":
    main()
