"""Fixtures of the hostile input tests: a broker, its memory, and a well-behaved client."""

from __future__ import annotations

import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType

from support.brokers.all_processes import all_pids
from support.clients.wire_client import WireClient, batch_of
from support.running.sanitizer import SANITIZED, TIME_FACTOR

from kbroker.testing import Broker, wait_until

MIB = 1 << 20


def memory_bytes(broker: Broker) -> int:
    """Proportional set size (PSS) of the whole process tree, without files: a broker's part of
    those is 3 MiB or 11, as other Pythons on the machine start and end.
    """
    total = 0
    for pid in [broker.pid, *broker.pids.values()]:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            sizes = dict(line.split()[:2] for line in file if line.startswith("Pss"))
        total += int(sizes["Pss_Anon:"]) + int(sizes["Pss_Shmem:"])
    return total * 1024


def refused_count(broker: Broker) -> int:
    """The number of connections closed because of bad input, or rejected."""
    with urllib.request.urlopen(f"{broker.metrics_url}/metrics", timeout=30) as response:
        lines = response.read().decode().splitlines()
    name = "kbroker_invalid_requests_total"
    return sum(int(line.split()[-1]) for line in lines if line.startswith(name))


@contextmanager
def nothing_dies(broker: Broker, growth_max: int = 16 * MIB) -> Iterator[None]:
    """No process exits and resident memory grows by at most ``growth_max`` bytes."""
    pids = all_pids(broker)
    before = memory_bytes(broker)
    yield
    growth = memory_bytes(broker) - before
    assert broker.pids == pids, broker.log_text[-2000:]
    assert growth <= growth_max or SANITIZED, f"the tree grew by {growth / MIB:.1f} MiB"


class Stalls:
    """Detects stalls of the machine, in which a short sleep and a small write take long."""

    NOTED_S = 0.1
    PAUSE_S = 0.02

    def __init__(self) -> None:
        self._found: list[tuple[float, float]] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with tempfile.TemporaryFile(buffering=0) as file:
            while not self._stopping.is_set():
                began = time.monotonic()
                time.sleep(self.PAUSE_S)
                file.write(b"x")
                ended = time.monotonic()
                if ended - began > self.NOTED_S:
                    self._found.append((began, ended))

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def within(self, began: float, ended: float) -> float:
        """Seconds of this time in which the machine was stalled."""
        return sum(max(0.0, min(ended, last) - max(began, first)) for first, last in self._found)


class GoodClient:
    """Produces one record after another in a thread while others misbehave.

    A ``with`` block raises AssertionError at its end if a record was refused, took longer than
    ``longest_s`` (not counting time in which the machine stood still), or if ``least`` do not come
    to pass.
    """

    PAUSE_S = 0.02  # short beside what is a delay, and little work

    def __init__(
        self,
        broker: Broker,
        topic: str,
        *,
        longest_s: float = 2.0,
        least: int = 20,
        record_bytes: int = 4,
    ) -> None:
        timeout = (longest_s + 30) * TIME_FACTOR
        self._client = WireClient((broker.host, broker.port), timeout)
        self._batch = batch_of([b"g" * record_bytes])
        self._topic, self._longest_s, self._least = topic, longest_s, least
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._failure: Exception | None = None
        self.times: list[tuple[float, float]] = []

    def __enter__(self) -> GoodClient:
        self._stalls = Stalls()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            with suppress(AssertionError):  # check() reports their number
                wait_until(lambda: len(self.times) >= self._least or self._failure, 30)
        self._stopping.set()
        self._thread.join()
        self._stalls.stop()
        self._client.close()
        if error is None:
            self.check()

    def check(self) -> None:
        """Raises what went wrong."""
        if self._failure is not None:
            raise AssertionError("the good client failed") from self._failure
        assert len(self.times) >= self._least, f"only {len(self.times)} records"
        longest = max(
            ended - began - self._stalls.within(began, ended) for began, ended in self.times
        )
        assert longest <= self._longest_s or SANITIZED, f"{longest:.2f} s for a record"

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                began = time.monotonic()
                code = self._client.produce(self._topic, {0: self._batch})[0].error_code
                assert code == 0, f"error {code}"
                self.times.append((began, time.monotonic()))
                time.sleep(self.PAUSE_S)
        except Exception as error:
            self._failure = error
