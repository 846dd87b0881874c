"""Where replicas go: evenly, and in as many racks as possible."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from kbroker.replica_placement import PlacementError, place_replicas

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("factor", [1, 2, 3])
def test_each_broker_gets_as_many_replicas_and_leads_as_many(factor):
    placed = place_replicas(dict.fromkeys([5, 7, 9]), 6, factor)

    assert all(len(set(nodes)) == factor for nodes in placed)
    assert Counter(node for nodes in placed for node in nodes) == dict.fromkeys(
        [5, 7, 9], 2 * factor
    )
    assert Counter(nodes[0] for nodes in placed) == dict.fromkeys([5, 7, 9], 2)


def test_a_failed_broker_is_replaced_by_all_others():
    placed = place_replicas(dict.fromkeys(range(4)), 12, 2)

    assert {nodes[1] for nodes in placed if nodes[0] == 0} == {1, 2, 3}


def test_topics_of_one_partition_have_any_leader_with_any_followers():
    choose = Random(7).randrange

    placed = [place_replicas(dict.fromkeys(range(4)), 1, 2, choose=choose)[0] for _ in range(600)]

    pairs = Counter(map(tuple, placed))
    assert len(pairs) == 12 and min(pairs.values()) > 25


@pytest.mark.parametrize("racks", [dict.fromkeys(range(5)), dict(enumerate("aabbc"))])
@pytest.mark.parametrize("factor", [1, 2, 3])
def test_a_topic_that_grows_is_placed_as_if_it_had_been_created_so_large(racks, factor):
    """Nobody changes the number of brokers in between."""
    choose = Random(1).randrange
    at_once = place_replicas(racks, 15, factor, choose=choose)

    grown = at_once[:1]
    while len(grown) < 15:
        grown += place_replicas(racks, 1, factor, existing=grown, choose=choose)

    assert [nodes[0] for nodes in grown] == [nodes[0] for nodes in at_once]
    if None in racks.values():
        assert grown == at_once or factor == 1


def test_a_topic_grows_when_its_brokers_are_gone():
    grown = place_replicas({1: None, 2: None}, 4, 2, existing=[[8, 9], [1, 9]])

    assert Counter(nodes[0] for nodes in grown) == {1: 2, 2: 2}


def test_replicas_of_a_partition_are_in_different_racks():
    racks = {0: "a", 1: "a", 2: "b", 3: "b", 4: "c", 5: "c"}

    placed = place_replicas(racks, 12, 3)

    assert all({racks[node] for node in nodes} == {"a", "b", "c"} for nodes in placed)
    assert Counter(node for nodes in placed for node in nodes) == dict.fromkeys(range(6), 6)


def test_fewer_racks_than_replicas_are_shared_evenly():
    racks = {0: "a", 1: "a", 2: "b", 3: "b"}

    placed = place_replicas(racks, 8, 4)

    assert all(
        {racks[node] for node in nodes[:2]} == {racks[node] for node in nodes[2:]} == {"a", "b"}
        for nodes in placed
    )


@pytest.mark.parametrize(("partitions", "factor"), [(1, 3), (1, 0), (0, 1)])
def test_what_cannot_be_placed_is_refused(partitions, factor):
    with pytest.raises(PlacementError):
        place_replicas({1: None, 2: None}, partitions, factor)


def test_brokers_without_a_rack_are_one_rack():
    racks = {1: "a", 2: None, 3: None}

    placed = place_replicas(racks, 6, 2)

    assert all(1 in nodes for nodes in placed)
