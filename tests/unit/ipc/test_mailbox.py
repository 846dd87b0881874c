"""Mailboxes: what arrives, and what is dropped."""

import gc
import mmap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import zmq

from kbroker.ipc.mailbox import ENVELOPE, MSG_CALL, Mailbox, MailboxMessage
from kbroker.ipc.process_table import Address, ProcessKind, ProcessTable, region_size
from kbroker.testing.waiting import wait_until

NETWORK, IO = Address(ProcessKind.NETWORK, 0), Address(ProcessKind.IO_WORKER, 0)


class Pair(NamedTuple):
    """A network process that writes to an io worker."""

    processes: ProcessTable
    network: Mailbox
    io: Mailbox

    def receive(self) -> MailboxMessage:
        message: MailboxMessage = wait_until(self.io.receive, timeout=30)
        return message


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    processes = ProcessTable(mmap.mmap(-1, region_size(2)), [NETWORK, IO])
    for address in processes.addresses:
        processes.begin_start(address)
    made = Pair(processes, *(Mailbox(str(tmp_path), processes, a) for a in processes.addresses))
    yield made
    made.network.close()
    made.io.close()


def test_message_arrives_with_its_sender(pair: Pair) -> None:
    assert pair.network.send(IO, MSG_CALL, b"body", 3) == 1

    message = pair.receive()

    assert message[:3] == (MSG_CALL, NETWORK, 3)
    assert message.data[ENVELOPE.size :] == b"body"


def is_restarted(pair: Pair) -> None:
    pair.processes.begin_start(NETWORK)


def is_of_no_broker(pair: Pair) -> None:
    pair.network.me = Address(ProcessKind.NETWORK, 7)


def is_of_no_kind(pair: Pair) -> None:
    pair.network.me = Address(77, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("change", [is_restarted, is_of_no_broker, is_of_no_kind])
def test_message_of_an_unknown_sender_is_dropped(
    pair: Pair, change: Callable[[Pair], None]
) -> None:
    """It raised an exception that ended the process, if no process has that address."""
    change(pair)
    pair.network.send(IO, MSG_CALL, b"unknown")
    pair.io.send(IO, MSG_CALL, b"known")

    seen = [pair.receive().data[ENVELOPE.size :]]

    # Messages of two senders may arrive in any order.
    wait_until(lambda: pair.io.receive() is None and pair.io.dropped == 1, timeout=30)
    assert seen == [b"known"]


@pytest.mark.own_process
@pytest.mark.timeout(30)
def test_mailbox_that_cannot_be_bound_leaves_nothing_that_waits_for_ever(tmp_path: Path) -> None:
    """As garbage, a context ends before its sockets are closed, and waits for that."""
    processes = ProcessTable(mmap.mmap(-1, region_size(1)), [NETWORK])
    processes.begin_start(NETWORK)

    def fail() -> None:
        try:
            Mailbox(f"{tmp_path}/{'x' * 200}", processes, NETWORK)
        except zmq.ZMQError as error:
            assert "longer than" in str(error)
            kept = [error]  # in a cycle with this frame, as a traceback that was kept
            kept.append(kept)  # type: ignore[arg-type]

    fail()
    gc.collect()
