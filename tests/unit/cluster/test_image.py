"""The cluster image: how a process handles documents that it cannot read."""

from __future__ import annotations

from typing import Any

import pytest
from support.network.network_process import topic_document

from kbroker.cluster.image import ClusterImage
from kbroker.ipc.documents import DocumentError
from kbroker.types import BrokerId

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    "damage",
    [
        {"id": "no digits"},
        {"id": None},
        {"partitions": [[0]]},
        {"partitions": [[0, 0, 1, [0], 1, 1]]},
        {"partitions": [[0, 0, [0], [0], 1, 1, 0, False, [], 9]]},
        {"partitions": None},
        {"config": "missing"},
    ],
    ids=str,
)
def test_topic_of_another_build_is_named_and_changes_nothing(damage: dict[str, Any]) -> None:
    image = ClusterImage()
    image.apply({"version": 1, "topics": {"a": topic_document(b"a" * 16, [0])}})
    document = topic_document(b"t" * 16, [1]) | damage
    if damage == {"config": "missing"}:
        del document["config"]

    with pytest.raises(DocumentError, match="topic t of the image"):
        image.apply({"version": 2, "topics": {"a": None, "t": document}})

    assert (image.version, list(image.topics)) == (1, ["a"])


def changed(topic_id: bytes, *numbers: int) -> dict[str, Any]:
    """Some partitions of a topic, led in another leader epoch."""
    rows = topic_document(topic_id, [0, 1, 2], leader_epoch=5)["partitions"]
    return {"id": topic_id.hex(), "changed": [[number, rows[number]] for number in numbers]}


def test_changes_of_a_topic_replace_the_named_partitions_alone() -> None:
    image = ClusterImage()
    image.apply({"version": 1, "topics": {"t": topic_document(b"t" * 16, [0, 1, 2])}})
    before = image.topics["t"]

    changes = image.apply({"version": 2, "topics": {"t": changed(b"t" * 16, 1)}})

    topic = image.topics["t"]
    assert [partition.leader_epoch for partition in topic.partitions] == [0, 5, 0]
    assert topic.partitions[0] is before.partitions[0]
    assert (topic.config, image.topics_by_id[b"t" * 16]) == (before.config, topic)
    (change,) = changes.partitions()
    assert (change.partition, change.old, change.new) == (
        1, before.partitions[1], topic.partitions[1],
    )  # fmt: skip


@pytest.mark.parametrize(
    "document",
    [changed(b"x" * 16, 1), {"id": (b"t" * 16).hex(), "changed": [[3, {}]]}],
    ids=["another id", "no such partition"],
)
def test_changes_of_what_is_not_known_change_nothing(document: dict[str, Any]) -> None:
    image = ClusterImage()
    image.apply({"version": 1, "topics": {"t": topic_document(b"t" * 16, [0, 1, 2])}})

    for name in ("t", "u"):
        with pytest.raises(DocumentError, match=f"topic {name} of the image"):
            image.apply({"version": 2, "topics": {name: document}})

    assert (image.version, list(image.topics)) == (1, ["t"])


def test_broker_that_left_is_remembered_until_it_is_back() -> None:
    image = ClusterImage()
    broker = {"endpoints": [["PLAINTEXT", "b", 9092, "PLAINTEXT"]], "rack": None}
    topic = {"id": "00" * 16, "internal": False, "config": {}, "partitions": []}
    image.apply(
        {"snapshot": True, "version": 1, "brokers": {"1": broker, "2": broker}, "topics": {}}
    )

    image.apply({"version": 2, "brokers": {"2": None}})
    assert image.departed[BrokerId(2)].broker.endpoints[0].host == "b"
    # A controller process that has restarted sends everything.
    image.apply({"snapshot": True, "version": 3, "brokers": {"1": broker}, "topics": {"t": topic}})
    assert list(image.departed) == [2]
    image.apply({"version": 4, "brokers": {"2": broker}})

    assert image.departed == {}
    assert image.missing() == []


def test_partitions_with_the_same_replicas_share_a_list() -> None:
    """In each process, two lists of their own took 160 bytes of each of ten thousand partitions."""
    image = ClusterImage()
    image.apply(
        {
            "snapshot": True,
            "version": 1,
            "topics": {
                name: {
                    "id": name * 32,
                    "internal": False,
                    "config": {},
                    "partitions": [[0, 0, [0, 1], list(replicas), 1, 1]],
                }
                for name, replicas in (("a", [0, 1]), ("b", [0, 1]), ("c", [1, 0]))
            },
        }
    )

    (a,), (b,), (c,) = (image.topics[name].partitions for name in "abc")
    assert (a.replicas, c.replicas) == ([0, 1], [1, 0])
    assert a.isr is b.isr is a.replicas is b.replicas is c.isr
