"""ISR changes of leaders: batches, retries, and the effect of responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from kbroker.cluster.control_requests import LeaderAndIsr, LedPartition, PartitionKey, Sender
from kbroker.errors import ErrorCode, WireError
from kbroker.hosting.isr_changes import BACKOFF_MS, BATCH_MS, UNANSWERED_MS, IsrChanges
from kbroker.hosting.replicas import HostedReplica, HostedReplicas
from kbroker.hosting.slots import Slot
from kbroker.ipc.calls import IsrResult, IsrState, WantedIsr
from kbroker.ipc.pending import Pending

pytestmark = pytest.mark.unit

ME = 1
KEY = ("t", 0)


class SlotsInOrder:
    incarnation = 1

    def assign(self, topic: str, partitions: list[int]) -> dict[int, Slot]:
        return {number: (number, self.incarnation) for number in partitions}

    def release(self, topic: str, partitions: Any = None) -> None:
        raise AssertionError("no slot is released here")


class Way:
    """To have in-sync replicas changed, and what was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[WantedIsr], Pending[list[IsrResult]]]] = []
        self.read: list[tuple[list[PartitionKey], Pending[list[IsrState | None]]]] = []

    def alter_isr(self, wanted: Sequence[WantedIsr]) -> Pending[list[IsrResult]]:
        self.asked.append((list(wanted), Pending()))
        return self.asked[-1][1]

    def read_isr(self, keys: Sequence[PartitionKey]) -> Pending[list[IsrState | None]]:
        self.read.append((list(keys), Pending()))
        return self.read[-1][1]


