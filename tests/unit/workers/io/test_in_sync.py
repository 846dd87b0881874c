"""Who is in sync with a leader: what it asks the controller for, and what it commits meanwhile."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.replication.leader_host import ME, LeaderHost
from support.storage.log_store import batch

from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.calls import IsrResult, IsrState, WantedIsr
from kbroker.workers.io import in_sync

pytestmark = pytest.mark.unit

Make = Callable[..., LeaderHost]
MIN_TWO = {"min.insync.replicas": "2"}


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Make]:
    made: list[LeaderHost] = []

    def make(isr: list[int], replicas: list[int] | None = None, **more: Any) -> LeaderHost:
        made.append(LeaderHost(tmp_path, isr=isr, replicas=replicas or [ME, 2, 3], **more))
        return made[-1]

    yield make
    for one in made:
        one.close()


def done(isr: list[int], partition_epoch: int) -> list[IsrResult]:
    return [IsrResult(ErrorCode.NONE, IsrState(ME, 1, isr, partition_epoch))]


def grown_old(monkeypatch: pytest.MonkeyPatch, by_ms: int = 60_000) -> None:
    """What happens next happened that long ago."""
    monkeypatch.setattr(in_sync, "now_ms", lambda: time.monotonic_ns() // 1_000_000 - by_ms)


# -- acks=all --


def test_produce_is_acknowledged_when_every_replica_in_sync_has_it(host: Make) -> None:
    leader = host([ME, 2, 3])
    leader.produce(7)
    assert leader.results() == []
    leader.fetch(2, 1)
    assert leader.results() == []
    leader.fetch(3, 1)
    assert leader.results() == [(7, 0)]
    assert leader.high_watermark[0] == 1


def test_high_watermark_has_the_place_that_the_fetch_was_read_from(host: Make) -> None:
    leader = host([ME, 2], [ME, 2])
    leader.append(3)
    version = leader.store.slot()["segment_version"]
    leader.fetch(2, 2, place=(0, 2 * len(batch())), segment_version=version)
    assert leader.high_watermark == (2, 0, 2 * len(batch()))


@pytest.mark.parametrize("place", [(-1, -1), (0, 12345)])
def test_place_of_the_high_watermark_is_looked_up_when_it_is_not_known(
    host: Make, place: tuple[int, int]
) -> None:
    """Segments may have been exchanged since the fetch was read."""
    leader = host([ME, 2], [ME, 2])
    leader.append(3)
    leader.fetch(2, 2, place=place, segment_version=10_000)
    assert leader.high_watermark == (2, 0, 2 * len(batch()))


def test_partition_without_other_replicas_has_no_replica_set(host: Make) -> None:
    leader = host([ME], [ME])
    leader.produce(7)
    assert leader.results() == [(7, 0)]
    assert leader.log.appender.replicas is None


def test_leader_that_is_alone_in_sync_commits_by_itself(host: Make) -> None:
    leader = host([ME])
    leader.produce(7)
    assert leader.results() == [(7, 0)]


def test_too_few_in_sync_reject_a_produce_before_it_is_appended(host: Make) -> None:
    leader = host([ME, 2])
    leader.document["config"] = {"min.insync.replicas": "3"}
    leader.tell()
    leader.produce(7)
    assert leader.results() == [(7, ErrorCode.NOT_ENOUGH_REPLICAS)]
    assert leader.log.log_end_offset == 0


def test_produce_that_waits_when_the_isr_becomes_too_small_is_told_so(
    host: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown_old(monkeypatch)
    leader = host([ME, 2, 3])
    monkeypatch.undo()
    leader.document["config"] = {"min.insync.replicas": "3"}
    leader.tell()
    leader.produce(7)
    leader.fetch(2, 1)
    leader.in_sync.tick(1 << 62)
    leader.asked().pending.resolve(done([ME, 2], 1))
    assert leader.results() == [(7, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)]


def test_leader_that_is_followed_by_another_leader_fails_what_waits(host: Make) -> None:
    leader = host([ME, 2, 3])
    leader.produce(7)
    leader.tell(leader=2, leader_epoch=2)
    assert leader.results() == [(7, ErrorCode.NOT_LEADER_OR_FOLLOWER)]
    assert leader.log.appender.replicas is None


# -- joining --


def test_follower_that_has_caught_up_is_proposed_once(host: Make) -> None:
    leader = host([ME, 2])
    leader.append(4)
    leader.fetch(2, 4)
    leader.fetch(3, 2)
    assert not leader.is_asking
    leader.fetch(3, 4)
    leader.fetch(3, 4)

    assert leader.asked().wanted == [WantedIsr("t", 0, 1, [ME, 2, 3], 0)]


def test_nothing_is_committed_without_a_replica_that_may_have_joined(host: Make) -> None:
    leader = host([ME, 2])
    leader.fetch(2, 0)
    leader.fetch(3, 0)
    assert leader.wanted() == [ME, 2, 3]
    leader.produce(7)
    leader.fetch(2, 1)
    assert leader.results() == []
    leader.fetch(3, 1)
    assert leader.results() == [(7, 0)]


def test_replica_that_has_joined_counts_for_acks_all(host: Make) -> None:
    leader = host([ME])
    leader.document["config"] = MIN_TWO
    leader.tell()
    leader.produce(6)
    assert leader.results() == [(6, ErrorCode.NOT_ENOUGH_REPLICAS)]
    leader.fetch(2, 0)
    leader.produce(7)
    assert leader.results() == [(7, ErrorCode.NOT_ENOUGH_REPLICAS)], "the controller says nothing"

    leader.asked().pending.resolve(done([ME, 2], 1))
    leader.produce(8)
    leader.fetch(2, 1)

    assert leader.results() == [(8, 0)]


def test_replica_on_a_broker_that_does_not_live_waits_until_it_does(host: Make) -> None:
    leader = host([ME, 2])
    leader.live = [ME, 2]
    leader.image.brokers.pop(3)  # type: ignore[call-overload]
    leader.fetch(2, 0)
    leader.fetch(3, 0)
    assert not leader.is_asking

    leader.live = [ME, 2, 3]
    leader.tell()
    leader.in_sync.on_brokers()

    assert leader.wanted() == [ME, 2, 3]


def test_two_that_catch_up_are_proposed_together_or_one_after_the_other(host: Make) -> None:
    leader = host([ME])
    leader.fetch(2, 0)
    assert leader.wanted() == [ME, 2]
    leader.fetch(3, 0)
    leader.asked().pending.resolve(done([ME, 2], 1))
    assert leader.asked().wanted == [WantedIsr("t", 0, 1, [ME, 2, 3], 1)]


def test_refused_replica_is_not_proposed_again_before_the_next_role(host: Make) -> None:
    """Otherwise each of its fetches would ask."""
    leader = host([ME, 2])
    leader.fetch(2, 0)
    leader.fetch(3, 0)
    leader.asked().pending.resolve(done([ME, 2], 0))
    leader.fetch(3, 0)
    assert not leader.is_asking

    leader.tell(leader_epoch=2)
    leader.fetch(2, 0, leader_epoch=2)
    leader.fetch(3, 0, leader_epoch=2)
    assert leader.asked().wanted == [WantedIsr("t", 0, 2, [ME, 2, 3], 0)]


# -- leaving --


def test_replica_that_is_behind_for_too_long_leaves_and_holds_nothing_back(
    host: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    grown_old(monkeypatch)
    leader = host([ME, 2, 3])
    monkeypatch.undo()
    leader.produce(7)
    leader.fetch(2, 1)
    assert not leader.is_asking, "it is looked for now and then"

    with caplog.at_level(logging.INFO, in_sync.__name__):
        leader.in_sync.tick(1 << 62)
        assert leader.wanted() == [ME, 2]
        assert leader.results() == [], "the controller has not agreed"
        leader.asked().pending.resolve(done([ME, 2], 1))
        assert leader.results() == [(7, 0)]

    first, second = [record.getMessage() for record in caplog.records]
    assert "t-0: asking for in-sync replicas [0, 2] instead of [0, 2, 3] because broker 3" in first
    assert "t-0: in-sync replicas are now [0, 2] (partition epoch 1)" in second


def test_replica_that_has_lost_records_leaves_at_once(host: Make) -> None:
    leader = host([ME, 2, 3])
    leader.append(4)
    leader.fetch(2, 4)
    leader.fetch(3, 4)
    assert not leader.is_asking
    leader.fetch(3, 1)
    assert leader.wanted() == [ME, 2]


def test_changes_and_partitions_with_a_replica_behind_are_counted(host: Make) -> None:
    leader = host([ME, 2])
    assert leader.in_sync.under_replicated == 1
    leader.fetch(2, 0)
    leader.fetch(3, 0)
    leader.asked().pending.resolve(done([ME, 2, 3], 1))
    assert (leader.in_sync.under_replicated, leader.in_sync.expands) == (0, 1)
    leader.append(4)
    leader.fetch(2, 4)
    leader.fetch(3, 4)
    leader.fetch(3, 1)
    leader.asked().pending.resolve(done([ME, 2], 2))
    assert (leader.in_sync.under_replicated, leader.in_sync.shrinks) == (1, 1)
    leader.tell(leader=2, leader_epoch=2)
    assert leader.in_sync.under_replicated == 0


def test_partitions_with_too_few_replicas_in_sync_are_counted(host: Make) -> None:
    leader = host([ME, 2], min_insync_replicas="2")
    assert leader.hosted.under_min_isr == 0
    leader.append(4)
    leader.fetch(2, 4)
    leader.fetch(2, 1)
    leader.asked().pending.resolve(done([ME], 1))
    assert leader.hosted.under_min_isr == 1
    leader.tell(leader=2, leader_epoch=2)
    assert leader.hosted.under_min_isr == 0


# -- the controller's answers --


@pytest.mark.parametrize(
    "error", [ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
)
def test_leader_that_is_fenced_waits_for_its_next_role(host: Make, error: ErrorCode) -> None:
    leader = host([ME, 2])
    leader.fetch(2, 0)
    leader.fetch(3, 0)
    leader.asked().pending.resolve([IsrResult(error)])
    leader.fetch(3, 0)
    assert not leader.is_asking
    leader.produce(7)
    leader.fetch(2, 1)
    assert leader.results() == [], "it may have joined"

    leader.tell(leader_epoch=2, isr=[ME, 2], partition_epoch=4)
    leader.fetch(2, 1, leader_epoch=2)

    assert leader.results() == [(7, 0)]


def test_call_that_failed_is_made_again(host: Make) -> None:
    leader = host([ME, 2])
    leader.fetch(2, 0)
    leader.fetch(3, 0)
    first = leader.asked()
    first.pending.resolve(error=WireError(ErrorCode.REQUEST_TIMED_OUT, "no answer"))
    assert not leader.is_asking
    leader.sleeping.pop().resolve()
    assert leader.asked().wanted == first.wanted


def test_response_that_comes_after_the_next_role_changes_nothing(host: Make) -> None:
    leader = host([ME, 2])
    leader.fetch(2, 0)
    leader.fetch(3, 0)
    late = leader.asked()
    leader.tell(leader_epoch=2, isr=[ME, 2], partition_epoch=4)
    late.pending.resolve(done([ME, 2, 3], 1))
    leader.produce(7)
    leader.fetch(2, 1, leader_epoch=2)
    assert leader.results() == [(7, 0)]


# -- another leader epoch, another process --


def test_replicas_count_in_a_new_epoch_once_they_have_fetched_in_it(host: Make) -> None:
    leader = host([ME, 2], [ME, 2])
    leader.append(2)
    leader.fetch(2, 2)
    leader.tell(leader_epoch=2)
    leader.produce(7)
    leader.fetch(2, 3, leader_epoch=1)
    assert leader.results() == []
    leader.fetch(2, 3, leader_epoch=2)
    assert leader.results() == [(7, 0)]


def test_process_that_starts_counts_on_what_its_predecessor_asked_for(host: Make) -> None:
    """The controller may have agreed: nothing may be committed without the new member."""
    before = WantedIsr("t", 0, 1, [ME, 2, 3], 0)
    leader = host([ME, 2], asked_before=[before])
    assert leader.asked().wanted == [before]
    leader.produce(7)
    leader.fetch(2, 1)
    assert leader.results() == []
    leader.asked().pending.resolve(done([ME, 2], 0))
    assert leader.results() == [(7, 0)]


def test_followers_of_logs_that_are_not_open_yet_are_counted_when_they_are(host: Make) -> None:
    """A network process says once where its sessions are, as soon as this process has started."""
    leader = host([ME, 2], [ME, 2], opening=True)
    leader.loop.remove(0)
    leader.fetch(2, 0)
    leader.loop.put(leader.log.appender)
    leader.loop.admit_followers(0)
    leader.produce(7)
    leader.fetch(2, 1)
    assert leader.results() == [(7, 0)]


def test_entry_of_an_earlier_replica_of_the_slot_is_dropped(host: Make) -> None:
    leader = host([ME, 2], [ME, 2])
    leader.produce(7)
    leader.fetch(2, 1, incarnation=9)
    assert leader.results() == []


# -- brokers that are gone --


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def test_follower_that_is_gone_leaves_and_holds_nothing_back(host: Make) -> None:
    """It was caught up just now, for which the high watermark waits otherwise."""
    leader = host([ME, 2, 3])
    leader.fetch(2, 0)
    leader.fetch(3, 0)
    leader.produce(7)
    leader.fetch(2, 1)
    assert leader.results() == []
    leader.in_sync.follower_gone(3, now_ms())
    assert leader.wanted() == [ME, 2]
    assert leader.results() == [], "the controller has not agreed"
    leader.asked().pending.resolve(done([ME, 2], 1))
    assert leader.results() == [(7, 0)]
    assert not leader.is_asking


def test_follower_that_is_gone_does_not_join_again_before_it_fetches(host: Make) -> None:
    """It has all records and is registered, as the controller knows nothing of its end."""
    leader = host([ME, 2, 3])
    leader.fetch(3, 0, cell=leader.times.take_cell(now_ms() - 6_000))
    leader.in_sync.follower_gone(3, now_ms() - 5_000)
    leader.asked().pending.resolve(done([ME, 2], 1))
    assert not leader.is_asking


def test_min_insync_replicas_counts_without_a_follower_that_is_gone(host: Make) -> None:
    leader = host([ME, 2, 3])
    leader.document["config"] = {"min.insync.replicas": "3"}
    leader.tell()
    leader.produce(7)
    leader.fetch(2, 1)
    leader.in_sync.follower_gone(3, now_ms())
    leader.asked().pending.resolve(done([ME, 2], 1))
    assert leader.results() == [(7, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)]


def test_follower_that_still_fetches_stays(host: Make) -> None:
    """Its listener cannot be reached from here, but it reaches this broker."""
    leader = host([ME, 2, 3])
    cell = leader.times.take_cell(now_ms())
    leader.fetch(3, 0, cell=cell)
    closed_ms = now_ms() - 5_000
    assert leader.in_sync.follower_gone(3, closed_ms) > closed_ms
    assert not leader.is_asking


def test_follower_is_dropped_after_a_change_that_was_under_way(host: Make) -> None:
    leader = host([ME, 3])
    leader.fetch(2, 0)
    assert leader.wanted() == [ME, 3, 2]
    leader.in_sync.follower_gone(3, now_ms())
    leader.asked().pending.resolve(done([ME, 3, 2], 1))
    assert leader.wanted() == [ME, 2]


def test_follower_that_is_back_joins_as_any_other(host: Make) -> None:
    leader = host([ME, 2, 3])
    leader.in_sync.follower_gone(3, now_ms() - 5_000)
    leader.asked().pending.resolve(done([ME, 2], 1))
    leader.fetch(3, 0, cell=leader.times.take_cell(now_ms()))
    assert leader.wanted() == [ME, 2, 3]
    leader.asked().pending.resolve(done([ME, 2, 3], 2))
    assert not leader.is_asking


# -- silence --

LAG_MS = 30_000


def silent_from(host: Make, times: list[int], monkeypatch: pytest.MonkeyPatch, **more: Any) -> Any:
    """A leader whose followers have fetched, and a record that waits for both; its process ticks at
    these times after that, in ms.
    """
    start_ms = now_ms()
    leader = host([ME, 2, 3], **more)
    for follower in (2, 3):
        leader.fetch(follower, 0, cell=leader.times.take_cell(start_ms))
    leader.in_sync.tick(start_ms)
    leader.produce(7)
    for after_ms in times:
        monkeypatch.setattr(in_sync, "now_ms", lambda after_ms=after_ms: start_ms + after_ms)
        leader.times.note_request(0, start_ms + after_ms)  # the first one asks all the time
        leader.in_sync.tick(start_ms + after_ms)
        leader.in_sync.end_turn()
    return leader


def test_follower_that_is_silent_for_a_third_of_the_time_leaves(
    host: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    steps = list(range(0, LAG_MS // 2 + 500, 250))
    leader = silent_from(host, steps, monkeypatch, min_insync_replicas="2")
    assert leader.wanted() == [ME, 2]
    (line,) = [r.getMessage() for r in caplog.records if "asked for nothing" in r.getMessage()]
    assert "because broker 3 has asked for nothing for" in line
    leader.fetch(2, 1)
    leader.asked().pending.resolve(done([ME, 2], 1))
    assert leader.results() == [(7, 0)], "it holds nothing back any more"


def test_follower_that_is_silent_for_less_stays(
    host: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that stands still for seconds is waited for."""
    steps = list(range(0, LAG_MS // 3 + 1, 250))
    assert not silent_from(host, steps, monkeypatch).is_asking


def test_silent_follower_stays_if_too_few_are_in_sync_without_it(
    host: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = list(range(0, LAG_MS // 2 + 500, 250))
    leader = silent_from(host, steps, monkeypatch, min_insync_replicas="3")
    assert not leader.is_asking


def test_leader_that_has_stood_still_knows_of_nobodys_silence(
    host: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What followers have asked meanwhile is in its sockets."""
    leader = silent_from(host, [0, LAG_MS // 2, LAG_MS // 2 + 5_001], monkeypatch)
    assert not leader.is_asking


def test_follower_that_has_everything_may_be_silent(
    host: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = host([ME, 2, 3])
    start_ms = now_ms()
    for after_ms in range(0, LAG_MS // 2, 250):
        monkeypatch.setattr(in_sync, "now_ms", lambda after_ms=after_ms: start_ms + after_ms)
        leader.in_sync.tick(start_ms + after_ms)
    assert not leader.is_asking


def test_follower_whose_request_waits_for_long_is_not_silent(
    host: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its replica.fetch.min.bytes may keep it here for replica.fetch.wait.max.ms."""
    steps = list(range(0, LAG_MS // 2 + 500, 250))
    leader = silent_from(host, steps, monkeypatch, replica_fetch_wait_max_ms="10000")
    assert not leader.is_asking
