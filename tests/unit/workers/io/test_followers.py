"""Followers of an io worker, with a scripted leader: what they replicate, and what they do not."""

from __future__ import annotations

import logging
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.replication.follower_host import LEADER, ME, FollowerHost
from support.replication.scripted_leader import ScriptedLeader, cut_points
from support.storage.log_store import break_file

from kbroker._ext.shared.partition_table import FOLLOWER
from kbroker.config.loader import BrokerConfig
from kbroker.errors import ErrorCode
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.fetch import FetchResponse
from kbroker.replication.following import FollowingState
from kbroker.workers.io import leader_link
from kbroker.workers.io.leader_link import EXPECTING_WAIT_MS, Versions

pytestmark = pytest.mark.unit

Make = Callable[..., FollowerHost]


@pytest.fixture
def leader() -> Iterator[ScriptedLeader]:
    with ScriptedLeader() as started:
        yield started


@pytest.fixture
def host(tmp_path: Path, leader: ScriptedLeader) -> Iterator[Make]:
    made: list[FollowerHost] = []

    def make(*more: ScriptedLeader, **options: Any) -> FollowerHost:
        made.append(FollowerHost(tmp_path, leader, *more, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def in_step(host: FollowerHost, leader: ScriptedLeader, slot: int = 0) -> Callable[[], bool]:
    """Whether the follower has the leader's whole log, and knows that it is committed."""
    log = leader.log("t", slot)
    return lambda: host.log(slot).log_end_offset == log.end == host.log(slot).high_watermark


def state(host: FollowerHost, slot: int = 0) -> FollowingState:
    return host.followers.machine(slot).state


# ---- following ----


@pytest.mark.parametrize("fetch", [7, 8, 9, 10, 11, 12])
@pytest.mark.parametrize("epochs", [0, 3])
def test_log_becomes_the_leaders_in_every_version(
    host: Make, leader: ScriptedLeader, fetch: int, epochs: int
) -> None:
    follower = host(versions=Versions(fetch, epochs, 2 if epochs == 0 else 5))
    for size in (1, 5, 1):
        leader.log().append(size)
    follower.publish()
    follower.run_until(in_step(follower, leader))
    leader.log().append(3)
    leader.publish()
    follower.run_until(in_step(follower, leader))
    assert follower.bytes_of() == leader.log().data()
    slot = follower.store.slot()
    assert slot["role"] == FOLLOWER and slot["log_end"][0] == slot["high_watermark"][0] == 10


def test_session_names_only_what_has_changed(host: Make, leader: ScriptedLeader) -> None:
    follower = host(partitions=20)
    for n in range(20):
        leader.log("t", n).append(1)
    follower.publish()
    for n in range(20):
        follower.run_until(in_step(follower, leader, n))
    leader.log("t", 7).append(1)
    leader.publish()
    follower.run_until(in_step(follower, leader, 7))
    before = len(leader.fetches)
    follower.run_until(lambda: len(leader.fetches) >= before + 2)
    named = [[p.partition for t in f.topics for p in t.partitions] for f in leader.fetches]
    assert [len(named[0]), named[-1]] == [20, []]
    assert [7] in named


@pytest.mark.parametrize("keeps", [True, False])
def test_forgotten_session_is_begun_again(host: Make, leader: ScriptedLeader, keeps: bool) -> None:
    follower = host(partitions=3)
    for n in range(3):
        leader.log("t", n).append(1)
    follower.publish()
    follower.run_until(in_step(follower, leader, 2))
    with leader.changed:
        leader.sessions.clear()
        leader.keeps_sessions = keeps
    leader.log("t", 1).append(1)
    follower.run_until(in_step(follower, leader, 1))
    assert [follower.bytes_of(n) for n in range(3)] == [leader.log("t", n).data() for n in range(3)]


def test_high_watermark_is_the_leaders_as_far_as_the_log_goes(
    host: Make, leader: ScriptedLeader
) -> None:
    follower = host()
    log = leader.log()
    for _ in range(12):
        log.append(1)
    log.high_watermark = 5
    follower.publish()
    follower.run_until(lambda: follower.log().high_watermark == 5)
    log.high_watermark = 7
    leader.publish()
    follower.run_until(lambda: follower.log().high_watermark == 7)
    log.high_watermark = 4  # of a leader that was elected since: committed is committed
    log.append(1)
    leader.publish()
    follower.run_until(lambda: follower.log().log_end_offset == 13)
    assert follower.log().high_watermark == 7
    offset, segment, position = follower.store.slot()["high_watermark"]
    assert (offset, segment) == (7, 0)
    assert follower.bytes_of()[position : position + 8] == (7).to_bytes(8, "big")


def test_lag_is_that_of_the_partition_most_behind(host: Make, leader: ScriptedLeader) -> None:
    """Of what is committed; a limit has the second partition end below that at first."""
    follower = host(partitions=2, replica_fetch_response_max_bytes=1000)
    for n in range(2):
        leader.log("t", n).append([b"x" * 2000])
        leader.log("t", n).append(3)
    seen: list[int] = []
    shown: set[tuple[int, ...]] = set()
    follower.publish()

    def catches_up() -> bool:
        seen.append(follower.followers.lag_max)
        shown.add(tuple(follower.figures.lag(n, 1) for n in range(3)))
        return all(in_step(follower, leader, n)() for n in range(2))

    follower.run_until(catches_up)
    assert max(seen) == 4 and follower.followers.lag_max == 0
    # Of each that is copied, once its leader has answered.
    assert (-1, -1, -1) in shown and max(map(max, shown)) == 4
    assert [follower.figures.lag(n, 1) for n in range(3)] == [0, 0, -1]
    follower.followers.stop(1)
    assert [follower.figures.lag(n, 1) for n in range(2)] == [0, -1]


def test_lag_is_looked_for_only_in_partitions_that_are_behind(
    host: Make, leader: ScriptedLeader
) -> None:
    """It is asked for four times a second, and an idle io worker follows thousands."""
    follower = host(partitions=20, replica_fetch_response_max_bytes=1000)
    for n in range(20):
        leader.log("t", n).append(1)
    follower.publish()
    for n in range(20):
        follower.run_until(in_step(follower, leader, n))
    (link,) = follower.followers._links.values()
    fetch = link.fetch
    assert fetch.lagging_count == 0

    leader.log("t", 7).append([b"x" * 2000])
    leader.log("t", 7).append(3)
    leader.publish()
    seen: set[int] = set()

    def catches_up() -> bool:
        seen.add(fetch.lagging_count)
        return in_step(follower, leader, 7)()

    follower.run_until(catches_up)
    assert seen == {0, 1} and fetch.lagging_count == 0
    follower.followers.stop(7)
    assert follower.followers.lag_max == 0


def test_log_start_follows_when_records_are_deleted(host: Make, leader: ScriptedLeader) -> None:
    follower = host()
    log = leader.log()
    for _ in range(6):
        log.append(1)
    follower.publish()
    follower.run_until(in_step(follower, leader))
    log.start = 4
    leader.publish()
    follower.run_until(lambda: follower.log().log_start_offset == 4)
    follower.run_until(lambda: leader.fetches[-1].topics == [] and len(leader.fetches) > 3)
    told = [p.log_start_offset for f in leader.fetches for t in f.topics for p in t.partitions]
    assert told[-1] == 4


def test_log_start_follows_together_with_a_high_watermark_that_is_looked_up(
    host: Make, leader: ScriptedLeader
) -> None:
    """The leader tells it once: a DeleteRecords would wait for ever."""
    follower = host()
    log = leader.log()
    for _ in range(12):
        log.append(1)
    log.high_watermark = 3
    follower.publish()
    follower.run_until(lambda: follower.log().high_watermark == 3)
    log.high_watermark, log.start = 7, 6
    leader.publish()
    follower.run_until(lambda: follower.log().log_start_offset == 6)


@pytest.mark.parametrize("pieces", [2, 50, 1000])
def test_response_in_pieces_is_appended_as_it_comes(
    host: Make, leader: ScriptedLeader, pieces: int
) -> None:
    def spoil(key: int, request: Any, response: Any, state: dict[str, Any]) -> Any:
        return iter(cut_points(state["frame_of"](response), pieces))

    leader.spoil = spoil
    follower = host(partitions=3)
    for n in range(3):
        for _ in range(30):
            leader.log("t", n).append(2, size=50)
    follower.publish()
    for n in range(3):
        follower.run_until(in_step(follower, leader, n))
        assert follower.bytes_of(n) == leader.log("t", n).data()


def test_batch_larger_than_every_limit_is_copied(host: Make, leader: ScriptedLeader) -> None:
    """A limit never blocks a partition: the first batch is returned whole."""
    follower = host(
        replica_fetch_max_bytes=1000,
        replica_fetch_response_max_bytes=2000,
        replica_socket_receive_buffer_bytes=4096,
    )
    leader.log().append([b"x" * 3_000_000])
    leader.log().append(1)
    follower.publish()
    follower.run_until(in_step(follower, leader))
    assert follower.bytes_of() == leader.log().data()
    asked = leader.fetches[0]
    assert (asked.max_bytes, asked.topics[0].partitions[0].partition_max_bytes) == (2000, 1000)


def test_compacted_log_is_copied_with_its_gaps(host: Make, leader: ScriptedLeader) -> None:
    follower = host()
    log = leader.log()
    log.append(1)
    log.end = 10
    log.append(1)
    follower.publish()
    follower.run_until(in_step(follower, leader))
    assert follower.bytes_of() == log.data()
    assert not follower.log().is_gapless


# ---- leaders that change ----


def test_records_that_the_new_leader_does_not_have_are_cut_first(
    host: Make, leader: ScriptedLeader
) -> None:
    with ScriptedLeader() as other:
        follower = host(other)
        for _ in range(5):
            leader.log().append(1)
        follower.publish()
        follower.run_until(in_step(follower, leader))
        theirs = other.log(epoch=2)
        for _ in range(3):
            theirs.append(1, epoch=1)
        theirs.append([b"other"])
        follower.publish(leader=LEADER + 1, leader_epoch=2)
        follower.run_until(in_step(follower, other))
        assert follower.bytes_of() == theirs.data()
        assert follower.log().epochs.entries == [(1, 0), (2, 3)]
        assert other.fetches[0].topics[0].partitions[0].fetch_offset == 3
        assert follower.followers.committed_cuts == 1


def test_becoming_leader_ends_following_at_once(host: Make, leader: ScriptedLeader) -> None:
    """Later records of a response in flight are not appended."""
    follower = host()
    leader.log().append(2)
    follower.publish()
    follower.run_until(in_step(follower, leader))
    follower.publish(leader=ME, leader_epoch=2, isr=[ME])
    leader.log().append(2)
    leader.publish()
    assert follower.followers.count == 0
    follower.turn(0.05)
    follower.turn(0.05)
    assert follower.log().log_end_offset == 2
    assert follower.log().epochs.latest == 2
    follower.publish(leader=LEADER, leader_epoch=3)
    leader.log().epoch = 3
    leader.log().append(1)
    follower.run_until(in_step(follower, leader))
    assert follower.bytes_of() == leader.log().data()


def test_change_of_the_in_sync_replicas_asks_nothing(host: Make, leader: ScriptedLeader) -> None:
    follower = host()
    leader.log().append(1)
    follower.publish()
    follower.run_until(in_step(follower, leader))
    machine = follower.followers.machine(0)
    follower.publish(isr=[LEADER], partition_epoch=1)
    assert follower.followers.machine(0) is machine and machine.state is FollowingState.FETCHING


def test_partition_without_a_leader_is_left_alone(host: Make, leader: ScriptedLeader) -> None:
    follower = host()
    leader.log().append(1)
    follower.publish(leader=-1, leader_epoch=2)
    follower.turn()
    assert (follower.followers.count, leader.requests) == (0, [])


def test_leader_that_is_not_in_the_metadata_yet_is_found_later(
    host: Make, leader: ScriptedLeader
) -> None:
    follower = host()
    port = follower.brokers.pop(str(LEADER))
    leader.log().append(1)
    follower.publish()
    for _ in range(3):
        follower.turn()
    follower.brokers[str(LEADER)] = port
    follower.publish()
    follower.run_until(in_step(follower, leader))


def test_fenced_follower_waits_for_the_controller(host: Make, leader: ScriptedLeader) -> None:
    follower = host()
    leader.log().append(1)
    follower.publish()
    follower.run_until(in_step(follower, leader))
    leader.log().epoch = 4
    leader.publish()
    follower.run_until(lambda: state(follower) is FollowingState.WAITING)
    follower.publish(leader_epoch=4)
    leader.log().append(1)
    follower.run_until(in_step(follower, leader))


def test_error_of_one_partition_does_not_hold_up_another(
    host: Make, leader: ScriptedLeader
) -> None:
    follower = host(partitions=2, replica_fetch_backoff_ms=30_000)
    leader.log("t", 0).append(1)
    follower.publish()
    follower.run_until(in_step(follower, leader, 0))
    follower.run_until(lambda: state(follower, 1) is FollowingState.BACKOFF)
    leader.log("t", 0).append(1)
    leader.publish()
    follower.run_until(in_step(follower, leader, 0))
    follower.run_until(lambda: 1 not in [p for f in leader.sessions.values() for _, p in f])
    assert state(follower, 1) is FollowingState.BACKOFF


def test_log_out_of_range_starts_where_the_leader_does(host: Make, leader: ScriptedLeader) -> None:
    follower = host()
    log = leader.log()
    log.append(5)
    log.batches.clear()
    log.append(1)
    log.start = 5
    follower.publish()
    follower.run_until(in_step(follower, leader))
    assert follower.log().log_start_offset == 5
    assert follower.bytes_of() == log.data()


def test_first_batch_that_begins_below_the_leaders_start_is_kept(
    host: Make, leader: ScriptedLeader
) -> None:
    follower = host()
    log = leader.log()
    log.append(5)
    log.batches.clear()
    log.append(10)
    log.start = 8
    follower.publish()
    follower.run_until(in_step(follower, leader))
    assert follower.bytes_of() == log.data()
    follower.run_until(lambda: follower.log().log_start_offset == 8)


# ---- disks and settings ----


def test_full_disk_pauses_the_partition_until_there_is_room(
    host: Make, leader: ScriptedLeader
) -> None:
    follower = host()
    leader.log().append([b"x" * 30_000])
    follower.publish()
    kept = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, kept[1]))
    try:
        follower.run_until(lambda: state(follower) is FollowingState.BACKOFF)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, kept)
    assert not follower.failed
    follower.run_until(in_step(follower, leader))
    assert follower.bytes_of() == leader.log().data()


