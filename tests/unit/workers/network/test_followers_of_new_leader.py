"""Which followers have more to fetch after a change of the image."""

from __future__ import annotations

from typing import Any

import pytest
from support.network.network_process import topic_document

from kbroker.cluster.image import ClusterImage
from kbroker.workers.network.network import followers_of_new_leader

pytestmark = pytest.mark.unit

ME = 0


def followers_after(**changed: Any) -> frozenset[int]:
    """Of a topic with a partition that broker 1 leads, after it has changed."""
    image = ClusterImage()
    document = topic_document(b"t" * 16, [0], leader=1)
    partition = document["partitions"][0]._replace(replicas=[1, ME, 2], isr=[1, ME, 2])
    document["partitions"] = [partition]
    image.apply({"version": 1, "topics": {"t": document}})
    changes = {"id": document["id"], "changed": [[0, partition._replace(**changed)]]}
    return followers_of_new_leader(image.apply({"version": 2, "topics": {"t": changes}}), ME)


def test_followers_of_a_partition_that_is_led_here_now_have_more_to_fetch() -> None:
    assert followers_after(leader=ME, leader_epoch=1) == {1, 2}


@pytest.mark.parametrize(
    "changed",
    [{"leader": 2, "leader_epoch": 1}, {"leader": ME, "partition_epoch": 5}],
    ids=["led elsewhere", "same leader epoch"],
)
def test_nobody_has_more_to_fetch_after_other_changes(changed: dict[str, Any]) -> None:
    assert followers_after(**changed) == frozenset()
