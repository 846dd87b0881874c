"""Two looks at groups that have not read all, and what is told of them."""

from __future__ import annotations

import time

import pytest

from kbroker.diagnosis.group_progress import (
    USERS_MAX,
    GroupLook,
    GroupPlace,
    GroupWatch,
    NotWatchedYet,
    progress_between,
)
from kbroker.health.cluster import GroupFact

pytestmark = pytest.mark.unit


def place(committed: int, end: int, partitions: int = 1, has_members: bool = True) -> GroupPlace:
    return GroupPlace(end - committed, partitions, committed, end, has_members)


def look(**places: GroupPlace) -> GroupLook:
    return GroupLook(time.monotonic(), places)


def test_groups_are_told_with_what_they_read_and_what_came() -> None:
    before = GroupLook(
        10.0,
        {
            "still": place(5, 50, has_members=False),
            "reads": place(5, 50),
            "current": place(40, 50),
            "more": place(5, 50),
        },
    )
    after = GroupLook(
        16.0,
        {
            "still": place(5, 60, has_members=False),
            "reads": place(20, 60),
            "current": place(55, 65),  # behind by what came since its last commit
            "more": place(5, 90, partitions=2),
            "new": place(0, 10),
        },
    )

    assert progress_between(before, after) == [
        GroupFact("still", 55, 6.0, read=0, written=10, members=0),
        GroupFact("reads", 40, 6.0, read=15, written=10, members=1),
    ]


def test_look_is_kept_for_who_asks_again() -> None:
    watch = GroupWatch(watch_s=0.0)
    with pytest.raises(NotWatchedYet, match="some are behind"):
        watch.facts("alice", lambda: look(g=place(5, 50)))

    (found,) = watch.facts("alice", lambda: look(g=place(5, 50)))

    assert (found.group, found.lag, found.read) == ("g", 45, 0)
    assert watch.facts("bob", look) == []  # nothing is behind, and nothing of alice's is told


def test_groups_are_not_looked_at_twice_within_the_time() -> None:
    watch = GroupWatch(watch_s=3600.0)
    looks = []

    def counted() -> GroupLook:
        looks.append(1)
        return look(g=place(5, 50))

    for _ in range(3):
        with pytest.raises(NotWatchedYet):
            watch.facts(None, counted)

    assert len(looks) == 1


def test_looks_of_a_few_users_are_kept() -> None:
    watch = GroupWatch(watch_s=0.0)
    for user in ["first", *map(str, range(USERS_MAX))]:
        with pytest.raises(NotWatchedYet):
            watch.facts(user, lambda: look(g=place(5, 50)))

    with pytest.raises(NotWatchedYet):
        watch.facts("first", lambda: look(g=place(5, 50)))
    assert watch.facts(str(USERS_MAX - 1), lambda: look(g=place(5, 50)))
