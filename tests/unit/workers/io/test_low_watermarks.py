"""A DeleteRecords waits until every live replica has deleted the records, or for its time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.replication.leader_host import ME, LeaderHost

from kbroker.errors import ErrorCode
from kbroker.ipc.calls import AwaitedDeletion, Questions, RecordDeletion
from kbroker.ipc.rpc import Pending, run
from kbroker.types import Offset, SlotId
from kbroker.workers.base import now_ms

pytestmark = pytest.mark.unit

Make = Callable[..., LeaderHost]
NOBODY: Any = None


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Make]:
    made: list[LeaderHost] = []

    def make(replicas: list[int]) -> LeaderHost:
        leader = LeaderHost(tmp_path, isr=replicas, replicas=replicas)
        made.append(leader)
        leader.append(5)
        follow(leader, *replicas[1:])
        return leader

    yield make
    for one in made:
        one.close()


def follow(leader: LeaderHost, *brokers: int, start: int = 0, **more: Any) -> None:
    """They fetch from the log end; their logs start at ``start``."""
    for broker in brokers:
        leader.fetch(broker, 5, log_start=start, **more)


def delete(leader: LeaderHost, offset: int) -> int:
    """The low watermark at once."""
    return leader.partition_calls.delete_records(
        RecordDeletion(SlotId(0), Offset(offset))
    ).low_watermark


def wait(leader: LeaderHost, *offsets: int) -> Pending[Any]:
    """For low watermarks of the partition."""
    asked = [AwaitedDeletion(SlotId(0), Offset(one), now_ms() + 60_000) for one in offsets]
    return run(leader.low_watermarks.serve(NOBODY, Questions(asked)))


def found(outcome: Pending[Any]) -> list[int]:
    """The low watermarks, and errors as negative numbers."""
    assert outcome.done and outcome.error is None
    errors = {failure.number: -failure.error for failure in outcome.value.failures}
    return [
        errors.get(number, None if one is None else one.low_watermark)
        for number, one in enumerate(outcome.value.results)
    ]


def test_records_are_deleted_when_every_follower_says_so(host: Make) -> None:
    leader = host([ME, 2, 3])

    assert delete(leader, 4) == 0
    outcome = wait(leader, 3, 4)
    assert leader.log.log_start_offset == 4
    follow(leader, 2, start=4)
    assert not outcome.done
    follow(leader, 3, start=3)
    assert not outcome.done
    follow(leader, 3, start=4)

    assert found(outcome) == [3, 4]
    assert found(wait(leader, 4)) == [4]


def test_partition_with_one_replica_does_not_wait(host: Make) -> None:
    leader = host([ME])

    assert delete(leader, 4) == 4
    assert found(wait(leader, 4)) == [4]


def test_follower_on_a_broker_that_is_dead_is_not_waited_for(host: Make) -> None:
    leader = host([ME, 2, 3])
    delete(leader, 4)
    outcome = wait(leader, 4)
    follow(leader, 2, start=4)

    leader.live = [ME, 2]
    leader.tell()
    leader.low_watermarks.on_brokers()

    assert found(outcome) == [4]


def test_replica_that_is_not_assigned_any_more_is_not_waited_for(host: Make) -> None:
    leader = host([ME, 2, 3])
    delete(leader, 4)
    outcome = wait(leader, 4)
    follow(leader, 2, start=4)

    leader.tell(replicas=[ME, 2], isr=[ME, 2], leader_epoch=2)
    follow(leader, 2, start=4, leader_epoch=2)

    assert found(outcome) == [4]


def test_replica_that_has_not_fetched_in_this_leader_epoch_is_waited_for(host: Make) -> None:
    """Its log may have been replaced."""
    leader = host([ME, 2])
    delete(leader, 4)
    follow(leader, 2, start=4)
    leader.tell(leader_epoch=2)

    assert delete(leader, 4) == -1
    outcome = wait(leader, 4)
    assert not outcome.done
    follow(leader, 2, start=4, leader_epoch=2)

    assert found(outcome) == [4]


def test_wait_ends_when_its_time_is_up(host: Make) -> None:
    leader = host([ME, 2])
    delete(leader, 4)
    outcome = wait(leader, 0, 4)

    leader.sleeping[-1].resolve()

    assert found(outcome) == [0, -ErrorCode.REQUEST_TIMED_OUT]
    follow(leader, 2, start=4)
    assert found(wait(leader, 4)) == [4]


def test_wait_ends_with_an_error_when_another_broker_leads(host: Make) -> None:
    leader = host([ME, 2])
    delete(leader, 4)
    outcome = wait(leader, 4)

    leader.tell(leader=2, leader_epoch=2)

    assert found(outcome) == [-ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert found(wait(leader, 0)) == [-ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_wait_ends_with_an_error_when_the_log_directory_fails(host: Make) -> None:
    leader = host([ME, 2])
    delete(leader, 4)
    outcome = wait(leader, 4)

    leader.low_watermarks.fail(0, ErrorCode.KAFKA_STORAGE_ERROR)

    assert found(outcome) == [-ErrorCode.KAFKA_STORAGE_ERROR]
