"""The unit file of systemd: systemd understands it, and the broker tells it what it waits for."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.testing import wait_until

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
UNIT = (ROOT / "config/kbroker.service").read_text(encoding="utf-8")
PROGRAM = "/opt/kbroker/bin/kbroker-supervisor"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_unit_file_is_one(tmp_path: Path) -> None:
    unit = tmp_path / "kbroker.service"
    unit.write_text(UNIT.replace(PROGRAM, sys.executable))

    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )

    # What it says of units of this machine is nothing about this one.
    assert [line for line in done.stderr.splitlines() if "kbroker" in line] == []


@pytest.fixture
def runtime_dir() -> Iterator[str]:
    """Paths of sockets are short."""
    with tempfile.TemporaryDirectory(prefix="unit-") as place:
        yield place


def test_command_of_the_unit_file_says_when_it_serves_and_stops(
    tmp_path: Path, runtime_dir: str
) -> None:
    (tmp_path / "server.properties").write_text(
        "listeners=PLAINTEXT://127.0.0.1:0\nmetrics.port=-1\n"
    )
    match = re.search(r"^ExecStart=((?:.*\\\n)*.*)$", UNIT, re.MULTILINE)
    assert match
    text = match[1].replace("\\\n", " ").replace("/etc/kbroker", str(tmp_path))
    text = text.replace("/var/lib/kbroker", f"{tmp_path}/data")
    program, *arguments = shlex.split(text.replace("/run/kbroker", runtime_dir))
    heard: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(Path(runtime_dir) / "notify"))
        manager.setblocking(False)

        def hears(text: str) -> bool:
            try:
                heard.append(manager.recv(4096).decode())
            except BlockingIOError:
                pass
            return any(line.startswith(text) for line in heard)

        environment = {**os.environ, "NOTIFY_SOCKET": str(Path(runtime_dir) / "notify")}
        environment["WATCHDOG_USEC"] = "200000"
        command = [sys.executable, "-m", "kbroker.cli.start", *arguments]
        with (tmp_path / "log").open("w") as log:
            broker = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            wait_until(lambda: hears("READY=1") or broker.poll() is not None, 60)
            assert broker.poll() is None, (tmp_path / "log").read_text()
            heard.clear()
            wait_until(lambda: hears("WATCHDOG=1"), 60)
        finally:
            broker.terminate()
            code = broker.wait(60)
        wait_until(lambda: hears("STOPPING=1"), 10)

    assert program == PROGRAM
    assert code == 0
