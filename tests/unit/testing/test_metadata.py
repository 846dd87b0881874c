"""The metadata that tests read without a client."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from support.network.frames import read_frame, response_frame

from kbroker.protocol.codec import decode_exact
from kbroker.protocol.messages.metadata import MetadataRequest, MetadataResponse
from kbroker.testing.metadata import (
    Membership,
    PartitionView,
    are_in_sync,
    membership,
    partition_states,
)

pytestmark = pytest.mark.unit

VERSION = 4


class MetadataServer:
    """Answers each request with ``response``, encoded by the broker's own codec."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.requests: list[MetadataRequest] = []
        self.response = MetadataResponse(
            brokers=[
                MetadataResponse.MetadataResponseBroker(node_id=4, host="h", port=1, rack="r"),
                MetadataResponse.MetadataResponseBroker(node_id=7, host="i", port=2, rack=None),
            ],
            cluster_id="c",
            controller_id=7,
        )
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def know(self, *states: PartitionView) -> None:
        rows = [
            MetadataResponse.MetadataResponsePartition(
                partition_index=number,
                leader_id=one.leader,
                replica_nodes=list(one.replicas),
                isr_nodes=sorted(one.in_sync),
            )
            for number, one in enumerate(states)
        ]
        topic = MetadataResponse.MetadataResponseTopic(name="t", partitions=rows)
        self.response.topics = [topic]

    def _serve(self) -> None:
        while True:
            try:
                connection = self._listening.accept()[0]
            except OSError:
                return
            with connection:
                frame = read_frame(connection)
                assert frame is not None and frame[4:8] == struct.pack(">hh", 3, VERSION)
                self.requests.append(decode_exact(MetadataRequest, VERSION, frame[14:]))
                connection.sendall(response_frame(self.response, 3, VERSION, 1))

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()


@pytest.fixture
def server() -> Iterator[MetadataServer]:
    with closing(MetadataServer()) as made:
        yield made


def test_members_and_partitions_are_read(server: MetadataServer) -> None:
    two = PartitionView(4, (4, 7), frozenset({4})), PartitionView(-1, (7,), frozenset())
    server.know(*two)

    assert membership(server.address) == Membership(frozenset({4, 7}), 7)
    assert partition_states(server.address, "t") == dict(enumerate(two))
    asked = [[topic.name for topic in request.topics] for request in server.requests]
    assert asked == [[], ["t"]]
    assert not any(request.allow_auto_topic_creation for request in server.requests)


def test_replicas_are_in_sync_with_their_leader_among_them(server: MetadataServer) -> None:
    both = frozenset({4, 7})
    server.know(PartitionView(4, (4, 7), both), PartitionView(7, (4, 7), both))
    assert are_in_sync([server.address], "t")
    assert are_in_sync([server.address], "t", 2)
    with pytest.raises(AssertionError, match="t-0"):
        are_in_sync([server.address], "t", 1)

    server.know(PartitionView(4, (4, 7), both), PartitionView(7, (4, 7), frozenset({4})))
    with pytest.raises(AssertionError, match="t-1"):
        are_in_sync([server.address], "t")

    server.know(PartitionView(7, (4, 7), frozenset({4})))
    with pytest.raises(AssertionError, match="t-0"):
        are_in_sync([server.address], "t", 1)


def test_topic_without_partitions_is_not_in_sync(server: MetadataServer) -> None:
    with pytest.raises(AssertionError, match="t is not in the metadata"):
        are_in_sync([server.address], "t")


def test_broker_that_is_not_there_is_told_by_its_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"

    with pytest.raises(AssertionError, match=address):
        membership(address)
