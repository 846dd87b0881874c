"""Each kind of process is killed or stopped for a while under load (exam E1, S1 of E6)."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress

import pytest
from fault.leftovers import Leftovers
from support.faults.history import History
from support.faults.load import Load, assert_consistent
from support.running.grids import some_of
from support.running.pace import hold

from kbroker.testing import Broker, wait_until

pytestmark = [pytest.mark.fault, pytest.mark.timeout(180)]

KINDS = ("network", "io", "controller", "acceptor", "exporter")
PARTITIONS = 4
KILLS = 2
STOP_S = float(os.environ.get("KBROKER_FAULT_STOP_S", "1.5"))
PROGRESS_OPERATIONS = 100  # Redpanda's bar, during the fault
WINDOW_S = 1.0


def start_load(broker: Broker, history: History, seed: int) -> Load:
    """Raw and librdkafka clients on every partition, with and without idempotence."""
    load = Load(broker, history, PARTITIONS, seed)
    with_topic(broker)
    for partition in range(PARTITIONS):
        load.raw_writer(partition)
        load.raw_reader(partition)
    load.raw_writer(0, idempotent=True)
    load.raw_writer(1, idempotent=True)
    load.librdkafka_writer("rd-acks1", acks=1)
    load.librdkafka_writer("rd-all", acks="all")
    load.librdkafka_writer("rd-idempotent", enable_idempotence=True)
    load.librdkafka_reader("rd-reader")
    return load


def wait_until_all_write(history: History) -> None:
    wait_until(lambda: all(log.acked for log in history.writers.values()), 20, "all write")


def with_topic(broker: Broker) -> None:
    from support.clients.wire_client import WireClient
    from support.faults.load import TOPIC

    with WireClient((broker.host, broker.port)) as client:
        client.create_topic(TOPIC, PARTITIONS)


def others(kind: str, index: int) -> list[int] | None:
    """Partitions that the process has no part in; None for all of them.

    On a fresh broker partition n has slot n, which io worker n % 2 owns.
    """
    return [p for p in range(PARTITIONS) if p % 2 != index] if kind == "io" else None


def done_since(history: History, began: float, kind: str, index: int) -> int:
    """Operations on partitions that the process has no part in."""
    return history.operations(began, time.monotonic(), others(kind, index))


@pytest.mark.parametrize("kind", some_of(KINDS, ["network", "io"]))
def test_killed_process_loses_nothing_and_others_continue(
    kind: str, seed: int, scale: int, leftovers: Leftovers
) -> None:
    history = History()
    chance = random.Random(seed)
    done: list[int] = []
    with Broker() as broker:
        with start_load(broker, history, seed):
            wait_until_all_write(history)
            for _ in range(KILLS * scale):
                index = chance.randrange(2) if kind in ("network", "io") else 0
                began = time.monotonic()
                pid = broker.kill(kind, index)
                leftovers.note(broker)
                hold(WINDOW_S)
                done.append(done_since(history, began, kind, index))
                title = f"{kind}-{index}"
                wait_until(lambda t=title, p=pid: broker.pids.get(t, p) != p, 15, f"new {title}")
                assert_every_writer_goes_on(history)
                hold(chance.uniform(0, 0.5))
        leftovers.note(broker)
        assert_consistent(broker, history, PARTITIONS)
    leftovers.check()
    # A stalled machine may leave nothing of a single window.
    assert max(done) >= PROGRESS_OPERATIONS, f"{done} operations in the second of each kill"


@pytest.mark.parametrize("kind", some_of(KINDS, ["io"]))
def test_stopped_process_delays_only_its_own_and_loses_nothing(
    kind: str, seed: int, scale: int, leftovers: Leftovers
) -> None:
    history = History()
    chance = random.Random(seed)
    with Broker() as broker:
        with start_load(broker, history, seed):
            wait_until_all_write(history)
            for _ in range(scale):
                index = chance.randrange(2) if kind in ("network", "io") else 0
                began = time.monotonic()
                pid = broker.kill(kind, index, signal.SIGSTOP)
                leftovers.note(broker)
                try:
                    hold(STOP_S)
                    wait_until(
                        lambda b=began, i=index: (
                            done_since(history, b, kind, i) >= PROGRESS_OPERATIONS
                        ),
                        what=f"the others go on while {kind}-{index} stands still",
                    )
                    assert broker.pids[f"{kind}-{index}"] == pid, "it stands no more"
                finally:
                    with suppress(ProcessLookupError):  # stalled for so long that it was replaced
                        os.kill(pid, signal.SIGCONT)
                assert_every_writer_goes_on(history)
        leftovers.note(broker)
        assert_consistent(broker, history, PARTITIONS)
    leftovers.check()


def assert_every_writer_goes_on(history: History) -> None:
    """Each writer gets an acknowledgement from now on."""
    before = {name: len(writer.acked) for name, writer in history.writers.items()}
    wait_until(
        lambda: all(len(history.writers[name].acked) > count for name, count in before.items()),
        15,
        "every writer goes on",
    )
