"""The transport of an encrypted connection, against Python's own TLS at the other end."""

from __future__ import annotations

import itertools
import os
import random
import socket
import ssl
from pathlib import Path

import pytest
from support.network import tls_sockets
from support.network.tls_sockets import Pair, Site, connect, drain

from kbroker._ext.sockets.transport import BLOCKED, CUT, FAILED

pytestmark = pytest.mark.unit

RECORD = 16384


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return tls_sockets.make_site(tmp_path_factory.mktemp("site"))


@pytest.mark.parametrize("client_side", [False, True])
def test_bytes_arrive_in_both_directions(site: Site, client_side: bool) -> None:
    pair = connect(site, client_side=client_side)

    drain(pair.theirs)  # session tickets
    assert pair.ours.receive(100) == BLOCKED
    assert pair.theirs.send(b"request") == 7
    assert pair.ours.receive(100) == b"request"
    assert pair.ours.send(b"response") == 8
    assert drain(pair.theirs) == b"response"


def test_receive_that_empties_the_socket_says_so(site: Site) -> None:
    """The loop waits for the next edge then, without an exception for asking OpenSSL."""
    pair = connect(site)
    drain(pair.theirs)
    assert pair.ours.receive(10) == BLOCKED

    pair.theirs.send(b"first")
    assert pair.ours.receive(100) == b"first"
    assert pair.transport.short_is_empty

    pair.theirs.send(b"a" * 100)
    assert pair.ours.receive(60) == b"a" * 60
    assert not pair.transport.short_is_empty, "40 bytes are decrypted already"
    assert pair.ours.receive(60) == b"a" * 40
    assert pair.transport.short_is_empty


def test_bytes_that_arrive_after_a_call_that_had_no_more_room_are_received(site: Site) -> None:
    """That call did not say that the socket was empty, so the loop waits for no event."""
    pair = connect(site)
    drain(pair.theirs)
    for size in (100, RECORD):
        pair.theirs.send(b"a" * size)
        assert pair.ours.receive(size) == b"a" * size
        assert not pair.transport.short_is_empty
        pair.theirs.send(b"b" * 10)
        assert pair.ours.receive(100) == b"b" * 10


def test_records_that_wait_are_received_together(site: Site) -> None:
    pair = connect(site)
    drain(pair.theirs)
    pair.theirs.send(b"a" * RECORD)
    pair.theirs.send(b"b" * 10)

    assert pair.ours.receive(100_000) == b"a" * RECORD + b"b" * 10


def encrypted(pair: Pair, sizes: list[int]) -> tuple[bytes, bytes]:
    """What the peer sends in records of these sizes: in the clear, and on the wire."""
    plain, wire = bytearray(), bytearray()
    for size in sizes:
        data = random.Random(size).randbytes(size)
        pair.theirs.send(data)
        plain += data
        wire += taken(pair)
    return bytes(plain), bytes(wire)


def taken(pair: Pair) -> bytes:
    """The bytes that have arrived at our socket, taken from it."""
    with socket.socket(fileno=os.dup(pair.transport.fd)) as ours:
        return ours.recv(1 << 20)


SIZES = [1, 100, RECORD, RECORD, RECORD, 5, 4000, 4000, 4000, RECORD - 1, 1, 1, 9000, RECORD]


@pytest.mark.parametrize("seed", range(12))
def test_records_arrive_whole_however_they_are_cut(site: Site, seed: int) -> None:
    """Into what arrives at once, and into what there is room for."""
    pair = connect(site)
    chance = random.Random(seed)
    plain, wire = encrypted(pair, chance.sample(SIZES, len(SIZES)))
    cuts, rooms = chance.choice([10, 3000, 40_000]), chance.choice([10, 3000, 40_000, 300_000])
    raw = socket.socket(fileno=os.dup(pair.theirs.fileno()))
    found, at = bytearray(), 0
    while len(found) < len(plain):
        size = chance.randint(1, cuts)
        assert at < len(wire), "all that was sent is received"
        raw.sendall(wire[at : at + size])
        at += size
        # As the loop does: until the socket is empty, or it would block.
        while True:
            data = pair.ours.receive(chance.randint(1, rooms))
            assert data != FAILED
            if data != BLOCKED:
                found += data
            if data == BLOCKED or pair.transport.short_is_empty:
                break
    raw.close()

    assert found == plain


