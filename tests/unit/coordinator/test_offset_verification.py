"""TxnOffsetCommit and its verification by the transaction coordinator (KIP-890)."""

from __future__ import annotations

from typing import Any

import pytest
from support.coordinators.coordinator_host import CoordinatorHost

from kbroker.coordinator.group.machine import GroupMachine
from kbroker.coordinator.offsets.offsets import Offsets
from kbroker.errors import ErrorCode
from kbroker.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest

pytestmark = pytest.mark.unit


def make_machine(host: Any) -> GroupMachine:
    machine = GroupMachine(host)
    machine.add(Offsets(machine))
    return machine


@pytest.fixture
def host() -> CoordinatorHost:
    made = CoordinatorHost(make_machine)
    made.add_topic("t", 2)
    return made


def commit(offset: int = 5, epoch: int = 0, producer_id: int = 70) -> TxnOffsetCommitRequest:
    request = TxnOffsetCommitRequest
    return request(
        transactional_id="tx",
        group_id="g",
        producer_id=producer_id,
        producer_epoch=epoch,
        topics=[
            request.TxnOffsetCommitRequestTopic(
                name="t",
                partitions=[
                    request.TxnOffsetCommitRequestPartition(
                        partition_index=0, committed_offset=offset, committed_metadata=""
                    )
                ],
            )
        ],
    )


def code(response: Any) -> int:
    (topic,) = response.topics
    (partition,) = topic.partitions
    return int(partition.error_code)


@pytest.mark.parametrize(("version", "add"), [(0, False), (3, False), (4, False), (5, True)])
def test_first_commit_of_a_transaction_asks_and_the_next_does_not(
    host: CoordinatorHost, version: int, add: bool
) -> None:
    assert code(host.ask(commit(5), version)) == 0
    assert code(host.ask(commit(6), version)) == 0
    assert [question[:4] for question in host.questions] == [("tx", 70, 0, add)]
    host.append_marker(70, 0, True)
    assert code(host.ask(commit(7), version)) == 0
    assert len(host.questions) == 2


@pytest.mark.parametrize(
    ("verdict", "version", "expected"),
    [
        (ErrorCode.INVALID_TXN_STATE, 4, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.TRANSACTION_ABORTABLE, 4, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.TRANSACTION_ABORTABLE, 3, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.PRODUCER_FENCED, 5, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.PRODUCER_FENCED, 2, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.NOT_COORDINATOR, 3, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (ErrorCode.NOT_COORDINATOR, 1, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 5, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 1, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ],
)
def test_rejected_commit_writes_nothing(
    host: CoordinatorHost, verdict: ErrorCode, version: int, expected: ErrorCode
) -> None:
    host.verdict = int(verdict)
    assert code(host.ask(commit(), version)) == expected
    assert host.log == []
    host.verdict = 0
    assert code(host.ask(commit(), version)) == 0


@pytest.mark.parametrize("version", [4, 5])
def test_marker_that_overtakes_the_response_has_the_question_asked_again(
    host: CoordinatorHost, version: int
) -> None:
    """The result was for the previous transaction, and the commit belongs to the open one."""
    host.verdict = None
    outcome = host.send(commit(epoch=1), version)
    host.append_marker(70, 1, True)  # in the second protocol with the epoch of the next
    host.questions[0][4].resolve(0)
    assert not outcome.done
    assert len(host.log) == 1
    host.questions[1][4].resolve(0)
    assert code(outcome.value) == ErrorCode.NONE
    assert [entry.commit for entry in host.log] == [True, None]


def test_commit_whose_own_transaction_has_ended_is_rejected(host: CoordinatorHost) -> None:
    host.verdict = None
    outcome = host.send(commit(), 4)
    host.append_marker(70, 0, False)
    host.questions[0][4].resolve(0)
    host.questions[1][4].resolve(int(ErrorCode.INVALID_TXN_STATE))
    assert code(outcome.value) == ErrorCode.INVALID_TXN_STATE
    assert len(host.log) == 1


def test_question_that_would_be_asked_again_by_a_machine_that_is_closed_ends(
    host: CoordinatorHost,
) -> None:
    host.verdict = None
    host.is_holding = True
    assert not host.send(commit(producer_id=71), 4).done
    host.questions[0][4].resolve(0)  # written, and not committed yet
    outcome = host.send(commit(), 4)
    host.append_marker(70, 0, False)
    host.questions[1][4].resolve(0)  # void, which is known once earlier records are committed
    assert not outcome.done
    host.reload()
    assert outcome.done
    assert len(host.questions) == 2


@pytest.mark.parametrize("late_epoch", [0, 1])
def test_late_request_beside_the_present_one_does_not_spoil_it(
    host: CoordinatorHost, late_epoch: int
) -> None:
    """The same request again, or one of an earlier transaction."""
    host.verdict = None
    present = host.send(commit(epoch=1), 5)
    late = host.send(commit(epoch=late_epoch), 5)
    host.questions[1][4].resolve(int(ErrorCode.PRODUCER_FENCED))
    assert code(late.value) == ErrorCode.INVALID_PRODUCER_EPOCH
    host.questions[0][4].resolve(0)
    assert code(present.value) == ErrorCode.NONE


def test_response_for_a_machine_that_was_replaced_writes_nothing(host: CoordinatorHost) -> None:
    """Only the new machine knows a marker after the reload."""
    host.verdict = None
    outcome = host.send(commit(), 4)
    host.reload()
    host.append_marker(70, 0, False)
    host.questions[0][4].resolve(0)
    assert code(outcome.value) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert len(host.log) == 1


def test_verification_switched_off_asks_only_when_it_adds(host: CoordinatorHost) -> None:
    host.configure(transaction_partition_verification_enable="false")
    assert code(host.ask(commit(), 4)) == 0
    assert host.questions == []
    assert code(host.ask(commit(producer_id=71), 5)) == 0
    assert len(host.questions) == 1
