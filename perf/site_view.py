"""What the brokers of a large cluster say of all its partitions, in one request."""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import NamedTuple

from perf.frames import METADATA, parse_cluster, request_frame
from perf.raw_client import RawClient

# Of all topics (null); it creates none. Version 4 is the last before offline replicas.
_FRAME = request_frame(METADATA, 4, b"\xff\xff\xff\xff\0")
NOBODY = -1

Place = tuple[str, int]


class PartitionView(NamedTuple):
    """leader: NOBODY if there is none. replicas: the preferred leader first."""

    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


class SiteView(NamedTuple):
    """A broker's metadata. controller: NOBODY if it knows none."""

    brokers: frozenset[int]
    controller: int
    partitions: Mapping[Place, PartitionView]

    def led(self, count: int, gone: Collection[int] = ()) -> bool:
        """Whether so many partitions have leaders, none of them among those that are gone."""
        leaders = self.leaders
        return sum(leaders.values()) - leaders[NOBODY] - sum(leaders[b] for b in gone) == count

    def in_sync(self, count: int) -> bool:
        """Whether so many partitions have leaders, and all their replicas in sync."""
        return self.led(count) and all(
            len(one.in_sync) == len(one.replicas) for one in self.partitions.values()
        )

    @property
    def leaders(self) -> Counter[int]:
        """How many partitions each broker leads."""
        return Counter(one.leader for one in self.partitions.values())

    @property
    def leaders_off_mean(self) -> float:
        """How far the broker whose number of leaders is the oddest is from the mean, as a share."""
        leaders = self.leaders
        mean = len(self.partitions) / len(self.brokers)
        return max(abs(leaders[broker] - mean) for broker in self.brokers) / mean

    @property
    def not_preferred(self) -> float:
        """The largest share of any broker's preferred partitions that others lead: what
        ``leader.imbalance.per.broker.percentage`` limits.
        """
        preferred = Counter(one.replicas[0] for one in self.partitions.values())
        others = Counter(
            one.replicas[0] for one in self.partitions.values() if one.leader != one.replicas[0]
        )
        return max((others[broker] / preferred[broker] for broker in preferred), default=0.0)


def view_of(address: tuple[str, int]) -> SiteView:
    """Ask a broker. Raises OSError."""
    with RawClient(address, timeout=30) as client:
        return parse_view(client.call(_FRAME))


def parse_view(response: bytes) -> SiteView:
    """Of a response from its correlation id on."""
    cluster = parse_cluster(response)
    partitions = {
        (topic, number): PartitionView(one.leader, one.replicas, one.in_sync)
        for topic, (_, states) in cluster.topics.items()
        for number, one in states.items()
    }
    return SiteView(frozenset(cluster.addresses), cluster.controller, partitions)
