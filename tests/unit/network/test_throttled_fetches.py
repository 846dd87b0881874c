"""Fetches of followers whose leader has used up its quota (KIP-73)."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.replication.follower_fetches import Follower, reports, wake
from support.storage.fetch_log import FetchBench, OwnedLog

from kbroker._ext.shared.replication_quota import LEADER, ReplicationQuota, region_size

pytestmark = pytest.mark.unit

IN_SYNC, BEHIND = 2, 3
LEADS = 1


class Throttled:
    """Topic t of two partitions, of which partition 0 is throttled; the quota is small."""

    def __init__(self, path: Path) -> None:
        self.bench = FetchBench(path)
        self.logs: list[OwnedLog] = self.bench.topic(partitions=2)
        topic = self.bench.engine.registry.get(b"t")
        assert topic is not None
        topic.throttled = {0: [LEADS, IN_SYNC]}
        self.quota = ReplicationQuota(bytearray(region_size(11)), LEADER, 1000)
        self.quota.rate = 1
        self.bench.engine.reader.quota = self.quota

    def use_up(self) -> None:
        self.quota.add(5, self.bench.now_ms)
        assert self.quota.is_exceeded(self.bench.now_ms)

    def sizes(self, replica: int, **fields: object) -> list[int]:
        wanted = {("t", 0): 0, ("t", 1): 0}
        response = Follower(self.bench, replica).fetch(wanted, **fields)
        found = self.bench.partitions(response)
        return [len(found["t", number].records or b"") for number in range(2)]


@pytest.fixture
def throttled(tmp_path: Path) -> Throttled:
    return Throttled(tmp_path)


def append(throttled: Throttled) -> list[int]:
    for log in throttled.logs:
        log.append()
    return [len(log.batches[0].data) for log in throttled.logs]


def test_partition_is_left_out_while_the_quota_is_used_up(throttled: Throttled) -> None:
    first, second = append(throttled)
    assert throttled.sizes(BEHIND) == [first, second]
    assert throttled.quota.is_exceeded(throttled.bench.now_ms), "what was sent counts"

    assert throttled.sizes(BEHIND) == [0, second]
    throttled.bench.now_ms += 11_000
    assert throttled.sizes(BEHIND) == [first, second]


def test_follower_in_sync_is_not_throttled_but_counts(throttled: Throttled) -> None:
    sizes = append(throttled)
    assert throttled.sizes(IN_SYNC) == sizes
    assert throttled.sizes(IN_SYNC) == sizes
    assert throttled.sizes(BEHIND) == [0, sizes[1]]


def test_consumers_are_not_throttled(throttled: Throttled) -> None:
    first, _ = append(throttled)
    throttled.use_up()
    for _ in range(2):
        answer = throttled.bench.only(throttled.bench.fetch({("t", 0): 0}))
        assert len(answer.records) == first


def test_partitions_that_are_not_throttled_do_not_count(throttled: Throttled) -> None:
    append(throttled)
    Follower(throttled.bench, BEHIND).fetch({("t", 1): 0})
    assert not throttled.quota.is_exceeded(throttled.bench.now_ms)


def test_throttled_follower_is_told_the_offsets_and_counts_as_one(throttled: Throttled) -> None:
    append(throttled)
    throttled.use_up()
    answer = throttled.bench.only(Follower(throttled.bench, BEHIND).fetch({("t", 0): 0}))
    assert (answer.error_code, answer.high_watermark, answer.log_start_offset) == (0, 1, 0)
    assert [(report.replica, report.offset) for report in reports(throttled.bench)] == [(BEHIND, 0)]


def test_fetch_waits_for_its_time_while_everything_is_throttled(throttled: Throttled) -> None:
    """New records do not end the wait: the follower would come back at once."""
    bench, log = throttled.bench, throttled.logs[0]
    log.append()
    throttled.use_up()
    assert Follower(bench, BEHIND).start({("t", 0): 0}, max_wait_ms=500) is None

    log.append()
    wake(bench, log)
    assert bench.completed() == {}

    bench.now_ms += 500
    bench.engine.expire_at(bench.now_ms)
    (answer,) = bench.completed().values()
    assert not bench.only(answer).records


def test_wait_ends_with_records_once_the_quota_allows_it(throttled: Throttled) -> None:
    bench, log = throttled.bench, throttled.logs[0]
    log.append()
    throttled.use_up()
    assert Follower(bench, BEHIND).start({("t", 0): 0}, max_wait_ms=6_000) is None

    bench.now_ms += 6_000
    bench.engine.expire_at(bench.now_ms)
    (answer,) = bench.completed().values()
    assert bytes(bench.only(answer).records) == log.batches[0].data


def test_records_of_another_partition_end_the_wait(throttled: Throttled) -> None:
    bench, other = throttled.bench, throttled.logs[1]
    throttled.logs[0].append()
    throttled.use_up()
    assert Follower(bench, BEHIND).start({("t", 0): 0, ("t", 1): 0}, max_wait_ms=500) is None

    other.append()
    wake(bench, other)

    (answer,) = bench.completed().values()
    assert len(bench.partitions(answer)["t", 1].records) == len(other.batches[0].data)


def test_quota_without_throttled_topics_changes_nothing(throttled: Throttled) -> None:
    sizes = append(throttled)
    topic = throttled.bench.engine.registry.get(b"t")
    assert topic is not None
    topic.throttled = None
    throttled.use_up()
    assert throttled.sizes(BEHIND) == sizes
