"""What a network process counts of its clients, in rows of shared memory."""

from __future__ import annotations

import socket

import pytest
from support.network.net_loop_harness import Harness, framed, produce, received, result

from kbroker._ext.shared.client_figures import ROWS, ClientFigures, read_clients, region_size
from kbroker._ext.shared.request_times import RequestTimes, TimesView
from kbroker._ext.shared.request_times import region_size as times_size
from kbroker.protocol import header
from kbroker.protocol.api import ApiKey

pytestmark = pytest.mark.unit


class Counted:
    """A harness whose loop counts in ``region``."""

    def __init__(self) -> None:
        self.region = bytearray(region_size(1))
        self.times = bytearray(times_size(1))
        self.harness = Harness()
        self.clients: list[socket.socket] = []  # open until the end
        self.harness.loop.keep_times(RequestTimes(self.times, 0), ClientFigures(self.region, 0))

    def rows(self) -> dict[tuple[bytes, bytes, bytes], tuple[int, ...]]:
        """By client id, software and its version: connections, requests, bytes in and out."""
        return {row[2:5]: row[5:] for row in read_clients(self.region, 1)}


@pytest.fixture
def counted() -> Counted:
    return Counted()


def ask(counted: Counted, client_id: str, version: int = 1) -> tuple[int, int]:
    """Send a request and get its response: the bytes of both."""
    client = counted.harness.connect()
    head = header.encode_request_header(ApiKey.METADATA, version, 2, client_id)
    sent = framed(head + b"\0\0\0\0")
    client.send(sent)
    counted.harness.turn()
    token, _ = counted.harness.dispatched.pop()
    counted.harness.loop.respond(token, b"\0\0\0\2")
    counted.harness.turn()
    counted.clients.append(client)
    return len(sent), len(received(client))


def test_requests_and_bytes_count_for_the_client_that_sent_them(counted: Counted) -> None:
    bytes_in, bytes_out = ask(counted, "billing")
    ask(counted, "billing")
    ask(counted, "audit")

    rows = counted.rows()

    assert rows[b"billing", b"", b""] == (2, 2, 2 * bytes_in, 2 * bytes_out)
    assert rows[b"audit", b"", b""][:2] == (1, 1)
    assert rows[b"", b"", b""][0] == 0  # of those that have sent nothing


def test_connection_moves_when_its_client_names_its_software(counted: Counted) -> None:
    ask(counted, "billing")
    connection = counted.harness.connection

    connection.name_software(b"librdkafka", b"2.16.0")
    connection.name_software(b"librdkafka", b"2.16.0")

    rows = counted.rows()
    assert rows[b"billing", b"", b""][:2] == (0, 1)
    assert rows[b"billing", b"librdkafka", b"2.16.0"][0] == 1
    counted.harness.loop.close(connection, None)
    assert counted.rows()[b"billing", b"librdkafka", b"2.16.0"][0] == 0
    connection.name_software(b"too", b"late")
    assert (b"billing", b"too", b"late") not in counted.rows()


def test_more_clients_than_rows_share_one_and_the_idle_make_room(counted: Counted) -> None:
    """A client may invent as many ids as it likes."""
    for number in range(ROWS - 1):
        ask(counted, f"client-{number}")
    assert len(counted.rows()) == ROWS

    ask(counted, "one too many")
    assert counted.rows()[b"", b"", b""][0] == 1
    other = Counted()
    for number in range(3 * ROWS):
        ask(other, f"client-{number}")
        other.harness.loop.close(other.harness.connection, None)
    rows = other.rows()
    assert len(rows) == ROWS
    assert rows[f"client-{3 * ROWS - 1}".encode(), b"", b""][:2] == (0, 1)
    assert (b"client-0", b"", b"") not in rows


def test_names_are_cut_to_their_room(counted: Counted) -> None:
    ask(counted, "x" * 120)
    counted.harness.connection.name_software(b"n" * 300, b"v" * 300)

    assert (b"x" * 96, b"n" * 48, b"v" * 32) in counted.rows()


def test_next_incarnation_begins_with_empty_rows(counted: Counted) -> None:
    ask(counted, "billing")

    ClientFigures(counted.region, 0)

    assert list(counted.rows()) == [(b"", b"", b"")]
    with pytest.raises(ValueError, match="no rows"):
        ClientFigures(counted.region, 1)


def test_requests_count_by_version(counted: Counted) -> None:
    ask(counted, "billing", version=1)
    ask(counted, "billing", version=7)
    ask(counted, "billing", version=7)
    ask(counted, "billing", version=900)

    view = TimesView(counted.times, 1)

    assert view.versions(ApiKey.METADATA) == [(1, 1), (7, 2), (31, 1)]
    assert view.versions(ApiKey.PRODUCE) == []
    with pytest.raises(IndexError):
        view.versions(-1)


def test_queues_have_what_waits_for_a_process_and_what_is_not_sent(counted: Counted) -> None:
    harness, client = counted.harness, counted.harness.connect()
    client.send(produce(9))
    harness.turn()
    [descriptor] = harness.descriptors()

    assert harness.requests.queue_sizes() == (1, 0)

    harness.answer(result(descriptor))
    harness.loop.turn(0)
    assert harness.requests.queue_sizes() == (0, 1)
    harness.turn()
    assert received(client)
    assert harness.requests.queue_sizes() == (0, 0)
