"""kbroker.testing with real brokers: what a user's test suite relies on."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.brokers.process_harness import fastest_stop, http_get
from support.running.sanitizer import TIME_FACTOR

from kbroker.testing import Broker, BrokerFailed, ProcessEnded, processes, wait_until
from kbroker.testing.broker import _responds

pytestmark = pytest.mark.integration


def answers(broker: Broker) -> bool:
    return _responds(broker.host, broker.port, timeout=30)


def test_fixture_gives_a_broker_that_responds(kbroker: Broker) -> None:
    assert answers(kbroker)
    wait_until(lambda: http_get(kbroker, "/health")[0] == 200)
    assert 'kbroker_requests_total{process="network-' in wait_until(
        lambda: counted(kbroker, "ApiVersions")
    )


def counted(broker: Broker, api: str) -> str:
    lines = http_get(broker, "/metrics")[1].splitlines()
    return "\n".join(line for line in lines if f'api="{api}"' in line)


@pytest.mark.kbroker_config({"num.io.threads": 1}, num_network_threads=3)
def test_marker_configures_the_fixture(kbroker: Broker) -> None:
    titles = wait_until(lambda: len(kbroker.pids) == 8 and set(kbroker.pids))

    assert {title for title in titles if title[:2] in ("io", "ne")} == {
        "io-0",
        "network-0",
        "network-1",
        "network-2",
    }


@pytest.fixture(scope="module")
def shared() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def harmed(shared: Broker) -> Broker:
    """It runs, whatever other tests have done to it."""
    if not shared.running:
        shared.start()
    return shared


def test_restart_keeps_data_and_port(harmed: Broker) -> None:
    port, cluster = harmed.port, (harmed.data_dir / "meta.properties").read_text()

    harmed.restart()

    assert harmed.port == port
    assert (harmed.data_dir / "meta.properties").read_text() == cluster
    assert answers(harmed)


def test_port_of_a_broker_that_is_down_goes_to_nobody_else() -> None:
    with Broker() as broker:
        pids = list(broker.pids.values())
        directory = broker.directory
        broker.stop()

        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((broker.host, broker.port))
        broker.start()
        pids += broker.pids.values()

    assert not any(map(processes.exists, pids)), "nothing is left behind"
    assert not directory.exists()
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind((broker.host, broker.port))


def test_given_directory_stays(tmp_path: Path) -> None:
    with Broker(directory=tmp_path / "kept") as broker:
        assert answers(broker)

    assert "all processes have stopped" in (tmp_path / "kept" / "broker.log").read_text()
    assert (tmp_path / "kept" / "data" / ".kafka_cleanshutdown").exists()


def test_setting_that_does_not_exist_is_refused() -> None:
    """The broker would only log a warning, and the test would test something else."""
    with pytest.raises(ValueError, match=r"log\.segment\.byts.*did you mean log\.segment\.bytes"):
        Broker(log_segment_byts=4096)


def test_process_that_does_not_exist_is_not_waited_for_or_named(kbroker_broker: Broker) -> None:
    with pytest.raises(ValueError, match="unknown kind of process 'oi'; there are acceptor, "):
        kbroker_broker.kill("oi", 0)
    with pytest.raises(AssertionError, match=r"io-7 runs; running: .*io-1"):
        kbroker_broker.kill("io", 7, timeout=0)


def test_process_of_a_broker_that_has_ended_is_not_waited_for(harmed: Broker) -> None:
    harmed.kill_all()
    with pytest.raises(ProcessEnded, match="the broker ended"):
        harmed.kill("io", 0)


def test_broker_that_cannot_start_says_why() -> None:
    with (
        pytest.raises(BrokerFailed, match=r"exited with 2:[\s\S]*num\.io\.threads.*none"),
        Broker(num_io_threads="none"),
    ):
        pass


@pytest.mark.parametrize("kind", ["controller", "io", "network", "acceptor", "exporter"])
def test_killed_process_comes_back_and_all_is_well(harmed: Broker, kind: str) -> None:
    wait_until(lambda: is_healthy(harmed))
    before = len(harmed.log_text)

    pid = harmed.kill(kind)

    wait_until(lambda: harmed.pids.get(f"{kind}-0", pid) != pid)
    wait_until(lambda: is_healthy(harmed))
    assert wait_until(lambda: answers(harmed))
    assert " ERROR " not in re.sub(rf".*{kind}-0 was killed.*", "", harmed.log_text[before:])


def is_healthy(broker: Broker) -> bool:
    try:
        return http_get(broker, "/health")[0] == 200
    except OSError:
        return False


def test_stop_takes_less_than_two_seconds(harmed: Broker) -> None:
    def stop() -> None:
        assert harmed.stop() == 0

    assert fastest_stop(harmed, stop) < 2 * TIME_FACTOR
