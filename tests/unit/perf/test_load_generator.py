"""The raw load generator against a socket pair; the test is the broker."""

import socket
import struct
import threading

import pytest

from perf.frames import produce_frame, produce_response_prefix, record_batch
from perf.load_generator import LoadError, LoadGenerator

pytestmark = pytest.mark.unit

PREFIX = produce_response_prefix(7, "t", 0)
FRAME = produce_frame(7, "t", 0, record_batch([b"value"]), acks=1)


class Peer(threading.Thread):
    """Reads whole requests and sends ``answer(correlation_id)`` for each; None hangs up."""

    def __init__(self, end, answer):
        super().__init__(daemon=True)
        self.end, self.answer, self.requests = end, answer, []

    def run(self):
        stream = self.end.makefile("rb")
        while size := stream.read(4):
            request = stream.read(struct.unpack(">i", size)[0])
            self.requests.append(size + request)
            answer = self.answer(struct.unpack_from(">i", request, 4)[0])
            if answer is None:
                break
            if answer:
                self.end.sendall(answer)
        self.end.close()


def answer_to(correlation_id, code=0, prefix=PREFIX):
    body = struct.pack(">i", correlation_id) + prefix + struct.pack(">hqqqi", code, 0, -1, 0, 0)
    return struct.pack(">i", len(body)) + body


@pytest.fixture
def run_against():
    """run_against(answer, frame=..., in_flight=..., ...) -> (result of the run, peer)."""
    opened = []

    def run(
        answer,
        *,
        frame=FRAME,
        in_flight=3,
        expects_responses=True,
        seconds=0.02,
        drain_seconds=60.0,
    ):
        ours, theirs = socket.socketpair()
        opened.append(ours)
        ours.setblocking(False)
        peer = Peer(theirs, answer)
        peer.start()
        generator = LoadGenerator([ours], [frame], [PREFIX], in_flight, expects_responses)
        result = generator.run(seconds, drain_seconds)
        ours.shutdown(socket.SHUT_WR)
        peer.join(60)
        return result, peer

    yield run
    for one in opened:
        one.close()


@pytest.mark.parametrize("in_flight", [1, 3, 64])
def test_run_counts_every_request_and_numbers_them_in_order(run_against, in_flight):
    result, peer = run_against(answer_to, in_flight=in_flight)

    assert result["requests"] == len(peer.requests) > 0
    assert result["codes"] == {0: len(peer.requests)}
    assert sum(result["histogram"]) == len(peer.requests)
    assert [struct.unpack_from(">i", r, 8)[0] for r in peer.requests] == list(
        range(len(peer.requests))
    )
    assert {r[:8] + r[12:] for r in peer.requests} == {FRAME[:8] + FRAME[12:]}


def test_run_with_frames_larger_than_the_socket_buffer_sends_them_whole(run_against):
    frame = produce_frame(7, "t", 0, record_batch([b"v" * 3_000_000]), acks=1)

    result, peer = run_against(answer_to, frame=frame)

    assert result["requests"] == len(peer.requests) > 0
    assert {r[12:] for r in peer.requests} == {frame[12:]}


def test_run_counts_each_error_code(run_against):
    result, _ = run_against(
        lambda number: answer_to(number, code=[0, 3, -1][number % 3]), in_flight=6
    )

    assert set(result["codes"]) == {0, 3, -1}
    assert sum(result["codes"].values()) == result["requests"]


def test_run_without_responses_counts_what_was_sent(run_against):
    result, peer = run_against(lambda number: b"", expects_responses=False)

    assert result["requests"] == len(peer.requests) > 0
    assert result["codes"] == {}


def test_run_with_responses_in_pieces_and_together_reads_all(run_against):
    held = bytearray()

    def piecewise(number):
        held.extend(answer_to(number))
        size = len(held) if number % 5 == 4 else len(held) - 3
        piece = bytes(held[:size])
        del held[:size]
        return piece

    # Windows of five end on a number that releases everything held back.
    result, peer = run_against(piecewise, in_flight=5, seconds=0)

    assert result["requests"] == len(peer.requests) == 5


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda number: None, "closed the connection"),
        (lambda number: answer_to(number + 1), "not the response to our request"),
        (lambda number: answer_to(number, prefix=PREFIX[:-1] + b"\x09"), "not the response"),
        (lambda number: answer_to(number) * 2, "not the response"),
        (lambda number: struct.pack(">i", -1), "not the response"),
        (lambda number: struct.pack(">i", 1 << 30), "not the response"),
        (lambda number: struct.pack(">i", 4) + b"\0\0\0\0", "not the response"),
    ],
)
def test_run_against_a_bad_response_raises(run_against, answer, reason):
    with pytest.raises(LoadError, match=reason):
        run_against(answer, in_flight=1)


def test_run_without_a_response_to_the_last_request_raises(run_against):
    with pytest.raises(LoadError, match="1 requests got no response"):
        run_against(lambda number: b"", in_flight=1, seconds=0.01, drain_seconds=0.05)


def test_generator_of_frames_without_their_length_is_refused():
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(ValueError, match="its own length"):
        LoadGenerator([ours], [b"\0" * 20], [PREFIX], 1)


@pytest.mark.parametrize("in_flight", [0, -1, 1 << 21])
def test_generator_with_a_bad_window_is_refused(in_flight):
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(ValueError, match="in_flight"):
        LoadGenerator([ours], [FRAME], [PREFIX], in_flight)
