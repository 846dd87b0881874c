"""When a cluster does not take records: a producer for each of some partitions."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from itertools import cycle

from perf.clusters import Cluster
from perf.raw_client import RawClient
from perf.waiting import wait_until

Address = tuple[str, int]

PAUSE_S = 0.01


class Prober:
    """Writes ``record``, a batch, with acks=all to each of some partitions every PAUSE_S seconds.

    The partitions are written to independently, and a rejected record goes to the next broker at
    once: what a client loses by its back-off or by fetching metadata is not part of the times.
    ``longest_gap``: the longest time between two acknowledgements of one partition, in seconds.
    """

    def __init__(
        self, cluster: Cluster, topic: str, partitions: Collection[int], record: bytes
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._record = record
        self._acknowledged = dict.fromkeys(partitions, time.monotonic())
        self._done = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(partition,), daemon=True)
            for partition in partitions
        ]
        self._gaps = dict.fromkeys(partitions, 0.0)

    @property
    def longest_gap(self) -> float:
        return max(self._gaps.values())

    def forget_gaps(self) -> None:
        self._gaps.update(dict.fromkeys(self._gaps, 0.0))

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join(30)

    def _run(self, partition: int) -> None:
        clients: dict[Address, RawClient] = {}
        for broker in cycle(self._cluster.brokers):
            while self._write(clients, broker.address, partition):
                now = time.monotonic()
                gap = now - self._acknowledged[partition]
                self._gaps[partition] = max(self._gaps[partition], gap)
                self._acknowledged[partition] = now
                if self._done.wait(PAUSE_S):
                    return
            if self._done.wait(PAUSE_S / 10):
                return

    def _write(self, clients: dict[Address, RawClient], address: Address, partition: int) -> bool:
        try:
            if address not in clients:
                clients[address] = RawClient(address, timeout=5)
            return clients[address].produce(self._topic, partition, self._record, acks=-1) == 0
        except OSError:
            clients.pop(address, None)
            return False

    def wait_for_all(self, since: float, timeout: float) -> float:
        """Wait until each partition has acknowledged a record after ``since``; returns the seconds
        from it.
        """

        def late() -> list[int]:
            return [partition for partition, at in self._acknowledged.items() if at <= since]

        wait_until(
            lambda: not late(),
            lambda: f"{self._cluster.name}: no record of {late()} acknowledged",
            timeout,
            0.001,
        )
        return max(self._acknowledged.values()) - since
