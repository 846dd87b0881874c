"""Transactions of a Java producer, back to back: what it committed is there, and nothing else."""

from __future__ import annotations

from confluent_kafka import Consumer, TopicPartition
from support.drivers.confluent import Confluent
from support.drivers.java import Java
from support.drivers.transactions import JavaTransactions

from kbroker.testing import Broker, Cluster

PARTITIONS = 3
# Enough for some to be coordinated in the io worker of the transaction, and some not.
GROUPS = [f"g{number}" for number in range(8)]
CHUNK_MS = 20_000


class Exam:
    """One producer in a loop, and its results."""

    def __init__(self, broker: Broker | Cluster, java: Java, replicas: int = 1) -> None:
        self.bootstrap = broker.bootstrap
        self.reader = Confluent(broker.bootstrap)
        self.reader.create_topic("t", PARTITIONS, replicas=replicas)
        self.producer = JavaTransactions(java, broker.bootstrap, "tx", 60_000)
        self.producer.init()
        self.commits = self.aborts = self.sending = self.next = 0
        self.committed: dict[str, int] = {}
        self.errors: list[str] = []

    def run(self, count: int) -> None:
        end = self.next + count
        while self.next < end:
            told = self.producer.loop(
                "t",
                PARTITIONS,
                GROUPS,
                first=self.next,
                count=end - self.next,
                limit_ms=CHUNK_MS,
            )
            self.next = told["next"]
            self.commits += told["commits"]
            self.aborts += told["aborts"]
            self.sending += told["sending"]
            self.committed |= told["committed"]
            self.errors += told["errors"]
            assert not told["fatal"], f"after {self.commits} commits: {self.errors[-3:]}"

    def check(self) -> None:
        """All committed records are there once, and nothing else."""
        for partition in range(PARTITIONS):
            found = self.reader.fetch("t", self.sending, partition=partition, committed=True)
            values = [int(record.value or b"") for record in found]
            assert values == sorted(set(values))
            assert len(values) == self.sending
        for group, number in self.committed.items():
            settings = {"bootstrap.servers": self.bootstrap, "group.id": group, "log_level": 0}
            consumer = Consumer(settings)
            (place,) = consumer.committed([TopicPartition("t", 0)], 10)
            consumer.close()
            assert place.offset == number
