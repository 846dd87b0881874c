"""The speed of the ZooKeeper store with the state nodes of many partitions.

    python -m perf.zookeeper_store HOST:PORT[/PATH] [--partitions N] [--window N]

Creates a topic in a path of its own, reads it as a new controller does, writes all states as after
an election, and removes everything. One line for each: requests, seconds, requests a second.
"""

from __future__ import annotations

import os
import select
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kbroker.config.loader import BrokerConfig
from kbroker.ipc.pending import Pending
from kbroker.metastore import paths
from kbroker.metastore.session_file import SessionFile
from kbroker.metastore.store import SessionState, StoreOperation
from kbroker.metastore.zookeeper import ZooKeeperStore
from kbroker.metastore.zookeeper_settings import settings_of
from perf.arguments import Arguments

TOPIC = "perf"
MULTI = 1_000  # operations in a transaction
TIMEOUT_S = 300.0


class Run:
    """A store, driven by this thread."""

    def __init__(self, connect: str, window: int, runtime_dir: str) -> None:
        config = BrokerConfig(
            {
                "zookeeper.connect": f"{connect.rstrip('/')}/kbroker-perf-{os.getpid()}",
                "zookeeper.max.in.flight.requests": str(window),
            }
        )
        settings = settings_of(config)
        self.store = ZooKeeperStore(settings, SessionFile(runtime_dir, settings.connect))
        states: list[SessionState] = []
        self.store.watch_session(states.append)
        self._until(lambda: states[-1] is SessionState.CONNECTED)

    def all(self, pending: Sequence[Pending[Any]]) -> list[Any]:
        """The values, once all have arrived."""
        for one in pending:
            self._until(lambda one=one: one.done)  # type: ignore[misc]
            if one.error is not None:
                raise one.error
        return [one.value for one in pending]

    def _until(self, condition: Callable[[], bool]) -> None:
        poll, deadline = select.poll(), time.monotonic() + TIMEOUT_S
        poll.register(self.store.fd, select.POLLIN)
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"ZooKeeper did not respond within {TIMEOUT_S:g} s")
            if poll.poll(100):
                self.store.drain()


@contextmanager
def timed(what: str, requests: int) -> Iterator[None]:
    """Print how long the block took."""
    began, cpu = time.monotonic(), time.process_time()
    yield
    took, cpu = time.monotonic() - began, time.process_time() - cpu
    print(f"{what:28} {requests:6} in {took:6.2f} s: {requests / took:7.0f}/s, "
          f"CPU {cpu * 1e6 / requests:4.0f} us each")  # fmt: skip


def measure(run: Run, partitions: int) -> None:
    store = run.store
    state = paths.encode_partition_state(1, 5, [1, 2, 3], 7)
    nodes = [paths.partition_state(TOPIC, number) for number in range(partitions)]

    def in_transactions(operations: list[StoreOperation]) -> None:
        parts = range(0, len(operations), MULTI)
        run.all([store.apply(operations[first : first + MULTI]) for first in parts])

    parents = [paths.topic(TOPIC), paths.topic_partitions(TOPIC)]
    parents += [paths.partition(TOPIC, number) for number in range(partitions)]
    creates = [StoreOperation("create", path) for path in parents]
    creates += [StoreOperation("create", path, state) for path in nodes]
    with timed(f"create, {MULTI} a transaction", len(creates)):
        in_transactions(creates)
    with timed("get", partitions):
        run.all([store.get(path) for path in nodes])
    with timed("set, one a transaction", partitions):
        run.all([store.set(path, state, 0) for path in nodes])
    with timed(f"set, {MULTI} a transaction", partitions):
        in_transactions([StoreOperation("set", path, state, 1) for path in nodes])
    with timed("nodes read by subtree", len(creates) - 1):
        run.all([store.subtree(paths.topic(TOPIC))])
    in_transactions([StoreOperation("delete", operation.path) for operation in reversed(creates)])


def main(arguments: list[str] | None = None) -> int:
    parser = Arguments(__doc__)
    parser.add_argument("connect")
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--window", type=int, default=10, help="requests in flight")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as runtime_dir:
        run = Run(options.connect, options.window, runtime_dir)
        measure(run, options.partitions)
        run.all([run.store.close()])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
