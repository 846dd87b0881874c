"""What the brokers of a large cluster say of all its partitions, in one request."""

import struct
from collections import Counter
from collections.abc import Collection, Mapping
from typing import NamedTuple

from perf.raw_client import RawClient

# WIRE: Metadata (key 3) version 4 of all topics, which creates none: correlation id 1, no client
# id. Version 4 is the last before offline replicas.
_ALL_TOPICS = struct.pack(">hhihib", 3, 4, 1, -1, -1, 0)
_FRAME = struct.pack(">i", len(_ALL_TOPICS)) + _ALL_TOPICS
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
    return _Parser(response).view()


class _Parser:
    """WIRE: correlation id, throttle time; brokers with id, host, port and rack; cluster id; the
    controller's id; topics with error, name, internal and partitions, each of which has error,
    index, leader, replicas and in-sync replicas.
    """

    def __init__(self, response: bytes) -> None:
        self._data = response
        self._at = 8

    def view(self) -> SiteView:
        brokers = []
        for _ in range(self._int()):
            brokers.append(self._int())
            self._text(), self._int(), self._text()
        self._text()
        controller = self._int()
        partitions = {}
        for _ in range(self._int()):
            self._at += 2
            topic = self._text()
            self._at += 1
            for _ in range(self._int()):
                _, number, leader = struct.unpack_from(">hii", self._data, self._at)
                self._at += 10
                partitions[topic, number] = PartitionView(leader, self._ints(), self._ints())
        return SiteView(frozenset(brokers), controller, partitions)

    def _int(self) -> int:
        (number,) = struct.unpack_from(">i", self._data, self._at)
        self._at += 4
        return int(number)

    def _ints(self) -> tuple[int, ...]:
        count = self._int()
        numbers = struct.unpack_from(f">{count}i", self._data, self._at)
        self._at += 4 * count
        return numbers

    def _text(self) -> str:
        (size,) = struct.unpack_from(">h", self._data, self._at)
        self._at += 2 + max(size, 0)
        return self._data[self._at - max(size, 0) : self._at].decode()
