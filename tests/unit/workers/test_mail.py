"""How a process reads its mailbox."""

import os
import socket
from types import SimpleNamespace

import pytest

from kbroker.ipc.process_table import Address, ProcessKind
from kbroker.workers import base
from kbroker.workers.base import Worker

pytestmark = pytest.mark.unit

TURNS_MAX = 100


class Reader(Worker):
    """Handling a message takes a millisecond; ``turns`` has the messages of each turn."""

    kind = ProcessKind.IO_WORKER

    def __init__(self, count):
        processes = SimpleNamespace(set=lambda *_: None, heartbeat=lambda _: None)
        super().__init__(
            SimpleNamespace(
                address=Address(self.kind, 0),
                processes=processes,
                config={},
                first_config={},
                parent_pid=os.getppid(),
                runtime_dir=os.curdir,
            )
        )
        self.clock_ms = 0
        self.left = list(range(count))
        self.taken = []
        self.turns = []
        self.waits = []

    def receive(self):
        return self.left.pop(0) if self.left else None

    def take(self, message):
        self.clock_ms += 1
        self.taken.append(message)

    def wait(self, timeout_ms):
        self.waits.append(timeout_ms)

    def end_turn(self):
        self.turns.append(self.taken)
        self.taken = []
        self.stopping = (not self.left and self.waits[-1] > 0) or len(self.turns) == TURNS_MAX


@pytest.fixture
def reader(monkeypatch):
    """A reader with 200 messages, without its process."""
    made = Reader(200)
    here, there = socket.socketpair()
    mailbox = SimpleNamespace(fd=there.fileno(), receive=made.receive, close=lambda: None)
    rpc = SimpleNamespace(
        on_message=made.take, tick=lambda now: None, next_deadline_ms=lambda: None
    )
    for name, value in {
        "now_ms": lambda: made.clock_ms,
        "die_with_parent": lambda pid, number: None,
        "set_title": lambda title: None,
        "signal_socket": lambda: here,
        "Mailbox": lambda *_: mailbox,
        "Rpc": lambda *_: rpc,
    }.items():
        monkeypatch.setattr(base, name, value)
    with here, there:
        yield made


def test_many_messages_are_taken_over_several_turns(reader):
    """Between them the lanes and connections of the process are served, without waiting."""
    reader.run()

    assert [message for taken in reader.turns for message in taken] == list(range(200))
    # The loop may find the mailbox readable in the turn in which it continues with the rest.
    assert max(len(taken) for taken in reader.turns) <= 2 * base.MAIL_MS
    assert reader.waits[:-1] == [0] * (len(reader.waits) - 1)
