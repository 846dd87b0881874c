"""DescribeTransactions and ListTransactions."""

from __future__ import annotations

from typing import Any

import pytest
from support.coordinators.transaction_host import FIRST_ID, ID, TransactionHost, host_with_topics

from kbroker.errors import ErrorCode
from kbroker.protocol.messages.describe_transactions import DescribeTransactionsRequest
from kbroker.protocol.messages.list_transactions import ListTransactionsRequest

pytestmark = pytest.mark.unit

AWAY = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)


@pytest.fixture
def host() -> TransactionHost:
    return host_with_topics()


def describe(host: TransactionHost, *names: str) -> list[Any]:
    request = DescribeTransactionsRequest(transactional_ids=list(names))
    return host.ask(request, 0).transaction_states


def listed(host: TransactionHost, version: int = 2, **filters: Any) -> list[tuple[str, int, str]]:
    response = host.ask(ListTransactionsRequest(**filters), version)
    assert response.error_code == 0
    return [
        (found.transactional_id, found.producer_id, found.transaction_state)
        for found in response.transaction_states
    ]


def test_describe_tells_all_of_a_transaction(host: TransactionHost) -> None:
    producer = host.producer(transaction_timeout_ms=5_000)
    host.advance(3)
    began_ms = host.wall_ms()
    host.add(producer, 2, 0)
    host.add_offsets(producer, "g")
    host.advance(3)
    (found,) = describe(host, ID)
    assert (found.error_code, found.transactional_id) == (0, ID)
    assert (found.producer_id, found.producer_epoch) == producer
    assert (found.transaction_state, found.transaction_timeout_ms) == ("Ongoing", 5_000)
    assert found.transaction_start_time_ms == began_ms
    topics = {topic.topic: topic.partitions for topic in found.topics}
    assert topics["t"] == [0, 2]
    assert len(topics["__consumer_offsets"]) == 1


def test_describe_returns_each_id(host: TransactionHost) -> None:
    host.producer()
    found = describe(host, "unknown", ID, "")
    assert [(each.error_code, each.transactional_id) for each in found] == [
        (ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, "unknown"),
        (0, ID),
        (ErrorCode.INVALID_REQUEST, ""),
    ]
    assert (found[1].transaction_state, found[1].transaction_start_time_ms) == ("Empty", -1)


@pytest.fixture
def many(host: TransactionHost) -> TransactionHost:
    """``empty``, ``done``, ``tx`` (prepared 50 ms ago); all in one partition."""
    host.producer(name="empty")
    done = host.producer(name="done")
    response = host.send_end(done, False, name="done").value
    assert response.error_code == 0
    producer = host.producer()
    host.add(producer, 0)
    host.marker_code = AWAY
    host.end(producer)
    host.advance(50)
    return host


EMPTY = ("empty", FIRST_ID, "Empty")
DONE = ("done", FIRST_ID + 1, "CompleteAbort")
PREPARED = (ID, FIRST_ID + 2, "PrepareCommit")


@pytest.mark.parametrize("version", range(3))
def test_list_without_filters_names_all(many: TransactionHost, version: int) -> None:
    assert sorted(listed(many, version)) == sorted([EMPTY, DONE, PREPARED])


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"state_filters": ["Empty", "PrepareCommit"]}, [EMPTY, PREPARED]),
        ({"state_filters": ["Ongoing"]}, []),
        ({"state_filters": ["nonsense"]}, []),
        ({"producer_id_filters": [FIRST_ID, FIRST_ID + 1, 7]}, [EMPTY, DONE]),
        ({"producer_id_filters": [FIRST_ID], "state_filters": ["PrepareCommit"]}, []),
        ({"duration_filter": 49}, [PREPARED]),
        ({"duration_filter": 50}, []),
        ({"duration_filter": 0}, [PREPARED]),
        ({"transactional_id_pattern": ".*e.*"}, [EMPTY, DONE]),
        ({"transactional_id_pattern": "mpt"}, []),
        ({"transactional_id_pattern": ""}, [EMPTY, DONE, PREPARED]),
    ],
)
def test_list_filters(
    many: TransactionHost, filters: dict[str, Any], expected: list[tuple[str, int, str]]
) -> None:
    assert sorted(listed(many, **filters)) == sorted(expected)


def test_list_names_the_states_it_does_not_know(many: TransactionHost) -> None:
    request = ListTransactionsRequest(state_filters=["Empty", "ongoing", "?"])
    assert many.ask(request, 1).unknown_state_filters == ["ongoing", "?"]


@pytest.mark.parametrize("pattern", ["(", "a" * 1001])
def test_list_with_a_broken_pattern_is_rejected(many: TransactionHost, pattern: str) -> None:
    response = many.ask(ListTransactionsRequest(transactional_id_pattern=pattern), 2)
    assert response.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert response.transaction_states == []