def test_openssl_is_not_asked_for_a_record_of_which_it_has_a_part(site: Site) -> None:
    """Its answer would cost an exception, for each piece that arrives."""
    asked: list[str] = []
    pair = connect(site, asked=asked)
    pair.theirs.send(b"first")
    assert pair.ours.receive(100) == b"first"
    plain, wire = encrypted(pair, [RECORD] * 10)
    asked.clear()

    raw = socket.socket(fileno=os.dup(pair.theirs.fileno()))
    found = bytearray()
    for at in range(0, len(wire), 1000):
        raw.sendall(wire[at : at + 1000])
        data = pair.ours.receive(100_000)
        found += b"" if data == BLOCKED else data
    raw.close()

    assert found == plain
    assert asked == [""] * 10


def test_several_records_are_received_by_one_call_if_there_is_room(site: Site) -> None:
    asked: list[str] = []
    pair = connect(site, asked=asked)
    pair.theirs.send(b"first")
    assert pair.ours.receive(100) == b"first"
    asked.clear()
    for _ in range(3):
        pair.theirs.send(b"a" * RECORD)

    assert pair.ours.receive(100_000) == b"a" * 3 * RECORD
    assert pair.transport.short_is_empty, "one call took all"
    assert asked == ["", "", ""]


def send_whole(pair: Pair, data: bytes, step: int = 1 << 30) -> bytes:
    """Send everything as the loop does, again from where a call stopped; what the peer reads."""
    found, sent = bytearray(), 0
    while sent < len(data):
        n = pair.ours.send(data[sent : sent + step])
        assert n == BLOCKED or n > 0
        if n == BLOCKED:
            found += drain(pair.theirs)
        else:
            sent += n
    return bytes(found + drain(pair.theirs))


@pytest.mark.parametrize("size", [1, RECORD - 1, RECORD, RECORD + 1, 1_000_003])
def test_bytes_that_the_socket_takes_in_parts_arrive_once_and_in_order(
    site: Site, size: int
) -> None:
    pair = connect(site, buffer_bytes=4096)
    data = random.Random(size).randbytes(size)

    assert send_whole(pair, data) == data


def test_bytes_of_which_all_are_told_are_gone(site: Site) -> None:
    """Nobody calls again, so none of them may be left here."""
    pair = connect(site, buffer_bytes=4096)
    chance = random.Random(1)
    expected, found, parts = bytearray(), bytearray(), 0
    while len(expected) < 3_000_000:
        data = chance.randbytes(chance.randrange(1, 60_000))
        sent = 0
        while sent < len(data):
            n = pair.ours.send(data[sent:])
            if n == BLOCKED or sent + n < len(data):
                parts += 1
                found += drain(pair.theirs)
            sent += max(n, 0)
        expected += data
        found += drain(pair.theirs)
        assert len(found) == len(expected)
    assert found == expected
    assert parts > 100


def test_record_that_was_begun_is_sent_although_the_caller_gives_other_lengths(site: Site) -> None:
    pair = connect(site, buffer_bytes=4096)
    data = random.Random(1).randbytes(300_000)
    sent = 0
    while (n := pair.ours.send(data[sent:])) != BLOCKED:
        sent += n
    found = bytearray()
    for step in itertools.cycle((1, 7, 100, 5000, RECORD, 40_000)):
        n = pair.ours.send(data[sent : sent + step])
        if n == BLOCKED:
            found += drain(pair.theirs)
            continue
        assert 0 < n <= step
        sent += n
        if sent == len(data):
            break
    found += drain(pair.theirs)

    assert bytes(found) == data


def test_short_bytes_wait_for_those_of_the_next_call(site: Site) -> None:
    pair = connect(site)
    assert pair.ours.send(b"head", more=True) == 4
    assert drain(pair.theirs) == b""
    assert pair.ours.send(b"er", more=True) == 2
    assert drain(pair.theirs) == b""

    assert pair.ours.send(b" and body") == 9

    assert pair.theirs.recv(100) == b"header and body", "one record"


