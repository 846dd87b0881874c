"""Requests to the controller: what is retriable is sent again, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from support.security.security_broker import SecurityBroker

from kbroker.client.connections import controller_calls
from kbroker.client.connections.cluster import Cluster
from kbroker.client.errors import RejectedError, Timeout
from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message
from kbroker.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse

pytestmark = pytest.mark.unit

OK, NOT_CONTROLLER, EXISTS, THROTTLED, OF_THE_FUTURE = 0, 41, 36, 89, 30_000
UNKNOWN_TOPIC, TIMED_OUT = 3, 7


class Creating(SecurityBroker):
    """codes: topic -> the error codes of its first attempts, then OK."""

    def __init__(self, codes: dict[str, list[int]]) -> None:
        super().__init__()
        self.codes = codes
        self.asked: list[list[str]] = []
        self.answers[ApiKey.CREATE_TOPICS] = self.create

    def create(self, request: Any, state: dict[str, Any]) -> Message:
        names = [row.name for row in request.topics]
        self.asked.append(names)
        row = CreateTopicsResponse.CreatableTopicResult
        return CreateTopicsResponse(
            topics=[
                row(name=name, error_code=self.codes[name].pop(0) if self.codes[name] else OK)
                for name in names
                if name != "forgotten"
            ]
        )


def create(broker: Creating, names: list[str], deadline: float = 20.0) -> dict[str, Any]:
    row = CreateTopicsRequest.CreatableTopic
    with Cluster(broker.bootstrap, deadline=deadline) as cluster:
        return controller_calls.ask_controller_for_each(
            cluster,
            dict.fromkeys(names),
            lambda connection, left, timeout_ms: CreateTopicsRequest(
                topics=[row(name=name) for name in left], timeout_ms=timeout_ms
            ),
            lambda response: [(row.name, row) for row in response.topics],
            "create topics",
        )


def test_only_retriable_results_are_asked_for_again():
    """A topic that was created must not be reported as one that exists."""
    codes = {"done": [], "moved": [NOT_CONTROLLER, THROTTLED], "there": [EXISTS]}
    with Creating(codes) as broker:
        results = create(broker, list(codes))

        assert {name: row.error_code for name, row in results.items()} == {
            "done": OK,
            "moved": OK,
            "there": EXISTS,
        }
        assert broker.asked == [["done", "moved", "there"], ["moved"], ["moved"]]


@pytest.mark.parametrize("code", [UNKNOWN_TOPIC, TIMED_OUT])
def test_controller_is_believed(code):
    """A client that writes would wait for the topic; a controller knows whether there is one."""
    with Creating({"t": [code]}) as broker:
        assert create(broker, ["t"])["t"].error_code == code
        assert broker.asked == [["t"]]


def test_what_stays_retriable_ends_at_the_deadline():
    with Creating({"t": [THROTTLED] * 1000}) as broker, pytest.raises(Timeout) as caught:
        create(broker, ["t"], deadline=0.2)

    assert "THROTTLING_QUOTA_EXCEEDED" in str(caught.value)


def test_result_that_is_missing_in_a_response_is_an_error():
    with Creating({"forgotten": []}) as broker, pytest.raises(RejectedError) as caught:
        create(broker, ["forgotten"])

    assert "does not name it" in str(caught.value)


@pytest.mark.parametrize(
    ("code", "again"),
    [(OK, False), (NOT_CONTROLLER, True), (THROTTLED, True), (EXISTS, False),
     (OF_THE_FUTURE, False)],
)  # fmt: skip
def test_codes_that_may_succeed_later(code, again):
    assert controller_calls.is_moved_or_retriable(code) is again
