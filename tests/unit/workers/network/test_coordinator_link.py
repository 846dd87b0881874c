"""The network process's calls to coordinators, over a real lane."""

from __future__ import annotations

import mmap
import socket
from collections import deque
from typing import Any

import pytest

from kbroker._ext.shared.lane import Lane
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.lane_calls import PART_BYTES, Assembler, Response, pack, response_parts, unpack
from kbroker.ipc.rpc import Pending
from kbroker.protocol.api import ApiKey
from kbroker.security.principal import KafkaPrincipal
from kbroker.workers.network import coordinator_link
from kbroker.workers.network.coordinator_link import CoordinatorLink

pytestmark = pytest.mark.unit

ENVELOPE_BYTES = 16
ALICE = KafkaPrincipal("User", "alice")


class Bench:
    """A link to one io worker, played by the test."""

    def __init__(self) -> None:
        ours, self.worker = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, self.worker):
            end.setblocking(False)
        self._ours = ours
        self.cells = memoryview(mmap.mmap(-1, 4096)).cast("q")
        self.cells[0] = 5
        self.lane = Lane(ours.fileno(), (2, 0, 3), 0, self.cells, 0)
        self.link = CoordinatorLink([self.lane])
        self.assembler = Assembler()

    def call(
        self,
        body: bytes = b"body",
        timeout_ms: int = 1000,
        api_key: int = ApiKey.JOIN_GROUP,
        quota: tuple[int, float] = (0, 0.0),
    ) -> Pending:
        of_client = ("client", "192.0.2.1", ALICE, timeout_ms, quota)
        return self.link.call(4, 1, api_key, 3, body, *of_client)

    def received(self) -> list[Any]:
        found = []
        while True:
            try:
                data = self.worker.recv(1 << 20)
            except BlockingIOError:
                return found
            for part in unpack(data[ENVELOPE_BYTES:]):
                request = self.assembler.request(part)
                if request is not None:
                    found.append(request)

    def answer(self, answer: Response) -> None:
        outbox = deque(response_parts(answer))
        while outbox:
            message, count = pack(outbox)
            self.link.on_response(0, message)
            for _ in range(count):
                outbox.popleft()


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_call_is_sent_at_the_end_of_the_turn_and_completed(bench: Bench) -> None:
    outcome = bench.call()
    assert bench.received() == []
    assert not bench.link.flush()
    (request,) = bench.received()
    assert (request.slot, request.slot_incarnation, request.body) == (4, 1, b"body")
    assert request.principal == ALICE
    bench.answer(Response(request.token, 0, b"answer"))
    assert outcome.value == b"answer"
    assert bench.link.waiting == 0


def test_error_of_a_coordinator_has_its_text(bench: Bench) -> None:
    outcome = bench.call()
    bench.link.flush()
    token = bench.received()[0].token
    bench.answer(Response(token, int(ErrorCode.NOT_COORDINATOR), b"why"))
    assert isinstance(outcome.error, WireError)
    assert (outcome.error.code, outcome.error.message) == (ErrorCode.NOT_COORDINATOR, "why")


def test_call_without_a_response_ends_at_its_deadline(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator_link, "now_ms", lambda: 10_000)
    outcome = bench.call(timeout_ms=500)
    bench.link.flush()
    bench.link.tick(10_499)
    assert not outcome.done
    bench.link.tick(10_500)
    assert outcome.error.code == ErrorCode.NOT_COORDINATOR
    token = bench.received()[0].token
    bench.answer(Response(token, 0, b"late"))


def test_deadlines_of_completed_calls_are_not_kept(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of heartbeats a second would be a hundred megabytes of deadlines."""
    monkeypatch.setattr(coordinator_link, "SPENT_DEADLINES_MAX", 10)
    now = coordinator_link.now_ms()
    waits = [bench.call(timeout_ms=5_000) for _ in range(3)]
    for _ in range(200):
        outcome = bench.call(timeout_ms=3_600_000)
        bench.link.flush()
        bench.answer(Response(bench.received()[-1].token, 0, b""))
        assert outcome.done

    assert len(bench.link._deadlines) <= 2 * 3 + 10 + 1
    bench.link.tick(now + 4_000)
    assert not any(pending.done for pending in waits)
    bench.link.tick(now + 6_000)
    assert all(pending.error.code == ErrorCode.NOT_COORDINATOR for pending in waits)


def test_large_request_waits_for_room_and_arrives_whole(bench: Bench) -> None:
    body = bytes(range(256)) * (16 * PART_BYTES // 256)
    bench.call(body)
    assert bench.link.flush(), "the lane cannot take it all at once"
    found = bench.received()
    for _ in range(100):
        if found:
            break
        bench.link.flush()
        found = bench.received()
    assert found[0].body == body


def test_restart_of_the_io_worker_ends_its_calls(bench: Bench) -> None:
    sent, unsent = bench.call(), None
    bench.link.flush()
    unsent = bench.call()
    bench.received()
    bench.cells[0] = 6
    notice_restart(bench.lane)
    bench.link.flush()
    for outcome in (sent, unsent):
        assert outcome.error.code == ErrorCode.NOT_COORDINATOR
    assert bench.received() == []
    bench.call()
    bench.link.flush()
    assert len(bench.received()) == 1


def test_restarted_io_worker_is_asked_again_what_may_be_asked_twice(bench: Bench) -> None:
    key = ApiKey.TXN_OFFSET_COMMIT
    outcomes = [bench.call(b"first", api_key=key), bench.call(bytes(3 * PART_BYTES), api_key=key)]
    ended = bench.call()
    bench.link.flush()
    before = bench.received()
    outcomes.append(bench.call(b"third", api_key=key))
    bench.cells[0] = 6
    notice_restart(bench.lane)
    bench.link.flush()

    again = bench.received()

    assert again[:2] == before[:2]
    assert [request.body[:5] for request in again] == [b"first", bytes(5), b"third"]
    assert ended.error.code == ErrorCode.NOT_COORDINATOR
    for request, outcome in zip(again, outcomes, strict=True):
        bench.answer(Response(request.token, 0, b"answer"))
        assert outcome.value == b"answer"
    assert bench.link.waiting == 0


def notice_restart(lane: Lane) -> None:
    """As the loop does at the end of each turn."""
    assert lane.look()


def test_quota_of_the_client_goes_along(bench: Bench) -> None:
    """The io worker counts the time that its coordinator takes."""
    bench.call(quota=((1 << 64) - 1, 2.5e6))
    bench.call()
    bench.link.flush()

    assert [request.quota for request in bench.received()] == [((1 << 64) - 1, 2.5e6), (0, 0.0)]
