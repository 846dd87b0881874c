"""Producers and consumers on all partitions of many topics, in processes that count every record.

    site_load.py write PLAN     a producer with acks=all, idempotent, until its stdin ends
    site_load.py read PLAN      a consumer of all partitions, likewise

PLAN is the JSON of a ``Plan``. Each record begins with its number in its partition, from 0 on. So a
reader sees at once when one is lost, doubled or out of order. Both print a line of JSON each
second, ``{"at": time.monotonic(), "records": so far}``, and at their end ``{"counts": [[records of
each partition] of each topic], "problems": [...]}``.
"""

import json
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from kbroker.client import KafkaConsumer, KafkaProducer
from kbroker.client.batches.record_arrays import Fields

NUMBER_BYTES = 8
# Faults may last; a record that is not acknowledged by then is a problem.
DELIVERY_MS = 300_000
# BOUND: records that are not acknowledged, and the memory for them.
IN_FLIGHT_RECORDS = 400_000
BUFFER_BYTES = 256 << 20
PROBLEMS_MAX = 20


@dataclass(frozen=True, slots=True)
class Plan:
    """records_per_turn: what a partition gets when it is its turn. rate: records/s, 0 for as many
    as possible. first, step: which partitions a writer has, counted over all topics. settings: of
    the client, such as those of TLS.
    """

    bootstrap: str
    topics: list[str]
    partitions: list[int]
    record_bytes: int = 175
    records_per_turn: int = 20
    rate: int = 0
    first: int = 0
    step: int = 1
    settings: dict[str, Any] = field(default_factory=dict)

    def text(self) -> str:
        return json.dumps(asdict(self))

    def places(self) -> list[tuple[int, int]]:
        """(index of the topic, partition) of each partition, mixed over the topics."""
        widest = max(self.partitions)
        rows = [(t, p) for p in range(widest) for t, n in enumerate(self.partitions) if p < n]
        return rows[self.first :: self.step]


class Worker:
    """counts: records by topic and partition; the second of them is printed each second."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.counts = [[0] * number for number in plan.partitions]
        self.records = 0
        self.problems: list[str] = []
        self._over = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()
        threading.Thread(target=self._tell, daemon=True).start()

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    def problem(self, text: str) -> None:
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(text)

    def end(self) -> None:
        print(json.dumps({"counts": self.counts, "problems": self.problems}), flush=True)

    def _listen(self) -> None:
        sys.stdin.read()
        self._over.set()

    def _tell(self) -> None:
        while not self._over.wait(1.0):
            print(json.dumps({"at": time.monotonic(), "records": self.records}), flush=True)


class Writer(Worker):
    """One turn after the other, in each of which one partition gets some records."""

    def run(self) -> None:
        waiting: deque[tuple[Any, int, int]] = deque()
        limits = {"delivery.timeout.ms": DELIVERY_MS, "buffer.memory": BUFFER_BYTES}
        with KafkaProducer(
            {**self.plan.settings, **limits},
            bootstrap_servers=self.plan.bootstrap,
            acks="all",
            linger_ms=20,
        ) as producer:
            begun, sent = time.monotonic(), 0
            for topic, partition, values in self._turns():
                futures = producer.send_many(self.plan.topics[topic], values, partition=partition)
                waiting.append((futures, topic, partition))
                sent += len(values)
                while waiting and (waiting[0][0].done() or self._is_full(sent)):
                    self._settle(*waiting.popleft())
                if self.plan.rate:
                    time.sleep(max(0.0, begun + sent / self.plan.rate - time.monotonic()))
            producer.flush(DELIVERY_MS / 1000)
            while waiting:
                self._settle(*waiting.popleft())

    def _turns(self) -> Iterator[tuple[int, int, Fields]]:
        size, count = self.plan.record_bytes, self.plan.records_per_turn
        rest = np.random.default_rng(1).integers(0, 256, (count, size), np.uint8)
        numbers = [[0] * partitions for partitions in self.plan.partitions]
        starts, sizes = np.arange(count) * size, np.full(count, size, np.int32)
        places = self.plan.places()
        while not self.is_over:
            for topic, partition in places:
                first = numbers[topic][partition]
                buffer = rest.copy()
                own = np.arange(first, first + count).astype(">i8")
                buffer[:, :NUMBER_BYTES] = own.view(np.uint8).reshape(count, NUMBER_BYTES)
                numbers[topic][partition] = first + count
                yield topic, partition, Fields(buffer.reshape(-1), starts, sizes)
                if self.is_over:
                    return

    def _is_full(self, sent: int) -> bool:
        return sent - self.records > IN_FLIGHT_RECORDS

    def _settle(self, futures: Any, topic: int, partition: int) -> None:
        errors = futures.exceptions(DELIVERY_MS / 1000)
        self.records += len(futures)
        self.counts[topic][partition] += len(futures) - len(errors)
        for error in errors.values():
            self.problem(f"{self.plan.topics[topic]}-{partition} is not written: {error!r}")


class Reader(Worker):
    """Every partition from its beginning."""

    def run(self) -> None:
        topics = {name: number for number, name in enumerate(self.plan.topics)}
        with KafkaConsumer(
            self.plan.settings,
            bootstrap_servers=self.plan.bootstrap,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            fetch_max_wait_ms=100,
        ) as consumer:
            places = self.plan.places()
            consumer.assign([(self.plan.topics[topic], number) for topic, number in places])
            while not self.is_over:
                for columns in consumer.poll_columns(0.2, keys=False, arrays=True):
                    self._take(topics[columns.topic], columns.partition, columns.arrays.values)

    def _take(self, topic: int, partition: int, values: Fields) -> None:
        buffer, starts = np.asarray(values.buffer), np.asarray(values.starts)
        places = starts[:, None] + np.arange(NUMBER_BYTES)
        numbers = buffer[places].view(">i8").reshape(-1)
        first = self.counts[topic][partition]
        if not np.array_equal(numbers, np.arange(first, first + len(numbers))):
            self.problem(
                f"{self.plan.topics[topic]}-{partition}: {numbers[:5]}... follow {first - 1}"
            )
        self.counts[topic][partition] = int(numbers[-1]) + 1
        self.records += len(numbers)


WORKERS: dict[str, type[Writer] | type[Reader]] = {"write": Writer, "read": Reader}


def main() -> None:
    worker = WORKERS[sys.argv[1]](Plan(**json.loads(sys.argv[2])))
    worker.run()
    worker.end()


if __name__ == "__main__":
    main()
