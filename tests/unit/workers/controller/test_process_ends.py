"""Waiting for processes that are not children."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from kbroker.ipc.process_table import PID, Address, ProcessKind, ProcessTable, region_size
from kbroker.workers.controller.process_ends import await_end

pytestmark = pytest.mark.unit

KINDS = [ProcessKind.IO_WORKER, ProcessKind.NETWORK]
ADDRESSES = [Address(kind, index) for kind in (*KINDS, ProcessKind.EXPORTER) for index in (0, 1)]


def table(*pids: int) -> ProcessTable:
    """Pids in the order of ADDRESSES."""
    region: Any = bytearray(region_size(len(ADDRESSES)))
    made = ProcessTable(region, ADDRESSES)
    for address, pid in zip(ADDRESSES, pids, strict=False):
        made.set(address, PID, pid)
    return made


def test_ended_processes_and_those_that_never_ran_are_not_waited_for() -> None:
    with subprocess.Popen(["true"]) as ended:
        ended.wait()

        assert await_end(table(ended.pid, 0), KINDS, 30)


def test_living_process_is_waited_for_until_it_ends() -> None:
    with subprocess.Popen(["sleep", "600"]) as living:
        assert not await_end(table(0, living.pid), KINDS, 0.05)

        living.kill()

        assert await_end(table(0, living.pid), KINDS, 30)


def test_process_of_another_kind_is_not_waited_for() -> None:
    with subprocess.Popen(["sleep", "600"]) as other:
        try:
            assert await_end(table(0, 0, 0, 0, other.pid), KINDS, 30)
        finally:
            other.kill()
