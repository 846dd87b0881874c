"""What systemd is told, by a socket as it has one."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from unit.supervisor.test_arbiter import ADDRESSES, FakeSystem

from kbroker.ipc.process_table import HEARTBEAT_NS, READY, STATE, ProcessTable, region_size
from kbroker.supervisor.arbiter import Arbiter
from kbroker.supervisor.child import RestartPolicy
from kbroker.supervisor.service_manager import ServiceManager

pytestmark = pytest.mark.unit


class Listening:
    """systemd's end."""

    def __init__(self, name: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(f"\0{name[1:]}" if name.startswith("@") else name)
        self.socket.setblocking(False)

    def heard(self) -> list[str]:
        found = []
        while True:
            try:
                found.append(self.socket.recv(4096).decode())
            except BlockingIOError:
                return found


@pytest.fixture(params=["path", "abstract"])
def name(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "notify") if request.param == "path" else f"@{tmp_path}"


@pytest.fixture
def listening(name: str) -> Iterator[Listening]:
    one = Listening(name)
    yield one
    one.socket.close()


def test_ready_and_stopping_are_told(name: str, listening: Listening) -> None:
    environment = {"NOTIFY_SOCKET": name, "PATH": "/bin"}
    manager = ServiceManager(environment)

    manager.ready("7 processes serve")
    manager.alive(0.0)
    manager.stopping()

    assert listening.heard() == ["READY=1\nSTATUS=7 processes serve", "STOPPING=1\nSTATUS=stopping"]
    assert environment == {"PATH": "/bin"}  # children must not speak for the supervisor
    assert manager.due_s() is None


def test_sign_of_life_comes_twice_as_often_as_the_watchdog_allows(
    name: str, listening: Listening
) -> None:
    manager = ServiceManager(
        {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "10000000", "WATCHDOG_PID": str(os.getpid())}
    )

    for now_s in (100.0, 101.0, 104.9, 105.0, 109.0, 110.5):
        manager.alive(now_s)

    assert listening.heard() == ["WATCHDOG=1"] * 3
    assert manager.due_s() == 115.5


@pytest.mark.parametrize(
    "environment",
    [
        {"WATCHDOG_USEC": "10000000", "WATCHDOG_PID": "1"},  # of another process
        {"WATCHDOG_USEC": "soon"},
        {},
    ],
)
def test_nobody_waits_for_signs_of_life(environment: dict[str, str]) -> None:
    assert ServiceManager(environment).due_s() is None


def test_manager_that_is_gone_stops_nothing(tmp_path: Path) -> None:
    manager = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "gone")})

    manager.ready("")
    manager.stopping()


def test_broker_is_ready_when_all_processes_are_and_lives_while_its_loop_turns(
    tmp_path: Path,
) -> None:
    listening = Listening(str(tmp_path / "notify"))
    system = FakeSystem()
    table = ProcessTable(bytearray(region_size(len(ADDRESSES))), ADDRESSES)  # type: ignore[arg-type]
    manager = ServiceManager(
        {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "1000000"}
    )
    arbiter = Arbiter(
        ADDRESSES, table, system, policy=RestartPolicy(), stop_budget_s=1, manager=manager
    )
    for address in ADDRESSES:
        table.begin_start(address)
    arbiter.start_missing()

    arbiter.turn()
    starting = listening.heard()
    for address in ADDRESSES:
        table.set(address, STATE, READY)
        table.set(address, HEARTBEAT_NS, int(system.time * 1e9))
    began = system.time
    while system.time < began + 2.0:
        arbiter.turn()
    serving = listening.heard()
    system.signals = [signal.SIGTERM]
    arbiter.run()

    assert starting == ["WATCHDOG=1"]
    assert serving[0].startswith("READY=1\nSTATUS=5 processes serve")
    assert serving.count("WATCHDOG=1") in (4, 5)  # every half a second
    assert listening.heard()[-1].startswith("STOPPING=1")
    listening.socket.close()


def test_lines_that_somebody_waits_for_are_logged_when_the_broker_serves(
    caplog: pytest.LogCaptureFixture,
) -> None:
    manager = ServiceManager({}, ["[KafkaServer id=1] started", "Kafka Server started"])
    with caplog.at_level("INFO", "kbroker.supervisor.service_manager"):
        assert caplog.messages == []

        manager.ready("7 processes serve")

    assert caplog.messages == ["[KafkaServer id=1] started", "Kafka Server started"]
