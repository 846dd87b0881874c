"""Calls between processes: how they end when the callee restarts."""

import pytest

from kbroker.errors import ErrorCode
from kbroker.ipc.process_table import Address, ProcessKind
from kbroker.ipc.rpc import Rpc

pytestmark = pytest.mark.unit

CALLEE = Address(ProcessKind.IO_WORKER, 0)


class FakeProcesses:
    """looks: how often somebody asked."""

    def __init__(self):
        self.now = 1
        self.looks = 0

    def incarnation(self, address):
        self.looks += 1
        return self.now


class FakeMailbox:
    """Takes messages; the callee restarts right after it with ``restarts``."""

    def __init__(self, processes, restarts):
        self.processes, self.restarts = processes, restarts

    def send(self, to, kind, body, count=0):
        sent_to = self.processes.incarnation(to)
        self.processes.now += self.restarts
        return sent_to


@pytest.mark.parametrize("at_once", [True, False], ids=["while-it-is-sent", "later"])
def test_call_of_a_process_that_restarts_ends_with_a_retriable_error(at_once):
    """Also when it received the call and died before the sender had noted whom it had called."""
    processes = FakeProcesses()
    rpc = Rpc(FakeMailbox(processes, restarts=at_once), processes, lambda: 0)
    call = rpc.call(CALLEE, "image", 60_000)
    assert not call.done
    if not at_once:
        rpc.tick(1)
        assert not call.done
        processes.now += 1
    rpc.tick(1)
    assert call.error.code == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_turn_looks_once_at_a_callee_however_many_calls_it_has():
    """Else a request for thousands of partitions costs the square of them."""
    processes = FakeProcesses()
    rpc = Rpc(FakeMailbox(processes, restarts=False), processes, lambda: 0)
    calls = [rpc.call(CALLEE, "delete_records", 60_000) for _ in range(1000)]
    processes.looks = 0
    rpc.tick(1)
    assert processes.looks == 1
    processes.now += 1
    rpc.tick(1)
    assert {call.error.code for call in calls} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
    processes.looks = 0
    rpc.tick(1)
    assert processes.looks == 0
