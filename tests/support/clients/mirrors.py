"""Mirror makers as processes, what they copy, and what has arrived."""

from __future__ import annotations

import signal
import subprocess
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from kbroker.client import KafkaConsumer, KafkaProducer
from kbroker.client.admin.topics import NewTopic, create_topics
from kbroker.client.connections.cluster import Cluster
from kbroker.testing import Broker, wait_until

KEYS = 23
WAIT_S = 60.0
TOOL = Path(__file__).resolve().parents[3] / "bin" / "kafka-mirror-maker.sh"


class Mirror:
    """One process; its stderr is in ``said``."""

    def __init__(
        self, log: Path, words: list[str], command: tuple[str, ...] = (str(TOOL),)
    ) -> None:
        self._log = log
        with log.open("wb") as written:
            self._process = subprocess.Popen(
                [*command, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=written,
            )

    @property
    def said(self) -> str:
        return self._log.read_text()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(10)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Its exit code."""
        self._process.send_signal(number)
        return self.wait()

    def wait(self, seconds: float = 60.0) -> int:
        out, _ = self._process.communicate(timeout=seconds)
        assert out == b"", "stdout is empty, as Kafka's"
        return self._process.returncode

    @property
    def running(self) -> bool:
        return self._process.poll() is None


def write(path: Path, settings: dict[str, str]) -> None:
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))


def create(broker: Broker, topic: str, partitions: int, **config: str) -> None:
    with Cluster(broker.bootstrap) as cluster:
        create_topics(cluster, [NewTopic(topic, partitions, configs=config)])


def fill(
    broker: Broker, topic: str, first: int, count: int, pause: float = 0.0, **settings: Any
) -> None:
    """Records with the numbers from ``first`` on, each with a key, headers and a time."""
    with KafkaProducer(bootstrap_servers=broker.bootstrap, **settings) as producer:
        for n in range(first, first + count):
            producer.send(
                topic, b"%d" % n, b"key-%d" % (n % KEYS), {"n": b"%d" % n}, timestamp_ms=1000 + n
            )
            if pause and n % 100 == 0:
                time.sleep(pause)


class Copy:
    """What is in a topic of the target, read on and on."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self.records: list[Any] = []
        self._values = Counter[bytes]()
        self._consumer = KafkaConsumer(
            bootstrap_servers=broker.bootstrap,
            auto_offset_reset="earliest",
            group_id=f"readers-{topic}-{time.monotonic()}",
            metadata_max_age_ms=500,
        )
        self._consumer.subscribe([topic])

    def __enter__(self) -> Copy:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def read(self) -> int:
        """How many there are by now."""
        more = self._consumer.poll(0.5, 10_000)
        self.records += more
        self._values.update(record.value for record in more)
        return len(self.records)

    def values(self) -> Counter[bytes]:
        return self._values

    def await_all(self, numbers: range, mirrors: list[Mirror]) -> None:
        wanted = {b"%d" % n for n in numbers}

        def complete() -> bool:
            self.read()
            return wanted <= self.values().keys()

        try:
            wait_until(complete, WAIT_S, "everything is copied")
        except AssertionError as error:
            missing = sorted(map(int, wanted - self.values().keys()))
            said = "\n".join(mirror.said for mirror in mirrors)
            raise AssertionError(
                f"{len(missing)} of {len(wanted)} are missing, from {missing[:3]} on:\n{said}"
            ) from error

    def by_key(self) -> dict[bytes, list[int]]:
        found: dict[bytes, list[int]] = defaultdict(list)
        for record in self.records:
            found[record.key].append(int(record.value))
        return found

    def assert_one_partition_per_key(self) -> None:
        places = defaultdict(set)
        for record in self.records:
            places[record.key].add(record.partition)
        assert all(len(some) == 1 for some in places.values())
        assert len(set().union(*places.values())) > 1


def in_order_from_restarts(numbers: list[int]) -> bool:
    """Each step goes to the next number of the key, or back to one that was seen: a repetition."""
    newest = numbers[0] - KEYS
    for n in numbers:
        if n > newest + KEYS:
            return False
        newest = max(newest, n)
    return True
