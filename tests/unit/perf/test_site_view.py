"""What brokers say of a large site, and how a new broker gets its share of it."""

from __future__ import annotations

from collections import Counter

import pytest

from kbroker.protocol.codec import encode
from kbroker.protocol.messages.metadata import MetadataResponse
from perf.scale_site import moves_to
from perf.site_view import NOBODY, PartitionView, SiteView, parse_view

pytestmark = pytest.mark.unit


def site(leaders: list[int], *, in_sync: int = 2, brokers: int = 3) -> SiteView:
    """A partition for each leader, with the next broker as its follower."""
    partitions = {}
    for number, leader in enumerate(leaders):
        first = number % brokers + 1
        replicas = (first, first % brokers + 1)
        partitions["t", number] = PartitionView(leader, replicas, replicas[:in_sync])
    return SiteView(frozenset(range(1, brokers + 1)), 1, partitions)


def test_partition_without_a_leader_or_of_a_dead_one_is_not_led() -> None:
    view = site([1, 2, NOBODY])

    assert view.led(2)
    assert not view.led(3)
    assert view.led(1, gone={2})


def test_follower_that_is_missing_is_not_in_sync() -> None:
    assert site([1, 2, 3]).in_sync(3)
    assert not site([1, 2, 3]).in_sync(4)
    assert not site([1, 2, 3], in_sync=1).in_sync(3)


def test_oddest_broker_gives_the_imbalance() -> None:
    view = site([1, 1, 1, 2, 2, 3])

    assert view.leaders_off_mean == 0.5
    assert view.not_preferred == 0.5  # each leads one of the two that it should lead


def test_new_broker_gets_an_equal_part_of_leaders_and_followers() -> None:
    view = site([number % 3 + 1 for number in range(120)])
    view = view._replace(brokers=view.brokers | {4})

    moves = moves_to(4, view)

    replicas = {place: moves.get(place, one.replicas) for place, one in view.partitions.items()}
    assert Counter(some[0] for some in replicas.values()) == {1: 30, 2: 30, 3: 30, 4: 30}
    assert Counter(some[1] for some in replicas.values()) == {1: 30, 2: 30, 3: 30, 4: 30}
    assert all(len(set(some)) == 2 for some in replicas.values())


def test_metadata_is_read_as_the_codec_writes_it() -> None:
    Broker, Topic = MetadataResponse.MetadataResponseBroker, MetadataResponse.MetadataResponseTopic
    Partition = MetadataResponse.MetadataResponsePartition
    row = Partition(partition_index=5, leader_id=2, replica_nodes=[2, 1], isr_nodes=[2])
    response = MetadataResponse(
        brokers=[
            Broker(node_id=n, host="host", port=9092, rack=r) for n, r in ((1, None), (2, "r"))
        ],
        cluster_id="cluster",
        controller_id=2,
        topics=[Topic(name="t", partitions=[row])],
    )

    view = parse_view(b"\0\0\0\1" + encode(response, 4))

    assert view == SiteView(
        frozenset({1, 2}), 2, {("t", 5): PartitionView(leader=2, replicas=(2, 1), in_sync=(2,))}
    )
