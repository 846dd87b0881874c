"""The progress of a mirror: the source's next offset of each partition, stored in the target.

It is an offset that the group ``kbroker-mirror.NAME`` has committed there. Its metadata names the
source, when it was committed and the id of the source's topic: a topic that was deleted and
recreated is not taken for the one that was copied.

Offsets of a group without members expire at the target some time after their commit, and without
its offset a partition would be copied again from its beginning. So they are renewed, though not in
each pass over a thousand partitions in which nothing happens: only once they are of some age.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from kbroker.client.batches.offsets import Committed, committed, retention_of
from kbroker.client.connections.cluster import Cluster
from kbroker.spark.load.commits import TopicPartition
from kbroker.spark.load.positions import PositionBounds

# Offsets of this age are renewed, or of a share of the target's retention, if that is less: brokers
# before Kafka 2.0 retain them for a day, and not all report it.
RENEW_S = 6 * 3600.0
_RENEW_SHARE = 0.25
_ABOUT = re.compile(r"(?: at=(\d{1,18}))?(?: topic=(\S+))?\Z")


class KeptOffset(NamedTuple):
    """The offset of a partition. topic_id: of the source's topic, empty if it has none. at_ms: when
    it was committed, 0 if unknown.
    """

    offset: int
    topic_id: str
    at_ms: int


def place_of(name: str, one: TopicPartition, count: int) -> tuple[str, TopicPartition]:
    """The group and partition that an offset is kept by. count: partitions of the target's topic.

    Offsets of partitions that the target does not have are kept by a group of their own.
    """
    topic, partition = one
    if partition < count:
        return f"kbroker-mirror.{name}", one
    return f"kbroker-mirror.{name}.{partition}", (topic, 0)


def transactional_id_of(name: str, one: TopicPartition) -> str:
    """The transactional id of a partition's writer."""
    topic, partition = one
    return f"kbroker-mirror.{name}.{topic}.{partition}"


def metadata_of(source: str, topic_id: str) -> str:
    """The metadata of an offset that is committed now."""
    return f"{source} at={time.time_ns() // 1_000_000}" + (f" topic={topic_id}" if topic_id else "")


def kept(offset: Committed) -> KeptOffset:
    """Older mirrors did not store the time."""
    about = _ABOUT.search(offset.metadata)
    assert about is not None  # if only at the end
    at_ms, topic_id = about.groups()
    return KeptOffset(offset.offset, topic_id or "", int(at_ms or 0))


def up_to_date(
    target: Cluster, name: str, bounds: Mapping[TopicPartition, PositionBounds]
) -> set[TopicPartition]:
    """Partitions whose end at the source equals the offset stored at the target, stored recently:
    nothing to copy or refresh.

    Takes no part in any transaction and fences no copier, so offsets may change in the meantime. An
    offset in an open transaction does not count, and is not waited for.
    """
    counts = {
        topic: len(one.partitions)
        for topic, one in target.topics(sorted({topic for topic, _ in bounds})).items()
    }
    groups: dict[str, dict[TopicPartition, TopicPartition]] = defaultdict(dict)
    for one in bounds:
        if one[0] in counts:
            group, place = place_of(name, one, counts[one[0]])
            groups[group][place] = one
    known = {
        places[place]: kept(offset)
        for group, places in groups.items()
        for place, offset in committed(target, group, places, stable=False).items()
    }
    same = {
        one: at.at_ms
        for one, at in known.items()
        if (at.offset, at.topic_id) == (bounds[one].end, bounds[one].topic_id)
    }
    if not same:
        return set()
    now_ms, renew_ms = time.time_ns() // 1_000_000, _renew_s(target, name) * 1000
    return {one for one, at_ms in same.items() if 0 <= now_ms - at_ms < renew_ms}


def _renew_s(target: Cluster, name: str) -> float:
    kept_s = retention_of(target, place_of(name, ("", 0), 1)[0])
    return RENEW_S if kept_s is None else min(RENEW_S, kept_s * _RENEW_SHARE)
