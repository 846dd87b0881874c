"""What a leader tells readers of its followers, so that consumers can be sent to them (KIP-392)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.replication.leader_host import ME, LeaderHost

from kbroker.config.table.rules import RACK_AWARE_SELECTOR
from kbroker.errors import ErrorCode
from kbroker.ipc.calls import IsrResult, IsrState

pytestmark = pytest.mark.unit

UNKNOWN, NOBODY = 2**63 - 1, -1
Make = Callable[..., LeaderHost]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Make]:
    made: list[LeaderHost] = []

    def make(isr: list[int], selector: str = RACK_AWARE_SELECTOR, **more: Any) -> LeaderHost:
        more = {"replicas": [ME, 2, 3], "replica_selector_class": selector, **more}
        made.append(LeaderHost(tmp_path, isr=isr, **more))
        return made[-1]

    yield make
    for one in made:
        one.close()


def shown(leader: LeaderHost) -> tuple[int, int]:
    return leader.store.table.followers(0)


def test_followers_are_shown_once_all_in_sync_have_fetched(host: Make) -> None:
    leader = host([ME, 2, 3])
    assert shown(leader)[0] == UNKNOWN
    leader.fetch(2, 0)
    assert shown(leader)[0] == UNKNOWN
    leader.fetch(3, 0)
    assert shown(leader) == (0, 3)


def test_most_caught_up_is_the_one_with_the_highest_log_end(host: Make) -> None:
    leader = host([ME, 2, 3])
    leader.fetch(2, 0)
    leader.fetch(3, 0)
    leader.append(2)
    leader.fetch(2, 1)
    assert shown(leader) == (0, 2)
    leader.fetch(3, 2)
    assert shown(leader) == (0, 3)
    leader.fetch(2, 2)
    assert shown(leader) == (0, 3), "equals: the highest id"


def test_log_start_is_the_highest_of_those_in_sync(host: Make) -> None:
    leader = host([ME, 2], replicas=[ME, 2, 3])
    leader.append(5)
    leader.fetch(2, 3, log_start=1)
    leader.fetch(3, 2, log_start=2)
    assert shown(leader) == (1, 2)


def test_replica_that_joins_is_shown(host: Make) -> None:
    leader = host([ME, 2])
    leader.append(5)
    leader.fetch(2, 4)
    leader.fetch(3, 5, log_start=2)
    assert shown(leader) == (0, 2)

    asked = leader.asked()
    asked.pending.resolve([IsrResult(ErrorCode.NONE, IsrState(ME, 1, [ME, 2, 3], 1))])
    leader.turn()

    assert shown(leader) == (2, 3)


def test_next_leader_epoch_begins_without_knowing_followers(host: Make) -> None:
    leader = host([ME, 2])
    leader.fetch(2, 0)
    assert shown(leader) == (0, 2)

    leader.tell(leader_epoch=2, partition_epoch=2)

    assert shown(leader)[0] == UNKNOWN


def test_nothing_is_shown_without_a_selector(host: Make) -> None:
    leader = host([ME, 2], selector="")
    leader.append(5)
    leader.fetch(2, 3)

    assert shown(leader) == (UNKNOWN, NOBODY), "as the slot began"
