"""Calls between processes: their outcome if the callee restarts, or replies with garbage."""

from __future__ import annotations

import json
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.errors import ErrorCode
from kbroker.ipc import calls
from kbroker.ipc.documents import Encoded
from kbroker.ipc.mailbox import ENVELOPE, MSG_CALL, MSG_REPLY, MailboxMessage
from kbroker.ipc.process_table import Address, ProcessKind
from kbroker.ipc.rpc import Pending, Rpc, run
from kbroker.workers.base import PATIENCE_MAX_MS, Worker

pytestmark = pytest.mark.unit

CALLEE = Address(ProcessKind.IO_WORKER, 0)
CALLER = Address(ProcessKind.NETWORK, 0)


class FakeProcesses:
    """looks: the number of look-ups."""

    def __init__(self) -> None:
        self.now = 1
        self.looks = 0

    def incarnation(self, address: Address) -> int:
        self.looks += 1
        return self.now


class FakeMailbox:
    """Takes messages; with ``restarts`` the callee restarts right after it."""

    def __init__(
        self, processes: FakeProcesses, restarts: bool = False, me: Address = CALLER
    ) -> None:
        self.processes, self.restarts, self.me = processes, restarts, me
        self.sent: list[tuple[Address, int, Any]] = []

    def send(self, to: Address, kind: int, body: bytes, count: int = 0) -> int:
        self.sent.append((to, kind, json.loads(body)))
        sent_to = self.processes.incarnation(to)
        self.processes.now += self.restarts
        return sent_to


def rpc_of(mailbox: FakeMailbox) -> Rpc:
    fake: Any = mailbox
    processes: Any = mailbox.processes
    return Rpc(fake, processes, lambda: 0)


def message(sender: Address, kind: int, body: bytes) -> MailboxMessage:
    return MailboxMessage(kind, sender, 0, bytes(ENVELOPE.size) + body)


@pytest.mark.parametrize("at_once", [True, False], ids=["while-it-is-sent", "later"])
def test_call_of_a_process_that_restarts_ends_with_a_retriable_error(at_once: bool) -> None:
    """Also if it received the call and died before the sender had recorded the receiver."""
    processes = FakeProcesses()
    rpc = rpc_of(FakeMailbox(processes, restarts=at_once))
    call = rpc.call(CALLEE, calls.IMAGE, calls.ImageChange({"version": 1}), 60_000)
    assert not call.done
    if not at_once:
        rpc.tick(1)
        assert not call.done
        processes.now += 1
    rpc.tick(1)
    assert call.error.code == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_turn_looks_once_at_a_callee_however_many_calls_it_has() -> None:
    """Otherwise a request for thousands of partitions has quadratic cost."""
    processes = FakeProcesses()
    rpc = rpc_of(FakeMailbox(processes))
    request: calls.Questions[calls.RecordDeletion] = calls.Questions([])
    made = [rpc.call(CALLEE, calls.DELETE_RECORDS, request, 60_000) for _ in range(1000)]
    processes.looks = 0
    rpc.tick(1)
    assert processes.looks == 1
    processes.now += 1
    rpc.tick(1)
    assert {call.error.code for call in made} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
    processes.looks = 0
    rpc.tick(1)
    assert processes.looks == 0


def test_call_waits_as_long_as_its_operation_says() -> None:
    rpc = rpc_of(FakeMailbox(FakeProcesses()))
    call = rpc.call(CALLEE, calls.NETWORK_STARTS, calls.Nothing())
    rpc.tick(calls.HELLO_DEADLINE_MS - 1)
    assert not call.done
    rpc.tick(calls.HELLO_DEADLINE_MS)
    assert call.error.code == ErrorCode.REQUEST_TIMED_OUT


def test_request_reaches_the_other_end_as_what_it_was() -> None:
    mailbox = FakeMailbox(FakeProcesses(), me=CALLEE)
    rpc = rpc_of(mailbox)
    markers = calls.WriteMarkers([calls.SlotMarker(3, 7, 0, True, 1, 2)])
    asked = []

    def serve(sender: Address, request: calls.WriteMarkers) -> list[int]:
        asked.append((sender, request))
        return [5]

    rpc.serve(calls.WRITE_MARKERS, serve)
    rpc.call(CALLEE, calls.WRITE_MARKERS, markers)
    rpc.on_message(message(CALLER, MSG_CALL, json.dumps(mailbox.sent[0][2]).encode()))

    assert asked == [(CALLER, markers)]
    assert mailbox.sent[1] == (CALLER, MSG_REPLY, {"id": 1, "result": [5]})


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"slot": True}, "OfSlot.slot: int expected, not True"),
        ({"slot": 3, "index": 1}, "OfSlot does not have index"),
        ({}, "OfSlot has no slot"),
        (None, "dict expected, not None"),
    ],
)
def test_request_of_another_build_is_rejected_with_a_text(document: Any, text: str) -> None:
    """It failed with a KeyError, and the caller got the name of a key as the message."""
    mailbox = FakeMailbox(FakeProcesses(), me=CALLEE)
    rpc = rpc_of(mailbox)
    rpc.serve(calls.ACTIVE_PRODUCERS, lambda sender, request: [])
    call = {"id": 9, "op": "active_producers", "args": document}

    rpc.on_message(message(CALLER, MSG_CALL, json.dumps(call).encode()))

    ((_, _, reply),) = mailbox.sent
    assert (reply["id"], reply["error"]) == (9, ErrorCode.INVALID_REQUEST)
    assert reply["message"].startswith("active_producers: ")
    assert text in reply["message"]


