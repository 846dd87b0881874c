"""File descriptors over a socket pair, and the reports that come back."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator

import pytest
from support.running.descriptors import open_files

from kbroker.ipc import fdpass

pytestmark = pytest.mark.unit

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = fdpass.create_pair()
    yield made
    for end in made:
        end.close()


def test_connection_arrives_with_listener_and_host(pair: Pair) -> None:
    ours, theirs = socket.socketpair()

    assert fdpass.send_connection(pair[0], theirs.fileno(), 3, "10.0.0.1")
    theirs.close()
    [(fd, listener_index, host)] = fdpass.receive_connections(pair[1])

    with ours, socket.socket(fileno=fd) as received:
        received.send(b"x")
        assert ours.recv(1) == b"x"
        assert (listener_index, host) == (3, "10.0.0.1")


def test_nothing_there_is_an_empty_list(pair: Pair) -> None:
    assert fdpass.receive_connections(pair[1]) == []
    assert fdpass.receive_closed(pair[0]) == []


def test_full_pair_says_so_and_loses_nothing(pair: Pair) -> None:
    sent = 0
    with open("/dev/null") as file:
        while fdpass.send_connection(pair[0], file.fileno(), sent, "h"):
            sent += 1
    received = []
    while found := fdpass.receive_connections(pair[1]):
        received += found
        for fd, _, _ in found:
            os.close(fd)

    assert [index for _, index, _ in received] == list(range(sent))


@pytest.mark.own_process
def test_connection_without_room_for_its_descriptor_is_reported_closed(pair: Pair) -> None:
    """Otherwise its address would count one connection too many forever."""
    with open("/dev/null") as file:
        fdpass.send_connection(pair[0], file.fileno(), 0, "10.0.0.1")
    lowest_free = os.dup(pair[0].fileno())
    os.close(lowest_free)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
    try:
        found = fdpass.receive_connections(pair[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    assert found == []
    assert fdpass.receive_closed(pair[0]) == ["10.0.0.1"]


def test_closed_reports_arrive_in_order_over_several_messages(pair: Pair) -> None:
    hosts = [f"2001:db8::{number:x}" for number in range(2000)]
    rest = list(hosts)

    assert fdpass.send_closed(pair[1], rest)

    assert rest == []
    assert fdpass.receive_closed(pair[0]) == hosts


def test_closed_reports_that_do_not_fit_stay_with_the_caller(pair: Pair) -> None:
    hosts = [f"host-{number}" for number in range(100_000)]
    rest = list(hosts)

    assert not fdpass.send_closed(pair[1], rest)

    received = fdpass.receive_closed(pair[0])
    assert received + rest == hosts
    assert received and rest


def test_discard_closes_what_was_on_its_way(pair: Pair) -> None:
    before = open_files()
    ours, theirs = socket.socketpair()
    fdpass.send_connection(pair[0], theirs.fileno(), 0, "h")
    theirs.close()
    fdpass.send_closed(pair[1], ["h"])

    assert fdpass.discard_pending(pair) == 1

    with ours:
        assert ours.recv(1) == b""
    assert not open_files() - before
    assert fdpass.receive_closed(pair[0]) == []


@pytest.mark.parametrize(
    ("address", "host"),
    [
        (("10.0.0.1", 5), "10.0.0.1"),
        (("::ffff:10.0.0.1", 5, 0, 0), "10.0.0.1"),
        (("fe80::1%eth0", 5, 0, 2), "fe80::1"),
        (("::1", 5, 0, 0), "::1"),
    ],
)
def test_host_is_the_same_for_one_peer_however_it_came(address, host: str) -> None:  # type: ignore[no-untyped-def]
    assert fdpass.host_of(address) == host
