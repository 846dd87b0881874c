"""What a leader knows of its followers: the high watermark, and who may be in sync."""

from __future__ import annotations

import mmap

import pytest
from support.replication.follower_entries import ATTACHED, LEFT, PROGRESS, entry

from kbroker._ext.log.replica_set import ReplicaSet
from kbroker._ext.shared import session_times
from kbroker._ext.shared.session_times import SessionTimes

pytestmark = pytest.mark.unit

LAG_MS = 1000
START_MS = 5_000


class Leader:
    """Leads in epoch 1 since START_MS; replicas 2 and 3 are in sync, 4 is only assigned."""

    def __init__(self, log_end: int = 100, high_watermark: int = 50) -> None:
        self.times = SessionTimes(mmap.mmap(-1, session_times.region_size(2)), 0)
        self.set = ReplicaSet(self.times, LAG_MS)
        self.log_end = log_end
        self.high_watermark = high_watermark
        self.now_ms = START_MS
        self.set.begin_epoch(1, log_end, log_end, self.now_ms)
        self.set.set_assigned([2, 3, 4])
        self.set.set_in_sync([2, 3], [2, 3], self.now_ms)

    def fetch(self, replica: int, offset: int, *, cell: int = -1, flags: int = PROGRESS) -> bool:
        """The replica asks for that offset; whether the ISR has to be checked."""
        said = entry(replica, offset, seen=self.log_end, at_ms=self.now_ms, cell=cell, flags=flags)
        _, check = self.set.note_entry(said, 0, self.high_watermark, self.now_ms)
        self.turn()
        return check

    def append(self, count: int) -> None:
        self.log_end += count
        self.turn()

    def turn(self) -> int:
        found = self.set.high_watermark(self.log_end, self.high_watermark, self.now_ms)
        self.high_watermark = found
        return found


@pytest.fixture
def leader() -> Leader:
    return Leader()


def test_high_watermark_is_the_lowest_end_of_those_in_sync(leader: Leader) -> None:
    leader.fetch(2, 80)
    assert leader.high_watermark == 50, "nobody knows where replica 3 is"
    leader.fetch(3, 70)
    assert leader.high_watermark == 70
    leader.fetch(3, 100)
    assert leader.high_watermark == 80


def test_high_watermark_never_falls(leader: Leader) -> None:
    leader.fetch(2, 90)
    leader.fetch(3, 90)
    leader.fetch(3, 60)
    assert leader.high_watermark == 90


def test_replica_that_was_caught_up_holds_the_high_watermark_for_the_lag_time(
    leader: Leader,
) -> None:
    """It is about to join: what is committed now, it must have then."""
    for replica in (2, 3, 4):
        leader.fetch(replica, 100)
    leader.append(10)
    leader.fetch(2, 110)
    leader.fetch(3, 110)
    assert leader.high_watermark == 100

    leader.now_ms += LAG_MS
    assert leader.turn() == 100
    leader.now_ms += 1
    assert leader.turn() == 110


def test_replica_that_is_not_assigned_moves_nothing(leader: Leader) -> None:
    assert not leader.fetch(9, 100)
    leader.append(10)
    leader.fetch(2, 110)
    leader.fetch(3, 110)
    assert leader.high_watermark == 110


def test_where_an_unknown_replica_is_counts_once_it_is_assigned(leader: Leader) -> None:
    """Its fetches may come before the leader hears that it has a replica."""
    leader.fetch(9, 100)
    leader.set.set_assigned([2, 3, 4, 9])
    assert leader.set.joining(leader.high_watermark, leader.now_ms) == [9]


def test_of_unknown_replicas_the_last_eight_are_remembered(leader: Leader) -> None:
    for number in range(9):
        leader.now_ms += 1
        leader.fetch(20 + number, 100)
    known = [number for number in range(20, 29) if leader.set.describe(number)]
    assert known == list(range(21, 29))
    assert leader.set.describe(4) is not None


def test_pending_member_holds_the_high_watermark_as_if_it_were_in_sync(leader: Leader) -> None:
    """The controller may have agreed already."""
    leader.set.set_in_sync([2], [2, 4], leader.now_ms)
    leader.fetch(2, 100)
    leader.now_ms += 10 * LAG_MS
    assert leader.turn() == 50
    leader.fetch(4, 70)
    assert leader.high_watermark == 70


def test_progress_of_another_leader_epoch_is_not_counted(leader: Leader) -> None:
    """The log that it speaks of may not be a prefix of the leader's."""
    for epoch in (0, 2):
        said = entry(2, 100, seen=100, at_ms=START_MS, leader_epoch=epoch)
        assert leader.set.note_entry(said, 0, 50, START_MS) == (False, False)
    known = leader.set.describe(2)
    assert known is not None
    assert known["end"] == -1


def test_new_leader_epoch_forgets_where_replicas_are(leader: Leader) -> None:
    for replica in (2, 3):
        leader.fetch(replica, 100)
    leader.now_ms += 10 * LAG_MS
    leader.set.begin_epoch(2, 100, 100, leader.now_ms)
    leader.set.set_in_sync([2, 3], [2, 3], leader.now_ms)
    leader.append(10)

    assert leader.high_watermark == 100
    assert leader.set.lagging(leader.now_ms + LAG_MS) == {}, "they are caught up as of now"
    assert leader.set.lagging(leader.now_ms + LAG_MS + 1) == {2: LAG_MS + 1, 3: LAG_MS + 1}


# -- joining and leaving --