def test_failing_disk_ends_following_of_its_partitions(host: Make, leader: ScriptedLeader) -> None:
    follower = host(partitions=2)
    leader.log("t", 0).append(1)
    leader.log("t", 1).append(1)
    follower.publish()
    for slot in (0, 1):
        follower.run_until(in_step(follower, leader, slot))
    break_file(follower.log(1))
    leader.log("t", 1).append(1)
    leader.publish()
    follower.run_until(lambda: follower.failed == [1])
    assert follower.followers.count == 0  # all are in the one directory
    follower.turn()


def test_partitions_are_spread_over_the_links_of_the_settings(
    host: Make, leader: ScriptedLeader
) -> None:
    follower = host(partitions=4, num_replica_fetchers=2)
    for n in range(4):
        leader.log("t", n).append(1)
    follower.publish()
    for n in range(4):
        follower.run_until(in_step(follower, leader, n))
    full = [f for f in leader.fetches if f.session_epoch == 0]
    assert [sum(len(t.partitions) for t in f.topics) for f in full] == [2, 2]

    follower.config = BrokerConfig({**follower.settings, "num.replica.fetchers": "1"})
    follower.followers.take_settings()
    leader.log("t", 3).append(1)
    for n in range(4):
        follower.run_until(in_step(follower, leader, n))
    assert follower.followers.count == 4
    assert follower.followers.bytes_total == sum(len(leader.log("t", n).data()) for n in range(4))


