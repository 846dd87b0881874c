"""Where the replicas of a topic go: as many on each broker, each broker leads as many, and the
replicas of a partition are in as many racks as possible.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from itertools import zip_longest


class PlacementError(ValueError):
    """Such a topic cannot be placed on these brokers."""


def place_replicas(
    racks: Mapping[int, str | None], partitions: int, factor: int, *, first: int | None = None
) -> list[list[int]]:
    """The nodes of each partition, the preferred leader first.

    racks: the brokers by node; their racks count if all of them have one. factor: how many
    replicas. first: where to begin among the brokers, which is otherwise chosen at random. Raises
    PlacementError.
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
    start = random.randrange(count) if first is None else first
    placed = []
    for number in range(partitions):
        leader = (start + number) % count
        # Each round over the brokers pairs them with others, so that one that fails is replaced
        # by all.
        shift = start + number // count
        followers = [
            ring[(leader + 1 + (shift + step) % (count - 1)) % count] for step in range(count - 1)
        ]
        placed.append(_spread([ring[leader], *followers], racks, factor))
    return placed


def _ring(racks: Mapping[int, str | None]) -> list[int]:
    """The brokers in the order in which they lead: neighbours are in different racks."""
    by_rack: dict[str, list[int]] = {}
    for node in sorted(racks):
        by_rack.setdefault(racks[node] or "", []).append(node)
    rows = zip_longest(*(by_rack[rack] for rack in sorted(by_rack)))
    return [node for row in rows for node in row if node is not None]


def _spread(nodes: list[int], racks: Mapping[int, str | None], factor: int) -> list[int]:
    """So many of them: each from one of the racks with the fewest so far."""
    chosen = nodes[:1]
    left = nodes[1:]
    used = Counter(racks[node] for node in chosen)
    while len(chosen) < factor:
        node = min(left, key=lambda node: used[racks[node]])
        chosen.append(node)
        left.remove(node)
        used[racks[node]] += 1
    return chosen
