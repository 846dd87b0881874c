"""``KafkaConsumer`` and answers that are late, errors, or about a position that has moved."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from support.clients.consumer_scene import KEY, Scene, batch, values

from kbroker._ext.arrow.arrow_reader import ArrowReader
from kbroker._ext.client.record_reader import RecordReader
from kbroker.client.connections.cluster import Cluster
from kbroker.client.consumer.commits import CommittingMember, ConsumerCommits
from kbroker.client.consumer.lanes import Inbox, Lane
from kbroker.client.consumer.partitions import OffsetAndMetadata
from kbroker.client.errors import CommitFailed, RejectedError, Timeout
from kbroker.errors import ErrorCode
from kbroker.record.builder import BatchBuilder
from kbroker.testing import wait_until

pytestmark = pytest.mark.unit


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    with made.brokers[0], made.brokers[1]:
        yield made
        made.answered.set()


# -- where epochs end (KIP-320)


def test_the_end_of_an_epoch_is_not_compared_with_a_position_in_the_next_one(scene):
    """The leader changes while records of two epochs are in memory, and its answer takes long:
    applied to the position behind them, it would say that the log was truncated.
    """
    scene.log = [(0, batch(0, 3, epoch=0)), (3, batch(3, 3, epoch=1))]
    scene.epoch, scene.ends = 1, {0: 3, 1: 6, 2: 6}
    with scene.consumer(metadata_max_age_ms=20) as consumer:
        found = [int(record.value) for record in consumer.poll(20.0, 1)]
        scene.answered.clear()
        scene.epoch = 2
        wait_until(lambda: consumer.poll(0.01, 0) or scene.end_questions)
        for _ in range(3):
            found += [int(record.value) for record in consumer.poll(0.05)]
        scene.answered.set()
        found += values(consumer, 6 - len(found))
        found += [int(record.value) for record in consumer.poll(0.3)]

    assert found == [0, 1, 2, 3, 4, 5]


def test_an_error_does_not_end_the_check_for_truncation(scene):
    scene.end_errors = [ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER]
    with scene.consumer(metadata_max_age_ms=50) as consumer:
        assert values(consumer, 3) == [0, 1, 2]
        scene.end_of_epoch = 1
        scene.log = [(1, batch(1, 1, epoch=1))]
        scene.leader, scene.epoch = 1, 1

        assert values(consumer, 1) == [1]
        assert len(scene.end_questions) == 3


def test_a_committed_offset_is_compared_before_the_first_fetch(scene):
    """After an unclean election, reading goes on where the committed epoch ended in the new log."""
    scene.committed = 3, 0
    scene.end_of_epoch = 1
    scene.log = [(1, batch(1, 2, epoch=1)), (3, batch(3, 1, epoch=1))]
    scene.leader, scene.epoch = 1, 1
    with scene.consumer(group_id="g", enable_auto_commit=False) as consumer:
        assert values(consumer, 3) == [1, 2, 3]
    assert [(one.leader_epoch, one.current_leader_epoch) for one in scene.end_questions] == [(0, 1)]


def test_a_seek_with_an_epoch_is_compared_before_the_next_fetch(scene):
    scene.end_of_epoch = 1
    scene.log = [(1, batch(1, 2, epoch=1)), (3, batch(3, 1, epoch=1))]
    scene.leader, scene.epoch = 1, 1
    with scene.consumer() as consumer:
        consumer.seek(KEY, OffsetAndMetadata(3, "", 0))

        assert consumer.position(KEY) == 1
        assert values(consumer, 3) == [1, 2, 3]


def test_a_leader_older_than_the_position_is_not_asked(scene):
    """Its metadata is stale: it would say that it does not know the epoch, as if records were
    lost.
    """
    scene.committed = 3, 2
    scene.ends = {2: 3}
    scene.log = [(3, batch(3, 1, epoch=2))]
    with scene.consumer(group_id="g", enable_auto_commit=False) as consumer:
        assert consumer.poll(0.2) == []
        assert scene.end_questions == []
        scene.epoch = 2

        assert values(consumer, 1) == [3]


def test_a_refusal_is_raised_and_not_taken_for_an_answer(scene):
    scene.end_errors = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    scene.ends = {0: 3}
    scene.log.append((3, batch(3, 1)))
    with scene.consumer() as consumer:
        consumer.seek(KEY, 3, 0)
        with pytest.raises(RejectedError, match=r"leader epoch of t-0"):
            consumer.poll(20.0)
        assert values(consumer, 1) == [3]


@pytest.mark.parametrize("skipped", ["control", "aborted"])
def test_the_epoch_of_a_position_is_that_of_the_last_batch_even_if_it_was_skipped(skipped):
    marker = BatchBuilder(
        base_offset=3,
        leader_epoch=7,
        producer_id=5,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
        control=skipped == "control",
    )
    marker.append(b"\0\0\0\0\0\0", key=b"\0\0\0\1")
    records = batch(0, 3, epoch=1) + marker.build()
    aborted = [(5, 3)] if skipped == "aborted" else []

    reader = RecordReader("t", 0, 0)
    reader.load(records, aborted)
    assert reader.read([], 100) == 3
    assert (reader.position, reader.leader_epoch) == (4, 7)

    arrow = ArrowReader("t", 0, 0, 100, ("value",))
    arrow.load(records, aborted)
    while arrow.read() is not None:
        pass
    assert (arrow.next_offset, arrow.leader_epoch) == (4, 7)


def test_what_was_fetched_from_an_old_leader_is_not_returned_after_another_one(scene):
    """The position is in the new leader's log, too; what follows it there is something else."""
    scene.log = [(0, batch(0, 3)), (3, batch(3, 3))]
    with scene.consumer(metadata_max_age_ms=20) as consumer:
        found = [int(record.value) for record in consumer.poll(20.0, 1)]
        scene.log[1] = 3, batch(3, 3, epoch=1, plus=100)
        scene.ends = {0: 3, 1: 6}
        scene.leader, scene.epoch = 1, 1
        wait_until(lambda: consumer.poll(0.01, 0) or scene.end_questions)
        found += values(consumer, 5)

    assert found == [0, 1, 2, 103, 104, 105]


