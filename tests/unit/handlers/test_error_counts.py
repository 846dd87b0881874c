"""Error codes of responses, for metrics."""

from __future__ import annotations

import pytest

from kbroker.handlers.support.error_counts import RESULTS_MAX, error_counts
from kbroker.protocol.messages.find_coordinator import FindCoordinatorResponse
from kbroker.protocol.messages.list_offsets import ListOffsetsResponse

pytestmark = pytest.mark.unit


def test_every_result_counts_with_and_without_an_error() -> None:
    topic, partition = (
        ListOffsetsResponse.ListOffsetsTopicResponse,
        ListOffsetsResponse.ListOffsetsPartitionResponse,
    )
    partitions = [partition(error_code=code) for code in (0, 3, 3)]

    found = error_counts(ListOffsetsResponse(topics=[topic(partitions=partitions), topic()]))

    assert found == {0: 1, 3: 2}


def test_response_of_one_result_counts_once() -> None:
    assert error_counts(FindCoordinatorResponse(error_code=15)) == {15: 1}


def test_long_response_is_counted_up_to_a_bound() -> None:
    coordinator = FindCoordinatorResponse.Coordinator

    found = error_counts(FindCoordinatorResponse(coordinators=[coordinator()] * (RESULTS_MAX + 5)))

    assert sum(found.values()) == RESULTS_MAX
