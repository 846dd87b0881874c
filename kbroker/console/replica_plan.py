"""Which replicas move, for an intent: empty brokers, spread topics, change a replication factor,
balance a cluster. It knows no brokers: it is given a layout, and returns another one.

What holds for each plan, and is tested on random layouts:

- the replicas of a partition are on different brokers, in as many racks as those that stay allow;
- a plan is the same for the same layout, and empty if the layout has already what is wanted;
- replicas that need not move stay, and of those that could move the smallest do.

Brokers that do not run get nothing. What they have stays theirs, unless they are emptied.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import NamedTuple

Key = tuple[str, int]


class PlanRefused(ValueError):
    """There is no such layout; the text says why, and what to do."""


class PlacedPartition(NamedTuple):
    """nodes: of its replicas, the preferred leader first. size: bytes of a replica. in_sync: the
    nodes of those that have all records.
    """

    nodes: tuple[int, ...]
    size: int = 0
    in_sync: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class ReplicaLayout:
    """racks: the brokers that run, with their racks; those without one count as one rack."""

    racks: Mapping[int, str | None]
    partitions: Mapping[Key, PlacedPartition]


class Move(NamedTuple):
    """A partition that gets other replicas, or another order of them. size: bytes to copy."""

    key: Key
    before: tuple[int, ...]
    after: tuple[int, ...]
    size: int

    @property
    def added(self) -> list[int]:
        return [node for node in self.after if node not in self.before]


def drain(layout: ReplicaLayout, nodes: Collection[int]) -> list[Move]:
    """Nothing is left on these brokers. Raises PlanRefused."""
    draft = _Draft(layout)
    _empty(draft, layout.partitions, [node for node in layout.racks if node not in nodes], nodes)
    return draft.moves()


def spread(
    layout: ReplicaLayout, topics: Collection[str], nodes: Collection[int] | None = None
) -> list[Move]:
    """Of each topic, every broker has as many replicas and leads as many partitions, give or take
    one. nodes: only these brokers have any; None: all that run. Raises PlanRefused.
    """
    draft = _Draft(layout)
    chosen = sorted(layout.racks if nodes is None else nodes)
    for name in sorted(topics):
        keys = sorted(key for key in layout.partitions if key[0] == name)
        if nodes is not None:
            away = {node for key in keys for node in draft.nodes[key]}.difference(nodes)
            _empty(draft, keys, chosen, away)
        _even(draft, keys, chosen)
    return draft.moves()


def balance(layout: ReplicaLayout) -> list[Move]:
    """Every broker has as many replicas and leads as many partitions, give or take one, as far as
    racks allow; and partitions are in as many racks as there are. Raises PlanRefused.
    """
    draft = _Draft(layout)
    _even(draft, sorted(layout.partitions), sorted(layout.racks))
    return draft.moves()


def replication(layout: ReplicaLayout, topics: Collection[str], factor: int) -> list[Move]:
    """Each partition of these topics has so many replicas. Raises PlanRefused."""
    if factor > len(layout.racks):
        count = len(layout.racks)
        raise PlanRefused(
            f"a replication factor of {factor} needs {factor} brokers, and {count} "
            f"{'runs' if count == 1 else 'run'}"
        )
    draft = _Draft(layout)
    for key in _largest_first(layout, [key for key in layout.partitions if key[0] in topics]):
        while len(draft.nodes[key]) > factor:
            draft.remove(key, draft.least_needed(key))
        while len(draft.nodes[key]) < factor:
            draft.add(key, draft.best_target(key, sorted(layout.racks)))
    return draft.moves()


class _Draft:
    """The layout while it changes.

    nodes: of each partition. counts: replicas by node, filled: bytes by node, leads: partitions
    that it is the preferred leader of.
    """

    def __init__(self, layout: ReplicaLayout) -> None:
        self.layout = layout
        self.nodes = {key: list(row.nodes) for key, row in layout.partitions.items()}
        self.counts: Counter[int] = Counter()
        self.filled: Counter[int] = Counter()
        self.leads: Counter[int] = Counter()
        for key, nodes in self.nodes.items():
            for node in nodes:
                self.counts[node] += 1
                self.filled[node] += self.size(key)
            if nodes:
                self.leads[nodes[0]] += 1
        self._room = Counter(self._rack(node) for node in layout.racks)

    def size(self, key: Key) -> int:
        return self.layout.partitions[key].size

    def moves(self) -> list[Move]:
        moves = []
        for key in sorted(self.nodes):
            before, after = self.layout.partitions[key].nodes, tuple(self.nodes[key])
            if after != before:
                added = len(set(after) - set(before))
                moves.append(Move(key, before, after, added * self.size(key)))
        return moves

    # -- racks

    def _rack(self, node: int) -> str:
        return self.layout.racks[node] or ""

    def crowding(self, nodes: Iterable[int]) -> int:
        """The less, the better replicas are spread over racks: the sum of the squares of how many
        each has. Nobody knows the rack of a broker that does not run.
        """
        used = Counter(self._rack(node) for node in nodes if node in self.layout.racks)
        return sum(count * count for count in used.values())

    def least_crowding(self, count: int, nodes: Collection[int]) -> int:
        """The least that so many replicas on these brokers can have."""
        room = Counter(self._rack(node) for node in nodes)
        used: Counter[str] = Counter()
        for _ in range(count):
            free = [rack for rack in room if used[rack] < room[rack]]
            if not free:
                break
            used[min(free, key=lambda rack: used[rack])] += 1
        return sum(each * each for each in used.values())

    # -- changes

    def replace(self, key: Key, old: int, new: int) -> None:
        """The new replica has the place of the old one in the order."""
        nodes = self.nodes[key]
        at = nodes.index(old)
        nodes[at] = new
        self._count(key, old, -1, at == 0)
        self._count(key, new, 1, at == 0)

    def add(self, key: Key, node: int) -> None:
        self.nodes[key].append(node)
        self._count(key, node, 1, False)

    def remove(self, key: Key, node: int) -> None:
        nodes = self.nodes[key]
        was_first = nodes[0] == node
        nodes.remove(node)
        self._count(key, node, -1, was_first)
        if was_first and nodes:
            self.leads[nodes[0]] += 1

    def lead(self, key: Key, node: int) -> None:
        """This replica becomes the preferred leader, in exchange with the present one."""
        nodes = self.nodes[key]
        at = nodes.index(node)
        self.leads[nodes[0]] -= 1
        self.leads[node] += 1
        nodes[0], nodes[at] = nodes[at], nodes[0]

    def _count(self, key: Key, node: int, change: int, leads: bool) -> None:
        self.counts[node] += change
        self.filled[node] += change * self.size(key)
        if leads:
            self.leads[node] += change

    # -- choices

    def best_target(self, key: Key, nodes: Iterable[int], instead_of: int | None = None) -> int:
        """Where one more replica goes: into the emptiest rack, then onto the broker with the fewest
        replicas, leaders and bytes. Raises ValueError if each has one.
        """
        present = self.nodes[key]
        kept = [node for node in present if node != instead_of]
        leads = instead_of is not None and present[0] == instead_of
        original = self.layout.partitions[key].nodes
        return min(
            (node for node in nodes if node not in present),
            key=lambda node: (
                self.crowding([*kept, node]),
                node not in original,
                self.counts[node],
                self.leads[node] if leads else 0,
                self.filled[node],
                node,
            ),
        )

    def least_needed(self, key: Key) -> int:
        """The replica that goes first: one that is not in sync, of a crowded rack, of a broker that
        has many; the preferred leader last.
        """
        nodes = self.nodes[key]
        row = self.layout.partitions[key]

        def worth(node: int) -> tuple[int, ...]:
            runs = node in self.layout.racks
            others = [each for each in nodes if each != node]
            return (
                runs + (node in row.in_sync),
                self.crowding(others),
                node == nodes[0],
                -self.counts[node],
                -nodes.index(node),
            )

        return min(nodes, key=worth)

    def cost(self, key: Key, old: int, new: int) -> int:
        """Bytes that are copied if the replica moves, negative if fewer are than without it."""
        original = self.layout.partitions[key].nodes
        return self.size(key) * ((new not in original) - (old not in original))


def _largest_first(layout: ReplicaLayout, keys: Iterable[Key]) -> list[Key]:
    """So that the small ones level out what the large ones have left."""
    return sorted(keys, key=lambda key: (-layout.partitions[key].size, key))


def _empty(draft: _Draft, keys: Iterable[Key], left: Sequence[int], away: Collection[int]) -> None:
    """What the brokers ``away`` have of these partitions goes to those that are left."""
    for key in _largest_first(draft.layout, keys):
        for old in [node for node in draft.nodes[key] if node in away]:
            if all(node in draft.nodes[key] for node in left):
                raise _too_few(key, len(draft.nodes[key]), len(left))
            draft.replace(key, old, draft.best_target(key, left, old))


def _too_few(key: Key, factor: int, left: int) -> PlanRefused:
    if not left:
        return PlanRefused("no broker would be left: start another one first")
    return PlanRefused(
        f"{key[0]}-{key[1]} has {factor} replicas, and {left} "
        f"{'broker' if left == 1 else 'brokers'} would be left: start another one, or lower the "
        f"factor first (kbroker cluster replication {left} {key[0]})"
    )


def _even(draft: _Draft, keys: Sequence[Key], nodes: Sequence[int]) -> None:
    """As many replicas of these partitions on each of these brokers, then as many leaders."""
    _spread_over_racks(draft, keys, nodes)
    _Evening(draft, keys, nodes).run()
    _even_leaders(draft, keys, nodes)


def _spread_over_racks(draft: _Draft, keys: Sequence[Key], nodes: Sequence[int]) -> None:
    usable = set(nodes)
    for key in keys:
        movable = [node for node in draft.nodes[key] if node in usable]
        least = draft.least_crowding(len(movable), nodes)
        while draft.crowding(movable) > least:
            old, new = min(
                ((old, new) for old in movable for new in nodes if new not in draft.nodes[key]),
                key=lambda pair: (
                    draft.crowding(pair[1] if node == pair[0] else node for node in movable),
                    draft.cost(key, *pair),
                    draft.counts[pair[1]] - draft.counts[pair[0]],
                    pair,
                ),
            )
            draft.replace(key, old, new)
            movable = [node for node in draft.nodes[key] if node in usable]


class _Evening:
    """Moves replicas from brokers that have more of these partitions to those that have fewer."""

    def __init__(self, draft: _Draft, keys: Sequence[Key], nodes: Sequence[int]) -> None:
        self._draft = draft
        self._nodes = nodes
        self._held: dict[int, set[Key]] = {node: set() for node in nodes}
        for key in keys:
            for node in draft.nodes[key]:
                if node in self._held:
                    self._held[node].add(key)
        self._moved: list[Key] = []
        self._candidates: dict[tuple[int, int], _Candidates] = {}

    def run(self) -> None:
        """Until no two brokers differ by more than one, or no replica may move between them."""
        while (move := self._next(self._outermost()) or self._next(self._all_pairs())) is not None:
            key, old, new = move
            self._draft.replace(key, old, new)
            self._held[old].remove(key)
            self._held[new].add(key)
            self._moved.append(key)

    def _outermost(self) -> list[tuple[int, int]]:
        """From brokers above the mean to those below it: then no replica moves twice."""
        counts = {node: len(held) for node, held in self._held.items()}
        if not counts:
            return []
        low, left = divmod(sum(counts.values()), len(counts))
        high = low + bool(left)
        over = [node for node in self._nodes if counts[node] > high]
        under = [node for node in self._nodes if counts[node] < low]
        over = over or [node for node in self._nodes if counts[node] == high]
        under = under or [node for node in self._nodes if counts[node] == low]
        return self._pairs(over, under)

    def _all_pairs(self) -> list[tuple[int, int]]:
        return self._pairs(self._nodes, self._nodes)

    def _pairs(self, over: Iterable[int], under: Sequence[int]) -> list[tuple[int, int]]:
        held = self._held
        pairs = [(a, b) for a in over for b in under if len(held[a]) - len(held[b]) >= 2]
        # The largest difference first.
        return sorted(pairs, key=lambda pair: (len(held[pair[1]]) - len(held[pair[0]]), *pair))

    def _next(self, pairs: Sequence[tuple[int, int]]) -> tuple[Key, int, int] | None:
        """The cheapest move between these; of equal ones, the first pair's."""
        best: tuple[int, Key, int, int] | None = None
        for pair in pairs:
            candidates = self._candidates.get(pair)
            if candidates is None:
                candidates = _Candidates(self._draft, *pair, self._held[pair[0]], self._moved)
                self._candidates[pair] = candidates
            first = candidates.first()
            if first is not None and (best is None or first[0] < best[0]):
                best = (*first, *pair)
        return None if best is None else best[1:]


