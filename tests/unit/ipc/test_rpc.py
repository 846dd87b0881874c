"""Calls between processes: how they end when the callee restarts."""

import pytest

from kbroker.errors import ErrorCode
from kbroker.ipc.process_table import Address, ProcessKind
from kbroker.ipc.rpc import Rpc

pytestmark = pytest.mark.unit

CALLEE = Address(ProcessKind.IO_WORKER, 0)


class FakeProcesses:
    def __init__(self):
        self.now = 1

    def incarnation(self, address):
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
