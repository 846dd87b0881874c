"""The controller's gauges."""

from __future__ import annotations

import pytest
from support.controller.controlled import Controlled

from kbroker.controller.state.counts import AttentionCounts, Counts
from kbroker.controller.state.state import PartitionsChanged, PartitionState

pytestmark = pytest.mark.unit


def cluster_of_three() -> Controlled:
    made = Controlled()
    made.register(0, 1, 2)
    made.create_topic("t", [0, 1, 2], states={0: PartitionState(0, 3, [0, 1], [0, 1, 2])})
    made.start()
    return made


def test_leader_that_is_replaced_is_counted_once() -> None:
    cluster = cluster_of_three()
    cluster.leave(0)
    cluster.settle()

    counts = cluster.controller.counts
    assert (counts.leader_elections, counts.unclean_elections) == (1, 0)


def test_first_leader_is_no_election_and_one_not_in_sync_is_unclean() -> None:
    counts = Counts()
    led = PartitionState(1, 0, [1], [1, 2])
    counts.note(None, led)
    counts.note(PartitionState(-1, 0, [], [1, 2], -1), led)
    assert (counts.leader_elections, counts.unclean_elections) == (0, 0)

    counts.note(led, PartitionState(-1, 1, [1], [1, 2]))
    counts.note(PartitionState(-1, 1, [1], [1, 2]), PartitionState(2, 2, [2], [1, 2]))
    assert (counts.leader_elections, counts.unclean_elections) == (2, 1)


def test_change_of_the_replicas_in_sync_is_no_election() -> None:
    counts = Counts()
    counts.note(PartitionState(1, 0, [1, 2], [1, 2]), PartitionState(1, 0, [1], [1, 2]))
    assert counts.leader_elections == 0


def test_event_that_gives_partitions_other_leaders_is_timed_once() -> None:
    cluster = Controlled()
    cluster.register(0, 1, 2)
    led = {number: PartitionState(0, 3, [0, 1, 2], [0, 1, 2]) for number in range(3)}
    cluster.create_topic("t", *[[0, 1, 2]] * 3, states=led)
    cluster.start()
    counts, took = cluster.controller.counts, []
    counts.elected = took.append
    clock = iter(range(0, 1000, 100))
    counts.now_ns = lambda: next(clock)
    cluster.leave(2)  # shrinks the ISR of followers' partitions
    cluster.settle()
    assert took == []

    cluster.leave(0)
    cluster.settle()
    assert (took, counts.leader_elections) == ([100], 3)


def test_partitions_without_a_live_leader_and_not_led_as_preferred_are_watched() -> None:
    cluster = cluster_of_three()
    watched = AttentionCounts()
    watched.count(cluster.state)
    assert (watched.offline, watched.imbalance) == (0, 0)

    cluster.leave(0)
    cluster.settle()
    watched.count(cluster.state)
    assert (watched.offline, watched.imbalance) == (0, 1)

    cluster.leave(1)
    cluster.settle()
    watched.count(cluster.state)
    assert watched.offline == 1, "nobody in sync is left"

    cluster.register(0, 1)
    cluster.settle()
    watched.count(cluster.state)
    assert (watched.offline, watched.imbalance) == (0, 1)

    cluster.controller.enter([PartitionsChanged("t", {0: PartitionState(0, 9, [0], [0, 1, 2])})])
    watched.count(cluster.state)
    assert (watched.offline, watched.imbalance) == (0, 0)

    watched.count(None)
    assert (watched.offline, watched.imbalance) == (0, 0), "another broker is the controller"


def test_sessions_beyond_the_first_have_expired() -> None:
    counts = Counts()
    assert counts.sessions_expired == 0
    counts.registrations = 1
    assert counts.sessions_expired == 0
    counts.registrations = 3
    assert counts.sessions_expired == 2
