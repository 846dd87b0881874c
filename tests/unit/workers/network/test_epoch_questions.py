"""Where old epochs end, asked for fetches that say their last epoch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.errors import ErrorCode, WireError
from kbroker.ipc import calls
from kbroker.ipc.pending import Pending
from kbroker.ipc.process_table import Address, ProcessKind
from kbroker.workers.network.epoch_ends import EpochEnds

pytestmark = pytest.mark.unit

OWNERS = [Address(ProcessKind.IO_WORKER, number) for number in range(2)]


class Process:
    """The engine has these questions; owners respond with what ``ends`` has, by slot."""

    def __init__(self, questions: list[tuple[int, int, int, int]], ends: dict[int, Any]) -> None:
        self.ends = ends
        self.asked: list[tuple[Address, list[calls.EpochEndQuestion]]] = []
        self.put: list[Any] = []
        loop: Any = SimpleNamespace(
            fetch=SimpleNamespace(take_epoch_questions=lambda: questions),
            put_epoch_ends=self.put.extend,
        )
        rpc: Any = self
        EpochEnds(rpc, OWNERS, loop).ask()

    def call(self, owner: Address, operation: Any, asked: Any) -> Pending[Any]:
        assert operation is calls.OFFSET_FOR_LEADER_EPOCH
        self.asked.append((owner, asked.asked))
        done: Pending[Any] = Pending()
        ends = [self.ends[question.slot] for question in asked.asked]
        if ends[0] is None:
            done.resolve(error=WireError(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        else:
            done.resolve(calls.Results(ends, []))
        return done


def test_owners_are_asked_whether_they_lead_or_follow() -> None:
    """The engine serves consumers at followers, too."""
    first, second = (4, 1, 7, 2), (5, 1, 7, 3)

    process = Process(
        [first, second], {4: calls.EpochEndReply(2, 10), 5: calls.EpochEndReply(1, 8)}
    )

    assert process.asked == [
        (OWNERS[0], [calls.EpochEndQuestion(4, 2, held=True)]),
        (OWNERS[1], [calls.EpochEndQuestion(5, 3, held=True)]),
    ]
    assert process.put == [(first, (2, 10)), (second, (1, 8))]


def test_question_without_a_response_is_given_back() -> None:
    question = (4, 1, 7, 2)

    process = Process([question], {4: None})

    assert process.put == [(question, None)]