class _Candidates:
    """Partitions whose replica may move from one broker to another, the cheapest first.

    held: those of the first broker. moved: all that have moved, in order: only these can become
    candidates, or cease to be.
    """

    def __init__(
        self, draft: _Draft, old: int, new: int, held: Set[Key], moved: Sequence[Key]
    ) -> None:
        self._draft, self._old, self._new = draft, old, new
        self._held, self._moved = held, moved
        self._looked_at = len(moved)
        self._heap = [(draft.cost(key, old, new), key) for key in held if self._may_move(key)]
        heapify(self._heap)

    def first(self) -> tuple[int, Key] | None:
        """With its cost in bytes."""
        for key in self._moved[self._looked_at :]:
            if self._may_move(key):
                heappush(self._heap, (self._draft.cost(key, self._old, self._new), key))
        self._looked_at = len(self._moved)
        while self._heap and not self._may_move(self._heap[0][1]):
            heappop(self._heap)
        return self._heap[0] if self._heap else None

    def _may_move(self, key: Key) -> bool:
        """Whether it leaves the partition in as many racks."""
        nodes = self._draft.nodes[key]
        if key not in self._held or self._new in nodes:
            return False
        moved = (self._new if node == self._old else node for node in nodes)
        return self._draft.crowding(moved) <= self._draft.crowding(nodes)


