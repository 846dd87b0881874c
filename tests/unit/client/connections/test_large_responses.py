"""Responses that arrive in pieces; the connection is woken only when many bytes have arrived."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from support.brokers.fake_broker import FakeBroker

from kbroker.client.connections.connection import Connection
from kbroker.client.errors import ConnectionLost, Timeout
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse

RECORDS = bytes(range(256)) * 4000  # 1 MB


def answer_of(state: dict[str, Any], records: bytes = RECORDS) -> bytes:
    row = FetchResponse.PartitionData(partition_index=0, records=records)
    topic = FetchResponse.FetchableTopicResponse(topic="t", partitions=[row])
    frame: bytes = state["frame_of"](FetchResponse(responses=[topic]))
    return frame


def fetch(connection: Connection, seconds: float = 20.0) -> bytes:
    deadline = time.monotonic() + seconds
    response = connection.call(FetchRequest(), deadline, at_most=12, into=bytearray())
    return bytes(response.responses[0].partitions[0].records)


def connect(broker: FakeBroker) -> Connection:
    return Connection("127.0.0.1", broker.port, deadline=time.monotonic() + 20)


@pytest.mark.parametrize("piece", [1000, 65_537, 262_143, 262_145, 700_001])
def test_response_in_pieces_is_received_whole(piece: int) -> None:
    def in_pieces(request: Any, state: dict[str, Any]) -> Iterator[bytes]:
        frame = answer_of(state)
        return (frame[at : at + piece] for at in range(0, len(frame), piece))

    with FakeBroker({ApiKey.FETCH: in_pieces}) as broker:
        connection = connect(broker)
        assert fetch(connection) == RECORDS
        assert fetch(connection) == RECORDS, "the next answer's head is four bytes"
        connection.close()


def test_large_response_wakes_the_receiver_a_few_times() -> None:
    def slowly(request: Any, state: dict[str, Any]) -> Iterator[bytes]:
        frame = answer_of(state)
        for at in range(0, len(frame), 32 << 10):
            yield frame[at : at + (32 << 10)]
            threading.Event().wait(0.001)  # a receiver that can be woken is

    with FakeBroker({ApiKey.FETCH: slowly}) as broker:
        connection = connect(broker)
        calls = count_receives(connection)
        assert fetch(connection) == RECORDS
        connection.close()

    # A full receive buffer, which is smaller on a busy machine, wakes it, too.
    assert len(calls) <= 4 + -(-len(RECORDS) // (128 << 10)), calls


def test_small_response_behind_a_large_one_is_not_waited_for_longer() -> None:
    sizes = iter([RECORDS, b"x" * 100, b"y" * 70_000])
    with FakeBroker({ApiKey.FETCH: lambda _, state: answer_of(state, next(sizes))}) as broker:
        connection = connect(broker)
        assert [len(fetch(connection)) for _ in range(3)] == [len(RECORDS), 100, 70_000]
        connection.close()


@pytest.mark.parametrize("sent", [2, 1000, 300_000])
def test_connection_that_ends_amid_a_response_is_lost_at_once(sent: int) -> None:
    def cut(request: Any, state: dict[str, Any]) -> Iterator[bytes]:
        yield answer_of(state)[:sent]
        raise OSError  # the fake broker closes

    with FakeBroker({ApiKey.FETCH: cut}) as broker, pytest.raises(ConnectionLost, match="closed"):
        fetch(connect(broker), seconds=60.0)


def test_response_that_stops_amid_times_out() -> None:
    done = threading.Event()

    def stop(request: Any, state: dict[str, Any]) -> Iterator[bytes]:
        yield answer_of(state)[:1000]
        done.wait(20)

    with FakeBroker({ApiKey.FETCH: stop}) as broker, pytest.raises(Timeout):
        fetch(connect(broker), seconds=0.5)
    done.set()


def count_receives(connection: Connection) -> list[int]:
    """The bytes of each call of recv_into from now on."""
    found: list[int] = []
    real = connection._socket

    class Counted:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def recv_into(self, buffer: memoryview) -> int:
            found.append(real.recv_into(buffer))
            return found[-1]

    connection._socket = Counted()  # type: ignore[assignment]
    return found
