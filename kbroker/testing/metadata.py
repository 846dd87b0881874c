"""What a broker's metadata says, read without a client library and without code of the broker."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

# WIRE: Metadata (key 3) version 4, correlation id 1, no client id.
_HEADER = struct.pack(">hhih", 3, 4, 1, -1)
_NOT_CREATED = b"\0"  # a topic that does not exist stays so

T = TypeVar("T")


class Membership(NamedTuple):
    """A broker's view of its cluster. controller: -1 if it knows none."""

    brokers: frozenset[int]
    controller: int


class PartitionView(NamedTuple):
    """A partition as a broker knows it. leader: -1 if it has none."""

    leader: int
    replicas: tuple[int, ...]
    in_sync: frozenset[int]


class TopicMetadataView(NamedTuple):
    """``partitions`` of one topic; empty if it does not exist."""

    membership: Membership
    partitions: dict[int, PartitionView]


def membership(address: str) -> Membership:
    """The view of the broker at ``host:port``. Raises AssertionError while it does not respond."""
    return read_metadata(address).membership


def partition_states(address: str, topic: str) -> dict[int, PartitionView]:
    """The partitions of a topic, by the broker at ``host:port``. Raises as ``membership`` does."""
    return read_metadata(address, topic).partitions


def are_in_sync(addresses: Iterable[str], topic: str, replicas: int | None = None) -> bool:
    """Whether, by each of these brokers, every partition of the topic has this many replicas in
    sync, its leader among them. replicas: without it all that are assigned.

    Raises AssertionError with the state that is not so: a condition for ``wait_until``.
    """
    for address in addresses:
        states = partition_states(address, topic)
        assert states, f"{topic} is not in the metadata of {address}"
        for number, state in states.items():
            wanted = len(state.replicas) if replicas is None else replicas
            is_so = state.leader in state.in_sync and len(state.in_sync) == wanted
            assert is_so, f"{topic}-{number} by {address}: {state}"
    return True


def read_metadata(address: str, topic: str | None = None) -> TopicMetadataView:
    """Ask the broker at ``host:port``. Raises AssertionError while it does not respond."""
    host, _, port = address.rpartition(":")
    name = b"" if topic is None else topic.encode()
    topics = struct.pack(">i", 0) if topic is None else struct.pack(">ih", 1, len(name)) + name
    request = _HEADER + topics + _NOT_CREATED
    try:
        with socket.create_connection((host, int(port)), timeout=10) as sock:
            sock.sendall(struct.pack(">i", len(request)) + request)
            return _parse(sock.makefile("rb").read)
    except (OSError, struct.error) as error:
        raise AssertionError(f"the broker at {address} does not respond: {error}") from error


def _parse(read: Callable[[int], bytes]) -> TopicMetadataView:
    """WIRE: size, correlation id, throttle time; brokers with id, host, port and rack; cluster id;
    the controller's id; topics with error, name, internal and partitions, each of which has error,
    index, leader, replicas and in-sync replicas.
    """

    def number(format: str) -> int:
        (value,) = struct.unpack(format, read(struct.calcsize(format)))
        return int(value)

    def text() -> bytes:
        return read(max(number(">h"), 0))

    def several(item: Callable[[], T]) -> list[T]:
        return [item() for _ in range(number(">i"))]

    def broker() -> int:
        broker_id = number(">i")
        text(), number(">i"), text()
        return broker_id

    def partition() -> tuple[int, PartitionView]:
        _, index, leader = number(">h"), number(">i"), number(">i")
        replicas, in_sync = several(lambda: number(">i")), several(lambda: number(">i"))
        return index, PartitionView(leader, tuple(replicas), frozenset(in_sync))

    def topic() -> list[tuple[int, PartitionView]]:
        number(">h"), text(), number(">b")
        return several(partition)

    number(">i"), number(">i"), number(">i")
    brokers = several(broker)
    text()
    members = Membership(frozenset(brokers), number(">i"))
    return TopicMetadataView(
        members, {key: state for partitions in several(topic) for key, state in partitions}
    )
