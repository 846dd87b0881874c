"""Processes of a broker without a free file descriptor: only operations that need one wait."""

from __future__ import annotations

import os
import re
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from support.clients.wire_client import WireClient, batch_of
from support.running.pace import hold

from kbroker.errors import ErrorCode
from kbroker.testing import Broker, BrokerFailed, wait_until
from kbroker.testing.broker import COMMAND
from kbroker.workers.base import NO_DESCRIPTORS_PAUSE_MS

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]

TOPIC = "t"
ADVICE = "raise the limit on open files (ulimit -n"
SEGMENT_BYTES = 50_000
ONE_OF_EACH = {"num.io.threads": 1, "num.network.threads": 1}


def open_files(pid: int) -> set[int]:
    """Those that stay open: a checkpoint is written now and then."""
    looks = []
    for _ in range(20):
        looks.append(set(map(int, os.listdir(f"/proc/{pid}/fd"))))
        hold(0.01)
    return set.intersection(*looks)


@contextmanager
def no_descriptors(pid: int, left: int = 0) -> Iterator[None]:
    """A context in which the process can open only ``left`` files at a time."""
    taken = open_files(pid)
    free = [fd for fd in range(len(taken) + left + 1) if fd not in taken]
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (free[left], limits[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


def connected(broker: Broker) -> WireClient:
    return WireClient((broker.host, broker.port))


def produce(client: WireClient, partition: int, number: int, size: int = 1000) -> int:
    """The error code of a batch with one record."""
    batch = batch_of([b"%d" % number + b"f" * size])
    return int(client.produce(TOPIC, {partition: batch})[partition].error_code)


def values_of(client: WireClient, partition: int = 0) -> list[bytes]:
    records = client.read_all(TOPIC, partition)
    return [record.value.split(b"f")[0] for record in records if record.value]


def lines_with(broker: Broker, text: str) -> int:
    return broker.log_text.count(text)


def test_roll_without_descriptors_is_rejected_and_the_directory_stays_online() -> None:
    """It would take all partitions offline until the restart, for lack of one file."""
    settings = {**ONE_OF_EACH, "log.segment.bytes": SEGMENT_BYTES, "log.flush.interval.ms": 100}
    with Broker(settings) as broker, connected(broker) as client:
        client.create_topic(TOPIC, 2)
        assert produce(client, 0, 0) == produce(client, 1, 0) == 0
        pids = dict(broker.pids)

        with no_descriptors(broker.pids["io-0"]):
            codes = [produce(client, 0, number) for number in range(1, 100)]

            assert codes[0] == 0
            assert codes[-1] == ErrorCode.KAFKA_STORAGE_ERROR
            assert produce(client, 1, 1) == 0
            accepted = [0, *(n for n, code in enumerate(codes, 1) if code == 0)]
            assert values_of(client) == [b"%d" % number for number in accepted]
            wait_until(lambda: ADVICE in broker.log_text, 10, "the log says what to do")

        assert produce(client, 0, 100) == 0
        accepted.append(100)
        assert values_of(client) == [b"%d" % number for number in accepted]
        assert broker.pids == pids
        assert "offline" not in broker.log_text
        broker.kill_all()
        broker.start()
        with connected(broker) as later:
            assert values_of(later) == [b"%d" % number for number in accepted]


def test_partitions_beyond_the_limit_wait_and_those_that_are_open_work() -> None:
    with Broker({**ONE_OF_EACH, "log.flush.interval.ms": 100}) as broker:
        with connected(broker) as client:
            client.create_topic(TOPIC, 4)
        with connected(broker) as client, no_descriptors(broker.pids["io-0"], left=3):
            client.create_topic("later", 8)
            response = client.produce("later", {7: batch_of([b"x"])})[7]
            assert response.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            for number in range(20):
                assert produce(client, number % 4, number) == 0

        with connected(broker) as client:
            wait_until(
                lambda: client.produce("later", {7: batch_of([b"x"])})[7].error_code == 0,
                20,
                "it is opened once there are descriptors",
            )


def test_start_with_too_low_a_limit_names_the_one_that_it_needs(tmp_path: Path) -> None:
    with Broker(ONE_OF_EACH, directory=tmp_path) as broker:
        with connected(broker) as client:
            client.create_topic(TOPIC, 300)
            assert produce(client, 0, 7) == 0
        broker.stop()

        broker.command = ["prlimit", "--nofile=200:200", *COMMAND]
        broker.start()

        wait_until(lambda: "owns " in broker.log_text.partition("limit of 200")[2])
        assert "300 partitions of this io worker" in broker.log_text
        assert "raise it to 1600 or more" in broker.log_text
        assert "failed and stays offline" not in broker.log_text
        with connected(broker) as client:
            assert values_of(client) == [b"7"]


def test_start_with_a_hopeless_limit_is_rejected(tmp_path: Path) -> None:
    command = ["prlimit", "--nofile=60:60", *COMMAND]
    broker = Broker(ONE_OF_EACH, directory=tmp_path, command=command)

    with pytest.raises(BrokerFailed, match="ulimit -n=60 is not valid: expected 104"), broker:
        pass


@pytest.mark.slow
def test_connections_that_take_all_descriptors_do_not_disturb_others() -> None:
    """They are closed; established clients continue, even with files that are not open yet."""
    settings = {**ONE_OF_EACH, "log.segment.bytes": SEGMENT_BYTES}
    with Broker(settings) as broker, connected(broker) as client, ExitStack() as stack:
        client.create_topic(TOPIC, 20)
        for partition in range(20):
            for number in range(100):
                assert produce(client, partition, number) == 0
        network = broker.pids["network-0"]
        expected = [b"%d" % number for number in range(100)]

        with no_descriptors(network, left=70):
            crowd = [stack.enter_context(connected(broker)) for _ in range(100)]
            wait_until(lambda: "out of file descriptors; dropped" in broker.log_text)
            assert ADVICE in broker.log_text
            for partition in range(20):
                assert values_of(client, partition) == expected
            assert produce(client, 0, 100) == 0
            assert any(other.is_closed(1) for other in reversed(crowd))

        assert broker.pids["network-0"] == network
        with connected(broker) as another:
            assert values_of(another, 1) == expected


def test_fetch_without_any_descriptor_waits_for_one() -> None:
    with Broker({**ONE_OF_EACH}) as broker, connected(broker) as client:
        client.create_topic(TOPIC, 1)
        assert produce(client, 0, 0) == 0

        with no_descriptors(broker.pids["network-0"]):
            response = client.fetch(TOPIC, 0, 0)
            assert response.error_code == 0
            assert not response.records

        assert values_of(client) == [b"0"]
        assert "cannot open files for a fetch" in broker.log_text


def test_exporter_without_a_descriptor_waits_for_one() -> None:
    """Instead of trying again and again, at the cost of a core."""
    with Broker({**ONE_OF_EACH}) as broker:
        host, _, port = broker.metrics_url.removeprefix("http://").rpartition(":")
        wait_until(lambda: "exporter-0" in broker.pids)  # the broker serves without it
        pid = broker.pids["exporter-0"]

        begun = time.monotonic()
        with no_descriptors(pid):
            scrape = socket.create_connection((host, int(port)), timeout=60)
            wait_until(lambda: "[exporter-0] cannot accept connections" in broker.log_text)
        scrape.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        with closing(scrape), scrape.makefile("r") as response:
            text = response.read()

        elapsed_ms = (time.monotonic() - begun) * 1000
        row = r'^kbroker_accept_pauses_total{process="exporter-0"} (\d+)'
        (pauses,) = re.findall(row, text, re.MULTILINE)
        assert 1 <= int(pauses) <= elapsed_ms / NO_DESCRIPTORS_PAUSE_MS + 1
        assert broker.pids["exporter-0"] == pid
