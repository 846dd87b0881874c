"""The queue for a broker: which requests are merged, and which stay in order."""

from __future__ import annotations

import pytest

from kbroker.cluster.control_requests import (
    ControlResponse,
    KnownPartition,
    LeaderAndIsr,
    LedPartition,
    LiveBroker,
    Sender,
    StoppedPartition,
    StopReplica,
    UpdateMetadata,
)
from kbroker.errors import ErrorCode
from kbroker.peers.control_queue import ControlQueue

pytestmark = pytest.mark.unit

NOW, LATER = Sender(1, 5, 9), Sender(1, 6, 9)


def lead(number: int, epoch: int = 0, *, is_new: bool = False, sender: Sender = NOW):
    told = LedPartition("t", number, 5, 0, epoch, [0], epoch, [0], is_new)
    return LeaderAndIsr(sender, [told], {"t": b"t" * 16})


def know(number: int, epoch: int = 0, brokers: int = 1, *, sender: Sender = NOW):
    told = KnownPartition("t", number, 5, 0, epoch, [0], epoch, [0])
    live = {n: LiveBroker([], None) for n in range(brokers)}
    return UpdateMetadata(sender, [told], {"t": b"t" * 16}, live)


def stop(number: int, *, delete: bool = False, sender: Sender = NOW):
    return StopReplica(sender, [StoppedPartition("t", number, -2, delete)])


def put(*requests):
    queue = ControlQueue()
    for request in requests:
        queue.put(request)
    found = []
    while queue:
        found.append(queue.take().request)
    return found


def names(requests):
    return [(type(r).__name__[0], [one.partition for one in r.partitions]) for r in requests]


def test_different_kinds_stay_in_order():
    assert names(put(lead(0), know(0), stop(0))) == [("L", [0]), ("U", [0]), ("S", [0])]


def test_later_of_a_kind_is_merged_and_counts():
    (found,) = put(know(0, 1), know(1), know(0, 2, brokers=3))

    assert sorted((one.partition, one.leader_epoch) for one in found.partitions) == [(0, 2), (1, 0)]
    assert len(found.live_brokers) == 3


def test_leaders_are_not_put_off_while_changes_go_on():
    """Two changes come for each request that the broker serves."""
    queue = ControlQueue()
    for number in range(4):
        queue.put(lead(number))
        queue.put(know(number))
    taken = []
    for number in range(4, 20, 2):
        taken.append(queue.take().request)
        for later in (number, number + 1):
            queue.put(lead(later))
            queue.put(know(later))

    assert [name for name, _ in names(taken)][:6] == ["U", "L", "U", "L", "U", "L"]


def test_metadata_comes_before_the_leaders_that_it_explains():
    """Kafka 2.7 creates no fetcher for a leader that it does not know."""
    found = put(lead(0), know(0), lead(1), know(1, brokers=2))

    assert names(found) == [("U", [0, 1]), ("L", [0, 1])]


def test_nothing_passes_a_stop():
    found = put(lead(0), stop(0, delete=True), lead(0, 1), know(0))

    assert names(found) == [("L", [0]), ("S", [0]), ("L", [0]), ("U", [0])]


def test_stop_is_merged_with_the_last_stop_only():
    assert names(put(stop(0), stop(1), know(0), stop(2))) == [("S", [0, 1]), ("U", [0]), ("S", [2])]


def test_order_to_delete_stays_one():
    (found,) = put(stop(0, delete=True), stop(0))

    assert [one.delete for one in found.partitions] == [True]


def test_new_replica_stays_new_until_the_broker_has_been_told():
    (found,) = put(lead(0, is_new=True), lead(0, 1))

    assert [(one.leader_epoch, one.is_new) for one in found.partitions] == [(1, True)]


@pytest.mark.parametrize("make", [lead, know, stop])
def test_requests_of_different_epochs_are_not_merged(make):
    assert len(put(make(0), make(1, sender=LATER))) == 2


def test_each_gets_the_response_for_its_own_partitions():
    queue = ControlQueue()
    first, second = queue.put(lead(0)), queue.put(lead(1))
    down = ErrorCode.KAFKA_STORAGE_ERROR

    queue.take().resolve(ControlResponse(partitions={("t", 1): down}))

    assert first.value == ControlResponse()
    assert second.value == ControlResponse(partitions={("t", 1): down})


def test_error_of_the_whole_request_is_for_all():
    queue = ControlQueue()
    pending = [queue.put(know(0)), queue.put(know(1))]
    response = ControlResponse(ErrorCode.STALE_CONTROLLER_EPOCH)

    queue.take().resolve(response)

    assert [one.value for one in pending] == [response, response]


def test_what_was_taken_is_not_merged_any_more():
    queue = ControlQueue()
    queue.put(know(0))
    queue.take()
    queue.put(know(1))

    assert names([queue.take().request]) == [("U", [1])]