def _even_leaders(draft: _Draft, keys: Sequence[Key], nodes: Sequence[int]) -> None:
    """As many preferred leaders on each broker, by exchanging replicas of a partition in their
    order, along the shortest ways between brokers; no byte is copied.
    """
    leads: Counter[int] = Counter()
    # From a leader to a broker that could lead instead, by which partitions.
    ways: dict[int, dict[int, dict[Key, None]]] = {node: {} for node in nodes}

    def enter(key: Key, change: int) -> None:
        first, *others = draft.nodes[key]
        if first not in ways:
            return
        leads[first] += change
        for node in others:
            if node in ways and change > 0:
                ways[first].setdefault(node, {})[key] = None
            elif node in ways:
                del ways[first][node][key]

    for key in keys:
        if draft.nodes[key]:
            enter(key, 1)
    while (path := _path_down(leads, ways)) is not None:
        for old, new in path:
            key = next(iter(ways[old][new]))
            enter(key, -1)
            draft.lead(key, new)
            enter(key, 1)


def _path_down(
    leads: Mapping[int, int], ways: Mapping[int, Mapping[int, Mapping[Key, None]]]
) -> list[tuple[int, int]] | None:
    """The steps from a broker that leads the most to one that leads two fewer; None if there is no
    such way from any broker.
    """
    for start in sorted(ways, key=lambda node: (-leads[node], node)):
        came_from: dict[int, int] = {start: start}
        waiting = deque([start])
        while waiting:
            node = waiting.popleft()
            if leads[start] - leads[node] >= 2:
                return _steps(came_from, node)
            for after in sorted(ways[node]):
                if ways[node][after] and after not in came_from:
                    came_from[after] = node
                    waiting.append(after)
    return None


def _steps(came_from: Mapping[int, int], end: int) -> list[tuple[int, int]]:
    steps = []
    while came_from[end] != end:
        steps.append((came_from[end], end))
        end = came_from[end]
    return steps[::-1]