# -- commits


class Committer:
    """A member whose epoch rises. kept: whether it still has what it had."""

    def __init__(self) -> None:
        self.epoch = 4
        self.kept = True

    def identity(self) -> CommittingMember:
        return CommittingMember(self.epoch, "m", None)

    def renewed(self, was: CommittingMember, keys: object) -> CommittingMember | None:
        return self.identity() if self.kept else None


@pytest.fixture
def committing(scene: Scene) -> Iterator[tuple[ConsumerCommits, Committer, Inbox, threading.Event]]:
    """Commits that wait for the event."""
    inbox, held = Inbox(), threading.Event()
    lane = Lane("test", Cluster(scene.brokers[0].bootstrap), inbox)
    lane.run(lambda cluster, seconds: held.wait(20), "a call before", 20.0)
    committer = Committer()
    yield ConsumerCommits("g", lane, committer), committer, inbox, held
    held.set()
    lane.close(5.0)
    inbox.close()


ROWS = {("t", 0): OffsetAndMetadata(10)}


def test_a_commit_that_waited_is_of_the_generation_it_was_made_in(scene, committing):
    commits, committer, _, held = committing
    call = commits.commit(ROWS, 20.0)
    committer.epoch = 5
    held.set()

    wait_until(lambda: call.done)

    assert isinstance(call.error, CommitFailed)
    assert [one.generation_id_or_member_epoch for one in scene.commits] == [4]


@pytest.mark.parametrize("kept", [True, False])
def test_a_stale_epoch_is_renewed_only_if_the_partitions_are_still_the_members(
    scene, committing, kept
):
    commits, committer, _, held = committing
    committer.kept = kept
    scene.commit_error = ErrorCode.STALE_MEMBER_EPOCH
    call = commits.commit(ROWS, 20.0)
    committer.epoch = 5
    held.set()
    wait_until(lambda: scene.commits)
    if kept:
        wait_until(lambda: len(scene.commits) > 1)
    scene.commit_error = ErrorCode.NONE

    wait_until(lambda: call.done)

    epochs = [one.generation_id_or_member_epoch for one in scene.commits]
    assert (epochs[0], set(epochs[1:])) == (4, {5} if kept else set())
    assert (call.error is None) == kept


def test_a_commit_whose_time_passes_before_its_turn_is_never_sent(scene, committing):
    commits, _, _, held = committing
    call = commits.commit(ROWS, 0.01)
    threading.Event().wait(0.05)
    held.set()

    wait_until(lambda: call.done)

    assert isinstance(call.error, Timeout)
    assert scene.commits == []


def test_an_automatic_commit_does_not_wait_for_a_topic_that_is_gone(scene, committing):
    commits, _, _, held = committing
    scene.commit_error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    call = commits.commit(ROWS, 20.0, patient=False)
    held.set()

    wait_until(lambda: call.done)

    assert isinstance(call.error, RejectedError)
    assert len(scene.commits) == 1


# -- threads


def test_whatever_a_call_in_a_lane_raises_is_its_error_and_the_next_one_is_done(scene):
    inbox = Inbox()
    lane = Lane("test", Cluster(scene.brokers[0].bootstrap), inbox)

    def ends(cluster: Cluster, seconds: float) -> None:
        raise SystemExit(3)

    first = lane.run(ends, "the first", 20.0)
    second = lane.run(lambda cluster, seconds: 5, "the second", 20.0)
    wait_until(lambda: second.done)

    assert "SystemExit" in str(first.error)
    assert second.result == 5
    lane.close(5.0)
    inbox.close()
