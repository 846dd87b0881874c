"""The progress of a mirror in the metadata of its offsets."""

from __future__ import annotations

import pytest

from kbroker.client.batches.offsets import Committed
from kbroker.spark.mirror import places
from kbroker.spark.mirror.places import KeptOffset, kept, metadata_of, place_of

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("metadata", "topic_id", "at_ms"),
    [
        ("a:1,b:2 at=1700000000000 topic=x_y-Z", "x_y-Z", 1_700_000_000_000),
        ("a:1 at=1700000000000", "", 1_700_000_000_000),
        ("a:1 topic=x_y-Z", "x_y-Z", 0),
        ("a:1, b:2 topic=x", "x", 0),
        ("a:1", "", 0),
        ("", "", 0),
        ("a:1 at=now topic=x", "x", 0),
        (f"a:1 at={'9' * 5000} topic=x", "x", 0),
    ],
)
def test_metadata_tells_the_topic_and_the_time_also_that_of_older_mirrors(
    metadata: str, topic_id: str, at_ms: int
) -> None:
    assert kept(Committed(7, metadata, -1)) == KeptOffset(7, topic_id, at_ms)


@pytest.mark.parametrize("topic_id", ["", "x_y-Z"])
def test_metadata_is_read_back_and_older_mirrors_find_the_topic_in_it(
    monkeypatch: pytest.MonkeyPatch, topic_id: str
) -> None:
    monkeypatch.setattr(places.time, "time_ns", lambda: 5_000_999)

    about = metadata_of("a:1", topic_id)

    assert kept(Committed(7, about, -1)) == KeptOffset(7, topic_id, 5)
    assert about.partition(" topic=")[2] == topic_id


def test_partition_that_the_target_does_not_have_is_kept_by_a_group_of_its_own() -> None:
    assert place_of("m", ("t", 1), 2) == ("kbroker-mirror.m", ("t", 1))
    assert place_of("m", ("t", 2), 2) == ("kbroker-mirror.m.2", ("t", 0))
