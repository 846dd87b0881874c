"""Quix Streams, which is built on confluent-kafka, with our clients in the place of its consumers
and producers. It has an environment of its own, as it wants other releases than we test with.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path

import pytest

from kbroker.client import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kbroker.client.admin.topics import NewTopic
from kbroker.testing import Broker, ProcessEnded, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENT = "quixstreams==3.28.1"
SETTINGS = {
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "group.initial.rebalance.delay.ms": 0,
}
PARTITIONS = 3
KEYS = 7
IDLE_S = 300
WAIT_S = 120.0


@pytest.fixture(scope="module")
def python() -> Path:
    """The interpreter of the environment, which is kept in .cache."""
    place = ROOT / ".cache" / REQUIREMENT.replace("==", "-")
    made = place / "bin" / "python"
    if not (place / "made").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(place)], check=True)
        install = [str(made), "-m", "pip", "install", "--quiet", REQUIREMENT]
        done = subprocess.run(install, capture_output=True, text=True)
        if done.returncode and not os.environ.get("CI"):
            pytest.skip(f"{REQUIREMENT} cannot be installed: {done.stderr.strip()[-300:]}")
        assert done.returncode == 0, done.stderr
        (place / "made").touch()
    return made


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(SETTINGS) as running:
        yield running


class Pipelines:
    """Processes of one application, from a topic of numbers to one of their sums."""

    def __init__(self, python: Path, broker: Broker, place: Path, name: str) -> None:
        self._python, self._broker, self._place = python, broker, place
        self.source, self.target = f"{name}-in", f"{name}-out"
        self._sent: dict[bytes, list[int]] = defaultdict(list)
        self._begun = 0
        with KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topics([NewTopic(one, PARTITIONS) for one in (self.source, self.target)])

    def send(self, numbers: range) -> None:
        with KafkaProducer(bootstrap_servers=self._broker.bootstrap) as producer:
            for number in numbers:
                key = b"key-%d" % (number % KEYS)
                self._sent[key].append(number)
                producer.send(self.source, b"%d" % number, key=key)

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        """One more, with a state of its own, which it finds in the changelog."""
        self._begun += 1
        log = self._place / f"log-{self._begun}"
        state = self._place / f"state-{self._begun}"
        command = [
            str(self._python), "-m", "interop.quix_pipeline", self._broker.bootstrap,
            self.source, self.target, str(state), str(IDLE_S),
        ]  # fmt: skip
        path = os.pathsep.join([str(ROOT / "tests"), str(ROOT)])
        with log.open("wb") as file:
            process = subprocess.Popen(
                command, cwd=ROOT / "tests", env={**os.environ, "PYTHONPATH": path}, stderr=file
            )
        try:
            yield process
            if process.poll() not in (None, 0, -signal.SIGKILL):
                raise ProcessEnded(log.read_text()[-6000:])
        finally:
            process.terminate()
            try:
                process.wait(WAIT_S)
            finally:
                process.kill()

    def sums(self) -> dict[bytes, list[int]]:
        """What a reader of committed records gets."""
        found: dict[bytes, list[int]] = defaultdict(list)
        with KafkaConsumer(
            bootstrap_servers=self._broker.bootstrap,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        ) as reader:
            reader.assign([(self.target, number) for number in range(PARTITIONS)])
            ends = reader.end_offsets(reader.assignment())
            while any(reader.position(key) < end for key, end in ends.items()):
                for record in reader.poll(0.2):
                    found[record.key].append(int(record.value))
        return found

    def count(self) -> int:
        return sum(map(len, self.sums().values()))

    def wait(self, count: int) -> None:
        wait_until(lambda: self.count() >= count, WAIT_S, f"{count} sums")

    def wait_members(self, count: int) -> None:
        """Until so many share the partitions."""

        def shared() -> bool:
            with KafkaAdminClient(bootstrap_servers=self._broker.bootstrap) as admin:
                found = admin.describe_groups([self.source])[self.source]
            assert found.state == "Stable" and len(found.members) == count, str(found)
            return True

        wait_until(shared, WAIT_S, f"{count} members")

    def check(self) -> None:
        """The sums of each key are those of its numbers, one after the other, each once."""
        assert self.sums() == {key: list(accumulate(row)) for key, row in self._sent.items()}


@pytest.fixture
def pipelines(
    python: Path, broker: Broker, tmp_path: Path, request: pytest.FixtureRequest
) -> Pipelines:
    name = "".join(one if one.isalnum() else "-" for one in request.node.name)
    return Pipelines(python, broker, tmp_path, name)


def test_a_pipeline_that_is_killed_counts_each_record_once(pipelines):
    """Its transactions end with the offsets of what they have read, and its state is read from the
    changelog by the next one, to where the last transaction has ended.
    """
    for number in range(3):
        pipelines.send(range(number * 200, number * 200 + 200))
        with pipelines.running() as process:
            pipelines.wait(number * 200 + 50)
            process.kill()

    with pipelines.running():
        pipelines.wait(600)
    pipelines.check()


def test_partitions_that_move_between_two_pipelines_are_counted_once(pipelines):
    """A partition's state goes with it: who gets it reads the changelog first."""
    pipelines.send(range(200))
    with pipelines.running():
        pipelines.wait(200)
        with pipelines.running():
            pipelines.wait_members(2)
            pipelines.send(range(200, 400))
            pipelines.wait(400)
        pipelines.wait_members(1)
        pipelines.send(range(400, 600))
        pipelines.wait(600)
    pipelines.check()
