"""Requests and responses of coordinators in lane messages."""

from __future__ import annotations

from collections import deque

import pytest

from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.lane_calls import (
    MESSAGE_BYTES,
    PART_BYTES,
    Assembler,
    LaneRequest,
    Response,
    UnreadableRequest,
    error_text,
    pack,
    request_parts,
    response_parts,
    unpack,
)
from kbroker.security.principal import ANONYMOUS, NAME_BYTES_MAX, KafkaPrincipal

pytestmark = pytest.mark.unit

SIZES = [0, 1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES, 3 * PART_BYTES + 7]


def request(size: int, token: int = 5) -> LaneRequest:
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    return LaneRequest(
        token, 12, 3, 11, 9, "a client ä", "192.0.2.1", KafkaPrincipal("User", "zoë"), body
    )


@pytest.mark.parametrize("size", SIZES)
def test_request_of_any_size_comes_out_as_it_went_in(size: int) -> None:
    assembler = Assembler()
    found = [assembler.request(part) for part in request_parts(request(size))]
    assert found[-1] == request(size)
    assert found[:-1] == [None] * (len(found) - 1)
    names = len("a client ä".encode()) + len("192.0.2.1") + len("User:zoë".encode())
    assert len(found) == max(1, -(-size // (PART_BYTES - names)))


def test_request_of_a_client_with_long_names_fits_its_lane() -> None:
    """The receiver's buffer has twice the size of a message; what is cut off there is lost."""
    names = {"client_id": "c" * 32_767, "principal": KafkaPrincipal("User", "p" * NAME_BYTES_MAX)}
    asked = request(3 * PART_BYTES)._replace(**names)
    parts = request_parts(asked)

    assert max(map(len, parts)) <= PART_BYTES + 100
    assembler = Assembler()
    assert [assembler.request(part) for part in parts][-1] == asked


def test_request_of_a_client_whose_names_fit_no_message_is_rejected() -> None:
    with pytest.raises(WireError) as caught:
        request_parts(request(5)._replace(client_id="c" * 100_000))
    assert caught.value.code == ErrorCode.INVALID_REQUEST


def test_request_of_an_anonymous_client_carries_no_principal() -> None:
    """That is every request on a listener without authentication."""
    (named,) = request_parts(request(10))
    (anonymous,) = request_parts(request(10)._replace(principal=ANONYMOUS))

    assert len(named) - len(anonymous) == len("User:zoë".encode())
    found = Assembler().request(anonymous)
    assert found is not None
    assert found.principal == ANONYMOUS


@pytest.mark.parametrize("size", SIZES)
def test_response_of_any_size_comes_out_as_it_went_in(size: int) -> None:
    assembler = Assembler()
    found = [assembler.response(part) for part in response_parts(Response(9, 0, bytes(size)))]
    assert found[-1] == Response(9, 0, bytes(size))


def test_request_cut_off_by_a_restart_is_forgotten_at_the_next_one() -> None:
    assembler = Assembler()
    first = list(request_parts(request(2 * PART_BYTES)))
    assert assembler.request(first[0]) is None
    found = [assembler.request(part) for part in request_parts(request(PART_BYTES + 5, token=6))]
    assert found[-1] == request(PART_BYTES + 5, token=6)


def test_damaged_messages_are_rejected() -> None:
    assembler = Assembler()
    parts = list(request_parts(request(3 * PART_BYTES)))
    with pytest.raises(ValueError, match="message of"):
        assembler.request(b"short")
    with pytest.raises(ValueError, match="message of"):
        assembler.response(b"short")
    assert assembler.request(parts[0]) is None
    with pytest.raises(UnreadableRequest, match="part at") as caught:
        assembler.request(parts[2])
    assert caught.value.token == 5


@pytest.mark.parametrize("principal", [b"alice", b":alice", b"User:\xff"])
def test_principal_that_cannot_be_read_names_its_call(principal: bytes) -> None:
    """So that the call is answered; and the next request is not that one's rest."""
    assembler = Assembler()
    first, *_ = request_parts(
        request(3 * PART_BYTES)._replace(principal=KafkaPrincipal("User", "abcd"))
    )
    damaged = first.replace(b"User:abcd", principal.rjust(9, b"\xff"))

    with pytest.raises(UnreadableRequest) as caught:
        assembler.request(damaged)

    assert caught.value.token == 5
    assert assembler.request(request_parts(request(7, token=6))[0]) == request(7, token=6)


def test_error_text_is_bounded() -> None:
    assert error_text(None) == b""
    assert error_text("why") == b"why"
    assert len(error_text("x" * 100_000)) == 1000


def test_pack_fills_messages_and_unpack_takes_them_apart() -> None:
    sizes = [0, 1, 30_000, 30_000, 30_000, PART_BYTES, 5, PART_BYTES + 60, 1, 2]
    outbox = deque(bytes([n]) * size for n, size in enumerate(sizes))
    expected = list(outbox)
    found, messages = [], 0
    while outbox:
        message, count = pack(outbox)
        assert count >= 1
        assert count == 1 or len(message) <= MESSAGE_BYTES + 4 * count
        for _ in range(count):
            outbox.popleft()
        found += list(unpack(message))
        messages += 1
    assert found == expected
    assert messages < len(sizes)


@pytest.mark.parametrize("message", [b"\x05\0", b"\x05\0\0\0abcd", b"\x01\0\0\0a\x01"])
def test_unpack_rejects_damage(message: bytes) -> None:
    with pytest.raises(ValueError, match=r"left|at the end"):
        list(unpack(message))
