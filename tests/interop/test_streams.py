"""Kafka Streams: a word count with ``exactly_once_v2``, which is stopped, killed and continued."""

from __future__ import annotations

import random
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.drivers import Driver, Message, options
from support.drivers.java import (
    FIRST_TEST_TIMEOUT_S,
    JVM_OPTIONS,
    SOURCES,
    classes_of,
    java_missing,
    libraries,
)

from kbroker.testing import Broker, wait_until

pytestmark = [
    pytest.mark.interop,
    pytest.mark.java,
    pytest.mark.timeout(FIRST_TEST_TIMEOUT_S),
    pytest.mark.skipif(bool(java_missing()), reason=java_missing()),
]

VERSION = "3.9.1"
PARTITIONS = 3
WORDS = [f"word{number}" for number in range(20)]
RUN_S, COUNT_S = 60.0, 60.0

Start = Callable[[str], "subprocess.Popen[bytes]"]


@pytest.fixture
def start(broker: Broker, topic: str, group: str, tmp_path: Path) -> Iterator[Start]:
    """Starts an instance of the application, by the name of its state directory."""
    classes = classes_of(VERSION, "kafka-streams", sorted((SOURCES / "streams").glob("*.java")))
    path = f"{classes}:{libraries(VERSION, 'kafka-streams')}/*"
    started: list[subprocess.Popen[bytes]] = []

    def run(name: str) -> subprocess.Popen[bytes]:
        command = ["java", *JVM_OPTIONS, "-cp", path, "WordCount", broker.bootstrap, group]
        command += [f"{topic}-in", f"{topic}-out", str(tmp_path / name)]
        log = open(tmp_path / f"{name}.log", "ab")
        one = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        log.close()
        started.append(one)
        return one

    yield run
    for one in started:
        one.kill()
        one.wait()
        for stream in (one.stdin, one.stdout):
            with suppress(OSError):
                stream.close()  # type: ignore[union-attr]


def stop(one: subprocess.Popen[bytes]) -> None:
    """Orderly: it commits and leaves."""
    assert one.stdin is not None
    one.stdin.close()
    assert one.wait(40) == 0


def wait_running(one: subprocess.Popen[bytes]) -> None:
    assert one.stdout is not None
    assert one.stdout.readline() == b"running\n"


@pytest.mark.slow
def test_word_count_is_exact_over_stops_and_kills(
    start: Start,
    create: Callable[..., None],
    driver_of: Callable[[str], Driver],
    topic: str,
) -> None:
    create(f"{topic}-in", PARTITIONS)
    create(f"{topic}-out", 1)
    writer = driver_of("confluent-kafka")
    soon = options(writer, fetch_max_wait_ms=50)
    chance = random.Random(7)
    written: Counter[str] = Counter()

    def write(lines: int) -> None:
        for partition in range(PARTITIONS):
            batch = [[chance.choice(WORDS) for _ in range(5)] for _ in range(lines)]
            messages = [Message(" ".join(words).encode()) for words in batch]
            writer.produce(f"{topic}-in", messages, partition=partition)
            written.update(word for words in batch for word in words)

    def counted() -> bool:
        """The last committed count of each word is correct; no word was ever counted too high."""
        found = writer.fetch(f"{topic}-out", 1_000_000, committed=True, timeout_s=1, **soon)
        counts = [(record.key.decode(), int(record.value)) for record in found]  # type: ignore[union-attr,arg-type]
        last = {}
        for word, count in counts:
            assert count >= last.get(word, 0), f"{word} went back from {last[word]} to {count}"
            assert count <= written[word], f"{word} was counted {count} times of {written[word]}"
            last[word] = count
        return last == written

    write(100)
    first = start("a")
    wait_running(first)
    wait_until(counted, COUNT_S, "all words are counted")
    second = start("b")
    write(100)
    wait_running(second)
    wait_until(counted, COUNT_S, "two instances count")
    write(300)
    first.kill()  # in the middle of a transaction, perhaps
    write(100)
    wait_until(counted, COUNT_S, "the other instance takes over")
    again = start("a")
    write(100)
    wait_running(again)
    stop(second)
    wait_until(counted, COUNT_S, "the first goes on")
    stop(again)
