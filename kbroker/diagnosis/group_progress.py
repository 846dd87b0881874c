"""How groups get on that have not read all: two looks at them, and what was between."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from kbroker.client.admin.groups import ListedGroup, list_groups, offsets_of_groups
from kbroker.client.batches.offsets import ends_of_existing
from kbroker.client.connections.cluster import Cluster
from kbroker.health.cluster import GROUP_WATCH_S, GroupFact

# BOUND: groups that are looked at.
GROUPS_MAX = 1_000
# BOUND: users whose looks are kept, and how old one may be.
USERS_MAX = 8
KEPT_S = 600.0

_EMPTY = "Empty"


class GroupPlace(NamedTuple):
    """How far a group is: lag, and sums over the partitions that it has committed offsets of."""

    lag: int
    partitions: int
    committed: int
    end: int
    has_members: bool


class GroupLook(NamedTuple):
    """at_s: of time.monotonic. places: of groups that have not read all."""

    at_s: float
    places: Mapping[str, GroupPlace]


class NotWatchedYet(Exception):
    """Groups are behind, and there is no earlier look at them. Its text says so."""


def watched_groups(
    cluster: Cluster, watch_s: float, sleep: Callable[[float], None] = time.sleep
) -> list[GroupFact]:
    """Look twice. Raises ClientError."""
    listed = list_groups(cluster)
    before = look_at(cluster, listed)
    if not before.places:
        return []
    sleep(watch_s)
    return progress_between(
        before, look_at(cluster, [row for row in listed if row.group in before.places])
    )


def look_at(cluster: Cluster, groups: Iterable[ListedGroup]) -> GroupLook:
    """Raises ClientError."""
    at_s = time.monotonic()
    rows = {row.group: row for row in list(groups)[:GROUPS_MAX]}
    offsets = offsets_of_groups(cluster, rows.values())
    ends = ends_of_existing(cluster, {key for committed in offsets.values() for key in committed})
    places = {}
    for group, committed in offsets.items():
        known = [(offset, ends[key]) for key, offset in committed.items() if key in ends]
        lag = sum(max(0, end - offset) for offset, end in known)
        if lag > 0:
            places[group] = GroupPlace(
                lag,
                len(known),
                sum(offset for offset, _ in known),
                sum(end for _, end in known),
                rows[group].state != _EMPTY,
            )
    return GroupLook(at_s, places)


def progress_between(before: GroupLook, after: GroupLook) -> list[GroupFact]:
    """Of the groups that were behind at both looks."""
    facts = []
    for group, now in after.places.items():
        then = before.places.get(group)
        if then is None or then.partitions != now.partitions:
            continue  # it has begun with others, so it does not stand still
        written = max(0, now.end - then.end)
        # Who is behind by what came since the last commit is not behind.
        if now.lag > written:
            seconds, read = after.at_s - before.at_s, now.committed - then.committed
            facts.append(GroupFact(group, now.lag, seconds, read, written, int(now.has_members)))
    return facts


class GroupWatch:
    """Keeps a look for each user, so that whoever asks again need not wait for the second one.
    watch_s: the shortest time between two looks. Used by any thread.
    """

    def __init__(self, watch_s: float = GROUP_WATCH_S) -> None:
        self._watch_s = watch_s
        self._lock = threading.Lock()
        self._kept: dict[str | None, tuple[GroupLook, list[GroupFact] | None]] = {}

    def facts(self, user: str | None, look: Callable[[], GroupLook]) -> list[GroupFact]:
        """Of the time since the look before. Raises NotWatchedYet, and what ``look`` raises."""
        before, facts = self._of(user)
        if before is None or time.monotonic() - before.at_s >= self._watch_s:
            now = look()
            facts = None
            if before is not None:
                facts = progress_between(before, now)
            elif not now.places:
                facts = []
            self._keep(user, now, facts)
        if facts is None:
            raise NotWatchedYet(
                f"groups: some are behind; whether they read shows in {self._watch_s:g} s"
            )
        return facts

    def _of(self, user: str | None) -> tuple[GroupLook | None, list[GroupFact] | None]:
        with self._lock:
            look, facts = self._kept.get(user, (None, None))
        if look is None or time.monotonic() - look.at_s > KEPT_S:
            return None, None
        return look, facts

    def _keep(self, user: str | None, look: GroupLook, facts: list[GroupFact] | None) -> None:
        with self._lock:
            self._kept.pop(user, None)
            self._kept[user] = look, facts
            if len(self._kept) > USERS_MAX:
                del self._kept[next(iter(self._kept))]