@pytest.mark.parametrize("size", [1, RECORD, 700_001])
@pytest.mark.parametrize("head", [0, 50, RECORD + 50])
def test_file_is_sent_after_its_head(site: Site, tmp_path: Path, size: int, head: int) -> None:
    """As fetch does: bytes with ``more``, then the file, again from where a call stopped."""
    pair = connect(site, buffer_bytes=8192)
    content = random.Random(size).randbytes(size + 10)
    (tmp_path / "log").write_bytes(content)
    found, sent, first = bytearray(), 0, b"h" * head
    with open(tmp_path / "log", "rb") as file:
        while sent < head + size:
            if sent < head:
                n = pair.ours.send(first[sent:], more=True)
            else:
                n = pair.ours.send_file(file.fileno(), 10 + sent - head, size - (sent - head))
            if n == BLOCKED:
                found += drain(pair.theirs)
                continue
            assert n > 0
            sent += n
    found += drain(pair.theirs)

    assert bytes(found) == first + content[10:]


def test_file_that_ends_early_and_one_that_is_not_there(site: Site, tmp_path: Path) -> None:
    pair = connect(site)
    (tmp_path / "log").write_bytes(b"short")
    with open(tmp_path / "log", "rb") as file:
        assert pair.ours.send_file(file.fileno(), 0, 100) == 5
        assert pair.ours.send_file(file.fileno(), 5, 95) == CUT
        gone = file.fileno()
    assert pair.ours.send_file(gone, 0, 10) == FAILED


@pytest.mark.parametrize("size", [10, RECORD, 100_000])
def test_several_buffers_are_one_stream(site: Site, size: int) -> None:
    pair = connect(site)
    parts = [bytes([65 + n]) * size for n in range(5)]
    expected, sent, found = b"".join(parts), 0, bytearray()
    while sent < len(expected):
        left, rest = sent, []
        for part in parts:
            rest.append(part[left:])
            left = max(left - len(part), 0)
        n = pair.ours.send_all([part for part in rest if part])
        if n == BLOCKED:
            found += drain(pair.theirs)
        else:
            sent += n
    assert bytes(found + drain(pair.theirs)) == expected


def test_end_of_the_stream_with_and_without_a_farewell(site: Site) -> None:
    pair = connect(site)
    drain(pair.theirs)
    pair.theirs.send(b"last")
    with pytest.raises(ssl.SSLWantReadError):
        pair.theirs.unwrap()
    assert pair.ours.receive(100) == b"last"
    assert pair.ours.receive(100) == b""

    pair = connect(site)
    drain(pair.theirs)
    pair.theirs.close()
    assert pair.ours.receive(100) in (b"", FAILED)  # reset, if the peer has not read everything


def test_our_end_is_a_farewell_and_the_peers_bytes_are_discarded_raw(site: Site) -> None:
    pair = connect(site)
    drain(pair.theirs)
    pair.ours.end_sending()
    assert pair.theirs.recv(100) == b""
    pair.theirs.send(b"too late")
    assert pair.ours.receive(1000) not in (b"", b"too late", BLOCKED, FAILED)
    pair.ours.close()
    assert pair.transport.socket.fileno() == -1


@pytest.mark.parametrize(
    "hostile",
    [
        b"\x17\x03\x03\x00\x20" + b"x" * 32,  # a record that was not encrypted
        b"\x17\x03\x03\xff\xff" + b"x" * 100,  # longer than a record may be
        b"\x15\x03\x03\x00\x02\x02\x28",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0" * 64,
    ],
)
def test_hostile_bytes_end_the_connection_and_nothing_else(site: Site, hostile: bytes) -> None:
    pair = connect(site)
    drain(pair.theirs)
    raw = socket.socket(fileno=os.dup(pair.theirs.fileno()))
    raw.send(hostile)

    assert pair.ours.receive(100) == FAILED
    assert pair.ours.receive(100) == FAILED
    assert pair.ours.send(b"x") == FAILED
    pair.ours.end_sending()
    pair.ours.close()
    raw.close()


def test_peer_that_has_gone_fails_sends(site: Site) -> None:
    pair = connect(site)
    pair.theirs.close()
    for _ in range(3):
        n = pair.ours.send(b"x" * 1000)
    assert n == FAILED