# ---- leaders that are wrong ----


def records_of(response: FetchResponse) -> Any:
    return response.responses[0].partitions[0] if response.responses else None


def test_corrupt_batch_is_not_copied_and_is_named(
    host: Make, leader: ScriptedLeader, caplog: pytest.LogCaptureFixture
) -> None:
    def spoil(key: int, request: Any, response: Any, state: dict[str, Any]) -> Any:
        row = records_of(response) if key == ApiKey.FETCH else None
        if row is not None and row.records:
            row.records = row.records[:-1] + bytes([row.records[-1] ^ 1])
        return response

    follower = host()
    leader.log().append(1)
    leader.log().append(2)
    leader.spoil = spoil
    follower.publish()
    follower.run_until(lambda: state(follower) is FollowingState.FAILED)
    assert follower.followers.failed_count == 1
    assert follower.log().log_end_offset == 1
    assert f"the batch at offset 1 from leader {LEADER} does not match its checksum" in caplog.text
    leader.spoil = None
    leader.log().epoch = 2
    follower.publish(leader_epoch=2)
    follower.run_until(in_step(follower, leader))
    assert follower.followers.failed_count == 0


def wrong_frames(wrong: str, frame: bytes) -> Iterator[bytes]:
    size = len(frame) - 4
    if wrong == "closed":
        yield frame[: len(frame) // 2]
        raise OSError("closed in the middle")
    yield {
        "length": b"\x7f\xff\xff\xff" + frame[4:],
        "negative": b"\xff\xff\xff\xff" + frame[4:],
        "short": b"\0\0\0\1" + frame[4:],
        "correlation": frame[:4] + b"\x12\x34\x56\x78" + frame[8:],
        "records": frame.replace(b"\xff\xff\xff\xffK\0\0\0\0", b"\xff\xff\xff\xff\xff\xff\3\0\0"),
        "cut": (size - 9).to_bytes(4, "big") + frame[4:-9],
        "name": frame.replace(b"\2\2t\2", b"\2\xff\xff\3\2"),
        "left over": (size + 7).to_bytes(4, "big") + frame[4:] + b"\0" * 7,
    }[wrong]


@pytest.mark.parametrize(
    "wrong",
    ["length", "negative", "short", "correlation", "records", "cut", "closed", "name", "left over"],
)
def test_wrong_response_costs_the_connection_and_no_more(
    host: Make, leader: ScriptedLeader, wrong: str
) -> None:
    def spoil(key: int, request: Any, response: Any, state: dict[str, Any]) -> Any:
        if key != ApiKey.FETCH or len(leader.fetches) % 3 != 1:
            return response
        return wrong_frames(wrong, state["frame_of"](response))

    leader.spoil = spoil
    follower = host(replica_fetch_wait_max_ms=20, replica_socket_timeout_ms=200)
    for _ in range(4):
        leader.log().append(1)
    follower.publish()
    follower.run_until(in_step(follower, leader))
    seen = len(leader.fetches)
    for _ in range(3):
        leader.log().append(1)
        leader.publish()
        follower.run_until(in_step(follower, leader))
    assert len(leader.fetches) > seen
    assert follower.bytes_of() == leader.log().data()
    assert not follower.failed


def test_leader_that_does_not_respond_is_connected_to_again(
    host: Make, leader: ScriptedLeader
) -> None:
    silent = True

    def spoil(key: int, request: Any, response: Any, state: dict[str, Any]) -> Any:
        return b"" if silent else response

    leader.spoil = spoil
    follower = host(replica_socket_timeout_ms=100)
    leader.log().append(1)
    follower.publish()
    follower.run_until(lambda: len(leader.fetches) == 2)
    silent = False
    follower.run_until(in_step(follower, leader))


def test_gap_below_the_offset_asked_for_is_not_appended(host: Make, leader: ScriptedLeader) -> None:
    """A batch that begins below the log end offset."""

    def spoil(key: int, request: Any, response: Any, state: dict[str, Any]) -> Any:
        row = records_of(response) if key == ApiKey.FETCH else None
        if row is not None and row.records and len(leader.log().batches) > 1:
            row.records = leader.log().data()
        return response

    leader.spoil = spoil
    follower = host()
    leader.log().append(2)
    follower.publish()
    follower.run_until(in_step(follower, leader))
    leader.log().append(1)
    leader.publish()
    follower.run_until(lambda: state(follower) is FollowingState.FAILED)
    assert follower.log().log_end_offset == 2


def test_batch_whose_length_exceeds_its_response_fails_the_partition(
    host: Make, leader: ScriptedLeader
) -> None:
    """A retry would get the same response, at once and forever."""

    def spoil(key: int, request: Any, response: Any, state: dict[str, Any]) -> Any:
        row = records_of(response) if key == ApiKey.FETCH else None
        if row is not None and row.records:
            row.records = row.records[:8] + (1 << 30).to_bytes(4, "big") + row.records[12:]
        return response

    leader.spoil = spoil
    follower = host()
    leader.log().append(1)
    follower.publish()
    follower.run_until(lambda: state(follower) is FollowingState.FAILED)
    assert len(leader.fetches) < 10


def test_batch_that_a_limit_cuts_short_is_fetched_later(host: Make, leader: ScriptedLeader) -> None:
    def spoil(key: int, request: Any, response: Any, state: dict[str, Any]) -> Any:
        row = records_of(response) if key == ApiKey.FETCH else None
        if row is not None and row.records and len(row.records) > 200:
            row.records = row.records[:-30]
        return response

    leader.spoil = spoil
    follower = host()
    for _ in range(5):
        leader.log().append(1, size=100)
    follower.publish()
    follower.run_until(in_step(follower, leader))
    assert follower.bytes_of() == leader.log().data()


def test_question_that_gets_no_response_is_asked_again(host: Make, leader: ScriptedLeader) -> None:
    left_out = 2

    def spoil(key: int, request: Any, response: Any, state: dict[str, Any]) -> Any:
        nonlocal left_out
        if key == ApiKey.OFFSET_FOR_LEADER_EPOCH and left_out:
            left_out -= 1
            response.topics.clear()
        return response

    follower = host()
    leader.log().append(1)
    follower.publish()
    follower.run_until(in_step(follower, leader))
    leader.spoil = spoil
    leader.log().epoch = 2
    follower.publish(leader_epoch=2)
    leader.log().append(1)
    follower.run_until(in_step(follower, leader))
    assert left_out == 0


def test_fetches_wait_for_a_shorter_time_after_a_partition_has_come(
    host: Make, leader: ScriptedLeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may follow, and are fetched with the next request."""
    follower = host(replica_fetch_wait_max_ms=70)
    leader.log().append(1)
    follower.publish()
    follower.run_until(lambda: len(leader.fetches) > 2)
    assert {fetch.max_wait_ms for fetch in leader.fetches} == {EXPECTING_WAIT_MS}

    monkeypatch.setattr(leader_link, "EXPECTING_MS", 0)
    follower.publish(leader_epoch=2)
    leader.log().epoch = 2
    follower.run_until(lambda: leader.fetches[-1].max_wait_ms == 70)


def test_shorter_wait_of_the_settings_stays(host: Make, leader: ScriptedLeader) -> None:
    follower = host(replica_fetch_wait_max_ms=30)
    follower.publish()
    leader.log()
    follower.run_until(lambda: len(leader.fetches) > 1)
    assert {fetch.max_wait_ms for fetch in leader.fetches} == {30}


def test_leader_that_serves_none_of_many_partitions_yet_is_named_in_one_line(
    host: Make, leader: ScriptedLeader, caplog: pytest.LogCaptureFixture
) -> None:
    """After a start of 15 brokers each wrote a line for each of 1,000 partitions, each second."""
    caplog.set_level(logging.INFO)

    def refuse(key: int, request: Any, response: Any, state: dict[str, Any]) -> Any:
        if key == ApiKey.FETCH:
            for topic in response.responses:
                for row in topic.partitions:
                    row.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return response

    follower = host(partitions=20)
    for n in range(20):
        leader.log("t", n).append(1)
    leader.spoil = refuse
    follower.publish()
    follower.run_until(lambda: "cannot follow" in caplog.text)
    lines = [r.getMessage() for r in caplog.records if "cannot follow" in r.getMessage()]
    assert lines[0].startswith("20 changes like these (each at DEBUG): t-0: cannot follow broker")


def waits(leader: ScriptedLeader) -> list[int]:
    return [fetch.max_wait_ms for fetch in leader.fetches]


def test_idle_leader_keeps_fetches_for_longer(
    host: Make, leader: ScriptedLeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """420 links of 15 brokers that did nothing asked 840 times a second."""
    monkeypatch.setattr(leader_link, "EXPECTING_MS", 0)
    monkeypatch.setattr(leader_link, "IDLE_AFTER_MS", 100)
    follower = host(replica_fetch_wait_max_ms=20)
    leader.log().append(1)
    follower.publish()
    follower.run_until(lambda: waits(leader)[-2:] == [200, 200])

    leader.log().append(1)
    leader.publish()
    follower.run_until(in_step(follower, leader))
    follower.run_until(lambda: waits(leader)[-1] != 200)
    assert waits(leader)[-1] == 20
    follower.run_until(lambda: waits(leader)[-1] == 200)


def test_response_that_comes_before_its_time_ends_the_long_waits(
    host: Make, leader: ScriptedLeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader sends one if there may be more to fetch, such as a partition that it leads now.
    A follower that heard of it after its next request kept producers waiting for half a second.
    """
    monkeypatch.setattr(leader_link, "EXPECTING_MS", 0)
    monkeypatch.setattr(leader_link, "IDLE_AFTER_MS", 100)
    monkeypatch.setattr(leader_link, "IDLE_WAIT_FACTOR", 30)
    follower = host(replica_fetch_wait_max_ms=100)
    leader.log().append(1)
    follower.publish()
    follower.run_until(lambda: waits(leader)[-1:] == [3_000])
    monkeypatch.setattr(leader_link, "EXPECTING_MS", 3_000)
    leader.hurry()
    follower.run_until(lambda: waits(leader)[-1] == leader_link.EXPECTING_WAIT_MS)


def test_responses_to_short_waits_are_not_taken_for_early_ones(
    host: Make, leader: ScriptedLeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clocks of turns differ by some ms: each would have asked for more short waits, for ever."""
    monkeypatch.setattr(leader_link, "EXPECTING_MS", 200)
    follower = host(replica_fetch_wait_max_ms=500)
    leader.log().append(1)
    leader.hurried = 1_000_000  # it responds to every fetch at once
    follower.publish()
    follower.run_until(lambda: waits(leader)[-1:] == [leader_link.EXPECTING_WAIT_MS])

    follower.run_until(lambda: waits(leader)[-1] > leader_link.EXPECTING_WAIT_MS)


@pytest.mark.parametrize(
    ("settings", "longest"),
    [
        ({"replica_lag_time_max_ms": 600}, 100),
        ({"replica_socket_timeout_ms": 300}, 50),
        ({"replica_socket_timeout_ms": 60}, 20),
        ({"replica_fetch_min_bytes": 2}, 20),
    ],
    ids=["no silence", "within the time of a request", "never shorter", "records do not wait"],
)
def test_long_waits_are_bounded(
    host: Make,
    leader: ScriptedLeader,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, int],
    longest: int,
) -> None:
    monkeypatch.setattr(leader_link, "EXPECTING_MS", 0)
    monkeypatch.setattr(leader_link, "IDLE_AFTER_MS", 0)
    follower = host(replica_fetch_wait_max_ms=20, **settings)
    leader.log()
    follower.publish()
    follower.run_until(lambda: len(leader.fetches) > 4)
    assert max(waits(leader)) == longest
