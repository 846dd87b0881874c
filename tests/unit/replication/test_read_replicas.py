"""Which replica a consumer reads from, as Kafka's RackAwareReplicaSelector chooses (KIP-392)."""

from __future__ import annotations

import pytest

from kbroker.cluster.image import NO_SLOT, AdvertisedEndpoint, BrokerImage, PartitionImage
from kbroker.replication.read_replicas import (
    NO_REPLICA,
    RackAwareSelector,
    choose_replica,
    nearby_replicas,
)
from kbroker.types import BrokerId

pytestmark = pytest.mark.unit

LEADER = BrokerId(1)
RACKS = {BrokerId(1): b"a", BrokerId(2): b"b", BrokerId(3): b"b", BrokerId(4): b"c"}


def partition(*isr: int, leader: int = LEADER, replicas: tuple[int, ...] = ()) -> PartitionImage:
    brokers = [BrokerId(broker) for broker in isr]
    assigned = [BrokerId(broker) for broker in replicas or isr]
    return PartitionImage(BrokerId(leader), 0, brokers, assigned, NO_SLOT, 0)


def broker(number: int, rack: str | None, *listeners: str) -> BrokerImage:
    endpoints = tuple(AdvertisedEndpoint(name, "host", 9092, "PLAINTEXT") for name in listeners)
    return BrokerImage(BrokerId(number), endpoints, rack)


def test_replicas_are_found_by_the_rack_that_they_are_in():
    found = nearby_replicas([partition(1, 2, 3, 4), partition(1, 4)], LEADER, RACKS)

    assert found == {b"b": {0: (2, 3)}, b"c": {0: (4,), 1: (4,)}}


@pytest.mark.parametrize(
    "one",
    [
        partition(1),
        partition(1, replicas=(1, 2, 3)),
        partition(1, 5),
        partition(2, 1, leader=2),
        partition(leader=-1, replicas=(1, 2)),
    ],
    ids=["alone", "not in sync", "without a rack", "led elsewhere", "without a leader"],
)
def test_replica_is_not_found_that_is(one):
    assert nearby_replicas([one], LEADER, RACKS) is None


def test_consumers_in_the_rack_of_the_leader_stay_with_it():
    racks = {**RACKS, BrokerId(2): b"a"}

    assert nearby_replicas([partition(1, 2, 3)], LEADER, racks) == {b"b": {0: (3,)}}


def test_leader_without_a_rack_sends_consumers_away():
    racks = {BrokerId(2): b"b"}

    assert nearby_replicas([partition(1, 2)], LEADER, racks) == {b"b": {0: (2,)}}


@pytest.mark.parametrize(
    ("replicas", "reachable", "most_caught_up", "chosen"),
    [
        ((2, 3), {2, 3}, 2, 2),
        ((2, 3), {2, 3}, 3, 3),
        ((2, 3), {2, 3}, 4, 3),
        ((2, 3), {2, 3}, NO_REPLICA, 3),
        ((3, 2), {2}, 3, 2),
        ((2,), {2, 3}, 3, 2),
        ((2, 3), {4}, 2, NO_REPLICA),
    ],
)
def test_most_caught_up_that_the_client_reaches_is_chosen(
    replicas, reachable, most_caught_up, chosen
):
    assert choose_replica(replicas, reachable, most_caught_up) == chosen


def test_selector_sends_no_client_to_a_broker_without_its_listener():
    selector = RackAwareSelector(LEADER, ["INSIDE", "OUTSIDE"])
    selector.take_brokers(
        [
            broker(1, "a", "INSIDE", "OUTSIDE"),
            broker(2, "b", "INSIDE", "OUTSIDE"),
            broker(3, "b", "INSIDE"),
            broker(4, "", "INSIDE"),
        ]
    )

    found = selector.nearby([partition(1, 2, 3, 4)])

    assert found == {b"b": {0: (2, 3)}}
    assert [selector.choose((2, 3), listener, 3) for listener in (0, 1)] == [3, 2]


def test_selector_forgets_brokers_that_are_gone():
    selector = RackAwareSelector(LEADER, ["ONE"])
    selector.take_brokers([broker(1, "a", "ONE"), broker(2, "b", "ONE")])
    selector.take_brokers([broker(1, "a", "ONE")])

    assert selector.nearby([partition(1, 2)]) is None
    assert selector.choose((2,), 0, 2) == NO_REPLICA