def test_replica_joins_when_it_has_what_is_committed_and_this_epochs_start(
    leader: Leader,
) -> None:
    leader.append(20)
    leader.fetch(2, 110)
    leader.fetch(3, 110)
    assert not leader.fetch(4, 109), "it lacks what is committed"
    assert leader.fetch(4, 110)
    assert leader.set.joining(leader.high_watermark, leader.now_ms) == [4]


def test_replica_that_has_not_reached_the_epochs_start_may_not_join(leader: Leader) -> None:
    assert leader.high_watermark == 50
    assert not leader.fetch(4, 99)
    assert leader.fetch(4, 100)


def test_replica_may_not_join_while_a_change_is_on_its_way(leader: Leader) -> None:
    leader.set.is_changing = True
    assert not leader.fetch(4, 100)


def test_replica_that_was_refused_is_not_proposed_before_its_time(leader: Leader) -> None:
    leader.set.retry_at(4, leader.now_ms + 1)
    assert not leader.fetch(4, 100)
    leader.now_ms += 1
    assert leader.fetch(4, 100)

    leader.set.retry_at(4)
    assert not leader.fetch(4, 100)
    leader.set.retry_all()
    assert leader.fetch(4, 100)


def test_replica_in_sync_that_fetches_below_the_high_watermark_has_lost_records(
    leader: Leader,
) -> None:
    leader.fetch(2, 100)
    leader.fetch(3, 100)
    assert leader.fetch(3, 99)
    assert leader.set.short(leader.high_watermark) == [3]


def test_replica_lags_when_it_was_caught_up_too_long_ago(leader: Leader) -> None:
    leader.fetch(2, 100)
    leader.fetch(3, 100)
    leader.append(1)
    leader.now_ms += LAG_MS
    leader.fetch(2, 101)
    assert leader.set.lagging(leader.now_ms) == {}
    leader.now_ms += 1
    assert leader.set.lagging(leader.now_ms) == {3: LAG_MS + 1}


def test_replica_at_the_log_end_does_not_lag_however_long_it_is_silent(leader: Leader) -> None:
    leader.fetch(2, 100)
    leader.fetch(3, 100)
    assert leader.set.lagging(leader.now_ms + 100 * LAG_MS) == {}


def test_busy_follower_is_caught_up_by_what_it_had_at_its_last_request(leader: Leader) -> None:
    """Never quite at the end, but never far behind, as in Kafka."""
    for replica in (2, 3):
        leader.fetch(replica, 100)
    for _ in range(5):
        leader.append(10)
        leader.now_ms += LAG_MS
        leader.fetch(2, leader.log_end - 10)
        leader.fetch(3, leader.log_end)
        assert leader.set.lagging(leader.now_ms) == {}
    leader.append(10)
    leader.now_ms += 2
    assert leader.set.lagging(leader.now_ms) == {2: LAG_MS + 2}


# -- sessions --


def test_silent_replica_was_caught_up_until_its_sessions_last_request(leader: Leader) -> None:
    """An idle partition sends no messages: only the session's time says that it was there."""
    cell = leader.times.take_cell(leader.now_ms)
    leader.fetch(2, 100, cell=cell, flags=ATTACHED | PROGRESS)
    leader.fetch(3, 100)
    leader.now_ms += 50 * LAG_MS
    leader.times.note_request(cell, leader.now_ms)
    leader.now_ms += 10

    leader.append(1)

    assert leader.set.lagging(leader.now_ms) == {3: 50 * LAG_MS + 10}
    assert leader.set.lagging(leader.now_ms + LAG_MS)[2] == LAG_MS + 10


def test_session_that_has_left_was_there_until_its_last_request(leader: Leader) -> None:
    cell = leader.times.take_cell(leader.now_ms)
    leader.fetch(2, 100, cell=cell, flags=ATTACHED | PROGRESS)
    leader.now_ms += 5 * LAG_MS
    gone = entry(2, at_ms=leader.now_ms, leader_epoch=-1, cell=cell, flags=LEFT)
    leader.set.note_entry(gone, 0, leader.high_watermark, leader.now_ms)
    leader.times.free_cell(cell)
    leader.append(1)

    assert 2 not in leader.set.lagging(leader.now_ms + LAG_MS)
    assert leader.set.lagging(leader.now_ms + LAG_MS + 1)[2] == LAG_MS + 1


def test_sessions_of_a_network_process_that_died_were_there_until_then(leader: Leader) -> None:
    cell = leader.times.take_cell(leader.now_ms)
    leader.fetch(2, 100, cell=cell, flags=ATTACHED | PROGRESS)
    leader.now_ms += 5 * LAG_MS
    leader.set.end_sessions(1, leader.now_ms)
    known = leader.set.describe(2)
    assert known is not None
    assert known["session"] == cell, "it is of another process"
    leader.set.end_sessions(0, leader.now_ms)
    leader.append(1)

    assert 2 not in leader.set.lagging(leader.now_ms + LAG_MS)


def test_word_of_an_earlier_session_changes_nothing(leader: Leader) -> None:
    """The follower has reconnected through another network process."""
    leader.fetch(2, 60, cell=3, flags=ATTACHED | PROGRESS)
    leader.fetch(2, 90, cell=700, flags=ATTACHED | PROGRESS)
    leader.fetch(2, 70, cell=3)
    gone = entry(2, at_ms=leader.now_ms, leader_epoch=-1, cell=3, flags=LEFT)
    leader.set.note_entry(gone, 0, leader.high_watermark, leader.now_ms)

    known = leader.set.describe(2)
    assert known is not None
    assert (known["end"], known["session"]) == (90, 700)
