"""WriteTxnMarkers, from the wire to the owners of the partitions and back."""

from __future__ import annotations

from typing import Any

import pytest
from support.network.network_process import NetworkProcess

from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.process_table import Address
from kbroker.protocol.messages.write_txn_markers import WriteTxnMarkersRequest

pytestmark = pytest.mark.unit


@pytest.fixture
def process() -> NetworkProcess:
    process = NetworkProcess()
    process.add_topic("t", b"t" * 16, [4, 5])
    return process


def ask(process: NetworkProcess, version: int, *partitions: int) -> dict[int, int]:
    topic = WriteTxnMarkersRequest.WritableTxnMarkerTopic
    marker = WriteTxnMarkersRequest.WritableTxnMarker(
        producer_id=7,
        producer_epoch=3,
        transaction_result=True,
        topics=[topic(name="t", partition_indexes=list(partitions))],
        coordinator_epoch=2,
    )
    response = process.ask(WriteTxnMarkersRequest(markers=[marker]), version)
    assert [each.producer_id for each in response.markers] == [7]
    return {
        partition.partition_index: partition.error_code
        for topic in response.markers[0].topics
        for partition in topic.partitions
    }


@pytest.mark.parametrize("version", range(3))
def test_each_owner_is_asked_once(process: NetworkProcess, version: int) -> None:
    asked: list[tuple[int, Any]] = []

    def write(to: Address, markers: list[list[Any]]) -> list[int]:
        asked.append((to.index, markers))
        return [0] * len(markers)

    process.set_response("write_markers", write)
    assert ask(process, version, 0, 1, 9) == {0: 0, 1: 0, 9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert asked == [(0, [[4, 7, 3, True, 2, 0]]), (1, [[5, 7, 3, True, 2, 0]])]


def test_owner_that_is_being_restarted_fails_its_partitions_alone(
    process: NetworkProcess,
) -> None:
    def write(to: Address, markers: list[list[Any]]) -> list[int]:
        if to.index == 0:
            raise WireError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return [int(ErrorCode.INVALID_PRODUCER_EPOCH)]

    process.set_response("write_markers", write)
    assert ask(process, 1, 0, 1) == {
        0: ErrorCode.NOT_LEADER_OR_FOLLOWER,
        1: ErrorCode.INVALID_PRODUCER_EPOCH,
    }