class Bench(Way):
    """The ISR changes, with controllers and a clock controlled by the test."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = SlotsInOrder()
        self.replicas = HostedReplicas(ME, self.slots)
        self.stored = Way()
        self.sleeping: list[tuple[int, Pending[None]]] = []
        self.unanswered: list[tuple[int, Pending[None]]] = []  # until the store is changed
        self.noted: list[Any] = []
        self.desk = IsrChanges(ME, self, self, self.sleep, self, self.stored)
        self.lead(0)
        self.lead(1)

    def lead(self, partition: int, leader: int = ME, leader_epoch: int = 4) -> None:
        told = LedPartition("t", partition, 1, leader, leader_epoch, [1, 2, 3], 7, [1, 2, 3])
        assert self.replicas.take(LeaderAndIsr(Sender(1, 1), [told], {})) == {}

    def replica(self, key: PartitionKey) -> HostedReplica | None:
        return self.replicas.replica(key)

    def change_isr(self, states: Mapping[PartitionKey, IsrState | None]) -> None:
        for key, state in states.items():
            if state is not None:
                self.replicas.change_isr(key, state)

    def note(self, *, asked: Sequence[WantedIsr]) -> None:
        self.noted += asked

    def sleep(self, delay_ms: int) -> Pending[None]:
        sleeping = self.sleeping if delay_ms < UNANSWERED_MS else self.unanswered
        sleeping.append((delay_ms, Pending()))
        return sleeping[-1][1]

    def wake(self) -> int:
        return self._wake(self.sleeping)

    def hear_nothing(self) -> int:
        """The time until the store is changed passes without a response; returns it."""
        return self._wake(self.unanswered)

    @staticmethod
    def _wake(sleeping: list[tuple[int, Pending[None]]]) -> int:
        delay_ms, pending = sleeping.pop(0)
        pending.resolve()
        return delay_ms

    def held(self, partition: int = 0) -> tuple[list[int], int]:
        """The image that a starting process gets of a partition."""
        replica = self.replicas.replica(("t", partition))
        assert replica is not None
        return replica.told.isr, replica.told.partition_epoch


def wanted(isr: list[int], partition: int = 0, leader_epoch: int = 4) -> WantedIsr:
    return WantedIsr("t", partition, leader_epoch, isr, 7)


def done(isr: list[int], partition_epoch: int = 8) -> IsrResult:
    return IsrResult(ErrorCode.NONE, IsrState(ME, 4, isr, partition_epoch))


def test_changes_asked_for_together_are_one_request() -> None:
    bench = Bench()
    first, second = bench.desk.ask(wanted([1, 2])), bench.desk.ask(wanted([1, 3], 1))
    assert bench.asked == []

    assert bench.wake() == BATCH_MS
    [(changes, response)] = bench.asked
    response.resolve([done([1, 2]), done([1, 3])])

    assert changes == [wanted([1, 2]), wanted([1, 3], 1)]
    assert (first.value, second.value) == (done([1, 2]), done([1, 3]))
    assert bench.sleeping == []  # nothing is left to do


def test_change_is_noted_before_it_is_sent_and_once() -> None:
    """The next incarnation of the process asks again for what the controller may have done."""
    bench = Bench()
    bench.desk.ask(wanted([1, 2]))
    assert bench.noted == []
    bench.wake()
    assert bench.noted == [wanted([1, 2])] and len(bench.asked) == 1
    bench.asked[0][1].resolve(error=WireError(ErrorCode.NOT_CONTROLLER, "not here"))
    bench.wake(), bench.wake()
    assert bench.noted == [wanted([1, 2])] and len(bench.asked) == 2


def test_change_of_the_last_process_is_asked_for_again_and_its_leader_joins_in() -> None:
    bench = Bench()
    bench.desk.ask_again([wanted([1, 2])])
    assert bench.desk.pending() == [wanted([1, 2])]
    outcome = bench.desk.ask(wanted([1, 2]))
    bench.wake()
    bench.asked[0][1].resolve([done([1, 2])])
    assert outcome.value == done([1, 2])
    assert bench.held() == ([1, 2], 8) and bench.desk.pending() == []


def test_second_request_waits_for_the_response_to_the_first() -> None:
    bench = Bench()
    bench.desk.ask(wanted([1, 2]))
    bench.wake()
    late = bench.desk.ask(wanted([1, 3], 1))
    assert bench.sleeping == []

    bench.asked[0][1].resolve([done([1, 2])])
    bench.wake()
    bench.asked[1][1].resolve([done([1, 3])])

    assert bench.asked[1][0] == [wanted([1, 3], 1)]
    assert late.value == done([1, 3])


def test_request_without_a_response_is_repeated() -> None:
    """The controller may have made the change: only a response tells."""
    bench = Bench()
    outcome = bench.desk.ask(wanted([1, 2]))
    bench.wake()
    bench.asked[0][1].resolve(error=WireError(ErrorCode.NOT_CONTROLLER, "not here"))
    assert not outcome.done
    assert bench.desk.pending() == [wanted([1, 2])]

    assert bench.wake() == BACKOFF_MS
    assert bench.wake() == BATCH_MS
    bench.asked[1][1].resolve([done([1, 2])])

    assert bench.asked[1][0] == [wanted([1, 2])]
    assert outcome.value == done([1, 2])
    assert bench.desk.pending() == []


def test_process_that_starts_is_told_what_the_controller_has_changed() -> None:
    """Its predecessor may have died before it got the change."""
    bench = Bench()
    bench.desk.ask(wanted([1, 2]))
    assert bench.held() == ([1, 2, 3], 7)

    bench.wake()
    bench.asked[0][1].resolve([done([1, 2])])

    assert bench.held() == ([1, 2], 8)
    assert bench.held(1) == ([1, 2, 3], 7)


def test_response_of_an_earlier_leader_epoch_changes_nothing() -> None:
    bench = Bench()
    bench.desk.ask(wanted([1, 2]))
    bench.wake()
    later = LedPartition("t", 0, 1, ME, 5, [1, 2, 3], 9, [1, 2, 3])
    bench.replicas.take(LeaderAndIsr(Sender(1, 1), [later], {}))

    bench.asked[0][1].resolve([done([1, 2])])

    assert bench.held() == ([1, 2, 3], 9)


def test_change_of_an_earlier_leader_epoch_is_not_sent_any_more() -> None:
    bench = Bench()
    old = bench.desk.ask(wanted([1, 2]))
    bench.lead(0, leader_epoch=5)
    new = bench.desk.ask(wanted([1], leader_epoch=5))
    bench.wake()
    bench.asked[0][1].resolve([IsrResult(ErrorCode.FENCED_LEADER_EPOCH)])
    bench.read[0][1].resolve([IsrState(2, 6, [1, 2], 10)])

    assert bench.asked[0][0] == [wanted([1], leader_epoch=5)]
    assert old.value == new.value == IsrResult(ErrorCode.FENCED_LEADER_EPOCH)


@pytest.mark.parametrize("change", ["led by another", "deleted", "recreated"])
def test_change_of_a_replica_that_is_another_now_is_not_sent_any_more(change: str) -> None:
    """The recreated topic has the epochs of the old one: the controller would do what the leader of
    the old one wanted, and the new one would have no replica but its leader in sync.
    """
    bench = Bench()
    old = bench.desk.ask(wanted([1]))
    bench.wake()
    stale = WireError(ErrorCode.STALE_BROKER_EPOCH, "registered anew")
    bench.asked[0][1].resolve(error=stale)
    if change == "led by another":
        bench.lead(0, leader=2, leader_epoch=5)
    else:
        assert bench.replicas.remove(KEY, 1)
    if change == "recreated":
        bench.slots.incarnation = 2
        bench.lead(0)

    bench.wake(), bench.wake()

    assert old.value == IsrResult(ErrorCode.FENCED_LEADER_EPOCH)
    assert len(bench.asked) == 1 and bench.desk.pending() == [] and bench.sleeping == []


def test_same_change_asked_for_twice_is_sent_once() -> None:
    """An io worker asks again when its call has timed out."""
    bench = Bench()
    outcomes = [bench.desk.ask(wanted([1, 2])) for _ in range(2)]
    bench.wake()
    bench.asked[0][1].resolve([done([1, 2])])

    assert len(bench.asked) == 1
    assert [outcome.value for outcome in outcomes] == [done([1, 2])] * 2


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ],
)
@pytest.mark.parametrize(
    ("state", "response"),
    [
        (IsrState(ME, 4, [1, 3], 9), IsrResult(ErrorCode.NONE, IsrState(ME, 4, [1, 3], 9))),
        (IsrState(ME, 5, [1, 3], 9), IsrResult(ErrorCode.FENCED_LEADER_EPOCH)),
        (IsrState(2, 4, [1, 3], 9), IsrResult(ErrorCode.FENCED_LEADER_EPOCH)),
        (None, IsrResult(ErrorCode.FENCED_LEADER_EPOCH)),
    ],
)
def test_leader_that_is_rejected_takes_what_the_store_has_in_its_epoch(
    state: IsrState | None, response: IsrResult, error: ErrorCode
) -> None:
    """As in Kafka, a rejected change would freeze the ISR until the next epoch: also one that was
    rejected by a controller that does not know yet that another has been elected.
    """
    bench = Bench()
    outcome = bench.desk.ask(wanted([1, 2]))
    bench.wake()
    bench.asked[0][1].resolve([IsrResult(error)])
    assert not outcome.done

    [(keys, read)] = bench.read
    read.resolve([state])

    assert keys == [KEY]
    assert outcome.value == response
    assert bench.held() == (([1, 3], 9) if response.state else ([1, 2, 3], 7))


def test_store_that_cannot_be_read_has_the_change_asked_for_again() -> None:
    bench = Bench()
    outcome = bench.desk.ask(wanted([1, 2]))
    bench.wake()
    bench.asked[0][1].resolve([IsrResult(ErrorCode.INVALID_UPDATE_VERSION)])
    bench.read[0][1].resolve(error=WireError(ErrorCode.REQUEST_TIMED_OUT, "no store"))
    bench.wake()
    bench.wake()

    assert not outcome.done
    assert bench.asked[1][0] == [wanted([1, 2])]


def test_leader_without_a_response_changes_the_store_itself() -> None:
    """The controller is registered and cannot be reached, or its responses do not arrive: the
    producers of a leader would wait for as long as that lasts.
    """
    bench = Bench()
    outcome = bench.desk.ask(wanted([1, 2]))
    bench.wake()
    assert bench.stored.asked == []

    assert bench.hear_nothing() == UNANSWERED_MS
    bench.stored.asked[0][1].resolve([done([1, 2])])

    assert bench.stored.asked[0][0] == [wanted([1, 2])]
    assert outcome.value == done([1, 2])
    assert bench.held() == ([1, 2], 8) and bench.desk.pending() == []
    later = bench.desk.ask(WantedIsr("t", 0, 4, [1], 8))
    bench.wake()
    bench.asked[0][1].resolve([done([1, 2])])  # the lost response arrives after all
    assert not later.done and bench.held() == ([1, 2], 8)
    bench.asked[1][1].resolve([done([1], 9)])
    assert later.value == done([1], 9)


def test_change_that_the_controller_has_made_is_taken_from_the_store() -> None:
    """Its response did not arrive."""
    bench = Bench()
    outcome = bench.desk.ask(wanted([1, 2]))
    bench.wake()
    bench.hear_nothing()
    bench.stored.asked[0][1].resolve([IsrResult(ErrorCode.INVALID_UPDATE_VERSION)])
    bench.read[0][1].resolve([IsrState(ME, 4, [1, 2], 8)])
    assert outcome.value == done([1, 2])


def test_response_is_waited_for_when_the_store_cannot_be_changed() -> None:
    bench = Bench()
    outcome = bench.desk.ask(wanted([1, 2]))
    bench.wake()
    bench.hear_nothing()
    bench.stored.asked[0][1].resolve(error=WireError(ErrorCode.REQUEST_TIMED_OUT, "no store"))
    assert not outcome.done
    bench.asked[0][1].resolve([done([1, 2])])
    assert outcome.value == done([1, 2])


def test_leader_that_gets_a_response_leaves_the_store_to_the_controller() -> None:
    """One that says no, too: the leader may be none any more."""
    bench = Bench()
    bench.desk.ask(wanted([1, 2]))
    bench.wake()
    bench.asked[0][1].resolve(error=WireError(ErrorCode.STALE_BROKER_EPOCH, "it is gone"))
    bench.hear_nothing()
    assert bench.stored.asked == []
