"""The cluster image: how a process handles documents that it cannot read."""

from __future__ import annotations

from typing import Any

import pytest
from support.network_process import topic_document

from kbroker.cluster.image import ClusterImage
from kbroker.ipc.documents import DocumentError

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    "damage",
    [
        {"id": "no digits"},
        {"id": None},
        {"partitions": [{"leader": 0}]},
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
