"""Exam E10 at any size: a compacted topic against a dict, with processes killed all the time.

    python tests/fault/compaction_exam.py           2,000,000 records, 100,000 keys, 20 kills
    python tests/fault/compaction_exam.py --records 50000 --keys 2000 --kills 4

A fifth of the records are tombstones; half of them go through transactions, of which a quarter is
aborted. Cleaner and io workers are killed at random while it is written and compacted. A reader of
committed records follows from the first offset to the last: no offset comes twice or goes back, and
every committed record that it is handed is the one that was written there. In the end the log holds
the last committed value of each key, at its own offset, and nothing that was aborted.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from kbroker.testing import Broker  # noqa: E402
from kbroker.testing.waiting import wait_until  # noqa: E402

TOPIC = "exam"
VICTIMS = (("cleaner", 0), ("io", 0), ("io", 1))
SETTINGS = {
    "log.cleaner.backoff.ms": 50,
    "log.cleaner.dedupe.buffer.size": 16 << 20,
    "worker.restart.backoff.ms": 1,
    "worker.restart.backoff.max.ms": 500,
    "transaction.state.log.num.partitions": 4,
    "log.segment.delete.delay.ms": 100,
}
TOPIC_SETTINGS = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.1",
    "delete.retention.ms": "86400000",
}
ROUND_RECORDS = 2000
ABORT_SHARE, TOMBSTONE_SHARE = 0.25, 0.2


class Written:
    """Acknowledged records by offset: (key, value); and the aborted ones."""

    def __init__(self) -> None:
        self.committed: dict[int, tuple[bytes, bytes | None]] = {}
        self.aborted: set[int] = set()

    def last(self) -> dict[bytes, tuple[int, bytes | None]]:
        found: dict[bytes, tuple[int, bytes | None]] = {}
        for offset in sorted(self.committed):
            key, value = self.committed[offset]
            found[key] = (offset, value)
        return found


class Writer:
    """Rounds of records, each plain or one transaction."""

    def __init__(self, bootstrap: str, chance: random.Random, keys: int, written: Written) -> None:
        self.chance = chance
        self.keys = keys
        self.written = written
        self.count = 0
        self.round: list[tuple[int, bytes, bytes | None]] = []
        options = {"bootstrap.servers": bootstrap, "linger.ms": 2, "compression.type": "lz4"}
        self.plain = Producer({**options, "enable.idempotence": True})
        self.transactional = Producer(
            {**options, "transactional.id": "exam", "transaction.timeout.ms": 60_000}
        )
        self.transactional.init_transactions(60)

    def delivered(self, error: object, message: object) -> None:
        if error is not None:
            raise AssertionError(f"not delivered: {error}")
        self.round.append((message.offset(), message.key(), message.value()))  # type: ignore[attr-defined]

    def write(self, count: int) -> None:
        is_transaction = self.chance.random() < 0.5
        aborts = is_transaction and self.chance.random() < ABORT_SHARE
        producer = self.transactional if is_transaction else self.plain
        self.round = []
        if is_transaction:
            producer.begin_transaction()
        for _ in range(count):
            self.count += 1
            key = b"key-%d" % self.chance.randrange(self.keys)
            is_tombstone = self.chance.random() < TOMBSTONE_SHARE
            value = None if is_tombstone else b"%d " % self.count + b"v" * 40
            while True:
                try:
                    producer.produce(TOPIC, value, key, 0, self.delivered)
                    break
                except BufferError:
                    producer.poll(0.1)
            producer.poll(0)
        left = producer.flush(120)
        assert left == 0 and len(self.round) == count, f"{left} of {count} are not delivered"
        if is_transaction:
            self.end(aborts)
        if aborts:
            self.written.aborted.update(offset for offset, _, _ in self.round)
        else:
            self.written.committed.update((at, (key, value)) for at, key, value in self.round)

    def end(self, aborts: bool) -> None:
        while True:
            try:
                if aborts:
                    self.transactional.abort_transaction(60)
                else:
                    self.transactional.commit_transaction(60)
                return
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise


class Follower:
    """Reads from the start in parallel; its records are checked at the end."""

    def __init__(self, bootstrap: str, isolation: str = "read_committed") -> None:
        self.seen: list[tuple[int, bytes, bytes | None]] = []
        self.failure: str | None = None
        self.reached = 0
        self.consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "exam", "enable.auto.commit": False,
             "check.crcs": True, "isolation.level": isolation}
        )  # fmt: skip
        self.consumer.assign([TopicPartition(TOPIC, 0, 0)])
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while not self.stopping.is_set():
            for message in self.consumer.consume(1000, 0.1):
                if message.error():
                    continue  # the client tries again by itself
                self.seen.append((message.offset(), message.key(), message.value()))
            position = self.consumer.position([TopicPartition(TOPIC, 0)])[0].offset
            self.reached = max(self.reached, position)

    def stop(self) -> None:
        self.stopping.set()
        self.thread.join(30)
        self.consumer.close()

    def check(self, written: Written) -> None:
        before = -1
        for offset, key, value in self.seen:
            assert offset > before, f"offset {offset} came after {before}"
            assert offset not in written.aborted, f"{offset} was aborted"
            assert written.committed.get(offset) == (key, value), f"{offset} is another record"
            before = offset


def run(
    records: int, keys: int, kills: int, seed: int, directory: Path,
    say: Callable[[str], None] = print,
) -> None:  # fmt: skip
    """The exam; raises AssertionError for a difference."""
    chance = random.Random(seed)
    written = Written()
    segment = max(100_000, min(64 << 20, records))
    with Broker(SETTINGS, directory=directory) as broker, ThreadPoolExecutor(1) as pool:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        settings = {**TOPIC_SETTINGS, "segment.bytes": str(segment)}
        admin.create_topics([NewTopic(TOPIC, 1, 1, config=settings)])[TOPIC].result(10)
        writer = Writer(broker.bootstrap, chance, keys, written)
        follower = Follower(broker.bootstrap)
        rounds = max(1, records // ROUND_RECORDS)
        doomed = set(chance.sample(range(rounds), min(kills, rounds)))
        began = time.monotonic()
        for number in range(rounds):
            killer = None
            if number in doomed:
                victim = chance.choice(VICTIMS)
                killer = pool.submit(_kill_later, broker, victim, chance.uniform(0, 0.2))
            writer.write(min(ROUND_RECORDS, records))
            if killer is not None:
                killer.result()
            if number % 100 == 99:
                say(f"{writer.count} records after {time.monotonic() - began:.0f} s")
        end = 1 + max(max(written.committed), max(written.aborted, default=0))
        wait_until(lambda: follower.reached >= end, 120, "the reader is at the end")
        follower.stop()
        follower.check(written)
        say(f"the reader saw {len(follower.seen)} of {len(written.committed)} committed records")
        for _ in range(3):  # and in the middle of a pass over everything
            broker.kill("cleaner", 0)
        wait_until(lambda: is_compact(Path(broker.data_dir)), 300, "compacted")
        check_log(broker, written, end, say)
        assert "cannot be compacted" not in broker.log_text
        assert "Traceback" not in broker.log_text, broker.log_text[-3000:]


def _kill_later(broker: Broker, victim: tuple[str, int], seconds: float) -> None:
    threading.Event().wait(seconds)
    broker.kill(*victim)


def is_compact(data: Path) -> bool:
    """Whether the cleaner has compacted all sealed segments."""
    checkpoint = data / "cleaner-offset-checkpoint"
    lines = checkpoint.read_text().splitlines()[2:] if checkpoint.exists() else []
    ends = {tuple(line.split()[:2]): int(line.split()[2]) for line in lines}
    active = max(int(path.stem) for path in (data / f"{TOPIC}-0").glob("*.log"))
    return ends.get((TOPIC, "0"), -1) >= active * 0.9


def check_log(broker: Broker, written: Written, end: int, say: Callable[[str], None]) -> None:
    reader = Follower(broker.bootstrap)
    wait_until(lambda: reader.reached >= end, 120, "all is read")
    reader.stop()
    reader.check(written)
    found = {key: (offset, value) for offset, key, value in reader.seen}
    expected = written.last()
    different = {key for key in expected if found.get(key) != expected[key]}
    assert not different, f"{len(different)} keys, such as {sorted(different)[:3]}"
    say(f"{len(reader.seen)} records are left, of {len(expected)} keys; no difference")


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="kbroker-exam-") as directory:
        run(options.records, options.keys, options.kills, options.seed, Path(directory),
            lambda text: print(text, flush=True))  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
