"""The changes that a reader of the image gets after a delta."""

from __future__ import annotations

from typing import Any

import pytest
from support.network.network_process import topic_document

from kbroker.cluster.changes import ImageChanges
from kbroker.cluster.image import ClusterImage

pytestmark = pytest.mark.unit

A, B = b"a" * 16, b"b" * 16


class Images:
    """An image, and deltas to it."""

    def __init__(self) -> None:
        self.image = ClusterImage()

    def apply(self, snapshot: bool = False, **topics: Any) -> ImageChanges:
        rest = {"snapshot": True} if snapshot else {}
        return self.image.apply({"version": self.image.version + 1, "topics": topics, **rest})


@pytest.fixture
def images() -> Images:
    """A topic ``t`` with two partitions."""
    made = Images()
    made.apply(t=topic_document(A, [0, 1]))
    return made


def created(changes: ImageChanges) -> list[tuple[str, int]]:
    found = [change for change in changes.partitions() if change.old is None]
    return [(change.topic.name, change.partition) for change in found]


def names(topics: Any) -> list[str]:
    return [topic.name for topic in topics]


def test_new_topic_has_created_partitions_only(images: Images) -> None:
    changes = images.apply(u=topic_document(B, [5, 6]))

    assert created(changes) == [("u", 0), ("u", 1)]
    assert names(changes.present()) == ["u"]
    assert changes.reassigned() == {"u"}
    assert changes.deleted() == changes.reconfigured() == []


def test_more_partitions_are_created_beside_those_that_were_there(images: Images) -> None:
    changes = images.apply(t=topic_document(A, [0, 1, 2]))

    assert created(changes) == [("t", 2)]
    assert [change.partition for change in changes.partitions()] == [0, 1, 2]
    assert changes.reassigned() == {"t"}
    assert changes.deleted() == []


def test_deleted_topic_is_told_as_it_was(images: Images) -> None:
    changes = images.apply(t=None)

    assert [len(topic.partitions) for topic in changes.deleted()] == [2]
    assert changes.present() == []
    assert list(changes.partitions()) == []
    assert changes.reassigned() == {"t"}


def test_topic_that_is_recreated_is_deleted_and_created(images: Images) -> None:
    changes = images.apply(t=topic_document(B, [3]))

    assert [topic.topic_id for topic in changes.deleted()] == [A]
    assert [topic.topic_id for topic in changes.present()] == [B]
    assert created(changes) == [("t", 0)]
    assert changes.reconfigured() == []
    assert changes.reassigned() == {"t"}


def test_other_settings_reconfigure_a_topic_and_reassign_nothing(images: Images) -> None:
    changes = images.apply(t=topic_document(A, [0, 1], config={"retention.ms": "1"}))

    assert names(changes.reconfigured()) == ["t"]
    assert created(changes) == []
    assert changes.reassigned() == set()


def test_other_replicas_reassign_a_topic_and_another_leader_does_not(images: Images) -> None:
    moved, led = topic_document(A, [0, 1]), topic_document(A, [0, 1], leader=1, leader_epoch=1)
    moved["partitions"][1] = moved["partitions"][1]._replace(replicas=[0, 1])

    assert images.apply(t=led).reassigned() == set()
    assert images.apply(t=moved).reassigned() == {"t"}


def test_snapshot_deletes_what_it_does_not_name(images: Images) -> None:
    changes = images.apply(snapshot=True, u=topic_document(B, [5]))

    assert names(changes.deleted()) == ["t"]
    assert created(changes) == [("u", 0)]


def test_settings_are_told_when_the_delta_has_them(images: Images) -> None:
    delta = {"version": 9, "topics": {}, "broker_config": {"default": {}}}

    assert images.image.apply(delta).settings
    assert not images.apply().settings


def test_two_changes_as_one_keep_what_was_there_first(images: Images) -> None:
    first = images.apply(t=topic_document(A, [0, 1, 2]), u=topic_document(B, [5]))
    second = images.apply(t=None, u=topic_document(B, [5], config={"retention.ms": "1"}))
    both = first.then(second)

    assert [len(topic.partitions) for topic in both.deleted()] == [2]
    assert created(both) == [("u", 0)]
    assert both.reconfigured() == []
    assert names(second.reconfigured()) == ["u"]


def test_partition_is_new_once_whatever_else_of_its_topic_changes(images: Images) -> None:
    """Its log may have been lost with its directory by then: it must not be replaced by an empty
    one.
    """
    document = topic_document(B, [5])
    (created_here,) = document["partitions"]
    document["partitions"] = [created_here._replace(is_new=True)]

    first, second = images.apply(u=document), images.apply(u=document)
    document["partitions"] = [created_here._replace(is_new=True, slot_incarnation=2)]
    third = images.apply(u=document)

    found = [[change.is_new for change in changes.partitions()]
             for changes in (first, second, third)]  # fmt: skip
    assert found == [[True], [False], [True]]
    old = topic_document(A, [0, 1])
    assert not any(change.is_new for change in images.apply(t=old).partitions())


def test_two_changes_of_partitions_as_one_name_both(images: Images) -> None:
    rows = topic_document(A, [0, 1], leader_epoch=4)["partitions"]
    first, second = (
        images.apply(t={"id": A.hex(), "changed": [[number, rows[number]]]}) for number in (0, 1)
    )
    whole = images.apply(t=topic_document(A, [0, 1]))

    assert [change.partition for change in first.partitions()] == [0]
    assert {change.partition for change in first.then(second).partitions()} == {0, 1}
    assert [change.partition for change in first.then(whole).partitions()] == [0, 1]
