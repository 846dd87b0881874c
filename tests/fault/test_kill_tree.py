"""The whole broker is killed, or shut down, under load and started on the same files (exams E1 and
E14).
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest
from fault.leftovers import Leftovers
from support.clients.wire_client import WireClient, batch_of, produce_request
from support.faults.history import History
from support.faults.load import TOPIC, Load, assert_consistent
from support.running.pace import hold

from kbroker.protocol import codec
from kbroker.protocol.messages.produce import ProduceResponse
from kbroker.testing import Broker, BrokerFailed, wait_until

pytestmark = [pytest.mark.fault, pytest.mark.timeout(180)]

PARTITIONS = 4
STOP_WITHIN_S = 2.0
MARKER = ".kafka_cleanshutdown"
SETTINGS = {"log.segment.bytes": 100_000, "log.flush.interval.ms": 200}


def kills(scale: int) -> int:
    return 1 if scale == 1 else 2 * scale


def started_load(broker: Broker, history: History, seed: int) -> Load:
    with WireClient((broker.host, broker.port)) as client:
        client.create_topic(TOPIC, PARTITIONS)
    load = Load(broker, history, PARTITIONS, seed)
    for partition in range(PARTITIONS):
        load.raw_writer(partition)
        load.raw_writer(partition, idempotent=True)
    load.raw_reader(0)
    load.librdkafka_writer("rd-acks1", acks=1)
    load.librdkafka_writer("rd-idempotent", enable_idempotence=True)
    load.librdkafka_reader("rd-reader")
    return load


def wait_until_all_write(history: History) -> None:
    """Each writer gets an acknowledgement from now on."""
    before = {name: len(log.acked) for name, log in history.writers.items()}
    wait_until(
        lambda: all(len(history.writers[name].acked) > n for name, n in before.items()),
        20,
        "every writer gets an acknowledgement",
    )


def test_killed_tree_keeps_what_was_acknowledged(
    seed: int, scale: int, leftovers: Leftovers
) -> None:
    history = History()
    chance = random.Random(seed)
    times: list[float] = []
    with Broker(SETTINGS) as broker:
        with started_load(broker, history, seed):
            for _ in range(kills(scale)):
                wait_until_all_write(history)
                hold(chance.uniform(0, 1))
                leftovers.note(broker)
                broker.kill_all()
                leftovers.check(killed=True)
                assert not (broker.data_dir / MARKER).exists()
                began = time.monotonic()
                broker.start()
                wait_until_all_write(history)
                times.append(time.monotonic() - began)
        leftovers.note(broker)
        assert_consistent(broker, history, PARTITIONS)
    leftovers.check()
    # The best time is the broker's own, the others include delays of the machine.
    assert min(times) < 5, f"{times} s from the start to records of every writer"


def test_tree_killed_while_it_starts_keeps_what_was_acknowledged(seed: int, scale: int) -> None:
    history = History()
    chance = random.Random(seed)
    with Broker(SETTINGS) as broker:
        with started_load(broker, history, seed):
            wait_until_all_write(history)
            for _ in range(kills(scale)):
                broker.kill_all()
                kill_during_start(broker, chance.uniform(0.05, 0.5))
                broker.start()
                wait_until_all_write(history)
        assert_consistent(broker, history, PARTITIONS)


def kill_during_start(broker: Broker, after_s: float) -> None:
    """Kill it ``after_s`` seconds after the beginning of its start, whether it responds by then or
    not.
    """
    old_pid = broker.pid

    def kill_later() -> None:
        hold(after_s)
        wait_until(lambda: broker.pid != old_pid, 5, "it is started")
        os.kill(broker.pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_later)
    killer.start()
    with suppress(BrokerFailed):  # killed before it answered
        broker.start()
    killer.join()
    broker.kill_all()


def test_stopped_broker_is_clean_within_two_seconds(
    seed: int, scale: int, leftovers: Leftovers, tmp_path: Path
) -> None:
    history = History()
    chance = random.Random(seed)
    dirs = [tmp_path / "a", tmp_path / "b"]
    times: list[float] = []
    with Broker(SETTINGS, log_dirs=",".join(map(str, dirs))) as broker:
        with started_load(broker, history, seed):
            for _ in range(kills(scale)):
                wait_until_all_write(history)
                hold(chance.uniform(0, 1))
                leftovers.note(broker)
                began = time.monotonic()
                assert broker.stop() == 0
                times.append(time.monotonic() - began)
                leftovers.check()
                assert all((path / MARKER).exists() for path in dirs)
                lines_before = len(broker.log_text.splitlines())
                broker.start()
                wait_until_all_write(history)
                since = broker.log_text.splitlines()[lines_before:]
                complaints = [line for line in since if " WARNING " in line or " ERROR " in line]
                assert not complaints, complaints
        assert_consistent(broker, history, PARTITIONS)
    leftovers.check()
    assert min(times) < STOP_WITHIN_S, f"{times}; all but the best may be the machine's"


def produces(broker: Broker) -> int:
    """The number of produce requests in network processes."""
    with urllib.request.urlopen(f"{broker.metrics_url}/metrics", timeout=30) as response:
        lines = response.read().decode().splitlines()
    counts = [line for line in lines if line.startswith("kbroker_requests_total{")]
    return sum(int(line.split()[-1]) for line in counts if 'api="Produce"' in line)


def test_stop_waits_for_responses_as_long_as_it_has_time(leftovers: Leftovers) -> None:
    """A disk that is slow for a second. An idempotent producer whose batches were written without a
    response would get OUT_OF_ORDER_SEQUENCE_NUMBER: only the last batch before the shutdown is
    known.
    """
    with Broker() as broker, WireClient((broker.host, broker.port), timeout=60) as client:
        client.create_topic(TOPIC, 1)
        before = produces(broker)
        pids = [broker.kill("io", index, signal.SIGSTOP) for index in (0, 1)]
        client.send(produce_request(TOPIC, {0: batch_of([b"v"])}), 8)
        wait_until(lambda: produces(broker) > before, what="the request is taken")
        leftovers.note(broker)
        stopping = threading.Thread(target=broker.stop)
        stopping.start()
        hold(1)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)

        frame = client.receive()  # not the end of the connection

        stopping.join()
        response = codec.decode_exact(ProduceResponse, 8, frame, 4)
        assert response.responses[0].partition_responses[0].error_code == 0
        assert broker.stop() == 0
        assert (broker.data_dir / MARKER).exists()
    leftovers.check()


@pytest.mark.parametrize("kind", ["network", "io", "controller", "exporter", "acceptor"])
def test_stop_ends_in_time_when_a_process_does_not_move(kind: str, leftovers: Leftovers) -> None:
    with Broker(shutdown_timeout_ms=1500) as broker:
        with WireClient((broker.host, broker.port)) as client:
            client.create_topic(TOPIC, 1)
        leftovers.note(broker)
        broker.kill(kind, 0, signal.SIGSTOP)
        began = time.monotonic()

        broker.stop()

        # And a margin for a stalled machine; the process would not exit on its own.
        assert time.monotonic() - began < STOP_WITHIN_S + 13
    leftovers.check()
