"""How a controller assigns topic ids."""

from __future__ import annotations

import json

import pytest

from kbroker.cluster.topic_ids import TopicIds, local_topic_id
from kbroker.metastore import paths

pytestmark = pytest.mark.unit


def test_topics_have_ids_of_their_own_and_the_store_has_them() -> None:
    ids = TopicIds()
    first, second = ids.new("t"), ids.new("t")
    assert first != second
    assert ids.to_store(first) == first


def test_topics_of_a_cluster_without_ids_have_one_that_every_broker_derives() -> None:
    ids = TopicIds(local_to="c")
    assert ids.new("t") == local_topic_id("c", "t") != local_topic_id("d", "t")
    document = json.loads(paths.encode_topic(ids.to_store(ids.new("t")), {0: [1, 2]}))
    assert document == {
        "version": 2,
        "partitions": {"0": [1, 2]},
        "adding_replicas": {},
        "removing_replicas": {},
    }