def test_operation_that_nobody_serves_is_rejected_by_name() -> None:
    mailbox = FakeMailbox(FakeProcesses(), me=CALLEE)
    call = b'{"id": 9, "op": "walk_the_dog", "args": {}}'
    rpc_of(mailbox).on_message(message(CALLER, MSG_CALL, call))
    assert mailbox.sent[0][2]["message"] == "io-0 has no operation walk_the_dog"


@pytest.mark.parametrize(
    "reply",
    [
        {"id": 1, "result": ["x"]},
        {"id": 1, "result": None},
        {"id": 1},
        {"id": 1, "error": 31_000, "message": "?"},
    ],
)
def test_response_of_another_build_ends_the_call(reply: dict[str, Any]) -> None:
    rpc = rpc_of(FakeMailbox(FakeProcesses()))
    call = rpc.call(CALLEE, calls.WRITE_MARKERS, calls.WriteMarkers([]))
    rpc.on_message(message(CALLEE, MSG_REPLY, json.dumps(reply).encode()))
    assert call.error.code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert "io-0 to write_markers" in call.error.message


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b"7", b'{"id": "x"}', b"\xff"])
def test_message_that_is_no_call_ends_nothing(body: bytes) -> None:
    rpc = rpc_of(FakeMailbox(FakeProcesses()))
    call = rpc.call(CALLEE, calls.WRITE_MARKERS, calls.WriteMarkers([]))
    for kind in (MSG_CALL, MSG_REPLY):
        rpc.on_message(message(CALLEE, kind, body))
    assert not call.done


def test_process_cannot_serve_what_is_of_another_kind() -> None:
    rpc = rpc_of(FakeMailbox(FakeProcesses(), me=CALLER))
    with pytest.raises(AssertionError, match="write_markers"):
        rpc.serve(calls.WRITE_MARKERS, lambda sender, request: [])


def test_second_callback_of_a_pending_does_not_silence_the_first() -> None:
    pending: Pending[int] = Pending()
    seen = SimpleNamespace(first=0)
    pending.then(lambda outcome: setattr(seen, "first", outcome.value))
    with pytest.raises(AssertionError):
        pending.then(lambda outcome: None)
    pending.resolve(7)
    assert seen.first == 7


def test_process_waits_longer_each_time_for_a_callee_that_is_busy() -> None:
    """Calls that were repeated each second kept a controller process with 15,500 partitions busy
    for ever: it made answers that nobody awaited any longer.
    """
    mailbox, now = FakeMailbox(FakeProcesses()), 0
    fake: Any = mailbox
    rpc = Rpc(fake, fake.processes, lambda: now)
    worker: Any = SimpleNamespace(rpc=rpc)
    joined = run(Worker.call_until_answered(worker, CALLEE, calls.NETWORK_STARTS))
    at = []
    for now in range(0, 300_000, 5):
        rpc.tick(now)
        if len(mailbox.sent) > len(at):
            at.append(now)
    waits = [later - earlier for earlier, later in pairwise(at)]
    assert waits == [min(1000 << n, PATIENCE_MAX_MS) + 5 for n in range(len(waits))]

    last = mailbox.sent[-1][2]["id"]
    rpc.on_message(message(CALLEE, MSG_REPLY, json.dumps({"id": last}).encode()))
    assert joined.done
    assert joined.error is None


def test_answer_that_is_json_already_is_sent_as_it_is() -> None:
    mailbox = FakeMailbox(FakeProcesses(), me=CALLEE)
    rpc = rpc_of(mailbox)
    rpc.serve(calls.NETWORK_STARTS, lambda *_: Encoded('{"version":7}'))
    rpc.call(CALLEE, calls.NETWORK_STARTS, calls.Nothing())
    rpc.on_message(message(CALLER, MSG_CALL, json.dumps(mailbox.sent[0][2]).encode()))
    assert mailbox.sent[1] == (CALLER, MSG_REPLY, {"id": 1, "result": {"version": 7}})
