"""Where the replicas of a topic go: as many on each broker, each broker leads as many, and the
replicas of a partition are in as many racks as possible.

The first leader is chosen at random, so that topics with few partitions do not all have the same
leader; so is the distance to its followers, so that a broker that fails is replaced by all others.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice, zip_longest

# A random number from 0 to below the given one.
Choose = Callable[[int], int]


class PlacementError(ValueError):
    """Such a topic cannot be placed on these brokers."""


def place_replicas(
    racks: Mapping[int, str | None],
    partitions: int,
    factor: int,
    *,
    existing: Sequence[Sequence[int]] = (),
    choose: Choose = random.randrange,
) -> list[list[int]]:
    """The nodes of each new partition, the preferred leader first.

    racks: the brokers by node; those without a rack count as one rack. factor: how many replicas.
    existing: the nodes of the partitions that the topic has already; the new ones continue in their
    order. Raises PlacementError.
    """
    if factor < 1 or partitions < 1:
        raise PlacementError("Number of partitions and replication factor must be larger than 0.")
    if not racks:
        raise PlacementError(
            "All brokers are currently fenced, or have all their log directories cordoned."
        )
    if factor > len(racks):
        raise PlacementError(
            f"The target replication factor of {factor} cannot be reached because only "
            f"{len(racks)} broker(s) are registered."
        )
    ring = _ring(racks)
    count = len(ring)
    start, shift = _beginning(ring, existing, choose)
    placed = []
    for number in range(len(existing), len(existing) + partitions):
        leader = (start + number) % count
        # Each round over the brokers pairs them with others.
        first = shift + number // count
        followers = (
            ring[(leader + 1 + (first + step) % (count - 1)) % count] for step in range(count - 1)
        )
        placed.append(_spread(ring[leader], followers, racks, factor))
    return placed


def _ring(racks: Mapping[int, str | None]) -> list[int]:
    """The brokers in the order in which they lead: neighbours are in different racks."""
    by_rack: dict[str, list[int]] = {}
    for node in sorted(racks):
        by_rack.setdefault(racks[node] or "", []).append(node)
    rows = zip_longest(*(by_rack[rack] for rack in sorted(by_rack)))
    return [node for row in rows for node in row if node is not None]


def _beginning(
    ring: list[int], existing: Sequence[Sequence[int]], choose: Choose
) -> tuple[int, int]:
    """Where partition 0 is led, and the distance to its first follower: as places in the ring."""
    count = len(ring)
    places = {node: place for place, node in enumerate(ring)}
    first = [places.get(node) for node in existing[0]] if existing else []
    leader, follower = (*first, None, None)[:2]
    start = choose(count) if leader is None else leader
    if leader is None or follower is None:
        return start, choose(max(1, count - 1))
    return start, (follower - leader - 1) % count


def _spread(
    leader: int, followers: Iterable[int], racks: Mapping[int, str | None], factor: int
) -> list[int]:
    """The leader and so many followers: each from one of the racks with the fewest so far."""
    if len(set(racks.values())) == 1:
        return [leader, *islice(followers, factor - 1)]
    chosen, left = [leader], list(followers)
    used = Counter([racks[leader] or ""])
    while len(chosen) < factor:
        node = min(left, key=lambda node: used[racks[node] or ""])
        chosen.append(node)
        left.remove(node)
        used[racks[node] or ""] += 1
    return chosen
