"""The quota of changes to topics (KIP-599), on a simulated clock."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from kbroker.controller.topics.mutation_quotas import BUCKETS_MAX, MutationQuotas
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.calls import CreateTopics, TopicResult

pytestmark = pytest.mark.unit

KEY = "controller_mutation_rate"
SECONDS = 11


class Controller:
    """Its quotas, and what its clients are told."""

    def __init__(self, quotas: Mapping[str, Mapping[str, float]]) -> None:
        self.now_ms = 5_000
        self.quotas = quotas
        self.limits = MutationQuotas(lambda: self.quotas, SECONDS, lambda: self.now_ms)

    def change(self, *counts: int, strict: bool = True, client_id: str | None = "c") -> list[int]:
        """Throttle time, then which topics of so many partitions are changed."""
        asked = CreateTopics([], client_id=client_id, strict_quota=strict)
        mutations = self.limits.of(asked)
        results = []
        for number, count in enumerate(counts):
            try:
                mutations.admit(str(number), count)
                mutations.admit(str(number), count)  # planned again, as after a conflict
                results.append(TopicResult(str(number)))
            except WireError as error:
                assert error.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
                results.append(TopicResult(str(number), int(error.code)))
        told = mutations.told(results)
        return [told[0].throttle_ms, *(number for number, r in enumerate(told) if not r.error)]


def test_client_may_use_what_it_has_saved_up_and_overdraw_it_once() -> None:
    controller = Controller({"clients/c": {KEY: 2.0}})
    assert controller.change(22) == [0, 0]
    assert controller.change(10) == [0, 0], "empty is not overdrawn"
    assert controller.change(1) == [5000]
    controller.now_ms += 4_999
    assert controller.change(1) == [1]
    controller.now_ms += 1
    assert controller.change(1) == [0, 0]


def test_topics_are_admitted_until_the_tokens_are_overdrawn() -> None:
    controller = Controller({"clients/c": {KEY: 1.0}})
    assert controller.change(5, 5, 5, 5) == [4000, 0, 1, 2]


def test_older_requests_are_carried_out_and_wait_afterwards() -> None:
    controller = Controller({"clients/c": {KEY: 1.0}})
    assert controller.change(5, 5, 5, 5, strict=False) == [9000, 0, 1, 2, 3]


def test_tokens_are_saved_up_to_a_bound() -> None:
    controller = Controller({"clients/c": {KEY: 1.0}})
    controller.change(1)
    controller.now_ms += 10**9
    assert controller.change(12) == [0, 0]
    assert controller.change(1) == [1000]


def test_tokens_belong_to_the_client_to_which_the_quota_applies() -> None:
    controller = Controller({"users/ANONYMOUS": {KEY: 1.0}})
    controller.change(20, client_id="a")
    assert controller.change(1, client_id="b") == [9000], "all client ids of the user share it"
    controller = Controller({"clients/<default>": {KEY: 1.0}})
    controller.change(20, client_id="a")
    assert controller.change(1, client_id="b") == [0, 0]


def test_quota_that_is_raised_applies_at_once() -> None:
    controller = Controller({"clients/c": {KEY: 1.0}})
    controller.change(31)
    assert controller.change(1) == [20_000]
    controller.quotas = {"clients/c": {KEY: 10.0}}
    assert controller.change(1) == [2000]
    controller.quotas = {}
    assert controller.change(1000) == [0, 0]


@pytest.mark.parametrize("quotas", [{}, {"clients/c": {"producer_byte_rate": 1.0}}])
def test_without_a_quota_of_changes_nothing_is_limited(
    quotas: Mapping[str, Mapping[str, float]],
) -> None:
    assert Controller(quotas).change(10**6) == [0, 0]


def test_request_of_no_client_is_not_limited() -> None:
    """Topics that are created automatically, and requests from before the quota was set."""
    assert Controller({"clients/c": {KEY: 1.0}}).change(1000, client_id=None) == [0, 0]


def test_clients_that_are_remembered_are_bounded() -> None:
    controller = Controller({"clients/<default>": {KEY: 1.0}})
    for number in range(BUCKETS_MAX + 10):
        controller.change(20, client_id=str(number))
    assert len(controller.limits._buckets) == BUCKETS_MAX
    assert controller.change(1, client_id=str(BUCKETS_MAX + 9)) == [9000]
    assert controller.change(1, client_id="0") == [0, 0]
