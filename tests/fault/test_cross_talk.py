"""No client gets another's bytes, even if clients are disconnected or processes killed (exam
S13). Every other client speaks TLS.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.clients.wire_client import WireClient
from support.faults.history import parse_value
from support.faults.load import read_log
from support.running.pace import hold
from support.security.secured import Site, address_of

from kbroker.testing import Broker, wait_until

pytestmark = [pytest.mark.fault, pytest.mark.timeout(180)]

TESTS = Path(__file__).resolve().parent.parent
CLIENTS, CLIENTS_MAX, CLIENTS_A_PROCESS = 25, 200, 25
# Half an hour at scale 20.
SECONDS, SECONDS_OF_SCALE, SECONDS_MAX = 3, 90, 4 * 3600
KINDS = ("network", "io")


class MarkedClients:
    """Processes with the clients of marked_clients.py."""

    def __init__(self, broker: Broker, site: Site, count: int, seed: int) -> None:
        ports = [str(address_of(broker, name)[1]) for name in ("PLAINTEXT", "SSL")]
        self._running: list[subprocess.Popen[str]] = []
        for first in range(0, count, CLIENTS_A_PROCESS):
            end = min(first + CLIENTS_A_PROCESS, count)
            words = [*ports, str(site.ca_file), str(seed), str(first), str(end)]
            self._running.append(
                subprocess.Popen(
                    [sys.executable, "-m", "fault.marked_clients", *words],
                    env={**os.environ, "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent}"},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )

    def __enter__(self) -> MarkedClients:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running:
            with process:  # closes its pipes
                process.kill()

    def stop(self) -> list[str]:
        """Wait until every client has written and read, stop them; the problems that they had."""
        for process in self._running:
            assert process.stdin is not None
            process.stdin.close()
            process.stdin = None
        outputs = [process.communicate(timeout=240)[0].splitlines() for process in self._running]
        assert all(lines[:1] == ["ready"] for lines in outputs), outputs
        assert [process.returncode for process in self._running] == [0] * len(outputs)
        return [line for lines in outputs for line in lines[1:]]


def test_clients_get_their_own_bytes_only(seed: int, scale: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    site = Site(tmp_path)
    names = [f"client{number}" for number in range(min(CLIENTS * scale, CLIENTS_MAX))]
    seconds = SECONDS if scale == 1 else min(SECONDS_OF_SCALE * scale, SECONDS_MAX)
    settings = site.settings("PLAINTEXT", "SSL") | {"log.segment.bytes": "500000"}
    with Broker(settings) as broker:
        with WireClient((broker.host, broker.port)) as client:
            for name in names:
                client.create_topic(name)
        with MarkedClients(broker, site, len(names), seed) as clients:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                hold(chance.uniform(0.5, 1.5))
                kind, index = chance.choice(KINDS), chance.randrange(2)
                pid = broker.kill(kind, index)
                title = f"{kind}-{index}"
                wait_until(lambda t=title, p=pid: broker.pids.get(t, p) != p, 20, f"new {title}")
            problems = clients.stop()
        assert not problems, problems[:10]
        for name in names:  # also what nobody read
            for record in read_log(broker, 1, name)[name, 0]:
                key = parse_value(record.value)
                assert key is not None and key[0] == name, (name, record.offset)
