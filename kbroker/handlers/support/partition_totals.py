"""How many topics and partitions there are, who has them, and which are in trouble.

A client that only counts would decode a Metadata response with a row for each of thousands of
topics. What is counted is the same: topics that the client may describe, and as leaders only
brokers that it can reach.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from kbroker.cluster.control_requests import NO_LEADER
from kbroker.cluster.image import TopicImage
from kbroker.handlers.context import RequestContext
from kbroker.protocol.messages.describe_cluster import DescribeClusterResponse
from kbroker.security.access import EVERYTHING
from kbroker.security.operations import AclOperation, Kind
from kbroker.types import BrokerId


class PartitionTotals(NamedTuple):
    """leads, replicas: by broker. troubled: without a leader, or with too few replicas in sync."""

    topics: int
    internal: int
    partitions: int
    leads: Counter[BrokerId]
    replicas: Counter[BrokerId]
    troubled: list[DescribeClusterResponse.TroubledPartition]


async def partition_totals(ctx: RequestContext, reachable: frozenset[BrokerId]) -> PartitionTotals:
    """Of whoever may describe all topics, the totals are kept until the image changes."""
    image = ctx.image
    derived = image.derived
    shown = ctx.allowed(AclOperation.DESCRIBE, Kind.TOPIC, image.topics, is_filter=True)
    topics = list(image.topics.values())
    if shown is not EVERYTHING:
        return await _count(ctx, [one for one in topics if one.name in shown], reachable)
    key = "partition totals", reachable
    if key not in derived:
        derived[key] = await _count(ctx, topics, reachable)
    totals: PartitionTotals = derived[key]
    return totals


async def _count(
    ctx: RequestContext, topics: Iterable[TopicImage], reachable: frozenset[BrokerId]
) -> PartitionTotals:
    entry = DescribeClusterResponse.TroubledPartition
    leads: Counter[BrokerId] = Counter()
    replicas: Counter[BrokerId] = Counter()
    troubled = []
    count = internal = partitions = 0
    async for topic in ctx.each(topics):
        count += 1
        internal += topic.internal
        partitions += len(topic.partitions)
        for number, one in enumerate(topic.partitions):
            replicas.update(one.replicas)
            has_leader = one.leader in reachable
            if has_leader:
                leads[one.leader] += 1
            if not has_leader or len(one.isr) < len(one.replicas):
                troubled.append(
                    entry(
                        topic=topic.name,
                        partition=number,
                        leader=one.leader if has_leader else NO_LEADER,
                        replicas=one.replicas,
                        isr=one.isr,
                    )
                )
    return PartitionTotals(count, internal, partitions, leads, replicas, troubled)
